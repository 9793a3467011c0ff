//! What /proc tells of processes and of this machine. Linux only; reads, never writes.

use std::fs;
use std::io;

use serde::Serialize;

/// CPU time and memory of a process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessSample {
    /// User and system time since it started, microseconds; all its threads.
    pub cpu_microseconds: u64,
    /// Resident memory, bytes.
    pub resident_bytes: u64,
}

/// Reads `/proc/PID/stat`.
///
/// # Errors
/// No such process, or text that is not what the kernel writes.
pub fn sample_process(pid: u32) -> io::Result<ProcessSample> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let page_bytes = rustix::param::page_size() as u64;
    parse_stat(&text, rustix::param::clock_ticks_per_second(), page_bytes).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "/proc/PID/stat is not in the kernel's format")
    })
}

/// `pid (name) state ...`: the name may hold anything, so fields count from the last parenthesis (proc_pid_stat(5)).
fn parse_stat(text: &str, ticks_per_second: u64, page_bytes: u64) -> Option<ProcessSample> {
    let (_, behind_name) = text.rsplit_once(')')?;
    let fields: Vec<&str> = behind_name.split_whitespace().collect();
    // Field 3 of the manual page is the first one here.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let ticks = field(14)? + field(15)?;
    Some(ProcessSample {
        cpu_microseconds: ticks.saturating_mul(1_000_000).checked_div(ticks_per_second)?,
        resident_bytes: field(24)?.saturating_mul(page_bytes),
    })
}

/// This machine, for the report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// `uname -r`.
    pub kernel: String,
    /// The processor's own name.
    pub cpu_model: String,
    /// CPUs this process may use.
    pub cpus_allowed: String,
    /// Frequency governor of CPU 0, where the kernel has one.
    pub governor: Option<String>,
    /// Total memory, bytes.
    pub memory_bytes: u64,
    /// Memory available now, bytes.
    pub memory_available_bytes: u64,
    /// TCP congestion control; bbr halves loopback.
    pub congestion_control: String,
    /// The kernel's clock source.
    pub clock_source: String,
}

impl Machine {
    /// Reads what can be read; what cannot is empty.
    pub fn read() -> Machine {
        let line =
            |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
        let governor = line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
        let memory = line("/proc/meminfo");
        Machine {
            kernel: line("/proc/sys/kernel/osrelease"),
            cpu_model: field_of(&line("/proc/cpuinfo"), "model name"),
            cpus_allowed: field_of(&line("/proc/self/status"), "Cpus_allowed_list"),
            governor: (!governor.is_empty()).then_some(governor),
            memory_bytes: kibibytes_of(&memory, "MemTotal"),
            memory_available_bytes: kibibytes_of(&memory, "MemAvailable"),
            congestion_control: line("/proc/sys/net/ipv4/tcp_congestion_control"),
            clock_source: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        }
    }

    /// What on this machine makes figures worse or less repeatable.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.congestion_control == "bbr" {
            warnings.push("TCP congestion control is bbr, which halves loopback throughput".to_owned());
        }
        if self.governor.as_deref().is_some_and(|governor| governor != "performance") {
            let governor = self.governor.as_deref().unwrap_or_default();
            warnings.push(format!("the CPU frequency governor is {governor}, so clocks vary within the run"));
        }
        if !self.clock_source.is_empty()
            && !matches!(self.clock_source.as_str(), "tsc" | "kvm-clock" | "arch_sys_counter")
        {
            warnings.push(format!(
                "the clock source is {}, which makes every time stamp a slow system call",
                self.clock_source
            ));
        }
        warnings
    }
}

fn field_of(text: &str, name: &str) -> String {
    let value = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    });
    value.unwrap_or_default()
}

fn kibibytes_of(text: &str, name: &str) -> u64 {
    let value = field_of(text, name);
    value
        .split_whitespace()
        .next()
        .and_then(|number| number.parse::<u64>().ok())
        .unwrap_or(0)
        .saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_even_with_a_hostile_name() {
        let text =
            "77 (a) b (c)) S 1 77 77 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 9 0 12345 1000000 2048 184";
        let sample = parse_stat(text, 100, 4_096).expect("the kernel's format");
        assert_eq!(sample, ProcessSample { cpu_microseconds: 3_000_000, resident_bytes: 8_388_608 });
        assert_eq!(parse_stat("77 (x) S 1", 100, 4_096), None);
        assert_eq!(parse_stat("", 100, 4_096), None);
    }

    #[test]
    fn this_process_uses_cpu_and_memory() {
        let before = sample_process(std::process::id()).expect("we exist");
        assert!(before.resident_bytes > 100_000);
        assert!(sample_process(u32::MAX).is_err());
    }

    #[test]
    fn slow_settings_are_named() {
        let machine = Machine {
            congestion_control: "bbr".to_owned(),
            governor: Some("powersave".to_owned()),
            clock_source: "hpet".to_owned(),
            ..Machine::default()
        };
        assert_eq!(machine.warnings().len(), 3);
        let good = Machine {
            congestion_control: "cubic".to_owned(),
            clock_source: "tsc".to_owned(),
            ..Machine::default()
        };
        assert!(good.warnings().is_empty());
    }
}
