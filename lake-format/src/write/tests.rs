#![allow(
    clippy::clone_on_ref_ptr,
    clippy::cast_possible_wrap,
    reason = "tests: what is cloned and how large it is can be seen"
)]

use super::*;
use crate::faulty_store::{Fault, FaultyStore};
use crate::schema::NewTable;
use crate::types::DataField;
use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::record::Field as Value;
use arrow::array::{
    Array, ArrayRef, AsArray, Int32Array, Int64Array, ListArray, MapArray, StringArray,
    StructArray, TimestampNanosecondArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType as ArrowType, TimestampNanosecondType};
use bytes::Bytes;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;

fn schema(columns: &[(&str, &str)]) -> Arc<TableSchema> {
    let fields = columns.iter().map(|(name, text)| {
        let data_type = match text.parse() {
            Ok(data_type) => data_type,
            Err(_) => serde_json::from_str(text).unwrap(),
        };
        DataField::new(-1, *name, data_type)
    });
    let table = NewTable {
        fields: fields.collect(),
        ..NewTable::default()
    };
    Arc::new(TableSchema::create(table, 0).unwrap())
}

struct Fixture {
    store: Arc<InMemory>,
    schema: Arc<TableSchema>,
    options: WriterOptions,
}

impl Fixture {
    fn new(columns: &[(&str, &str)]) -> Self {
        let schema = schema(columns);
        let options = WriterOptions::new(&schema, "u".to_owned(), 7).unwrap();
        Self {
            store: Arc::new(InMemory::new()),
            schema,
            options,
        }
    }

    fn writer(&self) -> DataFileWriter {
        let target = WriteTarget {
            schema: Arc::clone(&self.schema),
            partition: Partition::unpartitioned(),
            bucket: 0,
            total_buckets: -1,
            first_sequence_number: 100,
        };
        let store: Arc<dyn ObjectStore> = self.store.clone();
        DataFileWriter::new(target, self.options.clone(), store, Path::from("t")).unwrap()
    }

    fn batch(&self, columns: Vec<ArrayRef>) -> RecordBatch {
        RecordBatch::try_new(self.schema.arrow_schema(), columns).unwrap()
    }

    async fn bytes(&self, name: &str) -> Bytes {
        let path = Path::from(format!("t/bucket-0/{name}"));
        self.store.get(&path).await.unwrap().bytes().await.unwrap()
    }

    async fn read(&self, name: &str) -> RecordBatch {
        let builder = ParquetRecordBatchReaderBuilder::try_new(self.bytes(name).await).unwrap();
        let schema = builder.schema().clone();
        let batches: Vec<_> = builder
            .build()
            .unwrap()
            .map(|batch| batch.unwrap())
            .collect();
        concat_batches(&schema, &batches).unwrap()
    }

    async fn files(&self) -> Vec<String> {
        let listing = self
            .store
            .list_with_delimiter(Some(&Path::from("t/bucket-0")))
            .await
            .unwrap();
        listing
            .objects
            .iter()
            .map(|file| file.location.filename().unwrap().to_owned())
            .collect()
    }
}

fn ints(range: std::ops::Range<i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(range))
}

#[tokio::test]
async fn rows_come_back_and_the_meta_tells_their_number_size_and_sequence() {
    let fixture = Fixture::new(&[("a", "BIGINT NOT NULL"), ("b", "STRING")]);
    let mut writer = fixture.writer();
    let text: ArrayRef = Arc::new(StringArray::from(vec![Some("x"), None, Some("y")]));
    let batch = fixture.batch(vec![ints(0..3), text]);
    writer.write(batch.clone()).await.unwrap();
    writer.write(batch.clone()).await.unwrap();
    assert!(writer.memory_bytes() > 0);
    let message = writer.finish().await.unwrap();
    assert_eq!((message.bucket, message.total_buckets), (0, -1));
    let [file] = &message.new_files[..] else {
        panic!("{message:?}")
    };
    assert_eq!(
        (file.file_name.as_str(), file.row_count),
        ("data-u-0.parquet", 6)
    );
    assert_eq!(
        (file.min_sequence_number, file.max_sequence_number),
        (100, 105)
    );
    assert_eq!(file.creation_time, Some(7));
    let bytes = fixture.bytes("data-u-0.parquet").await;
    assert_eq!(file.file_size, bytes.len() as i64);
    let read = fixture.read("data-u-0.parquet").await;
    let expected = concat_batches(&batch.schema(), [&batch, &batch]).unwrap();
    assert_eq!(read.columns(), expected.columns());
    assert_eq!(read.schema().field(1).metadata()["PARQUET:field_id"], "1");
}

#[tokio::test]
async fn a_writer_without_rows_makes_no_file() {
    let fixture = Fixture::new(&[("a", "BIGINT")]);
    let mut writer = fixture.writer();
    writer.write(fixture.batch(vec![ints(0..0)])).await.unwrap();
    writer.flush().await.unwrap();
    assert!(writer.finish().await.unwrap().new_files.is_empty());
    assert!(fixture.files().await.is_empty());
}

#[tokio::test]
async fn a_full_file_is_followed_by_another_with_the_next_sequence_numbers() {
    let mut fixture = Fixture::new(&[("a", "BIGINT")]);
    fixture.options.target_file_size = 20_000;
    let mut writer = fixture.writer();
    let scrambled = |start: i64| -> ArrayRef {
        let values = (start..start + 2000).map(|i| i.wrapping_mul(0x1234_5678_9abc_def1));
        Arc::new(Int64Array::from_iter_values(values))
    };
    for start in [0, 2000, 4000, 6000] {
        writer
            .write(fixture.batch(vec![scrambled(start)]))
            .await
            .unwrap();
    }
    let files = writer.finish().await.unwrap().new_files;
    let ranges: Vec<_> = files
        .iter()
        .map(|file| {
            (
                file.file_name.as_str(),
                file.min_sequence_number,
                file.max_sequence_number,
            )
        })
        .collect();
    let expected = [
        ("data-u-0.parquet", 100, 4099),
        ("data-u-1.parquet", 4100, 8099),
    ];
    assert_eq!(ranges, expected);
    assert_eq!(fixture.read("data-u-1.parquet").await.num_rows(), 4000);
}

#[tokio::test]
async fn a_large_file_is_uploaded_by_row_groups_and_memory_is_freed() {
    let mut fixture = Fixture::new(&[("a", "BIGINT")]);
    fixture.options.row_group_bytes = 10_000;
    let mut writer = fixture.writer();
    for start in 0..10_i64 {
        let values = (start * 2000..(start + 1) * 2000)
            .map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64.cast_signed()));
        let array: ArrayRef = Arc::new(Int64Array::from_iter_values(values));
        writer.write(fixture.batch(vec![array])).await.unwrap();
    }
    writer.flush().await.unwrap();
    let message = writer.finish().await.unwrap();
    let bytes = fixture.bytes("data-u-0.parquet").await;
    assert_eq!(message.new_files[0].file_size, bytes.len() as i64);
    let reader = SerializedFileReader::new(bytes).unwrap();
    assert!(reader.metadata().num_row_groups() > 3);
    assert_eq!(fixture.read("data-u-0.parquet").await.num_rows(), 20_000);
}

#[tokio::test]
async fn a_writer_of_few_rows_holds_the_rows_and_no_encoder() {
    let fixture = Fixture::new(&[("a", "BIGINT"), ("b", "STRING")]);
    let mut writer = fixture.writer();
    let texts = |range: std::ops::Range<i64>| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(range.map(|i| i.to_string())))
    };
    // A slice of a large batch counts, and holds, as its own rows only.
    let large = fixture.batch(vec![ints(0..100_000), texts(0..100_000)]);
    for start in [0, 40] {
        writer.write(large.slice(start, 40)).await.unwrap();
    }
    let kept: usize = writer
        .files
        .early
        .batches
        .iter()
        .map(RecordBatch::get_array_memory_size)
        .sum();
    assert!(kept < 8000, "{kept} bytes are held");
    assert!(writer.memory_bytes() < 4000, "{}", writer.memory_bytes());
    assert_eq!(writer.row_count(), 80);
    assert!(fixture.files().await.is_empty());
    let files = writer.finish().await.unwrap().new_files;
    assert_eq!((files.len(), files[0].row_count), (1, 80));
    assert_eq!(fixture.read("data-u-0.parquet").await, large.slice(0, 80));
}

#[tokio::test]
async fn abort_deletes_finished_and_open_files() {
    let mut fixture = Fixture::new(&[("a", "BIGINT")]);
    fixture.options.target_file_size = 1;
    let mut writer = fixture.writer();
    writer
        .write(fixture.batch(vec![ints(0..10)]))
        .await
        .unwrap();
    assert_eq!(fixture.files().await.len(), 1);
    writer.files.options.target_file_size = 1 << 20;
    writer
        .write(fixture.batch(vec![ints(0..10)]))
        .await
        .unwrap();
    writer.flush().await.unwrap();
    writer.abort().await.unwrap();
    assert!(fixture.files().await.is_empty());
}

#[tokio::test]
async fn a_batch_that_does_not_fit_is_refused_and_the_writer_goes_on() {
    let fixture = Fixture::new(&[("a", "BIGINT")]);
    let mut writer = fixture.writer();
    let text: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
    let wrong = RecordBatch::try_from_iter([("a", text)]).unwrap();
    let error = writer.write(wrong).await.unwrap_err();
    assert!(
        matches!(&error, Error::BadValue { column, .. } if column == "a"),
        "{error}"
    );
    writer.write(fixture.batch(vec![ints(0..3)])).await.unwrap();
    assert_eq!(writer.finish().await.unwrap().new_files[0].row_count, 3);
}

#[tokio::test]
async fn a_cancelled_write_breaks_the_writer() {
    let fixture = Fixture::new(&[("a", "BIGINT")]);
    let mut writer = fixture.writer();
    writer.write(fixture.batch(vec![ints(0..3)])).await.unwrap();
    // The encoding thread may be done before the first look: only a write that is under way counts.
    loop {
        let mut write = Box::pin(writer.write(fixture.batch(vec![ints(0..100_000)])));
        if futures::poll!(&mut write).is_pending() {
            break;
        }
    }
    let again = writer.write(fixture.batch(vec![ints(0..3)])).await;
    assert!(
        matches!(again, Err(Error::WriterBroken { .. })),
        "{again:?}"
    );
    assert!(matches!(
        writer.finish().await,
        Err(Error::WriterBroken { .. })
    ));
}

#[tokio::test]
async fn buckets_that_do_not_fit_the_table_are_refused() {
    let fixture = Fixture::new(&[("a", "BIGINT")]);
    for (bucket, total_buckets) in [(1, -1), (0, 1), (-1, -1)] {
        let target = WriteTarget {
            schema: Arc::clone(&fixture.schema),
            partition: Partition::unpartitioned(),
            bucket,
            total_buckets,
            first_sequence_number: 0,
        };
        let options = fixture.options.clone();
        let writer = DataFileWriter::new(target, options, fixture.store.clone(), Path::from("t"));
        assert!(
            matches!(writer, Err(Error::BadValue { .. })),
            "{bucket} of {total_buckets}"
        );
    }
}

/// Reads every row of a file as text, by the reader of single values, which knows INT96 to the
/// millisecond only.
fn rows_as_text(bytes: Bytes) -> Vec<String> {
    let reader = SerializedFileReader::new(bytes).unwrap();
    let rows = reader.get_row_iter(None).unwrap();
    rows.map(|row| {
        let row = row.unwrap();
        let values = row.get_column_iter().map(|(_, value)| match value {
            Value::TimestampMillis(millis) => format!("ms {millis}"),
            other => other.to_string(),
        });
        values.collect::<Vec<_>>().join(" | ")
    })
    .collect()
}

#[tokio::test]
async fn timestamps_of_nanoseconds_are_int96_and_come_back_exactly() {
    let fixture = Fixture::new(&[
        ("a", "TIMESTAMP(9) NOT NULL"),
        ("b", "TIMESTAMP(7) WITH LOCAL TIME ZONE"),
        ("c", "BIGINT"),
    ]);
    let nanos = vec![
        0,
        1,
        -1,
        86_400_000_000_000,
        1_796_018_556_859_123_456,
        i64::MAX,
        i64::MIN,
    ];
    let a = TimestampNanosecondArray::from(nanos.clone());
    let b: TimestampNanosecondArray = nanos.iter().map(|n| (n % 2 == 0).then_some(*n)).collect();
    let b = b.with_timezone("UTC");
    let batch = fixture.batch(vec![Arc::new(a), Arc::new(b), ints(0..7)]);
    let mut writer = fixture.writer();
    writer.write(batch.clone()).await.unwrap();
    writer.write(batch.clone()).await.unwrap();
    writer.finish().await.unwrap();
    let bytes = fixture.bytes("data-u-0.parquet").await;
    let metadata = SerializedFileReader::new(bytes).unwrap().metadata().clone();
    let columns = metadata.row_group(0).columns();
    assert_eq!(columns[0].column_type(), ::parquet::basic::Type::INT96);
    assert!(columns[0].statistics().is_none() && columns[2].statistics().is_some());
    let read = fixture.read("data-u-0.parquet").await;
    let expected = concat_batches(&batch.schema(), [&batch, &batch]).unwrap();
    for index in 0..2 {
        let read = read.column(index).as_primitive::<TimestampNanosecondType>();
        let expected = expected
            .column(index)
            .as_primitive::<TimestampNanosecondType>();
        assert_eq!(
            &read.clone().with_timezone_opt(expected.timezone()),
            expected
        );
    }
    assert_eq!(read.column(2), expected.column(2));
}

#[tokio::test]
async fn nested_timestamps_of_nanoseconds_keep_their_places() {
    let list = r#"{"type":"ARRAY","element":"TIMESTAMP(9)"}"#;
    let map = r#"{"type":"MAP","key":"INT","value":"TIMESTAMP(9)"}"#;
    let row = concat!(
        r#"{"type":"ROW","fields":[{"id":1,"name":"x","type":"INT"},"#,
        r#"{"id":2,"name":"y","type":"TIMESTAMP(9)"}]}"#
    );
    let fixture = Fixture::new(&[("l", list), ("m", map), ("r", row)]);
    let arrow = fixture.schema.arrow_schema();
    let stamp = |millis: Option<i64>| millis.map(|millis| millis * 1_000_000);
    let lists = ListArray::from_iter_primitive::<TimestampNanosecondType, _, _>(vec![
        Some(vec![stamp(Some(1)), None, stamp(Some(3))]),
        None,
        Some(vec![]),
        Some(vec![stamp(Some(4))]),
    ]);
    let values: TimestampNanosecondArray =
        [Some(5), None, Some(6)].map(stamp).into_iter().collect();
    let ArrowType::Map(entries, _) = arrow.field(1).data_type() else {
        panic!()
    };
    let ArrowType::Struct(parts) = entries.data_type() else {
        panic!()
    };
    let keys: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
    let rows = StructArray::new(parts.clone(), vec![keys, Arc::new(values.clone())], None);
    let offsets = OffsetBuffer::new(vec![0, 2, 2, 2, 3].into());
    let nulls = Some(vec![true, false, true, true].into());
    let maps = MapArray::new(entries.clone(), offsets, rows, nulls, false);
    let ArrowType::Struct(fields) = arrow.field(2).data_type() else {
        panic!()
    };
    let x: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, Some(3), Some(4)]));
    let y: TimestampNanosecondArray = [None, Some(8), Some(9), None]
        .map(stamp)
        .into_iter()
        .collect();
    let nulls = Some(vec![true, true, false, true].into());
    let structs = StructArray::new(fields.clone(), vec![x, Arc::new(y)], nulls);
    let lists: ArrayRef = Arc::new(lists);
    let lists_field = arrow::datatypes::Field::new("l", lists.data_type().clone(), true);
    let schema = arrow::datatypes::Schema::new(vec![
        lists_field,
        arrow.field(1).clone(),
        arrow.field(2).clone(),
    ]);
    let columns = vec![lists, Arc::new(maps) as ArrayRef, Arc::new(structs)];
    let batch = RecordBatch::try_new(Arc::new(schema), columns).unwrap();
    let mut writer = fixture.writer();
    writer.write(batch.slice(0, 4)).await.unwrap();
    writer.write(batch.slice(1, 3)).await.unwrap();
    writer.finish().await.unwrap();
    let read = fixture.read("data-u-0.parquet").await;
    for (index, column) in batch.columns().iter().enumerate() {
        let expected = arrow::compute::concat(&[column.as_ref(), column.slice(1, 3).as_ref()]);
        let field = arrow.field(index).data_type();
        let expected = arrow::compute::cast(&expected.unwrap(), field).unwrap();
        let read = arrow::compute::cast(read.column(index), field).unwrap();
        assert_eq!(&read, &expected, "column {index}");
    }
    let texts = rows_as_text(fixture.bytes("data-u-0.parquet").await);
    assert_eq!(texts.len(), 7);
}

/// A warehouse folder where a folder of the table is a file: no write below it can succeed.
#[tokio::test]
async fn a_store_that_fails_is_an_error_that_names_the_file_and_breaks_the_writer() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("t"), "in the way").unwrap();
    let store = Arc::new(crate::DurableLocal::open(dir.path()).unwrap());
    let fixture = Fixture::new(&[("a", "BIGINT")]);
    let target = WriteTarget {
        schema: Arc::clone(&fixture.schema),
        partition: Partition::unpartitioned(),
        bucket: 0,
        total_buckets: -1,
        first_sequence_number: 0,
    };
    let options = fixture.options.clone();
    let mut writer = DataFileWriter::new(target, options, store, Path::from("t")).unwrap();
    writer.write(fixture.batch(vec![ints(0..3)])).await.unwrap();
    let error = writer.flush().await.unwrap_err();
    assert!(
        error.to_string().contains("t/bucket-0/data-u-0.parquet"),
        "{error}"
    );
    let again = writer.write(fixture.batch(vec![ints(0..3)])).await;
    assert!(
        matches!(again, Err(Error::WriterBroken { .. })),
        "{again:?}"
    );
}

/// Bytes that do not compress, of about `megabytes`.
fn noise(fixture: &Fixture, megabytes: i64) -> RecordBatch {
    let values = (0..megabytes << 17).map(|i| {
        let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64.cast_signed());
        (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9_u64.cast_signed())
    });
    fixture.batch(vec![Arc::new(Int64Array::from_iter_values(values))])
}

#[tokio::test]
async fn an_upload_that_fails_anywhere_is_aborted() {
    let mut fixture = Fixture::new(&[("a", "BIGINT")]);
    fixture.options.row_group_bytes = 1 << 20;
    let batch = noise(&fixture, 10);
    for (failing, fault) in [
        ("begin", Fault::Before),
        ("part", Fault::Before),
        ("complete", Fault::Before),
        ("complete", Fault::After),
    ] {
        // Which of the calls of that verb fails: of parts, one in a write or one at the end.
        for nth in 0..2 {
            let store = FaultyStore::new();
            let mut left = nth;
            store.inject(move |_, verb, _| {
                let is_it = verb == failing && left == 0;
                left -= i32::from(verb == failing);
                is_it.then_some(fault)
            });
            let target = WriteTarget {
                schema: Arc::clone(&fixture.schema),
                partition: Partition::unpartitioned(),
                bucket: 0,
                total_buckets: -1,
                first_sequence_number: 0,
            };
            let options = fixture.options.clone();
            let mut writer =
                DataFileWriter::new(target, options, store.clone(), Path::from("t")).unwrap();
            let failed = match writer.write(batch.clone()).await {
                Ok(()) => writer.finish().await.is_err(),
                Err(_) => {
                    writer.abort().await.unwrap();
                    true
                }
            };
            let calls = store.take_calls();
            let count = |verb: &str| calls.iter().filter(|call| call.starts_with(verb)).count();
            let begun = count("begin") - usize::from(failing == "begin" && failed);
            let ended = if failed {
                count("abort")
            } else {
                count("complete")
            };
            assert_eq!(begun, ended, "{failing} {nth} {failed}: {calls:?}");
            assert_eq!(failed, nth == 0 || failing == "part", "{calls:?}");
            if failed {
                let (objects, folder) = (store.sound(), Path::from("t/bucket-0"));
                let left = objects.list_with_delimiter(Some(&folder)).await.unwrap();
                assert!(left.objects.is_empty(), "{failing} {nth}");
            }
        }
    }
}

#[tokio::test]
async fn an_upload_that_was_cancelled_is_aborted() {
    let mut fixture = Fixture::new(&[("a", "BIGINT")]);
    fixture.options.row_group_bytes = 1 << 20;
    let store = FaultyStore::new();
    let target = WriteTarget {
        schema: Arc::clone(&fixture.schema),
        partition: Partition::unpartitioned(),
        bucket: 0,
        total_buckets: -1,
        first_sequence_number: 0,
    };
    let options = fixture.options.clone();
    let mut writer = DataFileWriter::new(target, options, store.clone(), Path::from("t")).unwrap();
    writer.write(noise(&fixture, 2)).await.unwrap();
    {
        let mut write = Box::pin(writer.write(noise(&fixture, 2)));
        let _ = futures::poll!(&mut write);
    }
    writer.abort().await.unwrap();
    let calls = store.take_calls();
    let count = |verb: &str| calls.iter().filter(|call| call.starts_with(verb)).count();
    assert_eq!((count("begin"), count("abort")), (1, 1), "{calls:?}");
}

/// Statistics leave NaN out, and readers that have it above all numbers would lose it by them.
#[tokio::test]
async fn a_chunk_with_a_nan_has_no_statistics() {
    let fixture = Fixture::new(&[("a", "DOUBLE"), ("b", "FLOAT"), ("c", "BIGINT")]);
    let doubles = arrow::array::Float64Array::from(vec![1.0, f64::NAN]);
    let floats = arrow::array::Float32Array::from(vec![1.0, 2.0]);
    let batch = fixture.batch(vec![Arc::new(doubles), Arc::new(floats), ints(0..2)]);
    let mut writer = fixture.writer();
    writer.write(batch).await.unwrap();
    writer.finish().await.unwrap();
    let bytes = fixture.bytes("data-u-0.parquet").await;
    let metadata = SerializedFileReader::new(bytes).unwrap().metadata().clone();
    let columns = metadata.row_group(0).columns();
    let known: Vec<bool> = columns.iter().map(|c| c.statistics().is_some()).collect();
    assert_eq!(known, [false, true, true]);
}
