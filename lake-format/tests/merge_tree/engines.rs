//! Every merge engine against a model of it.

use super::*;

/// An engine: its options, and what it makes of two or more changes of a key, oldest first.
struct Engine {
    options: &'static [(&'static str, &'static str)],
    kinds: &'static [RowKind],
    merge: fn(&[Change]) -> Change,
}

const ALL: &[RowKind] = &[
    RowKind::Insert,
    RowKind::UpdateBefore,
    RowKind::UpdateAfter,
    RowKind::Delete,
];
const UPSERTS: &[RowKind] = &[RowKind::Insert, RowKind::UpdateAfter];

const ENGINES: &[Engine] = &[
    Engine {
        options: &[],
        kinds: ALL,
        merge: |changes| changes.last().unwrap().clone(),
    },
    Engine {
        options: &[("ignore-delete", "true")],
        kinds: UPSERTS,
        merge: |changes| changes.last().unwrap().clone(),
    },
    Engine {
        options: &[("sequence.field", "a,b")],
        kinds: ALL,
        merge: |changes| {
            changes
                .iter()
                .max_by_key(|(_, row)| (row.1, row.2))
                .unwrap()
                .clone()
        },
    },
    Engine {
        options: &[("merge-engine", "first-row")],
        kinds: UPSERTS,
        merge: |changes| changes[0].clone(),
    },
    Engine {
        options: &[("merge-engine", "partial-update")],
        kinds: UPSERTS,
        merge: |changes| {
            let mut row = changes[0].1.clone();
            for (_, next) in changes {
                row = (
                    row.0,
                    next.1.or(row.1),
                    next.2.or(row.2),
                    next.3.clone().or(row.3),
                );
            }
            (RowKind::Insert, row)
        },
    },
    Engine {
        options: &[
            ("merge-engine", "partial-update"),
            ("partial-update.remove-record-on-delete", "true"),
        ],
        kinds: &[RowKind::Insert, RowKind::UpdateAfter, RowKind::Delete],
        merge: |changes| {
            let mut row: Row = (changes[0].1.0, None, None, None);
            let mut kind = RowKind::Insert;
            for (change, next) in changes {
                kind = if *change == RowKind::Delete {
                    *change
                } else {
                    RowKind::Insert
                };
                row = match kind {
                    RowKind::Delete => next.clone(),
                    _ => (
                        row.0,
                        next.1.or(row.1),
                        next.2.or(row.2),
                        next.3.clone().or(row.3),
                    ),
                };
            }
            (kind, row)
        },
    },
    Engine {
        options: &[
            ("merge-engine", "aggregation"),
            ("fields.a.aggregate-function", "sum"),
            ("fields.b.aggregate-function", "max"),
            ("fields.b.ignore-retract", "true"),
            ("fields.c.ignore-retract", "true"),
        ],
        kinds: ALL,
        merge: |changes| {
            let mut row: Row = (changes[0].1.0, None, None, None);
            for (kind, next) in changes {
                let sign = if kind.is_retraction() { -1 } else { 1 };
                row.1 = match (row.1, next.1) {
                    (sum, None) => sum,
                    (sum, Some(a)) => Some(sum.unwrap_or(0) + sign * a),
                };
                if !kind.is_retraction() {
                    row.2 = row.2.max(next.2);
                    row.3 = next.3.clone().or(row.3);
                }
            }
            (RowKind::Insert, row)
        },
    },
];

impl Engine {
    /// The changes of each key as one; a single one stays as it is.
    fn merged<'a>(&self, changes: impl Iterator<Item = &'a Change>) -> BTreeMap<i32, Change> {
        let mut by_key: BTreeMap<i32, Vec<Change>> = BTreeMap::new();
        for change in changes {
            by_key.entry(change.1.0).or_default().push(change.clone());
        }
        let one = |changes: Vec<Change>| match changes.as_slice() {
            [change] => change.clone(),
            changes => (self.merge)(changes),
        };
        by_key
            .into_iter()
            .map(|(key, changes)| (key, one(changes)))
            .collect()
    }

    /// What is read after these flushes: each is merged for itself, then all of them.
    fn read(&self, flushes: &[Vec<Change>]) -> BTreeMap<i32, Row> {
        let flushed = flushes.iter().map(|changes| self.merged(changes.iter()));
        let flushed: Vec<Change> = flushed.flat_map(BTreeMap::into_values).collect();
        let rows = self.merged(flushed.iter()).into_iter();
        let kept = rows.filter(|(_, (kind, _))| !kind.is_retraction());
        kept.map(|(key, (_, row))| (key, row)).collect()
    }
}

fn change(kinds: &'static [RowKind]) -> impl Strategy<Value = Change> {
    let number = || prop::option::weighted(0.7, -3..3_i32);
    let text = prop::option::weighted(0.7, "[a-cä]{0,2}");
    (
        prop::sample::select(kinds),
        (0..6_i32, number(), number(), text),
    )
}

/// An engine, and commits of flushes of changes.
fn history() -> impl Strategy<Value = (usize, Vec<Vec<Vec<Change>>>)> {
    (0..ENGINES.len()).prop_flat_map(|engine| {
        let changes = prop::collection::vec(change(ENGINES[engine].kinds), 1..12);
        let flushes = prop::collection::vec(changes, 1..3);
        (Just(engine), prop::collection::vec(flushes, 1..4))
    })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn what_is_read_is_what_the_engine_makes_of_the_changes((engine, commits) in history()) {
        let engine = &ENGINES[engine];
        runtime().block_on(async {
            let mut fixture = Fixture::new(engine.options).await;
            let is_first_row = engine.options.contains(&("merge-engine", "first-row"));
            let mut level = 100;
            for flushes in &commits {
                let mut message = fixture.write(flushes).await;
                assert_eq!(message.new_files.len(), flushes.len());
                for file in message.new_files.iter_mut().filter(|_| is_first_row) {
                    // Such rows are read from compacted files only: each is a level of its own.
                    level -= 1;
                    file.level = level;
                }
                fixture.commit(message).await;
            }
            fixture.assert_sound().await;
            let flushes: Vec<Vec<Change>> = commits.into_iter().flatten().collect();
            assert_eq!(fixture.rows().await, engine.read(&flushes), "{:?}", engine.options);
        });
    }
}
