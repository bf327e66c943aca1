use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;
use weir_protocol::ids::{BucketId, LogOffset, PartitionId, SchemaId, TableId};

use super::*;
use crate::environment::{Clock, KvConfig};
use crate::pre_write_buffer::RowCountChange;

fn bucket(number: i32) -> TableBucket {
    TableBucket {
        table: TableId(7),
        partition: Some(PartitionId(3)),
        bucket: BucketId(number),
    }
}

fn environment() -> KvEnvironment {
    timed(KvConfig::default()).0
}

fn timed(config: KvConfig) -> (KvEnvironment, Arc<AtomicI64>) {
    let time = Arc::new(AtomicI64::new(1_000));
    let shown = Arc::clone(&time);
    let clock: Clock = Arc::new(move || shown.load(Ordering::SeqCst));
    (KvEnvironment::new(config, clock), time)
}

async fn open(environment: &KvEnvironment, folder: &Path) -> KvStore {
    KvStore::open(environment, folder, bucket(0)).await.unwrap()
}

fn value(text: &str) -> StoredValue {
    StoredValue {
        schema_id: SchemaId(1),
        row: Bytes::copy_from_slice(text.as_bytes()),
    }
}

fn key(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A batch of puts, and of deletes where the value is `None`.
fn batch(end: i64, change: i64, writes: &[(&str, Option<&str>)]) -> Arc<FlushBatch> {
    let stored = |text: &&str| value(text).encode().unwrap();
    Arc::new(FlushBatch {
        end_offset: LogOffset(end),
        writes: writes
            .iter()
            .map(|(name, text)| (key(name), text.as_ref().map(stored)))
            .collect(),
        row_count: RowCountChange::By(change),
    })
}

fn many(end: i64, count: usize) -> Arc<FlushBatch> {
    let writes = (0..count).map(|number| {
        let stored = value(&"row".repeat(50)).encode().unwrap();
        (key(&format!("key-{number:06}")), Some(stored))
    });
    Arc::new(FlushBatch {
        end_offset: LogOffset(end),
        writes: writes.collect(),
        row_count: RowCountChange::By(i64::try_from(count).unwrap()),
    })
}

/// The files of a database and their sizes, but for its notes on itself.
fn listing(folder: &Path) -> BTreeMap<OsString, u64> {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    let database = files.filter(|file| !file.file_name().to_string_lossy().starts_with("LOG"));
    // One that RocksDB has removed meanwhile is none any more.
    database
        .filter_map(|file| Some((file.file_name(), file.metadata().ok()?.len())))
        .collect()
}

/// What a process that is killed now leaves behind: all files as they were at one moment. RocksDB
/// writes and removes some whenever it likes, so they are copied until none changed meanwhile.
fn copy_folder(from: &Path, to: &Path) {
    for _ in 0..1_000 {
        let before = listing(from);
        fs::create_dir_all(to).unwrap();
        let copy = |name| fs::copy(from.join(name), to.join(name));
        let copied: io::Result<Vec<u64>> = before.keys().map(copy).collect();
        if copied.is_ok() && listing(from) == before {
            return;
        }
        fs::remove_dir_all(to).unwrap();
    }
    panic!("{} is never at rest", from.display());
}

fn files_of(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|found| found == kind))
        .collect();
    files.sort();
    files
}

#[tokio::test]
async fn what_was_applied_is_read_at_once() {
    let (folder, environment) = (TempDir::new().unwrap(), environment());
    let store = open(&environment, folder.path()).await;
    assert_eq!(store.position().unwrap(), Position::START);
    let applied = store
        .apply(batch(4, 2, &[("a", Some("1")), ("b", Some("2"))]))
        .await;
    let position = Position {
        flushed_offset: LogOffset(4),
        row_count: Some(2),
    };
    assert_eq!(applied.unwrap(), position);
    assert_eq!(store.get(key("a")).await.unwrap(), Some(value("1")));
    assert_eq!(store.get(key("c")).await.unwrap(), None);
    store.apply(batch(6, -1, &[("a", None)])).await.unwrap();
    let found = store
        .multi_get(vec![key("b"), key("a"), key("b")])
        .await
        .unwrap();
    assert_eq!(found, [Some(value("2")), None, Some(value("2"))]);
    assert_eq!(store.position().unwrap().row_count, Some(1));
    store.close().await;
    assert!(matches!(
        store.get(key("a")).await,
        Err(Error::Closed { .. })
    ));
}

#[tokio::test]
async fn a_closed_store_opens_where_it_was() {
    let (folder, environment) = (TempDir::new().unwrap(), environment());
    let store = open(&environment, folder.path()).await;
    store.apply(batch(9, 1, &[("a", Some("1"))])).await.unwrap();
    let position = store.position().unwrap();
    store.close().await;
    store.close().await;
    let store = open(&environment, folder.path()).await;
    assert_eq!(store.position().unwrap(), position);
    assert_eq!(store.durable_position().unwrap(), position);
    assert_eq!(store.get(key("a")).await.unwrap(), Some(value("1")));
}

#[tokio::test]
async fn after_a_crash_values_and_position_are_those_of_one_moment() {
    let (folder, environment) = (TempDir::new().unwrap(), environment());
    let path = folder.path().join("kv");
    let store = open(&environment, &path).await;
    store
        .apply(batch(3, 1, &[("a", Some("durable"))]))
        .await
        .unwrap();
    let durable = store.flush().await.unwrap();
    assert_eq!(durable.flushed_offset, LogOffset(3));
    store
        .apply(batch(5, 1, &[("a", Some("lost")), ("b", Some("lost"))]))
        .await
        .unwrap();
    assert_eq!(store.durable_position().unwrap(), durable);
    // What a process that is killed now leaves behind.
    let crashed = folder.path().join("crashed");
    copy_folder(&path, &crashed);
    let store = open(&environment, &crashed).await;
    assert_eq!(store.position().unwrap(), durable);
    assert_eq!(store.get(key("a")).await.unwrap(), Some(value("durable")));
    assert_eq!(store.get(key("b")).await.unwrap(), None);
}

#[tokio::test]
async fn flushes_that_happen_by_themselves_keep_values_and_position_together() {
    let config = KvConfig {
        bucket_write_buffer_bytes: 64 << 10,
        ..KvConfig::default()
    };
    let (folder, environment) = (TempDir::new().unwrap(), timed(config).0);
    let path = folder.path().join("kv");
    let store = open(&environment, &path).await;
    for end in 1..=30u16 {
        let stored = value(&"row".repeat(30)).encode().unwrap();
        let put = |number: u16| (key(&format!("{end:03}-{number:03}")), Some(stored.clone()));
        let batch = FlushBatch {
            end_offset: LogOffset(i64::from(end)),
            writes: (0..100).map(put).collect(),
            row_count: RowCountChange::By(100),
        };
        store.apply(Arc::new(batch)).await.unwrap();
    }
    let idle = async {
        while !store.database().unwrap().is_idle() {
            task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), idle)
        .await
        .unwrap();
    let crashed = folder.path().join("crashed");
    copy_folder(&path, &crashed);
    let store = open(&environment, &crashed).await;
    let position = store.position().unwrap();
    let rows = store.scan(Bytes::new(), 10_000).await.unwrap().len() as u64;
    assert!(rows > 0 && rows < 3_000, "{rows}");
    assert_eq!(position.row_count, Some(rows));
    assert_eq!(position.flushed_offset.0.unsigned_abs() * 100, rows);
}

#[tokio::test]
async fn the_directory_of_another_bucket_is_refused_and_left_alone() {
    let (folder, environment) = (TempDir::new().unwrap(), environment());
    let store = open(&environment, folder.path()).await;
    store.apply(batch(1, 1, &[("a", Some("1"))])).await.unwrap();
    store.close().await;
    let refused = KvStore::open(&environment, folder.path(), bucket(1)).await;
    match refused {
        Err(Error::OtherBucket {
            expected,
            found,
            directory,
        }) => {
            assert_eq!((expected, found), (bucket(1), bucket(0)));
            assert_eq!(directory, folder.path());
        }
        other => panic!("{other:?}"),
    }
    let store = open(&environment, folder.path()).await;
    assert_eq!(store.get(key("a")).await.unwrap(), Some(value("1")));
}

#[tokio::test]
async fn a_batch_that_ends_below_the_position_is_refused() {
    let (folder, environment) = (TempDir::new().unwrap(), environment());
    let store = open(&environment, folder.path()).await;
    store.apply(batch(5, 1, &[("a", Some("1"))])).await.unwrap();
    let refused = store.apply(batch(4, 1, &[("b", Some("2"))])).await;
    assert!(matches!(refused, Err(Error::OffsetOrder { .. })));
    assert_eq!(store.get(key("b")).await.unwrap(), None);
}

#[tokio::test]
async fn prefix_and_limited_scans_end_where_they_must() {
    let (folder, environment) = (TempDir::new().unwrap(), environment());
    let store = open(&environment, folder.path()).await;
    let writes = [
        ("a", Some("1")),
        ("ab", Some("2")),
        ("abc", Some("3")),
        ("b", Some("4")),
    ];
    store.apply(batch(4, 4, &writes)).await.unwrap();
    let names = async |prefix: &str, limit| {
        let found = store.scan(key(prefix), limit).await.unwrap();
        found
            .into_iter()
            .map(|(key, _)| String::from_utf8(key.to_vec()).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("ab", 10).await, ["ab", "abc"]);
    assert_eq!(names("", 3).await, ["a", "ab", "abc"]);
    assert_eq!(names("abd", 10).await, [""; 0]);
    assert_eq!(names("a", 0).await, [""; 0]);
}

#[tokio::test]
async fn a_flipped_byte_in_a_file_is_an_error_that_names_it_and_never_absence() {
    let (folder, environment) = (TempDir::new().unwrap(), environment());
    let store = open(&environment, folder.path()).await;
    store.apply(many(1, 5_000)).await.unwrap();
    store.flush().await.unwrap();
    store.close().await;
    let files = files_of(folder.path(), "sst");
    let largest = files
        .iter()
        .max_by_key(|path| fs::metadata(path).unwrap().len())
        .unwrap();
    let mut bytes = fs::read(largest).unwrap();
    bytes[100] ^= 1;
    fs::write(largest, bytes).unwrap();
    let store = open(&environment, folder.path()).await;
    let get = store.get(key("key-000000")).await.unwrap_err();
    let scan = store.scan(key("key-"), 10).await.unwrap_err();
    let several = store.multi_get(vec![key("key-000000")]).await.unwrap_err();
    let cursor = match store.open_cursor(None).await {
        Err(error) => error,
        Ok(start) => store.next_page(start.id, 0, 1 << 20).await.unwrap_err(),
    };
    for error in [get, scan, several, cursor] {
        match &error {
            Error::Corrupt {
                directory, file, ..
            } => {
                assert_eq!(directory, folder.path());
                assert_eq!(file.as_deref(), Some(largest.as_path()), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_missing_or_shortened_file_is_met_when_the_store_opens() {
    let (folder, environment) = (TempDir::new().unwrap(), environment());
    let path = folder.path().join("kv");
    let store = open(&environment, &path).await;
    store.apply(many(1, 1_000)).await.unwrap();
    store.flush().await.unwrap();
    store.close().await;
    let files = files_of(&path, "sst");
    let largest = files
        .iter()
        .max_by_key(|path| fs::metadata(path).unwrap().len())
        .unwrap();
    let name = largest.file_name().unwrap();
    for fault in ["missing", "shortened"] {
        let broken = folder.path().join(fault);
        copy_folder(&path, &broken);
        if fault == "missing" {
            fs::remove_file(broken.join(name)).unwrap();
        } else {
            fs::write(broken.join(name), b"short").unwrap();
        }
        let error = KvStore::open(&environment, &broken, bucket(0))
            .await
            .unwrap_err();
        match &error {
            Error::Corrupt { file, .. } | Error::Disk { file, .. } => {
                assert_eq!(
                    file.as_deref(),
                    Some(broken.join(name).as_path()),
                    "{error}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_directory_that_lost_its_current_file_is_not_begun_anew() {
    let (folder, environment) = (TempDir::new().unwrap(), environment());
    let store = open(&environment, folder.path()).await;
    store.apply(batch(1, 1, &[("a", Some("1"))])).await.unwrap();
    store.close().await;
    let current = folder.path().join("CURRENT");
    fs::remove_file(&current).unwrap();
    match KvStore::open(&environment, folder.path(), bucket(0)).await {
        Err(Error::Corrupt { file, .. }) => assert_eq!(file, Some(current)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_directory_whose_making_was_cut_off_is_begun_anew() {
    let (folder, environment) = (TempDir::new().unwrap(), environment());
    fs::write(folder.path().join("MANIFEST-000001"), b"half").unwrap();
    let store = open(&environment, folder.path()).await;
    assert_eq!(store.position().unwrap(), Position::START);
}

#[tokio::test]
async fn a_value_that_is_no_value_is_an_error_that_names_its_key() {
    let (folder, environment) = (TempDir::new().unwrap(), environment());
    let store = open(&environment, folder.path()).await;
    let writes = vec![(key("a"), Some(Bytes::from_static(b"\0")))];
    let batch = FlushBatch {
        end_offset: LogOffset(1),
        writes,
        row_count: RowCountChange::By(1),
    };
    store.apply(Arc::new(batch)).await.unwrap();
    let error = store.get(key("a")).await.unwrap_err();
    assert!(
        matches!(&error, Error::CorruptValue { key, .. } if key == b"a"),
        "{error}"
    );
}

#[tokio::test]
async fn a_cursor_sees_one_moment_whatever_is_written_later() {
    let (folder, environment) = (TempDir::new().unwrap(), environment());
    let store = open(&environment, folder.path()).await;
    store.apply(many(1, 300)).await.unwrap();
    let start = store.open_cursor(None).await.unwrap();
    assert_eq!(start.position.flushed_offset, LogOffset(1));
    let (mut found, mut page) = (Vec::new(), 0);
    loop {
        let answer = store.next_page(start.id, page, 4_000).await.unwrap();
        assert!(!answer.entries.is_empty() && answer.entries.len() < 30);
        found.extend(answer.entries);
        page += 1;
        store
            .apply(batch(1 + i64::from(page), -1, &[("key-000299", None)]))
            .await
            .unwrap();
        store.flush().await.unwrap();
        if !answer.has_more {
            break;
        }
    }
    assert_eq!(found.len(), 300);
    assert!(found.is_sorted_by(|left, right| left.0 < right.0));
    assert_eq!(store.cursor_count(), 0);
    let ended = store.next_page(start.id, page, 4_000).await;
    assert!(matches!(ended, Err(Error::UnknownCursor { .. })));
}

#[tokio::test]
async fn a_limited_cursor_ends_at_its_limit_and_an_empty_bucket_at_once() {
    let (folder, environment) = (TempDir::new().unwrap(), environment());
    let store = open(&environment, folder.path()).await;
    let start = store.open_cursor(None).await.unwrap();
    let page = store.next_page(start.id, 0, 1).await.unwrap();
    assert_eq!((page.entries.len(), page.has_more), (0, false));
    store.apply(many(1, 10)).await.unwrap();
    let start = store.open_cursor(Some(3)).await.unwrap();
    let page = store.next_page(start.id, 0, 1 << 20).await.unwrap();
    assert_eq!((page.entries.len(), page.has_more), (3, false));
}

#[tokio::test]
async fn a_page_out_of_order_is_refused_and_does_not_move_the_cursor() {
    let (folder, environment) = (TempDir::new().unwrap(), environment());
    let store = open(&environment, folder.path()).await;
    store.apply(many(1, 10)).await.unwrap();
    let start = store.open_cursor(None).await.unwrap();
    let early = store.next_page(start.id, 1, 1).await;
    assert!(matches!(
        early,
        Err(Error::PageOrder {
            expected: 0,
            found: 1,
            ..
        })
    ));
    let first = store.next_page(start.id, 0, 1).await.unwrap();
    assert_eq!(first.entries[0].0, key("key-000000"));
    let again = store.next_page(start.id, 0, 1).await;
    assert!(matches!(
        again,
        Err(Error::PageOrder {
            expected: 1,
            found: 0,
            ..
        })
    ));
}

#[tokio::test]
async fn cursors_are_bounded_by_bucket_and_by_server() {
    let config = KvConfig {
        cursors: 3,
        bucket_cursors: 2,
        ..KvConfig::default()
    };
    let (folder, environment) = (TempDir::new().unwrap(), timed(config).0);
    let one = open(&environment, &folder.path().join("1")).await;
    let other = open(&environment, &folder.path().join("2")).await;
    let first = one.open_cursor(None).await.unwrap();
    one.open_cursor(None).await.unwrap();
    let refused = one.open_cursor(None).await;
    assert!(matches!(
        refused,
        Err(Error::TooManyCursors {
            scope: "the bucket",
            limit: 2
        })
    ));
    other.open_cursor(None).await.unwrap();
    let refused = other.open_cursor(None).await;
    assert!(matches!(
        refused,
        Err(Error::TooManyCursors {
            scope: "the server",
            limit: 3
        })
    ));
    assert!(refused.unwrap_err().is_retriable());
    one.close_cursor(first.id);
    // The thread lets go of its permit by itself.
    while environment.cursors.available_permits() == 0 {
        task::yield_now().await;
    }
    other.open_cursor(None).await.unwrap();
}

#[tokio::test]
async fn an_idle_cursor_expires_and_says_so() {
    let config = KvConfig {
        cursor_idle: Duration::from_millis(100),
        ..KvConfig::default()
    };
    let folder = TempDir::new().unwrap();
    let (environment, time) = timed(config);
    let store = open(&environment, folder.path()).await;
    store.apply(many(1, 10)).await.unwrap();
    let start = store.open_cursor(None).await.unwrap();
    time.fetch_add(100, Ordering::SeqCst);
    assert_eq!(store.expire_cursors(), 0);
    store.next_page(start.id, 0, 1).await.unwrap();
    time.fetch_add(100, Ordering::SeqCst);
    store.next_page(start.id, 1, 1).await.unwrap();
    time.fetch_add(101, Ordering::SeqCst);
    assert_eq!(store.expire_cursors(), 1);
    let late = store.next_page(start.id, 2, 1).await;
    assert!(matches!(late, Err(Error::CursorExpired { cursor }) if cursor == start.id));
}

#[tokio::test]
async fn closing_ends_cursors_so_that_the_directory_opens_again() {
    let (folder, environment) = (TempDir::new().unwrap(), environment());
    let store = open(&environment, folder.path()).await;
    store.apply(many(1, 10)).await.unwrap();
    store.open_cursor(None).await.unwrap();
    store.close().await;
    let store = open(&environment, folder.path()).await;
    assert_eq!(store.position().unwrap().row_count, Some(10));
    store.close().await;
    KvStore::remove(&environment, folder.path()).await.unwrap();
    assert!(!folder.path().exists());
    KvStore::remove(&environment, folder.path()).await.unwrap();
}

#[tokio::test]
async fn write_buffers_of_all_buckets_return_to_their_budget() {
    let config = KvConfig {
        memory_bytes: 32 << 20,
        write_buffer_bytes: 8 << 20,
        ..KvConfig::default()
    };
    let (folder, environment) = (TempDir::new().unwrap(), timed(config).0);
    let mut stores = Vec::new();
    for number in 0..4 {
        stores.push(open(&environment, &folder.path().join(number.to_string())).await);
    }
    for round in 1..20 {
        for store in &stores {
            store.apply(many(round, 2_000)).await.unwrap();
        }
    }
    // Without a budget 4 x 19 x 350 KiB would stay in buffers of 8 MiB each.
    let settled = async {
        while environment.write_buffer_usage_bytes() > 12 << 20 {
            task::yield_now().await;
        }
    };
    let settled = tokio::time::timeout(Duration::from_secs(60), settled).await;
    assert!(
        settled.is_ok(),
        "{} bytes",
        environment.write_buffer_usage_bytes()
    );
    assert!(environment.cache_usage_bytes() > 0);
}

#[derive(Clone, Debug)]
enum Step {
    Apply(Vec<(u8, Option<u8>)>),
    Flush,
    Crash,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let writes = prop::collection::vec((0..20u8, any::<Option<u8>>()), 0..6);
    let step = prop_oneof![
        6 => writes.prop_map(Step::Apply),
        2 => Just(Step::Flush),
        1 => Just(Step::Crash),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..25)
}

async fn check(store: &KvStore, model: &BTreeMap<u8, u8>) {
    let found = store.scan(Bytes::new(), 1_000).await.unwrap();
    let found: BTreeMap<u8, u8> = found
        .iter()
        .map(|(key, value)| (key[0], value.row[0]))
        .collect();
    assert_eq!(&found, model);
}

async fn run(steps: Vec<Step>) {
    let (folder, environment) = (TempDir::new().unwrap(), environment());
    let mut path = folder.path().join("0");
    let mut store = open(&environment, &path).await;
    // The state after each offset that was applied.
    let mut history = BTreeMap::from([(0i64, BTreeMap::<u8, u8>::new())]);
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            Step::Apply(writes) => {
                let (end, state) = history.last_key_value().unwrap();
                let (end, mut state) = (end + 1, state.clone());
                let before = i64::try_from(state.len()).unwrap();
                let writes: BTreeMap<u8, Option<u8>> = writes.into_iter().collect();
                for (key, value) in &writes {
                    match value {
                        Some(value) => state.insert(*key, *value),
                        None => state.remove(key),
                    };
                }
                let stored = |byte: u8| StoredValue {
                    schema_id: SchemaId(1),
                    row: Bytes::from(vec![byte]),
                };
                let batch = FlushBatch {
                    end_offset: LogOffset(end),
                    writes: writes
                        .into_iter()
                        .map(|(key, value)| {
                            (
                                Bytes::from(vec![key]),
                                value.map(|byte| stored(byte).encode().unwrap()),
                            )
                        })
                        .collect(),
                    row_count: RowCountChange::By(i64::try_from(state.len()).unwrap() - before),
                };
                store.apply(Arc::new(batch)).await.unwrap();
                history.insert(end, state);
            }
            Step::Flush => {
                store.flush().await.unwrap();
            }
            Step::Crash => {
                let durable = store.durable_position().unwrap();
                path = folder.path().join(format!("{}", number + 1));
                copy_folder(store.directory(), &path);
                store = open(&environment, &path).await;
                assert!(store.position().unwrap().flushed_offset >= durable.flushed_offset);
            }
            Step::Reopen => {
                store.close().await;
                store = open(&environment, &path).await;
                let last = history.last_key_value().unwrap();
                assert_eq!(store.position().unwrap().flushed_offset.0, *last.0);
            }
        }
        let position = store.position().unwrap();
        // What a crash lost is not history any more: the log would be applied again.
        history.split_off(&(position.flushed_offset.0 + 1));
        let (_, state) = history.last_key_value().unwrap();
        assert_eq!(position.row_count, Some(state.len() as u64));
        check(&store, state).await;
    }
    store.close().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn whatever_happens_the_store_holds_the_state_at_its_position(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(run(steps));
    }
}
