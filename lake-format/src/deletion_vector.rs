//! Which rows of a data file are deleted: roaring bitmaps of row ordinals in index files (paimon:
//! `DeletionVector`, `BitmapDeletionVector`, `Bitmap64DeletionVector`; the bitmaps are in the
//! portable form of roaring bitmaps).

use arrow::array::BooleanBufferBuilder;
use arrow::buffer::BooleanBuffer;
use flate2::Crc;
use object_store::ObjectStoreExt as _;

use crate::error::{Error, Result};
use crate::paths::named;
use crate::table::Table;

/// Begins a bitmap of 32 bits, big endian.
const MAGIC_32: [u8; 4] = 1_581_511_376_u32.to_be_bytes();

/// Begins a bitmap of 64 bits, little endian.
const MAGIC_64: [u8; 4] = 1_681_511_377_u32.to_le_bytes();

/// Begins a roaring bitmap without runs; behind it stands the number of containers.
const NO_RUNS: u16 = 12_346;

/// Begins a roaring bitmap with runs; in the upper half stands the number of containers less one.
const WITH_RUNS: u16 = 12_347;

/// Containers from which on a bitmap with runs states where they begin.
const MIN_OFFSETS: usize = 4;

/// The most rows of a file with deleted ones: 512 MiB of bits, whatever a damaged manifest says.
const MAX_ROWS: usize = u32::MAX as usize;

/// The most values of a container that lists them; of more it has a bit each.
const MAX_LISTED: usize = 4096;

/// Where the deletion vector of a data file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletionFile {
    /// The index file.
    pub file_name: String,
    /// Where its length word is.
    pub offset: u64,
    /// Its bytes: of the bitmap with its magic, and for 64 bits length word and checksum as well.
    pub length: u64,
    /// Deleted rows, if they were counted.
    pub cardinality: Option<i64>,
}

impl Table {
    /// Which of the first `rows` rows of a data file are left.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Corrupt`], [`Error::Store`] about the index file.
    pub(crate) async fn rows_left(&self, vector: &DeletionFile, rows: usize) -> Result<Rows> {
        let path = named(&self.paths().index_dir(), &vector.file_name)?;
        // A bitmap of 32 bits has its length word and checksum around it.
        let end = vector.offset + vector.length + 8;
        let bytes = self.store().get_range(&path, vector.offset..end).await;
        let bytes = bytes.map_err(|e| Error::store(&path, e))?;
        Rows::left(&bytes, vector, rows).map_err(|e| e.at(path.as_ref()))
    }
}

/// The rows of a data file that are left.
#[derive(Debug)]
pub(crate) struct Rows {
    left: BooleanBuffer,
}

impl Rows {
    /// The bits of so many rows from one on; none beyond the file.
    pub(crate) fn slice(&self, offset: usize, length: usize) -> Option<BooleanBuffer> {
        let end = offset.checked_add(length)?;
        (end <= self.left.len()).then(|| self.left.slice(offset, length))
    }

    fn left(bytes: &[u8], vector: &DeletionFile, rows: usize) -> Result<Self> {
        if rows > MAX_ROWS {
            return Err(bad(
                "its file is said to have more rows than a vector is read for",
            ));
        }
        let mut input = Input { rest: bytes };
        let length = u64::from(u32::from_be_bytes(input.array()?));
        let bitmap = input.take(usize::try_from(length).unwrap_or(usize::MAX))?;
        let mut crc = Crc::new();
        crc.update(bitmap);
        if crc.sum() != u32::from_be_bytes(input.array()?) {
            return Err(bad("it does not have its checksum"));
        }
        let mut deleted = Deleted {
            left: BooleanBufferBuilder::new(rows),
            count: 0,
            next: 0,
        };
        deleted.left.append_n(rows, true);
        let mut input = Input { rest: bitmap };
        let magic: [u8; 4] = input.array()?;
        if magic == MAGIC_32 && length == vector.length {
            deleted.read_bitmap(&mut input, 0)?;
        } else if magic == MAGIC_64 && length + 8 == vector.length {
            let bitmaps = u64::from_le_bytes(input.array()?);
            for _ in 0..bitmaps {
                let key = u64::from(u32::from_le_bytes(input.array()?));
                deleted.read_bitmap(&mut input, key << 32)?;
            }
        } else {
            return Err(bad(
                "it has no known form, or another length than is stated",
            ));
        }
        let stated = vector.cardinality;
        if stated.is_some_and(|stated| i64::try_from(deleted.count) != Ok(stated)) {
            return Err(bad("it deletes more or less rows than is stated"));
        }
        Ok(Self {
            left: deleted.left.finish(),
        })
    }
}

/// Rows that are found deleted.
struct Deleted {
    left: BooleanBufferBuilder,
    count: usize,
    /// Rows come in order: no row below it may follow, so that no vector says more than its file has
    /// rows.
    next: u64,
}

impl Deleted {
    fn delete(&mut self, row: u64) -> Result<()> {
        if row < self.next {
            return Err(bad("its rows are not in order"));
        }
        self.next = row.saturating_add(1);
        let row = usize::try_from(row)
            .ok()
            .filter(|row| *row < self.left.len());
        let row = row.ok_or_else(|| bad("it deletes a row that its file does not have"))?;
        self.count += 1;
        self.left.set_bit(row, false);
        Ok(())
    }

    fn read_bitmap(&mut self, input: &mut Input<'_>, first: u64) -> Result<()> {
        let cookie = input.half()?;
        let upper = usize::from(input.half()?);
        let (containers, runs) = match cookie {
            NO_RUNS => {
                let count = u32::from_le_bytes(input.array()?);
                (usize::try_from(count).unwrap_or(usize::MAX), None)
            }
            WITH_RUNS => {
                let count = upper + 1;
                (count, Some(input.take(count.div_ceil(8))?))
            }
            _ => return Err(bad("it is no roaring bitmap")),
        };
        let mut heads = Input {
            rest: input.take(containers.saturating_mul(4))?,
        };
        if runs.is_none() || containers >= MIN_OFFSETS {
            input.take(containers.saturating_mul(4))?;
        }
        for container in 0..containers {
            let base = first + (u64::from(heads.half()?) << 16);
            let count = usize::from(heads.half()?) + 1;
            let bits = runs.and_then(|runs| runs.get(container / 8));
            let has_runs = bits.is_some_and(|bits| bits >> (container % 8) & 1 == 1);
            if has_runs {
                for _ in 0..input.half()? {
                    let start = u64::from(input.half()?);
                    let last = start + u64::from(input.half()?);
                    for row in start..=last {
                        self.delete(base + row)?;
                    }
                }
            } else if count <= MAX_LISTED {
                for _ in 0..count {
                    let row = u64::from(input.half()?);
                    self.delete(base + row)?;
                }
            } else {
                for (byte, base) in input.take(8192)?.iter().zip((base..).step_by(8)) {
                    for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
                        self.delete(base + bit)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Bytes, read from the front.
struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let split = self.rest.split_at_checked(count);
        let (taken, rest) = split.ok_or_else(|| bad("it ends early"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let split = self.rest.split_first_chunk();
        let (taken, rest) = split.ok_or_else(|| bad("it ends early"))?;
        self.rest = rest;
        Ok(*taken)
    }

    fn half(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }
}

fn bad(reason: &str) -> Error {
    Error::malformed("deletion vector", reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vector around a bitmap, as an index file holds it.
    fn vector(bitmap: &[u8]) -> (Vec<u8>, DeletionFile) {
        let mut bytes = u32::try_from(bitmap.len()).unwrap().to_be_bytes().to_vec();
        bytes.extend_from_slice(bitmap);
        let mut crc = Crc::new();
        crc.update(bitmap);
        bytes.extend_from_slice(&crc.sum().to_be_bytes());
        let is_32 = bitmap.starts_with(&MAGIC_32);
        let length = bitmap.len() as u64 + if is_32 { 0 } else { 8 };
        let file = DeletionFile {
            file_name: "index".to_owned(),
            offset: 0,
            length,
            cardinality: None,
        };
        (bytes, file)
    }

    fn deleted(bitmap: &[u8], rows: usize) -> Result<Vec<usize>> {
        let (bytes, file) = vector(bitmap);
        let rows_left = Rows::left(&bytes, &file, rows)?;
        Ok((0..rows)
            .filter(|row| !rows_left.left.value(*row))
            .collect())
    }

    fn halves(halves: &[u16]) -> Vec<u8> {
        halves.iter().flat_map(|half| half.to_le_bytes()).collect()
    }

    /// A bitmap without runs of one container that lists its rows.
    fn listed(rows: &[u16]) -> Vec<u8> {
        let count = u16::try_from(rows.len() - 1).unwrap();
        let mut bytes = halves(&[NO_RUNS, 0, 1, 0, 0, count, 16, 0]);
        bytes.extend(halves(rows));
        bytes
    }

    #[test]
    fn listed_rows_are_deleted() {
        let bitmap = [MAGIC_32.to_vec(), listed(&[0, 3, 9])].concat();
        assert_eq!(deleted(&bitmap, 10).unwrap(), [0, 3, 9]);
    }

    #[test]
    fn runs_of_rows_are_deleted() {
        let mut bitmap = MAGIC_32.to_vec();
        bitmap.extend(halves(&[WITH_RUNS, 0]));
        bitmap.push(1);
        bitmap.extend(halves(&[0, 4, 2, 1, 2, 7, 1]));
        assert_eq!(deleted(&bitmap, 10).unwrap(), [1, 2, 3, 7, 8]);
    }

    #[test]
    fn runs_that_overlap_are_refused() {
        let mut bitmap = MAGIC_32.to_vec();
        bitmap.extend(halves(&[WITH_RUNS, 0]));
        bitmap.push(1);
        bitmap.extend(halves(&[0, 4, 2, 1, 2, 3, 1]));
        let error = deleted(&bitmap, 10).unwrap_err().to_string();
        assert!(error.contains("not in order"), "{error}");
    }

    #[test]
    fn a_container_of_bits_deletes_the_rows_of_its_bits() {
        let mut bits = vec![0u8; 8192];
        bits[..1024].fill(0xff);
        let mut bitmap = MAGIC_32.to_vec();
        bitmap.extend(halves(&[NO_RUNS, 0, 1, 0, 1, 8191, 16, 0]));
        bitmap.extend(bits);
        let rows: Vec<usize> = (65536..65536 + 8192).collect();
        assert_eq!(deleted(&bitmap, 80_000).unwrap(), rows);
    }

    #[test]
    fn a_vector_of_64_bits_is_read_bitmap_by_bitmap() {
        let mut bitmap = MAGIC_64.to_vec();
        bitmap.extend(1u64.to_le_bytes());
        bitmap.extend(0u32.to_le_bytes());
        bitmap.extend(listed(&[2, 5]));
        assert_eq!(deleted(&bitmap, 6).unwrap(), [2, 5]);
    }

    #[test]
    fn rows_beyond_the_file_other_counts_and_damage_are_errors() {
        let bitmap = [MAGIC_32.to_vec(), listed(&[0, 3])].concat();
        assert!(deleted(&bitmap, 3).is_err());
        assert!(Rows::left(&vector(&bitmap).0, &vector(&bitmap).1, usize::MAX).is_err());
        let (bytes, mut file) = vector(&bitmap);
        file.cardinality = Some(3);
        assert!(Rows::left(&bytes, &file, 10).is_err());
        file.cardinality = Some(2);
        assert!(Rows::left(&bytes, &file, 10).is_ok());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Rows::left(&damaged, &file, 10).is_err(), "byte {at}");
            assert!(Rows::left(&bytes[..at], &file, 10).is_err(), "{at} bytes");
        }
    }
}
