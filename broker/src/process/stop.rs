//! Owns the one-way signal that tells every shard to drain, and what the process says of its own readiness. Both are
//! control paths: a shard is woken by its hook and never polls.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Hook = Box<dyn Fn() + Send>;

/// Set once; never unset. Clones share it.
#[derive(Clone, Default)]
pub struct StopSignal(Arc<StopInner>);

#[derive(Default)]
struct StopInner {
    stopping: AtomicBool,
    hooks: Mutex<Vec<Hook>>,
}

impl StopSignal {
    /// Runs `hook` when draining begins, on the thread that asks for it; at once if it has begun. A shard passes its
    /// notifier, and looks at [`StopSignal::is_stopping`] when woken.
    pub fn on_stop(&self, hook: impl Fn() + Send + 'static) {
        let mut hooks = self.0.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_stopping() {
            drop(hooks);
            hook();
        } else {
            hooks.push(Box::new(hook));
        }
    }

    /// Begins draining. True for the first call.
    pub fn stop(&self) -> bool {
        let hooks = {
            let mut hooks = self.0.hooks.lock().unwrap_or_else(PoisonError::into_inner);
            if self.0.stopping.swap(true, Ordering::SeqCst) {
                return false;
            }
            std::mem::take(&mut *hooks)
        };
        for hook in hooks {
            hook();
        }
        true
    }

    pub fn is_stopping(&self) -> bool {
        self.0.stopping.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for StopSignal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "StopSignal({})", self.is_stopping())
    }
}

/// What `/readyz` answers. Clones share it.
#[derive(Debug, Clone)]
pub struct Readiness(Arc<Mutex<Ready>>);

#[derive(Debug)]
struct Ready {
    phase: Phase,
    /// Why a core serves only part of what it should, by core. Shown while the process serves.
    sick_cores: BTreeMap<u32, String>,
}

/// Where the process is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// With what it is doing, such as `recovering 3 of 8 shards`.
    Starting(String),
    Serving,
    Draining,
    /// With the reason, such as a poisoned journal: reads may go on, writes do not.
    Degraded(String),
}

impl Default for Readiness {
    fn default() -> Self {
        let phase = Phase::Starting("starting".to_owned());
        Readiness(Arc::new(Mutex::new(Ready { phase, sick_cores: BTreeMap::new() })))
    }
}

impl Readiness {
    fn lock(&self) -> MutexGuard<'_, Ready> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set(&self, phase: Phase) {
        self.lock().phase = phase;
    }

    /// What one core says of itself now: why it serves only part of what it should, or `None` once it serves all.
    pub fn set_sickness(&self, core: u32, reason: Option<String>) {
        let mut ready = self.lock();
        match reason {
            Some(reason) => drop(ready.sick_cores.insert(core, reason)),
            None => drop(ready.sick_cores.remove(&core)),
        }
    }

    /// The phase that was set; while that is `Serving`, `Degraded` by the first core that is sick.
    pub fn phase(&self) -> Phase {
        let ready = self.lock();
        match ready.sick_cores.values().next() {
            Some(reason) if ready.phase == Phase::Serving => Phase::Degraded(reason.clone()),
            _ => ready.phase.clone(),
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Phase::Starting(what) => write!(formatter, "starting: {what}"),
            Phase::Serving => write!(formatter, "serving"),
            Phase::Draining => write!(formatter, "draining"),
            Phase::Degraded(reason) => write!(formatter, "degraded: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn every_hook_runs_once_whenever_it_was_added() {
        let stop = StopSignal::default();
        let runs = Arc::new(AtomicUsize::new(0));
        let hook = || {
            let runs = Arc::clone(&runs);
            move || {
                runs.fetch_add(1, Ordering::SeqCst);
            }
        };
        stop.on_stop(hook());
        assert!(!stop.is_stopping());
        assert!(stop.stop());
        assert!(!stop.clone().stop());
        stop.on_stop(hook());
        assert!(stop.is_stopping());
        assert_eq!(runs.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_sick_core_degrades_for_as_long_as_it_is_sick() {
        let readiness = Readiness::default();
        readiness.set_sickness(1, Some("a place is damaged".to_owned()));
        assert_eq!(readiness.phase(), Phase::Starting("starting".to_owned()));
        readiness.set(Phase::Serving);
        assert_eq!(readiness.phase(), Phase::Degraded("a place is damaged".to_owned()));
        readiness.set_sickness(0, Some("poisoned".to_owned()));
        readiness.set_sickness(0, None);
        assert_eq!(readiness.phase(), Phase::Degraded("a place is damaged".to_owned()));
        readiness.set_sickness(1, None);
        assert_eq!(readiness.phase(), Phase::Serving);
        readiness.set_sickness(1, Some("a place is damaged".to_owned()));
        readiness.set(Phase::Draining);
        assert_eq!(readiness.phase(), Phase::Draining);
    }
}
