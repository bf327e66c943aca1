//! What writers that died left of staged files: hidden, so no listing of a store shows them.

use std::fs::DirEntry;
use std::io;
use std::path::{Path as FsPath, PathBuf};
use std::time::UNIX_EPOCH;

/// Folders looked into, at most; a table has far fewer levels than a loop would.
const MAX_DEPTH: usize = 64;

/// A staged file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StagedFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// When it was last written, milliseconds since 1970.
    pub modified_ms: i64,
}

/// The staged files below a folder that were last written before `older_than_ms`. Whoever stages a
/// file writes it, so a limit longer than a write takes leaves out those in use. Links are not
/// followed. Blocks on the file system.
///
/// # Errors
/// The first folder or file that can't be looked at; what is gone meanwhile is left out.
pub fn staged_files(folder: &FsPath, older_than_ms: i64) -> io::Result<Vec<StagedFile>> {
    let mut found = Vec::new();
    let mut folders = vec![(folder.to_path_buf(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        for entry in entries {
            let entry = entry?;
            let file_type = entry.file_type()?;
            if file_type.is_dir() && depth < MAX_DEPTH {
                folders.push((entry.path(), depth + 1));
            } else if file_type.is_file() && is_staged(&entry.file_name().to_string_lossy()) {
                found.extend(look_at(&entry)?.filter(|file| file.modified_ms < older_than_ms));
            }
        }
    }
    found.sort();
    Ok(found)
}

fn look_at(entry: &DirEntry) -> io::Result<Option<StagedFile>> {
    let found = match entry.metadata() {
        Ok(found) => found,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let since = found.modified()?.duration_since(UNIX_EPOCH);
    let modified_ms = since.map_or(0, |since| since.as_millis());
    Ok(Some(StagedFile {
        path: entry.path(),
        bytes: found.len(),
        modified_ms: i64::try_from(modified_ms).unwrap_or(i64::MAX),
    }))
}

/// `.NAME#N`.
fn is_staged(name: &str) -> bool {
    let parts = name
        .strip_prefix('.')
        .and_then(|name| name.rsplit_once('#'));
    parts.is_some_and(|(name, number)| {
        !name.is_empty() && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_staged_files_are_found_in_any_folder() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "x").unwrap();
            path
        };
        let staged = [put("a/.data-1.parquet#1"), put("b/c/.snapshot-1#12")];
        for other in [
            "a/data-1.parquet",
            "a/.hidden",
            "a/.#1",
            "a/.x#",
            "a/.x#1a",
            "a/x#1",
        ] {
            put(other);
        }
        let found = staged_files(folder.path(), i64::MAX).unwrap();
        let paths: Vec<_> = found.iter().map(|file| file.path.clone()).collect();
        assert_eq!(paths, staged);
        let written_ms = found.iter().map(|file| file.modified_ms).min().unwrap();
        assert_eq!(staged_files(folder.path(), written_ms).unwrap(), []);
        assert_eq!(staged_files(&folder.path().join("none"), 0).unwrap(), []);
    }
}
