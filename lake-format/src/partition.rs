//! Partition values: as typed values, as bytes in manifests, as folder names.
//!
//! Folder names lose the difference between null and blank text, so values are never read from
//! them.

use std::fmt::Write as _;

use crate::binary_row::BinaryRow;
use crate::datum::Datum;
use crate::error::Result;
use crate::options::{Names, TableOptions};
use crate::schema::TableSchema;
use crate::types::{DataField, DataType, TypeKind};

pub(crate) mod text;

/// The values of a table's partition columns, in the order of its partition keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    values: Vec<Datum>,
    row: BinaryRow,
}

impl Partition {
    /// The one partition of an unpartitioned table.
    pub fn unpartitioned() -> Self {
        Self {
            values: Vec::new(),
            row: BinaryRow::empty(),
        }
    }

    /// A partition of a table of `schema`.
    ///
    /// # Errors
    /// [`Error::BadValue`] if the values are not one of its type per partition key.
    pub fn new(values: Vec<Datum>, schema: &TableSchema) -> Result<Self> {
        let row = BinaryRow::encode(&values, types_of(&schema.partition_fields()?).into_iter())?;
        Ok(Self { values, row })
    }

    /// Reads the form in manifests.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the bytes are no partition of this table.
    pub fn from_bytes(serialized: &[u8], schema: &TableSchema) -> Result<Self> {
        let row = BinaryRow::from_serialized(serialized)?;
        let values = row.decode(types_of(&schema.partition_fields()?).into_iter())?;
        Ok(Self { values, row })
    }

    /// The form in manifests.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.row.to_serialized()
    }

    /// The values in the order of the partition keys.
    pub fn values(&self) -> &[Datum] {
        &self.values
    }

    /// The encoded row of the values.
    pub fn row(&self) -> &BinaryRow {
        &self.row
    }

    /// The folders of this partition below the table, `k1=v1/k2=v2`, escaped; empty when
    /// unpartitioned.
    ///
    /// # Errors
    /// [`Error::BadValue`] if a value has no text, [`Error::InvalidSchema`] as the schema says.
    pub fn path(&self, schema: &TableSchema) -> Result<String> {
        let options = TableOptions::new(&schema.options);
        let names = options.partition_names()?;
        let mut path = String::new();
        for (value, field) in self.values.iter().zip(schema.partition_fields()?) {
            let text = value_text(value, &field.data_type.kind, names)?;
            let is_blank = text
                .as_deref()
                .is_none_or(|text| text.chars().all(is_java_whitespace));
            let text = if is_blank {
                options.default_partition_name().to_owned()
            } else {
                text.unwrap_or_default()
            };
            if !path.is_empty() {
                path.push('/');
            }
            path.push_str(&escape(&field.name));
            path.push('=');
            path.push_str(&escape(&text));
        }
        Ok(path)
    }

    /// The values as text by partition key, for messages and listings: different partitions have
    /// different texts. Null is `null`; a text that reads like something else stands in quotes.
    pub fn describe(&self, schema: &TableSchema) -> String {
        if self.values.is_empty() {
            return "the table".to_owned();
        }
        let mut shown = String::new();
        for (value, key) in self.values.iter().zip(&schema.partition_keys) {
            let kind = schema.field(key).map(|field| field.data_type.kind.clone());
            let text = kind.and_then(|kind| listed_text(value, kind));
            let comma = if shown.is_empty() { "" } else { "," };
            let _ = write!(shown, "{comma}{key}={}", text.as_deref().unwrap_or("null"));
        }
        shown
    }
}

/// The text of a value among others of its column; `None` for null.
fn listed_text(value: &Datum, kind: TypeKind) -> Option<String> {
    let kind = match kind {
        // Milliseconds are kept under any precision.
        TypeKind::Time { .. } if *value != Datum::Null => TypeKind::Time { precision: 3 },
        kind => kind,
    };
    let text = match value {
        Datum::Bytes(bytes) => bytes.iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        }),
        _ => value_text(value, &kind, Names::Sql).unwrap_or_else(|_| Some(format!("{value:?}")))?,
    };
    let is_plain = |c: char| !c.is_control() && !matches!(c, ',' | '=' | '\'');
    let is_clear = text != "null" && !text.is_empty() && text.trim() == text;
    let is_text = matches!(value, Datum::String(_));
    if !is_text || (is_clear && text.chars().all(is_plain)) {
        return Some(text);
    }
    Some(format!("'{}'", text.replace('\'', "''")))
}

pub use text::value_text;

fn types_of<'a>(fields: &[&'a DataField]) -> Vec<&'a DataType> {
    fields.iter().map(|field| &field.data_type).collect()
}

/// Java's `Character.isWhitespace`, by which a value counts as blank.
fn is_java_whitespace(c: char) -> bool {
    match c {
        '\u{a0}' | '\u{2007}' | '\u{202f}' | '\u{85}' => false,
        '\u{1c}'..='\u{1f}' => true,
        c => c.is_whitespace(),
    }
}

/// Escapes a key or value for a folder name (paimon: `PartitionPathUtils.escapePathName`).
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\u{0}'..='\u{1f}'
            | '"'
            | '#'
            | '%'
            | '\''
            | '*'
            | '/'
            | ':'
            | '='
            | '?'
            | '\\'
            | '\u{7f}'
            | '{'
            | '}'
            | '['
            | ']'
            | '^' => {
                let _ = write!(escaped, "%{:02X}", u32::from(c));
            }
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
