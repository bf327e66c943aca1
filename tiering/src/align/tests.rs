use std::collections::BTreeMap;

use arrow::array::{
    FixedSizeBinaryArray, Int32Builder, ListBuilder, MapBuilder, StringArray, StringBuilder,
    Time64MicrosecondArray, TimestampMicrosecondArray, TimestampSecondArray,
};
use arrow::datatypes::{Int32Type, Int64Type};
use weir_lake_format::{DataField, DataType as LakeType, NewTable, TypeKind as LakeKind};
use weir_protocol::schema::{Column, LogicalType, TypeKind};

use super::*;

fn log(columns: &[(&str, LogicalType)]) -> Schema {
    let columns = columns
        .iter()
        .map(|(name, ty)| Column::new(*name, ty.clone()))
        .collect();
    Schema::new(columns, Vec::new()).unwrap()
}

fn lake(columns: &[(&str, LakeType)]) -> TableSchema {
    let fields = columns.iter().enumerate();
    let fields: Vec<DataField> = fields
        .map(|(id, (name, ty))| DataField::new(i32::try_from(id).unwrap(), *name, ty.clone()))
        .collect();
    // Nested parts get ids of their own, above those of the columns.
    let mut next_id = i32::try_from(fields.len()).unwrap() - 1;
    let fields = fields
        .into_iter()
        .map(|f| DataField {
            data_type: f.data_type.with_field_ids(&mut next_id),
            ..f
        })
        .collect();
    let options = BTreeMap::from([("bucket".to_owned(), "-1".to_owned())]);
    let (partition_keys, primary_keys) = (vec![], vec![]);
    let new = NewTable {
        fields,
        partition_keys,
        primary_keys,
        options,
        comment: None,
    };
    TableSchema::create(new, 0).unwrap()
}

fn position(offset: i64) -> Position {
    let bucket = TableBucket {
        table: TableId(7),
        partition: None,
        bucket: BucketId(2),
    };
    Position {
        bucket,
        offset: LogOffset(offset),
        timestamp_ms: 5_000,
    }
}

fn path() -> TablePath {
    TablePath::new("d", "t")
}

fn align(log: &Schema, lake: &TableSchema, columns: Vec<ArrayRef>) -> Result<RecordBatch> {
    let batch = RecordBatch::try_new(log.arrow_schema(), columns).unwrap();
    Alignment::new(&path(), log, lake)?.apply(&batch, position(40))
}

#[test]
fn columns_are_found_by_name_and_new_ones_padded() {
    let log = log(&[
        ("b", LogicalType::nullable(TypeKind::String)),
        ("a", LogicalType::not_null(TypeKind::Int)),
    ]);
    let lake = lake(&[
        ("a", LakeKind::Int.not_null()),
        ("b", LakeKind::string().nullable()),
        ("c", LakeKind::BigInt.nullable()),
    ]);
    let b: ArrayRef = Arc::new(StringArray::from(vec![Some("x"), None]));
    let aligned = align(
        &log,
        &lake,
        vec![Arc::clone(&b), Arc::new(Int32Array::from(vec![1, 2]))],
    )
    .unwrap();
    assert_eq!(aligned.schema(), lake.arrow_schema());
    assert_eq!(
        aligned.column(0).as_primitive::<Int32Type>().values(),
        &[1, 2]
    );
    assert_eq!(aligned.column(1), &b);
    assert_eq!(aligned.column(2).null_count(), 2);
}

#[test]
fn a_column_that_the_lake_lacks_is_an_error() {
    let log = log(&[
        ("a", LogicalType::nullable(TypeKind::Int)),
        ("z", LogicalType::nullable(TypeKind::Int)),
    ]);
    let lake = lake(&[("a", LakeKind::Int.nullable())]);
    let error = Alignment::new(&path(), &log, &lake).unwrap_err();
    assert!(
        matches!(&error, Error::Schema { column, .. } if column == "z"),
        "{error}"
    );
}

#[test]
fn a_column_that_only_the_lake_demands_is_an_error() {
    let log = log(&[("a", LogicalType::nullable(TypeKind::Int))]);
    let lake = lake(&[
        ("a", LakeKind::Int.nullable()),
        ("b", LakeKind::Int.not_null()),
    ]);
    let error = Alignment::new(&path(), &log, &lake).unwrap_err();
    assert!(
        matches!(&error, Error::Schema { column, .. } if column == "b"),
        "{error}"
    );
}

#[test]
fn fc_015_a_null_that_the_lake_forbids_is_named_with_its_offset() {
    let log = log(&[("a", LogicalType::nullable(TypeKind::Int))]);
    let lake = lake(&[("a", LakeKind::Int.not_null())]);
    let column = Arc::new(Int32Array::from(vec![Some(1), Some(2), None]));
    let error = align(&log, &lake, vec![column]).unwrap_err();
    let Error::Column { column, offset, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((column.as_str(), offset), ("a", LogOffset(42)));
}

#[test]
fn system_columns_are_filled_last() {
    let log = log(&[("a", LogicalType::nullable(TypeKind::Int))]);
    let lake = lake(&[
        ("a", LakeKind::Int.nullable()),
        ("__bucket", LakeKind::Int.nullable()),
        ("__offset", LakeKind::BigInt.nullable()),
        (
            "__timestamp",
            LakeKind::TimestampLtz { precision: 6 }.nullable(),
        ),
    ]);
    assert!(has_system_columns(&lake));
    let aligned = align(&log, &lake, vec![Arc::new(Int32Array::from(vec![1, 2]))]).unwrap();
    assert_eq!(
        aligned.column(1).as_primitive::<Int32Type>().values(),
        &[2, 2]
    );
    assert_eq!(
        aligned.column(2).as_primitive::<Int64Type>().values(),
        &[40, 41]
    );
    let times = aligned.column(3).as_primitive::<TimestampMicrosecondType>();
    assert_eq!(times.values(), &[5_000_000, 5_000_000]);
}

#[test]
fn values_keep_their_meaning_where_the_lakes_type_has_another_form() {
    let log = log(&[
        (
            "fixed",
            LogicalType::nullable(TypeKind::Binary { length: 2 }),
        ),
        (
            "time",
            LogicalType::nullable(TypeKind::Time { precision: 6 }),
        ),
        (
            "seconds",
            LogicalType::nullable(TypeKind::Timestamp { precision: 0 }),
        ),
        (
            "zoned",
            LogicalType::nullable(TypeKind::TimestampLtz { precision: 6 }),
        ),
    ]);
    let lake = lake(&[
        ("fixed", LakeKind::Binary { length: 2 }.nullable()),
        ("time", LakeKind::Time { precision: 0 }.nullable()),
        ("seconds", LakeKind::Timestamp { precision: 0 }.nullable()),
        ("zoned", LakeKind::TimestampLtz { precision: 6 }.nullable()),
    ]);
    let micros = TimestampMicrosecondArray::from(vec![1_700_000_000_000_001]);
    let shared = micros.values().inner().as_ptr();
    let aligned = align(
        &log,
        &lake,
        vec![
            Arc::new(FixedSizeBinaryArray::try_from_iter([[1_u8, 2]].iter()).unwrap()),
            Arc::new(Time64MicrosecondArray::from(vec![3_723_004_005])),
            Arc::new(TimestampSecondArray::from(vec![-1])),
            Arc::new(micros),
        ],
    )
    .unwrap();
    assert_eq!(aligned.column(0).as_binary::<i32>().value(0), [1, 2]);
    let time = aligned
        .column(1)
        .as_primitive::<arrow::datatypes::Time32MillisecondType>();
    assert_eq!(time.value(0), 3_723_004);
    let seconds = aligned.column(2).as_primitive::<TimestampMillisecondType>();
    assert_eq!(seconds.value(0), -1_000);
    let zoned = aligned.column(3).as_primitive::<TimestampMicrosecondType>();
    assert_eq!(zoned.value(0), 1_700_000_000_000_001);
    assert_eq!(
        zoned.values().inner().as_ptr(),
        shared,
        "a zone is only a name: nothing is copied"
    );
}

#[test]
fn nested_values_keep_their_buffers_under_the_lakes_names() {
    let list = LogicalType::nullable(TypeKind::Array(Box::new(LogicalType::nullable(
        TypeKind::Int,
    ))));
    let map = LogicalType::nullable(TypeKind::Map(
        Box::new(LogicalType::not_null(TypeKind::String)),
        Box::new(LogicalType::nullable(TypeKind::Int)),
    ));
    let log = log(&[("l", list), ("m", map)]);
    let lake = lake(&[
        (
            "l",
            LakeKind::Array(Box::new(LakeKind::Int.nullable())).nullable(),
        ),
        (
            "m",
            LakeKind::Map(
                Box::new(LakeKind::string().not_null()),
                Box::new(LakeKind::Int.nullable()),
            )
            .nullable(),
        ),
    ]);
    let mut lists = ListBuilder::new(Int32Builder::new()).with_field(Field::new(
        "element",
        DataType::Int32,
        true,
    ));
    lists.append_value([Some(1), None]);
    lists.append_null();
    let names = arrow::array::MapFieldNames {
        entry: "entries".to_owned(),
        key: "key".to_owned(),
        value: "value".to_owned(),
    };
    let mut maps = MapBuilder::new(Some(names), StringBuilder::new(), Int32Builder::new());
    maps.keys().append_value("k");
    maps.values().append_value(7);
    maps.append(true).unwrap();
    maps.append(false).unwrap();
    let aligned = align(
        &log,
        &lake,
        vec![Arc::new(lists.finish()), Arc::new(maps.finish())],
    )
    .unwrap();
    assert_eq!(aligned.schema(), lake.arrow_schema());
    assert_eq!(
        (
            aligned.column(0).null_count(),
            aligned.column(1).null_count()
        ),
        (1, 1)
    );
    let values = aligned.column(0).as_list::<i32>().value(0);
    assert_eq!(values.as_primitive::<Int32Type>().value(0), 1);
}

#[test]
fn types_that_differ_are_refused() {
    let log = log(&[("a", LogicalType::nullable(TypeKind::BigInt))]);
    let lake = lake(&[("a", LakeKind::Int.nullable())]);
    let error = align(&log, &lake, vec![Arc::new(Int64Array::from(vec![1]))]).unwrap_err();
    assert!(matches!(error, Error::Schema { .. }), "{error}");
}

#[test]
fn fc_020_values_fit_a_column_that_the_lake_has_widened() {
    let decimal = |precision| TypeKind::Decimal {
        precision,
        scale: 2,
    };
    let log = log(&[
        ("d", LogicalType::nullable(decimal(10))),
        ("i", LogicalType::nullable(TypeKind::Int)),
    ]);
    let wide = LakeKind::Decimal {
        precision: 20,
        scale: 2,
    };
    let lake = lake(&[("d", wide.nullable()), ("i", LakeKind::BigInt.nullable())]);
    let decimals = arrow::array::Decimal128Array::from(vec![Some(125), None]);
    let decimals = decimals.with_precision_and_scale(10, 2).unwrap();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(decimals),
        Arc::new(Int32Array::from(vec![Some(7), None])),
    ];
    let aligned = align(&log, &lake, columns).unwrap();
    assert_eq!(aligned.column(0).data_type(), &DataType::Decimal128(20, 2));
    assert_eq!(
        aligned.column(0).as_primitive::<Decimal128Type>().value(0),
        125
    );
    assert_eq!(aligned.column(1).as_primitive::<Int64Type>().value(0), 7);
    assert_eq!(
        (
            aligned.column(0).null_count(),
            aligned.column(1).null_count()
        ),
        (1, 1)
    );
}
