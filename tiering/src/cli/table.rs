//! `weir table`: the tables of a cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use weir_protocol::client::admin::{PartitionInfo, TableChanges, TableInfo};
use weir_protocol::client::offsets::{OffsetSpec, OffsetsRequest};
use weir_protocol::client::{Client, Error};
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::{BucketId, LogOffset, TablePath, TotalBuckets};
use weir_protocol::schema::Schema;

use super::columns::{parse, type_text};
use super::connect::{cluster, failure};
use super::create::{Created, create as create_table, with_primary_key};
use super::exit::{Failure, Outcome, sentence};
use super::output::{Align, Columns, count, print, print_json};
use super::{TableAlter, TableCommand, TableCreate, TableDrop, TableList, TableTarget};

/// How long a bucket in trouble is asked again, while the others' answers wait.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs a subcommand.
///
/// # Errors
/// One sentence that names the table.
pub async fn run(command: TableCommand) -> Outcome {
    match command {
        TableCommand::List(arguments) => list(arguments).await,
        TableCommand::Show(arguments) => show(arguments).await,
        TableCommand::Create(arguments) => create(arguments).await,
        TableCommand::Alter(arguments) => alter(arguments).await,
        TableCommand::Drop(arguments) => drop_table(arguments).await,
        TableCommand::Partitions(arguments) => partitions(arguments).await,
    }
}

async fn list(arguments: TableList) -> Outcome {
    let client = cluster(&arguments.cluster).await?;
    let databases = match arguments.database {
        Some(database) => vec![database],
        None => client
            .list_databases()
            .await
            .map_err(|error| failure(&error))?,
    };
    let mut tables = Vec::new();
    for database in databases {
        for table in client
            .list_tables(&database)
            .await
            .map_err(|error| failure(&error))?
        {
            let path = TablePath::new(&database, table);
            match client.table_info(&path).await {
                Ok(info) => tables.push(info),
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(failure(&error)),
            }
        }
    }
    if arguments.json {
        return print_json(&tables.iter().map(summary).collect::<Vec<_>>());
    }
    let mut columns = Columns::new(&[
        ("TABLE", Align::Left),
        ("ID", Align::Right),
        ("COLUMNS", Align::Right),
        ("PARTITIONED BY", Align::Left),
        ("BUCKETS", Align::Right),
        ("LAKE", Align::Left),
    ]);
    for info in &tables {
        let descriptor = &info.descriptor;
        columns.row([
            info.path.to_string(),
            info.table_id.to_string(),
            descriptor.schema.columns.len().to_string(),
            descriptor.partition_keys.join(", "),
            descriptor
                .bucket_count
                .map(|count| count.to_string())
                .unwrap_or_default(),
            if in_lake(descriptor) { "yes" } else { "no" }.to_owned(),
        ]);
    }
    columns.print()
}

fn is_missing(error: &Error) -> bool {
    error.code() == Some(weir_protocol::error_code::ErrorCode::TableNotExist)
}

/// Whether the table is tiered.
pub(super) fn in_lake(descriptor: &TableDescriptor) -> bool {
    descriptor
        .properties
        .get("table.datalake.enabled")
        .is_some_and(|value| value == "true")
}

fn summary(info: &TableInfo) -> serde_json::Value {
    json!({
        "table": info.path.to_string(),
        "table_id": info.table_id.0,
        "schema_id": info.schema_id.0,
        "columns": info.descriptor.schema.columns.iter().map(|column| json!({
            "name": column.name, "type": type_text(&column.ty), "comment": column.comment,
        })).collect::<Vec<_>>(),
        "primary_key": info.descriptor.schema.primary_key,
        "partitioned_by": info.descriptor.partition_keys,
        "bucket_key": info.descriptor.bucket_keys,
        "bucket_count": info.descriptor.bucket_count,
        "bucket_layout_epoch": info.bucket_layout_epoch,
        "lake": in_lake(&info.descriptor),
        "properties": shown(&info.descriptor.properties),
        "custom_properties": shown(&info.descriptor.custom_properties),
        "created_ms": info.created_ms,
    })
}

/// Properties without secrets.
fn shown(properties: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let secret = |key: &str| {
        let key = key.to_ascii_lowercase();
        ["secret", "password", "token", "access-key", "accesskey"]
            .iter()
            .any(|word| key.contains(word))
    };
    let value = |key: &String, value: &String| {
        if secret(key) {
            "***".to_owned()
        } else {
            value.clone()
        }
    };
    properties
        .iter()
        .map(|(key, text)| (key.clone(), value(key, text)))
        .collect()
}

/// One partition, or the table itself, with the offsets of its buckets.
struct Part {
    partition: Option<PartitionInfo>,
    buckets: TotalBuckets,
    /// Log start and high watermark by bucket.
    offsets: Vec<(BucketId, i64, i64)>,
    /// Buckets without an answer, with the reason.
    offline: Vec<(BucketId, Error)>,
}

impl Part {
    fn name_of(&self, bucket: BucketId) -> String {
        match &self.partition {
            Some(partition) => format!("partition {} bucket {bucket}", partition.name),
            None => format!("bucket {bucket}"),
        }
    }
}

async fn parts(client: &Client, info: &TableInfo) -> Result<Vec<Part>, Error> {
    let partitions: Vec<Option<PartitionInfo>> = if info.descriptor.is_partitioned() {
        client
            .list_partitions(&info.path)
            .await?
            .into_iter()
            .map(Some)
            .collect()
    } else {
        vec![None]
    };
    let mut parts = Vec::with_capacity(partitions.len());
    for partition in partitions {
        let buckets = match &partition {
            Some(partition) => partition.total_buckets(info)?,
            None => info.total_buckets()?,
        };
        let mut request = OffsetsRequest {
            path: info.path.clone(),
            table: info.table_id,
            partition: partition.as_ref().map(|partition| partition.id),
            buckets: (0..buckets.0).map(BucketId).collect(),
            spec: OffsetSpec::Earliest,
            routing_count: buckets,
        };
        let mut starts = client.list_offsets_within(&request, PATIENCE).await?;
        request.spec = OffsetSpec::Latest;
        let (mut offsets, mut offline) = (Vec::new(), Vec::new());
        for (bucket, end) in client.list_offsets_within(&request, PATIENCE).await? {
            let start = starts.remove(&bucket).unwrap_or(Ok(LogOffset(0)));
            match start.and_then(|start| Ok((start, end?))) {
                Ok((start, end)) => offsets.push((bucket, start.0, end.0)),
                Err(error) => offline.push((bucket, error)),
            }
        }
        parts.push(Part {
            partition,
            buckets,
            offsets,
            offline,
        });
    }
    Ok(parts)
}

/// Rows that the log ever took, those that retention removed among them: the sum of all buckets' high
/// watermarks, of every partition's own buckets.
///
/// # Errors
/// If the cluster can't be asked, or a bucket has no answer.
pub async fn log_rows(client: &Client, path: &TablePath) -> Result<i64, Error> {
    let info = client.table_info(path).await?;
    let parts = parts(client, &info).await?;
    let mut offline = parts.iter().flat_map(|part| &part.offline);
    if let Some((_, error)) = offline.next() {
        return Err(error.clone());
    }
    let ends = parts.iter().flat_map(|part| &part.offsets);
    Ok(ends.map(|(_, _, end)| end).sum())
}

async fn show(arguments: TableTarget) -> Outcome {
    let client = cluster(&arguments.cluster).await?;
    let info = client
        .table_info(&arguments.table)
        .await
        .map_err(|error| failure(&error))?;
    let parts = parts(&client, &info)
        .await
        .map_err(|error| failure(&error))?;
    let ends: i64 = parts
        .iter()
        .flat_map(|part| &part.offsets)
        .map(|(_, _, end)| end)
        .sum();
    let starts: i64 = parts
        .iter()
        .flat_map(|part| &part.offsets)
        .map(|(_, start, _)| start)
        .sum();
    if arguments.json {
        let mut document = summary(&info);
        if let Some(fields) = document.as_object_mut() {
            fields.insert("log_start_sum".to_owned(), starts.into());
            fields.insert("log_end_sum".to_owned(), ends.into());
            fields.insert(
                "partitions".to_owned(),
                parts.iter().map(part_json).collect(),
            );
        }
        return print_json(&document);
    }
    let descriptor = &info.descriptor;
    let mut text = format!(
        "table       {} (id {}, schema {})\n",
        info.path, info.table_id, info.schema_id
    );
    for (name, keys) in [
        ("primary key", &descriptor.schema.primary_key),
        ("partitions", &descriptor.partition_keys),
        ("bucket key", &descriptor.bucket_keys),
    ] {
        if !keys.is_empty() {
            text += &format!("{name:<11} {}\n", keys.join(", "));
        }
    }
    text += &format!(
        "buckets     {}{} (layout epoch {})\n",
        descriptor.bucket_count.unwrap_or_default(),
        if descriptor.is_partitioned() {
            " in each new partition"
        } else {
            ""
        },
        info.bucket_layout_epoch
    );
    let buckets = parts.iter().map(|part| part.offsets.len()).sum();
    text += &log_text(buckets, starts, ends);
    for part in &parts {
        for (bucket, error) in &part.offline {
            let bucket = part.name_of(*bucket);
            text += &format!(
                "offline     {bucket}, left out above: {}\n",
                sentence(error)
            );
        }
    }
    for (key, value) in shown(&descriptor.properties)
        .into_iter()
        .chain(shown(&descriptor.custom_properties))
    {
        text += &format!("option      {key} = {value}\n");
    }
    print(&text)?;
    let mut columns = Columns::new(&[
        ("COLUMN", Align::Left),
        ("TYPE", Align::Left),
        ("COMMENT", Align::Left),
    ]);
    for column in &descriptor.schema.columns {
        let comment = column.comment.clone().unwrap_or_default();
        columns.row([column.name.clone(), type_text(&column.ty), comment]);
    }
    columns.print()
}

/// What the log holds; `starts` and `ends` are sums over all buckets, and no offsets of any of them.
fn log_text(buckets: usize, starts: i64, ends: i64) -> String {
    let rows = count(ends - starts);
    let (starts, ends) = (count(starts), count(ends));
    match buckets {
        0 => "rows in log 0 (no partition yet)\n".to_owned(),
        1 => {
            format!("rows in log {rows} (offsets {starts} to {ends}, gaps of a repair included)\n")
        }
        _ => format!(
            "rows in log {rows} (sums over {buckets} buckets: ends {ends}, starts {starts}; \
             gaps of a repair included; --json has those of each)\n"
        ),
    }
}

fn part_json(part: &Part) -> serde_json::Value {
    json!({
        "partition": part.partition.as_ref().map(|partition| partition.name.clone()),
        "partition_id": part.partition.as_ref().map(|partition| partition.id.0),
        "bucket_count": part.buckets.0,
        "buckets": part.offsets.iter().map(|(bucket, start, end)| json!({
            "bucket": bucket.0, "log_start": start, "log_end": end,
        })).collect::<Vec<_>>(),
        "offline": part.offline.iter().map(|(bucket, error)| json!({
            "bucket": bucket.0, "error": sentence(error),
        })).collect::<Vec<_>>(),
    })
}

async fn partitions(arguments: TableTarget) -> Outcome {
    let client = cluster(&arguments.cluster).await?;
    let info = client
        .table_info(&arguments.table)
        .await
        .map_err(|error| failure(&error))?;
    if !info.descriptor.is_partitioned() {
        return Err(Failure::failed(format!("{} has no partitions", info.path)));
    }
    let parts = parts(&client, &info)
        .await
        .map_err(|error| failure(&error))?;
    if arguments.json {
        return print_json(&parts.iter().map(part_json).collect::<Vec<_>>());
    }
    let mut columns = Columns::new(&[
        ("PARTITION", Align::Left),
        ("ID", Align::Right),
        ("BUCKETS", Align::Right),
        ("ROWS IN LOG", Align::Right),
    ]);
    for part in &parts {
        let rows: i64 = part.offsets.iter().map(|(_, start, end)| end - start).sum();
        let partition = part.partition.as_ref();
        columns.row([
            partition
                .map(|partition| partition.name.clone())
                .unwrap_or_default(),
            partition
                .map(|partition| partition.id.to_string())
                .unwrap_or_default(),
            part.buckets.to_string(),
            if part.offline.is_empty() {
                count(rows)
            } else {
                "?".to_owned()
            },
        ]);
    }
    columns.print()
}

async fn create(arguments: TableCreate) -> Outcome {
    let columns = arguments
        .columns
        .iter()
        .map(|text| parse(text))
        .collect::<Result<Vec<_>, _>>();
    let schema =
        Schema::new(columns.map_err(Failure::usage)?, Vec::new()).map_err(Failure::usage)?;
    let schema = with_primary_key(schema, &arguments.primary_key)?;
    let mut descriptor = TableDescriptor::new(schema);
    descriptor.partition_keys = arguments.partition_by;
    descriptor.bucket_keys = arguments.bucket_key;
    descriptor.bucket_count = arguments.buckets;
    for (key, value) in arguments.options {
        let properties = if key.starts_with("table.") {
            &mut descriptor.properties
        } else {
            &mut descriptor.custom_properties
        };
        properties.insert(key, value);
    }
    let client = cluster(&arguments.cluster).await?;
    match create_table(&client, &arguments.table, &descriptor).await? {
        Created::Before if !arguments.if_not_exists => Err(Failure::failed(format!(
            "table {} exists already; drop it first, or give --if-not-exists",
            arguments.table
        ))),
        Created::Now { .. } | Created::Before => Ok(()),
    }
}

async fn alter(arguments: TableAlter) -> Outcome {
    let columns = arguments
        .columns
        .iter()
        .map(|text| parse(text))
        .collect::<Result<Vec<_>, _>>();
    let mut changes = TableChanges {
        reset: arguments.resets,
        add_columns: columns.map_err(Failure::usage)?,
        ..TableChanges::default()
    };
    for (key, value) in arguments.options {
        if key == "bucket.num" {
            let buckets = value
                .parse()
                .map_err(|_| Failure::usage(format!("bucket.num={value} is no number")))?;
            changes.bucket_count = Some(TotalBuckets(buckets));
        } else {
            changes.set.push((key, value));
        }
    }
    let nothing = changes.set.is_empty()
        && changes.reset.is_empty()
        && changes.add_columns.is_empty()
        && changes.bucket_count.is_none();
    if nothing {
        return Err(Failure::usage(
            "nothing to change: give --set, --reset or --add-column",
        ));
    }
    let client = cluster(&arguments.cluster).await?;
    let path = &arguments.table;
    let before = client
        .table_info(path)
        .await
        .map_err(|error| failure(&error))?;
    let next = changes.bucket_count.map(|count| count.0);
    if next.is_some_and(|next| shuts_clients_out(&before, next)) && !arguments.yes {
        return Err(Failure::usage(format!(
            "{path}: nothing was changed. After its first change of bucket.num this table serves only \
             clients that send the bucket count with each request: Weir's own, and Java clients from \
             1.0.0 on. fluss-rs and pyfluss 1.0.0 and Java clients 0.9.1 can then neither write nor \
             read it, and there is no way back. Give --yes to go on"
        )));
    }
    client
        .alter_table(path, &changes, false)
        .await
        .map_err(|error| match &error {
            Error::UnsupportedVersion { .. } if changes.bucket_count.is_some() => Failure::failed(
                format!("{path}: this cluster can't change bucket.num of a table that exists"),
            ),
            error => failure(error),
        })?;
    let after = client
        .table_info(path)
        .await
        .map_err(|error| failure(&error))?;
    if after.descriptor == before.descriptor {
        print(&format!("{path}: nothing to change\n"))
    } else {
        Ok(())
    }
}

/// Whether this change of the bucket count is the first, after which servers ask every request for the
/// count that its bucket was computed with.
fn shuts_clients_out(before: &TableInfo, next: i32) -> bool {
    before.bucket_layout_epoch == 0 && before.descriptor.bucket_count != Some(next)
}

async fn drop_table(arguments: TableDrop) -> Outcome {
    let client = cluster(&arguments.cluster).await?;
    client
        .drop_table(&arguments.table, arguments.if_exists)
        .await
        .map_err(|error| failure(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_buckets_are_not_shown_as_offsets() {
        assert_eq!(
            log_text(1, 5, 9),
            "rows in log 4 (offsets 5 to 9, gaps of a repair included)\n"
        );
        let text = log_text(4, 1_000, 3_500);
        assert!(
            text.starts_with("rows in log 2,500 (sums over 4 buckets: "),
            "{text}"
        );
        assert!(text.contains("ends 3,500, starts 1,000"), "{text}");
    }
}
