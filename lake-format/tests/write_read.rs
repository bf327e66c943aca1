//! What is written and committed is what is read, for any schema.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::clone_on_ref_ptr,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::too_many_lines,
    clippy::unwrap_used,
    reason = "a test may panic, and makes numbers of any size"
)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float32Array,
    Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, ListArray, MapArray, RecordBatch,
    StringArray, StructArray, Time32MillisecondArray, TimestampMicrosecondArray,
    TimestampMillisecondArray, TimestampNanosecondArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType as ArrowType, Field, TimeUnit};
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use proptest::prelude::*;
use weir_lake_format::commit::{BaseView, CommitOutcome, CommitRequest, RetryPolicy};
use weir_lake_format::write::{CommitMessage, DataFileWriter, WriteTarget, WriterOptions};
use weir_lake_format::{
    BATCH_COMMIT_IDENTIFIER, CommitKind, DataField, DataType, Datum, Error, Filter, NewTable,
    Partition, Table, TableSchema, TypeKind,
};

/// Small, fast, the same everywhere (xorshift*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Mostly small, sometimes at the ends.
    fn number(&mut self, range: Range<i128>) -> i128 {
        match self.below(8) {
            0 => range.start,
            1 => range.end - 1,
            2 => {
                let width = range.end.wrapping_sub(range.start) as u128;
                let offset = (u128::from(self.next()) << 64 | u128::from(self.next())) % width;
                range.start.wrapping_add(offset as i128)
            }
            _ => (self.below(20) as i128 - 10).clamp(range.start, range.end - 1),
        }
    }

    fn numbers<T: TryFrom<i128>>(&mut self, range: Range<i128>, len: usize) -> Vec<T> {
        let values = (0..len).map(|_| T::try_from(self.number(range.clone())).ok().unwrap());
        values.collect()
    }

    fn nulls(&mut self, nullable: bool, len: usize) -> Option<NullBuffer> {
        let share = self.below(4);
        let nulls = (0..len).map(|_| self.below(4) >= share).collect::<Vec<_>>();
        nullable.then(|| NullBuffer::from(nulls))
    }

    fn text(&mut self) -> String {
        let alphabet = ['a', 'b', 'z', '0', ' ', 'é', '中', '😀', '\u{10ffff}', '\0'];
        let length = [0, 1, 3, 7, 16, 17, 40][self.below(7)];
        (0..length)
            .map(|_| alphabet[self.below(alphabet.len())])
            .collect()
    }
}

const I64: Range<i128> = i64::MIN as i128..i64::MAX as i128 + 1;

/// An array of any type that lake tables have.
fn array(field: &Field, len: usize, random: &mut Random) -> ArrayRef {
    let nulls = random.nulls(field.is_nullable(), len);
    match field.data_type() {
        ArrowType::Boolean => {
            let values: Vec<bool> = (0..len).map(|_| random.below(2) == 0).collect();
            Arc::new(BooleanArray::new(values.into(), nulls))
        }
        ArrowType::Int8 => Arc::new(Int8Array::new(random.numbers(-128..128, len).into(), nulls)),
        ArrowType::Int16 => Arc::new(Int16Array::new(
            random.numbers(-32_768..32_768, len).into(),
            nulls,
        )),
        ArrowType::Int32 => {
            let range = i128::from(i32::MIN)..i128::from(i32::MAX) + 1;
            Arc::new(Int32Array::new(random.numbers(range, len).into(), nulls))
        }
        ArrowType::Int64 => Arc::new(Int64Array::new(random.numbers(I64, len).into(), nulls)),
        ArrowType::Float32 => {
            let choices = [0.0, -0.0, 1.5, f32::MIN, f32::INFINITY, f32::NAN];
            let values: Vec<f32> = (0..len).map(|_| choices[random.below(6)]).collect();
            Arc::new(Float32Array::new(values.into(), nulls))
        }
        ArrowType::Float64 => {
            let choices = [0.0, -0.0, 1.5, f64::MIN, f64::NEG_INFINITY, 2.5];
            let values: Vec<f64> = (0..len).map(|_| choices[random.below(6)]).collect();
            Arc::new(Float64Array::new(values.into(), nulls))
        }
        ArrowType::Decimal128(precision, scale) => {
            let end = 10_i128.pow(u32::from(*precision));
            let values = random.numbers(1 - end..end, len).into();
            let array = Decimal128Array::new(values, nulls);
            Arc::new(array.with_precision_and_scale(*precision, *scale).unwrap())
        }
        ArrowType::Utf8 => {
            let values: Vec<String> = (0..len).map(|_| random.text()).collect();
            let (offsets, bytes, _) = StringArray::from(values).into_parts();
            Arc::new(StringArray::new(offsets, bytes, nulls))
        }
        ArrowType::Binary => {
            let values: Vec<Vec<u8>> = (0..len)
                .map(|_| (0..random.below(30)).map(|_| random.next() as u8).collect())
                .collect();
            let values = BinaryArray::from_iter_values(values);
            let (offsets, bytes, _) = values.into_parts();
            Arc::new(BinaryArray::new(offsets, bytes, nulls))
        }
        ArrowType::Date32 => Arc::new(Date32Array::new(
            random.numbers(-700_000..2_900_000, len).into(),
            nulls,
        )),
        ArrowType::Time32(_) => {
            let values = random.numbers(0..86_400_000, len).into();
            Arc::new(Time32MillisecondArray::new(values, nulls))
        }
        ArrowType::Timestamp(unit, zone) => {
            let values = random.numbers(I64.start / 1000..I64.end / 1000, len).into();
            match unit {
                TimeUnit::Millisecond => Arc::new(
                    TimestampMillisecondArray::new(values, nulls).with_timezone_opt(zone.clone()),
                ),
                TimeUnit::Microsecond => Arc::new(
                    TimestampMicrosecondArray::new(values, nulls).with_timezone_opt(zone.clone()),
                ),
                _ => Arc::new(
                    TimestampNanosecondArray::new(values, nulls).with_timezone_opt(zone.clone()),
                ),
            }
        }
        ArrowType::List(element) => {
            let lengths: Vec<usize> = (0..len).map(|_| random.below(4)).collect();
            let values = array(element, lengths.iter().sum(), random);
            let offsets = OffsetBuffer::from_lengths(lengths);
            Arc::new(ListArray::new(element.clone(), offsets, values, nulls))
        }
        ArrowType::Map(entries, sorted) => {
            let ArrowType::Struct(parts) = entries.data_type() else {
                panic!("{entries}")
            };
            let lengths: Vec<usize> = (0..len).map(|_| random.below(3)).collect();
            let count = lengths.iter().sum();
            let columns = parts
                .iter()
                .map(|part| array(part, count, random))
                .collect();
            let rows = StructArray::new(parts.clone(), columns, None);
            let offsets = OffsetBuffer::from_lengths(lengths);
            Arc::new(MapArray::new(
                entries.clone(),
                offsets,
                rows,
                nulls,
                *sorted,
            ))
        }
        ArrowType::Struct(fields) => {
            let columns = fields
                .iter()
                .map(|field| array(field, len, random))
                .collect();
            Arc::new(StructArray::new(fields.clone(), columns, nulls))
        }
        other => panic!("{other}"),
    }
}

fn data_type() -> impl Strategy<Value = DataType> {
    let kind = prop_oneof![
        prop::sample::select(vec![
            "BOOLEAN",
            "TINYINT",
            "SMALLINT",
            "INT",
            "BIGINT",
            "FLOAT",
            "DOUBLE",
            "CHAR(50)",
            "STRING",
            "VARCHAR(50)",
            "BINARY(30)",
            "BYTES",
            "DATE",
            "TIME(3)",
            "DECIMAL(1, 0)",
            "DECIMAL(9, 2)",
            "DECIMAL(10, 3)",
            "DECIMAL(18, 0)",
            "DECIMAL(19, 19)",
            "DECIMAL(38, 10)",
        ])
        .prop_map(|text| text.parse::<DataType>().unwrap().kind),
        (0_u8..10).prop_map(|precision| TypeKind::Timestamp { precision }),
        (0_u8..10).prop_map(|precision| TypeKind::TimestampLtz { precision }),
    ];
    let leaf = (kind, any::<bool>()).prop_map(|(kind, nullable)| DataType { kind, nullable });
    leaf.prop_recursive(3, 12, 3, |inner| {
        let kind = prop_oneof![
            inner
                .clone()
                .prop_map(|element| TypeKind::Array(Box::new(element))),
            (inner.clone(), inner.clone()).prop_map(|(mut key, value)| {
                key.nullable = false;
                TypeKind::Map(Box::new(key), Box::new(value))
            }),
            prop::collection::vec(inner, 1..4).prop_map(|types| {
                let named = types.into_iter().enumerate();
                let fields = named.map(|(i, t)| DataField::new(-1, format!("f{i}"), t));
                TypeKind::Row(fields.collect())
            }),
        ];
        (kind, any::<bool>()).prop_map(|(kind, nullable)| DataType { kind, nullable })
    })
}

async fn create(store: Arc<dyn ObjectStore>, table: NewTable) -> (Table, Arc<TableSchema>) {
    let schema = TableSchema::create(table, 0).unwrap();
    let table = Table::create(store, Path::from("t"), &schema)
        .await
        .unwrap();
    (table, Arc::new(schema))
}

async fn commit(table: &Table, messages: Vec<CommitMessage>) {
    let request = CommitRequest {
        commit_user: "test".to_owned(),
        commit_identifier: BATCH_COMMIT_IDENTIFIER,
        kind: CommitKind::Append,
        messages,
        deletes: Vec::new(),
        properties: BTreeMap::new(),
        allow_empty: true,
        uuid: "c".to_owned(),
        now_ms: 1,
    };
    let mut guard = |_: &BaseView<'_>| Ok(());
    let outcome = table
        .commit(&request, &mut guard, RetryPolicy::default())
        .await
        .unwrap();
    assert!(
        matches!(outcome, CommitOutcome::Committed(_)),
        "{outcome:?}"
    );
}

async fn read(table: &Table, filter: &Filter) -> RecordBatch {
    let schema = table.latest_schema().await.unwrap();
    let snapshot = table.latest_snapshot().await.unwrap().unwrap();
    let mut batches = Vec::new();
    for split in table.plan(&snapshot, filter).await.unwrap() {
        let stream = table.read_split(&split, None).await.unwrap();
        batches.extend(stream.try_collect::<Vec<_>>().await.unwrap());
    }
    concat_batches(&schema.arrow_schema(), &batches).unwrap()
}

async fn round_trip(types: Vec<DataType>, lengths: Vec<usize>, seed: u64, row_group_bytes: usize) {
    let named = types.into_iter().enumerate();
    let fields = named
        .map(|(i, t)| DataField::new(-1, format!("c{i}"), t))
        .collect();
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let (table, schema) = create(
        store.clone(),
        NewTable {
            fields,
            ..NewTable::default()
        },
    )
    .await;
    let arrow = schema.arrow_schema();
    let mut random = Random(seed | 1);
    let batches: Vec<RecordBatch> = lengths
        .into_iter()
        .map(|len| {
            let columns = arrow
                .fields()
                .iter()
                .map(|field| array(field, len, &mut random));
            RecordBatch::try_new(arrow.clone(), columns.collect()).unwrap()
        })
        .collect();
    let target = WriteTarget {
        schema: schema.clone(),
        partition: Partition::unpartitioned(),
        bucket: 0,
        total_buckets: -1,
        first_sequence_number: 0,
    };
    let mut options = WriterOptions::new(&schema, "u".to_owned(), 0).unwrap();
    options.row_group_bytes = row_group_bytes;
    options.target_file_size = 20_000;
    let mut writer = DataFileWriter::new(target, options, store, Path::from("t")).unwrap();
    for batch in &batches {
        writer.write(batch.clone()).await.unwrap();
    }
    commit(&table, vec![writer.finish().await.unwrap()]).await;
    let problems = table.check().await.unwrap();
    assert!(problems.is_empty(), "{problems:?}");
    let written = concat_batches(&arrow, &batches).unwrap();
    let read = read(&table, &Filter::default()).await;
    assert_eq!(read.num_rows(), written.num_rows());
    for (index, field) in arrow.fields().iter().enumerate() {
        assert_eq!(read.column(index), written.column(index), "{field:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn any_rows_of_any_schema_come_back(
        types in prop::collection::vec(data_type(), 1..6),
        lengths in prop::collection::vec(0_usize..300, 0..5),
        seed in any::<u64>(),
        row_group_bytes in prop::sample::select(vec![1, 2_000, 1 << 20]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(round_trip(types, lengths, seed, row_group_bytes));
    }
}

/// Partitions of different bucket counts, null among them, each file where its rows belong.
#[tokio::test]
async fn partitions_have_their_own_bucket_counts() {
    let table = NewTable {
        fields: vec![
            DataField::new(-1, "id", "BIGINT NOT NULL".parse().unwrap()),
            DataField::new(-1, "dt", "STRING".parse().unwrap()),
        ],
        partition_keys: vec!["dt".to_owned()],
        options: BTreeMap::from([
            ("bucket".to_owned(), "2".to_owned()),
            ("bucket-key".to_owned(), "id".to_owned()),
        ]),
        ..NewTable::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let none = BTreeMap::new();
    let (store, _) = weir_lake_format::open_warehouse(dir.path().to_str().unwrap(), &none).unwrap();
    let (table, schema) = create(store.clone(), table).await;
    let mut messages = Vec::new();
    let partitions = [(Some("a b/c=%"), 2), (None, 3), (Some("é"), 5)];
    for (dt, total_buckets) in partitions {
        let value = dt.map_or(Datum::Null, |dt| Datum::String(dt.to_owned()));
        let partition = Partition::new(vec![value], &schema).unwrap();
        for bucket in 0..total_buckets {
            let target = WriteTarget {
                schema: schema.clone(),
                partition: partition.clone(),
                bucket,
                total_buckets,
                first_sequence_number: 0,
            };
            let id = Datum::BigInt;
            let key_type = [&schema.fields[0].data_type];
            let bucket_of = |value: i64| {
                let row = weir_lake_format::BinaryRow::encode(&[id(value)], key_type.into_iter());
                weir_lake_format::bucket::bucket_of(row.unwrap().hash(), total_buckets).unwrap()
            };
            let ids: Vec<i64> = (0..100).filter(|id| bucket_of(*id) == bucket).collect();
            let dts = StringArray::from(vec![dt; ids.len()]);
            let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(ids)), Arc::new(dts)];
            let batch = RecordBatch::try_new(schema.arrow_schema(), columns).unwrap();
            let options = WriterOptions::new(&schema, format!("u{total_buckets}{bucket}"), 0);
            let options = options.unwrap();
            let mut writer =
                DataFileWriter::new(target, options, store.clone(), Path::from("t")).unwrap();
            writer.write(batch).await.unwrap();
            messages.push(writer.finish().await.unwrap());
        }
    }
    commit(&table, messages).await;
    let problems = table.check().await.unwrap();
    assert!(problems.is_empty(), "{problems:?}");
    for (dt, _) in partitions {
        let value = dt.map_or(Datum::Null, |dt| Datum::String(dt.to_owned()));
        let filter = Filter {
            partition: vec![("dt".to_owned(), value)],
            bucket: None,
        };
        let rows = read(&table, &filter).await;
        assert_eq!(rows.num_rows(), 100);
        let expected: ArrayRef = Arc::new(StringArray::from(vec![dt; 100]));
        assert_eq!(rows.column(1), &expected);
    }
}

/// A table without partitions of one column, and one row in it.
async fn one_row(options: &[(&str, &str)]) -> Table {
    let options = options.iter();
    let options = options.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let new = NewTable {
        fields: vec![DataField::new(-1, "a", TypeKind::Int.nullable())],
        options: options.collect(),
        ..NewTable::default()
    };
    let (table, schema) = create(Arc::new(InMemory::new()), new).await;
    let target = WriteTarget {
        schema: schema.clone(),
        partition: Partition::unpartitioned(),
        bucket: 0,
        total_buckets: -1,
        first_sequence_number: 0,
    };
    let writer_options = WriterOptions::new(&schema, "u".to_owned(), 0).unwrap();
    let store = table.store().clone();
    let mut writer =
        DataFileWriter::new(target, writer_options, store, table.root().clone()).unwrap();
    let values: ArrayRef = Arc::new(Int32Array::from(vec![7]));
    let batch = RecordBatch::try_new(schema.arrow_schema(), vec![values]).unwrap();
    writer.write(batch).await.unwrap();
    commit(&table, vec![writer.finish().await.unwrap()]).await;
    table
}

#[tokio::test]
async fn a_file_name_of_any_characters_is_read_back_as_it_was_written() {
    let table = one_row(&[("data-file.prefix", "x~%y {z}-")]).await;
    assert_eq!(read(&table, &Filter::default()).await.num_rows(), 1);
    let snapshot = table.latest_snapshot().await.unwrap().unwrap();
    let entries = table.live_entries(&snapshot).await.unwrap();
    assert_eq!(entries[0].file.file_name, "x~%y {z}-u-0.parquet");
    assert!(table.check().await.unwrap().is_empty());
}

#[tokio::test]
async fn an_append_table_with_deletion_vectors_is_not_read_whatever_its_options_say() {
    let table = one_row(&[("deletion-vectors.enabled", "false")]).await;
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut snapshot = table.latest_snapshot().await.unwrap().unwrap();
    for (index, is_read) in [
        ("index-manifest-hash", true),
        ("index-manifest-deletion-vectors", false),
    ] {
        let bytes = std::fs::read(golden.join(index)).unwrap();
        let path = table.paths().manifest(index).unwrap();
        table.store().put(&path, bytes.into()).await.unwrap();
        snapshot.index_manifest = Some(index.to_owned());
        let planned = table.plan(&snapshot, &Filter::default()).await;
        match planned {
            Ok(splits) => assert!(is_read && splits.len() == 1, "{index}"),
            Err(Error::Unsupported { .. }) => assert!(!is_read, "{index}"),
            Err(other) => panic!("{other}"),
        }
    }
}

/// A partition row of its field count and three bytes more.
#[tokio::test]
async fn fc_004_a_cut_row_in_a_manifest_is_an_error_that_names_the_manifest() {
    let table = one_row(&[]).await;
    let snapshot = table.latest_snapshot().await.unwrap().unwrap();
    let lists = table.manifests(&snapshot).await.unwrap();
    let name = lists[0].file_name.clone();
    let mut entries = table.read_manifest(&name).await.unwrap();
    entries[0].partition.truncate(7);
    let path = table.root().clone().join("manifest").join(name.as_str());
    let cut = weir_lake_format::encode_manifest(&entries).unwrap();
    table.store().put(&path, cut.into()).await.unwrap();
    let error = table.plan(&snapshot, &Filter::default()).await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains(&name), "{error}");
}

/// More text than the offsets of one Arrow array can count.
#[tokio::test]
async fn fc_071_nine_thousand_rows_of_256_kib_are_written_and_read_back() {
    const ROWS: usize = 9_000;
    const AT_ONCE: usize = 90;
    let new = NewTable {
        fields: vec![DataField::new(-1, "a", "STRING".parse().unwrap())],
        ..NewTable::default()
    };
    let (table, schema) = create(Arc::new(InMemory::new()), new).await;
    let target = WriteTarget {
        schema: schema.clone(),
        partition: Partition::unpartitioned(),
        bucket: 0,
        total_buckets: -1,
        first_sequence_number: 0,
    };
    let options = WriterOptions::new(&schema, "u".to_owned(), 0).unwrap();
    let (store, root) = (table.store().clone(), table.root().clone());
    let mut writer = DataFileWriter::new(target, options, store, root).unwrap();
    let text = "weir".repeat(64 << 10);
    let texts: ArrayRef = Arc::new(StringArray::from(vec![text.as_str(); AT_ONCE]));
    let batch = RecordBatch::try_new(schema.arrow_schema(), vec![texts]).unwrap();
    for _ in 0..ROWS / AT_ONCE {
        writer.write(batch.clone()).await.unwrap();
    }
    commit(&table, vec![writer.finish().await.unwrap()]).await;
    let snapshot = table.latest_snapshot().await.unwrap().unwrap();
    let mut rows = 0;
    for split in table.plan(&snapshot, &Filter::default()).await.unwrap() {
        let mut batches = table.read_split(&split, None).await.unwrap();
        while let Some(batch) = batches.try_next().await.unwrap() {
            let texts = batch.column(0).as_string::<i32>();
            assert!(
                texts.values().len() <= 65 << 20,
                "{} rows",
                batch.num_rows()
            );
            assert!(texts.iter().all(|found| found == Some(&text)));
            rows += batch.num_rows();
        }
    }
    assert_eq!(rows, ROWS);
}
