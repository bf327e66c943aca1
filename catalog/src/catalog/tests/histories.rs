//! Random histories against an oracle.

use super::*;

#[derive(Clone, Debug)]
enum Step {
    CreateDatabase(u8),
    DropDatabase(u8, bool),
    CreateTable(u8, u8, bool),
    DropTable(u8, u8),
    CreatePartition(u8, u8, u8),
    DropPartition(u8, u8, u8),
    AddColumn(u8, u8, u8),
    SetProperty(u8, u8, u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (db, table, value) = (0..2_u8, 0..3_u8, 0..3_u8);
    let (d, t) = (db.clone(), table.clone());
    let step = prop_oneof![
        2 => db.clone().prop_map(Step::CreateDatabase),
        1 => (db.clone(), any::<bool>()).prop_map(|(d, c)| Step::DropDatabase(d, c)),
        4 => (db.clone(), table.clone(), any::<bool>()).prop_map(|(d, t, p)| Step::CreateTable(d, t, p)),
        1 => (db.clone(), table.clone()).prop_map(|(d, t)| Step::DropTable(d, t)),
        4 => (db.clone(), table.clone(), value.clone()).prop_map(|(d, t, v)| Step::CreatePartition(d, t, v)),
        2 => (db, table, value.clone()).prop_map(|(d, t, v)| Step::DropPartition(d, t, v)),
        2 => (d.clone(), t.clone(), value.clone()).prop_map(|(d, t, v)| Step::AddColumn(d, t, v)),
        1 => (d, t, value).prop_map(|(d, t, v)| Step::SetProperty(d, t, v)),
    ];
    prop::collection::vec(step, 1..60)
}

/// What the oracle knows of a table.
#[derive(Clone, Debug, Default, PartialEq)]
struct Known {
    is_partitioned: bool,
    partitions: BTreeSet<String>,
    columns: Vec<String>,
    owner: Option<String>,
}

type Oracle = BTreeMap<String, BTreeMap<String, Known>>;

/// Applies one step to the catalog and to the oracle, which must agree whether it succeeds.
async fn apply(world: &World, oracle: &mut Oracle, step: &Step) {
    let (catalog, none) = (&world.catalog, DatabaseDescriptor::default());
    let name = |d: u8, t: u8| TablePath::new(format!("d{d}"), format!("t{t}"));
    match *step {
        Step::CreateDatabase(d) => {
            let name = format!("d{d}");
            let done = catalog.create_database(&name, &none, IfExists::Fail).await;
            assert_eq!(done.is_ok(), !oracle.contains_key(&name), "{done:?}");
            oracle.entry(name).or_default();
        }
        Step::DropDatabase(d, cascade) => {
            let name = format!("d{d}");
            let contents = if cascade {
                Contents::Drop
            } else {
                Contents::MustBeEmpty
            };
            let done = catalog
                .drop_database(&name, IfMissing::Fail, contents)
                .await;
            let may = oracle
                .get(&name)
                .is_some_and(|tables| cascade || tables.is_empty());
            assert_eq!(done.is_ok(), may, "{done:?}");
            if may {
                oracle.remove(&name);
            }
        }
        Step::CreateTable(d, t, is_partitioned) => {
            let path = name(d, t);
            let table = if is_partitioned {
                partitioned()
            } else {
                log_table()
            };
            let done = world.create(&path, &table).await;
            let tables = oracle
                .get_mut(&path.database)
                .filter(|tables| !tables.contains_key(&path.table));
            assert_eq!(done.is_ok(), tables.is_some(), "{done:?}");
            if let Some(tables) = tables {
                tables.insert(
                    path.table,
                    Known {
                        is_partitioned,
                        ..Known::default()
                    },
                );
            }
        }
        Step::DropTable(d, t) => {
            let path = name(d, t);
            let done = catalog.drop_table(&path, IfMissing::Fail).await;
            let was_there = oracle
                .get_mut(&path.database)
                .and_then(|tables| tables.remove(&path.table));
            assert_eq!(done.is_ok(), was_there.is_some(), "{done:?}");
        }
        Step::CreatePartition(..) | Step::DropPartition(..) => {
            apply_partition(world, oracle, step).await;
        }
        Step::AddColumn(d, t, c) => {
            let (path, column) = (name(d, t), format!("c{c}"));
            let done = catalog
                .alter_table(&path, &[add(&column)], IfMissing::Fail)
                .await;
            let known = oracle
                .get_mut(&path.database)
                .and_then(|tables| tables.get_mut(&path.table));
            let known = known.filter(|known| !known.columns.contains(&column));
            assert_eq!(done.is_ok(), known.is_some(), "{done:?}");
            if let Some(known) = known {
                known.columns.push(column);
            }
        }
        Step::SetProperty(d, t, v) => {
            let (path, owner) = (name(d, t), format!("o{v}"));
            let done = catalog
                .alter_table(&path, &[set("owner", &owner)], IfMissing::Fail)
                .await;
            let known = oracle
                .get_mut(&path.database)
                .and_then(|tables| tables.get_mut(&path.table));
            assert_eq!(done.is_ok(), known.is_some(), "{done:?}");
            if let Some(known) = known {
                known.owner = Some(owner);
            }
        }
    }
}

async fn apply_partition(world: &World, oracle: &mut Oracle, step: &Step) {
    let (Step::CreatePartition(d, t, v) | Step::DropPartition(d, t, v)) = *step else {
        return;
    };
    let (path, value) = (
        TablePath::new(format!("d{d}"), format!("t{t}")),
        format!("p{v}"),
    );
    let spec = spec(&value);
    let known = oracle
        .get_mut(&path.database)
        .and_then(|tables| tables.get_mut(&path.table));
    let known = known.filter(|known| known.is_partitioned);
    if matches!(step, Step::CreatePartition(..)) {
        let request = NewPartition {
            path: &path,
            spec: &spec,
            servers: &SERVERS,
        };
        let done = world
            .catalog
            .create_partition(request, IfExists::Fail)
            .await;
        let is_new = known.is_some_and(|known| known.partitions.insert(value));
        assert_eq!(done.is_ok(), is_new, "{done:?}");
    } else {
        let done = world
            .catalog
            .drop_partition(&path, &spec, IfMissing::Fail)
            .await;
        let was_there = known.is_some_and(|known| known.partitions.remove(&value));
        assert_eq!(done.is_ok(), was_there, "{done:?}");
    }
}

/// Reads everything back as the oracle knows it.
async fn read_all(catalog: &Catalog) -> Oracle {
    let mut oracle = Oracle::new();
    for database in catalog.list_databases().await.unwrap() {
        if database == "db" {
            continue;
        }
        let mut tables = BTreeMap::new();
        for name in catalog.list_tables(&database).await.unwrap() {
            let path = TablePath::new(&database, &name);
            let table = catalog.get_table(&path).await.unwrap();
            let columns = table.descriptor.schema.columns.iter().skip(2);
            let mut known = Known {
                is_partitioned: table.descriptor.is_partitioned(),
                columns: columns.map(|column| column.name.clone()).collect(),
                owner: table.descriptor.custom_properties.get("owner").cloned(),
                ..Known::default()
            };
            if known.is_partitioned {
                let (_, partitions) = catalog.list_partitions(&path).await.unwrap();
                known.partitions = partitions
                    .into_iter()
                    .map(|partition| partition.name)
                    .collect();
            }
            tables.insert(name, known);
        }
        oracle.insert(database, tables);
    }
    oracle
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_sequence_of_changes_leaves_what_the_oracle_says(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (found, oracle) = runtime.block_on(async {
            let (world, mut oracle) = (World::new().await, Oracle::new());
            for step in &steps {
                apply(&world, &mut oracle, step).await;
            }
            (read_all(&world.catalog).await, oracle)
        });
        prop_assert_eq!(found, oracle);
    }
}
