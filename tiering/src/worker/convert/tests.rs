use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};
use weir_lake_format::{DataField, NewTable, TableSchema, TypeKind as LakeKind};
use weir_protocol::ids::{BucketId, TableBucket, TableId, TablePath};
use weir_protocol::schema::{Column, LogicalType, Schema, TypeKind};

use super::super::decode::LogForm;
use super::*;
use crate::align::Alignment;

/// `id` and `n`; the lake takes no null for `n`.
fn form() -> Form {
    let column = |name: &str| Column::new(name, LogicalType::nullable(TypeKind::BigInt));
    let columns = vec![column("id"), column("n")];
    let log = Arc::new(Schema::new(columns, vec!["id".to_owned()]).unwrap());
    let new = NewTable {
        fields: vec![
            DataField::new(0, "id", LakeKind::BigInt.not_null()),
            DataField::new(1, "n", LakeKind::BigInt.not_null()),
        ],
        partition_keys: Vec::new(),
        primary_keys: vec!["id".to_owned()],
        options: BTreeMap::from([("bucket".to_owned(), "1".to_owned())]),
        comment: None,
    };
    let lake = TableSchema::create(new, 0).unwrap();
    Form {
        log: LogForm::new(&log, &BTreeMap::new(), 1 << 20),
        alignment: Alignment::new(&TablePath::new("db", "t"), &log, &lake).unwrap(),
    }
}

/// Changes from offset 10 on; how far they are taken, and the rows that are.
fn taken(changes: &[(RowKind, i64, Option<i64>)]) -> (i64, Vec<(i64, RowKind)>, Option<String>) {
    let convert = Convert {
        policy: Policy::Stop,
        partition: None,
        diverted: Vec::new(),
        room: Room {
            records: 10,
            bytes: 1 << 20,
        },
    };
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(changes.iter().map(|c| c.1)));
    let numbers: ArrayRef = Arc::new(changes.iter().map(|c| c.2).collect::<Int64Array>());
    let rows = LogRows {
        rows: RecordBatch::try_from_iter([("id", ids), ("n", numbers)]).unwrap(),
        kinds: Some(changes.iter().map(|change| change.0).collect()),
    };
    let position = Position {
        bucket: TableBucket {
            table: TableId(1),
            partition: None,
            bucket: BucketId(0),
        },
        offset: LogOffset(10),
        timestamp_ms: 0,
    };
    let converted = convert.run(&form(), rows, position, SchemaId(1)).unwrap();
    let mut found = Vec::new();
    for run in &converted.good {
        let kinds = converted.kinds_of(run).unwrap();
        let ids = run.1["id"].as_any().downcast_ref::<Int64Array>().unwrap();
        found.extend(ids.values().iter().copied().zip(kinds.iter().copied()));
    }
    let stopped = converted.stopped.map(|trouble| trouble.reason);
    (converted.reached.0, found, stopped)
}

use RowKind::{Delete, Insert, UpdateAfter, UpdateBefore};

#[test]
fn an_update_whose_new_row_does_not_fit_leaves_the_old_one() {
    let (reached, rows, stopped) = taken(&[
        (Insert, 1, Some(1)),
        (UpdateBefore, 1, Some(1)),
        (UpdateAfter, 1, None),
        (Delete, 2, Some(2)),
    ]);
    // The old row alone would take the key away.
    assert_eq!((reached, rows), (11, vec![(1, Insert)]));
    let stopped = stopped.unwrap();
    assert!(stopped.starts_with("offset 12, column n"), "{stopped}");
    assert!(
        !stopped.contains("divert"),
        "a keyed table can't: {stopped}"
    );
}

#[test]
fn a_row_that_does_not_fit_stops_its_bucket_right_before_it() {
    let (reached, rows, stopped) = taken(&[
        (Insert, 1, Some(1)),
        (Delete, 2, Some(1)),
        (Insert, 3, None),
    ]);
    assert_eq!((reached, rows), (12, vec![(1, Insert), (2, Delete)]));
    assert!(stopped.is_some());
    // The first of all: nothing is taken.
    let (reached, rows, _) = taken(&[(UpdateBefore, 1, Some(1)), (UpdateAfter, 1, None)]);
    assert_eq!((reached, rows), (10, vec![]));
}

#[test]
fn a_key_that_is_another_nan_than_javas_stops_its_bucket_and_not_the_table() {
    let column = Column::new("id", LogicalType::nullable(TypeKind::Double));
    let log = Arc::new(Schema::new(vec![column], vec!["id".to_owned()]).unwrap());
    let new = NewTable {
        fields: vec![DataField::new(0, "id", LakeKind::Double.not_null())],
        partition_keys: Vec::new(),
        primary_keys: vec!["id".to_owned()],
        options: BTreeMap::from([("bucket".to_owned(), "1".to_owned())]),
        comment: None,
    };
    let lake = TableSchema::create(new, 0).unwrap();
    let alignment = Alignment::new(&TablePath::new("db", "t"), &log, &lake).unwrap();
    let ids: ArrayRef = Arc::new(arrow::array::Float64Array::from(vec![-f64::NAN]));
    let rows = RecordBatch::try_new(log.arrow_schema(), vec![ids]).unwrap();
    let refused = alignment.apply(&rows, Position::none(TableId(1)));
    assert!(
        matches!(&refused, Err(Error::Column { column, .. }) if column == "id"),
        "{refused:?}"
    );
}
