//! What is refused, and what the check finds.

use super::*;

#[tokio::test]
async fn bad_input_is_refused_and_takes_nothing() {
    let fixture = Fixture::new(&[]).await;
    let mut writer = fixture.writer();
    let (good, kinds) = batch(&fixture.schema, &[insert(1, 1), insert(2, 2)]);
    let refused = writer.write(good.clone(), &kinds[..1]).await;
    assert!(
        matches!(refused, Err(Error::BadValue { .. })),
        "{refused:?}"
    );
    let mut columns = good.columns().to_vec();
    columns[0] = Arc::new(Int32Array::from(vec![Some(1), None]));
    let mut fields: Vec<_> = good.schema_ref().fields().iter().cloned().collect();
    fields[0] = Arc::new(fields[0].as_ref().clone().with_nullable(true));
    let schema = Arc::new(arrow::datatypes::Schema::new(fields));
    let null_key = RecordBatch::try_new(schema, columns).unwrap();
    let refused = writer.write(null_key, &kinds).await;
    assert!(
        matches!(&refused, Err(Error::BadValue { column, .. }) if column == "k"),
        "{refused:?}"
    );
    assert_eq!(writer.row_count(), 0);
    writer.write(good, &kinds).await.unwrap();
    assert_eq!(writer.finish().await.unwrap().new_files[0].row_count, 2);
}

#[tokio::test]
async fn tables_that_are_not_written_by_key_are_refused() {
    for options in [
        &[("deletion-vectors.enabled", "true")][..],
        &[("changelog-producer", "lookup")],
        &[("changelog-producer", "full-compaction")],
        &[
            ("changelog-producer", "input"),
            ("merge-engine", "first-row"),
        ],
        &[("rowkind.field", "c")],
        &[("bucket", "-1")],
        &[("bucket", "-2")],
        &[("merge-engine", "nonsense")],
        &[
            ("merge-engine", "aggregation"),
            ("fields.a.aggregate-function", "theta_sketch"),
        ],
        &[("file.format", "orc")],
        &[("sequence.snapshot-ordering", "true")],
    ] {
        let fixture = Fixture::new(options).await;
        let refused = fixture.try_writer(0, BUFFER).unwrap_err();
        assert!(
            matches!(refused, Error::Unsupported { .. }),
            "{options:?}: {refused}"
        );
    }
    let fixture = Fixture::new(&[]).await;
    for bucket in [-1, 1] {
        let refused = fixture.try_writer(bucket, BUFFER).unwrap_err();
        assert!(matches!(refused, Error::BadValue { .. }), "{refused}");
    }
}

/// The problems of a table that has files which its writer would not make so.
async fn problems_of(
    options: &[(&str, &str)],
    flushes: &[Vec<Change>],
    spoil: impl FnOnce(&mut CommitMessage),
) -> Vec<String> {
    let mut fixture = Fixture::new(options).await;
    let mut message = fixture.write(flushes).await;
    spoil(&mut message);
    fixture.commit(message).await;
    let problems = fixture.table.check().await.unwrap();
    problems.into_iter().map(|problem| problem.reason).collect()
}

#[tokio::test]
async fn the_check_finds_what_is_wrong_with_a_file() {
    let rows = vec![vec![insert(1, 1), insert(2, 2), insert(3, 3)]];
    let found = problems_of(&[], &rows, |_| ()).await;
    assert!(found.is_empty(), "{found:?}");
    let found = problems_of(&[], &rows, |message| {
        let file = &mut message.new_files[0];
        std::mem::swap(&mut file.min_key, &mut file.max_key);
    });
    let expected =
        ["lowest", "highest"].map(|what| format!("its {what} key is another than the stated one"));
    assert_eq!(found.await, expected);
    let found = problems_of(&[], &rows, |message| {
        message.new_files[0].max_sequence_number = 9;
    });
    assert_eq!(
        found.await,
        ["sequence numbers 0 to 2 where 0 to 9 are stated"]
    );
    let found = problems_of(&[], &rows, |message| {
        message.new_files[0].delete_row_count = Some(1);
    });
    assert_eq!(found.await, ["0 retractions where 1 are stated"]);
    let other = Fixture::new(&[]).await;
    let other = other.write(&[vec![insert(2, 2)]]).await;
    let stats = other.new_files[0].key_stats.clone();
    let found = problems_of(&[], &rows, |message| message.new_files[0].key_stats = stats).await;
    assert!(found[0].contains("column `_KEY_k`"), "{found:?}");

    // The unmerged changes as a data file.
    let twice = vec![vec![insert(1, 1), insert(1, 2)]];
    let input = [("changelog-producer", "input")];
    let found = problems_of(&input, &twice, |message| {
        message.new_files = std::mem::take(&mut message.changelog_files);
    });
    assert_eq!(found.await, ["two rows have the same key"]);

    // Level 1 has one run.
    let flushes = vec![vec![insert(1, 1), insert(3, 1)], vec![insert(2, 1)]];
    let found = problems_of(&[], &flushes, |message| message.new_files[0].level = 1);
    assert_eq!(found.await, Vec::<String>::new());
}

#[tokio::test]
async fn the_check_finds_rows_of_another_order_and_another_bucket() {
    // Files without key columns, sorted by `k`, in a table whose key is `a`.
    let thin = [("data-file.thin-mode", "true")];
    let by_k = Fixture::of(schema_of("INT NOT NULL", &thin)).await;
    let message = by_k.write(&[vec![insert(1, 5), insert(2, 4)]]).await;
    let mut by_a = by_k.schema.as_ref().clone();
    by_a.primary_keys = vec!["a".to_owned()];
    by_a.fields[1].data_type.nullable = false;
    by_a.options.insert("bucket".to_owned(), "2".to_owned());
    let mut fixture = Fixture::of(Arc::new(by_a)).await;
    for name in by_k
        .names()
        .await
        .iter()
        .filter(|name| name.contains("bucket-0"))
    {
        let object = by_k.store.get(&Path::from(name.as_str())).await.unwrap();
        let bytes = object.bytes().await.unwrap();
        for bucket in [0, 1] {
            let path = name.replace("bucket-0", &format!("bucket-{bucket}"));
            fixture
                .store
                .put(&Path::from(path), bytes.clone().into())
                .await
                .unwrap();
        }
    }
    let mut messages = vec![message.clone(), message];
    for (bucket, message) in (0..).zip(&mut messages) {
        (message.bucket, message.total_buckets) = (bucket, 2);
    }
    fixture.commits += 1;
    commit(&fixture.table, 1, messages).await;
    let problems = fixture.table.check().await.unwrap();
    let reasons: Vec<&str> = problems
        .iter()
        .map(|problem| problem.reason.as_str())
        .collect();
    let unsorted = "its rows are not in the order of their keys";
    assert!(reasons.contains(&unsorted), "{reasons:?}");
    assert!(
        reasons
            .iter()
            .any(|reason| reason.contains("belongs to bucket")),
        "{reasons:?}"
    );
}
