//! Reading container files: any bytes give records or an error.

use std::cell::Cell;
use std::io::Read as _;

use super::MAGIC;
use super::schema::{Node, parse};
use crate::error::{Error, Result};

/// Most bytes that all blocks of a file may hold uncompressed, and what else is charged to it.
const MAX_UNCOMPRESSED_BYTES: u64 = 1 << 30;

/// What an array's item is charged beside its bytes: it may take none at all in the file, and takes
/// about this many once decoded.
const ITEM_BYTES: u64 = 16;

/// Most values in one record, which are in memory at once; a manifest's entry has some 40, and a
/// few a column.
const MAX_VALUES_OF_RECORD: u32 = 1 << 20;

/// A value of a record; text and bytes are not told apart.
#[derive(Debug)]
pub(crate) enum Value<'a> {
    Null,
    Long(i64),
    Bytes(&'a [u8]),
    Array(Vec<Value<'a>>),
    Record(Record<'a>),
    /// A value of a type that no field of ours has.
    Other,
}

/// A record: its writer's field names, and the values in the same order.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    names: &'a [(String, Node)],
    values: Vec<Value<'a>>,
    next: Cell<usize>,
}

/// Calls `each` with the records of a file in order.
pub(crate) fn read_records(
    file: &[u8],
    mut each: impl FnMut(Record<'_>) -> Result<()>,
) -> Result<()> {
    let mut input = Input::new(file, MAX_UNCOMPRESSED_BYTES);
    if input.take(MAGIC.len())? != MAGIC {
        return Err(bad("it does not begin as an Avro file"));
    }
    let header = Header::read(&mut input)?;
    let Node::Record(fields) = parse(header.schema)? else {
        return Err(bad("its schema is no record"));
    };
    while !input.rest.is_empty() {
        let count = input.length()?;
        let size = input.length()?;
        let compressed = input.take(size)?;
        let block = decompress(compressed, header.codec, input.budget)?;
        let mut records = Input::new(&block, input.budget);
        records.charge(block.len() as u64)?;
        for _ in 0..count {
            if records.rest.is_empty() {
                return Err(bad("a block ends before its records"));
            }
            records.values_left = MAX_VALUES_OF_RECORD;
            each(records.record(&fields)?)?;
        }
        input.budget = records.budget;
        if !records.rest.is_empty() {
            return Err(bad("a block goes on behind its records"));
        }
        if input.take(16)? != header.sync {
            return Err(bad("a block does not end with the sync marker"));
        }
    }
    Ok(())
}

/// What stands before the blocks.
struct Header<'a> {
    schema: &'a [u8],
    codec: &'a [u8],
    sync: &'a [u8],
}

impl<'a> Header<'a> {
    fn read(input: &mut Input<'a>) -> Result<Self> {
        let mut schema = None;
        let mut codec = b"null".as_slice();
        loop {
            let count = input.block_count()?;
            if count == 0 {
                break;
            }
            for _ in 0..count {
                let key = input.bytes()?;
                let value = input.bytes()?;
                match key {
                    b"avro.schema" => schema = Some(value),
                    b"avro.codec" => codec = value,
                    _ => {}
                }
            }
        }
        let schema = schema.ok_or_else(|| bad("it has no schema"))?;
        Ok(Self {
            schema,
            codec,
            sync: input.take(16)?,
        })
    }
}

/// A block of at most about `budget` bytes; a longer one gives an error before it is unpacked
/// whole.
fn decompress(compressed: &[u8], codec: &[u8], budget: u64) -> Result<Vec<u8>> {
    match codec {
        b"null" => Ok(compressed.to_vec()),
        b"zstandard" => {
            let decoder = zstd::stream::Decoder::with_buffer(compressed);
            inflate(decoder.map_err(|e| bad(format!("zstandard: {e}")))?, budget)
        }
        b"deflate" => inflate(flate2::bufread::DeflateDecoder::new(compressed), budget),
        b"snappy" => unsnap(compressed, budget),
        other => Err(bad(format!(
            "unknown codec `{}`",
            String::from_utf8_lossy(other)
        ))),
    }
}

fn inflate(decoder: impl std::io::Read, budget: u64) -> Result<Vec<u8>> {
    let mut block = Vec::new();
    let mut bounded = decoder.take(budget + 1);
    bounded
        .read_to_end(&mut block)
        .map_err(|e| bad(format!("a block cannot be unpacked: {e}")))?;
    Ok(block)
}

/// Raw Snappy, and behind it the CRC-32 of what it unpacks to, as 4 big-endian bytes.
fn unsnap(compressed: &[u8], budget: u64) -> Result<Vec<u8>> {
    let Some((packed, crc)) = compressed.split_last_chunk::<4>() else {
        return Err(bad("a snappy block is shorter than its checksum"));
    };
    let failed = |e: snap::Error| bad(format!("a block cannot be unpacked: {e}"));
    let length = snap::raw::decompress_len(packed).map_err(failed)?;
    if length as u64 > budget {
        return Err(too_large());
    }
    let block = snap::raw::Decoder::new()
        .decompress_vec(packed)
        .map_err(failed)?;
    let mut found = flate2::Crc::new();
    found.update(&block);
    if found.sum() != u32::from_be_bytes(*crc) {
        return Err(bad("a snappy block does not have its checksum"));
    }
    Ok(block)
}

/// Encoded bytes, read from the front.
struct Input<'a> {
    rest: &'a [u8],
    /// What the blocks to come may cost in all.
    budget: u64,
    /// What the record at hand may still hold.
    values_left: u32,
}

impl<'a> Input<'a> {
    fn new(bytes: &'a [u8], budget: u64) -> Self {
        Self {
            rest: bytes,
            budget,
            values_left: MAX_VALUES_OF_RECORD,
        }
    }

    fn charge(&mut self, cost: u64) -> Result<()> {
        self.budget = self.budget.checked_sub(cost).ok_or_else(too_large)?;
        Ok(())
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let split = self.rest.split_at_checked(count);
        let (taken, rest) = split.ok_or_else(|| bad("it ends early"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn long(&mut self) -> Result<i64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self
                .rest
                .split_first()
                .ok_or_else(|| bad("it ends early"))?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
            }
        }
        Err(bad("a number is too long"))
    }

    /// A count of things that take at least a byte each, so more than the rest is a lie.
    fn length(&mut self) -> Result<usize> {
        usize::try_from(self.long()?).map_err(|_| bad("a negative length"))
    }

    /// How many items follow in an array's or map's block; a negative count has a size behind it.
    fn block_count(&mut self) -> Result<usize> {
        let count = self.long()?;
        if count < 0 {
            self.long()?;
        }
        let count = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
        if count > self.rest.len() {
            Err(bad("an array ends early"))
        } else {
            Ok(count)
        }
    }

    fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = self.length()?;
        self.take(length)
    }

    fn record<'n>(&mut self, fields: &'n [(String, Node)]) -> Result<Record<'n>>
    where
        'a: 'n,
    {
        let mut values = Vec::with_capacity(fields.len());
        for (_, node) in fields {
            values.push(self.value(node)?);
        }
        Ok(Record {
            names: fields,
            values,
            next: Cell::new(0),
        })
    }

    fn value<'n>(&mut self, node: &'n Node) -> Result<Value<'n>>
    where
        'a: 'n,
    {
        let left = self.values_left.checked_sub(1);
        self.values_left = left.ok_or_else(|| bad("a record holds too many values"))?;
        Ok(match node {
            Node::Null => Value::Null,
            Node::Long => Value::Long(self.long()?),
            Node::Bytes => Value::Bytes(self.bytes()?),
            Node::Boolean => self.skip(1)?,
            Node::Float => self.skip(4)?,
            Node::Double => self.skip(8)?,
            Node::Fixed(size) => self.skip(*size)?,
            Node::Union(branches) => {
                let branch = branches
                    .get(self.length()?)
                    .ok_or_else(|| bad("unknown branch of a union"))?;
                self.value(branch)?
            }
            Node::Array(item) => {
                let mut items = Vec::new();
                loop {
                    let count = self.block_count()?;
                    if count == 0 {
                        break;
                    }
                    for _ in 0..count {
                        self.charge(ITEM_BYTES)?;
                        items.push(self.value(item)?);
                    }
                }
                Value::Array(items)
            }
            Node::Map(item) => {
                loop {
                    let count = self.block_count()?;
                    if count == 0 {
                        break;
                    }
                    for _ in 0..count {
                        self.bytes()?;
                        self.value(item)?;
                    }
                }
                Value::Other
            }
            Node::Record(fields) => Value::Record(self.record(fields)?),
        })
    }

    fn skip<'n>(&mut self, count: usize) -> Result<Value<'n>> {
        self.take(count)?;
        Ok(Value::Other)
    }
}

impl<'a> Record<'a> {
    /// A field's value; null if the writer's schema has no such field.
    ///
    /// Fields are mostly asked for in the writer's order, so the one behind the last is tried
    /// first.
    fn get(&self, name: &str) -> &Value<'a> {
        let is_next = self
            .names
            .get(self.next.get())
            .is_some_and(|(field, _)| field == name);
        let place = if is_next {
            Some(self.next.get())
        } else {
            self.names.iter().position(|(field, _)| field == name)
        };
        if let Some(place) = place {
            self.next.set(place + 1);
        }
        place
            .and_then(|place| self.values.get(place))
            .unwrap_or(&Value::Null)
    }

    pub(crate) fn optional_long(&self, name: &str) -> Result<Option<i64>> {
        match self.get(name) {
            Value::Null => Ok(None),
            Value::Long(value) => Ok(Some(*value)),
            _ => Err(wrong(name)),
        }
    }

    pub(crate) fn optional_int(&self, name: &str) -> Result<Option<i32>> {
        match self.optional_long(name)? {
            None => Ok(None),
            Some(value) => i32::try_from(value).map(Some).map_err(|_| wrong(name)),
        }
    }

    pub(crate) fn optional_bytes(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match self.get(name) {
            Value::Null => Ok(None),
            Value::Bytes(value) => Ok(Some(value.to_vec())),
            _ => Err(wrong(name)),
        }
    }

    pub(crate) fn optional_string(&self, name: &str) -> Result<Option<String>> {
        match self.get(name) {
            Value::Null => Ok(None),
            value => text(name, value).map(Some),
        }
    }

    pub(crate) fn optional_strings(&self, name: &str) -> Result<Option<Vec<String>>> {
        match self.get(name) {
            Value::Null => Ok(None),
            Value::Array(items) => items
                .iter()
                .map(|item| text(name, item))
                .collect::<Result<_>>()
                .map(Some),
            _ => Err(wrong(name)),
        }
    }

    /// An array of nullable longs; empty if the whole array is null.
    pub(crate) fn longs(&self, name: &str) -> Result<Vec<Option<i64>>> {
        let item = |item: &Value<'_>| match item {
            Value::Null => Ok(None),
            Value::Long(value) => Ok(Some(*value)),
            _ => Err(wrong(name)),
        };
        match self.get(name) {
            Value::Null => Ok(Vec::new()),
            Value::Array(items) => items.iter().map(item).collect(),
            _ => Err(wrong(name)),
        }
    }

    /// An array of records; empty if the whole array is null.
    pub(crate) fn records(&self, name: &str) -> Result<Vec<&Record<'a>>> {
        let items = match self.get(name) {
            Value::Null => return Ok(Vec::new()),
            Value::Array(items) => items,
            _ => return Err(wrong(name)),
        };
        let mut records = Vec::with_capacity(items.len());
        for item in items {
            match item {
                Value::Record(record) => records.push(record),
                _ => return Err(wrong(name)),
            }
        }
        Ok(records)
    }

    pub(crate) fn long(&self, name: &str) -> Result<i64> {
        self.optional_long(name)?.ok_or_else(|| wrong(name))
    }

    pub(crate) fn int(&self, name: &str) -> Result<i32> {
        self.optional_int(name)?.ok_or_else(|| wrong(name))
    }

    pub(crate) fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        self.optional_bytes(name)?.ok_or_else(|| wrong(name))
    }

    pub(crate) fn string(&self, name: &str) -> Result<String> {
        self.optional_string(name)?.ok_or_else(|| wrong(name))
    }

    pub(crate) fn record(&self, name: &str) -> Result<&Record<'a>> {
        match self.get(name) {
            Value::Record(record) => Ok(record),
            _ => Err(wrong(name)),
        }
    }
}

fn text(name: &str, value: &Value<'_>) -> Result<String> {
    match value {
        Value::Bytes(bytes) => String::from_utf8(bytes.to_vec()).map_err(|_| wrong(name)),
        _ => Err(wrong(name)),
    }
}

fn wrong(name: &str) -> Error {
    bad(format!("`{name}` is absent or of a wrong type"))
}

fn too_large() -> Error {
    bad(format!(
        "its blocks hold more than {MAX_UNCOMPRESSED_BYTES} bytes"
    ))
}

fn bad(reason: impl Into<String>) -> Error {
    Error::malformed("Avro file", reason)
}
