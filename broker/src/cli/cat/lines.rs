//! Cuts an input stream into records at a delimiter. Pure: chunks of bytes in, records out.
//!
//! Memory: one record at most, bounded by the caller's limit.

/// A record longer than the limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is longer than {bytes_max} bytes; is the delimiter (-D) right?")]
pub struct LineTooLong {
    pub line: u64,
    pub bytes_max: usize,
}

/// Splits what it is fed.
#[derive(Debug, Clone)]
pub struct LineSplitter {
    delimiter: Vec<u8>,
    bytes_max: usize,
    rest: Vec<u8>,
    /// Bytes of `rest` known to hold no whole delimiter.
    scanned: usize,
    lines: u64,
}

impl LineSplitter {
    /// A splitter at `delimiter`, which must not be empty; an empty one makes the whole input one record.
    pub fn new(delimiter: Vec<u8>, bytes_max: usize) -> LineSplitter {
        LineSplitter { delimiter, bytes_max, rest: Vec::new(), scanned: 0, lines: 0 }
    }

    /// Takes `chunk` and calls `line` for each record that it completes, without the delimiter.
    ///
    /// # Errors
    /// [`LineTooLong`].
    pub fn feed(&mut self, chunk: &[u8], mut line: impl FnMut(&[u8])) -> Result<(), LineTooLong> {
        self.rest.extend_from_slice(chunk);
        let mut start = 0;
        let mut from = self.scanned;
        while let Some(position) = self.find(from) {
            self.check_length(position - start)?;
            line(self.rest.get(start..position).unwrap_or_default());
            self.lines += 1;
            start = position + self.delimiter.len();
            from = start;
        }
        self.rest.drain(..start);
        self.check_length(self.rest.len())?;
        // A delimiter may lie across two chunks.
        self.scanned = (self.rest.len() + 1).saturating_sub(self.delimiter.len().max(1));
        Ok(())
    }

    /// What follows the last delimiter, if anything does.
    pub fn finish(self) -> Option<Vec<u8>> {
        (!self.rest.is_empty()).then_some(self.rest)
    }

    fn find(&self, from: usize) -> Option<usize> {
        let first = *self.delimiter.first()?;
        let mut from = from;
        loop {
            let position = from + self.rest.get(from..)?.iter().position(|byte| *byte == first)?;
            if self.rest.get(position..)?.starts_with(&self.delimiter) {
                return Some(position);
            }
            from = position + 1;
        }
    }

    fn check_length(&self, bytes: usize) -> Result<(), LineTooLong> {
        if bytes > self.bytes_max {
            return Err(LineTooLong { line: self.lines + 1, bytes_max: self.bytes_max });
        }
        Ok(())
    }
}

/// Splits a record at the first key delimiter: key and value. Without one there is no key.
pub fn split_key<'a>(line: &'a [u8], delimiter: &[u8]) -> (Option<&'a [u8]>, &'a [u8]) {
    let position = line.windows(delimiter.len().max(1)).position(|window| window == delimiter);
    match position {
        Some(position) => (Some(&line[..position]), &line[position + delimiter.len()..]),
        None => (None, line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(input: &[u8], delimiter: &[u8], chunk_bytes: usize) -> (Vec<Vec<u8>>, Option<Vec<u8>>) {
        let mut splitter = LineSplitter::new(delimiter.to_vec(), 1_000);
        let mut lines = Vec::new();
        for chunk in input.chunks(chunk_bytes) {
            splitter.feed(chunk, |line| lines.push(line.to_vec())).expect("short lines");
        }
        (lines, splitter.finish())
    }

    #[test]
    fn lines_are_the_same_however_the_input_is_cut() {
        let input = b"one\n\ntwo\x00\xff\nlast";
        let expected: Vec<Vec<u8>> = vec![b"one".to_vec(), b"".to_vec(), b"two\x00\xff".to_vec()];
        for chunk_bytes in 1..=input.len() {
            assert_eq!(
                split(input, b"\n", chunk_bytes),
                (expected.clone(), Some(b"last".to_vec())),
                "{chunk_bytes}"
            );
        }
        assert_eq!(split(b"a\n", b"\n", 1), (vec![b"a".to_vec()], None));
    }

    #[test]
    fn delimiters_of_several_bytes_are_found_across_chunks() {
        for chunk_bytes in 1..12 {
            let (lines, rest) = split(b"a--b---c-d--", b"--", chunk_bytes);
            assert_eq!(lines, [b"a".to_vec(), b"b".to_vec(), b"-c-d".to_vec()], "{chunk_bytes}");
            assert_eq!(rest, None);
        }
    }

    #[test]
    fn a_line_beyond_the_limit_is_named() {
        let mut splitter = LineSplitter::new(b"\n".to_vec(), 4);
        splitter.feed(b"1234\n", |_| {}).expect("within the limit");
        assert_eq!(splitter.feed(b"12345", |_| {}), Err(LineTooLong { line: 2, bytes_max: 4 }));
    }

    #[test]
    fn keys_end_at_the_first_delimiter() {
        assert_eq!(split_key(b"k:v:w", b":"), (Some(&b"k"[..]), &b"v:w"[..]));
        assert_eq!(split_key(b":v", b":"), (Some(&b""[..]), &b"v"[..]));
        assert_eq!(split_key(b"none", b":"), (None, &b"none"[..]));
        assert_eq!(split_key(b"k=>v", b"=>"), (Some(&b"k"[..]), &b"v"[..]));
    }
}
