//! Owns how durations are written for people.

/// Two units at most: `3d 4h`, `12m 5s`, `250ms`.
pub(super) fn duration_text(milliseconds: i64) -> String {
    const UNITS: [(&str, i64); 4] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    let milliseconds = milliseconds.max(0);
    let Some(at) = UNITS.iter().position(|(_, length)| milliseconds >= *length) else {
        return format!("{milliseconds}ms");
    };
    let (unit, length) = UNITS[at];
    let whole = milliseconds / length;
    match UNITS.get(at + 1) {
        Some((smaller, shorter)) if milliseconds % length >= *shorter => {
            format!("{whole}{unit} {}{smaller}", milliseconds % length / shorter)
        }
        _ => format!("{whole}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units_at_most() {
        for (milliseconds, text) in [
            (-5, "0ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (61_500, "1m 1s"),
            (3_600_000, "1h"),
            (3_661_000, "1h 1m"),
            (90_000_000, "1d 1h"),
        ] {
            assert_eq!(duration_text(milliseconds), text);
        }
    }
}
