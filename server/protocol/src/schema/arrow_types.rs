//! The Arrow form of schemas and types: the layout of log batches (fluss `ArrowUtils`).

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema as ArrowSchema, SchemaRef, TimeUnit};

use super::{Column, LogicalType, RowField, Schema, TypeKind};
use crate::error::{Error, Result};

impl LogicalType {
    /// The Arrow type of values of this type in log batches. Both kinds of timestamp have no zone;
    /// the unit is the coarsest that holds the precision.
    pub fn arrow_type(&self) -> DataType {
        match &self.kind {
            TypeKind::Boolean => DataType::Boolean,
            TypeKind::TinyInt => DataType::Int8,
            TypeKind::SmallInt => DataType::Int16,
            TypeKind::Int => DataType::Int32,
            TypeKind::BigInt => DataType::Int64,
            TypeKind::Float => DataType::Float32,
            TypeKind::Double => DataType::Float64,
            TypeKind::Decimal { precision, scale } => {
                // A scale is at most 38, so the cast is exact.
                DataType::Decimal128(*precision, i8::try_from(*scale).unwrap_or(i8::MAX))
            }
            TypeKind::Char { .. } | TypeKind::String => DataType::Utf8,
            TypeKind::Binary { length } => DataType::FixedSizeBinary(*length),
            TypeKind::Bytes => DataType::Binary,
            TypeKind::Date => DataType::Date32,
            TypeKind::Time { precision } => match time_unit(*precision) {
                unit @ (TimeUnit::Second | TimeUnit::Millisecond) => DataType::Time32(unit),
                unit => DataType::Time64(unit),
            },
            TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } => {
                DataType::Timestamp(time_unit(*precision), None)
            }
            TypeKind::Array(element) => DataType::List(Arc::new(element.arrow_field("element"))),
            TypeKind::Map(key, value) => {
                let key = Field::new("key", key.arrow_type(), false);
                let entries = Fields::from(vec![key, value.arrow_field("value")]);
                DataType::Map(
                    Arc::new(Field::new("entries", DataType::Struct(entries), false)),
                    false,
                )
            }
            TypeKind::Row(fields) => DataType::Struct(
                fields
                    .iter()
                    .map(|field| field.ty.arrow_field(&field.name))
                    .collect(),
            ),
        }
    }

    /// The Arrow field of this name, type and nullability.
    pub fn arrow_field(&self, name: &str) -> Field {
        Field::new(name, self.arrow_type(), self.nullable)
    }

    /// The type whose values an Arrow field holds. Timestamps with a zone become TIMESTAMP_LTZ;
    /// large, view and dictionary forms become the plain type, so arrays may need a cast to
    /// [`LogicalType::arrow_type`].
    ///
    /// # Errors
    /// [`Error::UnsupportedType`] for Arrow types without a counterpart (unsigned, 256-bit,
    /// interval, union, …).
    pub fn from_arrow(field: &Field) -> Result<Self> {
        Ok(Self {
            kind: kind_from_arrow(field.data_type())?,
            nullable: field.is_nullable(),
        })
    }
}

fn time_unit(precision: u8) -> TimeUnit {
    match precision {
        0 => TimeUnit::Second,
        1..=3 => TimeUnit::Millisecond,
        4..=6 => TimeUnit::Microsecond,
        _ => TimeUnit::Nanosecond,
    }
}

fn precision_of(unit: TimeUnit) -> u8 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    }
}

fn kind_from_arrow(data_type: &DataType) -> Result<TypeKind> {
    let unsupported = || Error::UnsupportedType {
        operation: "schema from arrow",
        type_name: data_type.to_string(),
    };
    Ok(match data_type {
        DataType::Boolean => TypeKind::Boolean,
        DataType::Int8 => TypeKind::TinyInt,
        DataType::Int16 => TypeKind::SmallInt,
        DataType::Int32 => TypeKind::Int,
        DataType::Int64 => TypeKind::BigInt,
        DataType::Float32 => TypeKind::Float,
        DataType::Float64 => TypeKind::Double,
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale) => TypeKind::Decimal {
            precision: *precision,
            scale: u8::try_from(*scale).map_err(|_| unsupported())?,
        },
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => TypeKind::String,
        DataType::FixedSizeBinary(length) => TypeKind::Binary { length: *length },
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => TypeKind::Bytes,
        DataType::Date32 => TypeKind::Date,
        DataType::Time32(unit) | DataType::Time64(unit) => TypeKind::Time {
            precision: precision_of(*unit),
        },
        DataType::Timestamp(unit, None) => TypeKind::Timestamp {
            precision: precision_of(*unit),
        },
        DataType::Timestamp(unit, Some(_)) => TypeKind::TimestampLtz {
            precision: precision_of(*unit),
        },
        DataType::List(element) | DataType::LargeList(element) => {
            TypeKind::Array(Box::new(LogicalType::from_arrow(element)?))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) => match fields.as_ref() {
                [key, value] => {
                    let key = LogicalType::not_null(kind_from_arrow(key.data_type())?);
                    TypeKind::Map(Box::new(key), Box::new(LogicalType::from_arrow(value)?))
                }
                _ => return Err(unsupported()),
            },
            _ => return Err(unsupported()),
        },
        DataType::Struct(fields) => {
            let field = |field: &Arc<Field>| {
                Ok(RowField::new(field.name(), LogicalType::from_arrow(field)?))
            };
            TypeKind::Row(fields.iter().map(field).collect::<Result<_>>()?)
        }
        DataType::Dictionary(_, value) => kind_from_arrow(value)?,
        _ => return Err(unsupported()),
    })
}

impl Schema {
    /// The Arrow schema of this schema's log batches. Builds it anew: callers keep it.
    pub fn arrow_schema(&self) -> SchemaRef {
        let fields: Fields = self
            .columns
            .iter()
            .map(|column| column.ty.arrow_field(&column.name))
            .collect();
        Arc::new(ArrowSchema::new(fields))
    }

    /// A schema without keys whose columns hold what an Arrow schema describes; see
    /// [`LogicalType::from_arrow`].
    ///
    /// # Errors
    /// [`Error::UnsupportedType`], and [`Error::Invalid`] for doubled names.
    pub fn from_arrow(arrow: &ArrowSchema) -> Result<Self> {
        let column =
            |field: &Arc<Field>| Ok(Column::new(field.name(), LogicalType::from_arrow(field)?));
        Self::new(
            arrow.fields().iter().map(column).collect::<Result<_>>()?,
            Vec::new(),
        )
    }
}
