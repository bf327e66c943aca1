//! What others do to the lake table of the world.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::TryStreamExt as _;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _};
use weir_catalog::lake::{Claimed, claim};
use weir_lake_format::commit::{CommitOutcome, CommitRequest, RetryPolicy};
use weir_lake_format::{
    CommitKind, DataFileWriter, Filter, Table, TableSchema, WriteTarget, WriterOptions,
};
use weir_protocol::ids::{LogOffset, TableBucket, TableId};

use super::world::World;
use crate::committer::COMMIT_USER;

/// What becomes of the lake folder of a dropped table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Folder {
    /// The next table of that name claims it.
    UsedAgain,
    /// Somebody deletes it, and the next table of that name gets a new one.
    MadeAnew,
}

impl World {
    /// Changes the newest schema of the lake table, as another engine would.
    pub(crate) async fn alter_lake(&self, change: impl FnOnce(&mut TableSchema)) {
        let lake = self.lake().await;
        let mut schema = lake.latest_schema().await.unwrap();
        schema.id += 1;
        change(&mut schema);
        lake.add_schema(&schema).await.unwrap();
    }

    /// The lake table is deleted.
    pub(crate) async fn delete_lake(&self) {
        let root = self.root();
        let all: Vec<_> = self.store.list(Some(&root)).try_collect().await.unwrap();
        for one in all {
            self.store.delete(&one.location).await.unwrap();
        }
    }

    /// The lake table is made anew by `user`, who commits to it.
    pub(crate) async fn replace_lake(&self, user: &str) {
        let mut schema = self.lake().await.latest_schema().await.unwrap();
        schema.id = 0;
        self.delete_lake().await;
        let store = Arc::clone(&self.store) as _;
        let lake = Table::create(store, self.root(), &schema).await.unwrap();
        commit_as(&lake, user).await;
    }

    /// The table is dropped, and another of its name is made, under `id`. `Err` with the latest
    /// snapshot if its lake table can't be used again.
    pub(crate) async fn recreate(&mut self, id: TableId, folder: Folder) -> Result<(), i64> {
        {
            let mut state = self.cluster.state.lock();
            let table = state.tables.get_mut(&self.path).unwrap();
            (table.info.id, table.epoch) = (id, 1);
            table.logs.clear();
            table.registered.clear();
        }
        self.rows.clear();
        match folder {
            Folder::UsedAgain => match claim(&self.lake().await, 0).await.unwrap() {
                Claimed::Yes => {}
                Claimed::InUse(latest) => return Err(latest),
                Claimed::Busy => panic!("nobody else is there"),
            },
            Folder::MadeAnew => {
                let schema = self.lake().await.latest_schema().await.unwrap();
                self.delete_lake().await;
                let store = Arc::clone(&self.store) as _;
                Table::create(store, self.root(), &schema).await.unwrap();
            }
        }
        Ok(())
    }

    /// Puts the lake's schemas above `id` out of sight.
    pub(crate) async fn hide_lake_schemas_above(&self, id: i64) {
        let lake = self.lake().await;
        for newer in lake.schema_ids().await.unwrap() {
            if newer > id {
                let path = lake.paths().schema(newer);
                let hidden = Path::from(format!("hidden/{path}"));
                self.store.rename(&path, &hidden).await.unwrap();
            }
        }
    }

    /// Ends [`World::hide_lake_schemas_above`].
    pub(crate) async fn show_lake_schemas(&self) {
        let hidden = Path::from("hidden");
        let found: Vec<_> = self.store.list(Some(&hidden)).try_collect().await.unwrap();
        for one in found {
            let shown = Path::from(one.location.as_ref().trim_start_matches("hidden/"));
            self.store.rename(&one.location, &shown).await.unwrap();
        }
    }

    /// Whether the lake takes rows without a name.
    pub(crate) async fn names_are_required(&self, required: bool) {
        self.alter_lake(|schema| {
            let kind = schema.fields[1].data_type.kind.clone();
            schema.fields[1].data_type = if required {
                kind.not_null()
            } else {
                kind.nullable()
            };
        })
        .await;
    }

    /// Somebody writes the rows of each bucket into one file, in place of its files.
    pub(crate) async fn compact_lake(&self) {
        let lake = self.lake().await;
        let Some(snapshot) = lake.latest_snapshot().await.unwrap() else {
            return;
        };
        let schema = Arc::new(lake.latest_schema().await.unwrap());
        let uuid = format!("compacts-{}", snapshot.id);
        let mut messages = Vec::new();
        for split in lake.plan(&snapshot, &Filter::default()).await.unwrap() {
            let target = WriteTarget {
                schema: Arc::clone(&schema),
                partition: split.partition.clone(),
                bucket: split.bucket,
                total_buckets: split.total_buckets,
                first_sequence_number: 0,
            };
            let options = WriterOptions::new(&schema, format!("{uuid}-{}", split.bucket), 0);
            let (store, root) = (Arc::clone(lake.store()), lake.root().clone());
            let mut writer = DataFileWriter::new(target, options.unwrap(), store, root).unwrap();
            let mut rows = lake.read_split(&split, None).await.unwrap();
            while let Some(batch) = rows.try_next().await.unwrap() {
                writer.write(batch).await.unwrap();
            }
            messages.push(writer.finish().await.unwrap());
        }
        let request = CommitRequest {
            kind: CommitKind::Compact,
            messages,
            deletes: lake.live_entries(&snapshot).await.unwrap(),
            uuid,
            ..empty("somebody-else")
        };
        commit(&lake, &request).await;
    }

    /// A worker of another kind has brought the lake up to `end` in a bucket.
    pub(crate) async fn tiered_by_others(&self, bucket: TableBucket, end: i64) {
        let lake = self.lake().await;
        commit_as(&lake, COMMIT_USER).await;
        let id = lake.latest_snapshot_id().await.unwrap().unwrap();
        let file = "file:/remote/of-others.offsets".to_owned();
        let ends = BTreeMap::from([(bucket, LogOffset(end))]);
        let mut state = self.cluster.state.lock();
        state.files.insert(file.clone(), (bucket.table, ends));
        let table = state.tables.get_mut(&self.path).unwrap();
        table.registered.push((id, file));
    }

    /// Somebody commits to the lake table, and snapshots up to `id` expire.
    pub(crate) async fn append_and_expire(&self, id: i64) {
        let lake = self.lake().await;
        commit_as(&lake, "somebody").await;
        for old in lake.snapshot_ids().await.unwrap() {
            if old <= id {
                let path = lake.paths().snapshot(old);
                self.store.delete(&path).await.unwrap();
            }
        }
    }
}

/// Somebody makes a snapshot.
async fn commit_as(lake: &Table, user: &str) {
    commit(lake, &empty(user)).await;
}

fn empty(user: &str) -> CommitRequest {
    CommitRequest {
        commit_user: user.to_owned(),
        commit_identifier: 1,
        kind: CommitKind::Append,
        messages: Vec::new(),
        deletes: Vec::new(),
        properties: BTreeMap::new(),
        allow_empty: true,
        uuid: format!("of-{user}"),
        now_ms: 0,
    }
}

async fn commit(lake: &Table, request: &CommitRequest) {
    let committed = lake
        .commit(request, &mut |_| Ok(()), RetryPolicy::default())
        .await;
    assert!(
        matches!(committed, Ok(CommitOutcome::Committed(_))),
        "{committed:?}"
    );
}
