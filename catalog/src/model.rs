//! The documents of the store: passive data, byte-compatible with the reference, each with a
//! version.
//!
//! A document is a JSON object with `version` first. A newer version than ours is refused; older
//! ones are read for ever. Fields we don't know are kept and written again. Optional fields are
//! left out, never null. Names and versions as in the reference's `server/zk/data/*JsonSerde`.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::store::{Revision, Versioned};
use crate::{Error, Result};

pub mod assignment;
pub mod coordinator;
pub mod database;
pub mod lake_offsets;
pub mod lake_snapshot;
pub mod leader_isr;
pub mod partition;
pub mod table;
pub mod tablet_server;
pub mod tiering;

/// Fields of a document that this program doesn't know.
pub type Unknown = Map<String, Value>;

/// A document with a version.
pub trait Document: Serialize + DeserializeOwned {
    /// The version that we write, and the newest that we read.
    const VERSION: i64;

    /// Turns a document of an older `version` into ours, before its fields are read.
    fn upgrade(_version: i64, _fields: &mut Map<String, Value>) -> Result<(), String> {
        Ok(())
    }

    /// What the fields alone can't say.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Reads a document; `what` names it in errors, by key or file.
    ///
    /// # Errors
    /// [`Error::Corrupt`] and [`Error::NewerVersion`].
    fn decode(what: impl fmt::Display, bytes: &[u8]) -> Result<Self> {
        let corrupt = |reason: String| Error::Corrupt {
            what: what.to_string(),
            reason,
        };
        let mut fields: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|error| corrupt(error.to_string()))?;
        let version = match fields.remove("version") {
            Some(version) => version.as_i64().filter(|version| *version >= 1),
            None => None,
        };
        let Some(version) = version else {
            return Err(corrupt("it has no version".to_owned()));
        };
        if version > Self::VERSION {
            let (what, known) = (what.to_string(), Self::VERSION);
            return Err(Error::NewerVersion {
                what,
                found: version,
                known,
            });
        }
        Self::upgrade(version, &mut fields).map_err(corrupt)?;
        let document: Self = serde_json::from_value(Value::Object(fields))
            .map_err(|error| corrupt(error.to_string()))?;
        document.check().map_err(corrupt)?;
        Ok(document)
    }

    /// The document as bytes, `version` first.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a field can't be written as JSON.
    fn encode(&self) -> Result<Bytes> {
        #[derive(Serialize)]
        struct Envelope<'a, T> {
            version: i64,
            #[serde(flatten)]
            document: &'a T,
        }
        let envelope = Envelope {
            version: Self::VERSION,
            document: self,
        };
        match serde_json::to_vec(&envelope) {
            Ok(bytes) => Ok(bytes.into()),
            Err(error) => Err(Error::Corrupt {
                what: "a document to write".to_owned(),
                reason: error.to_string(),
            }),
        }
    }
}

/// A document as the store has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored<T> {
    /// The document.
    pub document: T,
    /// The transaction that wrote it last.
    pub modified: Revision,
    /// The transaction that created it.
    pub created: Revision,
}

impl<T: Document> Stored<T> {
    /// Reads what the store returned for the key `what`.
    pub fn decode(what: impl fmt::Display, entry: &Versioned) -> Result<Self> {
        let document = T::decode(what, &entry.value)?;
        Ok(Self {
            document,
            modified: entry.modified,
            created: entry.created,
        })
    }
}

#[cfg(test)]
mod tests;
