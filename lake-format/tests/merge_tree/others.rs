//! On top of what others wrote.

use super::*;

fn copy_folder(from: &FilePath, to: &FilePath) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// What is read, as canonical lines.
async fn lines(table: &Table) -> Vec<String> {
    let fields = table.latest_schema().await.unwrap().fields;
    let mut lines = canonical_json::rows(&read(table).await, &fields).unwrap();
    canonical_json::sort(&mut lines);
    lines
}

#[tokio::test]
async fn changes_go_on_top_of_the_tables_of_others() {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/warehouse");
    for (database, name, takes_deletes) in [
        ("golden", "pk_nocompact", true),
        ("golden", "pk_compact", true),
        ("golden", "pk_mixed_buckets", true),
        ("golden", "pk_changelog_input", true),
        ("golden", "evolved_pk", true),
        ("golden", "partial_update", false),
        ("golden_py", "pk_parts", true),
        ("golden_py", "partial_update", false),
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let folder = format!("{database}.db/{name}");
        copy_folder(&golden.join(&folder), &scratch.path().join(&folder));
        let store: Arc<dyn ObjectStore> =
            Arc::new(LocalFileSystem::new_with_prefix(scratch.path()).unwrap());
        let root = paths::table_path(&Path::default(), database, name).unwrap();
        let table = Table::open(Arc::clone(&store), root.clone()).await.unwrap();
        let schema = Arc::new(table.latest_schema().await.unwrap());
        let before = lines(&table).await;
        let snapshot = table.latest_snapshot().await.unwrap().unwrap();
        let mut messages = Vec::new();
        let mut gone = Vec::new();
        for split in table.plan(&snapshot, &Filter::default()).await.unwrap() {
            let stream = table.read_split(&split, None).await.unwrap();
            let rows = stream.try_collect::<Vec<_>>().await.unwrap();
            let rows = concat_batches(&schema.arrow_schema(), &rows).unwrap();
            if rows.num_rows() == 0 {
                continue;
            }
            let highest = split
                .files
                .iter()
                .map(|file| file.max_sequence_number)
                .max();
            let target = WriteTarget {
                schema: Arc::clone(&schema),
                partition: split.partition.clone(),
                bucket: split.bucket,
                total_buckets: split.total_buckets,
                first_sequence_number: highest.unwrap() + 1,
            };
            let uuid = format!("w{}", messages.len());
            let options = WriterOptions::new(&schema, uuid, 0).unwrap();
            let store = Arc::clone(&store);
            let mut writer =
                MergeTreeWriter::new(target, options, BUFFER, store, root.clone()).unwrap();
            // All rows again, then the first one goes.
            let kinds = vec![RowKind::UpdateAfter; rows.num_rows()];
            writer.write(rows.clone(), &kinds).await.unwrap();
            if takes_deletes {
                let first = rows.slice(0, 1);
                gone.extend(canonical_json::rows(&first, &schema.fields).unwrap());
                writer.write(first, &[RowKind::Delete]).await.unwrap();
            }
            messages.push(writer.finish().await.unwrap());
        }
        assert!(!messages.is_empty(), "{name}");
        commit(&table, 1, messages).await;
        let problems = table.check().await.unwrap();
        assert!(problems.is_empty(), "{name}: {problems:#?}");
        let mut expected = before;
        expected.retain(|line| !gone.contains(line));
        assert_eq!(lines(&table).await, expected, "{name}");
        let snapshot = table.latest_snapshot().await.unwrap().unwrap();
        let has_changelog = snapshot.changelog_manifest_list.is_some();
        assert_eq!(has_changelog, name == "pk_changelog_input");
    }
}
