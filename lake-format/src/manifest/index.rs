//! Index manifests: what is kept beside the data files, such as deletion vectors (paimon:
//! `IndexManifestEntry`, `DeletionVectorsIndexFile`).

use super::FileKind;
use super::avro::check_version;
use crate::avro::read_records;
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
        let kind = kind.ok_or_else(|| {
            Error::malformed("index manifest", "an entry neither adds nor removes")
        })?;
        let index_type = record.string("_INDEX_TYPE")?;
        found |= kind == FileKind::Add && index_type == DELETION_VECTORS;
        Ok(())
    })?;
    Ok(found)
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
