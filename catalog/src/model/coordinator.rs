//! The coordinator epoch: decimal text, not JSON.

use bytes::Bytes;
use weir_protocol::ids::CoordinatorEpoch;

use crate::{Error, Result};

/// Reads the epoch; `what` names the entry in errors.
///
/// # Errors
/// [`Error::Corrupt`] if the bytes are no decimal number.
pub fn decode_epoch(what: impl std::fmt::Display, bytes: &[u8]) -> Result<CoordinatorEpoch> {
    let text = std::str::from_utf8(bytes).ok();
    match text.and_then(|text| text.trim().parse().ok()) {
        Some(epoch) => Ok(CoordinatorEpoch(epoch)),
        None => Err(Error::Corrupt {
            what: what.to_string(),
            reason: format!("`{}` is no epoch", String::from_utf8_lossy(bytes)),
        }),
    }
}

/// The epoch as bytes.
pub fn encode_epoch(epoch: CoordinatorEpoch) -> Bytes {
    Bytes::from(epoch.to_string())
}
