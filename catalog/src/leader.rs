//! Becoming the active coordinator: the epoch rises, and its revision fences every write.

use weir_protocol::ids::CoordinatorEpoch;

use crate::model::coordinator::{decode_epoch, encode_epoch};
use crate::store::{Expect, Fence, Key, MetadataStore, StoreError, Txn};
use crate::{Error, Result};

/// The right to change metadata, until another takes it.
#[derive(Clone, Debug)]
pub struct Leadership {
    /// The epoch, for requests to tablet servers.
    pub epoch: CoordinatorEpoch,
    /// The fence, for transactions.
    pub fence: Fence,
}

/// Takes over: whoever had the leadership before can't write any more.
///
/// # Errors
/// [`Error::Fenced`] if another took over at the same time; [`Error::OutcomeUnknown`] if that can't
/// be told.
pub async fn take_over(store: &dyn MetadataStore) -> Result<Leadership> {
    const WHAT: &str = "becoming the active coordinator";
    let key = Key::coordinator_epoch();
    let found = store.get(&key).await.map_err(Error::store(WHAT))?;
    let (epoch, expect) = match &found {
        None => (CoordinatorEpoch(0), Expect::Absent),
        Some(entry) => {
            let epoch = decode_epoch(&key, &entry.value)?;
            (CoordinatorEpoch(epoch.0 + 1), Expect::At(entry.modified))
        }
    };
    let txn = Txn::new(None).put(key.clone(), encode_epoch(epoch), expect);
    match store.commit(txn).await {
        Ok(at) => Ok(Leadership {
            epoch,
            fence: Fence { key, at },
        }),
        Err(StoreError::Conflict { .. }) => Err(Error::Fenced {
            what: WHAT.to_owned(),
        }),
        Err(error) => Err(Error::from_store(WHAT, error)),
    }
}
