//! Owns finding out what the machine, the container and the account allow. It reads `/proc`, `/sys` and the limits of
//! this process; it decides nothing.

use std::path::{Path, PathBuf};

/// What this process may use, as found.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// CPUs that this process may run on, one thread of each core before the second of any.
    pub cpus: Vec<u32>,
    /// How many of `cpus` are cores of their own; the rest share one.
    pub physical_cores: u32,
    /// Whole CPUs that the container's quota comes to; `None` = no quota.
    pub cpu_quota: Option<u32>,
    /// Smaller of the machine's memory and the container's limit.
    pub memory_bytes: u64,
    /// The container's limit, when it is what bounds `memory_bytes`.
    pub is_memory_limited: bool,
    pub kind: MachineKind,
    /// Open files this process may have, after raising the soft limit to the hard one.
    pub open_files_max: u64,
}

/// What the process runs on: the profile follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineKind {
    Container,
    Virtual,
    /// It has a battery.
    Laptop,
    BareMetal,
}

/// Looks at this process and its machine.
pub fn discover() -> Machine {
    discover_below(Path::new("/"), &allowed_cpus(), raise_open_files())
}

/// As [`discover`], with the files below `root` and the rest given: for tests on made-up machines.
fn discover_below(root: &Path, allowed: &[u32], open_files_max: u64) -> Machine {
    let reader = Reader { root };
    let (cpus, physical_cores) = reader.order_by_core(allowed);
    let total = reader.memory_total().unwrap_or(FALLBACK_MEMORY_BYTES);
    let limit = reader.memory_limit().filter(|limit| *limit < total);
    Machine {
        cpus,
        physical_cores,
        cpu_quota: reader.cpu_quota(),
        memory_bytes: limit.unwrap_or(total),
        is_memory_limited: limit.is_some(),
        kind: reader.kind(),
        open_files_max,
    }
}

/// When `/proc/meminfo` is not readable: small, so that nothing is taken that may not be there.
const FALLBACK_MEMORY_BYTES: u64 = 1 << 30;

fn allowed_cpus() -> Vec<u32> {
    let found = rustix::thread::sched_getaffinity(None).map(|set| {
        let numbers = 0..rustix::thread::CpuSet::MAX_CPU;
        numbers.filter(|cpu| set.is_set(*cpu)).filter_map(|cpu| u32::try_from(cpu).ok()).collect::<Vec<_>>()
    });
    match found {
        Ok(cpus) if !cpus.is_empty() => cpus,
        _ => vec![0],
    }
}

/// Raises the soft limit to the hard one: shells start programs with 1024, which is no decision about this one.
fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let effective = if setrlimit(Resource::Nofile, wanted).is_ok() { limit.maximum } else { limit.current };
    effective.unwrap_or(u64::MAX)
}

struct Reader<'a> {
    root: &'a Path,
}

impl Reader<'_> {
    fn text(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok()
    }

    fn number(&self, path: &Path) -> Option<u64> {
        std::fs::read_to_string(self.root.join(path)).ok()?.trim().parse().ok()
    }

    fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// First threads of cores first, in the order of their numbers, then the others.
    fn order_by_core(&self, allowed: &[u32]) -> (Vec<u32>, u32) {
        let is_first = |cpu: &u32| {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            let siblings =
                self.text(&path).and_then(|text| crate::config::value::parse_cpu_list(text.trim()).ok());
            let mut usable =
                siblings.unwrap_or_default().into_iter().filter(|sibling| allowed.contains(sibling));
            usable.next().is_none_or(|first| first == *cpu)
        };
        let (mut cpus, others): (Vec<u32>, Vec<u32>) = allowed.iter().partition(|cpu| is_first(cpu));
        let physical_cores = cpus.len() as u32;
        cpus.extend(others);
        (cpus, physical_cores)
    }

    fn memory_total(&self) -> Option<u64> {
        let text = self.text("proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kibibytes.checked_mul(1024)
    }

    /// The tightest limit of this control group and of those above it.
    fn memory_limit(&self) -> Option<u64> {
        let unified = self.groups("", "sys/fs/cgroup").into_iter().map(|group| group.join("memory.max"));
        let split = self.groups("memory", "sys/fs/cgroup/memory");
        let split = split.into_iter().map(|group| group.join("memory.limit_in_bytes"));
        // Version 1 writes "no limit" as a number near 2^63; `memory_total` is smaller and wins.
        unified.chain(split).filter_map(|path| self.number(&path)).min()
    }

    fn cpu_quota(&self) -> Option<u32> {
        let unified = self.groups("", "sys/fs/cgroup").into_iter().filter_map(|group| {
            let text = std::fs::read_to_string(self.root.join(group.join("cpu.max"))).ok()?;
            let (quota, period) = text.trim().split_once(' ')?;
            Some((quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?))
        });
        let split = self.groups("cpu", "sys/fs/cgroup/cpu").into_iter().filter_map(|group| {
            let quota = self.number(&group.join("cpu.cfs_quota_us"))?;
            Some((quota, self.number(&group.join("cpu.cfs_period_us"))?))
        });
        let whole = |(quota, period): (u64, u64)| u32::try_from(quota.checked_div(period)?.max(1)).ok();
        unified.chain(split).filter_map(whole).min()
    }

    /// The folder of this process's group and of each above it, down to the mount: a limit may sit on any of them.
    /// `controller` is empty for version 2.
    fn groups(&self, controller: &str, mount: &str) -> Vec<PathBuf> {
        let membership = self.text("proc/self/cgroup").unwrap_or_default();
        let path = membership.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            controllers
                .split(',')
                .any(|name| name == controller)
                .then(|| path.trim_start_matches('/').to_owned())
        });
        let Some(path) = path else {
            return Vec::new();
        };
        // A path with `..` names a group outside of this container's view, which only the mount itself stands for.
        let relative = if path.split('/').any(|part| part == "..") { "" } else { &path };
        Path::new(relative).ancestors().map(|below| Path::new(mount).join(below)).collect()
    }

    fn kind(&self) -> MachineKind {
        let group = self.text("proc/1/cgroup").unwrap_or_default();
        let in_group =
            ["docker", "kubepods", "containerd", "libpod", "lxc"].iter().any(|name| group.contains(name));
        if in_group || self.exists(".dockerenv") || self.exists("run/.containerenv") {
            return MachineKind::Container;
        }
        let processor = self.text("proc/cpuinfo").unwrap_or_default();
        let flags = processor.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        if flags.split_whitespace().any(|flag| flag == "hypervisor") || self.exists("sys/hypervisor/type") {
            return MachineKind::Virtual;
        }
        let supplies =
            std::fs::read_dir(self.root.join("sys/class/power_supply")).into_iter().flatten().flatten();
        let has_battery =
            supplies.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("BAT"));
        if has_battery { MachineKind::Laptop } else { MachineKind::BareMetal }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up machine: (path, content) below a temporary root.
    fn machine(files: &[(&str, &str)], allowed: &[u32]) -> Machine {
        let root = tempfile::tempdir().expect("a temporary directory can be made");
        for (path, content) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("the path lies below the root"))
                .expect("it can be made");
            std::fs::write(path, content).expect("it can be written");
        }
        discover_below(root.path(), allowed, 1024)
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");

    #[test]
    fn an_unlimited_machine() {
        let found = machine(&[MEMINFO, ("proc/self/cgroup", "0::/user.slice\n")], &[0, 1]);
        assert_eq!((found.memory_bytes, found.is_memory_limited), (16 << 30, false));
        assert_eq!((found.cpu_quota, found.cpus, found.physical_cores), (None, vec![0, 1], 2));
        assert_eq!(found.kind, MachineKind::BareMetal);
    }

    #[test]
    fn version_2_limits_may_sit_on_a_group_above() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/cpu.max", "250000 100000\n"),
            ("sys/fs/cgroup/cpu.max", "max 100000\n"),
        ];
        let found = machine(&files, &[0]);
        assert_eq!((found.memory_bytes, found.is_memory_limited, found.cpu_quota), (1 << 30, true, Some(2)));
    }

    #[test]
    fn version_2_inside_a_container() {
        let files = [
            MEMINFO,
            (".dockerenv", ""),
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "536870912\n"),
            ("sys/fs/cgroup/cpu.max", "50000 100000\n"),
        ];
        let found = machine(&files, &[0]);
        assert_eq!(
            (found.memory_bytes, found.cpu_quota, found.kind),
            (512 << 20, Some(1), MachineKind::Container)
        );
        let outside =
            [MEMINFO, ("proc/self/cgroup", "0::/../x\n"), ("sys/fs/cgroup/memory.max", "1048576\n")];
        assert_eq!(machine(&outside, &[0]).memory_bytes, 1 << 20);
    }

    #[test]
    fn version_1_limits() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "5:memory:/d\n4:cpu,cpuacct:/d\n"),
            ("sys/fs/cgroup/memory/d/memory.limit_in_bytes", "2147483648\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/cpu/d/cpu.cfs_quota_us", "300000\n"),
            ("sys/fs/cgroup/cpu/d/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
        ];
        let found = machine(&files, &[0]);
        assert_eq!((found.memory_bytes, found.cpu_quota), (2 << 30, Some(3)));
    }

    #[test]
    fn cores_come_before_their_second_threads() {
        let siblings = |cpu: u32| format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let (paths, lists) =
            ([siblings(0), siblings(1), siblings(2), siblings(3)], ["0,2", "1,3", "0,2", "1,3"]);
        let mut files = vec![MEMINFO];
        files.extend(paths.iter().map(String::as_str).zip(lists));
        let found = machine(&files, &[0, 1, 2, 3]);
        assert_eq!((found.cpus, found.physical_cores), (vec![0, 1, 2, 3], 2));
        // Only the second thread of a core may be used: it counts as the core.
        let found = machine(&files, &[0, 2, 3]);
        assert_eq!((found.cpus, found.physical_cores), (vec![0, 3, 2], 2));
    }

    #[test]
    fn kinds() {
        let check = |files: &[(&str, &str)], expected| assert_eq!(machine(files, &[0]).kind, expected);
        check(&[("proc/cpuinfo", "flags\t\t: fpu hypervisor lm\n")], MachineKind::Virtual);
        check(&[("sys/class/power_supply/BAT0/type", "Battery\n")], MachineKind::Laptop);
        check(&[("proc/1/cgroup", "0::/kubepods/besteffort\n")], MachineKind::Container);
        assert_eq!(machine(&[], &[0]).memory_bytes, FALLBACK_MEMORY_BYTES);
    }

    #[test]
    fn this_machine_is_found() {
        let found = discover();
        assert!(!found.cpus.is_empty() && found.physical_cores >= 1 && found.memory_bytes > 0);
        assert!(found.open_files_max >= 64);
    }
}
