#![allow(clippy::indexing_slicing, reason = "a test that can't go on fails")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use arrow::array::{ArrayRef, AsArray, Int8Array, Int32Array, Int64Array, StringArray};
use arrow::datatypes::{Int32Type, Schema};
use proptest::prelude::*;

use super::*;
use crate::schema::{NewTable, TableSchema};
use crate::types::{DataField, DataType, TypeKind};

/// A row as a file holds it: key, two numbers and a text.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    key: i32,
    a: Option<i32>,
    b: Option<i32>,
    c: Option<String>,
}

/// A row with its sequence number and kind.
type Stored = (Row, i64, i8);

/// A file: rows in the order of their keys, level and age.
#[derive(Clone, Debug)]
struct File {
    rows: Vec<Stored>,
    level: i32,
    age: usize,
}

fn row(key: i32, a: impl Into<Option<i32>>, b: impl Into<Option<i32>>, c: Option<&str>) -> Row {
    Row {
        key,
        a: a.into(),
        b: b.into(),
        c: c.map(str::to_owned),
    }
}

fn schema(options: &[(&str, &str)]) -> TableSchema {
    let int = TypeKind::Int.nullable();
    let columns: [(&str, DataType); 4] = [
        ("k", TypeKind::Int.not_null()),
        ("a", int.clone()),
        ("b", int),
        ("c", TypeKind::string().nullable()),
    ];
    let field = |(name, data_type): &(&str, DataType)| DataField::new(0, *name, data_type.clone());
    let mut all = BTreeMap::from([("bucket".to_owned(), "1".to_owned())]);
    let options = options.iter();
    all.extend(options.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let table = NewTable {
        fields: columns.iter().map(field).collect(),
        primary_keys: vec!["k".to_owned()],
        options: all,
        ..NewTable::default()
    };
    TableSchema::create(table, 0).unwrap()
}

fn rule(options: &[(&str, &str)]) -> Result<Rule> {
    Rule::new(&schema(options), "db.db/t", None)
}

/// The files as batches of at most `batch_rows`, merged.
fn merged(rule: &Arc<Rule>, files: &[File], batch_rows: usize) -> Result<Vec<Row>> {
    let mut inputs: Vec<VecDeque<Input>> = Vec::new();
    for file in files {
        let batches = file.rows.chunks(batch_rows);
        let input = |rows| Input {
            batch: batch(rule, rows),
            level: file.level,
            age: file.age,
        };
        inputs.push(batches.map(input).collect());
    }
    let mut merge = Merge::new(Arc::clone(rule), files.len(), None)?;
    let mut rows = Vec::new();
    loop {
        match merge.step()? {
            Step::Done => return Ok(rows),
            Step::Rows(batch) => rows.extend(rows_of(&batch)),
            Step::Need(runs) => {
                for run in runs {
                    if let Some(input) = inputs[run].pop_front() {
                        merge.feed(run, input)?;
                    }
                }
            }
        }
    }
}

fn batch(rule: &Rule, rows: &[Stored]) -> RecordBatch {
    let column = |name: &str| -> ArrayRef {
        let rows = rows.iter();
        match name {
            "k" => Arc::new(Int32Array::from_iter_values(rows.map(|(row, ..)| row.key))),
            "a" => Arc::new(rows.map(|(row, ..)| row.a).collect::<Int32Array>()),
            "b" => Arc::new(rows.map(|(row, ..)| row.b).collect::<Int32Array>()),
            "c" => {
                let texts = rows.map(|(row, ..)| row.c.as_deref());
                Arc::new(texts.collect::<StringArray>())
            }
            "_SEQUENCE_NUMBER" => Arc::new(Int64Array::from_iter_values(
                rows.map(|(_, number, _)| *number),
            )),
            _ => Arc::new(Int8Array::from_iter_values(rows.map(|(.., kind)| *kind))),
        }
    };
    let fields = rule.fields().iter();
    let columns = fields.clone().map(|field| column(&field.name)).collect();
    let fields: Vec<_> = fields.map(DataField::arrow_field).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

fn rows_of(batch: &RecordBatch) -> Vec<Row> {
    let int = |name: &str, row: usize| {
        let array = batch.column_by_name(name).unwrap();
        let array = array.as_primitive::<Int32Type>();
        array.iter().nth(row).unwrap()
    };
    let text = batch.column_by_name("c").unwrap().as_string::<i32>();
    let row = |row| Row {
        key: int("k", row).unwrap(),
        a: int("a", row),
        b: int("b", row),
        c: text.iter().nth(row).unwrap().map(str::to_owned),
    };
    (0..batch.num_rows()).map(row).collect()
}

/// Changes as level-0 files: each begins where a key comes again, or at a cut. What lies before
/// `compacted` is one file of a higher level, merged by the rule itself.
fn files(rule: &Arc<Rule>, changes: &[Stored], cuts: &[usize], compacted: usize) -> Vec<File> {
    let mut files: Vec<File> = Vec::new();
    let mut keys = BTreeSet::new();
    for (at, change) in changes.iter().enumerate() {
        let is_new = files.is_empty() || cuts.contains(&at) || keys.contains(&change.0.key);
        if is_new {
            keys.clear();
            files.push(File {
                rows: Vec::new(),
                level: 0,
                age: files.len() + 1,
            });
        }
        keys.insert(change.0.key);
        files.last_mut().unwrap().rows.push(change.clone());
    }
    for file in &mut files {
        file.rows.sort_by_key(|(row, ..)| row.key);
    }
    let compacted = compacted.min(files.len());
    if compacted > 1 {
        let newer = files.split_off(compacted);
        let numbers = files.iter().flat_map(|file| &file.rows);
        let highest: BTreeMap<i32, i64> =
            numbers.map(|(row, number, _)| (row.key, *number)).collect();
        let rows = merged(rule, &files, 3).unwrap();
        let rows = rows.into_iter().map(|row| {
            let number = highest[&row.key];
            (row, number, 0)
        });
        let rows = rows.collect();
        files = vec![File {
            rows,
            level: 5,
            age: 0,
        }];
        files.extend(newer);
    }
    files
}

fn change() -> impl Strategy<Value = (Row, bool)> {
    let int = || proptest::option::weighted(0.7, -5..5i32);
    let text = proptest::option::weighted(0.7, "[a-c]{1,2}");
    let row = (0..12i32, int(), int(), text);
    let row = row.prop_map(|(key, a, b, c)| Row { key, a, b, c });
    (row, prop::bool::weighted(0.25))
}

/// Upserts and, if they are allowed, deletes, with rising numbers.
fn changes(deletes: bool) -> impl Strategy<Value = Vec<Stored>> {
    proptest::collection::vec(change(), 0..120).prop_map(move |changes| {
        let numbered = (0..).zip(changes);
        let stored = |(number, (row, delete)): (i64, _)| {
            (row, number, if deletes && delete { 3 } else { 0 })
        };
        numbered.map(stored).collect()
    })
}

/// What changes come to, key by key, by a function of the row so far and the next change.
fn model(changes: &[Stored], next: impl Fn(Option<Row>, &Stored) -> Option<Row>) -> Vec<Row> {
    let mut rows = BTreeMap::new();
    for change in changes {
        let row = next(rows.remove(&change.0.key), change);
        rows.extend(row.map(|row| (change.0.key, row)));
    }
    rows.into_values().collect()
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0..120usize, 0..8)
}

proptest! {
    #[test]
    fn deduplicate_keeps_the_last_row_unless_it_was_deleted(
        changes in changes(true), cuts in cuts(), compacted in 0..6usize, batch_rows in 1..9usize,
    ) {
        let rule = Arc::new(rule(&[]).unwrap());
        let found = merged(&rule, &files(&rule, &changes, &cuts, compacted), batch_rows).unwrap();
        let expected = model(&changes, |_, (row, _, kind)| (*kind == 0).then(|| row.clone()));
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn ignored_deletes_change_nothing(
        changes in changes(true), cuts in cuts(), batch_rows in 1..9usize,
    ) {
        let rule = Arc::new(rule(&[("ignore-delete", "true")]).unwrap());
        let found = merged(&rule, &files(&rule, &changes, &cuts, 0), batch_rows).unwrap();
        let expected = model(&changes, |before, (row, _, kind)| {
            if *kind == 0 { Some(row.clone()) } else { before }
        });
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn a_sequence_field_comes_before_the_sequence_number(
        changes in changes(false), cuts in cuts(), descending in any::<bool>(),
        compacted in 0..6usize, batch_rows in 1..9usize,
    ) {
        let order = if descending { "descending" } else { "ascending" };
        let options = [("sequence.field", "a"), ("sequence.field.sort-order", order)];
        let rule = Arc::new(rule(&options).unwrap());
        let found = merged(&rule, &files(&rule, &changes, &cuts, compacted), batch_rows).unwrap();
        let rank = |row: &Row| match (row.a, descending) {
            (None, _) => i32::MIN,
            (Some(a), false) => a,
            (Some(a), true) => -a,
        };
        let expected = model(&changes, |before, (row, ..)| match before {
            Some(before) if rank(&before) > rank(row) => Some(before),
            _ => Some(row.clone()),
        });
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn first_row_keeps_the_first_row(
        changes in changes(false), cuts in cuts(), compacted in 0..6usize, batch_rows in 1..9usize,
    ) {
        let rule = Arc::new(rule(&[("merge-engine", "first-row")]).unwrap());
        let found = merged(&rule, &files(&rule, &changes, &cuts, compacted), batch_rows).unwrap();
        let expected = model(&changes, |before, (row, ..)| before.or_else(|| Some(row.clone())));
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn aggregation_adds_up_column_by_column(
        changes in changes(false), cuts in cuts(), compacted in 0..6usize, batch_rows in 1..9usize,
    ) {
        let rule = Arc::new(rule(&[
            ("merge-engine", "aggregation"),
            ("fields.a.aggregate-function", "sum"),
            ("fields.b.aggregate-function", "max"),
            ("fields.c.aggregate-function", "listagg"),
        ]).unwrap());
        let found = merged(&rule, &files(&rule, &changes, &cuts, compacted), batch_rows).unwrap();
        let expected = model(&changes, |before, (row, ..)| {
            let Some(before) = before else { return Some(row.clone()) };
            let c = match (before.c, &row.c) {
                (Some(old), Some(new)) => Some(format!("{old},{new}")),
                (old, new) => old.or_else(|| new.clone()),
            };
            let a = before.a.map_or(row.a, |old| Some(old + row.a.unwrap_or(0)));
            Some(Row { key: row.key, a, b: before.b.max(row.b), c })
        });
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn partial_updates_keep_the_last_values_that_are_not_null(
        changes in changes(false), cuts in cuts(), compacted in 0..6usize, batch_rows in 1..9usize,
    ) {
        let rule = Arc::new(rule(&[("merge-engine", "partial-update")]).unwrap());
        let found = merged(&rule, &files(&rule, &changes, &cuts, compacted), batch_rows).unwrap();
        let expected = model(&changes, |before, (row, ..)| {
            let before = before.unwrap_or_else(|| row.clone());
            Some(Row {
                key: row.key,
                a: row.a.or(before.a),
                b: row.b.or(before.b),
                c: row.c.clone().or(before.c),
            })
        });
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn a_sequence_group_changes_by_its_own_order(
        changes in changes(false), cuts in cuts(), batch_rows in 1..9usize,
    ) {
        let rule = Arc::new(rule(&[
            ("merge-engine", "partial-update"),
            ("fields.b.sequence-group", "c"),
        ]).unwrap());
        let found = merged(&rule, &files(&rule, &changes, &cuts, 0), batch_rows).unwrap();
        let mut count = BTreeMap::<i32, usize>::new();
        changes.iter().for_each(|(row, ..)| *count.entry(row.key).or_default() += 1);
        let expected = model(&changes, |before, (row, ..)| {
            // A key with one version is as it was written; the group of others begins empty.
            if count[&row.key] == 1 {
                return Some(row.clone());
            }
            let before = before.unwrap_or(Row { key: row.key, a: None, b: None, c: None });
            let is_newer = row.b.is_some() && row.b >= before.b;
            let (b, c) = if is_newer { (row.b, row.c.clone()) } else { (before.b, before.c) };
            Some(Row { key: row.key, a: row.a.or(before.a), b, c })
        });
        prop_assert_eq!(found, expected);
    }
}

/// Files of one row of key 1 each, the oldest first.
fn versions(rows: &[(Row, i8)]) -> Vec<File> {
    let file = |(number, (row, kind)): (usize, &(Row, i8))| File {
        rows: vec![(row.clone(), i64::try_from(number).unwrap(), *kind)],
        level: 0,
        age: number,
    };
    rows.iter().enumerate().map(file).collect()
}

fn merged_versions(options: &[(&str, &str)], rows: &[(Row, i8)]) -> Result<Vec<Row>> {
    merged(&Arc::new(rule(options)?), &versions(rows), 8)
}

#[test]
fn of_equal_sequence_numbers_an_insert_beats_a_retraction_and_a_newer_file_an_older() {
    let mut files = versions(&[(row(1, 1, None, None), 0), (row(1, 2, None, None), 3)]);
    files[1].rows[0].1 = 0;
    let rule = Arc::new(rule(&[]).unwrap());
    assert_eq!(merged(&rule, &files, 8).unwrap()[0].a, Some(1));
    files[1].rows[0].2 = 2;
    assert_eq!(merged(&rule, &files, 8).unwrap()[0].a, Some(2));
    files.reverse();
    assert_eq!(merged(&rule, &files, 8).unwrap()[0].a, Some(2));
}

#[test]
fn retractions_take_sums_back_and_others_refuse_them_by_name() {
    let sum = [
        ("merge-engine", "aggregation"),
        ("fields.a.aggregate-function", "sum"),
    ];
    let rows = [(row(1, 5, 1, None), 0), (row(1, 3, 1, None), 3)];
    let found = merged_versions(&sum, &rows).unwrap();
    assert_eq!(found, [row(1, 2, None, None)]);
    let max = [
        ("merge-engine", "aggregation"),
        ("fields.a.aggregate-function", "max"),
    ];
    let error = merged_versions(&max, &rows).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Unsupported { .. }), "{text}");
    assert!(text.contains("`max` of column `a` in db.db/t"), "{text}");
    let ignored = [max.as_slice(), &[("fields.a.ignore-retract", "true")]].concat();
    assert_eq!(merged_versions(&ignored, &rows).unwrap()[0].a, Some(5));
}

#[test]
fn a_sum_beyond_its_type_is_an_error() {
    let sum = [
        ("merge-engine", "aggregation"),
        ("fields.a.aggregate-function", "sum"),
    ];
    let rows = [(row(1, i32::MAX, 1, None), 0), (row(1, 1, 1, None), 0)];
    let error = merged_versions(&sum, &rows).unwrap_err();
    assert!(matches!(error, Error::BadValue { .. }), "{error}");
}

#[test]
fn a_removed_record_is_gone_until_it_is_inserted_again() {
    let options = [
        ("merge-engine", "partial-update"),
        ("partial-update.remove-record-on-delete", "true"),
    ];
    let mut rows = vec![(row(1, 5, 1, None), 0), (row(1, 5, 2, Some("x")), 3)];
    assert_eq!(merged_versions(&options, &rows).unwrap(), []);
    rows.push((row(1, 7, None, None), 0));
    let found = merged_versions(&options, &rows).unwrap();
    assert_eq!(found, [row(1, 7, 2, Some("x"))]);
    let error = merged_versions(&options[..1], &rows).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}

#[test]
fn a_retraction_of_a_sequence_group_empties_the_group() {
    let options = [
        ("merge-engine", "partial-update"),
        ("fields.b.sequence-group", "c"),
    ];
    let stale = [
        (row(1, 5, 3, Some("x")), 0),
        (row(1, None, 2, Some("x")), 3),
    ];
    let found = merged_versions(&options, &stale).unwrap();
    assert_eq!(found, [row(1, 5, 3, Some("x"))]);
    let newer = [
        (row(1, 5, 3, Some("x")), 0),
        (row(1, None, 4, Some("x")), 3),
    ];
    let found = merged_versions(&options, &newer).unwrap();
    assert_eq!(found, [row(1, 5, 4, None)]);
    let remove = ("partial-update.remove-record-on-sequence-group", "b");
    let options = [options.as_slice(), &[remove]].concat();
    assert_eq!(merged_versions(&options, &newer).unwrap(), []);
    assert_eq!(merged_versions(&options, &stale).unwrap().len(), 1);
}

#[test]
fn a_group_may_have_a_function_that_takes_stale_values_too() {
    let options = [
        ("merge-engine", "partial-update"),
        ("fields.b.sequence-group", "a,c"),
        ("fields.a.aggregate-function", "sum"),
        ("fields.c.aggregate-function", "first_non_null_value"),
    ];
    let rows = [
        (row(1, 5, 3, Some("x")), 0),
        (row(1, 2, 1, Some("y")), 0),
        (row(1, 1, 4, Some("z")), 0),
    ];
    let found = merged_versions(&options, &rows).unwrap();
    assert_eq!(found, [row(1, 8, 4, Some("y"))]);
}

#[test]
fn with_lookup_a_higher_level_is_counted_once() {
    let options = [
        ("merge-engine", "aggregation"),
        ("fields.a.aggregate-function", "sum"),
        ("changelog-producer", "lookup"),
    ];
    let mut files = versions(&[
        (row(1, 5, None, None), 0),
        (row(1, 7, None, None), 0),
        (row(1, 1, None, None), 0),
    ]);
    files[0].level = 5;
    files[1].level = 4;
    let with_lookup = Arc::new(rule(&options).unwrap());
    assert_eq!(merged(&with_lookup, &files, 8).unwrap()[0].a, Some(8));
    let without = Arc::new(rule(&options[..2]).unwrap());
    assert_eq!(merged(&without, &files, 8).unwrap()[0].a, Some(13));
}

#[test]
fn a_lone_retraction_is_left_out_by_every_engine() {
    for engine in ["deduplicate", "first-row", "aggregation", "partial-update"] {
        let found = merged_versions(&[("merge-engine", engine)], &[(row(1, 1, 1, None), 3)]);
        assert_eq!(found.unwrap(), [], "{engine}");
    }
}

#[test]
fn rows_out_of_order_and_unknown_kinds_are_errors() {
    let rule = Arc::new(rule(&[]).unwrap());
    let rows = |keys: &[i32], kind| -> Vec<Stored> {
        let keys = keys.iter();
        keys.map(|key| (row(*key, None, None, None), 0, kind))
            .collect()
    };
    for (rows, batch_rows) in [
        (rows(&[2, 1], 0), 8),
        (rows(&[2, 1], 0), 1),
        (rows(&[1], 4), 8),
    ] {
        let file = File {
            rows,
            level: 0,
            age: 0,
        };
        let found = merged(&rule, &[file], batch_rows);
        assert!(matches!(found, Err(Error::Malformed { .. })), "{found:?}");
    }
}

#[test]
fn what_is_not_known_is_refused_with_table_column_and_function() {
    let refused = |options: &[(&str, &str)]| match rule(options) {
        Err(error @ Error::Unsupported { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let text = refused(&[
        ("merge-engine", "aggregation"),
        ("fields.c.aggregate-function", "hll_sketch"),
    ]);
    assert!(
        text.contains("`hll_sketch` of column `c` in db.db/t"),
        "{text}"
    );
    let text = refused(&[
        ("merge-engine", "aggregation"),
        ("fields.c.aggregate-function", "sum"),
    ]);
    assert!(text.contains("does not take STRING"), "{text}");
    assert!(refused(&[("merge-engine", "newest")]).contains("`newest`"));
    assert!(refused(&[("sequence.snapshot-ordering", "true")]).contains("snapshot-ordering"));
    let no_group = [
        ("merge-engine", "partial-update"),
        ("fields.a.aggregate-function", "sum"),
    ];
    assert!(matches!(rule(&no_group), Err(Error::InvalidSchema { .. })));
}

#[test]
fn a_projection_reads_what_the_merge_needs_and_gives_what_is_asked_for() {
    let options = [
        ("merge-engine", "partial-update"),
        ("fields.b.sequence-group", "c"),
        ("fields.a.aggregate-function", "last_non_null_value"),
    ];
    let rule = Rule::new(&schema(&options), "t", Some(&["c"])).unwrap();
    let read: Vec<_> = rule.fields().iter().map(|field| &field.name).collect();
    assert_eq!(read, ["c", "k", "b", "_SEQUENCE_NUMBER", "_VALUE_KIND"]);
    let given = rule.wanted_schema();
    let given: Vec<_> = given.fields().iter().map(|field| field.name()).collect();
    assert_eq!(given, ["c"]);
}
