//! The logical types of columns, with field ids, and the Arrow types they travel in.
//!
//! Their text, JSON and Arrow forms are in `text`, `json` and `arrow_form` below this module.

use serde::{Deserialize, Serialize};

mod arrow_form;
mod json;
mod text;

pub use arrow_form::arrow_schema;

/// Length that means "no limit": `STRING` is `VARCHAR(2147483647)`, `BYTES` is
/// `VARBINARY(2147483647)`.
pub const MAX_LENGTH: u32 = 2_147_483_647;

/// Deepest nesting of types that is read; deeper ones are refused.
pub const MAX_DEPTH: usize = 64;

/// Arrow metadata key by which Parquet writers and readers carry field ids.
pub const PARQUET_FIELD_ID: &str = "PARQUET:field_id";

/// A logical type: what it is, and whether null is a value of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DataType {
    /// What it is.
    pub kind: TypeKind,
    /// Whether it takes null.
    pub nullable: bool,
}

/// What a logical type is, apart from nullability.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TypeKind {
    /// True or false.
    Boolean,
    /// 8 bits, signed.
    TinyInt,
    /// 16 bits, signed.
    SmallInt,
    /// 32 bits, signed.
    Int,
    /// 64 bits, signed.
    BigInt,
    /// 32 bits IEEE.
    Float,
    /// 64 bits IEEE.
    Double,
    /// Exact decimal.
    Decimal {
        /// Digits, 1 to 38.
        precision: u8,
        /// Digits behind the point, 0 to `precision`.
        scale: u8,
    },
    /// Text of a fixed number of characters; files hold it unpadded.
    Char {
        /// Characters, from 1.
        length: u32,
    },
    /// Text; with [`MAX_LENGTH`] it is `STRING`.
    VarChar {
        /// Most characters, from 1.
        length: u32,
    },
    /// Bytes of a fixed length.
    Binary {
        /// Bytes, from 1.
        length: u32,
    },
    /// Bytes; with [`MAX_LENGTH`] it is `BYTES`.
    VarBinary {
        /// Most bytes, from 1.
        length: u32,
    },
    /// A day, counted from 1970-01-01.
    Date,
    /// A time of day, kept in milliseconds whatever the precision.
    Time {
        /// Digits of the second's fraction, 0 to 9.
        precision: u8,
    },
    /// A date and time without a zone.
    Timestamp {
        /// Digits of the second's fraction, 0 to 9.
        precision: u8,
    },
    /// An instant, shown in the reader's zone.
    TimestampLtz {
        /// Digits of the second's fraction, 0 to 9.
        precision: u8,
    },
    /// A list.
    Array(Box<DataType>),
    /// A map from elements to how often they occur.
    Multiset(Box<DataType>),
    /// A map, key then value.
    Map(Box<DataType>, Box<DataType>),
    /// A nested row.
    Row(Vec<DataField>),
}

/// A column of a table, or a field of a nested row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DataField {
    /// Its id: unique in a table for ever, nested rows included, from 0.
    pub id: i32,
    /// Its name in this schema.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub data_type: DataType,
    /// A comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The text of the value that readers fill in where a file has no such column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_value: Option<String>,
}

impl DataField {
    /// A field without comment and default.
    pub fn new(id: i32, name: impl Into<String>, data_type: DataType) -> Self {
        Self {
            id,
            name: name.into(),
            data_type,
            description: None,
            default_value: None,
        }
    }
}

impl TypeKind {
    /// This kind, taking null.
    pub fn nullable(self) -> DataType {
        DataType {
            kind: self,
            nullable: true,
        }
    }

    /// This kind, refusing null.
    pub fn not_null(self) -> DataType {
        DataType {
            kind: self,
            nullable: false,
        }
    }

    /// `STRING`.
    pub fn string() -> Self {
        Self::VarChar { length: MAX_LENGTH }
    }

    /// `BYTES`.
    pub fn bytes() -> Self {
        Self::VarBinary { length: MAX_LENGTH }
    }

    /// Whether it has parts: arrays, multisets, maps and rows.
    pub fn is_nested(&self) -> bool {
        matches!(
            self,
            Self::Array(_) | Self::Multiset(_) | Self::Map(..) | Self::Row(_)
        )
    }
}

impl DataType {
    /// The highest field id in this type, or `None` if it holds no nested row.
    pub fn highest_field_id(&self) -> Option<i32> {
        match &self.kind {
            TypeKind::Array(element) | TypeKind::Multiset(element) => element.highest_field_id(),
            TypeKind::Map(key, value) => key.highest_field_id().max(value.highest_field_id()),
            TypeKind::Row(fields) => fields.iter().map(DataField::highest_id).max(),
            _ => None,
        }
    }

    /// The same type with ids given to its nested fields depth first, from `next_id`, which moves
    /// on.
    pub fn with_field_ids(&self, next_id: &mut i32) -> Self {
        let kind = match &self.kind {
            TypeKind::Array(element) => TypeKind::Array(Box::new(element.with_field_ids(next_id))),
            TypeKind::Multiset(element) => {
                TypeKind::Multiset(Box::new(element.with_field_ids(next_id)))
            }
            TypeKind::Map(key, value) => {
                let key = key.with_field_ids(next_id);
                TypeKind::Map(Box::new(key), Box::new(value.with_field_ids(next_id)))
            }
            TypeKind::Row(fields) => TypeKind::Row(assign_field_ids(fields, next_id)),
            atomic => atomic.clone(),
        };
        Self {
            kind,
            nullable: self.nullable,
        }
    }
}

impl DataField {
    /// The highest id of this field and the fields nested in it.
    pub fn highest_id(&self) -> i32 {
        self.data_type
            .highest_field_id()
            .map_or(self.id, |nested| nested.max(self.id))
    }
}

/// Gives ids to `fields` depth first from `next_id`, which moves on: a field takes the next id,
/// then the fields nested in it take theirs.
pub fn assign_field_ids(fields: &[DataField], next_id: &mut i32) -> Vec<DataField> {
    fields
        .iter()
        .map(|field| {
            let id = *next_id;
            *next_id += 1;
            DataField {
                id,
                data_type: field.data_type.with_field_ids(next_id),
                ..field.clone()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests;
