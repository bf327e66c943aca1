//! JSON text without escaped surrogate pairs.
//!
//! Arrow's JSON reader (59.3) puts pairs together with an `or` instead of a sum, so that
//! `\ud840\udc00` becomes U+10000 and not U+20000. Pairs are turned into their characters before it
//! sees them; everything else passes as it is.

use std::io::{self, BufRead, Read};

/// A pair: `\uD800\uDC00`.
const PAIR_BYTES: usize = 12;

/// The text of `inner` with each escaped surrogate pair as its character in UTF-8.
#[derive(Debug)]
pub(super) struct PlainPairs<R> {
    inner: R,
    /// What may be the start of a pair.
    held: Vec<u8>,
    ready: Vec<u8>,
    taken: usize,
}

impl<R: BufRead> PlainPairs<R> {
    pub(super) fn new(inner: R) -> Self {
        Self {
            inner,
            held: Vec::with_capacity(PAIR_BYTES),
            ready: Vec::new(),
            taken: 0,
        }
    }

    fn put(&mut self, byte: u8) {
        if self.held.is_empty() && byte != b'\\' {
            self.ready.push(byte);
            return;
        }
        self.held.push(byte);
        if !may_follow(self.held.len() - 1, byte) {
            self.ready.append(&mut self.held);
        } else if self.held.len() == PAIR_BYTES {
            match character(&self.held) {
                Some(character) => {
                    let mut utf8 = [0; 4];
                    let utf8 = character.encode_utf8(&mut utf8);
                    self.ready.extend_from_slice(utf8.as_bytes());
                    self.held.clear();
                }
                None => self.ready.append(&mut self.held),
            }
        }
    }
}

/// Whether `byte` can be the one at `index` of a pair.
fn may_follow(index: usize, byte: u8) -> bool {
    match index {
        0 | 6 => byte == b'\\',
        1 | 7 => byte == b'u',
        2 | 8 => matches!(byte, b'd' | b'D'),
        3 => matches!(byte, b'8' | b'9' | b'a' | b'b' | b'A' | b'B'),
        9 => matches!(byte, b'c'..=b'f' | b'C'..=b'F'),
        _ => byte.is_ascii_hexdigit(),
    }
}

/// The character of a whole pair.
fn character(pair: &[u8]) -> Option<char> {
    let unit = |digits: Option<&[u8]>| {
        let digits = std::str::from_utf8(digits?).ok()?;
        u16::from_str_radix(digits, 16).ok()
    };
    let units = [unit(pair.get(2..6))?, unit(pair.get(8..12))?];
    char::decode_utf16(units).next()?.ok()
}

impl<R: BufRead> BufRead for PlainPairs<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.taken >= self.ready.len() {
            self.ready.clear();
            self.taken = 0;
            let chunk = self.inner.fill_buf()?;
            let length = chunk.len();
            if length == 0 {
                self.ready.append(&mut self.held);
                break;
            }
            if self.held.is_empty() && !chunk.contains(&b'\\') {
                self.ready.extend_from_slice(chunk);
            } else {
                let chunk = chunk.to_vec();
                chunk.into_iter().for_each(|byte| self.put(byte));
            }
            self.inner.consume(length);
        }
        Ok(self.ready.get(self.taken..).unwrap_or_default())
    }

    fn consume(&mut self, amount: usize) {
        self.taken += amount;
    }
}

impl<R: BufRead> Read for PlainPairs<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;

    fn plain(text: &str, capacity: usize) -> String {
        let mut found = String::new();
        let inner = BufReader::with_capacity(capacity, text.as_bytes());
        PlainPairs::new(inner).read_to_string(&mut found).unwrap();
        found
    }

    #[test]
    fn a_pair_becomes_its_character_and_nothing_else_changes() {
        for (text, wanted) in [
            (r#"{"a":"\ud840\udc00"}"#, r#"{"a":"𠀀"}"#),
            (r"x\uDBFF\uDFFFy\ud83d\ude00", "x\u{10ffff}y\u{1f600}"),
            (
                r"\\ud840\\udc00 \\\ud840\udc00",
                "\\\\ud840\\\\udc00 \\\\𠀀",
            ),
            (
                r"\u00e9\n\ud840 \ud840\u0041 \udc00",
                r"\u00e9\n\ud840 \ud840\u0041 \udc00",
            ),
            (r"\ud840\udc", r"\ud840\udc"),
            ("no escape", "no escape"),
        ] {
            for capacity in [1, 5, 64] {
                assert_eq!(plain(text, capacity), wanted, "{text} by {capacity}");
            }
        }
    }
}
