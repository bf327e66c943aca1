//! How the manifests of a table stay few.

use super::*;

#[tokio::test]
async fn manifests_are_merged_from_the_count_that_the_option_says() {
    let table = table().await;
    let option = |value: &str| SchemaChange::SetOption {
        name: "manifest.merge-min-count".to_owned(),
        value: value.to_owned(),
    };
    let evolved = schema().evolve(&[option("3")], 1).unwrap();
    table.add_schema(&evolved).await.unwrap();
    let mut committer = TableCommitter::new(table.clone());
    for round in 0..12 {
        let name = format!("r{round}");
        committed_by(
            &mut committer,
            &append(&name, vec![message("x", 2, &[&name])]),
        )
        .await;
        assert!(committer.base.manifests().len() <= 3);
    }
    check_history(&table).await;
    let evolved = evolved.evolve(&[option("few")], 2).unwrap();
    table.add_schema(&evolved).await.unwrap();
    let request = append("x", vec![message("x", 2, &["x"])]);
    let refused = table.commit(&request, &mut free, QUICK).await;
    assert!(matches!(refused, Err(Error::InvalidSchema { .. })));
}

#[tokio::test]
async fn deletes_leave_the_manifests_once_they_take_up_what_the_option_says() {
    let table = table().await;
    let option = |name: &str, value: &str| SchemaChange::SetOption {
        name: format!("manifest.{name}"),
        value: value.to_owned(),
    };
    let changes = [
        option("merge-min-count", "1000"),
        option("full-compaction-threshold-size", "1 b"),
    ];
    let evolved = schema().evolve(&changes, 1).unwrap();
    table.add_schema(&evolved).await.unwrap();
    let mut committer = TableCommitter::new(table.clone());
    for name in ["old", "a", "b"] {
        let request = append(name, vec![message("x", 2, &[name])]);
        committed_by(&mut committer, &request).await;
    }
    let first = committer.base.manifests().first().cloned();
    let mut removal = append("removal", Vec::new());
    removal.kind = CommitKind::Overwrite;
    let deleted = |entry: ManifestEntry| ManifestEntry {
        kind: FileKind::Delete,
        ..entry
    };
    let is_a = |entry: &ManifestEntry| entry.file.file_name == "a";
    removal.deletes = live(&table)
        .await
        .into_iter()
        .filter(is_a)
        .map(deleted)
        .collect();
    committed_by(&mut committer, &removal).await;
    assert_eq!(committer.base.manifests().len(), 4);
    let last = append("last", vec![message("x", 2, &["c"])]);
    committed_by(&mut committer, &last).await;
    // That of `old` is left alone, the others are one now, and the last commit's own follows.
    let manifests = committer.base.manifests();
    assert_eq!(manifests.len(), 3);
    assert_eq!(manifests.first().cloned(), first);
    assert!(
        manifests
            .iter()
            .all(|manifest| manifest.num_deleted_files == 0)
    );
    let names: Vec<_> = live(&table)
        .await
        .into_iter()
        .map(|e| e.file.file_name)
        .collect();
    assert_eq!(names, ["old", "b", "c"]);
    check_history(&table).await;
}
