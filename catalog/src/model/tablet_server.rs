//! A live tablet server's registration.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Document, Unknown};

/// The name of the listener in documents that don't name it.
const DEFAULT_LISTENER: &str = "FLUSS";

/// What a tablet server says about itself, version 4.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TabletServer {
    /// Where it listens: `NAME://host:port` joined by commas. Version 1 had `host` and `port`.
    pub listeners: String,
    /// When it registered, in milliseconds since 1970 UTC.
    pub register_timestamp: i64,
    /// Where it stands; since version 3.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rack: Option<String>,
    /// Processors it may use; since version 4.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu_cores: Option<f64>,
    /// Memory it may use; since version 4.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory_bytes: Option<i64>,
    /// Fields we don't know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// One address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The listener's name.
    pub name: String,
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl TabletServer {
    /// Joins addresses to the text of [`Self::listeners`].
    pub fn listeners_text(listeners: &[Listener]) -> String {
        let texts = listeners
            .iter()
            .map(|l| format!("{}://{}:{}", l.name, l.host, l.port));
        texts.collect::<Vec<_>>().join(",")
    }

    /// The addresses; `None` if the text is none of ours.
    pub fn parse_listeners(&self) -> Option<Vec<Listener>> {
        let mut listeners = Vec::new();
        for text in self.listeners.split(',') {
            let (name, address) = text.trim().split_once("://")?;
            let (host, port) = address.rsplit_once(':')?;
            let host = host
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned();
            listeners.push(Listener {
                name: name.to_owned(),
                host,
                port: port.parse().ok()?,
            });
        }
        Some(listeners)
    }
}

impl Document for TabletServer {
    const VERSION: i64 = 4;

    fn upgrade(version: i64, fields: &mut Map<String, Value>) -> Result<(), String> {
        if version == 1 {
            let host = fields
                .remove("host")
                .and_then(|host| host.as_str().map(str::to_owned));
            let port = fields.remove("port").and_then(|port| port.as_i64());
            let (Some(host), Some(port)) = (host, port) else {
                return Err("it has no host and port".to_owned());
            };
            let listeners = format!("{DEFAULT_LISTENER}://{host}:{port}");
            fields.insert("listeners".to_owned(), Value::String(listeners));
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        match self.parse_listeners() {
            Some(_) => Ok(()),
            None => Err(format!("its listeners are `{}`", self.listeners)),
        }
    }
}
