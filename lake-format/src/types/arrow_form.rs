//! The Arrow types that columns travel in, chosen so that Parquet files get the physical types
//! every reader knows (paimon: `ParquetSchemaConverter`).

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType as ArrowType, Field, Fields, Schema, SchemaRef, TimeUnit};

use super::{DataField, DataType, PARQUET_FIELD_ID, TypeKind};

/// Base of the field ids that nested parts without an id of their own get in Parquet files.
const NESTED_ID_BASE: i32 = 536_870_911;

/// The zone of `TIMESTAMP WITH LOCAL TIME ZONE` columns: instants are kept in UTC.
const UTC: &str = "UTC";

/// The place of a type inside a column, for the ids of its nameless parts.
#[derive(Clone, Copy)]
struct Place {
    column_id: i32,
    depth: i32,
}

impl Place {
    fn deeper(self) -> Self {
        Self {
            depth: self.depth + 1,
            ..self
        }
    }

    fn offset(self) -> i32 {
        self.column_id.wrapping_mul(1024).wrapping_add(self.depth)
    }

    fn element_id(self) -> i32 {
        NESTED_ID_BASE.wrapping_add(self.offset())
    }

    fn key_id(self) -> i32 {
        NESTED_ID_BASE.wrapping_sub(self.offset())
    }
}

impl DataType {
    /// The Arrow type of a column of this type in lake files.
    ///
    /// Binary types are `Binary`, also `BINARY(n)`; times are `Time32(ms)`; timestamps are in
    /// milliseconds up to precision 3, microseconds up to 6, nanoseconds above (which lake files
    /// hold as INT96); zoned ones carry `UTC`; list children are named `element`, map entries
    /// `key_value` of `key` and `value`.
    pub fn arrow_type(&self) -> ArrowType {
        self.arrow_type_at(Place {
            column_id: 0,
            depth: 0,
        })
    }

    fn arrow_type_at(&self, place: Place) -> ArrowType {
        match &self.kind {
            TypeKind::Boolean => ArrowType::Boolean,
            TypeKind::TinyInt => ArrowType::Int8,
            TypeKind::SmallInt => ArrowType::Int16,
            TypeKind::Int => ArrowType::Int32,
            TypeKind::BigInt => ArrowType::Int64,
            TypeKind::Float => ArrowType::Float32,
            TypeKind::Double => ArrowType::Float64,
            TypeKind::Decimal { precision, scale } => {
                ArrowType::Decimal128(*precision, i8::try_from(*scale).unwrap_or(i8::MAX))
            }
            TypeKind::Char { .. } | TypeKind::VarChar { .. } => ArrowType::Utf8,
            TypeKind::Binary { .. } | TypeKind::VarBinary { .. } => ArrowType::Binary,
            TypeKind::Date => ArrowType::Date32,
            TypeKind::Time { .. } => ArrowType::Time32(TimeUnit::Millisecond),
            TypeKind::Timestamp { precision } => ArrowType::Timestamp(time_unit(*precision), None),
            TypeKind::TimestampLtz { precision } => {
                ArrowType::Timestamp(time_unit(*precision), Some(UTC.into()))
            }
            TypeKind::Array(element) => ArrowType::List(part(element, "element", place.deeper())),
            TypeKind::Multiset(element) => {
                let count = TypeKind::Int.not_null();
                map_type(element, &count, place.deeper())
            }
            TypeKind::Map(key, value) => map_type(key, value, place.deeper()),
            TypeKind::Row(fields) => ArrowType::Struct(
                fields
                    .iter()
                    .map(DataField::arrow_field)
                    .collect::<Fields>(),
            ),
        }
    }
}

impl DataField {
    /// The Arrow field of this column in lake files, its id under [`PARQUET_FIELD_ID`].
    pub fn arrow_field(&self) -> Field {
        let place = Place {
            column_id: self.id,
            depth: 0,
        };
        let data_type = self.data_type.arrow_type_at(place);
        with_id(
            Field::new(&self.name, data_type, self.data_type.nullable),
            self.id,
        )
    }
}

/// The Arrow schema of columns in lake files.
pub fn arrow_schema(fields: &[DataField]) -> SchemaRef {
    Arc::new(Schema::new(
        fields
            .iter()
            .map(DataField::arrow_field)
            .collect::<Fields>(),
    ))
}

fn time_unit(precision: u8) -> TimeUnit {
    match precision {
        0..=3 => TimeUnit::Millisecond,
        4..=6 => TimeUnit::Microsecond,
        _ => TimeUnit::Nanosecond,
    }
}

fn part(data_type: &DataType, name: &str, place: Place) -> Arc<Field> {
    let field = Field::new(name, data_type.arrow_type_at(place), data_type.nullable);
    Arc::new(with_id(field, place.element_id()))
}

fn map_type(key: &DataType, value: &DataType, place: Place) -> ArrowType {
    let key_field = Field::new("key", key.arrow_type_at(place), false);
    let entries = Fields::from(vec![
        Arc::new(with_id(key_field, place.key_id())),
        part(value, "value", place),
    ]);
    ArrowType::Map(
        Arc::new(Field::new("key_value", ArrowType::Struct(entries), false)),
        false,
    )
}

fn with_id(field: Field, id: i32) -> Field {
    field.with_metadata(HashMap::from([(
        PARQUET_FIELD_ID.to_owned(),
        id.to_string(),
    )]))
}
