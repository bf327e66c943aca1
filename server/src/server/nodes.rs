//! The servers of this process: where they listen, and what clients are told.

use std::fmt;

use tokio::net::TcpListener;
use weir_catalog::Catalog;
use weir_catalog::clock::Clock;
use weir_catalog::model::Unknown;
use weir_catalog::model::tablet_server::TabletServer;
use weir_catalog::store::SessionId;
use weir_protocol::ids::ServerId;
use weir_protocol::proto::{PbServerNode, UpdateMetadataRequest};

use crate::config::ServerConfig;
use crate::error::Error;
use crate::net;

/// The coordinator's number among the nodes; clients tell it from a tablet server by its role.
const COORDINATOR_ID: i32 = 0;

/// The listener's name in the documents of servers, as the reference calls its own.
const LISTENER: &str = "FLUSS";

/// Bound sockets, nobody served yet.
pub(super) struct Listeners {
    host: String,
    /// None of an embedded server.
    pub(super) coordinator: Option<TcpListener>,
    /// As many as there are tablet servers, or none.
    pub(super) tablets: Vec<TcpListener>,
    port: u16,
    tablet_ports: Vec<u16>,
}

/// One server as clients see it. Displays as `HOST:PORT`.
#[derive(Clone, Debug)]
pub(super) struct Node {
    id: i32,
    host: String,
    port: u16,
}

/// All servers of this process.
#[derive(Clone, Debug)]
pub(super) struct Nodes {
    pub(super) coordinator: Node,
    pub(super) tablets: Vec<Node>,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            return write!(f, "[{}]:{}", self.host, self.port);
        }
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Node {
    fn to_proto(&self) -> PbServerNode {
        PbServerNode {
            node_id: self.id,
            host: self.host.clone(),
            port: i32::from(self.port),
            ..PbServerNode::default()
        }
    }
}

impl Listeners {
    /// The coordinator's port, then the next ones for tablet servers; port 0 gives each its own.
    pub(super) async fn bind(config: &ServerConfig) -> Result<Self, Error> {
        let mistake = |mistake| Error::Config {
            mistakes: vec![mistake],
        };
        let (host, port) = config.listen_address().map_err(mistake)?;
        let coordinator = net::bind(&host, port).await?;
        let mut tablet_ports = Vec::with_capacity(config.tablets);
        let mut tablets = Vec::with_capacity(config.tablets);
        for number in 1..=config.tablets {
            let offset = u16::try_from(number).unwrap_or(u16::MAX);
            let port = if port == 0 {
                0
            } else {
                port.saturating_add(offset)
            };
            let listener = net::bind(&host, port).await?;
            tablet_ports.push(port_of(&listener)?);
            tablets.push(listener);
        }
        let (host, port) = (config.advertised_host(&host), port_of(&coordinator)?);
        Ok(Self {
            host,
            coordinator: Some(coordinator),
            tablets,
            port,
            tablet_ports,
        })
    }

    /// The addresses that [`Self::bind`] would take, without a socket: those who reach the servers by
    /// other ways are told these.
    pub(super) fn unbound(config: &ServerConfig) -> Result<Self, Error> {
        let mistake = |mistake| Error::Config {
            mistakes: vec![mistake],
        };
        let (host, port) = config.listen_address().map_err(mistake)?;
        let number = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
        let tablet_ports = (1..=config.tablets)
            .map(|tablet| port.saturating_add(number(tablet)))
            .collect();
        Ok(Self {
            host: config.advertised_host(&host),
            coordinator: None,
            tablets: Vec::new(),
            port,
            tablet_ports,
        })
    }

    pub(super) fn nodes(&self) -> Nodes {
        let node = |id: i32, port: u16| Node {
            id,
            host: self.host.clone(),
            port,
        };
        let tablets = (0..)
            .zip(&self.tablet_ports)
            .map(|(id, port)| node(id, *port))
            .collect();
        Nodes {
            coordinator: node(COORDINATOR_ID, self.port),
            tablets,
        }
    }
}

fn port_of(listener: &TcpListener) -> Result<u16, Error> {
    match listener.local_addr() {
        Ok(address) => Ok(address.port()),
        Err(source) => Err(Error::Listen {
            address: "a new socket".to_owned(),
            source,
        }),
    }
}

impl Nodes {
    /// The coordinator, then the tablet servers.
    pub(super) fn all(&self) -> impl Iterator<Item = &Node> {
        std::iter::once(&self.coordinator).chain(&self.tablets)
    }

    pub(super) fn servers(&self) -> Vec<ServerId> {
        self.tablets.iter().map(|node| ServerId(node.id)).collect()
    }

    /// Writes the tablet servers down for as long as the session lasts. Others read that; this
    /// process does not, so a failure is only told.
    pub(super) async fn register(&self, catalog: &Catalog, clock: &dyn Clock, session: SessionId) {
        for node in &self.tablets {
            let registration = TabletServer {
                listeners: format!("{LISTENER}://{node}"),
                register_timestamp: clock.now_ms(),
                rack: None,
                cpu_cores: None,
                memory_bytes: None,
                unknown: Unknown::new(),
            };
            let id = ServerId(node.id);
            if let Err(error) = catalog.register_server(id, &registration, session).await {
                tracing::warn!(server = %id, %error, "a tablet server is not written down");
            }
        }
    }

    /// Tells a server who is in the cluster.
    pub(super) fn update(&self, coordinator_epoch: i32) -> UpdateMetadataRequest {
        UpdateMetadataRequest {
            coordinator_server: Some(self.coordinator.to_proto()),
            tablet_servers: self.tablets.iter().map(Node::to_proto).collect(),
            coordinator_epoch: Some(coordinator_epoch),
            ..UpdateMetadataRequest::default()
        }
    }

    /// What `DESCRIBE_CLUSTER_CONFIGS` tells: the reference's names where it has one, no secrets.
    pub(super) fn settings(&self, config: &ServerConfig, warehouse: &str) -> Vec<(String, String)> {
        let protocol = if config.sasl.is_some() {
            "SASL"
        } else {
            "PLAINTEXT"
        };
        [
            (
                "bind.listeners",
                format!("{protocol}://{}", self.coordinator),
            ),
            (
                "default.bucket.number",
                config.default_bucket_number.to_string(),
            ),
            ("default.replication.factor", "1".to_owned()),
            ("max.bucket.num", config.max_bucket_number.to_string()),
            ("max.partition.num", config.max_partition_number.to_string()),
            (
                "log.segment.file-size",
                format!("{} bytes", config.log.segment_bytes),
            ),
            ("datalake.format", "paimon".to_owned()),
            ("datalake.paimon.metastore", "filesystem".to_owned()),
            ("datalake.paimon.warehouse", warehouse.to_owned()),
            ("weir.log.flush", config.log.flush.to_string()),
            ("weir.tablets", config.tablets.to_string()),
            // Lake workers know by it that epochs never restart here.
            ("weir.version", env!("CARGO_PKG_VERSION").to_owned()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .to_vec()
    }
}
