//! Databases, and what races with their end.

use super::*;

#[tokio::test]
async fn databases_come_change_and_go() {
    let world = World::new().await;
    let (catalog, none) = (&world.catalog, DatabaseDescriptor::default());
    let error = catalog
        .create_database("db", &none, IfExists::Fail)
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::DatabaseAlreadyExist { .. }),
        "{error}"
    );
    catalog
        .create_database("db", &none, IfExists::Ignore)
        .await
        .unwrap();
    let error = catalog
        .create_database("a/b", &none, IfExists::Fail)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::InvalidDatabase { .. }), "{error}");
    let changes = [
        DatabaseChange::Comment(Some("c".to_owned())),
        DatabaseChange::Set {
            key: "k".to_owned(),
            value: "v".to_owned(),
        },
    ];
    catalog
        .alter_database("db", &changes, IfMissing::Fail)
        .await
        .unwrap();
    let database = catalog.find_database("db").await.unwrap().unwrap().document;
    assert_eq!(
        (
            database.comment.as_deref(),
            database.custom_properties["k"].as_str()
        ),
        (Some("c"), "v")
    );

    let table = world.table(&partitioned()).await;
    let partition = world.partition("a").await;
    let error = catalog
        .drop_database("db", IfMissing::Fail, Contents::MustBeEmpty)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::DatabaseNotEmpty { .. }), "{error}");
    let dropped = catalog
        .drop_database("db", IfMissing::Fail, Contents::Drop)
        .await
        .unwrap();
    assert_eq!(
        dropped.tables,
        [(path(), table.table_id, vec![partition.id])]
    );
    assert_eq!(
        catalog.list_databases().await.unwrap(),
        Vec::<String>::new()
    );
    let error = catalog.list_tables("db").await.unwrap_err();
    assert!(matches!(error, Error::DatabaseNotExist { .. }), "{error}");
    let error = world.create(&path(), &log_table()).await.unwrap_err();
    assert!(matches!(error, Error::DatabaseNotExist { .. }), "{error}");
    let error = catalog
        .drop_database("fluss", IfMissing::Fail, Contents::Drop)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::DatabaseProtected { .. }), "{error}");
}

#[tokio::test]
async fn a_table_created_while_its_database_is_dropped_is_not_lost() {
    let world = World::new().await;
    let catalog = world.catalog.clone();
    // Commit 1 marks the database, commit 2 deletes it: the table comes right between.
    world.store.before_commit(2, move |store| {
        let inner = Catalog {
            store: Arc::new(store.clone()),
            lake: None,
            ..catalog
        };
        let (path, descriptor) = (path(), log_table());
        let request = NewTable {
            path: &path,
            descriptor: &descriptor,
            servers: &SERVERS,
        };
        let create = inner.create_table(request, IfExists::Fail);
        futures::executor::block_on(create).unwrap();
    });
    let dropped = world
        .catalog
        .drop_database("db", IfMissing::Fail, Contents::MustBeEmpty)
        .await;
    assert!(
        matches!(dropped, Err(Error::DatabaseNotEmpty { .. })),
        "{dropped:?}"
    );
    assert!(world.catalog.find_table(&path()).await.unwrap().is_some());
}

#[tokio::test]
async fn a_table_that_was_decided_before_its_database_was_marked_looks_again() {
    let world = World::new().await;
    let before = world.catalog.find_database("db").await.unwrap().unwrap();
    let descriptor = crate::ddl::complete(&path(), log_table(), &Rules::default()).unwrap();
    let table = crate::catalog::tables::new_table(&path(), TableId(7), &descriptor, 0);
    let txn = world.catalog.creation(&table, &SERVERS).unwrap();
    let txn = Catalog::keep_database(txn, "db", &before).unwrap();
    world.store.before_commit(2, move |store| {
        let late = futures::executor::block_on(store.commit(txn));
        assert!(
            matches!(late, Err(crate::store::StoreError::Conflict { .. })),
            "{late:?}"
        );
    });
    world
        .catalog
        .drop_database("db", IfMissing::Fail, Contents::MustBeEmpty)
        .await
        .unwrap();
}
