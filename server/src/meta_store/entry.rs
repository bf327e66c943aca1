//! How keys and values stand in RocksDB.
//!
//! A key is a depth byte and the path, so that direct children are one range and the order is that of
//! [`Key`]. A value is created, modified and session (big-endian longs, session 0: none), then the
//! document.

use bytes::Bytes;
use weir_catalog::store::{Key, Revision, SessionId, StoreError, Versioned};

const HEADER_BYTES: usize = 24;

/// A stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) versioned: Versioned,
    pub(super) session: Option<SessionId>,
}

/// The stored form of a key.
pub(super) fn encode_key(key: &Key) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + key.as_str().len());
    bytes.push(depth_byte(key.depth()));
    bytes.extend_from_slice(key.as_str().as_bytes());
    bytes
}

/// The range of what lies below a key at one depth: it starts with this.
pub(super) fn below_prefix(key: &Key, depth: usize) -> Vec<u8> {
    let mut bytes = encode_key(key);
    if let Some(first) = bytes.first_mut() {
        *first = depth_byte(depth);
    }
    bytes.push(b'/');
    bytes
}

fn depth_byte(depth: usize) -> u8 {
    u8::try_from(depth).unwrap_or(u8::MAX)
}

/// Reads a stored key back.
pub(super) fn decode_key(bytes: &[u8]) -> Result<Key, StoreError> {
    let corrupt = || StoreError::Corrupt {
        reason: format!("{bytes:?} is no stored key"),
    };
    let (depth, path) = bytes.split_first().ok_or_else(corrupt)?;
    let path = std::str::from_utf8(path).map_err(|_| corrupt())?;
    let key = Key::from_stored(path).map_err(|_| corrupt())?;
    if usize::from(*depth) != key.depth() {
        return Err(corrupt());
    }
    Ok(key)
}

impl Entry {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.versioned.value.len());
        bytes.extend_from_slice(&self.versioned.created.id().to_be_bytes());
        bytes.extend_from_slice(&self.versioned.modified.id().to_be_bytes());
        bytes.extend_from_slice(&self.session.map_or(0, |session| session.0).to_be_bytes());
        bytes.extend_from_slice(&self.versioned.value);
        bytes
    }

    pub(super) fn decode(key: &[u8], bytes: &[u8]) -> Result<Self, StoreError> {
        let corrupt = || StoreError::Corrupt {
            reason: format!("the entry of {} is cut off", String::from_utf8_lossy(key)),
        };
        let (created, rest) = bytes.split_first_chunk::<8>().ok_or_else(corrupt)?;
        let (modified, rest) = rest.split_first_chunk::<8>().ok_or_else(corrupt)?;
        let (session, value) = rest.split_first_chunk::<8>().ok_or_else(corrupt)?;
        let session = u64::from_be_bytes(*session);
        Ok(Self {
            versioned: Versioned {
                value: Bytes::copy_from_slice(value),
                modified: Revision::new(u64::from_be_bytes(*modified)),
                created: Revision::new(u64::from_be_bytes(*created)),
            },
            session: (session != 0).then_some(SessionId(session)),
        })
    }
}

/// The keys that one transaction changed, for the log of changes.
pub(super) fn encode_changes<'a>(keys: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for key in keys {
        let len = u16::try_from(key.len()).unwrap_or(u16::MAX);
        bytes.extend_from_slice(&len.to_be_bytes());
        bytes.extend_from_slice(key);
    }
    bytes
}
