//! The snapshot property `weir-ranges`: which log offsets a lake snapshot added, per bucket, for
//! audits.
//!
//! Version 1 is
//! ```json
//! {"version":1,"groups":[
//!   {"partition_id":31,"partition":"2024","buckets":[[bucket,start,end,rows]]}]}
//! ```
//! with half-open ranges; rows is the number of rows written (empty batches take offsets without
//! rows). A property longer than [`INLINE_MAX_BYTES`] is put in a file and reads
//! `{"version":1,"file":"weir/ranges-<round>.json"}`, relative to the table.
//!
//! Version 2 is written only if rows of the ranges went another way: a group then also has
//! `"diverted":[[bucket,from,to]]`, offsets whose rows are in the bad-record table, and
//! `"lost":[[bucket,from,to]]`, offsets that the log had lost and a person let go.

use std::collections::BTreeMap;
use std::ops::Range;

use object_store::ObjectStoreExt;
use serde::{Deserialize, Serialize};
use weir_lake_format::{Snapshot, Table};
use weir_protocol::ids::{BucketId, LogOffset, PartitionId};

use crate::error::{Error, Result};

/// The longest text that stands in the snapshot itself.
pub const INLINE_MAX_BYTES: usize = 64 * 1024;

/// The version of ranges whose rows are all in the table's files.
const VERSION: i32 = 1;
/// The newest version that we write and read: some rows went another way.
const VERSION_APART: i32 = 2;

/// Offsets of one bucket, half-open.
pub type Offsets = Range<LogOffset>;

/// Offsets of a range whose rows are not in the table's files; ascending, without overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Apart {
    /// Their rows are in the bad-record table.
    pub diverted: Vec<Offsets>,
    /// The log had lost them, and a person let them go.
    pub lost: Vec<Offsets>,
}

impl Apart {
    /// Whether all rows are in the table's files.
    pub fn is_empty(&self) -> bool {
        self.diverted.is_empty() && self.lost.is_empty()
    }

    /// How many offsets these are.
    pub fn count(&self) -> i64 {
        count(&self.diverted).saturating_add(count(&self.lost))
    }

    /// All of them, ascending.
    pub fn all(&self) -> Vec<Offsets> {
        let mut all: Vec<Offsets> = self.diverted.iter().chain(&self.lost).cloned().collect();
        all.sort_unstable_by_key(|offsets| offsets.start);
        all
    }
}

/// How many offsets these are.
pub fn count(offsets: &[Offsets]) -> i64 {
    let lengths = offsets.iter().map(|o| o.end.0.saturating_sub(o.start.0));
    lengths.fold(0, i64::saturating_add)
}

/// Adds one offset to others that are below it: adjacent ones become one entry.
pub fn push(offsets: &mut Vec<Offsets>, offset: LogOffset) {
    let next = LogOffset(offset.0.saturating_add(1));
    match offsets.last_mut() {
        Some(last) if last.end == offset => last.end = next,
        _ => offsets.push(offset..next),
    }
}

/// What one snapshot took from one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketRange {
    /// The partition, of a partitioned table.
    pub partition_id: Option<PartitionId>,
    /// The partition's name, of a partitioned table.
    pub partition: Option<String>,
    /// The bucket.
    pub bucket: BucketId,
    /// First offset.
    pub start: LogOffset,
    /// The offset after the last one.
    pub end: LogOffset,
    /// Rows written, at most `end - start` less what went apart.
    pub rows: i64,
    /// Offsets whose rows are not in the table's files.
    pub apart: Apart,
}

/// What the property says: the ranges, or where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangesProperty {
    /// The ranges themselves.
    Inline(Vec<BucketRange>),
    /// A file below the table's folder that holds the inline form.
    File(String),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    groups: Option<Vec<Group>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    partition_id: Option<PartitionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    partition: Option<String>,
    buckets: Vec<(i32, i64, i64, i64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    diverted: Vec<(i32, i64, i64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lost: Vec<(i32, i64, i64)>,
}

#[derive(Deserialize)]
struct Versioned {
    version: i32,
}

/// The inline text of `ranges`, grouped by partition; equal sets give equal texts.
pub fn to_text(ranges: &[BucketRange]) -> String {
    let mut groups: BTreeMap<(Option<PartitionId>, Option<&str>), Group> = BTreeMap::new();
    let mut version = VERSION;
    for range in ranges {
        let key = (range.partition_id, range.partition.as_deref());
        let group = groups.entry(key).or_default();
        let bucket = range.bucket.0;
        let entry = (bucket, range.start.0, range.end.0, range.rows);
        group.buckets.push(entry);
        let flat = |offsets: &Offsets| (bucket, offsets.start.0, offsets.end.0);
        group.diverted.extend(range.apart.diverted.iter().map(flat));
        group.lost.extend(range.apart.lost.iter().map(flat));
        if !range.apart.is_empty() {
            version = VERSION_APART;
        }
    }
    let groups = groups
        .into_iter()
        .map(|((partition_id, partition), mut group)| {
            group.buckets.sort_unstable();
            group.diverted.sort_unstable();
            group.lost.sort_unstable();
            Group {
                partition_id,
                partition: partition.map(str::to_owned),
                ..group
            }
        });
    render(&Document {
        version,
        groups: Some(groups.collect()),
        file: None,
    })
}

/// The text that names a file (relative to the table's folder) in place of the ranges.
pub fn file_reference(file: &str) -> String {
    render(&Document {
        version: VERSION,
        groups: None,
        file: Some(file.to_owned()),
    })
}

/// Reads the property or the file it names.
///
/// # Errors
/// [`Error::BadRanges`] if the text is no such document, of a newer version, or holds a range that
/// runs backwards.
pub fn parse(text: &str) -> Result<RangesProperty> {
    let bad = |reason: String| Error::BadRanges { reason };
    let Versioned { version } = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
    if !(VERSION..=VERSION_APART).contains(&version) {
        return Err(bad(format!(
            "version {version} is not known, {VERSION_APART} is the newest that is"
        )));
    }
    let document: Document = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
    let is_apart = |group: &Group| !group.diverted.is_empty() || !group.lost.is_empty();
    if version == VERSION && document.groups.iter().flatten().any(is_apart) {
        return Err(bad(format!("version {version} knows no rows apart")));
    }
    match (document.groups, document.file) {
        (None, Some(file)) => Ok(RangesProperty::File(file)),
        (Some(groups), None) => ungroup(groups).map(RangesProperty::Inline),
        _ => Err(bad("neither ranges nor a file, or both".to_owned())),
    }
}

/// The file that holds the ranges of a snapshot, if one does: it goes when the snapshot goes.
pub fn file_of(table: &Table, snapshot: &Snapshot) -> Vec<object_store::path::Path> {
    let file = snapshot.property(crate::committer::RANGES).map(parse);
    match file {
        Some(Ok(RangesProperty::File(file))) => {
            let root = table.root().clone();
            vec![file.split('/').fold(root, object_store::path::Path::join)]
        }
        _ => Vec::new(),
    }
}

/// The ranges that a snapshot's property says, read from the file it names if it names one.
///
/// # Errors
/// [`Error::BadRanges`] as [`parse`], also if the file can't be read or names another.
pub async fn load(table: &Table, text: &str) -> Result<Vec<BucketRange>> {
    let file = match parse(text)? {
        RangesProperty::Inline(ranges) => return Ok(ranges),
        RangesProperty::File(file) => file,
    };
    let bad = |reason: String| Error::BadRanges {
        reason: format!("{file}: {reason}"),
    };
    let path = file
        .split('/')
        .fold(table.root().clone(), object_store::path::Path::join);
    let read = async { table.store().get(&path).await?.bytes().await };
    let bytes = read.await.map_err(|error| bad(error.to_string()))?;
    let text = std::str::from_utf8(&bytes).map_err(|error| bad(error.to_string()))?;
    match parse(text)? {
        RangesProperty::Inline(ranges) => Ok(ranges),
        RangesProperty::File(other) => Err(bad(format!("names another file, {other}"))),
    }
}

fn ungroup(groups: Vec<Group>) -> Result<Vec<BucketRange>> {
    let mut ranges = Vec::new();
    for group in groups {
        for (bucket, start, end, rows) in &group.buckets {
            let (start, end) = (LogOffset(*start), LogOffset(*end));
            let of_bucket = |all: &[(i32, i64, i64)]| -> Vec<Offsets> {
                let within =
                    |one: &&(i32, i64, i64)| one.0 == *bucket && start.0 <= one.1 && one.2 <= end.0;
                let found = all.iter().filter(within);
                found.map(|o| LogOffset(o.1)..LogOffset(o.2)).collect()
            };
            let range = BucketRange {
                partition_id: group.partition_id,
                partition: group.partition.clone(),
                bucket: BucketId(*bucket),
                start,
                end,
                rows: *rows,
                apart: Apart {
                    diverted: of_bucket(&group.diverted),
                    lost: of_bucket(&group.lost),
                },
            };
            range.check()?;
            ranges.push(range);
        }
    }
    Ok(ranges)
}

impl BucketRange {
    fn check(&self) -> Result<()> {
        let (start, end, rows) = (self.start, self.end, self.rows);
        let is_range = self.bucket.0 >= 0 && start.0 >= 0 && start <= end && rows >= 0;
        let mut next = start;
        let mut is_ascending = true;
        for offsets in self.apart.all() {
            is_ascending &= next <= offsets.start && offsets.start < offsets.end;
            next = offsets.end;
        }
        // The differences fit: both ends are known to be positive where they are looked at.
        let fits = || rows <= end.0 - start.0 - self.apart.count();
        if is_range && is_ascending && next <= end && fits() {
            return Ok(());
        }
        let apart = self.apart.count();
        let reason = format!(
            "bucket {}: {start}..{end} cannot hold {rows} rows and {apart} apart",
            self.bucket
        );
        Err(Error::BadRanges { reason })
    }
}

fn render(document: &Document) -> String {
    // Numbers, strings and lists only: there is no way to fail.
    serde_json::to_string(document).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(partition: Option<i64>, bucket: i32, start: i64, rows: i64) -> BucketRange {
        BucketRange {
            partition_id: partition.map(PartitionId),
            partition: partition.map(|p| format!("name {p}")),
            bucket: BucketId(bucket),
            start: LogOffset(start),
            end: LogOffset(start + rows + 1),
            rows,
            apart: Apart::default(),
        }
    }

    #[test]
    fn the_text_is_short_and_stable() {
        let text = to_text(&[range(Some(31), 1, 5, 2), range(Some(31), 0, 7, 1)]);
        let expected = r#"{"version":1,"groups":[{"partition_id":31,"partition":"name 31","buckets":[[0,7,9,1],[1,5,8,2]]}]}"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn a_file_reference_reads_back() {
        let text = file_reference("weir/ranges-1.json");
        assert_eq!(text, r#"{"version":1,"file":"weir/ranges-1.json"}"#);
        assert_eq!(
            parse(&text).unwrap(),
            RangesProperty::File("weir/ranges-1.json".to_owned())
        );
    }

    #[test]
    fn newer_versions_and_backward_ranges_are_refused() {
        for text in [
            r#"{"version":3,"anything":[]}"#,
            r#"{"version":1,"groups":[{"buckets":[[0,5,9,2]],"diverted":[[0,5,6]]}]}"#,
            r#"{"version":2,"groups":[{"buckets":[[0,5,9,4]],"diverted":[[0,5,6]]}]}"#,
            r#"{"version":2,"groups":[{"buckets":[[0,5,9,1]],"diverted":[[0,6,6]]}]}"#,
            r#"{"version":2,"groups":[{"buckets":[[0,5,9,1]],"diverted":[[0,6,8]],"lost":[[0,7,9]]}]}"#,
            r#"{"version":1}"#,
            r#"{"version":1,"groups":[{"buckets":[[0,5,4,0]]}]}"#,
            r#"{"version":1,"groups":[{"buckets":[[0,5,6,2]]}]}"#,
            "[]",
            "",
        ] {
            assert!(
                matches!(parse(text), Err(Error::BadRanges { .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn rows_apart_survive_the_text_and_stand_in_a_version_of_their_own() {
        let mut one = range(None, 3, 10, 9);
        one.rows = 3;
        push(&mut one.apart.diverted, LogOffset(12));
        push(&mut one.apart.diverted, LogOffset(13));
        push(&mut one.apart.diverted, LogOffset(18));
        one.apart.lost = vec![LogOffset(14)..LogOffset(17)];
        let ranges = vec![range(None, 2, 0, 5), one];
        let text = to_text(&ranges);
        let expected = r#"{"version":2,"groups":[{"buckets":[[2,0,6,5],[3,10,20,3]],"diverted":[[3,12,14],[3,18,19]],"lost":[[3,14,17]]}]}"#;
        assert_eq!(text, expected);
        assert_eq!(parse(&text).unwrap(), RangesProperty::Inline(ranges));
    }

    proptest! {
        #[test]
        fn ranges_survive_the_text(
            list in proptest::collection::btree_map(
                (proptest::option::of(0..9_i64), 0..9_i32), (0..1_i64 << 40, 0..1_000_i64), 0..40)
        ) {
            let ranges: Vec<_> =
                list.into_iter().map(|((p, b), (start, rows))| range(p, b, start, rows)).collect();
            let read = parse(&to_text(&ranges)).unwrap();
            prop_assert_eq!(read, RangesProperty::Inline(ranges));
        }

        #[test]
        fn any_text_gives_ranges_or_an_error(text in ".{0,200}") {
            let _ = parse(&text);
        }
    }
}
