//! Claims: how an empty lake table that is there already becomes another table's own.
//!
//! The lake table of a dropped table stays, and if it holds no rows the next table of its name uses it
//! again. A round of the table before may still be on its way to it. A claim is a snapshot without
//! rows: it takes the number under which such a round would publish, and tells it that the lake table
//! has another owner since. Either the claim comes first, and the round is refused, or the round does,
//! and the lake table is not empty.

use std::collections::BTreeMap;

use weir_lake_format::commit::{BaseView, GuardRefusal, RetryPolicy};
use weir_lake_format::{
    BATCH_COMMIT_IDENTIFIER, CommitKind, CommitOutcome, CommitRequest, Snapshot, Table,
};

use crate::clock::unique_name;

/// The commit user of claims.
const CLAIM_USER: &str = "weir-claim";

/// Whether a snapshot is a claim: the lake table holds no rows then.
pub fn is_claim(snapshot: &Snapshot) -> bool {
    snapshot.commit_user == CLAIM_USER && snapshot.total_record_count == 0
}

/// How a claim ended.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The lake table is the claimant's, and empty.
    Yes,
    /// It holds rows, or somebody's snapshot; the number is that of the latest one.
    InUse(i64),
    /// Others were faster each time.
    Busy,
}

/// Claims a lake table that should be empty.
///
/// # Errors
/// Those of a commit.
pub async fn claim(table: &Table, now_ms: i64) -> weir_lake_format::Result<Claimed> {
    let request = CommitRequest {
        commit_user: CLAIM_USER.to_owned(),
        commit_identifier: BATCH_COMMIT_IDENTIFIER,
        kind: CommitKind::Append,
        messages: Vec::new(),
        deletes: Vec::new(),
        properties: BTreeMap::new(),
        allow_empty: true,
        uuid: unique_name(),
        now_ms,
    };
    let mut in_use = None;
    let mut guard = |view: &BaseView<'_>| {
        in_use = view
            .latest
            .filter(|latest| !is_claim(latest))
            .map(|latest| latest.id);
        match in_use {
            None => Ok(()),
            Some(_) => Err(GuardRefusal {
                reason: "it holds rows".to_owned(),
            }),
        }
    };
    let outcome = table
        .commit(&request, &mut guard, RetryPolicy::default())
        .await?;
    Ok(match (outcome, in_use) {
        (CommitOutcome::Committed(_) | CommitOutcome::AlreadyCommitted(_), _) => Claimed::Yes,
        (CommitOutcome::Refused(_), Some(latest)) => Claimed::InUse(latest),
        _ => Claimed::Busy,
    })
}
