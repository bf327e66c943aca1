//! What a committer of the lake stores: snapshots, offsets, epochs.

use super::*;

fn offsets(table: TableId, ends: &[(Option<PartitionId>, i32, i64)]) -> LakeOffsets {
    let end = |(partition, bucket, end): &(_, i32, i64)| {
        ((*partition, BucketId(*bucket)), LogOffset(*end))
    };
    LakeOffsets {
        table_id: table,
        end_offsets: ends.iter().map(end).collect(),
    }
}

#[tokio::test]
async fn lake_snapshots_are_committed_once_and_only_forward() {
    let world = World::new().await;
    let table = world.table(&log_table()).await;
    let (catalog, path, id) = (&world.catalog, path(), table.table_id);
    let prepare = async |ends: &[(Option<PartitionId>, i32, i64)]| {
        catalog
            .prepare_lake_offsets(&path, &offsets(id, ends), OffsetsPolicy::OnlyRise)
            .await
            .unwrap()
    };
    let commit = |snapshot_id, tiered_offsets| LakeCommit {
        path: &path,
        table_id: id,
        snapshot_id,
        tiered_offsets,
        readable_offsets: None,
        earliest_to_keep: None,
        policy: OffsetsPolicy::OnlyRise,
    };
    let none = catalog
        .get_lake_snapshot(&path, id, Which::Latest)
        .await
        .unwrap_err();
    assert!(matches!(none, Error::LakeSnapshotNotExist { .. }), "{none}");
    let first = prepare(&[(None, 0, 10), (None, 1, 5)]).await;
    assert!(
        first.starts_with(&format!("file:/r/lake/db/t-{id}/metadata/")),
        "{first}"
    );
    for _ in 0..2 {
        let unnamed = catalog.commit_lake_snapshot(commit(1, &first)).await;
        assert_eq!(unnamed.unwrap(), BTreeSet::new());
    }
    let second = prepare(&[(None, 0, 20)]).await;
    let unnamed = catalog.commit_lake_snapshot(commit(2, &second)).await;
    assert_eq!(unnamed.unwrap(), BTreeSet::from([first.clone()]));
    let (snapshot, found) = catalog
        .get_lake_snapshot(&path, id, Which::Latest)
        .await
        .unwrap();
    assert_eq!(snapshot.snapshot_id, 2);
    assert_eq!(
        found,
        offsets(id, &[(None, 0, 20), (None, 1, 5)]),
        "new offsets win, others stay"
    );
    let readable = catalog.get_lake_snapshot(&path, id, Which::Readable).await;
    assert!(matches!(readable, Err(Error::LakeSnapshotNotExist { .. })));

    let stale = catalog
        .commit_lake_snapshot(commit(3, &first))
        .await
        .unwrap_err();
    assert!(
        matches!(stale, Error::InvalidLakeSnapshot { .. }),
        "{stale}"
    );
    let back = LakeCommit {
        policy: OffsetsPolicy::MayFall,
        ..commit(3, &first)
    };
    catalog.commit_lake_snapshot(back).await.unwrap();
    let only_one = offsets(id, &[(None, 0, 30)]);
    let partial = catalog
        .prepare_lake_offsets(&path, &only_one, OffsetsPolicy::MayFall)
        .await
        .unwrap();
    let forgotten = catalog
        .commit_lake_snapshot(commit(4, &partial))
        .await
        .unwrap_err();
    assert!(
        forgotten.to_string().contains("would be forgotten"),
        "{forgotten}"
    );

    let above = format!("{first}/../x");
    for uri in [
        "file:/r/lake/db/t-999/metadata/x.offsets",
        "file:/etc/passwd",
        "",
        &above,
    ] {
        let error = catalog
            .commit_lake_snapshot(commit(5, uri))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{uri}: {error}");
    }
    let wrong = LakeCommit {
        table_id: TableId(id.0 + 1),
        ..commit(5, &first)
    };
    let error = catalog.commit_lake_snapshot(wrong).await.unwrap_err();
    assert!(matches!(error, Error::TableIdNotExist { .. }), "{error}");
}

#[tokio::test]
async fn offsets_of_dropped_partitions_are_pruned() {
    let world = World::new().await;
    let table = world.table(&partitioned()).await;
    let (catalog, path, id) = (&world.catalog, path(), table.table_id);
    let (a, b) = (world.partition("a").await.id, world.partition("b").await.id);
    let tier = async |snapshot_id, ends: &[(Option<PartitionId>, i32, i64)]| {
        let new = offsets(id, ends);
        let uri = catalog
            .prepare_lake_offsets(&path, &new, OffsetsPolicy::OnlyRise)
            .await
            .unwrap();
        let commit = LakeCommit {
            path: &path,
            table_id: id,
            snapshot_id,
            tiered_offsets: &uri,
            readable_offsets: Some(&uri),
            earliest_to_keep: Some(-1),
            policy: OffsetsPolicy::OnlyRise,
        };
        catalog.commit_lake_snapshot(commit).await.unwrap();
        catalog.get_lake_offsets(&path, id).await.unwrap()
    };
    tier(1, &[(Some(a), 0, 1), (Some(b), 0, 2)]).await;
    catalog
        .drop_partition(&path, &spec("a"), IfMissing::Fail)
        .await
        .unwrap();
    assert_eq!(
        tier(2, &[(Some(b), 1, 3)]).await,
        offsets(id, &[(Some(b), 0, 2), (Some(b), 1, 3)])
    );
    assert_eq!(
        catalog
            .find_lake_table(id)
            .await
            .unwrap()
            .unwrap()
            .document
            .lake_snapshots
            .len(),
        2
    );
    let old = catalog
        .get_lake_snapshot(&path, id, Which::Id(1))
        .await
        .unwrap();
    assert_eq!(old.1.end_offsets.len(), 2);
}

#[tokio::test]
async fn two_committers_of_a_lake_snapshot_never_overwrite_each_other() {
    let world = World::new().await;
    let table = world.table(&log_table()).await;
    let (path, id) = (path(), table.table_id);
    let low = offsets(id, &[(None, 0, 10)]);
    let high = offsets(id, &[(None, 0, 20)]);
    let low = world
        .catalog
        .prepare_lake_offsets(&path, &low, OffsetsPolicy::OnlyRise)
        .await
        .unwrap();
    let high = world
        .catalog
        .prepare_lake_offsets(&path, &high, OffsetsPolicy::OnlyRise)
        .await
        .unwrap();
    let other = world.catalog.clone();
    world.store.forget_calls();
    let commit = |snapshot_id, tiered_offsets| LakeCommit {
        path: &path,
        table_id: id,
        snapshot_id,
        tiered_offsets,
        readable_offsets: None,
        earliest_to_keep: None,
        policy: OffsetsPolicy::OnlyRise,
    };
    let (path_2, high_2) = (path.clone(), high.clone());
    world.store.before_commit(1, move |store| {
        let inner = Catalog {
            store: Arc::new(store.clone()),
            ..other
        };
        let commit = LakeCommit {
            path: &path_2,
            table_id: id,
            snapshot_id: 2,
            tiered_offsets: &high_2,
            readable_offsets: None,
            earliest_to_keep: None,
            policy: OffsetsPolicy::OnlyRise,
        };
        futures::executor::block_on(inner.commit_lake_snapshot(commit)).unwrap();
    });
    let error = world
        .catalog
        .commit_lake_snapshot(commit(1, &low))
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::InvalidLakeSnapshot { .. }),
        "{error}"
    );
    let found = world.catalog.get_lake_offsets(&path, id).await.unwrap();
    assert_eq!(found, offsets(id, &[(None, 0, 20)]));
}

#[tokio::test]
async fn tiering_epochs_only_rise_also_across_coordinators() {
    let world = World::new().await;
    let table = world.table(&log_table()).await.table_id;
    let catalog = &world.catalog;
    assert_eq!(
        catalog.get_tiering_epoch(table).await.unwrap(),
        TieringEpoch(0)
    );
    assert_eq!(
        catalog.next_tiering_epoch(table).await.unwrap(),
        TieringEpoch(1)
    );
    world.store.forget_calls();
    world.store.fail_commit(1, Fault::LostReply);
    assert_eq!(
        catalog.next_tiering_epoch(table).await.unwrap(),
        TieringEpoch(2)
    );
    let newer = take_over(&*world.store).await.unwrap();
    let newer = catalog.clone().with_fence(newer.fence);
    assert_eq!(
        newer.next_tiering_epoch(table).await.unwrap(),
        TieringEpoch(3)
    );
    let fenced = catalog.next_tiering_epoch(table).await.unwrap_err();
    assert!(matches!(fenced, Error::Fenced { .. }), "{fenced}");
    let epoch = newer.get_tiering_epoch(table).await.unwrap();
    assert_eq!(epoch, TieringEpoch(3));
}

#[tokio::test]
async fn of_two_who_raise_a_tiering_epoch_in_one_millisecond_one_gets_it() {
    let world = World::new().await;
    let table = world.table(&log_table()).await.table_id;
    let other = world.catalog.clone();
    world.store.forget_calls();
    // Ours never arrives, unknown to us; before it is sent again, another does the same.
    world.store.fail_commit(1, Fault::LostRequest);
    world.store.before_commit(2, move |store| {
        let other = Catalog {
            store: Arc::new(store.clone()),
            ..other
        };
        let epoch = futures::executor::block_on(other.next_tiering_epoch(table)).unwrap();
        assert_eq!(epoch, TieringEpoch(1));
    });
    let ours = world.catalog.next_tiering_epoch(table).await;
    assert!(
        matches!(ours, Err(Error::OutcomeUnknown { .. })),
        "{ours:?}"
    );
}

/// A world with one table and, for each of `ends`, the offsets file of its bucket 0.
async fn with_files(ends: &[i64]) -> (World, TableId, Vec<String>) {
    let world = World::new().await;
    let id = world.table(&log_table()).await.table_id;
    let mut files = Vec::new();
    for end in ends {
        let offsets = offsets(id, &[(None, 0, *end)]);
        let policy = OffsetsPolicy::OnlyRise;
        let written = world
            .catalog
            .prepare_lake_offsets(&path(), &offsets, policy)
            .await;
        files.push(written.unwrap());
    }
    (world, id, files)
}

async fn commit(
    world: &World,
    table_id: TableId,
    snapshot_id: i64,
    (tiered_offsets, readable_offsets): (&str, Option<&str>),
) -> Result<BTreeSet<String>> {
    let commit = LakeCommit {
        path: &path(),
        table_id,
        snapshot_id,
        tiered_offsets,
        readable_offsets,
        earliest_to_keep: None,
        policy: OffsetsPolicy::OnlyRise,
    };
    world.catalog.commit_lake_snapshot(commit).await
}

#[tokio::test]
async fn a_file_that_the_same_snapshot_names_again_is_not_given_up() {
    let (world, id, files) = with_files(&[10, 20]).await;
    let [a, b] = [&files[0], &files[1]];
    commit(&world, id, 5, (a, None)).await.unwrap();
    let unnamed = commit(&world, id, 5, (a, Some(b))).await.unwrap();
    assert_eq!(unnamed, BTreeSet::new());
    // Nor is it when its name is only written in another way.
    let other_spelling = a.replace("file:/", "file:///");
    let unnamed = commit(&world, id, 5, (&other_spelling, Some(b))).await;
    assert_eq!(unnamed.unwrap(), BTreeSet::new());
}

#[tokio::test]
async fn a_file_that_becomes_the_readable_one_of_the_next_snapshot_is_not_given_up() {
    let (world, id, files) = with_files(&[10, 20, 30]).await;
    let [a, b, c] = [&files[0], &files[1], &files[2]];
    commit(&world, id, 5, (a, None)).await.unwrap();
    let unnamed = commit(&world, id, 6, (b, Some(a))).await.unwrap();
    assert_eq!(unnamed, BTreeSet::new());
    let unnamed = commit(&world, id, 7, (c, Some(c))).await.unwrap();
    assert_eq!(unnamed, BTreeSet::from([a.clone(), b.clone()]));
}

#[tokio::test]
async fn offsets_of_a_bucket_that_a_partition_does_not_have_are_refused() {
    let world = World::new().await;
    let table = world.table(&partitioned()).await;
    let a = world.partition("a").await;
    let (path, id, count) = (path(), table.table_id, a.bucket_count.0);
    let prepare = async |bucket| {
        let new = offsets(id, &[bucket]);
        let policy = OffsetsPolicy::OnlyRise;
        let catalog = &world.catalog;
        catalog.prepare_lake_offsets(&path, &new, policy).await
    };
    prepare((Some(a.id), count - 1, 5)).await.unwrap();
    for bucket in [(Some(a.id), count, 5), (None, 0, 5)] {
        let error = prepare(bucket).await.unwrap_err();
        assert!(matches!(error, Error::BucketNotExist { .. }), "{error}");
    }
    // Rows of a partition that was dropped meanwhile are in the lake all the same.
    prepare((Some(PartitionId(99)), count, 5)).await.unwrap();
}

#[tokio::test]
async fn a_late_commit_of_an_earlier_snapshot_changes_nothing() {
    let (world, id, files) = with_files(&[10, 10, 20]).await;
    let path = path();
    let keep_all = |snapshot_id, tiered_offsets| LakeCommit {
        path: &path,
        table_id: id,
        snapshot_id,
        tiered_offsets,
        readable_offsets: None,
        earliest_to_keep: Some(-1),
        policy: OffsetsPolicy::OnlyRise,
    };
    let catalog = &world.catalog;
    for (snapshot, file) in [(5, &files[0]), (6, &files[1]), (5, &files[0])] {
        let unnamed = catalog.commit_lake_snapshot(keep_all(snapshot, file)).await;
        assert_eq!(unnamed.unwrap(), BTreeSet::new());
    }
    // One that was never recorded: its offsets may be as good, it is older all the same.
    let late = catalog.commit_lake_snapshot(keep_all(4, &files[2])).await;
    assert!(
        matches!(late, Err(Error::InvalidLakeSnapshot { .. })),
        "{late:?}"
    );
    let kept = catalog.find_lake_table(id).await.unwrap().unwrap().document;
    let ids: Vec<i64> = kept.lake_snapshots.iter().map(|s| s.snapshot_id).collect();
    assert_eq!(ids, [5, 6]);
}

/// Whoever commits asks to keep every snapshot, as a repair does, and readers need other offsets
/// than the newest: the record that grows fastest.
#[tokio::test]
async fn fc_105_six_thousand_commits_keep_the_record_under_64_kib_and_give_up_old_files() {
    const COMMITS: i64 = 6_000;
    const LIMIT_BYTES: usize = 64 << 10;
    let world = World::new().await;
    let table = world.table(&log_table()).await;
    let (catalog, path, id) = (&world.catalog, path(), table.table_id);
    let (mut written, mut given_up) = (BTreeSet::new(), BTreeSet::new());
    let mut before: Option<String> = None;
    for snapshot_id in 1..=COMMITS {
        let ends = offsets(id, &[(None, 0, snapshot_id), (None, 1, 2 * snapshot_id)]);
        let tiered = catalog
            .prepare_lake_offsets(&path, &ends, OffsetsPolicy::OnlyRise)
            .await
            .unwrap();
        written.insert(tiered.clone());
        let commit = LakeCommit {
            path: &path,
            table_id: id,
            snapshot_id,
            tiered_offsets: &tiered,
            readable_offsets: before.as_deref(),
            earliest_to_keep: Some(-1),
            policy: OffsetsPolicy::OnlyRise,
        };
        given_up.extend(catalog.commit_lake_snapshot(commit).await.unwrap());
        before = Some(tiered);
        if snapshot_id % 100 == 0 {
            let kept = catalog.find_lake_table(id).await.unwrap().unwrap().document;
            let bytes = kept.encode().unwrap().len();
            assert!(bytes < LIMIT_BYTES, "{bytes} after {snapshot_id}");
        }
    }
    let kept = catalog.find_lake_table(id).await.unwrap().unwrap().document;
    assert_eq!(kept.latest().unwrap().snapshot_id, COMMITS);
    let named = kept.lake_snapshots.iter().flat_map(|snapshot| {
        let readable = snapshot.readable_offsets.clone();
        readable
            .into_iter()
            .chain([snapshot.tiered_offsets.clone()])
    });
    let named: BTreeSet<String> = named.collect();
    assert!(named.is_disjoint(&given_up));
    let all: BTreeSet<String> = named.union(&given_up).cloned().collect();
    assert_eq!(all, written, "each file is named or given up");
}
