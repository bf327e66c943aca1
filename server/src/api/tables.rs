//! Requests that change tables.

use std::sync::Arc;

use weir_catalog::ddl::{ColumnPosition, TableChange};
use weir_catalog::sentence::sentence;
use weir_protocol::api_key::ApiKey;
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::TablePath;
use weir_protocol::proto::{
    AlterTableRequest, AlterTableResponse, CreateTableRequest, CreateTableResponse,
    DropTableRequest, DropTableResponse, PbAddColumn, PbAlterConfig,
};
use weir_protocol::schema::{Column, LogicalType};

use super::{Call, Outcome, answer, if_exists, if_missing};
use crate::coordinator::Coordinator;
use crate::error::Error;

pub(super) async fn run(coordinator: &Arc<Coordinator>, call: Call) -> Outcome {
    let body = call.body;
    match call.api {
        ApiKey::CreateTable => answer(body, |request| create(coordinator, request)).await,
        ApiKey::DropTable => {
            answer(body, |request: DropTableRequest| async move {
                let path = TablePath::from(&request.table_path);
                coordinator
                    .drop_table(&path, if_missing(request.ignore_if_not_exists))
                    .await?;
                Ok(DropTableResponse {})
            })
            .await
        }
        _ => answer(body, |request| alter(coordinator, request)).await,
    }
}

async fn create(
    coordinator: &Arc<Coordinator>,
    request: CreateTableRequest,
) -> Result<CreateTableResponse, Error> {
    let path = TablePath::from(&request.table_path);
    let descriptor = TableDescriptor::from_json(&request.table_json).map_err(|error| {
        let (path, reason) = (path.clone(), sentence(&error));
        weir_catalog::Error::InvalidTable { path, reason }
    })?;
    coordinator
        .create_table(&path, &descriptor, if_exists(request.ignore_if_exists))
        .await?;
    Ok(CreateTableResponse {})
}

async fn alter(
    coordinator: &Arc<Coordinator>,
    request: AlterTableRequest,
) -> Result<AlterTableResponse, Error> {
    let path = TablePath::from(&request.table_path);
    let missing = if_missing(request.ignore_if_not_exists);
    let changes = changes_of(&path, request)?;
    coordinator.alter_table(&path, &changes, missing).await?;
    Ok(AlterTableResponse {})
}

/// The changes of a request, in one list; which may stand together is the catalog's to say.
fn changes_of(path: &TablePath, request: AlterTableRequest) -> Result<Vec<TableChange>, Error> {
    let mut changes = Vec::new();
    for change in property_changes(ApiKey::AlterTable, request.config_changes)? {
        changes.push(match change {
            PropertyChange::Set { key, value } => TableChange::Set { key, value },
            PropertyChange::Reset { key } => TableChange::Reset { key },
        });
    }
    for column in request.add_columns {
        changes.push(add_column(path, column)?);
    }
    let drops = request
        .drop_columns
        .into_iter()
        .map(|drop| drop.column_name);
    changes.extend(drops.map(|name| TableChange::DropColumn { name }));
    let renames = request
        .rename_columns
        .into_iter()
        .map(|rename| rename.old_column_name);
    changes.extend(renames.map(|name| TableChange::RenameColumn { name }));
    let modifies = request
        .modify_columns
        .into_iter()
        .map(|modify| modify.column_name);
    changes.extend(modifies.map(|name| TableChange::ModifyColumn { name }));
    let counts = request
        .modify_bucket_count
        .into_iter()
        .map(|modify| modify.new_bucket_count);
    changes.extend(counts.map(|count| TableChange::BucketCount { count }));
    Ok(changes)
}

fn add_column(path: &TablePath, column: PbAddColumn) -> Result<TableChange, Error> {
    let refuse = |reason: String| {
        let path = path.clone();
        Error::from(weir_catalog::Error::InvalidAlterTable { path, reason })
    };
    let json = serde_json::from_slice(&column.data_type_json).map_err(|error| {
        refuse(format!(
            "the type of column `{}`: {error}",
            column.column_name
        ))
    })?;
    let ty = LogicalType::from_json_value(&json).map_err(|error| refuse(sentence(&error)))?;
    let position = match column.column_position_type {
        0 => ColumnPosition::Last,
        1 => ColumnPosition::First,
        // The request has no field for the column before it.
        _ => ColumnPosition::After(String::new()),
    };
    let mut added = Column::new(column.column_name, ty);
    added.comment = column.comment;
    Ok(TableChange::AddColumn {
        column: added,
        position,
    })
}

/// A change of one property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PropertyChange {
    Set { key: String, value: String },
    Reset { key: String },
}

/// Changes of properties as the protocol numbers them; lists cannot be appended to.
pub(super) fn property_changes(
    api: ApiKey,
    changes: Vec<PbAlterConfig>,
) -> Result<Vec<PropertyChange>, Error> {
    let change = |change: PbAlterConfig| {
        let bad = |what: &str| {
            let reason = format!("property `{}`: {what}", change.config_key);
            Error::BadRequest { api, reason }
        };
        match (change.op_type, &change.config_value) {
            (0, Some(value)) => Ok(PropertyChange::Set {
                key: change.config_key,
                value: value.clone(),
            }),
            (0, None) => Err(bad("a value is missing")),
            (1, _) => Ok(PropertyChange::Reset {
                key: change.config_key,
            }),
            _ => Err(bad("it can only be set and deleted")),
        }
    };
    changes.into_iter().map(change).collect()
}
