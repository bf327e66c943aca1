//! The headers of a Parquet column chunk's pages, looked through before a decoder is let at them.
//!
//! A page header is a struct in Thrift's compact protocol (`PageHeader` of parquet.thrift): integers,
//! structs, and texts of statistics. A decoder skips what it does not know, and a list in there can
//! claim two billion elements in six bytes: skipping those keeps a thread busy for minutes, with nothing
//! to stop it. No writer puts a list there.

use std::io::{Read, Seek};

/// Elements of lists, sets and maps that the header of a page may have in all.
const MAX_ELEMENTS: u64 = 4096;
/// Levels of structs and lists: a decoder goes no deeper.
const MAX_DEPTH: u32 = 64;
/// The field of a page header that says how many bytes follow it.
const COMPRESSED_SIZE: i64 = 3;

/// A page header that might keep a decoder busy.
#[derive(Debug, thiserror::Error)]
#[error("the header of its page {page} {}", if *.is_endless {
    "claims more than 4096 elements, which none has"
} else {
    "has parts of no known type"
})]
pub struct BadHeader {
    /// Which page of the column chunk, from 0.
    pub page: usize,
    /// Whether it claims too many elements; otherwise it has parts that are no Thrift.
    pub is_endless: bool,
}

/// Why the walk through a header ends early.
enum Stop {
    /// It goes beyond the chunk, or says no size: the decoder has the word for it.
    Beyond,
    /// What a decoder makes of it is not known.
    Unknown,
    Endless,
}

type Result<T> = std::result::Result<T, Stop>;

/// Looks at the headers of all pages of the column chunk that `reader` stands before and that is `bytes`
/// long; says how many pages it found. A chunk that ends in the midst of a page is left to the decoder's
/// judgement, and so is one that cannot be read.
///
/// # Errors
/// [`BadHeader`] names the page that must not be decoded.
pub fn check_page_headers<R: Read + Seek>(
    reader: &mut R,
    bytes: u64,
) -> std::result::Result<usize, BadHeader> {
    let mut chunk = Chunk {
        reader,
        left: bytes,
        elements: 0,
    };
    let mut page = 0;
    while chunk.left > 0 {
        chunk.elements = 0;
        match chunk.page() {
            Ok(()) => page += 1,
            Err(Stop::Beyond) => break,
            Err(stop) => {
                let is_endless = matches!(stop, Stop::Endless);
                return Err(BadHeader { page, is_endless });
            }
        }
    }
    Ok(page)
}

struct Chunk<'a, R> {
    reader: &'a mut R,
    /// Bytes of the chunk behind the reader.
    left: u64,
    /// Elements that this header claimed so far.
    elements: u64,
}

impl<R: Read + Seek> Chunk<'_, R> {
    /// A header and the bytes that follow it.
    fn page(&mut self) -> Result<()> {
        let mut size = None;
        let mut id = 0;
        while let Some((field, kind)) = self.field(id)? {
            id = field;
            if (field, kind) == (COMPRESSED_SIZE, 5) {
                let varint = self.varint()?;
                // Zigzag: odd ones are negative.
                size = (varint % 2 == 0).then_some(varint / 2);
            } else {
                self.skip_value(kind, MAX_DEPTH)?;
            }
        }
        self.skip(size.ok_or(Stop::Beyond)?)
    }

    /// The next field of a struct: its number and type; None behind the last.
    fn field(&mut self, last: i64) -> Result<Option<(i64, u8)>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Ok(None);
        }
        let id = match i64::from(byte >> 4) {
            0 => {
                let varint = self.varint()?;
                (varint >> 1).cast_signed() ^ -(varint & 1).cast_signed()
            }
            step => last.saturating_add(step),
        };
        Ok(Some((id, byte & 0x0f)))
    }

    fn skip_value(&mut self, kind: u8, depth: u32) -> Result<()> {
        let depth = depth.checked_sub(1).ok_or(Stop::Unknown)?;
        match kind {
            1 | 2 => Ok(()),
            3 => self.skip(1),
            4..=6 => self.varint().map(drop),
            7 => self.skip(8),
            8 => {
                let length = self.varint()?;
                self.skip(length)
            }
            9 | 10 => {
                let byte = self.byte()?;
                let size = match u64::from(byte >> 4) {
                    15 => self.varint()?,
                    size => size,
                };
                self.skip_elements(size, &[byte & 0x0f], depth)
            }
            11 => match self.varint()? {
                0 => Ok(()),
                size => {
                    let kinds = self.byte()?;
                    self.skip_elements(size, &[kinds >> 4, kinds & 0x0f], depth)
                }
            },
            12 => {
                let mut id = 0;
                while let Some((field, kind)) = self.field(id)? {
                    id = field;
                    self.skip_value(kind, depth)?;
                }
                Ok(())
            }
            13 => self.skip(16),
            _ => Err(Stop::Unknown),
        }
    }

    fn skip_elements(&mut self, size: u64, kinds: &[u8], depth: u32) -> Result<()> {
        self.elements = self.elements.saturating_add(size);
        if self.elements > MAX_ELEMENTS {
            return Err(Stop::Endless);
        }
        for _ in 0..size {
            for kind in kinds {
                self.skip_value(*kind, depth)?;
            }
        }
        Ok(())
    }

    fn byte(&mut self) -> Result<u8> {
        self.left = self.left.checked_sub(1).ok_or(Stop::Beyond)?;
        let mut byte = [0];
        let read = self.reader.read_exact(&mut byte);
        read.map_err(|_| Stop::Beyond)?;
        Ok(byte[0])
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        // A decoder that skips one does not mind how long it is.
        for shift in (0..).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                break;
            }
        }
        Ok(value)
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        self.left = self.left.checked_sub(bytes).ok_or(Stop::Beyond)?;
        let by = i64::try_from(bytes).map_err(|_| Stop::Beyond)?;
        let moved = self.reader.seek_relative(by);
        moved.map_err(|_| Stop::Beyond)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufReader, Cursor, SeekFrom};
    use std::path::{Path, PathBuf};

    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use proptest::prelude::*;

    use super::*;

    fn files(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files(&path, found);
            } else if path.extension().is_some_and(|name| name == "parquet") {
                found.push(path);
            }
        }
    }

    #[test]
    fn every_page_of_files_of_other_writers_is_passed() {
        let mut found = Vec::new();
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/warehouse");
        files(Path::new(golden), &mut found);
        assert!(found.len() > 20, "{}", found.len());
        for path in found {
            let parquet = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
            for (at, group) in parquet.metadata().row_groups().iter().enumerate() {
                for (column, chunk) in group.columns().iter().enumerate() {
                    let (start, bytes) = chunk.byte_range();
                    let mut reader = BufReader::new(File::open(&path).unwrap());
                    reader.seek(SeekFrom::Start(start)).unwrap();
                    let pages = check_page_headers(&mut reader, bytes).unwrap();
                    let decoded = parquet.get_row_group(at).unwrap();
                    let decoded = decoded.get_column_page_reader(column).unwrap();
                    assert_eq!(pages, decoded.count(), "{}", path.display());
                    assert_eq!(reader.stream_position().unwrap(), start + bytes);
                }
            }
        }
    }

    #[test]
    fn a_header_that_claims_billions_of_elements_is_refused() {
        // Field 9, which no page header has: a list of doubles, of booleans, of lists of booleans; a map.
        for claim in [
            &[0x99, 0xf7, 0xff, 0xff, 0xff, 0xff, 0x07][..],
            &[0x99, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x07],
            &[0x99, 0x29, 0xf1, 0xff, 0x3f, 0xf1, 0xff, 0x3f],
            &[0x9b, 0xff, 0xff, 0xff, 0xff, 0x07, 0x11],
            // Behind an integer of twelve bytes.
            &[
                0x15, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00, 0x99,
                0xf7, 0xff, 0xff, 0xff, 0xff, 0x07,
            ],
        ] {
            let error = check_page_headers(&mut Cursor::new(claim), claim.len() as u64);
            let error = error.unwrap_err();
            assert!(error.page == 0 && error.is_endless, "{error}");
        }
    }

    #[test]
    fn what_nobody_knows_how_to_skip_is_refused() {
        // A type that there is not; structs in structs in structs.
        let deep = [
            &[0x9c][..],
            &[0x1c; 100],
            &[0x19, 0xf7, 0xff, 0xff, 0xff, 0xff, 0x07],
        ]
        .concat();
        for header in [&[0x9e, 0x00][..], &deep] {
            let error = check_page_headers(&mut Cursor::new(header), header.len() as u64);
            assert!(!error.unwrap_err().is_endless);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_come_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..2_000)) {
            let found = check_page_headers(&mut Cursor::new(&bytes), bytes.len() as u64);
            prop_assert!(found.map_or(true, |pages| pages <= bytes.len()));
        }
    }
}
