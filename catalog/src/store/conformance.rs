//! The laws of [`super`] as code that any backend runs in its tests.
//!
//! Each law is one function over a store that may hold anything, except below the databases and
//! producers named `law-…`. A broken law panics with its number; an error that a law does not speak
//! of is returned.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use weir_protocol::ids::{SchemaId, TablePath};

use super::{
    Expect, Fence, Key, Limit, MetadataStore, Page, Result, Revision, StoreError, Txn, WatchEvent,
};

/// Longest wait for something that a law says will happen.
const DEADLINE: Duration = Duration::from_secs(15);

/// Runs every law that needs no crash.
pub async fn all(store: &dyn MetadataStore) -> Result<()> {
    reads_see_writes(store).await?;
    an_old_revision_never_comes_back(store).await?;
    revisions_and_keys_are_unique(store).await?;
    a_failed_commit_writes_nothing(store).await?;
    a_fence_beats_a_conflict(store).await?;
    the_same_transaction_again_applies_once(store).await?;
    a_watch_sees_every_change(store).await?;
    keys_of_a_closed_session_vanish(store).await?;
    ids_are_never_repeated(store).await?;
    limits_are_told_before_sending(store).await?;
    children_are_direct(store).await?;
    trees_are_deleted_whole(store).await?;
    scans_page_in_key_order(store).await
}

fn key(law: &str, name: &str) -> Result<Key> {
    Key::producer(&format!("law-{law}-{name}"))
}

async fn put(
    store: &dyn MetadataStore,
    key: &Key,
    value: &str,
    expect: Expect,
) -> Result<Revision> {
    store
        .commit(Txn::new(None).put(key.clone(), value.to_owned(), expect))
        .await
}

async fn modified(store: &dyn MetadataStore, key: &Key) -> Result<Option<Revision>> {
    Ok(store.get(key).await?.map(|entry| entry.modified))
}

/// L1.
pub async fn reads_see_writes(store: &dyn MetadataStore) -> Result<()> {
    let (a, b) = (key("1", "a")?, key("1", "b")?);
    let first = put(store, &a, "one", Expect::Any).await?;
    let found = store.get(&a).await?;
    let Some(found) = found else {
        panic_law("L1", "a key just written is absent")
    };
    assert!(
        found.value == "one" && found.modified == first,
        "L1: {found:?}"
    );
    let second = put(store, &a, "two", Expect::At(first)).await?;
    let both = store.get_many(&[b.clone(), a.clone()]).await?;
    assert!(
        matches!(both.as_slice(), [None, Some(_)]),
        "L1: get_many keeps the order: {both:?}"
    );
    let Some(found) = store.get(&a).await? else {
        panic_law("L1", "a key rewritten is absent")
    };
    assert!(
        found.modified == second && found.created == first,
        "L1: {found:?}"
    );
    assert!(second.id() > first.id(), "L1: revisions rise");
    Ok(())
}

/// L3: the expectation `At` and `Incarnation` across deletion and re-creation.
pub async fn an_old_revision_never_comes_back(store: &dyn MetadataStore) -> Result<()> {
    let a = key("3", "a")?;
    store
        .commit(Txn::new(None).delete(a.clone(), Expect::Any))
        .await?;
    let first = put(store, &a, "same", Expect::Absent).await?;
    put(store, &a, "other", Expect::At(first)).await?;
    let stale = put(store, &a, "stale", Expect::At(first)).await;
    assert!(
        matches!(stale, Err(StoreError::Conflict { op: 0, .. })),
        "L3: {stale:?}"
    );
    put(store, &a, "again", Expect::Incarnation(first)).await?;
    store
        .commit(Txn::new(None).delete(a.clone(), Expect::Present))
        .await?;
    put(store, &a, "same", Expect::Absent).await?;
    for expect in [Expect::At(first), Expect::Incarnation(first)] {
        let reborn = put(store, &a, "stale", expect).await;
        assert!(
            matches!(reborn, Err(StoreError::Conflict { op: 0, .. })),
            "L3: {reborn:?}"
        );
    }
    Ok(())
}

/// L4.
pub async fn revisions_and_keys_are_unique(store: &dyn MetadataStore) -> Result<()> {
    let a = key("4", "a")?;
    let mut seen = HashSet::new();
    for _ in 0..100 {
        let at = put(store, &a, "same bytes", Expect::Any).await?;
        assert!(seen.insert(at.id()), "L4: {at} was used twice");
    }
    let check = Txn::new(None).check(a.clone(), Expect::Any);
    let twice = store.commit(check.put(a.clone(), "x", Expect::Any)).await;
    assert!(
        matches!(twice, Err(StoreError::KeyTwice { .. })),
        "L4: {twice:?}"
    );
    let database = Key::database("law-4")?;
    let below = Txn::new(None).put(Key::tables("law-4")?, "x", Expect::Any);
    let below = store.commit(below.delete_tree(database, Expect::Any)).await;
    assert!(
        matches!(below, Err(StoreError::KeyTwice { .. })),
        "L4: {below:?}"
    );
    Ok(())
}

/// L5.
pub async fn a_failed_commit_writes_nothing(store: &dyn MetadataStore) -> Result<()> {
    let (a, b, c) = (key("5", "a")?, key("5", "b")?, key("5", "c")?);
    store
        .commit(Txn::new(None).delete(c.clone(), Expect::Any))
        .await?;
    let at = put(store, &a, "one", Expect::Any).await?;
    put(store, &b, "one", Expect::Any).await?;
    let txn = Txn::new(None)
        .put(a.clone(), "two", Expect::At(at))
        .delete(b.clone(), Expect::Present)
        .check(c, Expect::Present);
    let failed = store.commit(txn).await;
    assert!(
        failed == Err(StoreError::Conflict { op: 2, found: None }),
        "L5: {failed:?}"
    );
    assert!(
        modified(store, &a).await? == Some(at),
        "L5: a failed commit wrote"
    );
    assert!(
        modified(store, &b).await?.is_some(),
        "L5: a failed commit deleted"
    );
    Ok(())
}

/// L6.
pub async fn a_fence_beats_a_conflict(store: &dyn MetadataStore) -> Result<()> {
    let (epoch, a) = (key("6", "epoch")?, key("6", "a")?);
    let old = put(store, &epoch, "1", Expect::Any).await?;
    let new = put(store, &epoch, "2", Expect::At(old)).await?;
    let fence = |at| {
        Some(Fence {
            key: epoch.clone(),
            at,
        })
    };
    let clash = |at| Txn::new(fence(at)).put(a.clone(), "x", Expect::At(old));
    let fenced = store.commit(clash(old)).await;
    assert!(fenced == Err(StoreError::Fenced), "L6: {fenced:?}");
    let conflict = store.commit(clash(new)).await;
    assert!(
        matches!(conflict, Err(StoreError::Conflict { op: 0, .. })),
        "L6: {conflict:?}"
    );
    store
        .commit(Txn::new(fence(new)).put(a.clone(), "x", Expect::Any))
        .await?;
    Ok(())
}

/// L7, as far as it shows without lost replies.
pub async fn the_same_transaction_again_applies_once(store: &dyn MetadataStore) -> Result<()> {
    let a = key("7", "a")?;
    let at = put(store, &a, "old", Expect::Any).await?;
    let txn = Txn::new(None).put(a.clone(), "attempt 1", Expect::At(at));
    let applied = store.commit(txn.clone()).await?;
    let again = store.commit(txn).await;
    assert!(
        again
            == Err(StoreError::Conflict {
                op: 0,
                found: Some(applied)
            }),
        "L7: {again:?}"
    );
    assert!(
        modified(store, &a).await? == Some(applied),
        "L7: applied twice"
    );
    Ok(())
}

/// L8, without a gap.
pub async fn a_watch_sees_every_change(store: &dyn MetadataStore) -> Result<()> {
    let database = Key::database("law-8")?;
    store
        .commit(Txn::new(None).delete_tree(database.clone(), Expect::Any))
        .await?;
    put(store, &database, "there before", Expect::Absent).await?;
    let mut events = store.watch(&database);
    let mut next = async || match tokio::time::timeout(DEADLINE, events.next()).await {
        Ok(Some(event)) => event,
        Ok(None) => panic_law("L8", "the watch ended"),
        Err(_) => panic_law("L8", "a change was never seen"),
    };
    assert!(
        matches!(next().await, WatchEvent::Snapshot { .. }),
        "L8: the list comes first"
    );
    assert!(next().await == WatchEvent::CaughtUp, "L8: the list ends");
    let table = Key::table(&TablePath::new("law-8", "t"))?;
    put(store, &key("8", "elsewhere")?, "not watched", Expect::Any).await?;
    let mut expected = Vec::new();
    for round in 0..20 {
        expected.push(Some(
            put(store, &table, &round.to_string(), Expect::Any).await?,
        ));
    }
    store
        .commit(Txn::new(None).delete(table.clone(), Expect::Present))
        .await?;
    expected.push(None);
    for expected in expected {
        let seen = match next().await {
            WatchEvent::Put { entry, .. } => Some(entry.modified),
            WatchEvent::Delete { .. } => None,
            other => panic_law("L8", &format!("{other:?} after the list")),
        };
        assert!(seen == expected, "L8: saw {seen:?} instead of {expected:?}");
    }
    Ok(())
}

/// L9, for a session that is closed.
pub async fn keys_of_a_closed_session_vanish(store: &dyn MetadataStore) -> Result<()> {
    let (a, b) = (key("9", "a")?, key("9", "b")?);
    let session = store.open_session(Duration::from_secs(10)).await?;
    let other = store.open_session(Duration::from_secs(10)).await?;
    store
        .commit(Txn::new(None).put_ephemeral(a.clone(), "x", Expect::Any, session.id()))
        .await?;
    store
        .commit(Txn::new(None).put_ephemeral(b.clone(), "x", Expect::Any, other.id()))
        .await?;
    assert!(!session.is_lost(), "L9: lost at once");
    store.close_session(session.id()).await?;
    store.close_session(session.id()).await?;
    if tokio::time::timeout(DEADLINE, session.lost())
        .await
        .is_err()
    {
        panic_law("L9", "the owner was never told");
    }
    assert!(
        store.get(&a).await?.is_none(),
        "L9: a key outlived its session"
    );
    assert!(
        store.get(&b).await?.is_some(),
        "L9: a key of another session vanished"
    );
    let txn = Txn::new(None).put_ephemeral(a, "x", Expect::Any, session.id());
    let late = store.commit(txn).await;
    assert!(late == Err(StoreError::SessionLost), "L9: {late:?}");
    store.close_session(other.id()).await
}

/// L10, without a crash; [`before_reopen`] and [`after_reopen`] are the rest.
pub async fn ids_are_never_repeated(store: &dyn MetadataStore) -> Result<()> {
    let counter = key("10", "counter")?;
    let mut takers = Vec::new();
    for taker in 0..10_u32 {
        takers.push(store.take_ids(&counter, taker % 3 + 1));
    }
    let mut seen = HashSet::new();
    for taken in futures::future::join_all(takers).await {
        for id in taken? {
            assert!(seen.insert(id), "L10: {id} was taken twice");
        }
    }
    let next = store.take_ids(&counter, 1).await?;
    let value = store.get(&counter).await?.map(|entry| entry.value);
    let stored = Bytes::copy_from_slice(&next.end.to_be_bytes());
    assert!(
        value == Some(stored),
        "L10: the counter holds {value:?} after {next:?}"
    );
    Ok(())
}

/// L11.
pub async fn limits_are_told_before_sending(store: &dyn MetadataStore) -> Result<()> {
    let (a, limits) = (key("11", "a")?, store.limits());
    let largest = "x".repeat(limits.max_value_bytes);
    let at = put(store, &a, &largest, Expect::Any).await?;
    let one_more = put(store, &a, &format!("{largest}x"), Expect::Any).await;
    let is_refused = matches!(
        one_more,
        Err(StoreError::TooLarge {
            what: Limit::ValueBytes,
            ..
        })
    );
    assert!(
        is_refused,
        "L11: one byte more than the limit: {one_more:?}"
    );
    let mut txn = Txn::new(None);
    for op in 0..=limits.max_ops {
        txn = txn.check(key("11", &op.to_string())?, Expect::Any);
    }
    let many = store.commit(txn).await;
    assert!(
        matches!(
            many,
            Err(StoreError::TooLarge {
                what: Limit::Ops,
                ..
            })
        ),
        "L11: {many:?}"
    );
    assert!(
        modified(store, &a).await? == Some(at),
        "L11: a refused value was written"
    );
    put(store, &a, "small again", Expect::At(at)).await?;
    Ok(())
}

/// L12.
pub async fn children_are_direct(store: &dyn MetadataStore) -> Result<()> {
    let tables = Key::tables("law-12")?;
    store
        .commit(Txn::new(None).delete_tree(Key::database("law-12")?, Expect::Any))
        .await?;
    let mut txn = Txn::new(None);
    for table in ["b", "a", "a-b"] {
        txn = txn.put(
            Key::table(&TablePath::new("law-12", table))?,
            "t",
            Expect::Absent,
        );
    }
    store.commit(txn).await?;
    let path = TablePath::new("law-12", "a");
    for chunk in 0..5 {
        let mut txn = Txn::new(None);
        for schema in 0..1000 {
            let schema = SchemaId(chunk * 1000 + schema);
            txn = txn.put(Key::schema(&path, schema)?, "s", Expect::Absent);
        }
        store.commit(txn).await?;
    }
    let names = store.children(&tables).await?;
    assert!(names == ["a", "a-b", "b"], "L12: {names:?}");
    assert!(
        store.children(&Key::schemas(&path)?).await?.len() == 5000,
        "L12: deep children"
    );
    Ok(())
}

/// `DeleteTree` takes a key and everything below it, and nothing beside it.
pub async fn trees_are_deleted_whole(store: &dyn MetadataStore) -> Result<()> {
    let (path, beside) = (TablePath::new("law-t", "t"), TablePath::new("law-t", "t-1"));
    let schema = Key::schema(&path, SchemaId(1))?;
    let txn = Txn::new(None)
        .put(Key::table(&path)?, "t", Expect::Any)
        .put(schema.clone(), "s", Expect::Any)
        .put(Key::table(&beside)?, "t", Expect::Any);
    let at = store.commit(txn).await?;
    let root = Key::table(&path)?;
    store
        .commit(Txn::new(None).delete_tree(root.clone(), Expect::At(at)))
        .await?;
    assert!(
        store.get(&root).await?.is_none(),
        "DeleteTree left its root"
    );
    assert!(
        store.get(&schema).await?.is_none(),
        "DeleteTree left a key below"
    );
    assert!(
        store.get(&Key::table(&beside)?).await?.is_some(),
        "DeleteTree took a key beside"
    );
    let again = store
        .commit(Txn::new(None).delete_tree(root, Expect::At(at)))
        .await;
    assert!(
        matches!(again, Err(StoreError::Conflict { op: 0, found: None })),
        "L5: {again:?}"
    );
    Ok(())
}

/// A scan returns each entry once, by depth and then by path.
pub async fn scans_page_in_key_order(store: &dyn MetadataStore) -> Result<()> {
    let database = Key::database("law-s")?;
    let mut expected = vec![database.clone()];
    for table in ["c", "a", "b"] {
        let path = TablePath::new("law-s", table);
        expected.push(Key::table(&path)?);
        expected.push(Key::schema(&path, SchemaId(1))?);
        expected.push(Key::schema(&path, SchemaId(10))?);
    }
    let mut txn = Txn::new(None);
    for key in &expected {
        txn = txn.put(key.clone(), "x", Expect::Any);
    }
    store.commit(txn).await?;
    put(store, &Key::database("law-s2")?, "beside", Expect::Any).await?;
    expected.sort();
    let (mut found, mut page) = (Vec::new(), Page::first(3));
    loop {
        let entries = store.scan(&database, page.clone()).await?;
        assert!(entries.len() <= 3, "a page holds more than its limit");
        let Some((last, _)) = entries.last() else {
            break;
        };
        page.after = Some(last.clone());
        found.extend(entries.into_iter().map(|(key, _)| key));
    }
    assert!(
        found == expected,
        "scan gave {found:?} instead of {expected:?}"
    );
    Ok(())
}

/// What [`after_reopen`] checks.
#[derive(Debug)]
pub struct BeforeReopen {
    written: Revision,
    ids_end: u64,
}

/// First half of L2 and L10 for a durable store: call it, then close or kill the store.
pub async fn before_reopen(store: &dyn MetadataStore) -> Result<BeforeReopen> {
    let session = store.open_session(Duration::from_secs(10)).await?;
    let ephemeral = key("2", "ephemeral")?;
    store
        .commit(Txn::new(None).put_ephemeral(ephemeral, "x", Expect::Any, session.id()))
        .await?;
    let ids_end = store.take_ids(&key("2", "counter")?, 7).await?.end;
    let txn = Txn::new(None)
        .put(key("2", "a")?, "kept", Expect::Any)
        .put(key("2", "b")?, "kept", Expect::Any)
        .delete(key("2", "c")?, Expect::Any);
    Ok(BeforeReopen {
        written: store.commit(txn).await?,
        ids_end,
    })
}

/// Second half: call it on the reopened store.
pub async fn after_reopen(store: &dyn MetadataStore, before: BeforeReopen) -> Result<()> {
    for name in ["a", "b"] {
        let found = store.get(&key("2", name)?).await?;
        let Some(found) = found else {
            panic_law("L2", "an answered write is gone")
        };
        assert!(
            found.value == "kept" && found.modified == before.written,
            "L2: {found:?}"
        );
    }
    let ephemeral = store.get(&key("2", "ephemeral")?).await?;
    assert!(
        ephemeral.is_none(),
        "L9: a key outlived the process of its session"
    );
    let next = store.take_ids(&key("2", "counter")?, 1).await?;
    assert!(
        next.start >= before.ids_end,
        "L10: {next:?} after {}",
        before.ids_end
    );
    let at = put(store, &key("2", "a")?, "new", Expect::At(before.written)).await?;
    assert!(
        at.id() > before.written.id(),
        "L4: {at} after {}",
        before.written
    );
    Ok(())
}

#[allow(clippy::panic, reason = "a law is checked in tests only")]
fn panic_law(law: &str, what: &str) -> ! {
    panic!("{law}: {what}")
}
