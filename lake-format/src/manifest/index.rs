//! Index manifests: what is kept beside the data files, such as deletion vectors (paimon:
//! `IndexManifestEntry`, `DeletionVectorsIndexFile`).

use std::collections::BTreeMap;

use super::FileKind;
use super::avro::check_version;
use crate::avro::read_records;
use crate::deletion_vector::DeletionFile;
use crate::error::{Error, Result};

/// The version that every entry of an index manifest carries.
const INDEX_VERSION: i32 = 1;

/// The `_INDEX_TYPE` of deletion vectors.
const DELETION_VECTORS: &str = "DELETION_VECTORS";

/// Whether an index manifest, which is always the whole set, names deletion vectors.
///
/// # Errors
/// [`Error::Malformed`] if the bytes are no index manifest; any bytes give an answer or this error.
pub(crate) fn has_deletion_vectors(file: &[u8]) -> Result<bool> {
    let mut found = false;
    read_records(file, |record| {
        check_version(&record, INDEX_VERSION)?;
        let kind = FileKind::from_code(record.int("_KIND")?);
        let kind = kind.ok_or_else(|| malformed("an entry neither adds nor removes"))?;
        let index_type = record.string("_INDEX_TYPE")?;
        found |= kind == FileKind::Add && index_type == DELETION_VECTORS;
        Ok(())
    })?;
    Ok(found)
}

/// The deletion vectors of each partition and bucket, by data file.
pub(crate) type Vectors = BTreeMap<(Vec<u8>, i32), BTreeMap<String, DeletionFile>>;

/// The deletion vectors that an index manifest names.
///
/// # Errors
/// [`Error::Malformed`] if the bytes are no index manifest, or name two vectors of one file;
/// [`Error::Unsupported`] if a vector lies outside of the table. Any bytes give one of these.
pub(crate) fn deletion_vectors(file: &[u8]) -> Result<Vectors> {
    let mut vectors = Vectors::new();
    read_records(file, |record| {
        check_version(&record, INDEX_VERSION)?;
        let kind = FileKind::from_code(record.int("_KIND")?);
        if kind != Some(FileKind::Add) || record.string("_INDEX_TYPE")? != DELETION_VECTORS {
            return match kind {
                Some(_) => Ok(()),
                None => Err(malformed("an entry neither adds nor removes")),
            };
        }
        let bucket = (record.bytes("_PARTITION")?, record.int("_BUCKET")?);
        let file_name = record.string("_FILE_NAME")?;
        if record.optional_string("_EXTERNAL_PATH")?.is_some() {
            return Err(Error::Unsupported {
                what: format!("the index file {file_name}"),
                reason: "it lies outside of the table".to_owned(),
            });
        }
        let of_bucket = vectors.entry(bucket).or_default();
        for range in record.records("_DELETIONS_VECTORS_RANGES")? {
            let number = |name| u64::try_from(range.int(name)?).map_err(|_| negative());
            let vector = DeletionFile {
                file_name: file_name.clone(),
                offset: number("f1")?,
                length: number("f2")?,
                cardinality: range.optional_long("_CARDINALITY")?,
            };
            if of_bucket.insert(range.string("f0")?, vector).is_some() {
                return Err(malformed("a data file has two deletion vectors"));
            }
        }
        Ok(())
    })?;
    Ok(vectors)
}

fn negative() -> Error {
    malformed("a deletion vector has a negative place")
}

fn malformed(reason: &str) -> Error {
    Error::malformed("index manifest", reason)
}

/// The names of the index files that an index manifest names and that are kept in the table.
///
/// # Errors
/// [`Error::Malformed`] if the bytes are no index manifest; any bytes give names or this error.
pub(crate) fn index_file_names(file: &[u8]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    read_records(file, |record| {
        check_version(&record, INDEX_VERSION)?;
        if record.optional_string("_EXTERNAL_PATH")?.is_none() {
            names.push(record.string("_FILE_NAME")?);
        }
        Ok(())
    })?;
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletion_vectors_are_told_from_other_indexes() {
        let vectors = include_bytes!("../../tests/golden/index-manifest-deletion-vectors");
        assert!(has_deletion_vectors(vectors).unwrap());
        let hash = include_bytes!("../../tests/golden/index-manifest-hash");
        assert!(!has_deletion_vectors(hash).unwrap());
        assert!(has_deletion_vectors(&vectors[..vectors.len() - 20]).is_err());
    }

    #[test]
    fn the_deletion_vectors_of_data_files_are_known_by_bucket() {
        let file = include_bytes!("../../tests/golden/index-manifest-deletion-vectors");
        let vectors = deletion_vectors(file).unwrap();
        let of_files: usize = vectors.values().map(BTreeMap::len).sum();
        assert!(of_files > 0, "{vectors:?}");
        assert!(deletion_vectors(&file[..file.len() - 20]).is_err());
    }

    #[test]
    fn the_files_of_an_index_manifest_are_known_by_name() {
        let hash = include_bytes!("../../tests/golden/index-manifest-hash");
        let names = index_file_names(hash).unwrap();
        assert!(!names.is_empty());
        assert!(
            names.iter().all(|name| name.starts_with("index-")),
            "{names:?}"
        );
    }
}
