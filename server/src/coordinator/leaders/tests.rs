use weir_catalog::clock::ManualClock;
use weir_catalog::store::memory::MemoryStore;
use weir_protocol::error_code::ErrorCode;
use weir_protocol::ids::TablePath;
use weir_protocol::proto::{NotifyLeaderAndIsrResponse, PbNotifyLeaderAndIsrRespForBucket};

use tokio::sync::mpsc;

use super::*;
use crate::peer::Call;

type Acks = mpsc::Sender<NotifyLeaderAndIsrResponse>;

/// A tablet server that takes every update and leaves leader changes to the test.
struct Tablet {
    changes: mpsc::Receiver<(NotifyLeaderAndIsrRequest, Acks)>,
}

fn tablet(id: i32) -> (Peer, Tablet) {
    let (peer, mut calls) = Peer::new(ServerId(id));
    let (sender, changes) = mpsc::channel(8);
    tokio::spawn(async move {
        while let Some(call) = calls.recv().await {
            match call {
                Call::UpdateMetadata(_, answer) => answer.send(Ok(())).unwrap(),
                Call::NotifyLeaderAndIsr(request, acks) => {
                    sender.send((request, acks)).await.unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
    });
    (peer, Tablet { changes })
}

fn leaders(peers: Vec<Peer>) -> (Arc<Leaders>, Arc<MetadataCache>) {
    let store = Arc::new(MemoryStore::default());
    let catalog = Catalog::new(store, Arc::new(ManualClock::new(0)));
    let cache = Arc::new(MetadataCache::default());
    let mut leaders = Leaders::new(catalog, Arc::clone(&cache), peers, 3, Shutdown::new());
    Arc::get_mut(&mut leaders).unwrap().retry = Duration::from_millis(1);
    (leaders, cache)
}

fn group(buckets: i32) -> Group {
    Group {
        path: PhysicalTablePath {
            table: TablePath::new("db", "t"),
            partition: None,
        },
        table: TableId(7),
        partition: None,
        bucket_count: TotalBuckets(buckets),
        bucket_count_epoch: 0,
        schema: SchemaId(1),
        assignment: (0..buckets)
            .map(|bucket| (BucketId(bucket), vec![ServerId(0)]))
            .collect(),
    }
}

fn bucket(bucket: i32) -> TableBucket {
    TableBucket {
        table: TableId(7),
        partition: None,
        bucket: BucketId(bucket),
    }
}

fn ack(bucket_id: i32, error: Option<ErrorCode>) -> NotifyLeaderAndIsrResponse {
    let table_bucket = PbTableBucket {
        table_id: 7,
        partition_id: None,
        bucket_id,
    };
    let entry = PbNotifyLeaderAndIsrRespForBucket {
        table_bucket,
        error_code: error.map(ErrorCode::code),
        error_message: None,
    };
    NotifyLeaderAndIsrResponse {
        notify_buckets_leader_resp: vec![entry],
    }
}

/// Waits until a bucket has a leader.
async fn led(cache: &MetadataCache, id: i32) -> ServerId {
    loop {
        match cache.leader(bucket(id)) {
            Some(leader) => return leader,
            None => tokio::task::yield_now().await,
        }
    }
}

#[tokio::test]
async fn a_slow_bucket_is_not_known_as_led_and_holds_up_no_other() {
    let (peer, mut tablet) = tablet(0);
    let (leaders, cache) = leaders(vec![peer]);
    let activation = leaders.activate(group(2)).await.unwrap();
    let (request, acks) = tablet.changes.recv().await.unwrap();
    assert_eq!(request.coordinator_epoch, 3);
    let asked = &request.notify_buckets_leader_req;
    assert!(
        asked.iter().all(|asked| asked.bucket_count == Some(2)),
        "never without its count"
    );
    assert!(cache.knows(bucket(0)) && cache.leader(bucket(0)).is_none());
    acks.send(ack(1, None)).await.unwrap();
    assert_eq!(led(&cache, 1).await, ServerId(0));
    assert_eq!(cache.leader(bucket(0)), None);
    acks.send(ack(0, None)).await.unwrap();
    drop(acks);
    activation.settled().await;
    assert_eq!(cache.leader(bucket(0)), Some(ServerId(0)));
}

#[tokio::test]
async fn a_bucket_that_cannot_be_opened_is_tried_again_until_it_can() {
    let (peer, mut tablet) = tablet(0);
    let (leaders, cache) = leaders(vec![peer]);
    let activation = leaders.activate(group(2)).await.unwrap();
    let (_, acks) = tablet.changes.recv().await.unwrap();
    acks.send(ack(0, Some(ErrorCode::DiskWriteLocked)))
        .await
        .unwrap();
    acks.send(ack(1, None)).await.unwrap();
    drop(acks);
    activation.settled().await;
    assert_eq!(cache.leader(bucket(0)), None);
    let (again, acks) = tablet.changes.recv().await.unwrap();
    let ids: Vec<i32> = again
        .notify_buckets_leader_req
        .iter()
        .map(|asked| asked.table_bucket.bucket_id)
        .collect();
    assert_eq!(ids, [0], "only what failed");
    acks.send(ack(0, None)).await.unwrap();
    drop(acks);
    assert_eq!(led(&cache, 0).await, ServerId(0));
}

#[tokio::test]
async fn a_bucket_whose_log_cannot_be_read_is_known_at_the_server_that_says_why_and_tried_again() {
    let (peer, mut tablet) = tablet(0);
    let (leaders, cache) = leaders(vec![peer]);
    let activation = leaders.activate(group(1)).await.unwrap();
    let (_, acks) = tablet.changes.recv().await.unwrap();
    acks.send(ack(0, Some(ErrorCode::LogStorage)))
        .await
        .unwrap();
    drop(acks);
    activation.settled().await;
    assert_eq!(cache.leader(bucket(0)), Some(ServerId(0)));
    let (again, _acks) = tablet.changes.recv().await.unwrap();
    assert_eq!(again.notify_buckets_leader_req.len(), 1);
}

#[tokio::test]
async fn every_election_raises_the_epochs_and_a_server_that_is_gone_leads_nothing() {
    let (peer, mut tablet) = tablet(0);
    let (leaders, cache) = leaders(vec![peer]);
    let mut epochs = Vec::new();
    for _ in 0..2 {
        leaders.activate(group(1)).await.unwrap();
        let (request, acks) = tablet.changes.recv().await.unwrap();
        let asked = &request.notify_buckets_leader_req[0];
        epochs.push((asked.leader_epoch, asked.bucket_epoch));
        acks.send(ack(0, None)).await.unwrap();
    }
    assert_eq!(epochs, [(0, 0), (1, 1)]);
    led(&cache, 0).await;
    let elsewhere = BTreeMap::from([(BucketId(0), vec![ServerId(9)])]);
    let group = Group {
        assignment: elsewhere,
        ..group(1)
    };
    leaders.activate(group).await.unwrap().settled().await;
    assert_eq!(cache.leader(bucket(0)), None);
}
