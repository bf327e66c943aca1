use std::collections::BTreeMap;

use arrow::array::Int32Array;
use futures::TryStreamExt;

use super::*;
use crate::faulty_store::{Fault, FaultyStore};
use crate::partition::Partition;
use crate::schema::NewTable;
use crate::types::{DataField, TypeKind};

fn writer(store: Arc<dyn ObjectStore>) -> MergeTreeWriter {
    let options = [("bucket", "1"), ("changelog-producer", "input")];
    let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let table = NewTable {
        fields: vec![DataField::new(-1, "k", TypeKind::Int.not_null())],
        primary_keys: vec!["k".to_owned()],
        options: BTreeMap::from(options),
        ..NewTable::default()
    };
    let schema = Arc::new(TableSchema::create(table, 0).unwrap());
    let options = WriterOptions::new(&schema, "u".to_owned(), 0).unwrap();
    let target = WriteTarget {
        schema,
        partition: Partition::unpartitioned(),
        bucket: 0,
        total_buckets: 1,
        first_sequence_number: 0,
    };
    MergeTreeWriter::new(target, options, 1 << 20, store, Path::from("t")).unwrap()
}

fn keys(writer: &MergeTreeWriter, keys: Vec<i32>) -> RecordBatch {
    let keys = Arc::new(Int32Array::from(keys));
    RecordBatch::try_new(Arc::clone(&writer.arrow_schema), vec![keys]).unwrap()
}

#[tokio::test]
async fn a_writer_that_failed_takes_nothing_more_and_deletes_its_files() {
    for refused in ["/data-", "/changelog-"] {
        let store = FaultyStore::new();
        let mut puts = 0;
        store.inject(move |_, verb, path| {
            let is_chosen = verb == "put" && path.as_ref().contains(refused);
            puts += usize::from(is_chosen);
            // The first file of the two is written.
            (is_chosen && puts == 2).then_some(Fault::Before)
        });
        let mut writer = writer(Arc::<FaultyStore>::clone(&store));
        writer
            .write(keys(&writer, vec![2, 1]), &[RowKind::Insert; 2])
            .await
            .unwrap();
        writer.flush().await.unwrap();
        writer
            .write(keys(&writer, vec![3]), &[RowKind::Insert])
            .await
            .unwrap();
        let failed = writer.flush().await.unwrap_err();
        assert!(matches!(failed, Error::Store { .. }), "{failed}");
        let broken = writer.flush().await.unwrap_err();
        assert!(matches!(broken, Error::WriterBroken { .. }), "{broken}");
        let broken = writer.write(keys(&writer, vec![3]), &[RowKind::Insert]);
        let broken = broken.await.unwrap_err();
        assert!(matches!(broken, Error::WriterBroken { .. }), "{broken}");
        writer.abort().await.unwrap();
        let left: Vec<_> = store.list(None).try_collect().await.unwrap();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[tokio::test]
async fn finishing_that_fails_leaves_no_file() {
    let store = FaultyStore::new();
    store.inject(|_, verb, path| {
        let is_chosen = verb == "put" && path.as_ref().contains("/changelog-");
        is_chosen.then_some(Fault::Before)
    });
    let mut writer = writer(Arc::<FaultyStore>::clone(&store));
    writer
        .write(keys(&writer, vec![2, 1]), &[RowKind::Insert; 2])
        .await
        .unwrap();
    writer.finish().await.unwrap_err();
    let left: Vec<_> = store.list(None).try_collect().await.unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn numbers_end_where_those_of_java_end() {
    let mut writer = writer(FaultyStore::new());
    writer.next_sequence_number = i64::MAX - 1;
    let none_left = writer.write(keys(&writer, vec![1, 2]), &[RowKind::Insert; 2]);
    assert!(matches!(none_left.await, Err(Error::BadValue { .. })));
}
