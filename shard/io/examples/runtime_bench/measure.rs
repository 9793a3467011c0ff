//! What one run measured, and the CPU clock of another thread.

use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringlog_io::{CpuId, parse_cpu_list};

/// Operations of one window, and what they cost the server's thread.
#[derive(Clone, Copy, Debug)]
pub struct Measurement {
    pub operations: u64,
    pub elapsed: Duration,
    pub server_cpu: Duration,
}

impl Measurement {
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.elapsed.as_secs_f64()
    }

    pub fn cpu_ns_per_operation(&self) -> f64 {
        self.server_cpu.as_nanos() as f64 / self.operations.max(1) as f64
    }

    /// The share of its CPU that the server's thread used.
    pub fn busy(&self) -> f64 {
        self.server_cpu.as_secs_f64() / self.elapsed.as_secs_f64()
    }
}

/// The value below which the share `part` of them lies; of an even number of values the upper middle is the median.
pub fn quantile(mut values: Vec<f64>, part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (values.len() as f64 * part) as usize;
    values.get(index.min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// A window over a thread: what it used between start and end.
pub struct Window {
    clock: libc::clockid_t,
    started: Instant,
    cpu_before: Duration,
}

impl Window {
    /// Begins now. The thread must live until the end.
    pub fn over<T>(thread: &JoinHandle<T>) -> Self {
        let mut clock = 0;
        // SAFETY: the handle is not joined, so the thread's id is valid; `clock` is ours.
        let code = unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t(), &raw mut clock) };
        assert_eq!(code, 0, "a live thread has a cpu clock");
        Self { clock, started: Instant::now(), cpu_before: read(clock) }
    }

    pub fn end(self, operations: u64) -> Measurement {
        let server_cpu = read(self.clock).saturating_sub(self.cpu_before);
        Measurement { operations, elapsed: self.started.elapsed(), server_cpu }
    }
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is ours; a clock of a dead thread is answered by an error.
    let code = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(code, 0, "the thread lives");
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Binds the calling thread, for the runtime that does not do it itself.
pub fn pin(cpu: CpuId) {
    assert!(parse_cpu_list(&cpu.to_string()).is_ok(), "a cpu of this machine");
    // SAFETY: a set of zeroes is valid, and the index was checked against the set's size above.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu.0, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}
