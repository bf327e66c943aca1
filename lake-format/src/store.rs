//! Opening a warehouse by its URL.

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use url::Url;

use crate::durable::DurableLocal;
use crate::error::{Error, Result};

mod answer;
mod profile;
mod s3;

use profile::Environment;

/// Opens the store of a warehouse and the prefix under which all its objects live.
///
/// * `/path`, `./path`, `file:///path`: a local folder, made if missing, with synced writes
///   ([`DurableLocal`]).
/// * `memory://`: a new, empty store in memory, for tests; two calls share nothing.
/// * `s3://bucket/prefix` (also `s3a://`): credentials, region and endpoint from the `AWS_*`
///   variables, overridden by `options` with the same names in lower case (`aws_endpoint`,
///   `aws_region`, `aws_allow_http`, `timeout`, …); what is not said there from the shared profile
///   (`AWS_PROFILE`, `~/.aws/credentials`, `~/.aws/config`), then web identity, container and
///   instance metadata. `max_retries` (8) and `retry_timeout` (`30 s`) bound how long one request
///   is repeated. Conditional puts are required, for without them two writers may publish the same
///   snapshot.
///
/// Blocks on the file system for a local folder; makes no request otherwise ([`probe_writable`]
/// does).
///
/// # Errors
/// [`Error::Unsupported`] naming the URL for an unknown scheme or option, [`Error::Store`] naming
/// it if it cannot be opened.
pub fn open_warehouse(
    url: &str,
    options: &BTreeMap<String, String>,
) -> Result<(Arc<dyn ObjectStore>, Path)> {
    match url.split_once("://") {
        None => open_local(url, std::path::Path::new(url), options),
        Some(("file", _)) => {
            let path = parse(url)?.to_file_path();
            let path = path.map_err(|()| unsupported(url, "it names no local folder"))?;
            open_local(url, &path, options)
        }
        Some(("memory", _)) => {
            reject_options(url, options)?;
            Ok((Arc::new(InMemory::new()), prefix_of(url)?))
        }
        Some(("s3" | "s3a", _)) => open_s3(url, options),
        Some(_) => Err(unsupported(url, "use a path, file://, memory:// or s3://")),
    }
}

/// Opens a warehouse that must be there, as [`open_warehouse`] does, but makes no folder: for those
/// who only read.
///
/// # Errors
/// As [`open_warehouse`], and [`Error::NotFound`] naming the URL if a local folder is missing.
pub fn open_existing_warehouse(
    url: &str,
    options: &BTreeMap<String, String>,
) -> Result<(Arc<dyn ObjectStore>, Path)> {
    match local_folder(url)?.map(std::fs::metadata).transpose() {
        Ok(Some(found)) if !found.is_dir() => Err(unsupported(url, "it is no folder")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::NotFound {
            path: format!("warehouse `{url}`"),
        }),
        // What else can be wrong with it, opening it tells.
        Ok(_) | Err(_) => open_warehouse(url, options),
    }
}

/// The folder of a warehouse on a local disk; `None` for others.
///
/// # Errors
/// [`Error::Unsupported`] if the address can't be read.
pub fn local_folder(url: &str) -> Result<Option<std::path::PathBuf>> {
    Ok(match url.split_once("://") {
        None => Some(std::path::PathBuf::from(url)),
        Some(("file", _)) => parse(url)?.to_file_path().ok(),
        Some(_) => None,
    })
}

/// Checks that the warehouse takes writes and refuses to create an object twice, with one small
/// object that is deleted again. `name` makes the object unique, such as a UUID.
///
/// # Errors
/// [`Error::Store`] naming the object if a call fails, [`Error::Unsupported`] if a second create
/// succeeded: publishing snapshots in such a store would lose commits.
pub async fn probe_writable(store: &dyn ObjectStore, prefix: &Path, name: &str) -> Result<()> {
    let path = prefix.clone().join(format!(".weir-probe-{name}"));
    let create = || PutOptions::from(PutMode::Create);
    let first = store.put_opts(&path, "1".into(), create()).await;
    match first {
        // One that is there already is left of a start that was cut short, or the client put it
        // twice because it lost the reply.
        Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => {}
        Err(source) => {
            return Err(Error::Store {
                path: path.to_string(),
                source,
            });
        }
    }
    let second = store.put_opts(&path, "2".into(), create()).await;
    let deleted = store.delete(&path).await;
    match second {
        Err(object_store::Error::AlreadyExists { .. }) => {}
        Err(source) => {
            return Err(Error::Store {
                path: path.to_string(),
                source,
            });
        }
        Ok(_) => {
            let reason = "it lets an existing object be created again".to_owned();
            return Err(Error::Unsupported {
                what: format!("warehouse {store}"),
                reason,
            });
        }
    }
    deleted.map_err(|source| Error::Store {
        path: path.to_string(),
        source,
    })
}

fn open_local(
    url: &str,
    path: &std::path::Path,
    options: &BTreeMap<String, String>,
) -> Result<(Arc<dyn ObjectStore>, Path)> {
    reject_options(url, options)?;
    if path.as_os_str().is_empty() {
        return Err(unsupported(url, "the path is empty"));
    }
    let store = DurableLocal::open(path).map_err(|source| Error::Store {
        path: format!("warehouse `{url}`"),
        source,
    })?;
    Ok((Arc::new(store), Path::default()))
}

fn open_s3(url: &str, options: &BTreeMap<String, String>) -> Result<(Arc<dyn ObjectStore>, Path)> {
    let prefix = prefix_of(url)?;
    let store = s3::open(url, options, &Environment::of_process())?;
    Ok((store, prefix))
}

/// The path of the URL, percent-encoding kept as it stands: in object stores it is part of the
/// name.
fn prefix_of(url: &str) -> Result<Path> {
    let url_path = parse(url)?.path().to_owned();
    Path::from_url_path(url_path).map_err(|source| Error::Store {
        path: format!("warehouse `{url}`"),
        source: source.into(),
    })
}

fn parse(url: &str) -> Result<Url> {
    Url::parse(url).map_err(|e| unsupported(url, &e.to_string()))
}

fn reject_options(url: &str, options: &BTreeMap<String, String>) -> Result<()> {
    match options.keys().next() {
        None => Ok(()),
        Some(key) => Err(unsupported(
            url,
            &format!("it takes no options, such as `{key}`"),
        )),
    }
}

fn unsupported(url: &str, reason: &str) -> Error {
    Error::Unsupported {
        what: format!("warehouse `{url}`"),
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(url: &str) -> Result<(Arc<dyn ObjectStore>, Path)> {
        open_warehouse(url, &BTreeMap::new())
    }

    #[tokio::test]
    async fn a_path_and_a_file_url_open_the_same_durable_folder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a b%20c/lake");
        let (by_path, prefix) = open(path.to_str().unwrap()).unwrap();
        by_path
            .put(&prefix.clone().join("x"), "1".into())
            .await
            .unwrap();
        let url = Url::from_file_path(&path).unwrap();
        let (by_url, prefix) = open(url.as_str()).unwrap();
        let found = by_url
            .get(&prefix.join("x"))
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap();
        assert_eq!(found, "1");
        assert!(by_url.to_string().starts_with("DurableLocal"));
    }

    #[test]
    fn a_reader_makes_no_folder_and_a_missing_warehouse_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("lake");
        let url = Url::from_file_path(&missing).unwrap().to_string();
        for url in [missing.to_str().unwrap(), &url] {
            let error = open_existing_warehouse(url, &BTreeMap::new()).unwrap_err();
            assert!(matches!(error, Error::NotFound { .. }), "{error}");
            assert!(error.to_string().contains(url), "{error}");
            assert!(!missing.exists());
        }
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = open_existing_warehouse(file.to_str().unwrap(), &BTreeMap::new());
        assert!(error.unwrap_err().to_string().ends_with("it is no folder"));
        open_existing_warehouse(dir.path().to_str().unwrap(), &BTreeMap::new()).unwrap();
    }

    #[tokio::test]
    async fn a_writable_store_passes_the_probe_and_is_left_empty() {
        let dir = tempfile::tempdir().unwrap();
        for url in ["memory:///some/prefix", dir.path().to_str().unwrap()] {
            let (store, prefix) = open(url).unwrap();
            probe_writable(store.as_ref(), &prefix, "1").await.unwrap();
            assert!(
                store
                    .list_with_delimiter(Some(&prefix))
                    .await
                    .unwrap()
                    .objects
                    .is_empty()
            );
        }
    }

    #[test]
    fn an_s3_url_gives_its_key_prefix() {
        let options = BTreeMap::from([("aws_region".to_owned(), "x".to_owned())]);
        let (store, prefix) = open_warehouse("s3://bucket/a/b", &options).unwrap();
        assert_eq!(
            (prefix.as_ref(), store.to_string().contains("bucket")),
            ("a/b", true)
        );
    }

    #[test]
    fn an_unknown_scheme_or_option_is_an_error_that_names_the_url() {
        let options = BTreeMap::from([("colour".to_owned(), "red".to_owned())]);
        for (url, options) in [
            ("hdfs://x/y", &BTreeMap::new()),
            ("s3://bucket/a", &options),
            ("memory://", &options),
            ("", &BTreeMap::new()),
        ] {
            let error = open_warehouse(url, options).unwrap_err().to_string();
            assert!(error.contains(&format!("`{url}`")), "{error}");
        }
    }
}
