//! What others do to a table's lake, and what of it another table of the daemon feels.

use futures::TryStreamExt as _;
use object_store::ObjectStoreExt as _;

use super::*;

/// Appends rows to the world's table, one after the other, each of which must reach the lake.
async fn tiers_on(world: &mut World, handle: &Handle, rounds: i64) {
    for _ in 0..rounds {
        let before = world.snapshots().await.len();
        world.append(bucket(None, 0), 1);
        world.cluster.state.lock().offer(&world.path);
        let path = world.path.clone();
        until_of(handle, &path, |status| {
            usize::try_from(status.lake_snapshot.unwrap_or(0)).unwrap() > before
        })
        .await;
    }
}

/// How many values of a column are there, and how many are null.
async fn values_of(world: &World, column: &str) -> (usize, usize) {
    let lake = world.lake().await;
    let snapshot = lake.latest_snapshot().await.unwrap().unwrap();
    let (mut values, mut nulls) = (0, 0);
    for split in lake
        .plan(&snapshot, &weir_lake_format::Filter::default())
        .await
        .unwrap()
    {
        let rows = lake.read_split(&split, Some(&[column])).await.unwrap();
        let batches: Vec<arrow::array::RecordBatch> = rows.try_collect().await.unwrap();
        for batch in batches {
            let null = arrow::array::Array::null_count(batch.column(0));
            nulls += null;
            values += batch.num_rows() - null;
        }
    }
    (values, nulls)
}

#[tokio::test]
async fn fc_017_a_column_that_somebody_added_to_the_lake_stops_no_table() {
    let (mut world, altered, of_altered, handle) = two_tables(&Faults::default()).await;
    let other = std::mem::replace(&mut world.path, altered.clone());
    world
        .alter_lake(|schema| {
            let text = schema.fields[1].data_type.clone();
            schema.highest_field_id += 1;
            let extra = weir_lake_format::DataField::new(schema.highest_field_id, "extra", text);
            schema.fields.push(extra);
        })
        .await;
    world.append(of_altered, 1);
    let status = until_of(&handle, &altered, |status| status.lake_snapshot == Some(1)).await;
    assert_eq!(
        (status.state, status.last_error),
        (TableState::Healthy, None)
    );
    assert_eq!(values_of(&world, "extra").await, (0, 1));
    world.path = other.clone();
    tiers_on(&mut world, &handle, 2).await;
    let status = until_of(&handle, &other, |_| true).await;
    assert_eq!(
        (status.state, status.last_error),
        (TableState::Healthy, None)
    );
    handle.shutdown().await;
}

#[tokio::test]
async fn fc_018_a_column_that_comes_in_while_a_round_runs_keeps_its_values() {
    let faults = Faults::default();
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 1);
    {
        let mut state = world.cluster.state.lock();
        state.auto = true;
        state.offer(&world.path);
    }
    faults.hold(Some("fetch"));
    let handle = start(&world, &faults);
    faults.holds().await;
    world.add_column("w").await;
    world.append(bucket(None, 0), 1);
    faults.hold(None);
    let done = |status: &TableStatus| status.lake_snapshot == Some(2);
    until(&handle, |status| committed(status) && done(status)).await;
    assert_eq!(values_of(&world, "w").await, (1, 1));
    world.check(true).await;
    handle.shutdown().await;
}

#[tokio::test]
async fn fc_004_a_damaged_manifest_is_named_and_another_table_goes_on() {
    let mut world = World::new(Shape::plain(1)).await;
    let quick = world.path.clone();
    world.add_table("damaged", TableId(6)).await;
    let of_damaged = weir_protocol::ids::TableBucket {
        table: TableId(6),
        ..bucket(None, 0)
    };
    world.append(of_damaged, 3);
    world.recover().await;
    let lake = world.lake().await;
    let snapshot = lake.latest_snapshot().await.unwrap().unwrap();
    let name = lake.manifests(&snapshot).await.unwrap()[0]
        .file_name
        .clone();
    let mut entries = lake.read_manifest(&name).await.unwrap();
    entries[0].partition.truncate(7);
    let path = lake.root().clone().join("manifest").join(name.as_str());
    let cut = weir_lake_format::encode_manifest(&entries).unwrap();
    lake.store().put(&path, cut.into()).await.unwrap();
    world.append(of_damaged, 3);
    let damaged = std::mem::replace(&mut world.path, quick.clone());
    {
        let mut state = world.cluster.state.lock();
        state.auto = true;
        state.offer(&damaged);
        state.offer(&quick);
    }
    let handle = start(&world, &Faults::default());
    let status = until_of(&handle, &damaged, |status| status.last_error.is_some()).await;
    let reason = status.last_error.unwrap();
    assert!(reason.contains(&name), "{reason}");
    tiers_on(&mut world, &handle, 3).await;
    let status = until_of(&handle, &damaged, |_| true).await;
    assert!(status.last_error.unwrap().contains(&name));
    handle.shutdown().await;
}
