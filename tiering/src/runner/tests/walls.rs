//! What stops or changes one table: lost offsets, lakes changed by others, schemas that move on.

use super::*;

#[tokio::test]
async fn fc_061_lost_offsets_that_a_person_let_go_are_passed_over_and_noted_down() {
    let mut world = World::new(Shape::plain(2)).await;
    for rows in [100, 150, 50] {
        world.append_named(bucket(None, 0), rows, |_| true);
        if rows == 100 {
            world.recover().await;
        }
    }
    world.append_named(bucket(None, 1), 7, |_| true);
    // Retention took what the lake lacks: progress says 100, the log starts at 250.
    world.edit_log(bucket(None, 0), |log| {
        log.start = 250;
        log.batches.drain(..2);
    });
    let report = world.round().await.unwrap();
    let (at, trouble) = &report.faults[0];
    assert_eq!(*at, bucket(None, 0));
    assert!(
        trouble.lasting && trouble.reason.contains("lost range 100..250"),
        "{trouble}"
    );
    assert_eq!(trouble.lost, Some(LogOffset(100)..LogOffset(250)));
    assert_eq!(
        world.lake_rows().await[&(String::new(), 1)].len(),
        7,
        "the other bucket goes on"
    );

    let let_go = |to| {
        let let_go = BTreeMap::from([(bucket(None, 0), LogOffset(100)..LogOffset(to))]);
        RoundSignals {
            let_go,
            ..RoundSignals::default()
        }
    };
    let runner = world.process(&Faults::default());
    // What was not named is not given up.
    let report = runner
        .run(world.next_lease(), &let_go(200), &|_| {})
        .await
        .unwrap();
    let lost = report.faults[0].1.lost.clone();
    assert_eq!(lost, Some(LogOffset(200)..LogOffset(250)));
    let let_go = RoundSignals {
        let_go: BTreeMap::from([(bucket(None, 0), LogOffset(200)..LogOffset(250))]),
        ..RoundSignals::default()
    };
    let report = runner
        .run(world.next_lease(), &let_go, &|_| {})
        .await
        .unwrap();
    assert_eq!((report.trouble(), report.left_rows), (None, 0));
    let ids = world.lake_rows().await[&(String::new(), 0)].clone();
    assert_eq!(ids, (0..100).chain(250..300).collect::<Vec<_>>());

    let audit = crate::bad_records::book::tests::assert_sound(&world).await;
    let let_go: Vec<String> = audit.let_go.iter().map(ToString::to_string).collect();
    assert_eq!(
        let_go,
        ["bucket 0: offsets 100..200", "bucket 0: offsets 200..250"]
    );
    assert_eq!((audit.rows, audit.compared_rows), (157, 57));
}

#[tokio::test]
async fn lost_offsets_at_the_end_of_a_log_can_be_let_go() {
    let mut world = World::new(Shape::plain(1)).await;
    world.append_named(bucket(None, 0), 5, |_| true);
    world.append_named(bucket(None, 0), 5, |_| true);
    world.edit_log(bucket(None, 0), |log| {
        log.batches.pop();
    });
    let report = world.round().await.unwrap();
    let lost = report.faults[0].1.lost.clone().unwrap();
    assert_eq!(lost, LogOffset(5)..LogOffset(10));
    let signals = RoundSignals {
        let_go: BTreeMap::from([(bucket(None, 0), lost)]),
        ..RoundSignals::default()
    };
    let runner = world.process(&Faults::default());
    let report = runner
        .run(world.next_lease(), &signals, &|_| {})
        .await
        .unwrap();
    assert_eq!((report.trouble(), report.left_rows), (None, 0));
    assert_eq!(report.committed.unwrap().rows, 0);
    world.append_named(bucket(None, 0), 3, |_| true);
    world.recover().await;
    assert_eq!(world.lake_rows().await[&(String::new(), 0)].len(), 8);
    crate::bad_records::book::tests::assert_sound(&world).await;
}

#[tokio::test]
async fn fc_017_a_column_that_somebody_added_to_the_lake_is_null_in_new_rows() {
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 3);
    world.recover().await;
    world
        .alter_lake(|schema| {
            let text = schema.fields[1].data_type.clone();
            let id = schema.highest_field_id + 1;
            schema.highest_field_id = id;
            schema
                .fields
                .push(weir_lake_format::DataField::new(id, "extra", text));
        })
        .await;
    world.append(bucket(None, 0), 3);
    world.recover().await;
    world.check(true).await;
}

#[tokio::test]
async fn fc_018_rows_of_a_column_that_came_in_mid_round_keep_its_values() {
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 3);
    // The round reads its plan, then the column is added, then it reads the log.
    let faults = Faults::default();
    let mut at = 0;
    loop {
        faults.plan(at, Fault::FreezeBefore);
        let runner = world.process(&faults);
        let lease = world.next_lease();
        let round =
            tokio::spawn(async move { runner.run(lease, &RoundSignals::default(), &|_| {}).await });
        faults.stopped().await;
        if faults.fired().as_deref() == Some("fetch") {
            world.add_column("w").await;
            world.append(bucket(None, 0), 2);
            // The plan ends before the new rows: let the round see them all the same.
            faults.thaw();
            let report = round.await.unwrap().unwrap();
            assert_eq!(report.committed.unwrap().rows, 3);
            break;
        }
        round.abort();
        faults.thaw();
        at += 1;
    }
    world.recover().await;
    world.check(true).await;
    assert_eq!(values_of(&world, "w").await, 2);
}

#[tokio::test]
async fn fc_018_a_batch_of_a_newer_schema_ends_its_bucket_for_this_round_only() {
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 3);
    // As the round saw the table before the column came.
    let before = world.cluster.state.lock().tables[&world.path].info.clone();
    let old = world.lake().await.latest_schema().await.unwrap();
    world.add_column("w").await;
    world.append(bucket(None, 0), 2);
    let after = std::mem::replace(
        &mut world
            .cluster
            .state
            .lock()
            .tables
            .get_mut(&world.path)
            .unwrap()
            .info,
        before,
    );
    world.hide_lake_schemas_above(old.id).await;
    let report = world.round().await.unwrap();
    let trouble = report.trouble().unwrap();
    assert!(
        !trouble.lasting && trouble.reason.contains("schema 2"),
        "{trouble}"
    );
    assert_eq!(report.committed.unwrap().rows, 3);
    world
        .cluster
        .state
        .lock()
        .tables
        .get_mut(&world.path)
        .unwrap()
        .info = after;
    world.show_lake_schemas().await;
    world.recover().await;
    world.check(true).await;
    assert_eq!(values_of(&world, "w").await, 2);
}

#[tokio::test]
async fn fc_022_a_column_that_only_the_lake_demands_is_named_with_both_schemas_and_what_to_do() {
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 3);
    world
        .alter_lake(|schema| {
            let number = schema.fields[0].data_type.clone();
            let id = schema.highest_field_id + 1;
            schema.highest_field_id = id;
            schema
                .fields
                .push(weir_lake_format::DataField::new(id, "needed", number));
        })
        .await;
    let error = world.round().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "d.t: column needed: the lake table demands it, the log lacks it; make it nullable in the lake \
         table, or drop it there (log schema 1, lake schema 1)"
    );
    assert_eq!(error.verdict(), crate::error::Verdict::Pause);
    world
        .alter_lake(|schema| {
            let needed = &mut schema.fields[2].data_type;
            *needed = needed.kind.clone().nullable();
        })
        .await;
    world.recover().await;
    world.check(true).await;
}

/// How many values of a column in the lake are not null.
async fn values_of(world: &World, column: &str) -> usize {
    let lake = world.lake().await;
    let snapshot = lake.latest_snapshot().await.unwrap().unwrap();
    let splits = lake
        .plan(&snapshot, &weir_lake_format::Filter::default())
        .await
        .unwrap();
    let stream = lake.read_split(&splits[0], Some(&[column])).await.unwrap();
    let batches: Vec<arrow::array::RecordBatch> = stream.try_collect().await.unwrap();
    let present = |batch: &arrow::array::RecordBatch| {
        batch.num_rows() - arrow::array::Array::null_count(batch.column(0))
    };
    batches.iter().map(present).sum()
}

#[tokio::test]
async fn fc_044_a_lake_table_with_rows_of_others_is_left_alone_unless_it_is_adopted() {
    // Never tiered before, or with a lake table that was made anew.
    for tiered in [0, 1, 2] {
        let mut world = World::new(Shape::plain(1)).await;
        for _ in 0..tiered {
            world.append(bucket(None, 0), 3);
            world.recover().await;
        }
        world.replace_lake("spark").await;
        world.append(bucket(None, 0), 3);
        let error = world.round().await.unwrap_err();
        assert_eq!(error.verdict(), crate::error::Verdict::Pause, "{error}");
        if tiered == 2 {
            assert!(
                matches!(error, Error::LakeBehind { known: 2, .. }),
                "{error}"
            );
            continue;
        }
        assert!(
            error.to_string().contains("weir.lake-history=adopt"),
            "{error}"
        );
        world.set_property("weir.lake-history", "adopt");
        let report = world.round().await.unwrap();
        assert_eq!(report.committed.unwrap().rows, 3);
    }
}

#[tokio::test]
async fn fc_044_a_lake_table_of_another_table_id_is_left_alone() {
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 3);
    world.recover().await;
    // The table was made anew under its name, and the cluster knows the other's progress no more.
    let other = weir_protocol::ids::TableId(8);
    {
        let mut state = world.cluster.state.lock();
        let table = state.tables.get_mut(&world.path).unwrap();
        table.info.id = other;
        table.registered.clear();
        table.logs.clear();
    }
    let error = world.round().await.unwrap_err();
    assert_eq!(error.verdict(), crate::error::Verdict::Pause);
    assert!(
        error.to_string().contains("another table of that name"),
        "{error}"
    );
}

#[tokio::test]
async fn a_lake_table_that_was_deleted_pauses_its_table_with_the_folder_named() {
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 3);
    world.recover().await;
    world.delete_lake().await;
    world.append(bucket(None, 0), 3);
    let error = world.round().await.unwrap_err();
    assert!(matches!(&error, Error::NoLakeTable { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("lake/d.db/t is not in warehouse"),
        "{error}"
    );
    assert_eq!(error.verdict(), crate::error::Verdict::Pause);
}

#[tokio::test]
async fn fc_060_buckets_without_rows_are_recorded_and_not_read_again() {
    let mut world = World::new(Shape::plain(8)).await;
    for b in 0..8 {
        if b < 2 {
            world.append(bucket(None, b), 5);
        }
        world.append_empty(bucket(None, b));
        world.append_empty(bucket(None, b));
    }
    let report = world.round().await.unwrap();
    assert_eq!((report.buckets, report.left_rows), (8, 0));
    let (_, ends) = world.registered().unwrap();
    for b in 0..8 {
        let end = if b < 2 { 7 } else { 2 };
        assert_eq!(ends[&bucket(None, b)], LogOffset(end), "bucket {b}");
    }
    let report = world.round().await.unwrap();
    assert_eq!((report.committed, report.buckets), (None, 0));
    world.check(true).await;
}

#[tokio::test]
async fn fc_067_rounds_without_rows_leave_nothing_behind() {
    let mut world = World::new(Shape::plain(2)).await;
    world.append(bucket(None, 0), 5);
    world.recover().await;
    let all = || async { world.store.list(None).count().await };
    let before = all().await;
    for _ in 0..10 {
        let report = world.round().await.unwrap();
        assert_eq!((report.committed, report.left_rows), (None, 0));
    }
    assert_eq!(all().await, before);
    assert_eq!(world.snapshots().await.len(), 1);
}

#[tokio::test]
async fn fc_063_a_round_writes_one_file_a_partition_and_bucket() {
    let partitions: Vec<(i64, Option<i32>)> = (0..50).map(|id| (id, Some(1))).collect();
    let shape = Shape {
        partitions: Some(partitions),
        ..Shape::plain(1)
    };
    let mut world = World::new(shape).await;
    for _ in 0..4 {
        for id in 0..50 {
            world.append(bucket(Some(id), 0), 25);
        }
    }
    let committed = world.round().await.unwrap().committed.unwrap();
    assert_eq!((committed.rows, committed.files), (5_000, 50));
    world.check(true).await;
}

#[tokio::test]
async fn fc_023_the_snapshot_of_a_row_with_a_new_column_names_the_new_schema() {
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 3);
    world.recover().await;
    world.add_column("w").await;
    world.append(bucket(None, 0), 1);
    world.recover().await;
    let newest = world.lake().await.latest_schema().await.unwrap();
    let snapshots = world.snapshots().await;
    assert_eq!(snapshots.last().unwrap().schema_id, newest.id);
    assert!(newest.field("w").is_some() && snapshots[0].schema_id < newest.id);
    assert_eq!(values_of(&world, "w").await, 1);
}
