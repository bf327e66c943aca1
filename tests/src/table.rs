//! Tables to create, and deterministic rows for columns of any type.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, FixedSizeBinaryArray,
    Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, ListArray, MapArray,
    RecordBatch, StringArray, StructArray, Time32MillisecondArray, Time32SecondArray,
    TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray,
    TimestampSecondArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::DataType;
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::TablePath;
use weir_protocol::schema::{Column, LogicalType, RowField, Schema, TypeKind};

/// A column of a nullable type.
pub fn column(name: &str, kind: TypeKind) -> Column {
    Column::new(name, LogicalType::nullable(kind))
}

/// A column that may not be null.
pub fn required(name: &str, kind: TypeKind) -> Column {
    Column::new(name, LogicalType::not_null(kind))
}

/// The path of a table in the default database.
pub fn path(table: &str) -> TablePath {
    TablePath::new("fluss", table)
}

/// A table with rows of two columns: `id BIGINT`, `name STRING`; tiered, 1 s of freshness.
pub fn plain() -> TableDescriptor {
    lake_table(vec![
        required("id", TypeKind::BigInt),
        column("name", TypeKind::String),
    ])
}

/// A tiered table of these columns, without partitions and bucket key.
pub fn lake_table(columns: Vec<Column>) -> TableDescriptor {
    let schema = Schema::new(columns, Vec::new()).expect("the schema is valid");
    let mut descriptor = TableDescriptor::new(schema);
    let properties = &mut descriptor.properties;
    properties.insert("table.datalake.enabled".to_owned(), "true".to_owned());
    properties.insert("table.datalake.freshness".to_owned(), "1s".to_owned());
    descriptor
}

/// The same table, partitioned by `keys`.
pub fn partitioned(mut table: TableDescriptor, keys: &[&str]) -> TableDescriptor {
    table.partition_keys = keys.iter().map(|key| (*key).to_owned()).collect();
    table
}

/// The same table with `count` buckets, chosen by `keys` (by the client without keys).
pub fn bucketed(mut table: TableDescriptor, count: i32, keys: &[&str]) -> TableDescriptor {
    table.bucket_keys = keys.iter().map(|key| (*key).to_owned()).collect();
    table.bucket_count = Some(count);
    table
}

/// The same table with one more property.
pub fn with(mut table: TableDescriptor, key: &str, value: &str) -> TableDescriptor {
    table.properties.insert(key.to_owned(), value.to_owned());
    table
}

/// A column of every type there is, most of them nullable; the first is `id BIGINT NOT NULL`.
pub fn every_type() -> Vec<Column> {
    let array = |kind| TypeKind::Array(Box::new(LogicalType::nullable(kind)));
    let map = |value| {
        let key = LogicalType::not_null(TypeKind::String);
        TypeKind::Map(Box::new(key), Box::new(LogicalType::nullable(value)))
    };
    let row = |fields: Vec<(&str, TypeKind)>| {
        let field = |(name, kind)| RowField::new(name, LogicalType::nullable(kind));
        TypeKind::Row(fields.into_iter().map(field).collect())
    };
    let inner = row(vec![("a", TypeKind::Int), ("b", TypeKind::String)]);
    let mut columns = vec![
        required("id", TypeKind::BigInt),
        column("c_boolean", TypeKind::Boolean),
        column("c_tinyint", TypeKind::TinyInt),
        column("c_smallint", TypeKind::SmallInt),
        column("c_int", TypeKind::Int),
        column("c_bigint", TypeKind::BigInt),
        column("c_float", TypeKind::Float),
        column("c_double", TypeKind::Double),
        column(
            "c_decimal_small",
            TypeKind::Decimal {
                precision: 9,
                scale: 2,
            },
        ),
        column(
            "c_decimal_large",
            TypeKind::Decimal {
                precision: 38,
                scale: 10,
            },
        ),
        column("c_char", TypeKind::Char { length: 12 }),
        column("c_string", TypeKind::String),
        column("c_binary", TypeKind::Binary { length: 4 }),
        column("c_bytes", TypeKind::Bytes),
        column("c_date", TypeKind::Date),
        column("c_time_0", TypeKind::Time { precision: 0 }),
        column("c_time_3", TypeKind::Time { precision: 3 }),
        column("c_array", array(TypeKind::Int)),
        column("c_map", map(TypeKind::BigInt)),
        column("c_row", inner.clone()),
        column("c_rows", array(inner)),
        column(
            "c_deep",
            map(array(TypeKind::Decimal {
                precision: 20,
                scale: 3,
            })),
        ),
        required("c_last", TypeKind::Int),
    ];
    for precision in [0, 3, 6, 9] {
        let name = format!("c_timestamp_{precision}");
        columns.push(column(&name, TypeKind::Timestamp { precision }));
        let name = format!("c_timestamp_ltz_{precision}");
        columns.push(column(&name, TypeKind::TimestampLtz { precision }));
    }
    columns
}

/// The rows numbered `numbers` of a schema: the same number always gives the same row. Nullable
/// columns are null now and then; `id` columns hold the number.
pub fn rows(schema: &Schema, numbers: Range<i64>) -> RecordBatch {
    let numbers: Vec<i64> = numbers.collect();
    let columns = schema.columns.iter().zip(0_i64..).map(|(column, salt)| {
        // Other numbers in each column, but the plain ones in `id`.
        let salt = if column.name == "id" { 0 } else { salt };
        let salted: Vec<i64> = numbers.iter().map(|number| number + salt).collect();
        array(&column.ty, &salted)
    });
    let columns = columns.collect();
    RecordBatch::try_new(schema.arrow_schema(), columns).expect("rows fit their own schema")
}

/// The rows numbered `numbers`, with `value` in the text column `name`, for a partition column.
pub fn rows_of(schema: &Schema, numbers: Range<i64>, name: &str, value: &str) -> RecordBatch {
    let batch = rows(schema, numbers);
    let index = schema.column_index(name).expect("the column exists");
    let mut columns = batch.columns().to_vec();
    columns[index] = Arc::new(StringArray::from(vec![value; batch.num_rows()]));
    RecordBatch::try_new(batch.schema(), columns).expect("the column is a text")
}

fn is_null(ty: &LogicalType, number: i64) -> bool {
    ty.nullable && number.rem_euclid(7) == 3
}

fn array(ty: &LogicalType, numbers: &[i64]) -> ArrayRef {
    macro_rules! primitive {
        ($array:ty, $value:expr) => {{
            let value = $value;
            let one = |number: &i64| (!is_null(ty, *number)).then(|| value(*number));
            Arc::new(numbers.iter().map(one).collect::<$array>()) as ArrayRef
        }};
    }
    match &ty.kind {
        TypeKind::Boolean => primitive!(BooleanArray, |n: i64| n % 2 == 0),
        TypeKind::TinyInt => primitive!(Int8Array, |n: i64| i8::try_from(n % 100).unwrap()),
        TypeKind::SmallInt => {
            primitive!(Int16Array, |n: i64| -small(n))
        }
        TypeKind::Int => primitive!(Int32Array, |n: i64| i32::try_from(n % 2_000_000).unwrap()),
        TypeKind::BigInt => primitive!(Int64Array, |n: i64| n),
        TypeKind::Float => primitive!(Float32Array, |n: i64| f32::from(small(n)) / 4.0),
        TypeKind::Double => primitive!(Float64Array, |n: i64| -f64::from(small(n)) / 8.0),
        TypeKind::Decimal { .. } => decimals(ty, numbers),
        TypeKind::Char { .. } | TypeKind::String => {
            primitive!(StringArray, |n: i64| format!("text {n} é"))
        }
        TypeKind::Binary { .. } => fixed_bytes(ty, numbers),
        TypeKind::Bytes => primitive!(BinaryArray, |n: i64| n.to_be_bytes().to_vec()),
        TypeKind::Date => primitive!(Date32Array, |n: i64| i32::try_from(n % 40_000).unwrap()),
        TypeKind::Time { .. } | TypeKind::Timestamp { .. } | TypeKind::TimestampLtz { .. } => {
            times(ty, numbers)
        }
        TypeKind::Array(element) => lists(ty, element, numbers),
        TypeKind::Map(key, value) => maps(ty, (key, value), numbers),
        TypeKind::Row(fields) => structs(ty, fields, numbers),
    }
}

fn small(number: i64) -> i16 {
    i16::try_from(number % 30_000).expect("it is small")
}

fn decimals(ty: &LogicalType, numbers: &[i64]) -> ArrayRef {
    let DataType::Decimal128(precision, scale) = ty.arrow_type() else {
        panic!("{ty:?} is no decimal")
    };
    let value = |n: i64| i128::from(n % 9_000_000) * if n % 2 == 0 { 1 } else { -1 };
    let one = |n: &i64| (!is_null(ty, *n)).then(|| value(*n));
    let array: Decimal128Array = numbers.iter().map(one).collect();
    Arc::new(
        array
            .with_precision_and_scale(precision, scale)
            .expect("the values fit"),
    )
}

fn fixed_bytes(ty: &LogicalType, numbers: &[i64]) -> ArrayRef {
    let TypeKind::Binary { length } = ty.kind else {
        panic!("{ty:?} is no binary")
    };
    let size = usize::try_from(length).expect("a length");
    let value = |n: i64| -> Vec<u8> { n.to_be_bytes().into_iter().cycle().take(size).collect() };
    let values = numbers
        .iter()
        .map(|n| (!is_null(ty, *n)).then(|| value(*n)));
    let array = FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, length);
    Arc::new(array.expect("all values have the size"))
}

fn times(ty: &LogicalType, numbers: &[i64]) -> ArrayRef {
    use arrow::datatypes::TimeUnit as U;
    // Some before 1970.
    let seconds = |n: i64| n * 86_399 - 5_000_000;
    let of_day = |n: i64| i32::try_from((n * 61).rem_euclid(86_400)).expect("below a day");
    macro_rules! build {
        ($array:ty, $value:expr) => {{
            let value = $value;
            let one = |n: &i64| (!is_null(ty, *n)).then(|| value(*n));
            Arc::new(numbers.iter().map(one).collect::<$array>()) as ArrayRef
        }};
    }
    match ty.arrow_type() {
        DataType::Time32(U::Second) => build!(Time32SecondArray, of_day),
        DataType::Time32(U::Millisecond) => {
            build!(Time32MillisecondArray, |n: i64| of_day(n) * 1_000 + 123)
        }
        DataType::Timestamp(U::Second, _) => build!(TimestampSecondArray, seconds),
        DataType::Timestamp(U::Millisecond, _) => {
            build!(TimestampMillisecondArray, |n: i64| seconds(n) * 1_000 + 123)
        }
        DataType::Timestamp(U::Microsecond, _) => {
            build!(TimestampMicrosecondArray, |n: i64| seconds(n) * 1_000_000
                + 123_456)
        }
        DataType::Timestamp(U::Nanosecond, _) => {
            build!(TimestampNanosecondArray, |n: i64| seconds(n)
                * 1_000_000_000
                + 123_456_789)
        }
        other => panic!("no values for {other}"),
    }
}

/// Lengths 0, 1 and 2 in turn; null lists are empty. The numbers of all elements, and the offsets.
fn children(ty: &LogicalType, numbers: &[i64]) -> (Vec<i64>, OffsetBuffer<i32>, NullBuffer) {
    let mut elements = Vec::new();
    let mut lengths = Vec::new();
    for number in numbers {
        let length = if is_null(ty, *number) {
            0
        } else {
            number.rem_euclid(3)
        };
        elements.extend((0..length).map(|place| number * 10 + place));
        lengths.push(usize::try_from(length).expect("a length"));
    }
    let offsets = OffsetBuffer::from_lengths(lengths);
    (elements, offsets, valid(ty, numbers))
}

fn valid(ty: &LogicalType, numbers: &[i64]) -> NullBuffer {
    numbers
        .iter()
        .map(|number| !is_null(ty, *number))
        .collect::<Vec<bool>>()
        .into()
}

fn lists(ty: &LogicalType, element: &LogicalType, numbers: &[i64]) -> ArrayRef {
    let DataType::List(field) = ty.arrow_type() else {
        panic!("{ty:?} is no array")
    };
    let (elements, offsets, nulls) = children(ty, numbers);
    Arc::new(ListArray::new(
        field,
        offsets,
        array(element, &elements),
        Some(nulls),
    ))
}

fn maps(ty: &LogicalType, (key, value): (&LogicalType, &LogicalType), numbers: &[i64]) -> ArrayRef {
    let DataType::Map(field, ordered) = ty.arrow_type() else {
        panic!("{ty:?} is no map")
    };
    let DataType::Struct(fields) = field.data_type() else {
        panic!("entries are structs")
    };
    let (elements, offsets, nulls) = children(ty, numbers);
    let columns = vec![array(key, &elements), array(value, &elements)];
    let entries = StructArray::new(fields.clone(), columns, None);
    Arc::new(MapArray::new(
        Arc::clone(&field),
        offsets,
        entries,
        Some(nulls),
        ordered,
    ))
}

fn structs(ty: &LogicalType, fields: &[RowField], numbers: &[i64]) -> ArrayRef {
    let DataType::Struct(arrow_fields) = ty.arrow_type() else {
        panic!("{ty:?} is no row")
    };
    let columns = fields.iter().zip(0_i64..).map(|(field, salt)| {
        let salted: Vec<i64> = numbers.iter().map(|number| number + salt).collect();
        array(&field.ty, &salted)
    });
    Arc::new(StructArray::new(
        arrow_fields,
        columns.collect(),
        Some(valid(ty, numbers)),
    ))
}
