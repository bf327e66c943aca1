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

use std::collections::BTreeMap;

use object_store::ObjectStoreExt;
use serde::{Deserialize, Serialize};
use weir_lake_format::Table;
use weir_protocol::ids::{BucketId, LogOffset, PartitionId};

use crate::error::{Error, Result};

/// The longest text that stands in the snapshot itself.
pub const INLINE_MAX_BYTES: usize = 64 * 1024;

/// The newest version that we write and read.
const VERSION: i32 = 1;

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
    /// Rows written, at most `end - start`.
    pub rows: i64,
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

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    partition_id: Option<PartitionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    partition: Option<String>,
    buckets: Vec<(i32, i64, i64, i64)>,
}

#[derive(Deserialize)]
struct Versioned {
    version: i32,
}

/// The inline text of `ranges`, grouped by partition; equal sets give equal texts.
pub fn to_text(ranges: &[BucketRange]) -> String {
    let mut groups: BTreeMap<(Option<PartitionId>, Option<&str>), Vec<(i32, i64, i64, i64)>> =
        BTreeMap::new();
    for range in ranges {
        let key = (range.partition_id, range.partition.as_deref());
        let entry = (range.bucket.0, range.start.0, range.end.0, range.rows);
        groups.entry(key).or_default().push(entry);
    }
    let groups = groups
        .into_iter()
        .map(|((partition_id, partition), mut buckets)| {
            buckets.sort_unstable();
            Group {
                partition_id,
                partition: partition.map(str::to_owned),
                buckets,
            }
        });
    render(&Document {
        version: VERSION,
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
    if version != VERSION {
        return Err(bad(format!(
            "version {version} is not {VERSION}, the only one known"
        )));
    }
    let document: Document = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
    match (document.groups, document.file) {
        (None, Some(file)) => Ok(RangesProperty::File(file)),
        (Some(groups), None) => ungroup(groups).map(RangesProperty::Inline),
        _ => Err(bad("neither ranges nor a file, or both".to_owned())),
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
        for (bucket, start, end, rows) in group.buckets {
            if bucket < 0 || start < 0 || end < start || rows < 0 || rows > end - start {
                let reason = format!("bucket {bucket}: {start}..{end} cannot hold {rows} rows");
                return Err(Error::BadRanges { reason });
            }
            ranges.push(BucketRange {
                partition_id: group.partition_id,
                partition: group.partition.clone(),
                bucket: BucketId(bucket),
                start: LogOffset(start),
                end: LogOffset(end),
                rows,
            });
        }
    }
    Ok(ranges)
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
            r#"{"version":2,"anything":[]}"#,
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
