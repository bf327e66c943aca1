use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use weir_protocol::ids::SchemaId;
use weir_protocol::schema::{Column, LogicalType};

use super::*;

const FULL: ChangelogImage = ChangelogImage::Full;
const WAL: ChangelogImage = ChangelogImage::Wal;

fn column(name: &str, kind: TypeKind) -> Column {
    Column::new(name, LogicalType::nullable(kind))
}

/// `id INT` (the key), `a STRING`, `v BIGINT`.
fn schema() -> Schema {
    let columns = vec![
        column("id", TypeKind::Int),
        column("a", TypeKind::String),
        column("v", TypeKind::BigInt),
    ];
    Schema::new(columns, vec!["id".to_owned()]).unwrap()
}

fn schemas() -> TableSchemas {
    TableSchemas::new(SchemaId(1), Arc::new(schema()))
}

fn rules(engine: MergeEngine, image: ChangelogImage) -> TableRules {
    let deletes = if engine == MergeEngine::LastRow {
        DeleteBehavior::Allow
    } else {
        DeleteBehavior::Ignore
    };
    TableRules {
        format: RowFormat::Compacted,
        engine,
        deletes,
        image,
    }
}

fn versioned() -> MergeEngine {
    MergeEngine::Versioned {
        column: "v".to_owned(),
    }
}

fn row(id: i32, a: Option<&str>, v: Option<i64>) -> Vec<Datum> {
    let a = a.map_or(Datum::Null, |text| Datum::String(text.to_owned()));
    vec![Datum::Int(id), a, v.map_or(Datum::Null, Datum::BigInt)]
}

fn stored(row: &[Datum]) -> StoredValue {
    schemas().encode(RowFormat::Compacted, row).unwrap()
}

fn no_number() -> Result<i64> {
    panic!("no column of this table is numbered")
}

struct Case {
    rules: TableRules,
    targets: Option<Vec<i32>>,
    mode: MergeMode,
}

impl Case {
    fn of(engine: MergeEngine, image: ChangelogImage) -> Self {
        Self {
            rules: rules(engine, image),
            targets: None,
            mode: MergeMode::Engine,
        }
    }

    fn targets(mut self, targets: &[i32]) -> Self {
        self.targets = Some(targets.to_vec());
        self
    }

    fn run(&self, old: Option<&[Datum]>, request: Request) -> Result<Outcome> {
        let schemas = schemas();
        let upsert = Upsert::new(&self.rules, &schemas, self.targets.as_deref(), self.mode)?;
        upsert.apply(old.map(stored).as_ref(), &request, &mut no_number)
    }

    fn put(&self, old: Option<&[Datum]>, new: &[Datum]) -> Outcome {
        self.run(old, Request::Put(stored(new))).unwrap()
    }

    fn delete(&self, old: Option<&[Datum]>) -> Outcome {
        self.run(old, Request::Delete).unwrap()
    }
}

fn outcome(records: &[(ChangeType, &[Datum])], write: KeyWrite) -> Outcome {
    let records = records
        .iter()
        .map(|(kind, row)| record(*kind, row.to_vec()));
    changed(records.collect(), write)
}

fn inserted(row: &[Datum]) -> Outcome {
    outcome(
        &[(ChangeType::Insert, row)],
        KeyWrite::Put(stored(row), PutKind::Insert),
    )
}

fn updated(old: &[Datum], new: &[Datum]) -> Outcome {
    outcome(
        &[
            (ChangeType::UpdateBefore, old),
            (ChangeType::UpdateAfter, new),
        ],
        KeyWrite::Put(stored(new), PutKind::Update),
    )
}

fn updated_wal(new: &[Datum], kind: PutKind) -> Outcome {
    outcome(
        &[(ChangeType::UpdateAfter, new)],
        KeyWrite::Put(stored(new), kind),
    )
}

fn deleted(old: &[Datum]) -> Outcome {
    outcome(&[(ChangeType::Delete, old)], KeyWrite::Delete)
}

#[test]
fn the_last_row_wins_and_both_images_are_in_a_full_changelog() {
    let (old, new) = (row(1, Some("x"), Some(5)), row(1, None, Some(4)));
    let case = Case::of(MergeEngine::LastRow, FULL);
    assert_eq!(case.put(None, &new), inserted(&new));
    assert_eq!(case.put(Some(&old), &new), updated(&old, &new));
    assert_eq!(case.put(Some(&old), &old), updated(&old, &old));
    assert_eq!(case.delete(Some(&old)), deleted(&old));
    assert_eq!(case.delete(None), Outcome::Unchanged);
}

#[test]
fn a_wal_changelog_of_whole_rows_needs_no_old_row() {
    let (old, new) = (row(1, Some("x"), Some(5)), row(1, None, Some(4)));
    let case = Case::of(MergeEngine::LastRow, WAL);
    let schemas = schemas();
    let upsert = Upsert::new(&case.rules, &schemas, None, MergeMode::Engine).unwrap();
    assert!(!upsert.needs_old_value(&Request::Put(stored(&new))));
    assert!(upsert.needs_old_value(&Request::Delete));
    assert_eq!(case.put(None, &new), updated_wal(&new, PutKind::Blind));
    assert_eq!(
        case.put(Some(&old), &new),
        updated_wal(&new, PutKind::Blind)
    );
    assert_eq!(case.delete(Some(&old)), deleted(&old));
    let all = Case::of(MergeEngine::LastRow, WAL).targets(&[2, 1, 0]);
    assert_eq!(all.put(Some(&old), &new), updated_wal(&new, PutKind::Blind));
}

#[test]
fn a_wal_changelog_of_partial_updates_tells_inserts_from_updates() {
    let (old, new) = (row(1, Some("x"), Some(5)), row(1, Some("ignored"), Some(4)));
    let case = Case::of(MergeEngine::LastRow, WAL).targets(&[0, 2]);
    assert_eq!(case.put(None, &new), inserted(&row(1, None, Some(4))));
    let merged = row(1, Some("x"), Some(4));
    assert_eq!(
        case.put(Some(&old), &new),
        updated_wal(&merged, PutKind::Update)
    );
}

#[test]
fn a_partial_update_keeps_the_other_columns() {
    let (old, new) = (row(1, Some("x"), Some(5)), row(1, Some("ignored"), None));
    let case = Case::of(MergeEngine::LastRow, FULL).targets(&[0, 2]);
    assert_eq!(
        case.put(Some(&old), &new),
        updated(&old, &row(1, Some("x"), None))
    );
    assert_eq!(case.put(None, &new), inserted(&row(1, None, None)));
}

#[test]
fn a_partial_update_of_the_key_alone_only_inserts() {
    let (old, new) = (row(1, Some("x"), Some(5)), row(1, Some("ignored"), None));
    let case = Case::of(MergeEngine::LastRow, FULL).targets(&[0]);
    assert_eq!(case.put(Some(&old), &new), Outcome::Unchanged);
    assert_eq!(case.put(None, &new), inserted(&row(1, None, None)));
}

#[test]
fn a_partial_delete_clears_its_columns_and_deletes_when_nothing_else_is_left() {
    let case = Case::of(MergeEngine::LastRow, FULL).targets(&[0, 2]);
    let old = row(1, Some("x"), Some(5));
    assert_eq!(
        case.delete(Some(&old)),
        updated(&old, &row(1, Some("x"), None))
    );
    let bare = row(1, None, Some(5));
    assert_eq!(case.delete(Some(&bare)), deleted(&bare));
}

#[test]
fn the_first_row_stays() {
    let (old, new) = (row(1, Some("x"), Some(5)), row(1, None, Some(9)));
    for image in [FULL, WAL] {
        let case = Case::of(MergeEngine::FirstRow, image);
        assert_eq!(case.put(None, &new), inserted(&new));
        assert_eq!(case.put(Some(&old), &new), Outcome::Unchanged);
        assert_eq!(case.delete(Some(&old)), Outcome::Unchanged);
    }
}

#[test]
fn the_highest_version_wins_and_of_equal_ones_the_later() {
    let at = |version| row(1, Some("x"), version);
    let case = Case::of(versioned(), FULL);
    assert_eq!(
        case.put(Some(&at(Some(5))), &at(Some(4))),
        Outcome::Unchanged
    );
    assert_eq!(case.put(Some(&at(Some(5))), &at(None)), Outcome::Unchanged);
    for (old, new) in [
        (Some(5), Some(5)),
        (Some(5), Some(6)),
        (None, Some(-9)),
        (None, None),
        (Some(i64::MIN), None),
    ] {
        assert_eq!(
            case.put(Some(&at(old)), &at(new)),
            updated(&at(old), &at(new))
        );
    }
}

#[test]
fn a_null_version_of_an_int_column_equals_the_lowest_int() {
    let columns = vec![column("id", TypeKind::Int), column("v", TypeKind::Int)];
    let schema = Schema::new(columns, vec!["id".to_owned()]).unwrap();
    let schemas = TableSchemas::new(SchemaId(1), Arc::new(schema));
    let rules = rules(versioned(), FULL);
    let upsert = Upsert::new(&rules, &schemas, None, MergeMode::Engine).unwrap();
    let store = |version| {
        schemas
            .encode(RowFormat::Compacted, &[Datum::Int(1), version])
            .unwrap()
    };
    let (lowest, null) = (
        store(Datum::Int(i32::MIN)),
        Request::Put(store(Datum::Null)),
    );
    let outcome = upsert.apply(Some(&lowest), &null, &mut no_number).unwrap();
    assert_ne!(outcome, Outcome::Unchanged);
}

#[test]
fn timestamps_are_versions_down_to_the_nanosecond() {
    let kind = TypeKind::TimestampLtz { precision: 9 };
    let columns = vec![column("id", TypeKind::Int), column("v", kind)];
    let schema = Schema::new(columns, vec!["id".to_owned()]).unwrap();
    let schemas = TableSchemas::new(SchemaId(1), Arc::new(schema));
    let rules = rules(versioned(), FULL);
    let upsert = Upsert::new(&rules, &schemas, None, MergeMode::Engine).unwrap();
    let store = |nanos| {
        let version = Datum::Timestamp { millis: 7, nanos };
        schemas
            .encode(RowFormat::Compacted, &[Datum::Int(1), version])
            .unwrap()
    };
    let put = |old, new| {
        upsert
            .apply(Some(&store(old)), &Request::Put(store(new)), &mut no_number)
            .unwrap()
    };
    assert_eq!(put(2, 1), Outcome::Unchanged);
    assert_ne!(put(1, 2), Outcome::Unchanged);
}

#[test]
fn deletes_are_allowed_ignored_or_refused() {
    let old = row(1, Some("x"), Some(5));
    let mut case = Case::of(MergeEngine::LastRow, FULL);
    case.rules.deletes = DeleteBehavior::Ignore;
    assert_eq!(case.delete(Some(&old)), Outcome::Unchanged);
    case.rules.deletes = DeleteBehavior::Disable;
    for old in [Some(old.as_slice()), None] {
        let refused = case.run(old, Request::Delete);
        assert!(matches!(refused, Err(Error::DeletesDisabled)));
    }
}

#[test]
fn overwriting_passes_every_engine() {
    let (old, new) = (row(1, Some("x"), Some(5)), row(1, None, Some(4)));
    for engine in [MergeEngine::FirstRow, versioned()] {
        let mut case = Case::of(engine, FULL);
        case.rules.deletes = DeleteBehavior::Disable;
        case.mode = MergeMode::Overwrite;
        assert_eq!(case.put(Some(&old), &new), updated(&old, &new));
        assert_eq!(case.delete(Some(&old)), deleted(&old));
        let part = case.targets(&[0, 1]);
        assert_eq!(
            part.put(Some(&old), &new),
            updated(&old, &row(1, None, Some(5)))
        );
    }
}

#[test]
fn wrong_target_columns_are_refused_by_name() {
    let error = |targets: &[i32]| {
        let case = Case::of(MergeEngine::LastRow, FULL).targets(targets);
        match case.run(None, Request::Delete).unwrap_err() {
            Error::TargetColumns { column, .. } => column,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(error(&[1]), "id");
    assert_eq!(error(&[]), "id");
    assert_eq!(error(&[0, 3]), "3");
    assert_eq!(error(&[0, -1]), "-1");
    for (engine, name) in [
        (MergeEngine::FirstRow, "first_row"),
        (versioned(), "versioned"),
    ] {
        let refused = Case::of(engine, FULL)
            .targets(&[0, 1, 2])
            .run(None, Request::Delete);
        assert!(matches!(refused, Err(Error::PartialUpdate { engine }) if engine == name));
    }
}

#[test]
fn a_partial_update_needs_all_other_columns_nullable_even_its_targets() {
    let mut schema = schema();
    schema.columns[2].ty.nullable = false;
    let schemas = TableSchemas::new(SchemaId(1), Arc::new(schema));
    let rules = rules(MergeEngine::LastRow, FULL);
    let refused = Upsert::new(&rules, &schemas, Some(&[0, 2]), MergeMode::Engine);
    assert!(matches!(refused, Err(Error::TargetColumns { column, .. }) if column == "v"));
}

#[test]
fn a_row_without_its_key_is_refused() {
    let new = vec![Datum::Null, Datum::Null, Datum::Null];
    for image in [FULL, WAL] {
        let case = Case::of(MergeEngine::LastRow, image);
        let refused = case.run(None, Request::Put(stored(&new)));
        assert!(matches!(refused, Err(Error::NullValue { column }) if column == "id"));
    }
}

#[test]
fn rows_of_unknown_schemas_and_broken_rows_are_refused() {
    let case = Case::of(MergeEngine::LastRow, FULL);
    let mut new = stored(&row(1, None, None));
    new.schema_id = SchemaId(2);
    let refused = case.run(None, Request::Put(new.clone()));
    assert!(matches!(
        refused,
        Err(Error::UnknownSchema {
            latest: SchemaId(1),
            ..
        })
    ));
    new.schema_id = SchemaId(1);
    new.row = new.row.slice(..1);
    let refused = case.run(None, Request::Put(new));
    assert!(matches!(
        refused,
        Err(Error::Row {
            schema: SchemaId(1),
            ..
        })
    ));
}

#[test]
fn rows_of_an_older_schema_have_null_in_new_columns() {
    let old = row(1, Some("x"), Some(5));
    let wider = schema()
        .with_column_added(column("b", TypeKind::Int))
        .unwrap();
    let schemas = schemas().with(SchemaId(2), Arc::new(wider));
    let rules = rules(MergeEngine::LastRow, FULL);
    let mut old_wide = old.clone();
    old_wide.push(Datum::Null);
    let mut new_wide = old.clone();
    new_wide.push(Datum::Int(3));
    // A whole row of the old schema stays as it came, the changelog is in the new one.
    let upsert = Upsert::new(&rules, &schemas, None, MergeMode::Engine).unwrap();
    let outcome = upsert
        .apply(None, &Request::Put(stored(&old)), &mut no_number)
        .unwrap();
    let records = vec![record(ChangeType::Insert, old_wide.clone())];
    assert_eq!(
        outcome,
        changed(records, KeyWrite::Put(stored(&old), PutKind::Insert))
    );
    // A partial update brings the whole row to the new schema.
    let upsert = Upsert::new(&rules, &schemas, Some(&[0, 3]), MergeMode::Engine).unwrap();
    let mut part = row(1, None, None);
    part.push(Datum::Int(3));
    let part = schemas.encode(RowFormat::Compacted, &part).unwrap();
    let outcome = upsert
        .apply(Some(&stored(&old)), &Request::Put(part), &mut no_number)
        .unwrap();
    let records = vec![
        record(ChangeType::UpdateBefore, old_wide),
        record(ChangeType::UpdateAfter, new_wide.clone()),
    ];
    let value = schemas.encode(RowFormat::Compacted, &new_wide).unwrap();
    assert_eq!(value.schema_id, SchemaId(2));
    assert_eq!(
        outcome,
        changed(records, KeyWrite::Put(value, PutKind::Update))
    );
}

#[test]
fn a_numbered_column_is_filled_on_insert_and_kept_on_update() {
    let mut schema = schema();
    schema.auto_increment = vec!["v".to_owned()];
    let schemas = TableSchemas::new(SchemaId(1), Arc::new(schema));
    for image in [FULL, WAL] {
        let rules = rules(MergeEngine::LastRow, image);
        for targets in [None, Some(&[0, 1, 2][..])] {
            let refused = Upsert::new(&rules, &schemas, targets, MergeMode::Engine);
            assert!(matches!(refused, Err(Error::TargetColumns { column, .. }) if column == "v"));
        }
        let upsert = Upsert::new(&rules, &schemas, Some(&[0, 1]), MergeMode::Engine).unwrap();
        let request = Request::Put(stored(&row(1, Some("y"), Some(99))));
        assert!(upsert.needs_old_value(&request));
        let outcome = upsert.apply(None, &request, &mut || Ok(7)).unwrap();
        assert_eq!(outcome, inserted(&row(1, Some("y"), Some(7))));
        let old = row(1, Some("x"), Some(3));
        let outcome = upsert
            .apply(Some(&stored(&old)), &request, &mut no_number)
            .unwrap();
        let new = row(1, Some("y"), Some(3));
        let expected = match image {
            FULL => updated(&old, &new),
            WAL => updated_wal(&new, PutKind::Update),
        };
        assert_eq!(outcome, expected);
    }
}

#[test]
fn a_number_beyond_an_int_column_is_refused() {
    let columns = vec![column("id", TypeKind::Int), column("n", TypeKind::Int)];
    let mut schema = Schema::new(columns, vec!["id".to_owned()]).unwrap();
    schema.auto_increment = vec!["n".to_owned()];
    let schemas = TableSchemas::new(SchemaId(1), Arc::new(schema));
    let rules = rules(MergeEngine::LastRow, FULL);
    let upsert = Upsert::new(&rules, &schemas, Some(&[0]), MergeMode::Engine).unwrap();
    let new = schemas
        .encode(RowFormat::Compacted, &[Datum::Int(1), Datum::Null])
        .unwrap();
    let refused = upsert.apply(None, &Request::Put(new), &mut || Ok(1 << 31));
    assert!(matches!(
        refused,
        Err(Error::NumbersUsedUp {
            number: 0x8000_0000,
            ..
        })
    ));
}

#[test]
fn properties_become_rules() {
    let of = |pairs: &[(&str, &str)]| {
        let properties = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        TableRules::of_properties(&properties.collect::<BTreeMap<_, _>>(), &schema())
    };
    assert_eq!(of(&[]).unwrap(), rules(MergeEngine::LastRow, FULL));
    let engine = "table.merge-engine";
    let version = ("table.merge-engine.versioned.ver-column", "v");
    let found = of(&[
        (engine, "VERSIONED"),
        version,
        ("table.changelog.image", "wal"),
    ]);
    assert_eq!(found.unwrap(), rules(versioned(), WAL));
    let found = of(&[(engine, "first_row"), ("table.delete.behavior", "disable")]).unwrap();
    assert_eq!(
        (found.engine, found.deletes),
        (MergeEngine::FirstRow, DeleteBehavior::Disable)
    );
    assert_eq!(
        of(&[("table.kv.format", "INDEXED")]).unwrap().format,
        RowFormat::Indexed
    );
    let found = of(&[(engine, "aggregation"), ("table.delete.behavior", "allow")]).unwrap();
    assert_eq!(
        (found.engine, found.deletes),
        (MergeEngine::Aggregation, DeleteBehavior::Allow)
    );
    for wrong in [
        &[(engine, "newest")][..],
        &[(engine, "aggregation"), ("table.changelog.image", "wal")],
        &[(engine, "versioned")],
        &[
            (engine, "versioned"),
            ("table.merge-engine.versioned.ver-column", "a"),
        ],
        &[
            (engine, "versioned"),
            ("table.merge-engine.versioned.ver-column", "none"),
        ],
        &[(engine, "first_row"), ("table.delete.behavior", "allow")],
        &[("table.delete.behavior", "sometimes")],
        &[("table.changelog.image", "half")],
        &[("table.kv.format", "arrow")],
    ] {
        assert!(
            matches!(of(wrong), Err(Error::TableProperty { .. })),
            "{wrong:?}"
        );
    }
}

#[test]
fn an_update_is_buffered_at_the_offset_of_its_new_row() {
    let (old, new) = (row(1, Some("x"), Some(5)), row(1, None, Some(4)));
    let mut buffer = PreWriteBuffer::new(LogOffset(10));
    let key = Bytes::from_static(b"k");
    let end = updated(&old, &new)
        .buffer(&mut buffer, key.clone(), LogOffset(10))
        .unwrap();
    assert_eq!(end, LogOffset(12));
    assert!(buffer.flush_up_to(LogOffset(11)).unwrap().writes.is_empty());
    buffer.abort_flush();
    let batch = buffer.flush_up_to(LogOffset(12)).unwrap();
    assert_eq!(
        batch.writes,
        [(key.clone(), Some(stored(&new).encode().unwrap()))]
    );
    buffer.complete_flush();
    let end = Outcome::Unchanged
        .buffer(&mut buffer, key, LogOffset(12))
        .unwrap();
    assert_eq!(end, LogOffset(12));
}

type Op = (i32, Option<(Option<String>, Option<i64>)>);

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let row = (prop::option::of("[a-c]{0,3}"), prop::option::of(-3..3i64));
    prop::collection::vec((0..4i32, prop::option::weighted(0.8, row)), 0..60)
}

fn cases() -> impl Strategy<Value = (MergeEngine, Option<Vec<i32>>)> {
    prop_oneof![
        Just((MergeEngine::LastRow, None)),
        Just((MergeEngine::LastRow, Some(vec![0, 1]))),
        Just((MergeEngine::LastRow, Some(vec![0, 2]))),
        Just((MergeEngine::LastRow, Some(vec![0]))),
        Just((MergeEngine::FirstRow, None)),
        Just((versioned(), None)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_changelog_read_from_its_start_gives_the_values(
        ops in ops(),
        (engine, targets) in cases(),
        image in prop_oneof![Just(FULL), Just(WAL)],
        format in prop_oneof![Just(RowFormat::Compacted), Just(RowFormat::Indexed)],
    ) {
        let (schemas, mut rules) = (schemas(), rules(engine, image));
        rules.format = format;
        let upsert = Upsert::new(&rules, &schemas, targets.as_deref(), MergeMode::Engine).unwrap();
        let mut values: BTreeMap<i32, StoredValue> = BTreeMap::new();
        let mut replayed: BTreeMap<i32, Vec<Datum>> = BTreeMap::new();
        for (id, change) in ops {
            let request = match change {
                Some((a, v)) => {
                    Request::Put(schemas.encode(format, &row(id, a.as_deref(), v)).unwrap())
                }
                None => Request::Delete,
            };
            let old = values.get(&id).filter(|_| upsert.needs_old_value(&request));
            let outcome = upsert.apply(old, &request, &mut no_number).unwrap();
            let Outcome::Changed { records, write } = outcome else {
                continue;
            };
            for ChangeRecord { change_type, row } in records {
                match change_type {
                    ChangeType::Insert => prop_assert_eq!(replayed.insert(id, row), None),
                    ChangeType::UpdateBefore => prop_assert_eq!(replayed.get(&id), Some(&row)),
                    ChangeType::UpdateAfter => {
                        let before = replayed.insert(id, row);
                        let is_blind = matches!(write, KeyWrite::Put(_, PutKind::Blind));
                        prop_assert!(is_blind || before.is_some());
                    }
                    ChangeType::Delete => prop_assert_eq!(replayed.remove(&id), Some(row)),
                    ChangeType::AppendOnly => prop_assert!(false, "a key has no +A"),
                }
            }
            match write {
                KeyWrite::Put(value, kind) => {
                    let existed = values.insert(id, value).is_some();
                    match kind {
                        PutKind::Insert => prop_assert!(!existed),
                        PutKind::Update => prop_assert!(existed),
                        PutKind::Blind => prop_assert_eq!(image, WAL),
                    }
                }
                KeyWrite::Delete => prop_assert!(values.remove(&id).is_some()),
            }
            let decoded: BTreeMap<i32, Vec<Datum>> = values
                .iter()
                .map(|(id, value)| (*id, schemas.decode(format, value).unwrap()))
                .collect();
            prop_assert_eq!(&decoded, &replayed);
        }
    }
}
