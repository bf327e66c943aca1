//! Bad records: rows of the log that the lake table can't take, and the table that keeps them.
//!
//! The table is an ordinary Paimon append table beside the lake table, `TABLE__weir_bad_records`.
//! A bad record is committed there before the round that left it out ([`book`]), so a crash between
//! the two loses nothing; what was diverted and not yet left out by a committed round stays diverted,
//! whatever the next round thinks of the row, so it doubles nothing either. [`replay`] puts records
//! back into the lake table, each once.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, BinaryArray, Int32Array, Int64Array, RecordBatch, StringArray,
    TimestampMillisecondArray,
};
use arrow::datatypes::{DataType, Int32Type, Int64Type};
use bytes::{BufMut as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use weir_lake_format::commit::{BaseView, CommitOutcome, CommitRequest, GuardRefusal, RetryPolicy};
use weir_lake_format::{DataField, NewTable, TableCommitter, TableSchema, TypeKind};
use weir_protocol::ids::{
    BucketId, LogOffset, PartitionId, SchemaId, TableBucket, TableId, TablePath,
};
use weir_protocol::record::arrow::{Compression, encode_append};
use weir_protocol::record::log_batch::set_stored;
use weir_protocol::record::{BatchIdentity, LogBatch};

use crate::cluster::TableInfo;
use crate::error::{Error, Result, Source};
use crate::lake_table::LakeTable;

pub mod book;
pub mod replay;

/// Ends the name of a table of bad records.
pub const TABLE_SUFFIX: &str = "__weir_bad_records";
/// The property of a table that says what is done with bad records: `stop` or `divert`.
pub const POLICY: &str = "weir.bad-record";

/// Most bad records that one round takes from one bucket; the next round goes on.
pub(crate) const MAX_RECORDS: usize = 10_000;
/// Most bytes of bad records that one round takes from one bucket; the one that passes it is the last.
pub(crate) const MAX_BYTES: usize = 4 << 20;

/// The column with the [checksum](BadRecord::checksum) of a record.
const CHECKSUM: &str = "checksum";

/// What is done with a row that the lake table can't take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Its bucket stops there until a person acts; the rows before it are tiered.
    #[default]
    Stop,
    /// It goes into the table of bad records, and tiering goes on behind it.
    Divert,
}

impl Policy {
    /// What holds for a table; `default` if it says nothing. One with a primary key always stops: a
    /// change that is put back later would overwrite those that came after it.
    ///
    /// # Errors
    /// [`Error::Config`] if its property is neither `stop` nor `divert`.
    pub fn of_table(info: &TableInfo, default: Self) -> Result<Self, Error> {
        let policy = Self::of(&info.properties, default)?;
        if info.schema.has_primary_key() {
            return Ok(Self::Stop);
        }
        Ok(policy)
    }

    /// What a table with these properties wants; `default` if it says nothing.
    ///
    /// # Errors
    /// [`Error::Config`] if the property is neither `stop` nor `divert`.
    pub fn of(properties: &BTreeMap<String, String>, default: Self) -> Result<Self, Error> {
        let Some(text) = properties.get(POLICY) else {
            return Ok(default);
        };
        match text.trim() {
            text if text.eq_ignore_ascii_case("stop") => Ok(Policy::Stop),
            text if text.eq_ignore_ascii_case("divert") => Ok(Policy::Divert),
            text => Err(Error::Config {
                key: POLICY,
                reason: format!("`{text}` is neither stop nor divert"),
            }),
        }
    }
}

/// One row that was left out of the lake table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRecord {
    /// Its bucket.
    pub bucket: TableBucket,
    /// The partition's name, of a partitioned table.
    pub partition: Option<String>,
    /// Its offset.
    pub offset: LogOffset,
    /// The column at fault.
    pub column: String,
    /// Why.
    pub reason: String,
    /// The row as a stored batch of the log with this one record, in Arrow: schema id, offset and
    /// time stand in its header.
    pub record: Bytes,
}

/// The row of `rows` (in the log's columns) as a stored batch.
///
/// # Errors
/// If the row can't be encoded again.
pub(crate) fn stored_record(
    rows: &RecordBatch,
    row: usize,
    schema: SchemaId,
    (offset, timestamp_ms): (LogOffset, i64),
) -> Result<Bytes, Source> {
    let (writer, one) = (BatchIdentity::NO_WRITER, rows.slice(row, 1));
    let bytes = encode_append(schema, writer, -1, &one, Compression::None)?;
    let mut bytes = BytesMut::from(&bytes[..]);
    set_stored(&mut bytes, offset, timestamp_ms)?;
    Ok(bytes.freeze())
}

/// The columns of a table of bad records.
fn fields() -> Vec<DataField> {
    let time = TypeKind::TimestampLtz { precision: 3 };
    let columns = [
        ("table_id", TypeKind::BigInt.not_null()),
        ("table_name", TypeKind::string().not_null()),
        ("partition_id", TypeKind::BigInt.nullable()),
        ("partition_name", TypeKind::string().nullable()),
        ("bucket", TypeKind::Int.not_null()),
        ("log_offset", TypeKind::BigInt.not_null()),
        ("column_name", TypeKind::string().not_null()),
        ("reason", TypeKind::string().not_null()),
        ("record", TypeKind::bytes().not_null()),
        ("round", TypeKind::string().not_null()),
        ("diverted_at", time.not_null()),
        (CHECKSUM, TypeKind::Int.not_null()),
    ];
    let field = |(id, (name, data_type))| DataField::new(id, name, data_type);
    (0..).zip(columns).map(field).collect()
}

/// The schema of a new table of bad records.
///
/// # Errors
/// Never in practice: the columns are known.
pub fn schema(now_ms: i64) -> weir_lake_format::Result<TableSchema> {
    let options = BTreeMap::from([("bucket".to_owned(), "-1".to_owned())]);
    let new = NewTable {
        fields: fields(),
        partition_keys: Vec::new(),
        primary_keys: Vec::new(),
        options,
        comment: Some("rows of the log that the lake table could not take".to_owned()),
    };
    TableSchema::create(new, now_ms)
}

/// What all records of one commit share.
#[derive(Clone, Copy, Debug)]
pub struct Stamp<'a> {
    /// The table, as a person writes it.
    pub table: &'a str,
    /// The round that left the records out.
    pub round: &'a str,
    /// When, in milliseconds since 1970.
    pub now_ms: i64,
}

/// Records as rows of the table of bad records.
fn to_batch(
    records: &[BadRecord],
    stamp: Stamp<'_>,
    schema: &TableSchema,
) -> Result<RecordBatch, arrow::error::ArrowError> {
    let count = records.len();
    let same = |text: &str| StringArray::from(vec![text.to_owned(); count]);
    let ids = records.iter().map(|r| r.bucket.table.0);
    let partitions = records.iter().map(|r| r.bucket.partition.map(|id| id.0));
    let buckets = records.iter().map(|r| r.bucket.bucket.0);
    let time = TimestampMillisecondArray::from_value(stamp.now_ms, count);
    let arrow = schema.arrow_schema();
    let zone = match arrow.field_with_name("diverted_at")?.data_type() {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => None,
    };
    let names = records.iter().map(|r| r.partition.as_deref());
    let offsets = records.iter().map(|r| r.offset.0);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(ids)),
        Arc::new(same(stamp.table)),
        Arc::new(partitions.collect::<Int64Array>()),
        Arc::new(names.collect::<StringArray>()),
        Arc::new(Int32Array::from_iter_values(buckets)),
        Arc::new(Int64Array::from_iter_values(offsets)),
        Arc::new(StringArray::from_iter_values(
            records.iter().map(|r| &r.column),
        )),
        Arc::new(StringArray::from_iter_values(
            records.iter().map(|r| &r.reason),
        )),
        Arc::new(BinaryArray::from_iter_values(
            records.iter().map(|r| &r.record),
        )),
        Arc::new(same(stamp.round)),
        Arc::new(time.with_timezone_opt(zone)),
        Arc::new(Int32Array::from_iter_values(
            records.iter().map(BadRecord::checksum),
        )),
    ];
    RecordBatch::try_new(arrow, columns)
}

/// Rows of a table of bad records as records, of whatever table of the name.
///
/// # Errors
/// The column that is of another type, or what is damaged about a row: a column that tells where
/// the record belongs is another than when it was written.
fn from_batch(batch: &RecordBatch) -> Result<Vec<BadRecord>, String> {
    let column = |name: &str| {
        let found = batch.column_by_name(name);
        found.ok_or_else(|| format!("column {name} is missing"))
    };
    let other = |name: &str| format!("column {name} is of another type");
    let text = |name: &str| {
        let array = column(name)?.as_string_opt::<i32>();
        array.ok_or_else(|| other(name))
    };
    let long = |name: &str| {
        let array = column(name)?.as_primitive_opt::<Int64Type>();
        array.ok_or_else(|| other(name))
    };
    let int = |name: &str| {
        let array = column(name)?.as_primitive_opt::<Int32Type>();
        array.ok_or_else(|| other(name))
    };
    let (ids, partitions) = (long("table_id")?, long("partition_id")?);
    let (names, offsets) = (text("partition_name")?, long("log_offset")?);
    let (buckets, checksums) = (int("bucket")?, int(CHECKSUM)?);
    let (columns, reasons) = (text("column_name")?, text("reason")?);
    let records = column("record")?.as_binary_opt::<i32>();
    let records = records.ok_or_else(|| other("record"))?;
    let mut found = Vec::new();
    for row in 0..batch.num_rows() {
        let is_some = |array: &dyn arrow::array::Array| array.is_valid(row);
        let partition = is_some(partitions).then(|| PartitionId(partitions.value(row)));
        let record = BadRecord {
            bucket: TableBucket {
                table: TableId(ids.value(row)),
                partition,
                bucket: BucketId(buckets.value(row)),
            },
            partition: is_some(names).then(|| names.value(row).to_owned()),
            offset: LogOffset(offsets.value(row)),
            column: columns.value(row).to_owned(),
            reason: reasons.value(row).to_owned(),
            record: Bytes::copy_from_slice(records.value(row)),
        };
        if record.checksum() != checksums.value(row) {
            return Err(format!(
                "the record that says bucket {} offset {} is not what was written",
                record.bucket, record.offset
            ));
        }
        found.push(record);
    }
    Ok(found)
}

impl BadRecord {
    /// CRC-32C of what tells where the record belongs, and of the record: table id, partition id and
    /// its presence, bucket and offset, little-endian; the bytes of the record; the partition's name.
    fn checksum(&self) -> i32 {
        let partition = self.bucket.partition;
        let mut place = BytesMut::new();
        place.put_i64_le(self.bucket.table.0);
        place.put_u8(u8::from(partition.is_some()));
        place.put_i64_le(partition.map_or(0, |id| id.0));
        place.put_i32_le(self.bucket.bucket.0);
        place.put_i64_le(self.offset.0);
        let sum = crc32c::crc32c_append(crc32c::crc32c(&place), &self.record);
        let name = self.partition.as_deref().unwrap_or_default();
        crc32c::crc32c_append(sum, name.as_bytes()).cast_signed()
    }

    /// The stored batch of the record.
    ///
    /// # Errors
    /// If the bytes are no batch with one record, or are damaged.
    pub fn batch(&self) -> Result<LogBatch, Source> {
        let batch = LogBatch::parse(&mut self.record.clone())?;
        batch.verify_crc()?;
        Ok(batch)
    }
}

/// Commits, unless the newest snapshot of the same user is another than `seen`: that is `refused`.
/// Returns the snapshot. After an error the request's files are deleted, but for an unknown outcome,
/// in which they may be live.
async fn commit_after(
    table: &LakeTable,
    request: CommitRequest,
    seen: Option<i64>,
    round: &str,
    refused: impl FnOnce(TablePath) -> Error,
) -> Result<i64> {
    let mut guard = |view: &BaseView<'_>| match view.own_latest.map(|own| own.id) {
        found if found == seen => Ok(()),
        _ => Err(GuardRefusal {
            reason: "its user has committed meanwhile".to_owned(),
        }),
    };
    let mut committer = TableCommitter::new(table.table.clone());
    committer.hold_to(&table.identity);
    let committed = committer.commit(&request, &mut guard, RetryPolicy::default());
    let path = table.path().clone();
    let error = match committed.await {
        Ok(CommitOutcome::Committed(snapshot) | CommitOutcome::AlreadyCommitted(snapshot)) => {
            return Ok(snapshot.id);
        }
        Ok(CommitOutcome::Refused(_)) => refused(path),
        Ok(CommitOutcome::Replaced) => Error::LakeReplaced { table: path },
        // Its files may be needed.
        Ok(CommitOutcome::TakenBack) => return Err(Error::LakeReplaced { table: path }),
        Ok(CommitOutcome::Exhausted { attempts }) => Error::LakeBusy {
            table: path,
            attempts,
        },
        Ok(outcome) => {
            let reason = format!("{outcome:?}");
            let error = Error::LakeConflict {
                table: path,
                reason,
            };
            if !outcome.frees_files() {
                return Err(error);
            }
            error
        }
        Err(source @ weir_lake_format::Error::OutcomeUnknown { .. }) => {
            return Err(Error::UnknownCommit {
                table: path,
                round: round.to_owned(),
                source,
            });
        }
        Err(source) => table.error(source),
    };
    table.discard(request.messages).await;
    Err(error)
}

#[cfg(test)]
mod tests {
    use weir_protocol::ids::WriterId;

    use super::*;

    fn record(offset: i64, partition: Option<i64>) -> BadRecord {
        BadRecord {
            bucket: TableBucket {
                table: TableId(7),
                partition: partition.map(PartitionId),
                bucket: BucketId(3),
            },
            partition: partition.map(|id| format!("p{id}")),
            offset: LogOffset(offset),
            column: "c".to_owned(),
            reason: "too late".to_owned(),
            record: Bytes::from(vec![1, 2, u8::try_from(offset).unwrap()]),
        }
    }

    #[test]
    fn records_survive_their_table() {
        let records = vec![record(5, None), record(9, Some(31))];
        let stamp = Stamp {
            table: "d.t",
            round: "r",
            now_ms: 1_000,
        };
        let schema = schema(0).unwrap();
        let batch = to_batch(&records, stamp, &schema).unwrap();
        assert_eq!(batch.schema(), schema.arrow_schema());
        assert_eq!(from_batch(&batch).unwrap(), records);
    }

    #[test]
    fn a_record_that_moved_is_damaged() {
        let records = vec![record(5, None), record(9, Some(31))];
        let stamp = Stamp {
            table: "d.t",
            round: "r",
            now_ms: 1_000,
        };
        let schema = schema(0).unwrap();
        let sound = to_batch(&records, stamp, &schema).unwrap();
        let changed = |change: fn(&mut BadRecord)| {
            let mut records = records.clone();
            change(&mut records[1]);
            let batch = to_batch(&records, stamp, &schema).unwrap();
            let mut columns = batch.columns().to_vec();
            let last = columns.len() - 1;
            columns[last] = Arc::clone(sound.column(last));
            let error = from_batch(&RecordBatch::try_new(batch.schema(), columns).unwrap());
            assert!(error.unwrap_err().contains("is not what was written"));
        };
        changed(|record| record.bucket.table = TableId(8));
        changed(|record| record.bucket.partition = Some(PartitionId(32)));
        changed(|record| record.bucket.partition = None);
        changed(|record| record.bucket.bucket = BucketId(2));
        changed(|record| record.offset = LogOffset(8));
        changed(|record| record.partition = Some("p30".to_owned()));
        changed(|record| record.record = Bytes::from(vec![1, 2, 8]));
    }

    #[test]
    fn a_record_is_a_stored_batch_of_one_row() {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
        let rows = RecordBatch::try_from_iter([("a", column)]).unwrap();
        let bytes = stored_record(&rows, 1, SchemaId(4), (LogOffset(41), 77)).unwrap();
        let record = BadRecord {
            record: bytes,
            ..record(41, None)
        };
        let batch = record.batch().unwrap();
        let header = &batch.header;
        assert_eq!(header.schema_id, SchemaId(4));
        assert_eq!(
            (header.base_offset, batch.next_offset()),
            (LogOffset(41), LogOffset(42))
        );
        assert_eq!((header.commit_timestamp_ms, header.record_count), (77, 1));
        assert_eq!(header.writer_id, WriterId(-1));
    }

    #[test]
    fn a_policy_is_stop_or_divert() {
        let of = |text: &str| {
            let properties = BTreeMap::from([(POLICY.to_owned(), text.to_owned())]);
            Policy::of(&properties, Policy::Divert)
        };
        assert_eq!(of("stop").unwrap(), Policy::Stop);
        assert_eq!(of(" DIVERT ").unwrap(), Policy::Divert);
        let error = of("skip").unwrap_err().to_string();
        assert_eq!(error, "weir.bad-record: `skip` is neither stop nor divert");
        assert_eq!(
            Policy::of(&BTreeMap::new(), Policy::Divert).unwrap(),
            Policy::Divert
        );
    }
}
