//! Who tiers a table: our own documents.

use serde::{Deserialize, Serialize};
use weir_protocol::ids::{TableId, TieringEpoch};

use super::{Document, Unknown};

/// The last tiering epoch of a table, version 1. It only rises, also across coordinators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tiering {
    /// The table.
    pub table_id: TableId,
    /// The epoch that was given out last.
    pub tiering_epoch: TieringEpoch,
    /// When it was given out, in milliseconds since 1970 UTC.
    pub given_time: i64,
    /// A text that no other writing of this document has, so that of two callers who raise the epoch
    /// at the same time each knows its own. Older documents have none.
    #[serde(rename = "x_nonce", skip_serializing_if = "Option::is_none", default)]
    pub nonce: Option<String>,
    /// Fields we don't know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Document for Tiering {
    const VERSION: i64 = 1;
}

/// The worker that holds a table now, version 1: an ephemeral entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TieringOwner {
    /// The epoch it holds.
    pub tiering_epoch: TieringEpoch,
    /// How the worker calls itself.
    pub worker: String,
    /// Fields we don't know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Document for TieringOwner {
    const VERSION: i64 = 1;
}
