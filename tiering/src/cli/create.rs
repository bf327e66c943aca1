//! Making a table, and its database where that is missing; nothing is left of a failure.

use weir_protocol::client::{Client, Error};
use weir_protocol::descriptor::{DatabaseDescriptor, TableDescriptor};
use weir_protocol::error_code::ErrorCode;
use weir_protocol::ids::TablePath;
use weir_protocol::schema::Schema;

use super::connect::failure;
use super::exit::{Failure, Outcome};

/// Who made a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// This command, and its database too if `database`.
    Now {
        /// Whether the database was made.
        database: bool,
    },
    /// It was there.
    Before,
}

/// Creates a table, and its database where that is missing. A database that was made for a table
/// that the cluster refuses is dropped again.
///
/// # Errors
/// What the cluster says; 75 if it can't be known whether the table was made.
pub async fn create(
    client: &Client,
    path: &TablePath,
    descriptor: &TableDescriptor,
) -> Outcome<Created> {
    let made = client
        .create_database(&path.database, &DatabaseDescriptor::default(), false)
        .await;
    let database = match made {
        Ok(()) => true,
        Err(error) if error.code() == Some(ErrorCode::DatabaseAlreadyExist) => false,
        Err(error) => return Err(failure(&error)),
    };
    match client.create_table(path, descriptor, false).await {
        Ok(()) => Ok(Created::Now { database }),
        Err(error) if error.code() == Some(ErrorCode::TableAlreadyExist) => Ok(Created::Before),
        Err(error) => {
            if database && !error.outcome_is_unknown() {
                drop_database(client, path).await;
            }
            Err(failure(&error))
        }
    }
}

/// The schema with this primary key, whose columns are made NOT NULL; as it is for none.
///
/// # Errors
/// A usage error for a column that there is not, or that is named twice.
pub fn with_primary_key(schema: Schema, keys: &[String]) -> Outcome<Schema> {
    if keys.is_empty() {
        return Ok(schema);
    }
    let mut columns = schema.columns;
    for column in &mut columns {
        if keys.contains(&column.name) {
            column.ty.nullable = false;
        }
    }
    Schema::new(columns, keys.to_vec()).map_err(Failure::usage)
}

/// Drops a table that this command made, and the database if it made that too.
///
/// # Errors
/// If the table may be there still.
pub async fn undo(client: &Client, path: &TablePath, database: bool) -> Result<(), Error> {
    client.drop_table(path, true).await?;
    if database {
        drop_database(client, path).await;
    }
    Ok(())
}

/// Drops an empty database, as far as possible: others may have put a table into it.
async fn drop_database(client: &Client, path: &TablePath) {
    if let Err(error) = client.drop_database(&path.database, true, false).await {
        tracing::debug!(database = path.database, %error, "the database stays");
    }
}
