//! Tags of tablet servers: marks that operators set. One document, as the reference writes it.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use weir_catalog::model::Document;
use weir_catalog::occ::{self, Decision};
use weir_catalog::store::{Expect, Key, Txn};
use weir_protocol::ids::ServerId;

use super::Coordinator;
use crate::error::Error;

/// The highest tag: 0 is offline for good, 1 offline for a while.
const MAX_TAG: i32 = 1;

/// All tags, version 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct ServerTags {
    #[serde(default)]
    server_tags: BTreeMap<String, i32>,
}

impl ServerTags {
    fn has_another(&self, server: ServerId, tag: i32) -> bool {
        let known = self.server_tags.get(&server.to_string());
        known.is_some_and(|known| *known != tag)
    }
}

impl Document for ServerTags {
    const VERSION: i64 = 1;
}

impl Coordinator {
    /// Sets a tag on servers that have none.
    pub(crate) async fn add_server_tag(&self, servers: &[i32], tag: i32) -> Result<(), Error> {
        self.check_tag(servers, tag)?;
        self.change_tags(|tags| {
            for server in servers {
                let server = ServerId(*server);
                if tags.has_another(server, tag) {
                    return Err(Error::TagExists { server });
                }
                tags.server_tags.insert(server.to_string(), tag);
            }
            Ok(())
        })
        .await
    }

    /// Takes a tag from servers that have it.
    pub(crate) async fn remove_server_tag(&self, servers: &[i32], tag: i32) -> Result<(), Error> {
        self.check_tag(servers, tag)?;
        self.change_tags(|tags| {
            for server in servers {
                let server = ServerId(*server);
                if tags.has_another(server, tag) {
                    return Err(Error::TagMissing { server });
                }
                tags.server_tags.remove(&server.to_string());
            }
            Ok(())
        })
        .await
    }

    fn check_tag(&self, servers: &[i32], tag: i32) -> Result<(), Error> {
        if !(0..=MAX_TAG).contains(&tag) {
            return Err(Error::Unsupported {
                what: "a server tag other than 0 and 1",
            });
        }
        let unknown = |server: &&i32| !self.parts.servers.contains(&ServerId(**server));
        match servers.iter().find(unknown) {
            Some(server) => Err(Error::UnknownServer {
                server: ServerId(*server),
            }),
            None => Ok(()),
        }
    }

    async fn change_tags(
        &self,
        change: impl Fn(&mut ServerTags) -> Result<(), Error> + Sync,
    ) -> Result<(), Error> {
        let (store, fence) = (self.parts.catalog.store(), &self.parts.fence);
        let change = &change;
        let updated = occ::update(&**store, "server tags", occ::DEFAULT_ATTEMPTS, |_| {
            Box::pin(async move {
                let key = Key::server_tags();
                let failed = |source| weir_catalog::Error::Store {
                    what: key.to_string(),
                    source,
                };
                let known = store.get(&key).await.map_err(failed)?;
                let mut tags = match &known {
                    Some(entry) => ServerTags::decode(&key, &entry.value)?,
                    None => ServerTags::default(),
                };
                if let Err(refused) = change(&mut tags) {
                    return Ok(Decision::Done(Some(refused)));
                }
                let expect = known.map_or(Expect::Absent, |entry| Expect::At(entry.modified));
                let value: Bytes = tags.encode()?;
                let txn = Txn::new(Some(fence.clone())).put(key, value, expect);
                Ok(Decision::Commit(txn, None))
            })
        })
        .await?;
        updated.value.map_or(Ok(()), Err)
    }
}
