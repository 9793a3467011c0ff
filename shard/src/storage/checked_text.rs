//! Small text files that end with a checksum of themselves: `FORMAT`, `meta.properties`, a journal's `owner`. Pure.
//!
//! The last line is `checksum=` and eight hexadecimal digits: the CRC-32 of all bytes before that line. A file that lost its
//! end has none, so a missing checksum is as bad as a wrong one.

const CHECKSUM_KEY: &str = "checksum=";

/// `text`, whole lines, with its checksum behind.
pub(super) fn with_checksum(mut text: String) -> Vec<u8> {
    debug_assert!(text.ends_with('\n'), "whole lines");
    let sum = crc32fast::hash(text.as_bytes());
    text.push_str(&format!("{CHECKSUM_KEY}{sum:08x}\n"));
    text.into_bytes()
}

/// The text without its last line, if that is its checksum.
pub(super) fn check_text(text: &str) -> Result<&str, String> {
    let body = text.strip_suffix('\n').and_then(|lines| lines.rfind('\n')).map(|at| text.split_at(at + 1));
    let stated = body.and_then(|(_, last)| last.strip_prefix(CHECKSUM_KEY)).map(str::trim_end);
    let (Some((body, _)), Some(stated)) = (body, stated) else {
        return Err("its last line is no checksum".to_owned());
    };
    let computed = format!("{:08x}", crc32fast::hash(body.as_bytes()));
    if stated == computed {
        Ok(body)
    } else {
        Err(format!("stated checksum {stated} is not the computed {computed}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_these_bytes() {
        assert_eq!(
            with_checksum("ringlog data directory\nversion=1\n".to_owned()),
            b"ringlog data directory\nversion=1\nchecksum=7914327e\n"
        );
    }

    #[test]
    fn a_text_that_was_changed_or_cut_anywhere_does_not_check() {
        let bytes = with_checksum("version=1\nnode.id=7\n".to_owned());
        let text = String::from_utf8(bytes.clone()).expect("text");
        assert_eq!(check_text(&text), Ok("version=1\nnode.id=7\n"));
        for at in 0..bytes.len() {
            let cut = String::from_utf8(bytes[..at].to_vec()).expect("text");
            assert!(check_text(&cut).is_err(), "{cut:?}");
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let changed = String::from_utf8(changed).expect("text");
            assert!(check_text(&changed).is_err(), "{changed:?}");
        }
    }
}
