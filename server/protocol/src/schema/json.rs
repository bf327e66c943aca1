//! The JSON forms of schemas and types. Absent optionals are left out, unknown members are ignored.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{AggFunction, Column, LogicalType, RowField, Schema, TypeKind, UNASSIGNED_FIELD_ID};
use crate::error::{Error, Result};

/// A schema as it stands in a document.
#[derive(Serialize, Deserialize)]
pub(crate) struct SchemaDocument {
    #[serde(default = "version_one")]
    version: i32,
    columns: Vec<ColumnDocument>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    primary_key: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    auto_increment_column: Option<Vec<String>>,
    #[serde(default)]
    highest_field_id: Option<i32>,
}

#[derive(Serialize, Deserialize)]
struct ColumnDocument {
    name: String,
    data_type: TypeDocument,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agg_function: Option<AggDocument>,
    #[serde(default)]
    id: Option<i32>,
}

#[derive(Serialize, Deserialize)]
struct AggDocument {
    #[serde(rename = "type")]
    kind: String,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "optional_texts"
    )]
    parameters: Option<BTreeMap<String, String>>,
}

#[derive(Default, Serialize, Deserialize)]
struct TypeDocument {
    #[serde(rename = "type")]
    root: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nullable: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    length: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    precision: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scale: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    element_type: Option<Box<TypeDocument>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_type: Option<Box<TypeDocument>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value_type: Option<Box<TypeDocument>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fields: Option<Vec<FieldDocument>>,
}

#[derive(Serialize, Deserialize)]
struct FieldDocument {
    name: String,
    field_type: TypeDocument,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(default)]
    field_id: Option<i32>,
}

fn version_one() -> i32 {
    1
}

/// Reads a map of texts; numbers and booleans are taken as their text, as the reference does.
pub(crate) fn texts<'de, D: Deserializer<'de>>(
    input: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let values = BTreeMap::<String, Value>::deserialize(input)?;
    values
        .into_iter()
        .map(|(key, value)| match value {
            Value::String(text) => Ok((key, text)),
            Value::Bool(_) | Value::Number(_) => Ok((key, value.to_string())),
            _ => Err(serde::de::Error::custom(format!(
                "property `{key}` is no text"
            ))),
        })
        .collect()
}

fn optional_texts<'de, D: Deserializer<'de>>(
    input: D,
) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    texts(input).map(Some)
}

impl Schema {
    /// Reads a `schema_json` document. Documents without ids get them depth first; key columns
    /// become NOT NULL.
    ///
    /// # Errors
    /// [`Error::Json`] and [`Error::Invalid`], as in [`Schema::new`].
    pub fn from_json(json: &[u8]) -> Result<Self> {
        let document: SchemaDocument =
            serde_json::from_slice(json).map_err(|source| Error::Json {
                document: "schema",
                source,
            })?;
        document.try_into()
    }

    /// The `schema_json` document, byte for byte as the reference writes it.
    pub fn to_json(&self) -> Vec<u8> {
        to_bytes(&SchemaDocument::from(self))
    }
}

/// Writes one of this crate's documents.
pub(crate) fn to_bytes(document: &impl Serialize) -> Vec<u8> {
    let written = serde_json::to_vec(document);
    assert!(
        written.is_ok(),
        "documents hold only maps with text keys, which serde_json always writes"
    );
    written.unwrap_or_default()
}

impl LogicalType {
    /// Reads a type, as in `PbAddColumn.data_type_json`; absent `nullable` means nullable.
    ///
    /// # Errors
    /// [`Error::Json`] for a wrong form, [`Error::Invalid`] for an unknown root or lengths out of
    /// range.
    pub fn from_json_value(value: &Value) -> Result<Self> {
        let document = TypeDocument::deserialize(value).map_err(|source| Error::Json {
            document: "type",
            source,
        })?;
        let ty = Self::try_from(document)?;
        ty.validate()?;
        Ok(ty)
    }

    /// The JSON form of this type.
    pub fn to_json_value(&self) -> Value {
        let written = serde_json::to_value(TypeDocument::from(self));
        assert!(
            written.is_ok(),
            "a type document holds only texts, numbers, lists and objects"
        );
        written.unwrap_or_default()
    }
}

impl TryFrom<SchemaDocument> for Schema {
    type Error = Error;

    fn try_from(document: SchemaDocument) -> Result<Self> {
        if document.version != 1 {
            return Err(Error::invalid(
                "schema",
                document.version.to_string(),
                "document version is not 1",
            ));
        }
        let columns = document
            .columns
            .into_iter()
            .map(Column::try_from)
            .collect::<Result<_>>()?;
        Schema {
            columns,
            primary_key: document.primary_key.unwrap_or_default(),
            auto_increment: document.auto_increment_column.unwrap_or_default(),
            highest_field_id: document.highest_field_id.unwrap_or(UNASSIGNED_FIELD_ID),
        }
        .completed()
    }
}

impl From<&Schema> for SchemaDocument {
    fn from(schema: &Schema) -> Self {
        let some = |names: &Vec<String>| (!names.is_empty()).then(|| names.clone());
        Self {
            version: 1,
            columns: schema.columns.iter().map(ColumnDocument::from).collect(),
            primary_key: some(&schema.primary_key),
            auto_increment_column: some(&schema.auto_increment),
            highest_field_id: Some(schema.highest_field_id),
        }
    }
}

impl TryFrom<ColumnDocument> for Column {
    type Error = Error;

    fn try_from(document: ColumnDocument) -> Result<Self> {
        let agg_function = document.agg_function.map(|agg| AggFunction {
            kind: agg.kind.to_ascii_uppercase(),
            parameters: agg.parameters.unwrap_or_default(),
        });
        Ok(Self {
            name: document.name,
            ty: document.data_type.try_into()?,
            comment: document.comment,
            agg_function,
            id: document.id.unwrap_or(UNASSIGNED_FIELD_ID),
        })
    }
}

impl From<&Column> for ColumnDocument {
    fn from(column: &Column) -> Self {
        let agg_function = column.agg_function.as_ref().map(|agg| AggDocument {
            kind: agg.kind.clone(),
            parameters: (!agg.parameters.is_empty()).then(|| agg.parameters.clone()),
        });
        Self {
            name: column.name.clone(),
            data_type: (&column.ty).into(),
            comment: column.comment.clone(),
            agg_function,
            id: Some(column.id),
        }
    }
}

impl TryFrom<TypeDocument> for LogicalType {
    type Error = Error;

    fn try_from(document: TypeDocument) -> Result<Self> {
        let nullable = document.nullable.unwrap_or(true);
        Ok(Self {
            kind: document.into_kind()?,
            nullable,
        })
    }
}

impl TypeDocument {
    fn into_kind(self) -> Result<TypeKind> {
        let lacks = |member: &'static str| Error::invalid("type", member, "member is missing");
        let length = self.length.ok_or_else(|| lacks("length"));
        let precision = self.precision.ok_or_else(|| lacks("precision"));
        let child = |child: Option<Box<TypeDocument>>, member| match child {
            Some(child) => LogicalType::try_from(*child).map(Box::new),
            None => Err(lacks(member)),
        };
        Ok(match self.root.as_str() {
            "BOOLEAN" => TypeKind::Boolean,
            "TINYINT" => TypeKind::TinyInt,
            "SMALLINT" => TypeKind::SmallInt,
            "INTEGER" => TypeKind::Int,
            "BIGINT" => TypeKind::BigInt,
            "FLOAT" => TypeKind::Float,
            "DOUBLE" => TypeKind::Double,
            "DATE" => TypeKind::Date,
            "STRING" => TypeKind::String,
            "BYTES" => TypeKind::Bytes,
            "CHAR" => TypeKind::Char { length: length? },
            "BINARY" => TypeKind::Binary { length: length? },
            "DECIMAL" => TypeKind::Decimal {
                precision: precision?,
                scale: self.scale.ok_or_else(|| lacks("scale"))?,
            },
            "TIME_WITHOUT_TIME_ZONE" => TypeKind::Time {
                precision: precision?,
            },
            "TIMESTAMP_WITHOUT_TIME_ZONE" => TypeKind::Timestamp {
                precision: precision?,
            },
            "TIMESTAMP_WITH_LOCAL_TIME_ZONE" => TypeKind::TimestampLtz {
                precision: precision?,
            },
            "ARRAY" => TypeKind::Array(child(self.element_type, "element_type")?),
            "MAP" => {
                let mut key = child(self.key_type, "key_type")?;
                key.nullable = false;
                TypeKind::Map(key, child(self.value_type, "value_type")?)
            }
            "ROW" => {
                let fields = self.fields.ok_or_else(|| lacks("fields"))?;
                TypeKind::Row(
                    fields
                        .into_iter()
                        .map(RowField::try_from)
                        .collect::<Result<_>>()?,
                )
            }
            _ => return Err(Error::invalid("type", self.root, "unknown type")),
        })
    }
}

impl TryFrom<FieldDocument> for RowField {
    type Error = Error;

    fn try_from(document: FieldDocument) -> Result<Self> {
        Ok(Self {
            name: document.name,
            ty: document.field_type.try_into()?,
            description: document.description,
            field_id: document.field_id.unwrap_or(UNASSIGNED_FIELD_ID),
        })
    }
}

impl From<&LogicalType> for TypeDocument {
    fn from(ty: &LogicalType) -> Self {
        let mut document = Self {
            nullable: (!ty.nullable).then_some(false),
            ..Self::default()
        };
        let root = match &ty.kind {
            TypeKind::Boolean => "BOOLEAN",
            TypeKind::TinyInt => "TINYINT",
            TypeKind::SmallInt => "SMALLINT",
            TypeKind::Int => "INTEGER",
            TypeKind::BigInt => "BIGINT",
            TypeKind::Float => "FLOAT",
            TypeKind::Double => "DOUBLE",
            TypeKind::Date => "DATE",
            TypeKind::String => "STRING",
            TypeKind::Bytes => "BYTES",
            TypeKind::Char { length } => {
                document.length = Some(*length);
                "CHAR"
            }
            TypeKind::Binary { length } => {
                document.length = Some(*length);
                "BINARY"
            }
            TypeKind::Decimal { precision, scale } => {
                document.precision = Some(*precision);
                document.scale = Some(*scale);
                "DECIMAL"
            }
            TypeKind::Time { precision } => {
                document.precision = Some(*precision);
                "TIME_WITHOUT_TIME_ZONE"
            }
            TypeKind::Timestamp { precision } => {
                document.precision = Some(*precision);
                "TIMESTAMP_WITHOUT_TIME_ZONE"
            }
            TypeKind::TimestampLtz { precision } => {
                document.precision = Some(*precision);
                "TIMESTAMP_WITH_LOCAL_TIME_ZONE"
            }
            TypeKind::Array(element) => {
                document.element_type = Some(Box::new(element.as_ref().into()));
                "ARRAY"
            }
            TypeKind::Map(key, value) => {
                document.key_type = Some(Box::new(key.as_ref().into()));
                document.value_type = Some(Box::new(value.as_ref().into()));
                "MAP"
            }
            TypeKind::Row(fields) => {
                document.fields = Some(fields.iter().map(FieldDocument::from).collect());
                "ROW"
            }
        };
        root.clone_into(&mut document.root);
        document
    }
}

impl From<&RowField> for FieldDocument {
    fn from(field: &RowField) -> Self {
        Self {
            name: field.name.clone(),
            field_type: (&field.ty).into(),
            description: field.description.clone(),
            field_id: Some(field.field_id),
        }
    }
}
