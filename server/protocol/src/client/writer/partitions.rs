//! The partitions that a writer knows; makes the ones that are missing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Target;
use crate::client::metadata::{PartitionMetadata, TableMetadata, resolve_bucket_count};
use crate::client::{Backoff, Client, Error};
use crate::error_code::ErrorCode;
use crate::ids::PhysicalTablePath;
use crate::partition::PartitionSpec;

/// How long a partition may take from its creation until its id and count are seen.
const VISIBLE_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Partitions {
    client: Client,
    table: Arc<TableMetadata>,
    create: bool,
    targets: Mutex<HashMap<Option<String>, Arc<Target>>>,
}

impl Partitions {
    pub(super) fn new(client: Client, table: Arc<TableMetadata>, create: bool) -> Self {
        Self {
            client,
            table,
            create,
            targets: Mutex::new(HashMap::new()),
        }
    }

    /// The target of rows of a partition, or of a table without partitions.
    pub(super) async fn target(&self, spec: Option<&PartitionSpec>) -> Result<Arc<Target>, Error> {
        let name = spec.map(PartitionSpec::name);
        if let Some(target) = self.known(name.as_ref()) {
            return Ok(target);
        }
        let target = match (spec, &name) {
            (Some(spec), Some(name)) => self.look_up(spec, name).await?,
            _ => Target {
                table: self.table.table_id,
                partition: None,
                name: None,
                total_buckets: resolve_bucket_count(None, &self.table, None)?,
            },
        };
        let target = Arc::new(target);
        self.targets.lock().insert(name, Arc::clone(&target));
        Ok(target)
    }

    /// The target met before, unless metadata has since learned of another partition of that name.
    fn known(&self, name: Option<&String>) -> Option<Arc<Target>> {
        let known = self.targets.lock().get(&name.cloned()).map(Arc::clone)?;
        let cluster = self.client.cluster();
        let current = name.and_then(|name| cluster.partition(self.table.table_id, name));
        let replaced = current.is_some_and(|now| Some(now.partition_id) != known.partition);
        (!replaced).then_some(known)
    }

    /// Asks for the partition, makes it if it is missing, and asks until it is there with its
    /// count.
    async fn look_up(&self, spec: &PartitionSpec, name: &str) -> Result<Target, Error> {
        let table = self.table.path.clone();
        let path = PhysicalTablePath {
            table,
            partition: Some(name.to_owned()),
        };
        let give_up = Instant::now() + VISIBLE_WITHIN;
        let mut backoff = Backoff::new(self.client.config().first_backoff);
        let mut created = false;
        loop {
            let found = self.client.partition_metadata(&path).await;
            let error = match found.and_then(|partition| self.target_of(&partition)) {
                Ok(target) => return Ok(target),
                Err(error) => error,
            };
            let missing = error.code() == Some(ErrorCode::PartitionNotExists);
            if missing && self.create && !created {
                let client = &self.client;
                let create = || client.create_partition(&self.table.path, spec, true);
                client.retrying(create).await?;
                created = true;
                continue;
            }
            let early = matches!(error, Error::MissingBucketCount { .. }) || (missing && created);
            let pause = backoff.next();
            if !(early || error.is_retriable()) || Instant::now() + pause > give_up {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            if early {
                self.client.invalidate(&self.table.path);
            }
        }
    }

    fn target_of(&self, partition: &PartitionMetadata) -> Result<Target, Error> {
        let expected = self.table.table_id;
        if partition.table_id != expected {
            return Err(Error::TableReplaced {
                expected,
                found: partition.table_id,
            });
        }
        let cluster = self.client.cluster();
        let table = cluster.table_by_id(expected).unwrap_or(&self.table);
        let id = Some(partition.partition_id);
        Ok(Target {
            table: expected,
            partition: id,
            name: Some(partition.name.clone()),
            total_buckets: resolve_bucket_count(partition.bucket_count, table, id)?,
        })
    }
}
