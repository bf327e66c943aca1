//! Databases, tables and partitions: the calls of an administrator.
//!
//! Calls that only read are repeated on retriable errors within `retry_timeout`; calls that change
//! something are sent once, and [`Error::outcome_is_unknown`] tells when to look before repeating.

use super::metadata::wire_path;
use super::{Client, Error};
use crate::descriptor::{DatabaseDescriptor, TableDescriptor};
use crate::ids::{PartitionId, SchemaId, TableId, TablePath, TotalBuckets};
use crate::message::Request;
use crate::partition::PartitionSpec;
use crate::proto;
use crate::schema::{Column, Schema};

/// A database as the server describes it.
#[derive(Clone, Debug)]
pub struct DatabaseInfo {
    /// Comment and properties.
    pub descriptor: DatabaseDescriptor,
    /// Epoch milliseconds.
    pub created_ms: i64,
    /// Epoch milliseconds.
    pub modified_ms: i64,
}

/// A table as the server describes it, with all properties filled in.
#[derive(Clone, Debug)]
pub struct TableInfo {
    /// Its path.
    pub path: TablePath,
    /// Its id.
    pub table_id: TableId,
    /// Its latest schema.
    pub schema_id: SchemaId,
    /// Its descriptor with that schema.
    pub descriptor: TableDescriptor,
    /// Epoch milliseconds.
    pub created_ms: i64,
    /// Epoch milliseconds.
    pub modified_ms: i64,
    /// Raised by each change of the table's bucket count; 0 if never changed or not told.
    pub bucket_layout_epoch: i64,
    /// Where the server keeps the table's remote files, if it tells.
    pub remote_data_dir: Option<String>,
}

/// A partition as the server lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionInfo {
    /// Its id.
    pub id: PartitionId,
    /// Its name.
    pub name: String,
    /// Keys and values, in the table's key order.
    pub values: Vec<(String, String)>,
    /// The count it was created with; `None` from servers that do not tell.
    pub bucket_count: Option<TotalBuckets>,
}

impl PartitionInfo {
    /// The partition's bucket count: its own, or the table's while that was never altered.
    ///
    /// # Errors
    /// [`Error::MissingBucketCount`]: a guess would misplace rows.
    pub fn total_buckets(&self, table: &TableInfo) -> Result<TotalBuckets, Error> {
        let epoch = table.bucket_layout_epoch;
        let template = table.descriptor.bucket_count.map(TotalBuckets);
        let known = TotalBuckets::of_partition(self.bucket_count, template, epoch);
        known.ok_or(Error::MissingBucketCount {
            table: table.table_id,
            partition: Some(self.id),
            epoch,
        })
    }
}

impl TableInfo {
    /// The bucket count of a table without partitions; of a partitioned one, of new partitions.
    ///
    /// # Errors
    /// [`Error::MissingBucketCount`] if the descriptor lacks it.
    pub fn total_buckets(&self) -> Result<TotalBuckets, Error> {
        let count = self
            .descriptor
            .bucket_count
            .filter(|count| *count > 0)
            .map(TotalBuckets);
        count.ok_or(Error::MissingBucketCount {
            table: self.table_id,
            partition: None,
            epoch: self.bucket_layout_epoch,
        })
    }
}

/// Changes of one table; either properties, or columns, or the bucket count (56 for a mixture).
#[derive(Clone, Debug, Default)]
pub struct TableChanges {
    /// Properties to set.
    pub set: Vec<(String, String)>,
    /// Properties to reset to their defaults.
    pub reset: Vec<String>,
    /// Nullable columns to append; ids are the server's choice.
    pub add_columns: Vec<Column>,
    /// The bucket count of future partitions.
    pub bucket_count: Option<TotalBuckets>,
}

impl Client {
    /// Creates a database.
    pub async fn create_database(
        &self,
        name: &str,
        descriptor: &DatabaseDescriptor,
        ignore_if_exists: bool,
    ) -> Result<(), Error> {
        let request = proto::CreateDatabaseRequest {
            database_name: name.to_owned(),
            ignore_if_exists,
            database_json: Some(descriptor.to_json().into()),
        };
        self.coordinator(request).await.map(drop)
    }

    /// Drops a database.
    pub async fn drop_database(
        &self,
        name: &str,
        ignore_if_missing: bool,
        cascade: bool,
    ) -> Result<(), Error> {
        let request = proto::DropDatabaseRequest {
            database_name: name.to_owned(),
            ignore_if_not_exists: ignore_if_missing,
            cascade,
        };
        self.coordinator(request).await.map(drop)
    }

    /// Names of all databases.
    pub async fn list_databases(&self) -> Result<Vec<String>, Error> {
        let answer = self
            .read_coordinator(proto::ListDatabasesRequest::default())
            .await?;
        Ok(answer.database_name)
    }

    /// A database; 4 if there is none.
    pub async fn database_info(&self, name: &str) -> Result<DatabaseInfo, Error> {
        let request = proto::GetDatabaseInfoRequest {
            database_name: name.to_owned(),
        };
        let answer = self.read_coordinator(request).await?;
        let descriptor = DatabaseDescriptor::from_json(&answer.database_json)
            .map_err(|source| Error::codec(format!("descriptor of database {name}"), source))?;
        let (created_ms, modified_ms) = (answer.created_time, answer.modified_time);
        Ok(DatabaseInfo {
            descriptor,
            created_ms,
            modified_ms,
        })
    }

    /// Creates a table; ask [`Client::table_info`] for its ids.
    pub async fn create_table(
        &self,
        path: &TablePath,
        descriptor: &TableDescriptor,
        ignore_if_exists: bool,
    ) -> Result<(), Error> {
        let request = proto::CreateTableRequest {
            table_path: wire_path(path),
            table_json: descriptor.to_json().into(),
            ignore_if_exists,
        };
        self.coordinator(request).await.map(drop)
    }

    /// Drops a table and forgets its metadata.
    pub async fn drop_table(&self, path: &TablePath, ignore_if_missing: bool) -> Result<(), Error> {
        let request = proto::DropTableRequest {
            table_path: wire_path(path),
            ignore_if_not_exists: ignore_if_missing,
        };
        let result = self.coordinator(request).await.map(drop);
        self.invalidate(path);
        result
    }

    /// A table with its latest schema; 7 if there is none.
    pub async fn table_info(&self, path: &TablePath) -> Result<TableInfo, Error> {
        let request = proto::GetTableInfoRequest {
            table_path: wire_path(path),
        };
        let answer = self.read_coordinator(request).await?;
        let descriptor = TableDescriptor::from_json(&answer.table_json)
            .map_err(|source| Error::codec(format!("descriptor of {path}"), source))?;
        Ok(TableInfo {
            path: path.clone(),
            table_id: TableId(answer.table_id),
            schema_id: SchemaId(answer.schema_id),
            descriptor,
            created_ms: answer.created_time,
            modified_ms: answer.modified_time,
            bucket_layout_epoch: answer.bucket_count_epoch.unwrap_or(0),
            remote_data_dir: answer.remote_data_dir,
        })
    }

    /// Whether there is such a table.
    pub async fn table_exists(&self, path: &TablePath) -> Result<bool, Error> {
        let request = proto::TableExistsRequest {
            table_path: wire_path(path),
        };
        Ok(self.read_coordinator(request).await?.exists)
    }

    /// Names of all tables of a database.
    pub async fn list_tables(&self, database: &str) -> Result<Vec<String>, Error> {
        let request = proto::ListTablesRequest {
            database_name: database.to_owned(),
        };
        Ok(self.read_coordinator(request).await?.table_name)
    }

    /// Changes a table.
    ///
    /// # Errors
    /// [`Error::UnsupportedVersion`] for a bucket count, from servers before 1.0.
    pub async fn alter_table(
        &self,
        path: &TablePath,
        changes: &TableChanges,
        ignore_if_missing: bool,
    ) -> Result<(), Error> {
        let modify_bucket_count = changes
            .bucket_count
            .map(|count| proto::PbModifyBucketCount {
                new_bucket_count: count.0,
            });
        let version = i16::from(modify_bucket_count.is_some());
        let request = proto::AlterTableRequest {
            table_path: wire_path(path),
            ignore_if_not_exists: ignore_if_missing,
            config_changes: wire_config_changes(changes),
            add_columns: changes.add_columns.iter().map(wire_add_column).collect(),
            modify_bucket_count,
            ..Default::default()
        };
        let result = self.coordinator_at_least(request, version).await.map(drop);
        self.invalidate(path);
        result
    }

    /// A schema of a table, the latest without `schema_id`.
    pub async fn schema(
        &self,
        path: &TablePath,
        schema_id: Option<SchemaId>,
    ) -> Result<(SchemaId, Schema), Error> {
        let request = proto::GetTableSchemaRequest {
            table_path: wire_path(path),
            schema_id: schema_id.map(|id| id.0),
        };
        let answer = self.read_coordinator(request).await?;
        let id = SchemaId(answer.schema_id);
        let schema = Schema::from_json(&answer.schema_json)
            .map_err(|source| Error::codec(format!("schema {id} of {path}"), source))?;
        Ok((id, schema))
    }

    /// All partitions of a table; 37 if it has no partition keys.
    pub async fn list_partitions(&self, path: &TablePath) -> Result<Vec<PartitionInfo>, Error> {
        let request = proto::ListPartitionInfosRequest {
            table_path: wire_path(path),
            partial_partition_spec: None,
            include_system_partitions: None,
        };
        let answer = self.read_coordinator(request).await?;
        Ok(answer
            .partitions_info
            .into_iter()
            .map(read_partition_info)
            .collect())
    }

    /// Creates a partition.
    pub async fn create_partition(
        &self,
        path: &TablePath,
        partition: &PartitionSpec,
        ignore_if_exists: bool,
    ) -> Result<(), Error> {
        let request = proto::CreatePartitionRequest {
            table_path: wire_path(path),
            partition_spec: wire_spec(partition),
            // The name on the wire says "not", the meaning is "if it exists".
            ignore_if_not_exists: ignore_if_exists,
        };
        self.coordinator(request).await.map(drop)
    }

    /// Drops a partition.
    pub async fn drop_partition(
        &self,
        path: &TablePath,
        partition: &PartitionSpec,
        ignore_if_missing: bool,
    ) -> Result<(), Error> {
        let request = proto::DropPartitionRequest {
            table_path: wire_path(path),
            partition_spec: wire_spec(partition),
            ignore_if_not_exists: ignore_if_missing,
        };
        let result = self.coordinator(request).await.map(drop);
        self.invalidate(path);
        result
    }

    /// A call that only reads, repeated on retriable errors within `retry_timeout`.
    pub(crate) async fn read_coordinator<R: Request>(
        &self,
        request: R,
    ) -> Result<R::Response, Error> {
        self.retrying(|| self.coordinator(request.clone())).await
    }
}

fn wire_config_changes(changes: &TableChanges) -> Vec<proto::PbAlterConfig> {
    const SET: i32 = 0;
    const DELETE: i32 = 1;
    let set = changes.set.iter().map(|(key, value)| proto::PbAlterConfig {
        config_key: key.clone(),
        config_value: Some(value.clone()),
        op_type: SET,
    });
    let reset = changes.reset.iter().map(|key| proto::PbAlterConfig {
        config_key: key.clone(),
        config_value: None,
        op_type: DELETE,
    });
    set.chain(reset).collect()
}

fn wire_add_column(column: &Column) -> proto::PbAddColumn {
    const LAST: i32 = 0;
    let data_type = column.ty.to_json_value().to_string();
    let parameter = |(key, value): (&String, &String)| wire_key_value(key, value);
    proto::PbAddColumn {
        column_name: column.name.clone(),
        data_type_json: data_type.into(),
        comment: column.comment.clone(),
        column_position_type: LAST,
        agg_function_type: column.agg_function.as_ref().map(|f| f.kind.clone()),
        agg_function_params: column
            .agg_function
            .iter()
            .flat_map(|f| f.parameters.iter().map(parameter))
            .collect(),
    }
}

fn wire_key_value(key: &str, value: &str) -> proto::PbKeyValue {
    proto::PbKeyValue {
        key: key.to_owned(),
        value: value.to_owned(),
    }
}

fn wire_spec(partition: &PartitionSpec) -> proto::PbPartitionSpec {
    let pairs = partition
        .0
        .iter()
        .map(|(key, value)| wire_key_value(key, value));
    proto::PbPartitionSpec {
        partition_key_values: pairs.collect(),
    }
}

fn read_partition_info(info: proto::PbPartitionInfo) -> PartitionInfo {
    let pairs = info.partition_spec.partition_key_values.into_iter();
    let spec = PartitionSpec(pairs.map(|pair| (pair.key, pair.value)).collect());
    PartitionInfo {
        id: PartitionId(info.partition_id),
        name: spec.name(),
        values: spec.0,
        bucket_count: info.bucket_count.map(TotalBuckets),
    }
}
