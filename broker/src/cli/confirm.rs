//! Asks before something cannot be undone. Owns the question; what is done is each verb's.

use std::io::{self, BufRead, IsTerminal};

/// Why nothing was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unconfirmed {
    #[error("nothing done: confirm with --yes, because standard input is not a terminal that could be asked")]
    NoTerminal,
    #[error("nothing done")]
    Declined,
}

/// Asks on the terminal; only `y` and `yes` go on.
///
/// # Errors
/// There is no terminal, or the answer is another.
pub(super) fn confirm(what: &str) -> Result<(), Unconfirmed> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Err(Unconfirmed::NoTerminal);
    }
    eprint!("{what}? [y/N] ");
    let mut answer = String::new();
    match stdin.lock().read_line(&mut answer) {
        Ok(_) if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") => Ok(()),
        _ => Err(Unconfirmed::Declined),
    }
}
