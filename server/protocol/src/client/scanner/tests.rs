use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use bytes::Bytes;

use super::*;
use crate::client::assigner::Spread;
use crate::client::fake::FakeCluster;
use crate::client::writer::{LogWriter, LogWriterConfig};
use crate::descriptor::TableDescriptor;
use crate::error_code::ErrorCode;
use crate::schema::{Column, LogicalType, Schema, TypeKind};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(100);

/// A table `(n BIGINT)` whose buckets hold `batches` batches of 10 rows each.
async fn filled(buckets: i32, batches: i64) -> FakeCluster {
    let columns = vec![Column::new("n", LogicalType::not_null(TypeKind::BigInt))];
    let mut descriptor = TableDescriptor::new(Schema::new(columns, Vec::new()).unwrap());
    descriptor.bucket_count = Some(buckets);
    let cluster = FakeCluster::start(descriptor).await;
    fill(&cluster, i64::from(buckets) * batches).await;
    cluster
}

async fn fill(cluster: &FakeCluster, batches: i64) {
    let config = LogWriterConfig {
        batch_bytes: 1,
        spread: Spread::RoundRobin,
        ..Default::default()
    };
    let writer = LogWriter::open(cluster.client.clone(), cluster.path(), config)
        .await
        .unwrap();
    for _ in 0..batches {
        // The smallest batch size cuts every row off: one append of one row is one batch.
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![0]));
        let rows = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
        drop(writer.append(rows).await.unwrap());
    }
    writer.close().await.unwrap();
}

fn fetcher(cluster: &FakeCluster, config: LogFetcherConfig) -> LogFetcher {
    let table = TableId(cluster.state.lock().table_id);
    LogFetcher::new(cluster.client.clone(), cluster.path(), table, config)
}

fn subscription(cluster: &FakeCluster, bucket: i32, start: i64, stop: Option<i64>) -> Subscription {
    let state = cluster.state.lock();
    Subscription {
        bucket: state.bucket(bucket),
        start: LogOffset(start),
        stop: stop.map(LogOffset),
        routing_count: TotalBuckets(state.descriptor.bucket_count.unwrap()),
    }
}

/// Polls until nothing is subscribed.
async fn drain(fetcher: &mut LogFetcher) -> Vec<FetchedBucket> {
    let all = async {
        let mut all = Vec::new();
        while !fetcher.is_done() {
            all.extend(fetcher.poll(LONG).await);
        }
        all
    };
    tokio::time::timeout(LONG, all).await.unwrap()
}

fn offsets(fetched: &[FetchedBucket], bucket: TableBucket) -> Vec<i64> {
    let own = fetched.iter().filter(|entry| entry.bucket == bucket);
    own.flat_map(|entry| &entry.batches)
        .map(|batch| batch.header.base_offset.0)
        .collect()
}

#[tokio::test]
async fn several_buckets_are_read_up_to_their_stops_and_no_further() {
    let cluster = filled(3, 20).await;
    let config = LogFetcherConfig {
        max_bucket_bytes: 700,
        ..Default::default()
    };
    let mut logs = fetcher(&cluster, config);
    for (bucket, start, stop) in [(0, EARLIEST.0, 20), (1, 5, 12), (2, 3, 3)] {
        logs.subscribe(subscription(&cluster, bucket, start, Some(stop)));
    }
    let fetched = drain(&mut logs).await;
    let bucket = |bucket| cluster.state.lock().bucket(bucket);
    assert_eq!(offsets(&fetched, bucket(0)), (0..20).collect::<Vec<_>>());
    assert_eq!(offsets(&fetched, bucket(1)), (5..12).collect::<Vec<_>>());
    assert_eq!(offsets(&fetched, bucket(2)), Vec::<i64>::new());
    assert_eq!(fetched.iter().filter(|entry| entry.finished).count(), 3);
    assert!(fetched.iter().all(|entry| entry.error.is_none()));
}

#[tokio::test]
async fn a_poll_waits_for_rows_that_are_yet_to_come() {
    let cluster = filled(1, 1).await;
    let mut logs = fetcher(&cluster, LogFetcherConfig::default());
    logs.subscribe(subscription(&cluster, 0, 1, None));
    assert!(logs.poll(SHORT).await.is_empty());
    let (fetched, ()) = tokio::join!(logs.poll(LONG), fill(&cluster, 1));
    assert_eq!(fetched.len(), 1);
    assert_eq!(fetched[0].next_offset, LogOffset(2));
    assert_eq!(fetched[0].high_watermark, Some(LogOffset(2)));
    let bucket = cluster.state.lock().bucket(0);
    assert_eq!(logs.unsubscribe(bucket), Some(LogOffset(2)));
}

#[tokio::test]
async fn fc_091_a_leader_that_moved_is_looked_up_and_the_bucket_read_on() {
    let cluster = filled(2, 3).await;
    let bucket = cluster.state.lock().bucket(0);
    let codes = [
        ErrorCode::NotLeaderOrFollower,
        ErrorCode::UnknownTableOrBucket,
        ErrorCode::LeaderNotAvailable,
    ];
    cluster
        .state
        .lock()
        .fetch_errors
        .insert(bucket, codes.into());
    let mut logs = fetcher(&cluster, LogFetcherConfig::default());
    for bucket in 0..2 {
        logs.subscribe(subscription(&cluster, bucket, 0, Some(3)));
    }
    let before = cluster.server.count(crate::api_key::ApiKey::GetMetadata);
    let fetched = drain(&mut logs).await;
    assert_eq!(offsets(&fetched, bucket), [0, 1, 2]);
    assert!(cluster.server.count(crate::api_key::ApiKey::GetMetadata) >= before + 3);
}

#[tokio::test]
async fn a_leader_that_is_not_found_keeps_no_other_bucket_from_being_read() {
    let cluster = filled(2, 3).await;
    let lost = cluster.state.lock().bucket(0);
    let moved = [ErrorCode::NotLeaderOrFollower].into();
    cluster.state.lock().fetch_errors.insert(lost, moved);
    let config = LogFetcherConfig {
        // An answer a batch.
        max_bucket_bytes: 1,
        ..Default::default()
    };
    let mut logs = fetcher(&cluster, config);
    for bucket in 0..2 {
        logs.subscribe(subscription(&cluster, bucket, 0, Some(3)));
    }
    cluster.metadata_answers.send_replace(false);
    let others = async {
        let mut fetched = Vec::new();
        while !fetched.iter().any(|one: &FetchedBucket| one.finished) {
            fetched.extend(logs.poll(LONG).await);
        }
        assert!(logs.poll(SHORT).await.is_empty(), "the wait has its end");
        fetched
    };
    let fetched = tokio::time::timeout(LONG, others).await.unwrap();
    let other = cluster.state.lock().bucket(1);
    assert_eq!(offsets(&fetched, other), [0, 1, 2]);
    cluster.metadata_answers.send_replace(true);
    assert_eq!(offsets(&drain(&mut logs).await, lost), [0, 1, 2]);
}

#[tokio::test]
async fn an_offset_outside_of_the_log_is_a_typed_error_of_its_bucket_alone() {
    let cluster = filled(2, 2).await;
    let mut logs = fetcher(&cluster, LogFetcherConfig::default());
    logs.subscribe(subscription(&cluster, 0, 99, None));
    logs.subscribe(subscription(&cluster, 1, 0, Some(2)));
    let fetched = drain(&mut logs).await;
    let failed: Vec<_> = fetched
        .iter()
        .filter_map(|entry| entry.error.clone())
        .collect();
    assert!(
        matches!(
            failed[..],
            [Error::OffsetOutOfRange {
                offset: LogOffset(99),
                ..
            }]
        ),
        "{failed:?}"
    );
    let bucket = cluster.state.lock().bucket(1);
    assert_eq!(offsets(&fetched, bucket), [0, 1]);
}

#[tokio::test]
async fn a_batch_with_a_wrong_checksum_is_an_error_unless_it_was_projected() {
    let cluster = filled(1, 2).await;
    {
        let mut state = cluster.state.lock();
        let bucket = state.bucket(0);
        let batch = &mut state.logs.get_mut(&bucket).unwrap().batches[1];
        let mut bytes = batch.bytes.to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        batch.bytes = Bytes::from(bytes);
    }
    let mut strict = fetcher(&cluster, LogFetcherConfig::default());
    strict.subscribe(subscription(&cluster, 0, 0, Some(2)));
    let fetched = drain(&mut strict).await;
    assert!(
        matches!(fetched[0].error, Some(Error::Codec { .. })),
        "{fetched:?}"
    );
    let config = LogFetcherConfig {
        projection: Some(vec![0]),
        ..Default::default()
    };
    let mut projected = fetcher(&cluster, config);
    projected.subscribe(subscription(&cluster, 0, 0, Some(2)));
    assert!(
        drain(&mut projected)
            .await
            .iter()
            .all(|entry| entry.error.is_none())
    );
}

#[tokio::test]
async fn a_table_that_is_gone_ends_its_buckets_with_that_error() {
    let cluster = filled(1, 1).await;
    {
        let mut state = cluster.state.lock();
        let bucket = state.bucket(0);
        state
            .fetch_errors
            .insert(bucket, [ErrorCode::UnknownTableOrBucket].into());
        state.table_id = 12;
    }
    let client = cluster.client.clone();
    let mut logs = LogFetcher::new(
        client,
        cluster.path(),
        TableId(11),
        LogFetcherConfig::default(),
    );
    let bucket = TableBucket {
        table: TableId(11),
        ..cluster.state.lock().bucket(0)
    };
    let subscription = Subscription {
        bucket,
        ..subscription(&cluster, 0, 0, None)
    };
    logs.subscribe(subscription);
    let fetched = drain(&mut logs).await;
    assert!(matches!(
        fetched.last().unwrap().error,
        Some(Error::TableReplaced {
            expected: TableId(11),
            found: TableId(12)
        })
    ));
}

#[tokio::test]
async fn trouble_is_told_once_while_a_bucket_is_tried_again_and_ends_it_after_the_patience() {
    let cluster = filled(2, 3).await;
    let bucket = cluster.state.lock().bucket(0);
    let fail = |codes: Vec<ErrorCode>| {
        let mut state = cluster.state.lock();
        state.fetch_errors.insert(bucket, codes.into());
    };
    // It passes by itself: told once, however often it was met.
    fail(vec![ErrorCode::LogStorage; 3]);
    let mut logs = fetcher(&cluster, LogFetcherConfig::default());
    logs.subscribe(subscription(&cluster, 0, 0, Some(3)));
    let fetched = drain(&mut logs).await;
    let told: Vec<_> = fetched.iter().filter_map(|f| f.trouble.as_ref()).collect();
    assert_eq!(
        told.iter().map(|e| e.code()).collect::<Vec<_>>(),
        [Some(ErrorCode::LogStorage)]
    );
    assert_eq!(offsets(&fetched, bucket), [0, 1, 2]);
    // It does not: the bucket ends with it, the other is read.
    fail(vec![ErrorCode::LogStorage; 50]);
    let config = LogFetcherConfig {
        patience: Some(SHORT),
        ..Default::default()
    };
    let mut logs = fetcher(&cluster, config);
    for bucket in 0..2 {
        logs.subscribe(subscription(&cluster, bucket, 0, Some(3)));
    }
    let fetched = drain(&mut logs).await;
    let ended: Vec<_> = fetched.iter().filter(|f| f.error.is_some()).collect();
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0].bucket, bucket);
    let other = cluster.state.lock().bucket(1);
    assert_eq!(offsets(&fetched, other), [0, 1, 2]);
}

#[tokio::test]
async fn one_fetch_at_a_time_goes_to_a_leader() {
    let cluster = filled(4, 1).await;
    let config = LogFetcherConfig {
        max_wait: LONG,
        ..Default::default()
    };
    let mut logs = fetcher(&cluster, config);
    logs.subscribe(subscription(&cluster, 0, 1, None));
    assert!(logs.poll(SHORT).await.is_empty());
    for bucket in 1..4 {
        logs.subscribe(subscription(&cluster, bucket, 0, None));
    }
    assert!(
        logs.poll(SHORT).await.is_empty(),
        "the first fetch is parked"
    );
    assert_eq!(cluster.server.count(crate::api_key::ApiKey::FetchLog), 1);
}

#[tokio::test]
async fn a_bucket_whose_rest_is_over_while_its_leader_is_busy_does_not_make_the_reader_spin() {
    let cluster = filled(2, 0).await;
    let mut fetcher = fetcher(&cluster, LogFetcherConfig::default());
    fetcher.subscribe(subscription(&cluster, 0, 0, None));
    let now = Instant::now();
    let bucket = cluster.state.lock().bucket(0);
    let position = fetcher.positions.get_mut(&bucket).unwrap();
    position.rest(now, SHORT, false);
    let end = position.trouble.as_ref().unwrap().rest_until;
    assert_eq!(fetcher.next_rest_end(now), Some(end));
    assert_eq!(
        fetcher.next_rest_end(end),
        None,
        "its leader's answer wakes it"
    );
}
