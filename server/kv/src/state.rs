//! What a store knows of itself: whose state it is, and how far the log is in it.

use weir_protocol::ids::{BucketId, LogOffset, PartitionId, TableBucket, TableId};

/// How far a store has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// All changes below this log offset are in the store, none at or above it.
    pub flushed_offset: LogOffset,
    /// How many keys there are; `None` once keys were written without looking whether they existed.
    pub row_count: Option<u64>,
}

impl Position {
    /// A store without keys, before the first record of the log.
    pub const START: Self = Self {
        flushed_offset: LogOffset(0),
        row_count: Some(0),
    };

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = self.flushed_offset.0.to_be_bytes().to_vec();
        out.push(u8::from(self.row_count.is_some()));
        out.extend_from_slice(&self.row_count.unwrap_or(0).to_be_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (offset, rest) = bytes.split_first_chunk::<8>()?;
        let (known, rest) = rest.split_first()?;
        let count = u64::from_be_bytes(rest.try_into().ok()?);
        let row_count = match known {
            0 => None,
            1 => Some(count),
            _ => return None,
        };
        let flushed_offset = LogOffset(i64::from_be_bytes(*offset));
        (flushed_offset.0 >= 0).then_some(Self {
            flushed_offset,
            row_count,
        })
    }
}

pub(crate) fn encode_bucket(bucket: TableBucket) -> Vec<u8> {
    let mut out = bucket.table.0.to_be_bytes().to_vec();
    out.extend_from_slice(&bucket.bucket.0.to_be_bytes());
    if let Some(partition) = bucket.partition {
        out.extend_from_slice(&partition.0.to_be_bytes());
    }
    out
}

pub(crate) fn decode_bucket(bytes: &[u8]) -> Option<TableBucket> {
    let (table, rest) = bytes.split_first_chunk::<8>()?;
    let (bucket, rest) = rest.split_first_chunk::<4>()?;
    let partition = match rest {
        [] => None,
        rest => Some(PartitionId(i64::from_be_bytes(rest.try_into().ok()?))),
    };
    Some(TableBucket {
        table: TableId(i64::from_be_bytes(*table)),
        partition,
        bucket: BucketId(i32::from_be_bytes(*bucket)),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_position_reads_back_as_it_was(
            offset in 0..=i64::MAX,
            row_count in any::<Option<u64>>(),
        ) {
            let position = Position { flushed_offset: LogOffset(offset), row_count };
            prop_assert_eq!(Position::decode(&position.encode()), Some(position));
        }

        #[test]
        fn a_bucket_reads_back_as_it_was(
            table in any::<i64>(),
            partition in any::<Option<i64>>(),
            bucket in any::<i32>(),
        ) {
            let bucket = TableBucket {
                table: TableId(table),
                partition: partition.map(PartitionId),
                bucket: BucketId(bucket),
            };
            prop_assert_eq!(decode_bucket(&encode_bucket(bucket)), Some(bucket));
        }
    }

    #[test]
    fn state_that_is_cut_off_is_not_read() {
        assert_eq!(Position::decode(b"\0\0\0\0\0\0\0\x01\x01"), None);
        assert_eq!(Position::decode(b""), None);
        assert_eq!(decode_bucket(b"\0\0\0\0\0\0\0\x01\0\0"), None);
    }
}
