//! The parts that row formats share: a checked reader, LEB128 numbers, decimals as bytes.

use std::cell::Cell;

use super::Datum;
use crate::error::{Error, Result};

/// Memory that decoded values may take. Parts of a row can be named more than once, each time for
/// values of their own, so that the bytes alone are no bound.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    left: Cell<usize>,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Self {
        let left = Cell::new(limit);
        Self { limit, left }
    }

    /// What a row of this many bytes may take: an honest one has at most 8 values a byte, its nulls.
    pub(crate) fn of_row(bytes: usize) -> Self {
        let most = bytes.saturating_mul(16 * size_of::<Datum>());
        Self::new(most.saturating_add(4096))
    }

    pub(crate) fn charge(&self, bytes: usize) -> Result<()> {
        let too_large = Error::TooLarge {
            what: "bytes of decoded rows",
            size: (self.limit - self.left.get()).saturating_add(bytes) as u64,
            limit: self.limit as u64,
        };
        let left = self.left.get().checked_sub(bytes).ok_or(too_large)?;
        self.left.set(left);
        Ok(())
    }

    pub(crate) fn charge_values(&self, count: usize) -> Result<()> {
        self.charge(count.saturating_mul(size_of::<Datum>()))
    }
}

/// Reads from the front of a slice; every read past the end is an error.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    format: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], format: &'static str) -> Self {
        Self {
            rest: bytes,
            format,
        }
    }

    pub(crate) fn corrupt(&self, reason: &'static str) -> Error {
        Error::corrupt(self.format, reason)
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or_else(|| self.corrupt("bytes are cut off"))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or_else(|| self.corrupt("bytes are cut off"))?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn i32(&mut self) -> Result<i32> {
        self.array().map(i32::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64> {
        self.array().map(i64::from_le_bytes)
    }

    /// A length of 32 bits, not negative.
    pub(crate) fn length(&mut self) -> Result<usize> {
        let length = self.i32()?;
        usize::try_from(length).map_err(|_| self.corrupt("length is negative"))
    }

    pub(crate) fn var_u32(&mut self) -> Result<u32> {
        let value = self.var_u64()?;
        u32::try_from(value).map_err(|_| self.corrupt("number is longer than 32 bits"))
    }

    pub(crate) fn var_u64(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.corrupt("number is longer than 64 bits"))
    }

    /// Bytes behind a LEB128 length.
    pub(crate) fn var_bytes(&mut self) -> Result<&'a [u8]> {
        let length = self.var_u32()?;
        self.take(usize::try_from(length).map_err(|_| self.corrupt("length is too large"))?)
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn finish(self) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.corrupt("bytes are left over"))
    }
}

pub(crate) fn put_var_u32(out: &mut Vec<u8>, value: u32) {
    put_var_u64(out, u64::from(value));
}

pub(crate) fn put_var_u64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        let [low, ..] = value.to_le_bytes();
        out.push(low | 0x80);
        value >>= 7;
    }
    let [last, ..] = value.to_le_bytes();
    out.push(last);
}

/// A length as formats with 32-bit lengths have it.
pub(super) fn length_u32(length: usize) -> Result<u32> {
    match u32::try_from(length) {
        Ok(value) if value <= i32::MAX.unsigned_abs() => Ok(value),
        _ => Err(Error::TooLarge {
            what: "bytes of a value",
            size: length as u64,
            limit: i32::MAX as u64,
        }),
    }
}

/// The shortest big-endian two's complement bytes of `value`, at least one.
pub(super) fn decimal_bytes(value: i128) -> ([u8; 16], usize) {
    let bytes = value.to_be_bytes();
    let redundant = |pair: &&[u8]| {
        matches!(pair, [0, next] if *next < 0x80) || matches!(pair, [0xff, next] if *next >= 0x80)
    };
    (bytes, bytes.windows(2).take_while(redundant).count())
}

/// The value of big-endian two's complement bytes.
pub(super) fn decimal_from_bytes(bytes: &[u8], format: &'static str) -> Result<i128> {
    let Some(first) = bytes.first().filter(|_| bytes.len() <= 16) else {
        return Err(Error::corrupt(
            format,
            "decimal has no byte or more than 16",
        ));
    };
    let mut value: i128 = if *first >= 0x80 { -1 } else { 0 };
    for byte in bytes {
        value = value << 8 | i128::from(*byte);
    }
    Ok(value)
}

/// Refuses a decimal with more digits than its type.
pub(super) fn check_decimal(value: i128, precision: u8) -> Result<()> {
    let limit = 10u128
        .checked_pow(u32::from(precision))
        .unwrap_or(u128::MAX);
    if value.unsigned_abs() < limit {
        return Ok(());
    }
    Err(Error::invalid(
        "decimal",
        value.to_string(),
        "more digits than its precision",
    ))
}

/// A timestamp whose parts were read apart.
pub(super) fn timestamp(millis: i64, nanos: i32, format: &'static str) -> Result<Datum> {
    if (0..1_000_000).contains(&nanos) {
        return Ok(Datum::Timestamp { millis, nanos });
    }
    Err(Error::corrupt(
        format,
        "nanoseconds of the millisecond are out of range",
    ))
}

/// Bytes as a value of their own.
pub(super) fn owned_bytes(bytes: &[u8], budget: &Budget) -> Result<Datum> {
    budget.charge(bytes.len())?;
    Ok(Datum::Bytes(bytes.to_vec()))
}

/// Text read from bytes.
pub(super) fn text(bytes: &[u8], format: &'static str, budget: &Budget) -> Result<Datum> {
    budget.charge(bytes.len())?;
    let text =
        std::str::from_utf8(bytes).map_err(|_| Error::corrupt(format, "text is not UTF-8"))?;
    Ok(Datum::String(text.to_owned()))
}

/// The null bits in front of COMPACTED and INDEXED rows: bit i of byte i/8, least significant
/// first.
pub(super) fn put_null_bits(out: &mut Vec<u8>, row: &[Datum]) {
    for chunk in row.chunks(8) {
        let bit = |(index, value): (usize, &Datum)| u8::from(value.is_null()) << index;
        out.push(
            chunk
                .iter()
                .enumerate()
                .map(bit)
                .fold(0, |bits, bit| bits | bit),
        );
    }
}

/// Whether bit `index` of null bits is set; a bit past the end is not.
pub(super) fn is_null(bits: &[u8], index: usize) -> bool {
    bits.get(index / 8)
        .is_some_and(|byte| byte >> (index % 8) & 1 == 1)
}
