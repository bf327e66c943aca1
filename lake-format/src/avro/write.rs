//! Writing container files.

use std::io;

use super::{MAGIC, SYNC_MARKER};

/// Uncompressed bytes after which a block is closed.
const BLOCK_BYTES: usize = 256 << 10;

/// Manifests compress well at any level; this one costs the least.
const ZSTD_LEVEL: i32 = 1;

/// Writes records of one schema into a container file with codec `zstandard`.
pub(crate) struct ContainerWriter {
    out: Vec<u8>,
    block: Vec<u8>,
    block_records: i64,
}

impl ContainerWriter {
    /// A file of records of `schema`, an Avro schema in JSON.
    pub(crate) fn new(schema: &str) -> Self {
        let mut out = MAGIC.to_vec();
        put_long(&mut out, 2);
        put_str(&mut out, "avro.schema");
        put_str(&mut out, schema);
        put_str(&mut out, "avro.codec");
        put_str(&mut out, "zstandard");
        put_long(&mut out, 0);
        out.extend_from_slice(&SYNC_MARKER);
        Self {
            out,
            block: Vec::new(),
            block_records: 0,
        }
    }

    /// Adds a record, whose fields `encode` puts in schema order.
    pub(crate) fn append(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        encode(&mut self.block);
        self.block_records += 1;
        if self.block.len() >= BLOCK_BYTES {
            self.close_block()
        } else {
            Ok(())
        }
    }

    /// The bytes of the file.
    pub(crate) fn finish(mut self) -> io::Result<Vec<u8>> {
        if self.block_records > 0 {
            self.close_block()?;
        }
        Ok(self.out)
    }

    fn close_block(&mut self) -> io::Result<()> {
        let compressed = zstd::bulk::compress(&self.block, ZSTD_LEVEL)?;
        put_long(&mut self.out, self.block_records);
        put_bytes(&mut self.out, &compressed);
        self.out.extend_from_slice(&SYNC_MARKER);
        self.block.clear();
        self.block_records = 0;
        Ok(())
    }
}

/// A `long`: zigzag, then 7 bits a byte, low ones first.
pub(crate) fn put_long(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while rest >= 0x80 {
        out.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.push((rest & 0x7f) as u8);
}

/// An `int`.
pub(crate) fn put_int(out: &mut Vec<u8>, value: i32) {
    put_long(out, i64::from(value));
}

/// A `bytes`.
pub(crate) fn put_bytes(out: &mut Vec<u8>, value: &[u8]) {
    put_long(out, i64::try_from(value.len()).unwrap_or(i64::MAX));
    out.extend_from_slice(value);
}

/// A `string`.
pub(crate) fn put_str(out: &mut Vec<u8>, value: &str) {
    put_bytes(out, value.as_bytes());
}

/// An array of strings.
pub(crate) fn put_strings(out: &mut Vec<u8>, values: &[String]) {
    if !values.is_empty() {
        put_long(out, i64::try_from(values.len()).unwrap_or(i64::MAX));
        for value in values {
            put_str(out, value);
        }
    }
    put_long(out, 0);
}

/// A union of null and what `put` writes.
pub(crate) fn put_optional<T>(
    out: &mut Vec<u8>,
    value: Option<T>,
    put: impl FnOnce(&mut Vec<u8>, T),
) {
    match value {
        None => put_long(out, 0),
        Some(value) => {
            put_long(out, 1);
            put(out, value);
        }
    }
}
