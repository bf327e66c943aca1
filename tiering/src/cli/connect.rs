//! From the command line to a cluster or a lake.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::path::Path;
use weir_lake_format::Table;
use weir_protocol::client::{Client, ClientConfig, Error};
use weir_protocol::error_code::ErrorCode;
use weir_protocol::ids::TablePath;
use weir_protocol::sasl::PlainCredentials;

use super::exit::{Failure, Outcome, sentence};
use super::{Cluster, Warehouse};

/// Connects to the cluster.
///
/// # Errors
/// 75 if nobody answers, 1 if the cluster refuses us.
pub async fn cluster(arguments: &Cluster) -> Outcome<Client> {
    let mut config = ClientConfig::new(arguments.addresses());
    if let (Some(user), Some(password)) = (&arguments.user, &arguments.password) {
        config.credentials = Some(PlainCredentials {
            user: user.clone(),
            password: password.clone(),
        });
    }
    Client::connect(config).await.map_err(|error| {
        let addresses = arguments.addresses().join(",");
        let why = sentence(&error);
        let place = if why.contains(&addresses) {
            String::new()
        } else {
            format!(" at {addresses}")
        };
        let message = format!("can't reach the cluster{place}: {why}; is it running?");
        if error.is_retriable() {
            Failure::try_again(message)
        } else {
            Failure::failed(message)
        }
    })
}

/// The failure for an error of the cluster: retriable ones ask to try again.
pub fn failure(error: &Error) -> Failure {
    let error_text = words(error);
    if error.outcome_is_unknown() {
        Failure::try_again(format!(
            "{error_text}; it may or may not have happened: look before you repeat it"
        ))
    } else if error.is_retriable() {
        Failure::try_again(error_text)
    } else {
        Failure::failed(error_text)
    }
}

/// What the server said, where it said something, with the code's name for those who look it up,
/// and what to do about it.
pub fn words(error: &Error) -> String {
    let Error::Server { code, message, .. } = error else {
        return sentence(error);
    };
    if message.is_empty() {
        return sentence(error);
    }
    let todo = match code {
        ErrorCode::TableNotExist => "; `weir table list` shows those there are",
        ErrorCode::DatabaseNotExist => "; `weir table list` shows the tables of all databases",
        ErrorCode::TableAlreadyExist => "; choose another name, or drop it first",
        _ => "",
    };
    format!("{message} [{code}]{todo}")
}

/// Opens the store of a warehouse and the folder in it, for reading: nothing is made.
///
/// # Errors
/// If the address can't be understood, or a local folder is missing.
pub fn store(arguments: &Warehouse) -> Outcome<(Arc<dyn ObjectStore>, Path)> {
    let options = std::collections::BTreeMap::new();
    weir_lake_format::open_existing_warehouse(&arguments.warehouse, &options)
        .map_err(Failure::error)
}

/// Opens a table of the lake.
///
/// # Errors
/// If there is none, or it can't be read.
pub async fn lake_table(arguments: &Warehouse, path: &TablePath) -> Outcome<Table> {
    let (store, root) = store(arguments)?;
    let folder = root
        .join(format!("{}.db", path.database))
        .join(path.table.clone());
    Table::open(store, folder)
        .await
        .map_err(|error| match error {
            weir_lake_format::Error::NotFound { .. } => Failure::failed(format!(
                "there is no table {path} in warehouse {}: is the name right, and the warehouse \
                 that of the cluster?",
                arguments.warehouse
            )),
            error => Failure::error(error),
        })
}
