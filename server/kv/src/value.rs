//! How a value is stored.
//!
//! | byte | layout 1, plain |
//! |---|---|
//! | 0 | 1, the layout version |
//! | 1, 2 | schema id, little-endian |
//! | 3 … | the row, in the table's KV format |
//!
//! From byte 1 on it is what lookups and scans answer with (fluss `ValueEncoder`: schema id, then
//! row). Layout 2 is kept for values of historical partitions, which also carry the log offset that
//! wrote them.

use bytes::{BufMut, Bytes, BytesMut};
use weir_protocol::ids::SchemaId;

use crate::error::{Error, Result};

/// The newest layout that is written and read.
pub const VALUE_LAYOUT: u8 = 1;
/// Bytes before the row.
const HEADER_SIZE: usize = 3;

/// A value of a key: its row and the schema that the row follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredValue {
    /// The schema of the row, 0 to 32 767.
    pub schema_id: SchemaId,
    /// The row in the table's KV format; shared with the bytes it was read from.
    pub row: Bytes,
}

impl StoredValue {
    /// The bytes to store. Copies the row once.
    ///
    /// # Errors
    /// [`Error::SchemaIdRange`] for a schema id that does not fit.
    pub fn encode(&self) -> Result<Bytes> {
        let id = i16::try_from(self.schema_id.0).ok().filter(|id| *id >= 0);
        let id = id.ok_or(Error::SchemaIdRange { id: self.schema_id })?;
        let mut out = BytesMut::with_capacity(HEADER_SIZE + self.row.len());
        out.put_u8(VALUE_LAYOUT);
        out.put_i16_le(id);
        out.put_slice(&self.row);
        Ok(out.freeze())
    }

    /// The value that stored bytes hold; `key` is told by errors. Copies nothing.
    ///
    /// # Errors
    /// [`Error::CorruptValue`] for bytes that are no value, [`Error::NewerValueLayout`] for a
    /// layout that this release does not know.
    pub fn decode(key: &[u8], bytes: &Bytes) -> Result<Self> {
        let corrupt = |reason| Error::CorruptValue {
            key: key.to_vec(),
            reason,
        };
        let layout = *bytes.first().ok_or_else(|| corrupt("it has no byte"))?;
        if layout > VALUE_LAYOUT {
            return Err(Error::NewerValueLayout {
                key: key.to_vec(),
                found: layout,
                supported: VALUE_LAYOUT,
            });
        }
        if layout == 0 {
            return Err(corrupt("its layout version is 0"));
        }
        let id = bytes.get(1..).and_then(|rest| rest.first_chunk::<2>());
        let id = id.ok_or_else(|| corrupt("its schema id is cut off"))?;
        let id = i16::from_le_bytes(*id);
        if id < 0 {
            return Err(corrupt("its schema id is negative"));
        }
        Ok(Self {
            schema_id: SchemaId(i32::from(id)),
            row: bytes.slice(HEADER_SIZE..),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_stored_value_reads_back_as_it_was(
            id in 0..=32_767i32,
            row in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let value = StoredValue { schema_id: SchemaId(id), row: Bytes::from(row) };
            let stored = value.encode().unwrap();
            prop_assert_eq!(stored.len(), 3 + value.row.len());
            prop_assert_eq!(StoredValue::decode(b"k", &stored).unwrap(), value);
        }

        #[test]
        fn no_bytes_make_decoding_panic_and_what_is_read_is_written_back_the_same(
            bytes in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let bytes = Bytes::from(bytes);
            if let Ok(value) = StoredValue::decode(b"k", &bytes) {
                prop_assert_eq!(value.encode().unwrap(), bytes);
            }
        }
    }

    #[test]
    fn the_layout_is_version_then_schema_id_then_row() {
        let value = StoredValue {
            schema_id: SchemaId(0x0102),
            row: Bytes::from_static(b"row"),
        };
        assert_eq!(&value.encode().unwrap()[..], b"\x01\x02\x01row");
    }

    #[test]
    fn a_schema_id_that_does_not_fit_is_refused() {
        for id in [-1, 32_768] {
            let value = StoredValue {
                schema_id: SchemaId(id),
                row: Bytes::new(),
            };
            assert!(
                matches!(value.encode(), Err(Error::SchemaIdRange { id: found }) if found.0 == id)
            );
        }
    }

    #[test]
    fn a_value_of_a_newer_layout_is_an_error_that_names_its_key() {
        let error = StoredValue::decode(b"\xab\x01", &Bytes::from_static(b"\x02abcdefgh"));
        let error = error.unwrap_err();
        assert!(matches!(
            error,
            Error::NewerValueLayout {
                found: 2,
                supported: 1,
                ..
            }
        ));
        assert_eq!(
            error.to_string(),
            "value of key 0xab01: layout 2 is newer than 1"
        );
    }

    #[test]
    fn bytes_that_are_cut_off_are_corrupt() {
        for bytes in [&b""[..], b"\x00", b"\x01", b"\x01\x00", b"\x01\x00\x80"] {
            let found = StoredValue::decode(b"k", &Bytes::copy_from_slice(bytes));
            assert!(
                matches!(found, Err(Error::CorruptValue { .. })),
                "{bytes:?}"
            );
        }
    }
}
