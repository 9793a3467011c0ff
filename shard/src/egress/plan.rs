//! Which route a file piece takes. Pure.

use std::fmt;
use std::str::FromStr;

/// What the operator asked for (`--egress`, `ringlog.egress`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EgressMode {
    /// `sendfile` for what the page cache holds, read and send for the rest, so that a cold disk never blocks a core.
    #[default]
    Auto,
    /// Everything through user space.
    Send,
    /// Files always by `sendfile`, cold or not.
    SendFile,
}

impl FromStr for EgressMode {
    type Err = String;

    fn from_str(text: &str) -> Result<EgressMode, String> {
        match text {
            "auto" => Ok(EgressMode::Auto),
            "send" => Ok(EgressMode::Send),
            "sendfile" => Ok(EgressMode::SendFile),
            _ => Err(format!("`{text}` is no egress mode: use auto, send or sendfile")),
        }
    }
}

impl fmt::Display for EgressMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EgressMode::Auto => "auto",
            EgressMode::Send => "send",
            EgressMode::SendFile => "sendfile",
        })
    }
}

/// How a file piece leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    SendFile,
    ReadAndSend,
}

/// What `cachestat` said of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceKind {
    Cached,
    Cold,
    /// The kernel has no `cachestat` or it is switched off.
    Unknown,
}

pub(super) fn choose_route(mode: EgressMode, kind: PieceKind) -> Route {
    match (mode, kind) {
        (EgressMode::Send, _) => Route::ReadAndSend,
        (EgressMode::SendFile, _) => Route::SendFile,
        (EgressMode::Auto, PieceKind::Cached) => Route::SendFile,
        // Unknown counts as cold: a ring read costs a copy, a blocking sendfile costs everyone on this core.
        (EgressMode::Auto, PieceKind::Cold | PieceKind::Unknown) => Route::ReadAndSend,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_never_lets_a_cold_piece_block_the_core() {
        assert_eq!(choose_route(EgressMode::Auto, PieceKind::Cached), Route::SendFile);
        assert_eq!(choose_route(EgressMode::Auto, PieceKind::Cold), Route::ReadAndSend);
        assert_eq!(choose_route(EgressMode::Auto, PieceKind::Unknown), Route::ReadAndSend);
    }

    #[test]
    fn a_forced_mode_is_obeyed() {
        for kind in [PieceKind::Cached, PieceKind::Cold, PieceKind::Unknown] {
            assert_eq!(choose_route(EgressMode::Send, kind), Route::ReadAndSend);
            assert_eq!(choose_route(EgressMode::SendFile, kind), Route::SendFile);
        }
    }

    #[test]
    fn modes_round_trip_through_their_names() {
        for mode in [EgressMode::Auto, EgressMode::Send, EgressMode::SendFile] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("splice".parse::<EgressMode>().is_err());
    }
}
