//! Where seeds come from: the golden files of the other crates.

use std::fs;
use std::path::{Path, PathBuf};

/// A folder of the repository.
pub(crate) fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// The files under a folder of the repository whose name passes, at most 64 KiB each, by name.
pub(crate) fn files(path: &str, wanted: impl Fn(&str) -> bool) -> Vec<Vec<u8>> {
    let mut folders = vec![folder(path)];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the golden files are in the checkout") {
            let path = entry.expect("a folder can be listed").path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if wanted(&name) && fs::metadata(&path).is_ok_and(|meta| meta.len() <= 64 << 10)
            {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "{path} holds no seed");
    found
        .iter()
        .map(|path| fs::read(path).expect("a golden file is readable"))
        .collect()
}
