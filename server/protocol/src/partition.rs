//! Partitions by name: specs, and how values become the text in a partition's name.
//!
//! Source: fluss `ResolvedPartitionSpec`, `PartitionNameConverters`.

use std::fmt;

use crate::error::{Error, Result};
use crate::row::Datum;
use crate::schema::TypeKind;

mod text;

#[cfg(test)]
mod tests;

pub use text::{parse_value, value_text};

/// What stands between the values in a partition's name.
pub const SEPARATOR: char = '$';

/// Values of partition columns as text, in the order of the table's partition keys (or of a
/// request). Displays as `key=value/key=value`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionSpec(pub Vec<(String, String)>);

impl PartitionSpec {
    /// The spec of these keys and values.
    ///
    /// # Errors
    /// [`Error::Invalid`] if their numbers differ.
    pub fn new<K: AsRef<str>, V: AsRef<str>>(keys: &[K], values: &[V]) -> Result<Self> {
        if keys.len() != values.len() {
            return Err(Error::invalid(
                "partition",
                values.len().to_string(),
                "number of values differs from keys",
            ));
        }
        let pair = |(key, value): (&K, &V)| (key.as_ref().to_owned(), value.as_ref().to_owned());
        Ok(Self(keys.iter().zip(values).map(pair).collect()))
    }

    /// The spec that a partition's name gives for these partition keys.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the name has another number of values than there are keys.
    pub fn from_name<K: AsRef<str>>(keys: &[K], name: &str) -> Result<Self> {
        let values: Vec<&str> = name.split(SEPARATOR).collect();
        if keys.len() != values.len() {
            return Err(Error::invalid(
                "partition",
                name,
                "number of values differs from partition keys",
            ));
        }
        Self::new(keys, &values)
    }

    /// The value of this key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }

    /// This spec in the order of the table's partition keys.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a key is missing, given twice or not a partition key.
    pub fn ordered<K: AsRef<str>>(&self, keys: &[K]) -> Result<Self> {
        if keys.len() != self.0.len() {
            return Err(Error::invalid(
                "partition",
                self.to_string(),
                "number of values differs from partition keys",
            ));
        }
        let find = |key: &K| {
            let key = key.as_ref();
            let value = self
                .get(key)
                .ok_or_else(|| Error::invalid("partition", key, "partition key is missing"))?;
            Ok((key.to_owned(), value.to_owned()))
        };
        Ok(Self(keys.iter().map(find).collect::<Result<_>>()?))
    }

    /// The partition's name: the values joined by `$`. Call it on an ordered spec.
    pub fn name(&self) -> String {
        let values: Vec<&str> = self.0.iter().map(|(_, value)| value.as_str()).collect();
        partition_name(&values)
    }
}

impl fmt::Display for PartitionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, value)) in self.0.iter().enumerate() {
            let slash = if index == 0 { "" } else { "/" };
            write!(f, "{slash}{key}={value}")?;
        }
        Ok(())
    }
}

/// The name of the partition with these values, given in partition-key order.
pub fn partition_name<V: AsRef<str>>(values: &[V]) -> String {
    let values: Vec<&str> = values.iter().map(AsRef::as_ref).collect();
    values.join("$")
}

/// Whether a partition column may have this type: any scalar except DECIMAL.
pub fn is_partition_type(kind: &TypeKind) -> bool {
    !matches!(
        kind,
        TypeKind::Decimal { .. } | TypeKind::Array(_) | TypeKind::Map(..) | TypeKind::Row(_)
    )
}

fn refused(value: &Datum, kind: &TypeKind) -> Error {
    if is_partition_type(kind) {
        return value.mismatch(kind);
    }
    Error::UnsupportedType {
        operation: "partition value",
        type_name: kind.to_string(),
    }
}
