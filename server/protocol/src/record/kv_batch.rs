//! The batch of a PUT_KV request, and the batch of values that scans of primary-key tables answer.
//!
//! Source: fluss `KvRecordBatch`, `DefaultKvRecordBatch`, `DefaultKvRecord`,
//! `DefaultValueRecordBatch`.

use bytes::Bytes;

use super::rows::put_record_length;
use super::{BatchIdentity, bytes_at, put_at, schema_id_on_wire};
use crate::error::{Error, Result};
use crate::ids::{SchemaId, WriterId};
use crate::row::{Reader, put_var_u32};

#[cfg(test)]
mod tests;

const FORMAT: &str = "kv batch";
const VALUES: &str = "value batch";
/// Bytes before the first record of a KV batch.
const HEADER_SIZE: usize = 28;
/// Where what the checksum covers begins.
const CRC_FROM: usize = 9;
/// Bytes before the first record of a value batch.
const VALUE_HEADER_SIZE: usize = 9;

/// One key and what becomes of it; the bytes are shared with the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvRecord {
    /// The primary key, encoded (see [`crate::row::key`]).
    pub key: Bytes,
    /// The row in the table's KV format; `None` deletes the key.
    pub row: Option<Bytes>,
}

/// A batch of changes of a primary-key table.
#[derive(Clone, Debug)]
pub struct KvBatch {
    /// From its length to its last record.
    pub bytes: Bytes,
    /// The schema of its rows.
    pub schema_id: SchemaId,
    /// CRC-32C from the schema id to the end.
    pub crc: u32,
    /// The idempotent writer, −1 for none.
    pub writer_id: WriterId,
    /// Its sequence, −1 for none.
    pub batch_sequence: i32,
    /// How many records there are.
    pub record_count: i32,
}

/// A batch of these changes.
///
/// # Errors
/// [`Error::TooLarge`] for sizes beyond 2 GiB or a schema id above 32 767.
pub fn encode(id: BatchIdentity, records: &[KvRecord]) -> Result<Bytes> {
    let sizes = records
        .iter()
        .map(|record| record.key.len() + record.row.as_ref().map_or(0, Bytes::len) + 9);
    let mut out = Vec::with_capacity(HEADER_SIZE + sizes.sum::<usize>());
    out.resize(HEADER_SIZE, 0);
    for record in records {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        put_var_u32(&mut out, checked_u32(record.key.len(), "bytes of a key")?);
        out.extend_from_slice(&record.key);
        out.extend_from_slice(record.row.as_deref().unwrap_or_default());
        put_record_length(&mut out, start)?;
    }
    let length = checked_u32(out.len() - 4, "bytes of a kv batch")?;
    let schema_id = schema_id_on_wire(id.schema_id)?;
    put_at(&mut out, 0, &length.to_le_bytes());
    put_at(&mut out, 9, &schema_id.to_le_bytes());
    put_at(&mut out, 12, &id.writer_id.0.to_le_bytes());
    put_at(&mut out, 20, &id.batch_sequence.to_le_bytes());
    put_at(
        &mut out,
        24,
        &checked_u32(records.len(), "records of a kv batch")?.to_le_bytes(),
    );
    let crc = crc32c::crc32c(out.get(CRC_FROM..).unwrap_or_default());
    put_at(&mut out, 5, &crc.to_le_bytes());
    Ok(out.into())
}

fn checked_u32(size: usize, what: &'static str) -> Result<u32> {
    match u32::try_from(size) {
        Ok(value) if value <= i32::MAX.unsigned_abs() => Ok(value),
        _ => Err(Error::TooLarge {
            what,
            size: size as u64,
            limit: i32::MAX as u64,
        }),
    }
}

/// The number of bytes of the batch at the start of `bytes`, checked against them.
fn size_of_batch(bytes: &[u8], header: usize, format: &'static str) -> Result<usize> {
    let length = bytes_at(bytes, 0).map(i32::from_le_bytes);
    let size = length
        .and_then(|length| usize::try_from(length).ok())
        .and_then(|length| length.checked_add(4));
    let size = size.ok_or_else(|| Error::corrupt(format, "length is missing or negative"))?;
    if size < header || size > bytes.len() {
        return Err(Error::corrupt(format, "batch is cut off"));
    }
    if bytes.get(4) != Some(&0) {
        return Err(Error::corrupt(format, "magic is not 0"));
    }
    Ok(size)
}

/// Gives a batch another writer and sequence, and the checksum that goes with them.
///
/// # Errors
/// [`Error::Corrupt`] if there is no whole header.
pub fn set_writer(batch: &mut [u8], writer_id: WriterId, batch_sequence: i32) -> Result<()> {
    if batch.len() < HEADER_SIZE {
        return Err(Error::corrupt(FORMAT, "batch is cut off"));
    }
    put_at(batch, 12, &writer_id.0.to_le_bytes());
    put_at(batch, 20, &batch_sequence.to_le_bytes());
    let crc = crc32c::crc32c(batch.get(CRC_FROM..).unwrap_or_default());
    put_at(batch, 5, &crc.to_le_bytes());
    Ok(())
}

impl KvBatch {
    /// Takes the first batch off `bytes`, sharing them.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the bytes end before the batch does, or its header is wrong; `bytes`
    /// is then unchanged.
    pub fn parse(bytes: &mut Bytes) -> Result<Self> {
        let size = size_of_batch(bytes, HEADER_SIZE, FORMAT)?;
        let batch = bytes.slice(..size);
        let mut reader = Reader::new(&batch, FORMAT);
        reader.take(5)?;
        let crc = u32::from_le_bytes(reader.array()?);
        let schema_id = SchemaId(i32::from(i16::from_le_bytes(reader.array()?)));
        reader.byte()?;
        let writer_id = WriterId(reader.i64()?);
        let batch_sequence = reader.i32()?;
        let record_count = reader.i32()?;
        if record_count < 0 {
            return Err(reader.corrupt("record count is negative"));
        }
        let _taken = bytes.split_to(size);
        Ok(Self {
            bytes: batch,
            schema_id,
            crc,
            writer_id,
            batch_sequence,
            record_count,
        })
    }

    /// Checks the bytes against the checksum.
    ///
    /// # Errors
    /// [`Error::Checksum`].
    pub fn verify_crc(&self) -> Result<()> {
        let computed = crc32c::crc32c(self.bytes.get(CRC_FROM..).unwrap_or_default());
        if computed == self.crc {
            return Ok(());
        }
        Err(Error::Checksum {
            format: FORMAT,
            stored: self.crc,
            computed,
        })
    }

    /// The records, in order, sharing the batch's bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if they are not as many as the header says, or do not end with the batch.
    pub fn records(&self) -> Result<Vec<KvRecord>> {
        let mut reader = Reader::new(self.bytes.get(HEADER_SIZE..).unwrap_or_default(), FORMAT);
        let count = usize::try_from(self.record_count)
            .map_err(|_| reader.corrupt("record count is negative"))?;
        // A record has 5 bytes at least.
        let mut records = Vec::with_capacity(count.min(self.bytes.len() / 5));
        for _ in 0..count {
            let length = reader.length()?;
            let mut record = Reader::new(reader.take(length)?, FORMAT);
            let key = self.bytes.slice_ref(record.var_bytes()?);
            let row = Some(record.rest())
                .filter(|row| !row.is_empty())
                .map(|row| self.bytes.slice_ref(row));
            records.push(KvRecord { key, row });
        }
        reader.finish()?;
        Ok(records)
    }
}

/// A value as primary-key tables store it and lookups answer it: the schema of a row, and the row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The schema the row was written with.
    pub schema_id: SchemaId,
    /// The row in the table's KV format.
    pub row: Bytes,
}

impl Value {
    /// Schema id (16 bits) and row.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for a schema id above 32 767.
    pub fn encode(&self) -> Result<Bytes> {
        let mut out = Vec::with_capacity(2 + self.row.len());
        out.extend_from_slice(&schema_id_on_wire(self.schema_id)?.to_le_bytes());
        out.extend_from_slice(&self.row);
        Ok(out.into())
    }

    /// Reads what [`Value::encode`] wrote, sharing the bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for fewer than 2 bytes.
    pub fn decode(bytes: &Bytes) -> Result<Self> {
        let id = bytes_at(bytes, 0).map(i16::from_le_bytes);
        let id = id.ok_or_else(|| Error::corrupt("value", "schema id is cut off"))?;
        Ok(Self {
            schema_id: SchemaId(i32::from(id)),
            row: bytes.slice(2..),
        })
    }
}

/// The batch of values that LIMIT_SCAN and SCAN_KV answer; it has no checksum.
///
/// # Errors
/// [`Error::TooLarge`] for sizes beyond 2 GiB or a schema id above 32 767.
pub fn encode_values(values: &[Value]) -> Result<Bytes> {
    let mut out = vec![0; VALUE_HEADER_SIZE];
    for value in values {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&schema_id_on_wire(value.schema_id)?.to_le_bytes());
        out.extend_from_slice(&value.row);
        put_record_length(&mut out, start)?;
    }
    let length = checked_u32(out.len() - 4, "bytes of a value batch")?;
    put_at(&mut out, 0, &length.to_le_bytes());
    put_at(
        &mut out,
        5,
        &checked_u32(values.len(), "values of a batch")?.to_le_bytes(),
    );
    Ok(out.into())
}

/// The values of a batch, sharing its bytes.
///
/// # Errors
/// [`Error::Corrupt`] for bytes that are no such batch, down to the last byte.
pub fn decode_values(bytes: &Bytes) -> Result<Vec<Value>> {
    let size = size_of_batch(bytes, VALUE_HEADER_SIZE, VALUES)?;
    let mut reader = Reader::new(bytes, VALUES);
    if size != bytes.len() {
        return Err(reader.corrupt("length differs from the bytes of the batch"));
    }
    reader.take(5)?;
    let count = reader.length()?;
    // A record has 6 bytes at least.
    let mut values = Vec::with_capacity(count.min(bytes.len() / 6));
    for _ in 0..count {
        let length = reader.length()?;
        values.push(Value::decode(&bytes.slice_ref(reader.take(length)?))?);
    }
    reader.finish()?;
    Ok(values)
}
