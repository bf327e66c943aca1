use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{ArrayRef, AsArray, Int64Array, StringArray};
use arrow::datatypes::Int64Type;
use proptest::prelude::*;
use tokio::time::Instant;

use super::queue::{Queue, Verdict};
use super::*;
use crate::client::Backoff;
use crate::client::fake::{FakeCluster, FakePartition, Fault, Produced};
use crate::descriptor::TableDescriptor;
use crate::error_code::ErrorCode;
use crate::record::arrow::decode;
use crate::schema::{Column, LogicalType, Schema, TypeKind};

/// `(id BIGINT NOT NULL, day STRING NOT NULL, note STRING)` with these buckets.
fn table(buckets: i32) -> TableDescriptor {
    let columns = vec![
        Column::new("id", LogicalType::not_null(TypeKind::BigInt)),
        Column::new("day", LogicalType::not_null(TypeKind::String)),
        Column::new("note", LogicalType::nullable(TypeKind::String)),
    ];
    let mut descriptor = TableDescriptor::new(Schema::new(columns, Vec::new()).unwrap());
    descriptor.bucket_count = Some(buckets);
    descriptor
}

fn by_day(buckets: i32) -> TableDescriptor {
    let mut descriptor = table(buckets);
    descriptor.partition_keys = vec!["day".to_owned()];
    descriptor
}

fn rows_of_days(ids: &[i64], days: &[&str]) -> RecordBatch {
    let notes = ids
        .iter()
        .map(|id| (id % 3 != 0).then(|| format!("note {id}")));
    let columns: [(&str, ArrayRef); 3] = [
        ("id", Arc::new(Int64Array::from(ids.to_vec()))),
        ("day", Arc::new(StringArray::from(days.to_vec()))),
        ("note", Arc::new(notes.collect::<StringArray>())),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn rows(ids: impl IntoIterator<Item = i64>) -> RecordBatch {
    let ids: Vec<i64> = ids.into_iter().collect();
    rows_of_days(&ids, &vec!["d"; ids.len()])
}

fn ids_of(rows: &RecordBatch) -> Vec<i64> {
    rows.column(0).as_primitive::<Int64Type>().values().to_vec()
}

/// What each log holds, in order.
fn stored(cluster: &FakeCluster) -> BTreeMap<TableBucket, Vec<i64>> {
    let state = cluster.state.lock();
    let schema = state.descriptor.schema.arrow_schema();
    let read = |log: &crate::client::fake::FakeLog| {
        log.batches
            .iter()
            .flat_map(|b| ids_of(&decode(b, &schema).unwrap().batch))
            .collect()
    };
    state
        .logs
        .iter()
        .map(|(bucket, log)| (*bucket, read(log)))
        .collect()
}

fn only(cluster: &FakeCluster) -> Vec<i64> {
    let mut all = stored(cluster);
    assert_eq!(all.len(), 1, "{all:?}");
    all.pop_first().unwrap().1
}

fn produced(cluster: &FakeCluster) -> Vec<Produced> {
    cluster.state.lock().produced.clone()
}

/// Closes batches by flush alone.
fn by_flush() -> LogWriterConfig {
    LogWriterConfig {
        linger: None,
        ..Default::default()
    }
}

async fn open(cluster: &FakeCluster, config: LogWriterConfig) -> LogWriter {
    LogWriter::open(cluster.client.clone(), cluster.path(), config)
        .await
        .unwrap()
}

/// Appends each of `ids` as a batch of its own without waiting for acknowledgements.
async fn append_singly(writer: &LogWriter, ids: std::ops::Range<i64>) -> Vec<Acknowledgement> {
    let mut acks = Vec::new();
    for id in ids {
        acks.push(writer.append(rows([id])).await.unwrap());
    }
    acks
}

/// A batch per append: the smallest batch size there is.
fn one_batch_each() -> LogWriterConfig {
    LogWriterConfig {
        batch_bytes: 1,
        ..Default::default()
    }
}

#[tokio::test]
async fn an_append_is_acknowledged_with_its_offset_and_its_routing_count_is_sent() {
    let cluster = FakeCluster::start(table(1)).await;
    let writer = open(&cluster, LogWriterConfig::default()).await;
    let first = writer
        .append(rows([1, 2, 3]))
        .await
        .unwrap()
        .wait()
        .await
        .unwrap();
    let second = writer
        .append(rows([4]))
        .await
        .unwrap()
        .wait()
        .await
        .unwrap();
    let bucket = cluster.state.lock().bucket(0);
    assert_eq!(
        first,
        [Appended {
            bucket,
            base_offset: Some(LogOffset(0))
        }]
    );
    assert_eq!(
        second,
        [Appended {
            bucket,
            base_offset: Some(LogOffset(3))
        }]
    );
    assert_eq!(only(&cluster), [1, 2, 3, 4]);
    assert!(
        produced(&cluster)
            .iter()
            .all(|entry| entry.routing_count == Some(1))
    );
    writer.close().await.unwrap();
}

#[tokio::test]
async fn rows_of_a_keyed_table_go_to_the_bucket_of_their_key() {
    let mut descriptor = table(3);
    descriptor.bucket_keys = vec!["id".to_owned()];
    descriptor
        .properties
        .insert("table.datalake.format".into(), "paimon".into());
    let cluster = FakeCluster::start(descriptor).await;
    let writer = open(&cluster, by_flush()).await;
    drop(writer.append(rows(0..300)).await.unwrap());
    writer.flush().await.unwrap();
    let types = [LogicalType::not_null(TypeKind::BigInt)];
    let mut total = 0;
    for (bucket, ids) in stored(&cluster) {
        assert!(ids.is_sorted(), "order is kept within a bucket");
        for id in &ids {
            let format = crate::row::key::KeyFormat::Paimon;
            let key = format
                .encode(&[crate::row::Datum::BigInt(*id)], &types)
                .unwrap();
            let own = format.bucket(&key, TotalBuckets(3)).unwrap();
            assert_eq!(own, bucket.bucket);
        }
        total += ids.len();
    }
    assert_eq!(total, 300);
}

#[tokio::test]
async fn columns_are_found_by_name_and_bad_rows_are_refused_before_any_is_taken() {
    let cluster = FakeCluster::start(table(1)).await;
    let writer = open(&cluster, by_flush()).await;
    let days: ArrayRef = Arc::new(StringArray::from(vec!["d"]));
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![7]));
    let turned = [("day", Arc::clone(&days)), ("id", Arc::clone(&ids))];
    let ack = writer
        .append(RecordBatch::try_from_iter(turned).unwrap())
        .await
        .unwrap();
    writer.flush().await.unwrap();
    ack.wait().await.unwrap();
    assert_eq!(only(&cluster), [7]);

    let nulls: ArrayRef = Arc::new(Int64Array::from(vec![None]));
    let text: ArrayRef = Arc::new(StringArray::from(vec!["7"]));
    let bad: [Vec<(&str, ArrayRef)>; 4] = [
        vec![("id", Arc::clone(&ids))],
        vec![("day", Arc::clone(&days)), ("id", nulls)],
        vec![("day", Arc::clone(&days)), ("id", text)],
        vec![("day", Arc::clone(&days)), ("id", ids), ("other", days)],
    ];
    for (columns, column) in bad.into_iter().zip(["day", "id", "id", "other"]) {
        let error = writer
            .append(RecordBatch::try_from_iter(columns).unwrap())
            .await
            .unwrap_err();
        assert!(
            matches!(&error, Error::Rows { column: c, .. } if c == column),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_with_the_same_sequence_and_stored_once() {
    let cluster = FakeCluster::start(table(1)).await;
    for fault in [Fault::LoseAnswer, Fault::LoseRequest] {
        cluster.state.lock().faults.push_back(Some(fault));
    }
    let writer = open(&cluster, LogWriterConfig::default()).await;
    writer
        .append(rows([1, 2]))
        .await
        .unwrap()
        .wait()
        .await
        .unwrap();
    assert_eq!(only(&cluster), [1, 2]);
    let sent = produced(&cluster);
    assert!(sent.len() >= 2);
    assert!(
        sent.iter()
            .all(|entry| (entry.writer, entry.sequence) == (71, 0)),
        "{sent:?}"
    );
}

#[tokio::test]
async fn a_duplicate_answered_as_an_error_counts_as_written() {
    let cluster = FakeCluster::start(table(1)).await;
    let say = Fault::StoreAndSay(ErrorCode::DuplicateSequence);
    cluster.state.lock().faults.push_back(Some(say));
    let writer = open(&cluster, LogWriterConfig::default()).await;
    let appended = writer
        .append(rows([1]))
        .await
        .unwrap()
        .wait()
        .await
        .unwrap();
    assert_eq!(appended[0].base_offset, None);
    assert_eq!(only(&cluster), [1]);
}

#[tokio::test]
async fn fc_049_a_batch_whose_answer_was_lost_is_done_at_its_first_retry() {
    // The server remembers the batch, or has forgotten it behind the later ones.
    for retry in [None, Some(Fault::Refuse(ErrorCode::OutOfOrderSequence))] {
        let cluster = FakeCluster::start(table(1)).await;
        let lost = Some(Fault::StoreAndSay(ErrorCode::RequestTimeOut));
        let faults = [None, None, None, None, None, lost, None, None, retry];
        cluster.state.lock().faults = faults.into();
        let writer = open(&cluster, one_batch_each()).await;
        for ack in append_singly(&writer, 0..5).await {
            ack.wait().await.unwrap();
        }
        // Three are on their way before the first answer comes.
        cluster.answers.send_replace(false);
        let acks = append_singly(&writer, 5..8).await;
        while produced(&cluster).len() < 8 {
            tokio::task::yield_now().await;
        }
        cluster.answers.send_replace(true);
        let mut offsets = Vec::new();
        for ack in acks {
            offsets.push(ack.wait().await.unwrap()[0].base_offset);
        }
        let known = retry.is_none().then_some(LogOffset(5));
        assert_eq!(offsets, [known, Some(LogOffset(6)), Some(LogOffset(7))]);
        assert_eq!(only(&cluster), (0..8).collect::<Vec<_>>());
        let sent: Vec<_> = produced(&cluster)
            .iter()
            .map(|entry| entry.sequence)
            .collect();
        assert_eq!(sent, [0, 1, 2, 3, 4, 5, 6, 7, 5]);
    }
}

#[tokio::test]
async fn fc_091_order_is_kept_when_one_of_many_batches_is_refused_for_a_while() {
    let cluster = FakeCluster::start(table(1)).await;
    let refuse = |code| Some(Fault::Refuse(code));
    cluster.state.lock().faults = [
        None,
        refuse(ErrorCode::NotLeaderOrFollower),
        None,
        refuse(ErrorCode::NotEnoughReplicas),
        None,
    ]
    .into();
    let writer = open(&cluster, one_batch_each()).await;
    let acks = append_singly(&writer, 0..40).await;
    for ack in acks {
        ack.wait().await.unwrap();
    }
    assert_eq!(only(&cluster), (0..40).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_is_tried_again_is_told_until_it_succeeds() {
    let cluster = FakeCluster::start(table(1)).await;
    let writer = open(&cluster, by_flush()).await;
    assert!(writer.trouble().await.unwrap().is_none());
    let ack = writer.append(rows([1])).await.unwrap();
    let refusals = std::iter::repeat_n(Some(Fault::Refuse(ErrorCode::Storage)), 10_000);
    cluster.state.lock().faults = refusals.collect();
    let (flushed, ()) = tokio::join!(writer.flush(), async {
        loop {
            if let Some(error) = writer.trouble().await.unwrap() {
                assert_eq!(error.code(), Some(ErrorCode::Storage));
                break;
            }
            tokio::task::yield_now().await;
        }
        cluster.state.lock().faults.clear();
    });
    flushed.unwrap();
    ack.wait().await.unwrap();
    assert!(writer.trouble().await.unwrap().is_none());
    assert_eq!(only(&cluster), [1]);
}

#[tokio::test]
async fn no_more_than_five_batches_of_a_bucket_are_in_flight() {
    let cluster = FakeCluster::start(table(1)).await;
    cluster.answers.send_replace(false);
    let writer = open(&cluster, one_batch_each()).await;
    let acks = append_singly(&writer, 0..12).await;
    let five = async {
        while produced(&cluster).len() < 5 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), five)
        .await
        .unwrap();
    // Whatever else the writer does first: it has nothing to send.
    writer.state().await.unwrap();
    assert_eq!(produced(&cluster).len(), 5);
    cluster.answers.send_replace(true);
    for ack in acks {
        ack.wait().await.unwrap();
    }
    assert_eq!(only(&cluster), (0..12).collect::<Vec<_>>());
}

#[tokio::test]
async fn fc_095_appends_wait_while_the_buffer_is_full() {
    let cluster = FakeCluster::start(table(1)).await;
    cluster.answers.send_replace(false);
    let config = LogWriterConfig {
        buffer_bytes: 1 << 16,
        ..one_batch_each()
    };
    let writer = Arc::new(open(&cluster, config).await);
    let appending = Arc::clone(&writer);
    let mut task = tokio::spawn(async move {
        for start in 0..100 {
            drop(
                appending
                    .append(rows(start * 100..start * 100 + 100))
                    .await
                    .unwrap(),
            );
        }
    });
    let early = tokio::time::timeout(Duration::from_millis(300), &mut task).await;
    assert!(early.is_err(), "10 000 rows do not fit 64 KiB");
    cluster.answers.send_replace(true);
    tokio::time::timeout(Duration::from_secs(20), task)
        .await
        .unwrap()
        .unwrap();
    writer.flush().await.unwrap();
    assert_eq!(only(&cluster), (0..10_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_writer_that_the_server_forgot_gets_a_new_id_and_goes_on() {
    let cluster = FakeCluster::start(table(2)).await;
    let config = LogWriterConfig {
        spread: Spread::RoundRobin,
        ..LogWriterConfig::default()
    };
    let writer = open(&cluster, config).await;
    for id in 0..4 {
        drop(writer.append(rows([id])).await.unwrap());
    }
    writer.flush().await.unwrap();
    let refuse = Fault::Refuse(ErrorCode::UnknownWriterId);
    cluster.state.lock().faults.push_back(Some(refuse));
    for id in 4..8 {
        drop(writer.append(rows([id])).await.unwrap());
    }
    writer.flush().await.unwrap();
    let held: Vec<Vec<i64>> = stored(&cluster).into_values().collect();
    assert_eq!(held, [vec![0, 2, 4, 6], vec![1, 3, 5, 7]]);
    let writers: BTreeSet<i64> = produced(&cluster)
        .iter()
        .map(|entry| entry.writer)
        .collect();
    assert_eq!(writers, BTreeSet::from([71, 72]));
}

#[tokio::test]
async fn a_forgotten_writer_with_a_batch_in_doubt_fails_instead_of_writing_twice() {
    let cluster = FakeCluster::start(table(1)).await;
    cluster.state.lock().faults = [
        Some(Fault::LoseAnswer),
        Some(Fault::Refuse(ErrorCode::UnknownWriterId)),
    ]
    .into();
    let writer = open(&cluster, LogWriterConfig::default()).await;
    let error = writer
        .append(rows([1]))
        .await
        .unwrap()
        .wait()
        .await
        .unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UnknownWriterId));
    assert_eq!(only(&cluster), [1]);
    let later = writer
        .append(rows([2]))
        .await
        .unwrap()
        .wait()
        .await
        .unwrap_err();
    assert!(
        matches!(later, Error::EarlierBatchFailed { .. }),
        "{later:?}"
    );
    assert!(
        writer.close().await.is_err(),
        "a failed batch is told again at the end"
    );
}

#[tokio::test]
async fn a_refused_batch_fails_with_all_behind_it_and_other_buckets_go_on() {
    let cluster = FakeCluster::start(table(2)).await;
    let config = LogWriterConfig {
        spread: Spread::RoundRobin,
        ..one_batch_each()
    };
    let writer = open(&cluster, config).await;
    writer
        .append(rows([0]))
        .await
        .unwrap()
        .wait()
        .await
        .unwrap();
    writer
        .append(rows([1]))
        .await
        .unwrap()
        .wait()
        .await
        .unwrap();
    let refuse = Fault::Refuse(ErrorCode::RecordTooLarge);
    cluster.state.lock().faults.push_back(Some(refuse));
    let refused = writer
        .append(rows([2]))
        .await
        .unwrap()
        .wait()
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::RecordTooLarge));
    writer
        .append(rows([3]))
        .await
        .unwrap()
        .wait()
        .await
        .unwrap();
    let behind = writer
        .append(rows([4]))
        .await
        .unwrap()
        .wait()
        .await
        .unwrap_err();
    assert!(matches!(behind, Error::EarlierBatchFailed { .. }));
    let error = writer.flush().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::RecordTooLarge));
    let held: Vec<Vec<i64>> = stored(&cluster).into_values().collect();
    assert_eq!(held, [vec![0], vec![1, 3]]);
}

#[tokio::test]
async fn a_missing_partition_is_made_and_awaited_until_id_and_count_are_there() {
    let cluster = FakeCluster::start(by_day(4)).await;
    {
        let mut state = cluster.state.lock();
        // After an ALTER of the table's count, a partition's own count must be known.
        state.epoch = 1;
        state.hidden_after_create = 2;
        state.count_after_create = Some(1);
        let old = FakePartition {
            id: 7,
            bucket_count: Some(2),
            hidden: 0,
        };
        state.partitions.insert("2026-01-01".to_owned(), old);
    }
    let writer = open(&cluster, by_flush()).await;
    let days = ["2026-01-01", "2026-01-02", "2026-01-01"];
    drop(
        writer
            .append(rows_of_days(&[1, 2, 3], &days))
            .await
            .unwrap(),
    );
    writer.flush().await.unwrap();
    let sent = produced(&cluster);
    let route = |entry: &Produced| (entry.bucket.partition.unwrap().0, entry.routing_count);
    let routes: BTreeMap<_, _> = sent.iter().map(route).collect();
    assert_eq!(routes, BTreeMap::from([(7, Some(2)), (101, Some(1))]));
    let held: Vec<Vec<i64>> = stored(&cluster).into_values().collect();
    assert_eq!(held, [vec![1, 3], vec![2]]);
    assert_eq!(
        cluster
            .server
            .count(crate::api_key::ApiKey::CreatePartition),
        1
    );
}

#[tokio::test]
async fn an_append_that_fails_for_one_partition_writes_to_none() {
    let cluster = FakeCluster::start(by_day(1)).await;
    let there = FakePartition {
        id: 5,
        bucket_count: Some(1),
        hidden: 0,
    };
    cluster
        .state
        .lock()
        .partitions
        .insert("a".to_owned(), there);
    let config = LogWriterConfig {
        create_partitions: false,
        ..by_flush()
    };
    let writer = open(&cluster, config).await;
    let rows = rows_of_days(&[1, 2], &["a", "missing"]);
    let error = writer.append(rows).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::PartitionNotExists));
    writer.flush().await.unwrap();
    assert_eq!(produced(&cluster), []);
}

#[tokio::test]
async fn a_missing_partition_is_an_error_if_it_may_not_be_made() {
    let cluster = FakeCluster::start(by_day(1)).await;
    let writer = open(
        &cluster,
        LogWriterConfig {
            create_partitions: false,
            ..by_flush()
        },
    )
    .await;
    let error = writer.append(rows([1])).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::PartitionNotExists));
}

#[tokio::test]
async fn tables_that_a_writer_cannot_write_are_refused_at_open() {
    let mut keyed = table(1);
    keyed.schema = Schema::new(keyed.schema.columns, vec!["id".to_owned()]).unwrap();
    keyed
        .properties
        .insert("table.kv.format".into(), "PLAIN".into());
    let mut indexed = table(1);
    indexed
        .properties
        .insert("table.log.format".into(), "INDEXED".into());
    let mut packed = table(1);
    packed
        .properties
        .insert("table.log.arrow.compression.type".into(), "BROTLI".into());
    for descriptor in [keyed, indexed, packed] {
        let cluster = FakeCluster::start(descriptor).await;
        let config = LogWriterConfig::default();
        let opened = LogWriter::open(cluster.client.clone(), cluster.path(), config).await;
        assert!(matches!(opened, Err(Error::Codec { .. })));
    }
}

/// Loads rows `from * 5..200` as `weir load` does: it keeps a checkpoint (the next append and the
/// writer's state) after each flush, and flushes by a rule of the appends alone. Dies before the
/// append `dies_at`; answers the last checkpoint.
async fn load(
    cluster: &FakeCluster,
    checkpoint: Option<(i64, WriterState)>,
    dies_at: i64,
) -> Option<(i64, WriterState)> {
    let from = checkpoint.as_ref().map_or(0, |(from, _)| *from);
    let resume = checkpoint.map(|(_, state)| state);
    let config = LogWriterConfig {
        batch_bytes: 300,
        resume,
        ..by_flush()
    };
    let writer = open(cluster, config).await;
    let mut last = (from, writer.state().await.unwrap());
    for append in from..40 {
        if append == dies_at {
            return Some(last);
        }
        drop(
            writer
                .append(rows(append * 5..append * 5 + 5))
                .await
                .unwrap(),
        );
        if writer.unflushed_batches().await.unwrap() >= 4 {
            writer.flush().await.unwrap();
            let state = serde_json::to_string(&writer.state().await.unwrap()).unwrap();
            last = (append + 1, serde_json::from_str(&state).unwrap());
        }
    }
    writer.close().await.unwrap();
    None
}

#[tokio::test]
async fn a_load_that_dies_anywhere_and_resumes_writes_every_row_once() {
    for dies_at in [0, 1, 3, 7, 8, 14, 22, 39] {
        let cluster = FakeCluster::start(table(2)).await;
        let checkpoint = load(&cluster, None, dies_at).await;
        assert!(checkpoint.is_some());
        let again = load(&cluster, checkpoint, dies_at + 5).await;
        if let Some(checkpoint) = again {
            assert!(load(&cluster, Some(checkpoint), i64::MAX).await.is_none());
        }
        let writers: BTreeSet<i64> = produced(&cluster)
            .iter()
            .map(|entry| entry.writer)
            .collect();
        assert_eq!(writers, BTreeSet::from([71]));
        let held = stored(&cluster);
        let mut all: Vec<i64> = held.values().flatten().copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..200).collect::<Vec<_>>(), "died at {dies_at}");
        assert!(
            held.values().all(|ids| ids.is_sorted()),
            "died at {dies_at}"
        );
    }
}

#[test]
fn a_bucket_that_failed_for_good_asks_for_its_leader_no_more() {
    let bucket = TableBucket {
        table: TableId(1),
        partition: None,
        bucket: BucketId(0),
    };
    let target = Target {
        table: bucket.table,
        partition: None,
        name: None,
        total_buckets: TotalBuckets(1),
    };
    let backoff = Backoff::new(Duration::from_millis(100));
    let mut queue = Queue::new(bucket, Arc::new(target), 0, backoff);
    queue.rest(Error::NoLeader { bucket }, Instant::now());
    assert!(queue.wants_leader);
    let verdict = queue.fail(Error::NoLeader { bucket });
    assert!(matches!(verdict, Verdict::Failed { .. }));
    assert!(
        !queue.wants_leader,
        "each answer would bring the next question"
    );
}

#[tokio::test]
async fn a_dropped_writer_gives_up_and_its_acknowledgements_say_so() {
    let cluster = FakeCluster::start(table(1)).await;
    cluster.answers.send_replace(false);
    let writer = open(&cluster, one_batch_each()).await;
    let ack = writer.append(rows([1])).await.unwrap();
    drop(writer);
    assert!(matches!(ack.wait().await, Err(Error::Closed)));
}

fn fault() -> impl Strategy<Value = Option<Fault>> {
    prop_oneof![
        3 => Just(None),
        1 => Just(Some(Fault::LoseAnswer)),
        1 => Just(Some(Fault::LoseRequest)),
        1 => Just(Some(Fault::Refuse(ErrorCode::NotLeaderOrFollower))),
        1 => Just(Some(Fault::Refuse(ErrorCode::StorageBackpressure))),
        1 => Just(Some(Fault::StoreAndSay(ErrorCode::RequestTimeOut))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn whatever_goes_wrong_every_row_is_stored_once_and_in_order(
        faults in prop::collection::vec(fault(), 0..8),
        sizes in prop::collection::vec(1_i64..40, 1..30),
        batch_bytes in 1_usize..2000,
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async move {
            let cluster = FakeCluster::start(table(2)).await;
            cluster.state.lock().faults = faults.into();
            let config = LogWriterConfig { batch_bytes, ..LogWriterConfig::default() };
            let writer = open(&cluster, config).await;
            let mut acks = Vec::new();
            let mut next = 0;
            for size in sizes {
                acks.push(writer.append(rows(next..next + size)).await.unwrap());
                next += size;
            }
            writer.flush().await.unwrap();
            for ack in acks {
                ack.wait().await.unwrap();
            }
            let held = stored(&cluster);
            for ids in held.values() {
                prop_assert!(ids.is_sorted(), "{held:?}");
            }
            let mut all: Vec<i64> = held.into_values().flatten().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..next).collect::<Vec<_>>());
            Ok(())
        })?;
    }
}
