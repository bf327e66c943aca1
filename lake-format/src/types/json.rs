//! Types in schema files: a string for atomic types, an object for nested ones.

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::{DataField, DataType, MAX_DEPTH, TypeKind};
use crate::error::{Error, Result};

impl Serialize for DataType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let word = |word: &str| format!("{word}{}", if self.nullable { "" } else { " NOT NULL" });
        match &self.kind {
            TypeKind::Array(element) => {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("type", &word("ARRAY"))?;
                map.serialize_entry("element", element)?;
                map.end()
            }
            TypeKind::Multiset(element) => {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("type", &word("MULTISET"))?;
                map.serialize_entry("element", element)?;
                map.end()
            }
            TypeKind::Map(key, value) => {
                let mut map = serializer.serialize_map(Some(3))?;
                map.serialize_entry("type", &word("MAP"))?;
                map.serialize_entry("key", key)?;
                map.serialize_entry("value", value)?;
                map.end()
            }
            TypeKind::Row(fields) => {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("type", &word("ROW"))?;
                map.serialize_entry("fields", fields)?;
                map.end()
            }
            _ => serializer.serialize_str(&self.to_string()),
        }
    }
}

impl<'de> Deserialize<'de> for DataType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Self::from_json_value(&value).map_err(D::Error::custom)
    }
}

impl DataType {
    /// Reads a type as schema files spell it.
    ///
    /// # Errors
    /// [`Error::BadType`] if the value is no type, or one nested deeper than [`MAX_DEPTH`].
    pub fn from_json_value(value: &Value) -> Result<Self> {
        parse(value, 0)
    }
}

fn parse(value: &Value, depth: usize) -> Result<DataType> {
    let bad = |reason: &str| Error::BadType {
        text: value.to_string(),
        reason: reason.to_owned(),
    };
    if depth > MAX_DEPTH {
        return Err(bad("is nested too deep"));
    }
    let object = match value {
        Value::String(text) => return text.parse(),
        Value::Object(object) => object,
        _ => return Err(bad("is neither a string nor an object")),
    };
    let word = object
        .get("type")
        .and_then(Value::as_str)
        .ok_or_else(|| bad("has no `type`"))?;
    let mut words = word.split_whitespace();
    let name = words.next().unwrap_or_default().to_ascii_uppercase();
    let suffix = words.collect::<Vec<_>>().join(" ").to_ascii_uppercase();
    // pypaimon says it again in a field of its own.
    let is_nullable_field = object
        .get("nullable")
        .and_then(Value::as_bool)
        .unwrap_or(true);
    let nullable = match suffix.as_str() {
        "" => is_nullable_field,
        "NOT NULL" => false,
        _ => return Err(bad("has an unknown suffix")),
    };
    let part = |key: &str| -> Result<Box<DataType>> {
        let part = object
            .get(key)
            .ok_or_else(|| bad(&format!("has no `{key}`")))?;
        parse(part, depth + 1).map(Box::new)
    };
    let kind = match name.as_str() {
        "ARRAY" => TypeKind::Array(part("element")?),
        "MULTISET" => TypeKind::Multiset(part("element")?),
        "MAP" => TypeKind::Map(part("key")?, part("value")?),
        "ROW" => {
            let fields = object.get("fields").and_then(Value::as_array);
            let fields = fields.ok_or_else(|| bad("has no `fields`"))?;
            TypeKind::Row(
                fields
                    .iter()
                    .map(|field| parse_field(field, depth))
                    .collect::<Result<_>>()?,
            )
        }
        _ => return Err(bad("is no nested type")),
    };
    Ok(DataType { kind, nullable })
}

fn parse_field(value: &Value, depth: usize) -> Result<DataField> {
    let bad = |reason: &str| Error::BadType {
        text: value.to_string(),
        reason: reason.to_owned(),
    };
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let id = value
        .get("id")
        .and_then(Value::as_i64)
        .and_then(|id| i32::try_from(id).ok());
    let data_type = value.get("type").ok_or_else(|| bad("has no `type`"))?;
    Ok(DataField {
        id: id.ok_or_else(|| bad("has no `id`"))?,
        name: text("name").ok_or_else(|| bad("has no `name`"))?,
        data_type: parse(data_type, depth + 1)?,
        description: text("description"),
        default_value: text("defaultValue"),
    })
}
