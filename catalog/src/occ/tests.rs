use std::sync::atomic::{AtomicU32, Ordering};

use futures::FutureExt;

use super::*;
use crate::store::memory::MemoryStore;
use crate::store::{Expect, Fence, Key};
use crate::test_store::{Fault, FaultyStore};

fn key() -> Key {
    Key::producer("p").unwrap()
}

async fn value(store: &dyn MetadataStore) -> String {
    let entry = store.get(&key()).await.unwrap().unwrap();
    String::from_utf8(entry.value.to_vec()).unwrap()
}

/// Appends `text` to the value of [`key`], counting the decisions.
async fn append(
    store: &FaultyStore,
    text: &'static str,
    tries: &AtomicU32,
) -> Result<Updated<u32>> {
    update(store, "append", 4, |attempt| {
        async move {
            tries.fetch_add(1, Ordering::SeqCst);
            let found = store.get(&key()).await.unwrap().unwrap();
            let new = [&found.value[..], text.as_bytes()].concat();
            Ok(Decision::Commit(
                Txn::new(None).put(key(), new, Expect::At(found.modified)),
                attempt.index,
            ))
        }
        .boxed()
    })
    .await
}

async fn store_with(text: &'static str) -> FaultyStore {
    let store = FaultyStore::new(MemoryStore::new());
    store
        .commit(Txn::new(None).put(key(), text, Expect::Absent))
        .await
        .unwrap();
    store.forget_calls();
    store
}

#[tokio::test]
async fn a_reply_lost_after_the_commit_applies_once() {
    let (store, tries) = (store_with("a").await, AtomicU32::new(0));
    store.fail_commit(1, Fault::LostReply);
    let updated = append(&store, "b", &tries).await.unwrap();
    assert_eq!((updated.value, value(&store).await.as_str()), (0, "ab"));
    assert_eq!(
        tries.load(Ordering::SeqCst),
        1,
        "the decision is not run again"
    );
}

#[tokio::test]
async fn a_lost_reply_is_settled_although_what_it_left_cannot_be_read_at_once() {
    let (store, tries) = (store_with("a").await, AtomicU32::new(0));
    store.fail_commit(1, Fault::LostReply);
    // The first look: after a read and two commits.
    store.fail_call(4, Fault::Unavailable);
    append(&store, "b", &tries).await.unwrap();
    assert_eq!(value(&store).await, "ab");
    assert_eq!(tries.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_request_lost_before_the_commit_is_applied_by_the_second_one() {
    let (store, tries) = (store_with("a").await, AtomicU32::new(0));
    store.fail_commit(1, Fault::LostRequest);
    append(&store, "b", &tries).await.unwrap();
    assert_eq!(value(&store).await, "ab");
}

#[tokio::test]
async fn a_foreign_change_after_an_unknown_outcome_is_never_overwritten() {
    let (store, tries) = (store_with("a").await, AtomicU32::new(0));
    store.fail_commit(1, Fault::LostReply);
    store.before_commit(2, |store| {
        let found = store.get(&key()).now_or_never().unwrap().unwrap().unwrap();
        let txn = Txn::new(None).put(key(), "foreign", Expect::At(found.modified));
        store.commit(txn).now_or_never().unwrap().unwrap();
    });
    let error = append(&store, "b", &tries).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    assert_eq!(
        (value(&store).await.as_str(), tries.load(Ordering::SeqCst)),
        ("foreign", 1)
    );
}

#[tokio::test]
async fn a_conflict_reads_and_decides_again() {
    let (store, tries) = (store_with("a").await, AtomicU32::new(0));
    store.before_commit(1, |store| {
        store
            .commit(Txn::new(None).put(key(), "x", Expect::Any))
            .now_or_never()
            .unwrap()
            .unwrap();
    });
    let updated = append(&store, "b", &tries).await.unwrap();
    assert_eq!((updated.value, value(&store).await.as_str()), (1, "xb"));
}

#[tokio::test]
async fn conflicts_without_end_are_told_after_the_last_attempt() {
    let (store, tries) = (store_with("a").await, AtomicU32::new(0));
    for commit in 1..=4 {
        store.before_commit(commit, |store| {
            let txn = Txn::new(None).put(key(), "x", Expect::Any);
            store.commit(txn).now_or_never().unwrap().unwrap();
        });
    }
    let error = append(&store, "b", &tries).await.unwrap_err();
    assert!(
        matches!(error, Error::Conflict { attempts: 4, .. }),
        "{error}"
    );
    assert!(error.is_retriable());
}

#[tokio::test]
async fn a_failed_fence_ends_it_at_once() {
    let store = store_with("a").await;
    let stale = store.get(&key()).await.unwrap().unwrap().modified;
    store
        .commit(Txn::new(None).put(key(), "newer", Expect::Any))
        .await
        .unwrap();
    let mut tries = 0;
    let error = update(&store, "fenced", 4, |_| {
        tries += 1;
        let fence = Fence {
            key: key(),
            at: stale,
        };
        let txn = Txn::new(Some(fence)).put(Key::rebalance(), "x", Expect::Any);
        async move { Ok(Decision::Commit(txn, ())) }.boxed()
    })
    .await
    .unwrap_err();
    assert!(matches!(error, Error::Fenced { .. }), "{error}");
    assert_eq!(tries, 1);
}
