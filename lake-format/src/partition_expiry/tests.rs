use super::*;
use crate::Datum;
use crate::data_file::DataFileMeta;
use crate::schema::NewTable;
use crate::types::DataField;
use crate::write::CommitMessage;
use object_store::memory::InMemory;
use object_store::path::Path;
use std::sync::Arc;

/// 2024-03-10 12:00 local time.
const NOW_MS: i64 = 1_710_072_000_000;

fn schema(ty: &str, options: &[(&str, &str)]) -> TableSchema {
    let set = options.iter();
    let table = NewTable {
        fields: vec![
            DataField::new(-1, "id", "BIGINT".parse().unwrap()),
            DataField::new(-1, "dt", ty.parse().unwrap()),
        ],
        partition_keys: vec!["dt".to_owned()],
        options: set
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        ..NewTable::default()
    };
    TableSchema::create(table, 0).unwrap()
}

async fn table(schema: &TableSchema) -> Table {
    Table::create(Arc::new(InMemory::new()), Path::from("t"), schema)
        .await
        .unwrap()
}

async fn append(table: &Table, schema: &TableSchema, name: &str, dt: Datum, created_ms: i64) {
    let file = DataFileMeta {
        creation_time: Some(created_ms),
        ..DataFileMeta::append(name, 10, 3, 0)
    };
    let request = CommitRequest {
        commit_user: "us".to_owned(),
        commit_identifier: BATCH_COMMIT_IDENTIFIER,
        kind: CommitKind::Append,
        messages: vec![CommitMessage {
            partition: Partition::new(vec![dt], schema).unwrap(),
            bucket: 0,
            total_buckets: -1,
            new_files: vec![file],
            changelog_files: Vec::new(),
        }],
        deletes: Vec::new(),
        properties: BTreeMap::new(),
        allow_empty: false,
        uuid: name.to_owned(),
        now_ms: 7,
    };
    let mut free = |_: &crate::commit::BaseView<'_>| Ok(());
    let outcome = table.commit(&request, &mut free, RetryPolicy::default());
    assert!(matches!(
        outcome.await.unwrap(),
        CommitOutcome::Committed(_)
    ));
}

fn text(dt: &str) -> Datum {
    Datum::String(dt.to_owned())
}

async fn expire(table: &Table, expiry: &PartitionExpiry) -> ExpiredPartitions {
    let latest = table.latest_snapshot_id().await.unwrap();
    let request = PartitionExpiryRequest {
        expiry,
        commit_user: "weir-maintenance",
        uuid: &format!("expiry-{latest:?}"),
        now_ms: 8,
        local_now_ms: NOW_MS,
    };
    table.expire_partitions(&request).await.unwrap()
}

async fn live(table: &Table) -> Vec<String> {
    let latest = table.latest_snapshot().await.unwrap().unwrap();
    let live = table.live_entries(&latest).await.unwrap();
    live.into_iter().map(|e| e.file.file_name).collect()
}

const DAY: (&str, &str) = ("partition.expiration-time", "1 d");

#[tokio::test]
async fn fc_064_a_partition_of_three_days_ago_goes_and_todays_stays() {
    let schema = schema("STRING", &[DAY]);
    let table = table(&schema).await;
    append(&table, &schema, "today", text("2024-03-10"), 0).await;
    append(&table, &schema, "old-1", text("2024-03-07"), 0).await;
    append(&table, &schema, "old-2", text("2024-03-07"), 0).await;
    append(&table, &schema, "odd", text("never"), 0).await;
    append(&table, &schema, "null", Datum::Null, 0).await;
    let expiry = PartitionExpiry::of(&schema).unwrap().unwrap();
    let expired = expire(&table, &expiry).await;
    assert_eq!(expired.partitions, ["dt=2024-03-07"]);
    assert_eq!((expired.files, expired.rows), (2, 6));
    let (first, count) = expired.without_time.unwrap();
    assert_eq!(count, 2, "{first}");
    let snapshot = expired.snapshot.unwrap();
    assert_eq!(snapshot.commit_kind, CommitKind::Overwrite);
    assert_eq!(snapshot.commit_user, "weir-maintenance");
    assert_eq!(
        (snapshot.delta_record_count, snapshot.total_record_count),
        (-6, 9)
    );
    assert_eq!(
        snapshot.property(EXPIRED_PARTITIONS),
        Some(r#"["dt=2024-03-07"]"#)
    );
    assert_eq!(live(&table).await, ["today", "odd", "null"]);
    // A row that comes late is one like any other, until the next expiry.
    append(&table, &schema, "late", text("2024-03-07"), 0).await;
    assert_eq!(live(&table).await.len(), 4);
    assert_eq!(expire(&table, &expiry).await.files, 1);
    assert!(expire(&table, &expiry).await.snapshot.is_none());
    assert_eq!(live(&table).await, ["today", "odd", "null"]);
}

#[tokio::test]
async fn a_partition_is_old_only_once_its_age_is_passed() {
    let schema = schema("STRING", &[DAY]);
    let table = table(&schema).await;
    append(&table, &schema, "a", text("2024-03-09 12:00:00"), 0).await;
    append(&table, &schema, "b", text("2024-03-09 11:59:59"), 0).await;
    let expiry = PartitionExpiry::of(&schema).unwrap().unwrap();
    assert_eq!(
        expire(&table, &expiry).await.partitions,
        ["dt=2024-03-09 11:59:59"]
    );
}

#[tokio::test]
async fn dates_and_update_times_expire_as_well() {
    let dates = schema("DATE", &[DAY]);
    let by_date = table(&dates).await;
    let expiry = PartitionExpiry::of(&dates).unwrap().unwrap();
    // 2024-03-10 is day 19,792.
    append(&by_date, &dates, "today", Datum::Date(19_792), 0).await;
    append(&by_date, &dates, "old", Datum::Date(19_790), 0).await;
    assert_eq!(
        expire(&by_date, &expiry).await.partitions,
        ["dt=2024-03-08"]
    );
    let update = ("partition.expiration-strategy", "update-time");
    let schema = schema("STRING", &[DAY, update]);
    let by_update = table(&schema).await;
    let expiry = PartitionExpiry::of(&schema).unwrap().unwrap();
    let hour = 3_600_000;
    append(&by_update, &schema, "a1", text("a"), NOW_MS - 30 * hour).await;
    append(&by_update, &schema, "a2", text("a"), NOW_MS - 3 * hour).await;
    append(&by_update, &schema, "b1", text("b"), NOW_MS - 25 * hour).await;
    assert_eq!(expire(&by_update, &expiry).await.partitions, ["dt=b"]);
}

#[tokio::test]
async fn no_more_go_at_a_time_than_the_option_says_oldest_first() {
    let schema = schema("STRING", &[DAY, ("partition.expiration-max-num", "2")]);
    let table = table(&schema).await;
    for dt in ["2024-03-03", "2024-03-01", "2024-03-02"] {
        append(&table, &schema, dt, text(dt), 0).await;
    }
    let expiry = PartitionExpiry::of(&schema).unwrap().unwrap();
    let first = expire(&table, &expiry).await;
    assert_eq!(first.partitions, ["dt=2024-03-01", "dt=2024-03-02"]);
    assert_eq!(live(&table).await, ["2024-03-03"]);
}

#[test]
fn without_the_option_partitions_stay_and_bad_options_are_named() {
    let of = |options: &[(&str, &str)]| PartitionExpiry::of(&schema("STRING", options));
    assert!(of(&[]).unwrap().is_none());
    for bad in [
        ("partition.expiration-time", "soon"),
        ("partition.expiration-strategy", "moon"),
        ("partition.expiration-check-interval", "-1 d"),
        ("partition.timestamp-formatter", "yyyy MMM"),
    ] {
        let error = of(&[DAY, bad]).unwrap_err().to_string();
        assert!(error.contains(bad.0), "{error}");
    }
    let check = of(&[DAY, ("partition.expiration-check-interval", "0")]);
    assert!(check.unwrap().unwrap().check_interval.is_zero());
}
