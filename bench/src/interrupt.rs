//! SIGINT and SIGTERM as a flag: the first asks for an orderly end, a second one ends the process at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};

use crate::error::EXIT_INTERRUPTED;

/// Whether the user wants to stop. Clones share the flag; any thread may hold one.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    raised: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes over SIGINT and SIGTERM of this process.
    ///
    /// # Errors
    /// The kernel refuses the handlers.
    pub fn install() -> io::Result<Interrupt> {
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag down and raises it, the second finds it up and ends.
            register_conditional_shutdown(signal, i32::from(EXIT_INTERRUPTED), interrupt.raised.clone())?;
            register(signal, interrupt.raised.clone())?;
        }
        Ok(interrupt)
    }

    /// Whether a signal came.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// Asks for the end from inside.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Relaxed);
    }
}
