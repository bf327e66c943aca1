//! The Parquet schema of data files, chosen so that the oldest reader in use reads them
//! (paimon: `ParquetSchemaConverter`).

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use parquet::arrow::PARQUET_FIELD_ID_META_KEY;
use parquet::basic::{LogicalType, Repetition, TimeUnit as ParquetUnit, Type as PhysicalType};
use parquet::errors::{ParquetError, Result};
use parquet::schema::types::{Type, TypePtr};

/// Name of the root, as the reference writes it.
const ROOT: &str = "paimon_schema";

/// The message type of a file with the columns of `schema`.
///
/// Differs from what the `parquet` crate makes of an Arrow schema in three places: timestamps in
/// nanoseconds are INT96 (Java reads no INT64 nanoseconds), `DECIMAL(1, s)` is INT32 like all
/// decimals up to precision 9, and times are adjusted to UTC.
///
/// # Errors
/// If a column has an Arrow type that lake tables don't have; the message names it.
pub(crate) fn parquet_schema(schema: &Schema) -> Result<TypePtr> {
    let fields = schema
        .fields()
        .iter()
        .map(|field| parquet_type(field).map(Arc::new));
    let fields = fields.collect::<Result<Vec<_>>>()?;
    Type::group_type_builder(ROOT)
        .with_fields(fields)
        .build()
        .map(Arc::new)
}

/// Whether a leaf of this Arrow type is stored as INT96.
pub(crate) fn is_int96(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Timestamp(TimeUnit::Nanosecond, _))
}

fn parquet_type(field: &Field) -> Result<Type> {
    let name = field.name().as_str();
    let id = field_id(field)?;
    match field.data_type() {
        DataType::List(element) => {
            let repeated = Type::group_type_builder("list")
                .with_fields(vec![Arc::new(parquet_type(element)?)])
                .with_repetition(Repetition::REPEATED)
                .build()?;
            Type::group_type_builder(name)
                .with_fields(vec![Arc::new(repeated)])
                .with_logical_type(Some(LogicalType::List))
                .with_repetition(repetition(field))
                .with_id(id)
                .build()
        }
        DataType::Map(entries, _) => {
            let DataType::Struct(parts) = entries.data_type() else {
                return Err(unsupported(field));
            };
            let parts = parts.iter().map(|part| parquet_type(part).map(Arc::new));
            let repeated = Type::group_type_builder("key_value")
                .with_fields(parts.collect::<Result<_>>()?)
                .with_repetition(Repetition::REPEATED)
                .build()?;
            Type::group_type_builder(name)
                .with_fields(vec![Arc::new(repeated)])
                .with_logical_type(Some(LogicalType::Map))
                .with_repetition(repetition(field))
                .with_id(id)
                .build()
        }
        DataType::Struct(fields) => {
            let fields = fields.iter().map(|field| parquet_type(field).map(Arc::new));
            Type::group_type_builder(name)
                .with_fields(fields.collect::<Result<_>>()?)
                .with_repetition(repetition(field))
                .with_id(id)
                .build()
        }
        _ => leaf_type(field, id),
    }
}

fn leaf_type(field: &Field, id: Option<i32>) -> Result<Type> {
    let (physical, logical) = match field.data_type() {
        DataType::Boolean => (PhysicalType::BOOLEAN, None),
        DataType::Int8 => (PhysicalType::INT32, Some(LogicalType::integer(8, true))),
        DataType::Int16 => (PhysicalType::INT32, Some(LogicalType::integer(16, true))),
        DataType::Int32 => (PhysicalType::INT32, None),
        DataType::Int64 => (PhysicalType::INT64, None),
        DataType::Float32 => (PhysicalType::FLOAT, None),
        DataType::Float64 => (PhysicalType::DOUBLE, None),
        DataType::Utf8 => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
        DataType::Binary => (PhysicalType::BYTE_ARRAY, None),
        DataType::Date32 => (PhysicalType::INT32, Some(LogicalType::Date)),
        DataType::Time32(TimeUnit::Millisecond) => (
            PhysicalType::INT32,
            Some(LogicalType::time(true, ParquetUnit::MILLIS)),
        ),
        DataType::Timestamp(unit, zone) => match unit {
            TimeUnit::Millisecond => {
                let logical = LogicalType::timestamp(zone.is_some(), ParquetUnit::MILLIS);
                (PhysicalType::INT64, Some(logical))
            }
            TimeUnit::Microsecond => {
                let logical = LogicalType::timestamp(zone.is_some(), ParquetUnit::MICROS);
                (PhysicalType::INT64, Some(logical))
            }
            TimeUnit::Nanosecond => (PhysicalType::INT96, None),
            TimeUnit::Second => return Err(unsupported(field)),
        },
        DataType::Decimal128(precision, scale) => {
            return decimal_type(field, id, i32::from(*precision), i32::from(*scale));
        }
        _ => return Err(unsupported(field)),
    };
    Type::primitive_type_builder(field.name(), physical)
        .with_repetition(repetition(field))
        .with_logical_type(logical)
        .with_id(id)
        .build()
}

fn decimal_type(field: &Field, id: Option<i32>, precision: i32, scale: i32) -> Result<Type> {
    let (physical, length) = match precision {
        ..=9 => (PhysicalType::INT32, -1),
        10..=18 => (PhysicalType::INT64, -1),
        _ => (
            PhysicalType::FIXED_LEN_BYTE_ARRAY,
            decimal_length(precision),
        ),
    };
    Type::primitive_type_builder(field.name(), physical)
        .with_repetition(repetition(field))
        .with_logical_type(Some(LogicalType::decimal(scale, precision)))
        .with_precision(precision)
        .with_scale(scale)
        .with_length(length)
        .with_id(id)
        .build()
}

/// The fewest bytes that hold every signed number of `precision` decimal digits.
fn decimal_length(precision: i32) -> i32 {
    let largest = 10_u128.pow(precision.clamp(1, 38).unsigned_abs()) - 1;
    let bits = u128::BITS - largest.leading_zeros() + 1;
    bits.div_ceil(8).cast_signed()
}

fn repetition(field: &Field) -> Repetition {
    if field.is_nullable() {
        Repetition::OPTIONAL
    } else {
        Repetition::REQUIRED
    }
}

fn field_id(field: &Field) -> Result<Option<i32>> {
    let Some(id) = field.metadata().get(PARQUET_FIELD_ID_META_KEY) else {
        return Ok(None);
    };
    let parsed = id.parse();
    parsed.map(Some).map_err(|_| {
        ParquetError::General(format!(
            "column `{}`: field id `{id}` is no number",
            field.name()
        ))
    })
}

fn unsupported(field: &Field) -> ParquetError {
    let (name, data_type) = (field.name(), field.data_type());
    ParquetError::NYI(format!(
        "column `{name}`: lake tables have no Arrow type {data_type}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::Fields;
    use parquet::schema::printer::print_schema;

    fn printed(field: Field) -> String {
        let mut out = Vec::new();
        print_schema(
            &mut out,
            &parquet_schema(&Schema::new(vec![field])).unwrap(),
        );
        let text = String::from_utf8(out).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn leaves_get_the_physical_types_of_the_reference() {
        let utc = || Some("UTC".into());
        for (data_type, expected) in [
            (DataType::Int8, "INT32 c (INTEGER(8,true))"),
            (DataType::Decimal128(1, 0), "INT32 c (DECIMAL(1,0))"),
            (DataType::Decimal128(9, 2), "INT32 c (DECIMAL(9,2))"),
            (DataType::Decimal128(18, 2), "INT64 c (DECIMAL(18,2))"),
            (
                DataType::Decimal128(19, 2),
                "FIXED_LEN_BYTE_ARRAY (9) c (DECIMAL(19,2))",
            ),
            (
                DataType::Decimal128(38, 2),
                "FIXED_LEN_BYTE_ARRAY (16) c (DECIMAL(38,2))",
            ),
            (DataType::Utf8, "BYTE_ARRAY c (STRING)"),
            (DataType::Binary, "BYTE_ARRAY c"),
            (
                DataType::Time32(TimeUnit::Millisecond),
                "INT32 c (TIME(MILLIS,true))",
            ),
            (
                DataType::Timestamp(TimeUnit::Millisecond, None),
                "INT64 c (TIMESTAMP(MILLIS,false))",
            ),
            (
                DataType::Timestamp(TimeUnit::Microsecond, utc()),
                "INT64 c (TIMESTAMP(MICROS,true))",
            ),
            (DataType::Timestamp(TimeUnit::Nanosecond, None), "INT96 c"),
            (DataType::Timestamp(TimeUnit::Nanosecond, utc()), "INT96 c"),
        ] {
            let text = printed(Field::new("c", data_type, true));
            assert_eq!(
                text,
                format!("message paimon_schema {{ OPTIONAL {expected}; }}")
            );
        }
    }

    #[test]
    fn parts_of_lists_and_maps_have_the_standard_names() {
        let element = Arc::new(Field::new("element", DataType::Int32, true));
        let text = printed(Field::new("c", DataType::List(element), false));
        let list = "REQUIRED group c (LIST) { REPEATED group list { OPTIONAL INT32 element; } }";
        assert_eq!(text, format!("message paimon_schema {{ {list} }}"));
        let parts = Fields::from(vec![
            Field::new("key", DataType::Int32, false),
            Field::new("value", DataType::Int64, true),
        ]);
        let entries = Arc::new(Field::new("entries", DataType::Struct(parts), false));
        let text = printed(Field::new("c", DataType::Map(entries, false), true));
        let map = "OPTIONAL group c (MAP) { REPEATED group key_value \
                   { REQUIRED INT32 key; OPTIONAL INT64 value; } }";
        assert_eq!(text, format!("message paimon_schema {{ {map} }}"));
    }

    #[test]
    fn a_type_that_lake_tables_do_not_have_is_an_error_that_names_the_column() {
        let error = parquet_type(&Field::new("c", DataType::UInt8, true)).unwrap_err();
        assert!(error.to_string().contains("`c`"), "{error}");
    }
}
