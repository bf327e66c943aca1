//! The files of a writer: their rows, what the manifest says of them, changelogs.

use super::*;

#[tokio::test]
async fn a_file_has_one_row_a_key_and_its_meta_tells_keys_numbers_and_retractions() {
    let mut fixture = Fixture::new(&[]).await;
    fixture.next_sequence_number = 40;
    let changes = vec![
        insert(7, 1),
        insert(-2, 2),
        (RowKind::UpdateBefore, (7, Some(1), None, None)),
        (RowKind::UpdateAfter, (7, Some(3), None, None)),
        (RowKind::Delete, (5, Some(9), None, None)),
    ];
    let message = fixture.write(&[changes]).await;
    let [file] = message.new_files.as_slice() else {
        panic!("{message:?}")
    };
    assert_eq!(file.file_name, "data-u0-0.parquet");
    assert_eq!((file.row_count, file.level), (3, 0));
    assert_eq!(
        (file.min_sequence_number, file.max_sequence_number),
        (41, 44)
    );
    assert_eq!(file.delete_row_count, Some(1));
    assert_eq!(file.file_source, Some(FileSource::Append));
    assert_eq!(file.creation_time, Some(7));
    assert_eq!(file.value_stats_cols, None);
    let int: DataType = "INT NOT NULL".parse().unwrap();
    let key = |bytes: &[u8]| {
        let row = weir_lake_format::BinaryRow::from_serialized(bytes).unwrap();
        row.decode([&int].into_iter()).unwrap()
    };
    assert_eq!(key(&file.min_key), [Datum::Int(-2)]);
    assert_eq!(key(&file.max_key), [Datum::Int(7)]);
    let stats = file.key_stats.decode([&int].into_iter()).unwrap();
    assert_eq!(
        (&stats[0].min, &stats[0].max),
        (&Datum::Int(-2), &Datum::Int(7))
    );
    let rows = parquet_rows(&fixture, "data-u0-0.parquet").await;
    let names: Vec<&str> = rows
        .schema_ref()
        .fields()
        .iter()
        .map(|f| f.name().as_str())
        .collect();
    assert_eq!(
        names,
        [
            "_KEY_k",
            "_SEQUENCE_NUMBER",
            "_VALUE_KIND",
            "k",
            "a",
            "b",
            "c"
        ]
    );
    let ids: Vec<&str> = rows
        .schema_ref()
        .fields()
        .iter()
        .map(|field| field.metadata()["PARQUET:field_id"].as_str())
        .collect();
    assert_eq!(
        ids,
        ["1073741823", "2147483646", "2147483645", "0", "1", "2", "3"]
    );
    let kinds = rows.column(2).as_primitive::<arrow::datatypes::Int8Type>();
    assert_eq!(kinds.values(), &[0, 3, 2]);
    let numbers = rows.column(1).as_primitive::<arrow::datatypes::Int64Type>();
    assert_eq!(numbers.values(), &[41, 44, 43]);
    fixture.commit(message).await;
    fixture.assert_sound().await;
}

async fn parquet_rows(fixture: &Fixture, name: &str) -> RecordBatch {
    let path = Path::from(format!("t/bucket-0/{name}"));
    let bytes = fixture
        .store
        .get(&path)
        .await
        .unwrap()
        .bytes()
        .await
        .unwrap();
    let builder = ParquetRecordBatchReaderBuilder::try_new(bytes).unwrap();
    let schema = Arc::clone(builder.schema());
    let batches: Vec<RecordBatch> = builder.build().unwrap().map(Result::unwrap).collect();
    concat_batches(&schema, &batches).unwrap()
}

#[tokio::test]
async fn files_of_the_thin_mode_have_no_key_columns_and_the_same_meta() {
    let mut fixture = Fixture::new(&[("data-file.thin-mode", "true")]).await;
    let message = fixture.write(&[vec![insert(3, 1), insert(1, 2)]]).await;
    let rows = parquet_rows(&fixture, "data-u0-0.parquet").await;
    assert_eq!(rows.schema_ref().field(0).name(), "_SEQUENCE_NUMBER");
    assert_eq!(rows.num_columns(), 6);
    let thick = Fixture::new(&[]).await;
    let other = thick.write(&[vec![insert(3, 1), insert(1, 2)]]).await;
    assert_eq!(message.new_files[0].min_key, other.new_files[0].min_key);
    assert_eq!(message.new_files[0].key_stats, other.new_files[0].key_stats);
    fixture.commit(message).await;
    fixture.assert_sound().await;
    assert_eq!(fixture.rows().await.len(), 2);
}

#[tokio::test]
async fn ignored_changes_leave_a_gap_in_the_numbers_and_nothing_else() {
    for (option, left) in [("ignore-delete", 1), ("ignore-update-before", 2)] {
        let fixture = Fixture::new(&[(option, "true")]).await;
        let changes = vec![
            (RowKind::UpdateBefore, (1, None, None, None)),
            (RowKind::Delete, (2, None, None, None)),
            insert(3, 1),
        ];
        let message = fixture.write(&[changes]).await;
        assert_eq!(message.new_files[0].row_count, left, "{option}");
        assert_eq!(message.new_files[0].max_sequence_number, 2);
    }
    let fixture = Fixture::new(&[("ignore-delete", "true")]).await;
    let message = fixture
        .write(&[vec![(RowKind::Delete, (2, None, None, None))]])
        .await;
    assert!(message.new_files.is_empty());
}

#[tokio::test]
async fn a_full_buffer_is_written_and_a_full_file_is_followed_by_one_of_higher_keys() {
    let mut fixture = Fixture::new(&[]).await;
    fixture.options.target_file_size = 20_000;
    let mut writer = fixture.try_writer(0, 200_000).unwrap();
    let mut most = 0;
    for round in 0..20 {
        // Keys in an order of their own, each three times.
        let changes = (0..1500).map(|i| insert((i * 7919 + round) % 500, i));
        let changes: Vec<Change> = changes.collect();
        let (batch, kinds) = batch(&fixture.schema, &changes);
        writer.write(batch, &kinds).await.unwrap();
        most = most.max(writer.memory_bytes());
    }
    assert!(most < 800_000, "{most}");
    assert_eq!(writer.row_count(), 30_000);
    writer.flush().await.unwrap();
    assert_eq!(writer.memory_bytes(), 0);
    let message = writer.finish().await.unwrap();
    assert!(message.new_files.len() > 4, "{}", message.new_files.len());
    fixture.commit(message).await;
    fixture.assert_sound().await;
    let rows = fixture.rows().await;
    assert_eq!(rows.len(), 500);
    assert!(rows.values().all(|row| row.1.unwrap() >= 1000));
}

#[tokio::test]
async fn the_same_changes_make_the_same_files_and_metas() {
    let changes: Vec<Change> = (0..3000).map(|i| insert((i * 37) % 1000, i)).collect();
    let mut found = Vec::new();
    for _ in 0..2 {
        let fixture = Fixture::new(&[("changelog-producer", "input")]).await;
        let message = fixture.write(std::slice::from_ref(&changes)).await;
        let mut bytes = Vec::new();
        for name in fixture
            .names()
            .await
            .iter()
            .filter(|name| name.contains("bucket-0"))
        {
            let object = fixture.store.get(&Path::from(name.as_str())).await.unwrap();
            bytes.push((name.clone(), object.bytes().await.unwrap()));
        }
        assert_eq!(bytes.len(), 2);
        found.push((message, bytes));
    }
    assert_eq!(found[0], found[1]);
}

#[tokio::test]
async fn a_changelog_has_all_changes_and_lives_as_long_as_its_snapshot() {
    let mut fixture = Fixture::new(&[("changelog-producer", "input")]).await;
    let changes = vec![
        insert(2, 1),
        insert(1, 2),
        (RowKind::UpdateBefore, (2, Some(1), None, None)),
        (RowKind::UpdateAfter, (2, Some(3), None, None)),
    ];
    let message = fixture.write(&[changes]).await;
    let [file] = message.changelog_files.as_slice() else {
        panic!("{message:?}")
    };
    assert_eq!(file.file_name, "changelog-u0-0.parquet");
    assert_eq!((file.row_count, file.delete_row_count), (4, Some(1)));
    assert_eq!((file.min_sequence_number, file.max_sequence_number), (0, 3));
    let rows = parquet_rows(&fixture, "changelog-u0-0.parquet").await;
    let numbers = rows.column(1).as_primitive::<arrow::datatypes::Int64Type>();
    assert_eq!(numbers.values(), &[1, 0, 2, 3]);
    fixture.commit(message).await;
    let snapshot = fixture.table.latest_snapshot().await.unwrap().unwrap();
    assert_eq!(snapshot.changelog_record_count, Some(4));
    assert_eq!(
        (snapshot.delta_record_count, snapshot.total_record_count),
        (2, 2)
    );
    let list = snapshot.changelog_manifest_list.clone().unwrap();
    let path = fixture.table.paths().manifest(&list).unwrap();
    let size = fixture.store.head(&path).await.unwrap().size;
    assert_eq!(snapshot.changelog_manifest_list_size, Some(size as i64));
    let manifests = fixture.table.read_manifest_list(&list).await.unwrap();
    let entries = fixture
        .table
        .read_manifest(&manifests[0].file_name)
        .await
        .unwrap();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].file.file_name, "changelog-u0-0.parquet");

    let second = fixture.write(&[vec![insert(1, 5)]]).await;
    fixture.commit(second).await;
    fixture.assert_sound().await;
    assert_eq!(fixture.rows().await.len(), 2);

    // Nothing of it is an orphan.
    let sweep = OrphanRequest {
        older_than: std::time::Duration::ZERO,
        now_ms: i64::MAX / 2,
        uuid: "o",
        own_files: &|_| Vec::new(),
    };
    assert_eq!(fixture.table.find_orphans(&sweep).await.unwrap(), []);
    let options = BTreeMap::new();
    let mut retention = Retention::of(TableOptions::new(&options)).unwrap();
    retention.min = 1;
    retention.max = 1;
    let request = ExpireRequest {
        retention: &retention,
        keep_newest_of: "test",
        keep_from: None,
        now_ms: i64::MAX / 2,
        own_files: &|_| Vec::new(),
    };
    let expired = fixture.table.expire(&request).await.unwrap();
    assert_eq!(expired.snapshots, [1]);
    let names = fixture.names().await;
    let has = |text: &str| names.iter().any(|name| name.contains(text));
    assert!(!has("changelog-u0-0"), "{names:?}");
    assert!(has("data-u0-0") && has("changelog-u1-0"), "{names:?}");
    assert!(!has(&list), "{names:?}");
    assert_eq!(fixture.table.find_orphans(&sweep).await.unwrap(), []);
    fixture.assert_sound().await;
}

#[tokio::test]
async fn a_changelog_is_sorted_by_key_then_sequence_field_then_number() {
    let options = [("changelog-producer", "input"), ("sequence.field", "a")];
    let fixture = Fixture::new(&options).await;
    let changes = vec![insert(2, 5), insert(2, 3), insert(1, 9), insert(2, 5)];
    fixture.write(&[changes]).await;
    let rows = parquet_rows(&fixture, "changelog-u0-0.parquet").await;
    let numbers = rows.column(1).as_primitive::<arrow::datatypes::Int64Type>();
    assert_eq!(numbers.values(), &[2, 1, 0, 3]);
}

#[tokio::test]
async fn merged_rows_are_inserts_with_the_number_of_their_last_change_or_deletes() {
    let option = ("partial-update.remove-record-on-delete", "true");
    let fixture = Fixture::new(&[("merge-engine", "partial-update"), option]).await;
    let changes = vec![
        insert(1, 5),
        (RowKind::UpdateAfter, (2, None, None, None)),
        (RowKind::UpdateAfter, (1, None, Some(7), None)),
        insert(3, 1),
        (RowKind::Delete, (3, Some(2), None, None)),
    ];
    fixture.write(&[changes]).await;
    let rows = parquet_rows(&fixture, "data-u0-0.parquet").await;
    let numbers = rows.column(1).as_primitive::<arrow::datatypes::Int64Type>();
    assert_eq!(numbers.values(), &[2, 1, 4]);
    // What changed once keeps its kind.
    let kinds = rows.column(2).as_primitive::<arrow::datatypes::Int8Type>();
    assert_eq!(kinds.values(), &[0, 2, 3]);
    let rows = rows_of(&rows);
    assert_eq!(rows[0], (1, Some(5), Some(7), None));
}

#[tokio::test]
async fn abort_deletes_data_and_changelog() {
    let fixture = Fixture::new(&[("changelog-producer", "input")]).await;
    let before = fixture.names().await;
    let mut writer = fixture.writer();
    let (batch, kinds) = batch(&fixture.schema, &[insert(1, 1)]);
    writer.write(batch, &kinds).await.unwrap();
    writer.flush().await.unwrap();
    assert_eq!(fixture.names().await.len(), before.len() + 2);
    writer.abort().await.unwrap();
    assert_eq!(fixture.names().await, before);
}
