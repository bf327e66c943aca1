//! Tables with a primary key: the changes of the log, applied in their order, and the merged lake at
//! the same offsets must be equal, key by key.
//!
//! Keys and rows are known by 128-bit hashes of their canonical texts: 32 bytes a key, of one bucket
//! at a time.

use std::collections::{BTreeMap, HashMap};

use arrow::array::RecordBatch;
use futures::TryStreamExt as _;
use weir_lake_format::{
    Filter, Partition, RowKind, Split as LakeSplit, TableOptions, canonical_json,
};
use weir_protocol::ids::{LogOffset, TableBucket};

use super::logs::{Damaged, LogExtent, Logs, unreadable};
use super::rows::text_hash;
use super::{Finding, Gone, LakeBucket};
use crate::error::Result;
use crate::lake_table::LakeTable;

/// Options by which the lake merges changes in another way than the log does.
const OTHER_MERGES: [&str; 4] = [
    "sequence.field",
    "ignore-delete",
    "ignore-update-before",
    "record-level.expire-time",
];

/// What the log makes of the keys of one bucket.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// By key: its row, or that it is deleted.
    rows: HashMap<u128, Option<u128>>,
}

impl Keys {
    /// Applies changes, whose rows are in the lake's columns.
    pub(super) fn apply(
        &mut self,
        rows: &RecordBatch,
        kinds: &[RowKind],
        lake: &LakeTable,
    ) -> Result<()> {
        let texts = texts(rows, lake)?;
        for ((key, row), kind) in texts.into_iter().zip(kinds) {
            match kind {
                RowKind::Insert | RowKind::UpdateAfter => {
                    self.rows.insert(text_hash(&key), Some(text_hash(&row)));
                }
                RowKind::Delete => {
                    self.rows.insert(text_hash(&key), None);
                }
                RowKind::UpdateBefore => {}
            }
        }
        Ok(())
    }
}

/// What was compared, and what could not be.
#[derive(Debug, Default)]
pub(super) struct Compared {
    pub rows: i64,
    pub gone: BTreeMap<LakeBucket, Gone>,
}

/// What differs in one bucket.
#[derive(Debug, Default)]
struct Differences {
    other: i64,
    extra: i64,
    /// The first key of either, as JSON.
    first: Option<String>,
}

/// Why keys can't be compared, if the lake merges changes in another way than the log: by the last
/// one of a key.
pub(super) fn incomparable(lake: &LakeTable) -> Option<String> {
    let options = TableOptions::new(&lake.schema.options);
    let engine = options.get("merge-engine").unwrap_or("deduplicate");
    if !engine.eq_ignore_ascii_case("deduplicate") {
        let option = format!("merge-engine = {engine}");
        return Some(format!(
            "the lake merges changes by {option}, not as the log does"
        ));
    }
    let mut others = OTHER_MERGES.iter();
    let other = others.find_map(|key| options.get(key).map(|value| format!("{key} = {value}")));
    other.map(|option| format!("the lake merges changes by {option}, not as the log does"))
}

/// Compares each bucket as of the lake's snapshot `snapshot`, which ends at `ends`.
///
/// # Errors
/// If log or lake can't be read now.
pub(super) async fn compare(
    logs: &Logs<'_>,
    extents: &BTreeMap<TableBucket, LogExtent>,
    (snapshot, ends): (i64, &BTreeMap<TableBucket, LogOffset>),
    partitions: &BTreeMap<Vec<u8>, (String, Partition)>,
    findings: &mut Vec<Finding>,
) -> Result<Compared> {
    let lake = logs.lake;
    let mut compared = Compared::default();
    let found = lake.table.snapshot(snapshot).await;
    let found = found.map_err(|error| lake.error(error))?;
    let plan = lake.table.plan(&found, &Filter::default()).await;
    let mut splits = BTreeMap::<LakeBucket, Vec<LakeSplit>>::new();
    for split in plan.map_err(|error| lake.error(error))? {
        let partition = partitions.get(&split.partition.to_bytes());
        let name = LakeBucket {
            partition: partition.map(|(name, _)| name.clone()),
            bucket: split.bucket,
        };
        if partition.is_some() || lake.schema.partition_keys.is_empty() {
            splits.entry(name).or_default().push(split);
        }
    }
    for (bucket, end) in ends {
        let Some(extent) = extents.get(bucket) else {
            continue;
        };
        let name = extent.name(*bucket);
        let keys = match logs.keys(*bucket, extent, *end).await? {
            Ok(keys) => keys,
            Err(Damaged(said)) => {
                findings.push(unreadable(name, *bucket, &said));
                continue;
            }
        };
        let is_whole = extent.start <= LogOffset(0);
        if !is_whole {
            let gone = Gone {
                bucket: name.clone(),
                offsets: extent.start.0.min(end.0),
                beside: 0,
            };
            compared.gone.insert(name.clone(), gone);
        }
        let splits = splits.remove(&name).unwrap_or_default();
        let (rows, reason) = compare_bucket(lake, keys, splits, is_whole).await?;
        compared.rows += rows;
        findings.extend(reason.map(|reason| Finding {
            bucket: Some(name),
            snapshot: Some(snapshot),
            reason,
        }));
    }
    Ok(compared)
}

async fn compare_bucket(
    lake: &LakeTable,
    mut keys: Keys,
    splits: Vec<LakeSplit>,
    is_whole: bool,
) -> Result<(i64, Option<String>)> {
    let mut differences = Differences::default();
    let mut rows = 0;
    for split in splits {
        let batches = lake.table.read_split_as(&split, &lake.schema, None).await;
        let mut batches = batches.map_err(|error| lake.error(error))?;
        while let Some(batch) = batches.try_next().await.map_err(|e| lake.error(e))? {
            for (key, row) in texts(&batch, lake)? {
                match keys.rows.remove(&text_hash(&key)) {
                    Some(Some(expected)) if expected == text_hash(&row) => {}
                    Some(Some(_)) => {
                        differences.other += 1;
                        differences.first.get_or_insert(key);
                    }
                    // The change of a key that the log no longer holds may still count.
                    None if !is_whole => continue,
                    None | Some(None) => {
                        differences.extra += 1;
                        differences.first.get_or_insert(key);
                    }
                }
                rows += 1;
            }
        }
    }
    let lacking = keys.rows.values().filter(|row| row.is_some()).count();
    Ok((rows, differences.reason(lacking)))
}

impl Differences {
    fn reason(self, lacking: usize) -> Option<String> {
        let Self {
            other,
            extra,
            first,
        } = self;
        if other == 0 && extra == 0 && lacking == 0 {
            return None;
        }
        let first = first
            .map(|key| format!(", such as {key}"))
            .unwrap_or_default();
        Some(format!(
            "by the log {lacking} keys are missing in the lake, {extra} have no row any more, and {other} have \
             another row{first}"
        ))
    }
}

/// Keys and rows of a batch, as canonical texts.
fn texts(rows: &RecordBatch, lake: &LakeTable) -> Result<Vec<(String, String)>> {
    let fields = &lake.schema.fields;
    let index = |name: &String| lake.schema.field_index(name);
    let columns: Vec<usize> = lake.schema.primary_keys.iter().filter_map(index).collect();
    let key_fields: Vec<_> = columns
        .iter()
        .filter_map(|index| fields.get(*index).cloned())
        .collect();
    let keys = rows.project(&columns).map_err(|source| {
        lake.error(weir_lake_format::Error::Arrow {
            what: "the key columns".to_owned(),
            source,
        })
    })?;
    let lines = |batch: &RecordBatch, fields: &[weir_lake_format::DataField]| {
        let lines = canonical_json::rows(batch, fields);
        lines.map_err(|error| lake.error(error))
    };
    let keys = lines(&keys, &key_fields)?;
    Ok(keys.into_iter().zip(lines(rows, fields)?).collect())
}
