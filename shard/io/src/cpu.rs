//! CPUs: which this process may use, lists as people write them, binding a thread to one. Never chooses a layout.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A CPU as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(pub usize);

impl fmt::Display for CpuId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Why a list of CPUs was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuListError {
    /// Nothing in it.
    #[error("the cpu list is empty; write it like 0-3,8")]
    Empty,
    /// A part is neither a number nor a range.
    #[error("`{part}` in the cpu list is neither a number nor a range like 0-3")]
    Part {
        /// The part as written.
        part: String,
    },
    /// A range runs backwards.
    #[error("`{part}` in the cpu list runs backwards")]
    Backwards {
        /// The part as written.
        part: String,
    },
    /// A number that no kernel mask holds.
    #[error("cpu {cpu} in the cpu list is above {max}")]
    TooLarge {
        /// The number as written.
        cpu: usize,
        /// The largest one.
        max: usize,
    },
}

/// Parses a list as the kernel and taskset write it (`0-3,8`): ascending, without repeats.
pub fn parse_cpu_list(text: &str) -> Result<Vec<CpuId>, CpuListError> {
    let mut cpus = BTreeSet::new();
    let max = CpuSet::MAX_CPU - 1;
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let number = |digits: &str| {
            digits.trim().parse::<usize>().map_err(|_| CpuListError::Part { part: part.to_owned() })
        };
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last {
            return Err(CpuListError::Backwards { part: part.to_owned() });
        }
        if last > max {
            return Err(CpuListError::TooLarge { cpu: last, max });
        }
        cpus.extend((first..=last).map(CpuId));
    }
    if cpus.is_empty() { Err(CpuListError::Empty) } else { Ok(cpus.into_iter().collect()) }
}

/// Writes CPUs as a list (`0-3,8`); they must be ascending.
pub fn format_cpu_list(cpus: &[CpuId]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for cpu in cpus {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == cpu.0 => *last = cpu.0,
            _ => runs.push((cpu.0, cpu.0)),
        }
    }
    let parts: Vec<String> = runs
        .into_iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    parts.join(",")
}

/// The CPUs that this process may use, ascending: the affinity mask (which knows about cpusets and taskset) as it was
/// when first asked, before any thread was pinned.
pub fn allowed_cpus() -> &'static [CpuId] {
    static ALLOWED: OnceLock<Vec<CpuId>> = OnceLock::new();
    ALLOWED.get_or_init(|| {
        let process = rustix::process::getpid();
        match sched_getaffinity(Some(process)) {
            Ok(set) => (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(CpuId).collect(),
            Err(_) => vec![CpuId(0)],
        }
    })
}

/// Binds the calling thread to `cpus`.
pub(crate) fn bind_thread(cpus: &[CpuId]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        if cpu.0 >= CpuSet::MAX_CPU {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        set.set(cpu.0);
    }
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&[usize], CpuListError>) {
        let expected = expected.map(|cpus| cpus.iter().copied().map(CpuId).collect::<Vec<_>>());
        assert_eq!(parse_cpu_list(text), expected, "{text}");
    }

    #[test]
    fn lists_are_parsed_as_the_kernel_writes_them() {
        check("0", Ok(&[0]));
        check("0-3,8", Ok(&[0, 1, 2, 3, 8]));
        check(" 8 , 1-2,2 ", Ok(&[1, 2, 8]));
        check("", Err(CpuListError::Empty));
        check(",", Err(CpuListError::Empty));
        check("3-1", Err(CpuListError::Backwards { part: "3-1".into() }));
        check("a", Err(CpuListError::Part { part: "a".into() }));
        check("1-", Err(CpuListError::Part { part: "1-".into() }));
        check("0-99999999", Err(CpuListError::TooLarge { cpu: 99_999_999, max: CpuSet::MAX_CPU - 1 }));
    }

    #[test]
    fn lists_survive_a_round_trip() {
        for text in ["0", "0-3,8", "1,3,5-6"] {
            assert_eq!(format_cpu_list(&parse_cpu_list(text).expect("valid")), text);
        }
    }

    #[test]
    fn a_thread_can_be_bound_to_an_allowed_cpu() {
        let first = allowed_cpus()[0];
        std::thread::spawn(move || {
            bind_thread(&[first]).expect("an allowed cpu");
            let set = sched_getaffinity(None).expect("own mask");
            assert_eq!(set.count(), 1);
            assert!(set.is_set(first.0));
        })
        .join()
        .expect("no panic");
    }
}
