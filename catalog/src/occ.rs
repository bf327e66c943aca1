//! The one retry loop: read, decide with a pure function, commit, and on conflict read again.
//!
//! Nobody else loops on conflicts. A commit with an unknown outcome is sent again as it is; when it
//! then conflicts, the entries tell whether the first one was ours. If they don't, the caller gets
//! [`Error::OutcomeUnknown`]: the decision is not run again, since ours may have been applied and
//! followed by someone else's.

use futures::future::BoxFuture;

use crate::clock::back_off;
use crate::store::{MetadataStore, Op, Revision, StoreError, Txn};
use crate::{Error, Result};

/// Attempts that callers give [`update`] when they have no reason for another number.
pub const DEFAULT_ATTEMPTS: u32 = 6;
/// How often a transaction with unknown outcome is sent again.
const RESENDS: u32 = 5;

/// Which attempt this is.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// From 0.
    pub index: u32,
    /// Whether no other follows.
    pub is_last: bool,
}

/// What a decision came to.
#[derive(Debug)]
pub enum Decision<T> {
    /// Commit this; when it succeeds the update returns the value.
    Commit(Txn, T),
    /// Nothing to change.
    Done(T),
    /// What was read does not fit together; read again.
    Again,
}

/// A finished update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Updated<T> {
    /// What the decision returned.
    pub value: T,
    /// The transaction; `None` if nothing was to change, or if it was found to be ours only
    /// afterwards.
    pub revision: Option<Revision>,
}

/// Runs `decide` and commits what it decides, at most `limit` times.
///
/// * `what` names the change in errors.
/// * `decide` reads afresh in every attempt; side effects in it (the lake) are idempotent.
/// * Waits between attempts: up to 10 ms · 2^attempt, at most 500 ms.
///
/// # Errors
/// [`Error::Conflict`] after `limit` lost races, [`Error::Fenced`] at once,
/// [`Error::OutcomeUnknown`], and whatever `decide` returns.
pub async fn update<'a, T, F>(
    store: &dyn MetadataStore,
    what: &str,
    limit: u32,
    mut decide: F,
) -> Result<Updated<T>>
where
    F: FnMut(Attempt) -> BoxFuture<'a, Result<Decision<T>>> + Send,
    T: Send,
{
    for index in 0..limit {
        back_off(index).await;
        let (txn, value) = match decide(Attempt {
            index,
            is_last: index + 1 == limit,
        })
        .await?
        {
            Decision::Done(value) => {
                return Ok(Updated {
                    value,
                    revision: None,
                });
            }
            Decision::Again => continue,
            Decision::Commit(txn, value) => (txn, value),
        };
        match store.commit(txn.clone()).await {
            Ok(revision) => {
                return Ok(Updated {
                    value,
                    revision: Some(revision),
                });
            }
            Err(StoreError::Conflict { op, .. }) => {
                tracing::debug!(what, attempt = index, op, "metadata changed, reading again");
            }
            Err(StoreError::Unknown) => {
                let revision = resend(store, what, &txn).await?;
                return Ok(Updated { value, revision });
            }
            Err(error) => return Err(Error::from_store(what, error)),
        }
    }
    Err(Error::Conflict {
        what: what.to_owned(),
        attempts: limit,
    })
}

/// Sends a transaction of unknown outcome again until it is known.
async fn resend(store: &dyn MetadataStore, what: &str, txn: &Txn) -> Result<Option<Revision>> {
    for resend in 1..=RESENDS {
        back_off(resend).await;
        match store.commit(txn.clone()).await {
            Ok(revision) => return Ok(Some(revision)),
            Err(StoreError::Conflict { .. } | StoreError::Fenced) => {
                match is_ours(store, txn).await {
                    Some(true) => return Ok(None),
                    Some(false) => break,
                    None => tracing::warn!(what, resend, "what a commit left can't be read yet"),
                }
            }
            Err(error) => {
                tracing::warn!(what, resend, %error, "the outcome of a commit is unknown");
            }
        }
    }
    Err(Error::OutcomeUnknown {
        what: what.to_owned(),
    })
}

/// Whether the entries are what `txn` made of them; `None` if they can't be read.
async fn is_ours(store: &dyn MetadataStore, txn: &Txn) -> Option<bool> {
    let keys: Vec<_> = txn.ops.iter().map(|op| op.key().clone()).collect();
    let found = store.get_many(&keys).await.ok()?;
    let mut written_at: Option<Revision> = None;
    for (op, found) in txn.ops.iter().zip(found) {
        let fits = match (op, found) {
            (Op::Check { .. }, _) => true,
            (Op::Put { value, .. }, Some(found)) => {
                *written_at.get_or_insert(found.modified) == found.modified && found.value == *value
            }
            (Op::Put { .. }, None) => false,
            (Op::Delete { .. } | Op::DeleteTree { .. }, found) => found.is_none(),
        };
        if !fits {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests;
