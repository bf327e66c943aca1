//! Partition expiry: partitions that are old enough go, with one commit that removes their files
//! (paimon: `NormalPartitionExpire`, `PartitionValuesTimeExpireStrategy`).
//!
//! Only files that are live at that commit are removed. Rows that are written to such a partition
//! later are rows like any other, and go with the next expiry.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::commit::{CommitOutcome, CommitRequest, RetryPolicy};
use crate::error::{Error, Result};
use crate::manifest::ManifestEntry;
use crate::options::{Names, TableOptions};
use crate::partition::{Partition, value_text};
use crate::schema::TableSchema;
use crate::snapshot::{BATCH_COMMIT_IDENTIFIER, CommitKind, Snapshot};
use crate::table::Table;

mod time;

use time::TimePattern;

/// The snapshot property that names the partitions a commit expired, as JSON texts.
pub const EXPIRED_PARTITIONS: &str = "weir-expired-partitions";

/// When partitions go.
#[derive(Clone, Debug)]
pub struct PartitionExpiry {
    /// `partition.expiration-time`: a partition goes when it is older.
    pub age: Duration,
    /// `partition.expiration-check-interval`: how often it is looked at. 1 hour; 0 for every
    /// commit.
    pub check_interval: Duration,
    /// `partition.expiration-max-num`: at most so many go at a time. 100.
    pub max_partitions: usize,
    rule: Rule,
}

/// How old a partition is.
#[derive(Clone, Debug)]
enum Rule {
    /// By the time that its values say.
    ValuesTime(TimePattern),
    /// By its newest file.
    UpdateTime,
}

/// Partitions that may go, with their live files.
#[derive(Clone, Debug, Default)]
pub struct OldPartitions {
    /// Each with its files.
    pub partitions: Vec<(Partition, Vec<ManifestEntry>)>,
    /// Partitions whose values give no time, so that they never go: the first of them, and how
    /// many.
    pub without_time: Option<(String, usize)>,
}

/// What an expiry of partitions did.
#[derive(Clone, Debug, Default)]
pub struct ExpiredPartitions {
    /// The partitions that went, as text.
    pub partitions: Vec<String>,
    /// Files removed.
    pub files: usize,
    /// Rows removed.
    pub rows: i64,
    /// The commit's snapshot; `None` if there was nothing to do.
    pub snapshot: Option<Snapshot>,
    /// As [`OldPartitions::without_time`].
    pub without_time: Option<(String, usize)>,
}

/// Who expires, and when.
#[derive(Clone, Copy, Debug)]
pub struct PartitionExpiryRequest<'a> {
    /// The rule.
    pub expiry: &'a PartitionExpiry,
    /// The commit user.
    pub commit_user: &'a str,
    /// Makes names of manifests unique.
    pub uuid: &'a str,
    /// The time, milliseconds since 1970.
    pub now_ms: i64,
    /// The time of the local clock, as if that were UTC: partition values are local times.
    pub local_now_ms: i64,
}

impl PartitionExpiry {
    /// What the options of a table say; `None` if its partitions stay for ever.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] if an option is not what it must be, [`Error::Unsupported`] for a
    /// formatter with letters that are not read here.
    pub fn of(schema: &TableSchema) -> Result<Option<Self>> {
        let options = TableOptions::new(&schema.options);
        let age = options.duration("partition.expiration-time")?;
        let Some(age) = age.filter(|_| !schema.partition_keys.is_empty()) else {
            return Ok(None);
        };
        let check_interval = options.duration("partition.expiration-check-interval")?;
        let strategy = options
            .get("partition.expiration-strategy")
            .unwrap_or("values-time");
        let rule = match strategy {
            "values-time" => Rule::ValuesTime(TimePattern::new(
                options.get("partition.timestamp-pattern"),
                options.get("partition.timestamp-formatter"),
            )?),
            "update-time" => Rule::UpdateTime,
            other => {
                let reason = format!("option `partition.expiration-strategy` cannot be `{other}`");
                return Err(Error::InvalidSchema { reason });
            }
        };
        Ok(Some(Self {
            age,
            check_interval: check_interval.unwrap_or(Duration::from_secs(3_600)),
            max_partitions: options.number("partition.expiration-max-num", 100)?,
            rule,
        }))
    }

    /// Whether a partition is older than its age at this local time; `None` if its values give no
    /// time.
    fn is_old(
        &self,
        partition: &Partition,
        schema: &TableSchema,
        newest_file_ms: Option<i64>,
        local_now_ms: i64,
    ) -> Option<bool> {
        let time_ms = match &self.rule {
            Rule::UpdateTime => newest_file_ms?,
            Rule::ValuesTime(pattern) => pattern.time_ms(&texts(partition, schema)?)?,
        };
        let age_ms = i64::try_from(self.age.as_millis()).unwrap_or(i64::MAX);
        Some(time_ms < local_now_ms.saturating_sub(age_ms))
    }
}

impl Table {
    /// The partitions of a snapshot that are old enough to go, oldest name first, with their live
    /// files. Reads all manifests.
    ///
    /// # Errors
    /// As [`Table::live_entries`].
    pub async fn old_partitions(
        &self,
        snapshot: &Snapshot,
        expiry: &PartitionExpiry,
        local_now_ms: i64,
    ) -> Result<OldPartitions> {
        let schema = self.schema(snapshot.schema_id).await?;
        let mut files: BTreeMap<Vec<u8>, Vec<ManifestEntry>> = BTreeMap::new();
        for entry in self.live_entries(snapshot).await? {
            files
                .entry(entry.partition.clone())
                .or_default()
                .push(entry);
        }
        // By text, and by bytes where two partitions have one text.
        let mut old = BTreeMap::new();
        let mut without_time: Option<(String, usize)> = None;
        for (bytes, entries) in files {
            let at = self.paths().snapshot(snapshot.id);
            let partition = Partition::from_bytes(&bytes, &schema);
            let partition = partition.map_err(|e| e.at(at.as_ref()))?;
            let newest = entries.iter().filter_map(|e| e.file.creation_time).max();
            match expiry.is_old(&partition, &schema, newest, local_now_ms) {
                Some(true) => {
                    old.insert((partition.describe(&schema), bytes), (partition, entries));
                }
                Some(false) => {}
                None => {
                    let first = || (partition.describe(&schema), 0);
                    without_time.get_or_insert_with(first).1 += 1;
                }
            }
        }
        let partitions = old.into_values().take(expiry.max_partitions).collect();
        Ok(OldPartitions {
            partitions,
            without_time,
        })
    }

    /// Removes the files of partitions that are old enough, in one commit of kind `OVERWRITE` that
    /// names them in its property [`EXPIRED_PARTITIONS`].
    ///
    /// # Errors
    /// As [`Table::commit`] and [`Table::old_partitions`]; [`Error::Unsupported`] for a table with
    /// an index, which would have to lose its entries, too.
    pub async fn expire_partitions(
        &self,
        request: &PartitionExpiryRequest<'_>,
    ) -> Result<ExpiredPartitions> {
        let Some(latest) = self.latest_snapshot().await? else {
            return Ok(ExpiredPartitions::default());
        };
        let old = self
            .old_partitions(&latest, request.expiry, request.local_now_ms)
            .await?;
        let mut expired = ExpiredPartitions {
            without_time: old.without_time,
            ..ExpiredPartitions::default()
        };
        if old.partitions.is_empty() {
            return Ok(expired);
        }
        if latest.index_manifest.is_some() {
            return Err(Error::Unsupported {
                what: format!("partition expiry of {} with an index", self.root()),
                reason: "the index would go on naming its files".to_owned(),
            });
        }
        let schema = self.schema(latest.schema_id).await?;
        let mut deletes = Vec::new();
        for (partition, entries) in old.partitions {
            expired.partitions.push(partition.describe(&schema));
            deletes.extend(entries);
        }
        expired.files = deletes.len();
        expired.rows = deletes.iter().map(|entry| entry.file.row_count).sum();
        let names = serde_json::to_string(&expired.partitions)
            .map_err(|e| Error::malformed("partition names", e.to_string()))?;
        let commit = CommitRequest {
            commit_user: request.commit_user.to_owned(),
            commit_identifier: BATCH_COMMIT_IDENTIFIER,
            kind: CommitKind::Overwrite,
            messages: Vec::new(),
            deletes,
            properties: BTreeMap::from([(EXPIRED_PARTITIONS.to_owned(), names)]),
            allow_empty: false,
            uuid: request.uuid.to_owned(),
            now_ms: request.now_ms,
        };
        let outcome = self
            .commit(&commit, &mut |_| Ok(()), RetryPolicy::default())
            .await?;
        match outcome {
            CommitOutcome::Committed(snapshot) => {
                expired.snapshot = Some(snapshot);
                Ok(expired)
            }
            // Others removed some of the files meanwhile: the next run sees what is left.
            CommitOutcome::AlreadyCommitted(_)
            | CommitOutcome::Conflict(_)
            | CommitOutcome::Exhausted { .. }
            | CommitOutcome::Nothing
            | CommitOutcome::Refused(_)
            | CommitOutcome::Replaced
            | CommitOutcome::TakenBack => Ok(ExpiredPartitions {
                without_time: expired.without_time,
                ..ExpiredPartitions::default()
            }),
        }
    }
}

/// The values of a partition by key, as SQL spells them; `None` if one is null.
fn texts(partition: &Partition, schema: &TableSchema) -> Option<Vec<(String, String)>> {
    let mut texts = Vec::with_capacity(partition.values().len());
    for (key, value) in schema.partition_keys.iter().zip(partition.values()) {
        let kind = &schema.field(key)?.data_type.kind;
        let text = value_text(value, kind, Names::Sql).ok()??;
        texts.push((key.clone(), text));
    }
    Some(texts)
}

#[cfg(test)]
mod tests;
