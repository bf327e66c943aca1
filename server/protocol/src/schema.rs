//! Table schemas and their types.
//!
//! Source: fluss `Schema`, `DataType` and their JSON forms (`SchemaJsonSerde`, `ColumnJsonSerde`,
//! `DataTypeJsonSerde`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::error::{Error, Result};

mod arrow_types;
mod json;

#[cfg(test)]
mod tests;

pub(crate) use json::{SchemaDocument, texts, to_bytes};

/// The id of a column or row field that has none yet.
pub const UNASSIGNED_FIELD_ID: i32 = -1;

/// A type with its nullability.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogicalType {
    /// What values there are.
    pub kind: TypeKind,
    /// Whether null is one of them.
    pub nullable: bool,
}

/// What values a column has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TypeKind {
    /// true or false.
    Boolean,
    /// 8-bit signed.
    TinyInt,
    /// 16-bit signed.
    SmallInt,
    /// 32-bit signed.
    Int,
    /// 64-bit signed.
    BigInt,
    /// 32-bit IEEE 754.
    Float,
    /// 64-bit IEEE 754.
    Double,
    /// Exact decimal.
    Decimal {
        /// Digits in all, 1..=38.
        precision: u8,
        /// Digits after the point, 0..=precision.
        scale: u8,
    },
    /// Text of a fixed number of characters; never padded by this crate.
    Char {
        /// Characters, at least 1.
        length: i32,
    },
    /// Text.
    String,
    /// Bytes of a fixed length.
    Binary {
        /// Bytes, at least 1.
        length: i32,
    },
    /// Bytes of any length.
    Bytes,
    /// Days since 1970-01-01.
    Date,
    /// Time of day.
    Time {
        /// Fractional digits of a second, 0..=9.
        precision: u8,
    },
    /// Wall-clock time without a zone.
    Timestamp {
        /// Fractional digits of a second, 0..=9.
        precision: u8,
    },
    /// An instant, shown in the session's zone.
    TimestampLtz {
        /// Fractional digits of a second, 0..=9.
        precision: u8,
    },
    /// Elements of one type.
    Array(Box<LogicalType>),
    /// Keys (not null) and values.
    Map(Box<LogicalType>, Box<LogicalType>),
    /// Named fields.
    Row(Vec<RowField>),
}

/// A field of a ROW type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowField {
    /// Its name, unique in the row.
    pub name: String,
    /// Its type.
    pub ty: LogicalType,
    /// A comment.
    pub description: Option<String>,
    /// Unique in the schema, or [`UNASSIGNED_FIELD_ID`].
    pub field_id: i32,
}

impl LogicalType {
    /// The nullable type of this kind.
    pub fn nullable(kind: TypeKind) -> Self {
        Self {
            kind,
            nullable: true,
        }
    }

    /// The not-null type of this kind.
    pub fn not_null(kind: TypeKind) -> Self {
        Self {
            kind,
            nullable: false,
        }
    }

    /// Checks lengths, precisions and scales, and those of nested types.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the type at fault.
    pub fn validate(&self) -> Result<()> {
        self.kind.validate()
    }

    fn assign_ids(&mut self, last: &mut i32) {
        match &mut self.kind {
            TypeKind::Array(element) => element.assign_ids(last),
            TypeKind::Map(key, value) => {
                key.assign_ids(last);
                value.assign_ids(last);
            }
            TypeKind::Row(fields) => {
                for field in fields {
                    *last += 1;
                    field.field_id = *last;
                    field.ty.assign_ids(last);
                }
            }
            _ => {}
        }
    }

    fn visit_ids(&self, visit: &mut impl FnMut(i32)) {
        match &self.kind {
            TypeKind::Array(element) => element.visit_ids(visit),
            TypeKind::Map(key, value) => {
                key.visit_ids(visit);
                value.visit_ids(visit);
            }
            TypeKind::Row(fields) => {
                for field in fields {
                    visit(field.field_id);
                    field.ty.visit_ids(visit);
                }
            }
            _ => {}
        }
    }
}

impl TypeKind {
    fn validate(&self) -> Result<()> {
        let wrong = |reason| Err(Error::invalid("type", self.to_string(), reason));
        match self {
            Self::Decimal { precision, scale } => {
                if !(1..=38).contains(precision) {
                    return wrong("precision must be 1 to 38");
                }
                if scale > precision {
                    return wrong("scale must be 0 to precision");
                }
                Ok(())
            }
            Self::Char { length } | Self::Binary { length } if *length < 1 => {
                wrong("length must be at least 1")
            }
            Self::Time { precision }
            | Self::Timestamp { precision }
            | Self::TimestampLtz { precision }
                if *precision > 9 =>
            {
                wrong("precision must be 0 to 9")
            }
            Self::Array(element) => element.validate(),
            Self::Map(key, value) => {
                key.validate()?;
                value.validate()
            }
            Self::Row(fields) => {
                let mut names = BTreeSet::new();
                for field in fields {
                    if !names.insert(field.name.as_str()) {
                        return Err(Error::invalid(
                            "type",
                            field.name.as_str(),
                            "field occurs twice in a row",
                        ));
                    }
                    field.ty.validate()?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for TypeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean => f.write_str("BOOLEAN"),
            Self::TinyInt => f.write_str("TINYINT"),
            Self::SmallInt => f.write_str("SMALLINT"),
            Self::Int => f.write_str("INT"),
            Self::BigInt => f.write_str("BIGINT"),
            Self::Float => f.write_str("FLOAT"),
            Self::Double => f.write_str("DOUBLE"),
            Self::Decimal { precision, scale } => write!(f, "DECIMAL({precision}, {scale})"),
            Self::Char { length } => write!(f, "CHAR({length})"),
            Self::String => f.write_str("STRING"),
            Self::Binary { length } => write!(f, "BINARY({length})"),
            Self::Bytes => f.write_str("BYTES"),
            Self::Date => f.write_str("DATE"),
            Self::Time { precision } => write!(f, "TIME({precision})"),
            Self::Timestamp { precision } => write!(f, "TIMESTAMP({precision})"),
            Self::TimestampLtz { precision } => write!(f, "TIMESTAMP_LTZ({precision})"),
            Self::Array(element) => write!(f, "ARRAY<{element}>"),
            Self::Map(key, value) => write!(f, "MAP<{key}, {value}>"),
            Self::Row(fields) => {
                f.write_str("ROW<")?;
                for (index, field) in fields.iter().enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(f, "{comma}`{}` {}", field.name, field.ty)?;
                }
                f.write_str(">")
            }
        }
    }
}

impl fmt::Display for LogicalType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not_null = if self.nullable { "" } else { " NOT NULL" };
        write!(f, "{}{not_null}", self.kind)
    }
}

impl RowField {
    /// A field without description and id.
    pub fn new(name: impl Into<String>, ty: LogicalType) -> Self {
        Self {
            name: name.into(),
            ty,
            description: None,
            field_id: UNASSIGNED_FIELD_ID,
        }
    }
}

impl AsRef<LogicalType> for LogicalType {
    fn as_ref(&self) -> &LogicalType {
        self
    }
}

impl AsRef<LogicalType> for RowField {
    fn as_ref(&self) -> &LogicalType {
        &self.ty
    }
}

impl AsRef<LogicalType> for Column {
    fn as_ref(&self) -> &LogicalType {
        &self.ty
    }
}

/// How a primary-key table of the aggregation engine merges a column.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AggFunction {
    /// Its name in upper case, for instance `SUM` or `LISTAGG`; kept as it is when we do not know
    /// it.
    pub kind: String,
    /// Its parameters, for instance `delimiter`.
    pub parameters: BTreeMap<String, String>,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Column {
    /// Its name, unique in the table.
    pub name: String,
    /// Its type.
    pub ty: LogicalType,
    /// A comment.
    pub comment: Option<String>,
    /// How the aggregation engine merges it.
    pub agg_function: Option<AggFunction>,
    /// Unique in the schema (row fields included) and never used again, or [`UNASSIGNED_FIELD_ID`].
    pub id: i32,
}

impl Column {
    /// A column without comment, aggregation and id.
    pub fn new(name: impl Into<String>, ty: LogicalType) -> Self {
        Self {
            name: name.into(),
            ty,
            comment: None,
            agg_function: None,
            id: UNASSIGNED_FIELD_ID,
        }
    }
}

/// The columns of a table at one schema id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    /// The columns, in order.
    pub columns: Vec<Column>,
    /// Names of the primary key's columns, in key order; empty for a log table. They are never
    /// nullable.
    pub primary_key: Vec<String>,
    /// Names of the columns that the server numbers; at most one.
    pub auto_increment: Vec<String>,
    /// The highest id given so far to a column or row field, −1 without columns.
    pub highest_field_id: i32,
}

impl Schema {
    /// A schema of these columns: key columns become NOT NULL; ids are given depth first from 0 if
    /// no column has one.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad type, a name that occurs twice, a key column that is missing,
    /// or ids that are given twice or for some columns only.
    pub fn new(columns: Vec<Column>, primary_key: Vec<String>) -> Result<Self> {
        Self {
            columns,
            primary_key,
            auto_increment: Vec::new(),
            highest_field_id: UNASSIGNED_FIELD_ID,
        }
        .completed()
    }

    /// The index of the column with this name.
    pub fn column_index(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// The column with this name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The indexes of these columns, in the given order.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that is no column.
    pub fn column_indexes<N: AsRef<str>>(&self, names: &[N]) -> Result<Vec<usize>> {
        let find = |name: &N| {
            let name = name.as_ref();
            self.column_index(name)
                .ok_or_else(|| Error::invalid("schema", name, "no such column"))
        };
        names.iter().map(find).collect()
    }

    /// Whether rows have an identity.
    pub fn has_primary_key(&self) -> bool {
        !self.primary_key.is_empty()
    }

    /// This schema with one more column at the end; it and its row fields get the next ids.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that exists, a bad type, or a column that is not nullable.
    pub fn with_column_added(&self, mut column: Column) -> Result<Self> {
        if !column.ty.nullable {
            return Err(Error::invalid(
                "schema",
                column.name,
                "a column added later must be nullable",
            ));
        }
        let mut schema = self.clone();
        schema.highest_field_id += 1;
        column.id = schema.highest_field_id;
        column.ty.assign_ids(&mut schema.highest_field_id);
        schema.columns.push(column);
        schema.completed()
    }

    /// Fills what old documents lack and checks the whole.
    fn completed(mut self) -> Result<Self> {
        for name in &self.primary_key {
            let Some(column) = self.columns.iter_mut().find(|column| column.name == *name) else {
                return Err(Error::invalid(
                    "schema",
                    name.as_str(),
                    "primary key column is missing",
                ));
            };
            column.ty.nullable = false;
        }
        self.check_names()?;
        self.complete_ids()?;
        Ok(self)
    }

    fn check_names(&self) -> Result<()> {
        let mut names = BTreeSet::new();
        for column in &self.columns {
            if !names.insert(column.name.as_str()) {
                return Err(Error::invalid(
                    "schema",
                    column.name.as_str(),
                    "column occurs twice",
                ));
            }
            column.ty.validate()?;
        }
        let mut keys = BTreeSet::new();
        for name in &self.primary_key {
            if !keys.insert(name.as_str()) {
                return Err(Error::invalid(
                    "schema",
                    name.as_str(),
                    "column occurs twice in the primary key",
                ));
            }
        }
        for name in &self.auto_increment {
            if !names.contains(name.as_str()) {
                return Err(Error::invalid(
                    "schema",
                    name.as_str(),
                    "auto-increment column is missing",
                ));
            }
        }
        Ok(())
    }

    fn complete_ids(&mut self) -> Result<()> {
        let missing = self
            .columns
            .iter()
            .filter(|column| column.id == UNASSIGNED_FIELD_ID)
            .count();
        if missing == self.columns.len() {
            let mut last = UNASSIGNED_FIELD_ID;
            for column in &mut self.columns {
                last += 1;
                column.id = last;
                column.ty.assign_ids(&mut last);
            }
            self.highest_field_id = self.highest_field_id.max(last);
            return Ok(());
        }
        if missing > 0 {
            return Err(Error::invalid(
                "schema",
                "id",
                "either all columns have an id or none",
            ));
        }
        let mut highest = UNASSIGNED_FIELD_ID;
        let (mut ids, mut fault) = (BTreeSet::new(), None);
        let mut visit = |id: i32| {
            highest = highest.max(id);
            // Row fields of documents older than nested ids have none; those stay unassigned.
            if id != UNASSIGNED_FIELD_ID && (id < 0 || !ids.insert(id)) {
                fault = Some(id);
            }
        };
        for column in &self.columns {
            visit(column.id);
            column.ty.visit_ids(&mut visit);
        }
        if let Some(id) = fault {
            return Err(Error::invalid(
                "schema",
                id.to_string(),
                "field id is negative or occurs twice",
            ));
        }
        self.highest_field_id = self.highest_field_id.max(highest);
        Ok(())
    }
}
