use super::*;
use crate::commit::{CommitOutcome, CommitRequest, RetryPolicy};
use crate::data_file::DataFileMeta;
use crate::faulty_store::{Fault, FaultyStore};
use crate::manifest::ManifestEntry;
use crate::options::TableOptions;
use crate::partition::Partition;
use crate::schema::{NewTable, TableSchema};
use crate::snapshot::{BATCH_COMMIT_IDENTIFIER, CommitKind};
use crate::types::DataField;
use crate::write::CommitMessage;
use crate::{CheckDepth, Filter};
use futures::TryStreamExt;
use object_store::{ObjectStore, ObjectStoreExt};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const HOUR_MS: i64 = 3_600_000;

/// A table in memory whose snapshot N was made at N hours.
struct World {
    store: Arc<FaultyStore>,
    table: Table,
}

fn schema() -> TableSchema {
    let table = NewTable {
        fields: vec![
            DataField::new(-1, "id", "BIGINT".parse().unwrap()),
            DataField::new(-1, "dt", "STRING".parse().unwrap()),
        ],
        partition_keys: vec!["dt".to_owned()],
        ..NewTable::default()
    };
    TableSchema::create(table, 0).unwrap()
}

fn retention(min: u32, max: u32) -> Retention {
    let none = BTreeMap::new();
    Retention {
        min,
        max,
        ..Retention::of(TableOptions::new(&none)).unwrap()
    }
}

/// A file of ours beside each snapshot that notes it down.
fn own_files(snapshot: &Snapshot) -> Vec<Path> {
    let name = snapshot.property("beside");
    name.map(|name| Path::from(format!("t/weir/{name}")))
        .into_iter()
        .collect()
}

impl World {
    async fn new() -> Self {
        let store = FaultyStore::new();
        let erased: Arc<dyn ObjectStore> = Arc::clone(&store) as Arc<dyn ObjectStore>;
        let table = Table::create(erased, Path::from("t"), &schema())
            .await
            .unwrap();
        Self { store, table }
    }

    /// Commits a file of its own in partition `dt`; `replaces` go.
    async fn commit(&self, user: &str, name: &str, replaces: &[&str]) -> Snapshot {
        let latest = self.table.latest_snapshot().await.unwrap();
        let id = latest.as_ref().map_or(1, |latest| latest.id + 1);
        let mut deletes = Vec::new();
        if let Some(latest) = &latest {
            let live = self.table.live_entries(latest).await.unwrap();
            let gone = |e: &ManifestEntry| replaces.contains(&e.file.file_name.as_str());
            deletes.extend(live.into_iter().filter(gone));
        }
        assert_eq!(deletes.len(), replaces.len());
        let partition = Partition::new(vec![crate::Datum::String("a".into())], &schema()).unwrap();
        self.put(&format!("t/dt=a/bucket-0/{name}"), "ten bytes.")
            .await;
        let beside = format!("ranges-{id}.json");
        self.put(&format!("t/weir/{beside}"), "{}").await;
        let request = CommitRequest {
            commit_user: user.to_owned(),
            commit_identifier: BATCH_COMMIT_IDENTIFIER,
            kind: if deletes.is_empty() {
                CommitKind::Append
            } else {
                CommitKind::Compact
            },
            messages: vec![CommitMessage {
                partition,
                bucket: 0,
                total_buckets: -1,
                new_files: vec![DataFileMeta::append(name, 10, 3, 0)],
                changelog_files: Vec::new(),
            }],
            deletes,
            properties: BTreeMap::from([("beside".to_owned(), beside)]),
            allow_empty: false,
            uuid: format!("u{id}"),
            now_ms: id * HOUR_MS,
        };
        let mut free = |_: &crate::commit::BaseView<'_>| Ok(());
        let outcome = self
            .table
            .commit(&request, &mut free, RetryPolicy::default());
        match outcome.await.unwrap() {
            CommitOutcome::Committed(snapshot) => snapshot,
            other => panic!("{other:?}"),
        }
    }

    /// `count` snapshots of "us"; each but the first replaces the file of the one before.
    async fn with_snapshots(count: i64) -> Self {
        let world = Self::new().await;
        for id in 1..=count {
            let before = format!("f{}", id - 1);
            let replaces = [before.as_str()];
            let replaces: &[&str] = if id == 1 { &[] } else { &replaces };
            world.commit("us", &format!("f{id}"), replaces).await;
        }
        world
    }

    async fn put(&self, path: &str, text: &str) {
        let store = self.store.sound();
        store
            .put(&Path::from(path), text.to_owned().into())
            .await
            .unwrap();
    }

    async fn copy(&self, from: &str, to: &str) {
        let store = self.store.sound();
        let (from, to) = (Path::from(from), Path::from(to));
        store.copy(&from, &to).await.unwrap();
    }

    async fn objects(&self) -> Vec<String> {
        let store = self.store.sound();
        let objects: Vec<_> = store.list(None).try_collect().await.unwrap();
        objects.iter().map(|o| o.location.to_string()).collect()
    }

    async fn expire(&self, retention: &Retention) -> Result<Expired> {
        self.table.expire(&request(retention)).await
    }

    /// Every snapshot that is there reads, down to its data files.
    async fn assert_sound(&self) {
        let ids = self.table.snapshot_ids().await.unwrap();
        let (first, last) = (ids[0], ids[ids.len() - 1]);
        assert_eq!(ids, (first..=last).collect::<Vec<_>>());
        let problems = self.table.check_to(CheckDepth::Metadata).await.unwrap();
        assert_eq!(problems, [], "snapshots {ids:?}");
        // The hint is ahead while those below it go.
        let earliest = self.table.earliest_snapshot_id().await.unwrap().unwrap();
        let note = self.table.paths().own_dir().join("expiring.json");
        let is_under_way = self.table.exists(&note).await.unwrap();
        assert!(earliest == first || is_under_way && ids.contains(&earliest));
        assert_eq!(self.table.latest_snapshot_id().await.unwrap(), Some(last));
    }
}

fn request(retention: &Retention) -> ExpireRequest<'_> {
    ExpireRequest {
        retention,
        keep_newest_of: "us",
        keep_from: None,
        now_ms: 1_000 * HOUR_MS,
        own_files: &own_files,
    }
}

#[tokio::test]
async fn old_snapshots_go_with_what_only_they_named() {
    let world = World::with_snapshots(8).await;
    let planned = world.table.plan_expiry(&request(&retention(3, 10))).await;
    let planned = planned.unwrap();
    assert_eq!(world.table.snapshot_ids().await.unwrap().len(), 8);
    let expired = world.expire(&retention(3, 10)).await.unwrap();
    assert_eq!(expired, planned);
    assert_eq!(expired.snapshots, [1, 2, 3, 4, 5]);
    assert_eq!((expired.kept_from, expired.kept_by), (6, KeptBy::Count(3)));
    // Files 1 to 5 were replaced; each snapshot had two lists and a file of ours.
    assert_eq!(expired.data_files, 5);
    let objects = world.objects().await;
    let of = |prefix: &str| {
        let found = objects.iter().filter(|o| o.starts_with(prefix));
        found.cloned().collect::<Vec<_>>()
    };
    assert_eq!(
        of("t/dt=a/"),
        [
            "t/dt=a/bucket-0/f6",
            "t/dt=a/bucket-0/f7",
            "t/dt=a/bucket-0/f8"
        ]
    );
    assert_eq!(
        of("t/weir/"),
        [
            "t/weir/ranges-6.json",
            "t/weir/ranges-7.json",
            "t/weir/ranges-8.json"
        ]
    );
    assert_eq!(of("t/manifest/manifest-list-").len(), 6);
    world.assert_sound().await;
    let again = world.expire(&retention(3, 10)).await.unwrap();
    assert_eq!((again.snapshots, again.data_files), (vec![], 0));
}

#[tokio::test]
async fn age_protects_the_snapshot_before_a_young_one() {
    let world = World::with_snapshots(8).await;
    let retention = retention(1, 100);
    let at = |now_ms| ExpireRequest {
        now_ms,
        ..request(&retention)
    };
    // Snapshot 5 was made at 5 h; one hour later it is not *older* than an hour.
    let expired = world.table.expire(&at(6 * HOUR_MS)).await.unwrap();
    assert_eq!(expired.snapshots, [1, 2, 3]);
    assert_eq!(expired.kept_by, KeptBy::Age(Duration::from_secs(3600)));
    let expired = world.table.expire(&at(6 * HOUR_MS + 1)).await.unwrap();
    assert_eq!(expired.snapshots, [4]);
    world.assert_sound().await;
}

#[tokio::test]
async fn a_run_takes_no_more_than_its_limit_and_the_next_goes_on() {
    let world = World::with_snapshots(9).await;
    let few = Retention {
        limit: 3,
        ..retention(1, 100)
    };
    let first = world.expire(&few).await.unwrap();
    assert_eq!(
        (first.snapshots, first.kept_by),
        (vec![1, 2, 3], KeptBy::Limit)
    );
    let second = world.expire(&few).await.unwrap();
    assert_eq!(second.snapshots, [4, 5, 6]);
    let third = world.expire(&few).await.unwrap();
    assert_eq!(
        (third.snapshots, third.kept_by),
        (vec![7, 8], KeptBy::Count(1))
    );
    world.assert_sound().await;
}

#[tokio::test]
async fn the_newest_own_snapshot_stays_however_old_it_is() {
    let world = World::with_snapshots(3).await;
    for id in 4..=9 {
        let before = format!("f{}", id - 1);
        world
            .commit("compactor", &format!("f{id}"), &[&before])
            .await;
    }
    let expired = world.expire(&retention(1, 1)).await.unwrap();
    assert_eq!((expired.snapshots, expired.kept_from), (vec![1, 2], 3));
    assert!(
        matches!(expired.kept_by, KeptBy::Need(_)),
        "{:?}",
        expired.kept_by
    );
    let own = world.table.own_latest("us").await.unwrap();
    assert_eq!(own.map(|own| own.id), Some(3));
    // What the cluster has registered may be older still.
    let retention = retention(1, 1);
    let registered = ExpireRequest {
        keep_newest_of: "compactor",
        keep_from: Some(5),
        ..request(&retention)
    };
    let expired = world.table.expire(&registered).await.unwrap();
    assert_eq!((expired.snapshots, expired.kept_from), (vec![3, 4], 5));
    world.assert_sound().await;
}

#[tokio::test]
async fn a_consumer_that_was_not_heard_of_for_its_time_keeps_nothing() {
    let world = World::with_snapshots(8).await;
    let path = "t/consumer/consumer-gone";
    world.put(path, r#"{"nextSnapshot":4}"#).await;
    let meta = world.table.store().head(&Path::from(path)).await.unwrap();
    let heard_ms = meta.last_modified.timestamp_millis();
    let hour = BTreeMap::from([("consumer.expiration-time".to_owned(), "1 h".to_owned())]);
    let retention = Retention {
        min: 1,
        max: 1,
        ..Retention::of(TableOptions::new(&hour)).unwrap()
    };
    let at = |now_ms| ExpireRequest {
        now_ms,
        ..request(&retention)
    };
    let expired = world.table.expire(&at(heard_ms + HOUR_MS)).await.unwrap();
    assert_eq!(expired.kept_by, KeptBy::Consumer("gone".to_owned()));
    let expired = world
        .table
        .expire(&at(heard_ms + HOUR_MS + 1))
        .await
        .unwrap();
    assert_eq!((expired.kept_from, expired.kept_by), (8, KeptBy::Count(1)));
    world.assert_sound().await;
}

#[tokio::test]
async fn consumers_keep_what_they_have_yet_to_read() {
    let world = World::with_snapshots(8).await;
    world
        .put("t/consumer/consumer-slow", r#"{"nextSnapshot":4}"#)
        .await;
    world
        .put("t/consumer/consumer-fast", r#"{"nextSnapshot":8}"#)
        .await;
    let expired = world.expire(&retention(1, 1)).await.unwrap();
    assert_eq!((expired.snapshots, expired.kept_from), (vec![1, 2, 3], 4));
    assert_eq!(expired.kept_by, KeptBy::Consumer("slow".to_owned()));
    world.put("t/consumer/consumer-slow", "oops").await;
    let error = world.expire(&retention(1, 1)).await.unwrap_err();
    assert!(error.to_string().contains("consumer-slow"), "{error}");
    world.assert_sound().await;
}

#[tokio::test]
async fn what_tags_and_branches_name_stays() {
    let world = World::with_snapshots(3).await;
    world.copy("t/snapshot/snapshot-2", "t/tag/tag-keep").await;
    world
        .copy(
            "t/snapshot/snapshot-3",
            "t/branch/branch-b/snapshot/snapshot-3",
        )
        .await;
    for id in 4..=8 {
        let before = format!("f{}", id - 1);
        world.commit("us", &format!("f{id}"), &[&before]).await;
    }
    let expired = world.expire(&retention(1, 1)).await.unwrap();
    assert_eq!(expired.snapshots, (1..=7).collect::<Vec<_>>());
    world.assert_sound().await;
    let objects = world.objects().await;
    let data: Vec<_> = objects.iter().filter(|o| o.contains("bucket-0")).collect();
    assert_eq!(
        data,
        [
            "t/dt=a/bucket-0/f2",
            "t/dt=a/bucket-0/f3",
            "t/dt=a/bucket-0/f8"
        ]
    );
    for kept in ["t/tag/tag-keep", "t/branch/branch-b/snapshot/snapshot-3"] {
        let json = world.table.read_json(&Path::from(kept)).await.unwrap();
        let snapshot = Snapshot::from_json(&json).unwrap();
        let live = world.table.live_entries(&snapshot).await.unwrap();
        assert_eq!(live.len(), 1, "{kept}");
        let own = own_files(&snapshot);
        assert!(world.table.exists(&own[0]).await.unwrap(), "{kept}");
    }
}

#[tokio::test]
async fn nothing_is_deleted_while_a_tag_can_not_be_read() {
    let world = World::with_snapshots(6).await;
    world.put("t/tag/tag-torn", r#"{"version":3,"#).await;
    let before: Vec<_> = data_of(&world).await;
    let error = world.expire(&retention(1, 1)).await.unwrap_err();
    assert!(error.to_string().contains("tag-torn"), "{error}");
    assert_eq!(data_of(&world).await, before);
    world.assert_sound().await;
    world.copy("t/snapshot/snapshot-6", "t/tag/tag-torn").await;
    let expired = world.expire(&retention(1, 1)).await.unwrap();
    assert_eq!(expired.snapshots, [1, 2, 3, 4, 5]);
    assert_eq!(expired.data_files, 5);
    world.assert_sound().await;
}

/// All objects but snapshots, hints and the note.
async fn data_of(world: &World) -> Vec<String> {
    let mut objects = world.objects().await;
    objects.retain(|o| !o.starts_with("t/snapshot/") && o != "t/weir/expiring.json");
    objects
}

#[tokio::test]
async fn cut_short_at_any_call_it_leaves_a_table_that_reads_and_is_finished_by_the_next_run() {
    let expected = {
        let world = World::with_snapshots(6).await;
        world.expire(&retention(2, 2)).await.unwrap();
        world.objects().await
    };
    for last in [Fault::Before, Fault::After] {
        let mut cut = 0;
        loop {
            let world = World::with_snapshots(6).await;
            let at = cut;
            world
                .store
                .inject(move |number, _, _| match number.cmp(&at) {
                    std::cmp::Ordering::Less => None,
                    std::cmp::Ordering::Equal => Some(last),
                    std::cmp::Ordering::Greater => Some(Fault::Before),
                });
            let ended = world.expire(&retention(2, 2)).await;
            let calls = world.store.take_calls().len();
            world.store.inject(|_, _, _| None);
            world.assert_sound().await;
            if ended.is_ok() && calls <= cut {
                assert!(cut > 10, "{cut}");
                break;
            }
            let finished = world.expire(&retention(2, 2)).await.unwrap();
            assert_eq!(world.objects().await, expected, "cut at call {cut}");
            assert_eq!(finished.kept_from, 5, "cut at call {cut}");
            world.assert_sound().await;
            cut += 1;
        }
    }
}

#[tokio::test]
async fn a_note_of_another_table_deletes_nothing() {
    let old = World::with_snapshots(6).await;
    // Cut short behind the note.
    old.store.inject(|_, verb, path| {
        let is_hint = verb == "put" && path.as_ref().ends_with("EARLIEST");
        is_hint.then_some(Fault::Before)
    });
    old.expire(&retention(1, 1)).await.unwrap_err();
    let note = Path::from("t/weir/expiring.json");
    let note = old.store.sound().get(&note).await.unwrap();
    let note = String::from_utf8(note.bytes().await.unwrap().to_vec()).unwrap();
    let world = World::new().await;
    for id in 1..=3 {
        world.commit("us", &format!("other{id}"), &[]).await;
    }
    world.put("t/weir/expiring.json", &note).await;
    let expired = world.expire(&retention(10, 10)).await.unwrap();
    assert_eq!(expired.snapshots, [] as [i64; 0]);
    assert_eq!(world.table.snapshot_ids().await.unwrap(), [1, 2, 3]);
    world.assert_sound().await;
    assert!(
        !world
            .objects()
            .await
            .contains(&"t/weir/expiring.json".to_owned())
    );
    world.put("t/weir/expiring.json", "{}").await;
    let error = world.expire(&retention(10, 10)).await.unwrap_err();
    assert!(error.to_string().contains("expiring.json"), "{error}");
}

/// Between any two calls of the expiry a reader begins at the earliest snapshot that a listing
/// shows; another one is in the middle of a snapshot that expires.
#[tokio::test]
async fn fc_066_a_reader_never_begins_a_snapshot_whose_files_are_gone() {
    let calls = {
        let world = World::with_snapshots(6).await;
        world.store.inject(|_, _, _| None);
        world.expire(&retention(2, 2)).await.unwrap();
        world.store.take_calls().len()
    };
    let mut reads = 0;
    for cut in 0..calls {
        let world = World::with_snapshots(6).await;
        let begun = world.table.snapshot(1).await.unwrap();
        world
            .store
            .inject(move |number, _, _| (number >= cut).then_some(Fault::Before));
        world.expire(&retention(2, 2)).await.unwrap_err();
        world.store.inject(|_, _, _| None);
        let listed = world.table.snapshot_ids().await.unwrap()[0];
        let hinted = world.table.earliest_snapshot_id().await.unwrap().unwrap();
        for id in [listed, hinted] {
            let snapshot = world.table.snapshot(id).await.unwrap();
            for split in world
                .table
                .plan(&snapshot, &Filter::default())
                .await
                .unwrap()
            {
                for file in split.files {
                    let path = Path::from(format!("t/dt=a/bucket-0/{}", file.file_name));
                    assert!(
                        world.table.exists(&path).await.unwrap(),
                        "cut {cut}: {path}"
                    );
                    reads += 1;
                }
            }
        }
        // The one in the middle is told the cause, at once.
        match world.table.plan(&begun, &Filter::default()).await {
            Ok(splits) => assert_eq!(splits.len(), 1),
            Err(Error::SnapshotExpired { id }) => assert_eq!(id, 1),
            Err(other) => panic!("cut {cut}: {other}"),
        }
    }
    assert!(reads >= 2 * calls, "{reads}");
}
