//! Merge engines, images, formats and partial updates; and whatever is put, against a map.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use weir_protocol::error_code::ErrorCode;
use weir_protocol::schema::AggFunction;

use super::*;

fn partial(table: i64, columns: &[i32], records: &[KvRecord]) -> PutKvRequest {
    PutKvRequest {
        target_columns: columns.to_vec(),
        ..put_request(table, 0, kv_batch(records, None))
    }
}

#[tokio::test]
async fn a_partial_update_leaves_the_other_columns_alone() {
    let home = Home::new();
    let server = home.start().await;
    let (_, table) = create(&server, "t", &keyed(&[])).await;
    let mut wire = Wire::tablet(&server).await;
    let steps = [
        (vec![0, 1], upsert((1, Some("a"), Some(9)))),
        (vec![0, 2], upsert((1, Some("z"), Some(2)))),
        (vec![0], upsert((1, None, None))),
        (vec![0, 1], delete(1)),
        (vec![0, 2], delete(1)),
    ];
    for (columns, record) in steps {
        put(&mut wire, partial(table, &columns, &[record]))
            .await
            .unwrap();
    }
    let told = [
        "+I 1,a,-", "-U 1,a,-", "+U 1,a,2", "nothing", "-U 1,a,2", "+U 1,-,2", "-D 1,-,2",
    ];
    assert_eq!(texts(&changes(&mut wire, table).await), told);
    server.shutdown().await;
}

#[tokio::test]
async fn merge_engines_and_images_follow_the_tables_properties() {
    let home = Home::new();
    let server = home.start().await;
    let rows = [
        upsert((1, Some("a"), Some(5))),
        upsert((1, Some("b"), Some(4))),
        upsert((1, Some("c"), Some(5))),
        delete(1),
    ];
    let version = ("table.merge-engine.versioned.ver-column", "n");
    let wal = ("table.changelog.image", "WAL");
    let first_row = ("table.merge-engine", "first_row");
    let versioned = ("table.merge-engine", "versioned");
    let ignore = ("table.delete.behavior", "ignore");
    let cases: &[(&str, &[(&str, &str)], &[&str])] = &[
        ("first_row", &[first_row], &["+I 1,a,5"]),
        (
            "versioned",
            &[versioned, version],
            &["+I 1,a,5", "-U 1,a,5", "+U 1,c,5"],
        ),
        (
            "wal",
            &[wal],
            &["+U 1,a,5", "+U 1,b,4", "+U 1,c,5", "-D 1,c,5"],
        ),
        (
            "ignore",
            &[ignore],
            &["+I 1,a,5", "-U 1,a,5", "+U 1,b,4", "-U 1,b,4", "+U 1,c,5"],
        ),
    ];
    let mut tables = Vec::new();
    for (name, properties, told) in cases {
        let (_, table) = create(&server, name, &keyed(properties)).await;
        let mut wire = Wire::tablet(&server).await;
        put_rows(&mut wire, table, &rows).await;
        assert_eq!(texts(&changes(&mut wire, table).await), *told, "{name}");
        let found = lookup(&mut wire, table, &[1]).await.unwrap();
        tables.push((table, found));
    }
    let disabled = keyed(&[("table.delete.behavior", "disable")]);
    let (_, table) = create(&server, "disable", &disabled).await;
    let mut wire = Wire::tablet(&server).await;
    let refused = put(&mut wire, put_request(table, 0, kv_batch(&rows, None))).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::DeletionDisabled);
    assert!(changes(&mut wire, table).await.is_empty());
    server.shutdown().await;
    let server = home.start().await;
    let mut wire = Wire::tablet(&server).await;
    for (table, found) in tables {
        assert_eq!(lookup(&mut wire, table, &[1]).await.unwrap(), found);
    }
    server.shutdown().await;
}

#[tokio::test]
async fn columns_are_aggregated_by_their_functions() {
    let home = Home::new();
    let server = home.start().await;
    let mut descriptor = keyed(&[
        ("table.merge-engine", "aggregation"),
        ("table.delete.behavior", "allow"),
    ]);
    descriptor.schema.columns[2].agg_function = Some(AggFunction {
        kind: "SUM".to_owned(),
        parameters: BTreeMap::new(),
    });
    let (_, table) = create(&server, "t", &descriptor).await;
    let mut wire = Wire::tablet(&server).await;
    let rows = [
        upsert((1, Some("a"), Some(5))),
        upsert((1, None, Some(4))),
        upsert((1, Some("b"), None)),
    ];
    put_rows(&mut wire, table, &rows).await;
    let sum_alone = partial(table, &[0, 2], &[upsert((1, Some("z"), Some(1)))]);
    put(&mut wire, sum_alone).await.unwrap();
    // A number that its column can't hold: the whole batch is refused.
    let beyond = [
        upsert((2, None, Some(7))),
        upsert((1, None, Some(i32::MAX))),
    ];
    let refused = put(&mut wire, put_request(table, 0, kv_batch(&beyond, None))).await;
    let refused = refused.unwrap_err();
    assert!(refused.message.contains("column `n`"), "{refused:?}");
    // A writer that takes back what it wrote.
    let overwrite = PutKvRequest {
        agg_mode: Some(1),
        ..put_request(table, 0, kv_batch(&[upsert((1, Some("c"), Some(2)))], None))
    };
    put(&mut wire, overwrite).await.unwrap();
    put_rows(&mut wire, table, &[delete(1)]).await;
    let told = [
        "+I 1,a,5",
        "-U 1,a,5",
        "+U 1,a,9",
        "-U 1,a,9",
        "+U 1,b,9",
        "-U 1,b,9",
        "+U 1,b,10",
        "-U 1,b,10",
        "+U 1,c,2",
        "-D 1,c,2",
    ];
    assert_eq!(texts(&changes(&mut wire, table).await), told);
    let found = lookup(&mut wire, table, &[1, 2]).await.unwrap();
    assert_eq!(found, [None, None]);
    server.shutdown().await;
}

/// A table in each log format, and rows in each format that a log may hold; the map is what the rows are.
#[tokio::test]
async fn whatever_is_put_the_rows_are_those_of_a_map_across_restarts() {
    for (seed, properties) in [
        (1, &[("table.log.arrow.compression.type", "NONE")][..]),
        (2, &[("table.log.format", "COMPACTED")]),
        (3, &[("table.log.arrow.compression.type", "LZ4_FRAME")]),
        (4, &[]),
    ] {
        let mut random = StdRng::seed_from_u64(seed);
        let home = Home::new();
        let mut config = home.config();
        // A look every few milliseconds makes keys durable and cuts the log while rows come.
        config.log.retention_check_ms = 7;
        config.log.retention_bytes = 1;
        config.log.segment_bytes = 1 << 20;
        let mut server = home.start_with(config.clone()).await;
        let (_, table) = create(&server, "t", &keyed(properties)).await;
        let mut wire = Wire::tablet(&server).await;
        let mut model: BTreeMap<i64, Row> = BTreeMap::new();
        for step in 0..300 {
            let count = random.random_range(0..6);
            let mut records = Vec::new();
            let columns: &[i32] = match random.random_range(0..4) {
                0 => &[0, 1],
                1 => &[0, 2],
                _ => &[],
            };
            for _ in 0..count {
                let id = random.random_range(0..20);
                if random.random_bool(0.3) {
                    records.push(delete(id));
                    forget(&mut model, id, columns);
                } else {
                    let name = ["a", "b", "c"][random.random_range(0..3)];
                    let row = (id, Some(name), Some(random.random_range(0..9)));
                    records.push(upsert(row));
                    remember(&mut model, row, columns);
                }
            }
            let request = partial(table, columns, &records);
            let acks = if random.random_bool(0.5) { 1 } else { -1 };
            put(&mut wire, PutKvRequest { acks, ..request })
                .await
                .unwrap();
            if acks == -1 {
                check(&mut wire, table, &model).await;
            }
            if step % 60 == 59 {
                server.shutdown().await;
                server = home.start_with(config.clone()).await;
                wire = Wire::tablet(&server).await;
                check(&mut wire, table, &model).await;
            }
        }
        let stats = GetTableStatsRequest {
            table_id: table,
            buckets_req: vec![PbTableStatsReqForBucket::default()],
            target_columns: vec![],
        };
        let stats = wire.call(stats).await.unwrap();
        let rows = i64::try_from(model.len()).unwrap();
        assert_eq!(stats.buckets_resp[0].row_count, Some(rows));
        server.shutdown().await;
    }
}

fn remember(model: &mut BTreeMap<i64, Row>, row: Row, columns: &[i32]) {
    let new = columns.is_empty();
    let old = model.entry(row.0).or_insert((row.0, None, None));
    if new || columns.contains(&1) {
        old.1 = row.1;
    }
    if new || columns.contains(&2) {
        old.2 = row.2;
    }
}

fn forget(model: &mut BTreeMap<i64, Row>, id: i64, columns: &[i32]) {
    let Some(old) = model.get_mut(&id) else {
        return;
    };
    let all = columns.is_empty();
    if all || columns.contains(&1) {
        old.1 = None;
    }
    if all || columns.contains(&2) {
        old.2 = None;
    }
    if all || (old.1.is_none() && old.2.is_none()) {
        model.remove(&id);
    }
}

async fn check(wire: &mut Wire, table: i64, model: &BTreeMap<i64, Row>) {
    let ids: Vec<i64> = (0..20).collect();
    let found = lookup(wire, table, &ids).await.unwrap();
    for (id, found) in ids.iter().zip(found) {
        assert_eq!(found, model.get(id).map(datums), "{id}");
    }
}
