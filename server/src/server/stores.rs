//! Opens what a server keeps its state in: metadata, the lake, the offsets files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use object_store::path::Path as ObjectPath;
use weir_catalog::offsets_files::OffsetsFiles;
use weir_lake_format::store::probe_writable;

use crate::data_dir::DataDir;
use crate::error::Error;
use crate::meta_store::RocksMetadataStore;
use weir_catalog::sentence::sentence;

/// The longest wait for the lake's root, and for that of the offsets files, at a start.
const PROBE_DEADLINE: Duration = Duration::from_secs(30);
const NO_ANSWER: &str = "it does not answer";

/// Metadata in RocksDB.
pub(super) async fn open_store(data_dir: &DataDir) -> Result<RocksMetadataStore, Error> {
    let path = data_dir.path().join("meta");
    let open = move || RocksMetadataStore::open(&path);
    Ok(tokio::task::spawn_blocking(open).await??)
}

/// Opens the lake's root and checks that files can be made in it.
pub(super) async fn open_lake(url: &str) -> Result<(Arc<dyn ObjectStore>, ObjectPath), Error> {
    let failed = |error: weir_lake_format::Error| Error::Warehouse {
        url: url.to_owned(),
        reason: sentence(&error),
    };
    let (store, root) = open(url).await?.map_err(failed)?;
    match tokio::time::timeout(PROBE_DEADLINE, probe_writable(&*store, &root, "server")).await {
        Ok(result) => result.map_err(failed)?,
        Err(_) => {
            return Err(Error::Warehouse {
                url: url.to_owned(),
                reason: NO_ANSWER.to_owned(),
            });
        }
    }
    Ok((store, root))
}

/// Opens the folder of offsets files, named by a `file:` URI.
pub(super) async fn open_remote(path: &str) -> Result<OffsetsFiles, Error> {
    let failed = |error: weir_lake_format::Error| Error::Remote {
        path: path.to_owned(),
        reason: sentence(&error),
    };
    let (store, root) = open(path).await?.map_err(failed)?;
    match tokio::time::timeout(PROBE_DEADLINE, probe_writable(&*store, &root, "server")).await {
        Ok(result) => result.map_err(failed)?,
        Err(_) => {
            return Err(Error::Remote {
                path: path.to_owned(),
                reason: NO_ANSWER.to_owned(),
            });
        }
    }
    let uri = match path.split_once("://") {
        Some(("file", _)) | None => {
            let local = path.strip_prefix("file://").unwrap_or(path);
            let absolute = std::path::absolute(local).map_err(|source| Error::Disk {
                path: local.into(),
                source,
            })?;
            format!("file:{}", absolute.display())
        }
        Some(_) => path.to_owned(),
    };
    Ok(OffsetsFiles::new(store, root, uri))
}

type Opened = weir_lake_format::Result<(Arc<dyn ObjectStore>, ObjectPath)>;

/// Opening a folder blocks.
async fn open(url: &str) -> Result<Opened, Error> {
    let url = url.to_owned();
    let open = move || weir_lake_format::open_warehouse(&url, &BTreeMap::new());
    Ok(tokio::task::spawn_blocking(open).await?)
}
