//! Requests that change databases.

use std::sync::Arc;

use weir_catalog::catalog::{Contents, DatabaseChange};
use weir_protocol::api_key::ApiKey;
use weir_protocol::descriptor::DatabaseDescriptor;
use weir_protocol::proto::{
    AlterDatabaseRequest, AlterDatabaseResponse, CreateDatabaseRequest, CreateDatabaseResponse,
    DropDatabaseRequest, DropDatabaseResponse,
};

use super::tables::{PropertyChange, property_changes};
use super::{Call, Outcome, answer, if_exists, if_missing};
use crate::coordinator::Coordinator;
use crate::error::Error;

pub(super) async fn run(coordinator: &Arc<Coordinator>, call: Call) -> Outcome {
    let body = call.body;
    match call.api {
        ApiKey::CreateDatabase => answer(body, |request| create(coordinator, request)).await,
        ApiKey::DropDatabase => {
            answer(body, |request: DropDatabaseRequest| async move {
                let name = &request.database_name;
                let contents = if request.cascade {
                    Contents::Drop
                } else {
                    Contents::MustBeEmpty
                };
                let missing = if_missing(request.ignore_if_not_exists);
                coordinator.drop_database(name, missing, contents).await?;
                Ok(DropDatabaseResponse {})
            })
            .await
        }
        _ => answer(body, |request| alter(coordinator, request)).await,
    }
}

async fn create(
    coordinator: &Coordinator,
    request: CreateDatabaseRequest,
) -> Result<CreateDatabaseResponse, Error> {
    let name = &request.database_name;
    let descriptor = match &request.database_json {
        Some(json) if !json.is_empty() => DatabaseDescriptor::from_json(json).map_err(|error| {
            let (database, reason) = (name.clone(), error.to_string());
            weir_catalog::Error::InvalidDatabase { database, reason }
        })?,
        _ => DatabaseDescriptor::default(),
    };
    coordinator
        .create_database(name, &descriptor, if_exists(request.ignore_if_exists))
        .await?;
    Ok(CreateDatabaseResponse {})
}

async fn alter(
    coordinator: &Coordinator,
    request: AlterDatabaseRequest,
) -> Result<AlterDatabaseResponse, Error> {
    let changes = property_changes(ApiKey::AlterDatabase, request.config_changes)?;
    let mut changes: Vec<DatabaseChange> = changes.into_iter().map(change_of).collect();
    changes.extend(
        request
            .comment
            .map(|comment| DatabaseChange::Comment(Some(comment))),
    );
    coordinator
        .alter_database(
            &request.database_name,
            &changes,
            if_missing(request.ignore_if_not_exists),
        )
        .await?;
    Ok(AlterDatabaseResponse {})
}

fn change_of(change: PropertyChange) -> DatabaseChange {
    match change {
        PropertyChange::Set { key, value } => DatabaseChange::Set { key, value },
        PropertyChange::Reset { key } => DatabaseChange::Reset { key },
    }
}
