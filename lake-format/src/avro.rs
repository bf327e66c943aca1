//! Avro object container files, as far as manifests need them.
//!
//! Files are written with one fixed schema each and read by field name through the schema they
//! carry, so files of other writers with other record names, orders and further fields are read
//! too. Decoding is bounded: the blocks of a file may unpack to 1 GiB in all, a record may hold a
//! million values, and no length that a file states is believed before the bytes are there.

mod read;
mod schema;
mod write;

pub(crate) use read::{Record, read_records};
pub(crate) use write::{
    ContainerWriter, put_bytes, put_int, put_long, put_optional, put_str, put_strings,
};

/// First bytes of a container file.
const MAGIC: [u8; 4] = *b"Obj\x01";

/// Between blocks; any 16 bytes do, and equal input gives equal files.
const SYNC_MARKER: [u8; 16] = *b"weir-lake-format";

#[cfg(test)]
mod tests;
