//! Rows as texts, so that those of the log and those of the lake can be compared.
//!
//! A value's text depends on what it means, not on how a format stores it: times are counted in
//! nanoseconds whatever their unit, and names of list elements do not matter.

use arrow::array::{Array, AsArray, RecordBatch, StructArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use futures::TryStreamExt;
use weir_lake_format::{Filter, ManifestEntry, Table};

/// All rows of batches as sorted texts, with the names of their columns.
pub fn texts<'a>(batches: impl IntoIterator<Item = &'a RecordBatch>) -> Vec<String> {
    let mut texts: Vec<String> = batches.into_iter().flat_map(batch_texts).collect();
    texts.sort_unstable();
    texts
}

/// All rows of the newest snapshot of a lake table, as [`texts`]; none before the first snapshot.
pub async fn lake_texts(lake: &Table) -> Vec<String> {
    texts(&lake_batches(lake).await)
}

/// All rows of the newest snapshot of a lake table.
pub async fn lake_batches(lake: &Table) -> Vec<RecordBatch> {
    let snapshot = lake.latest_snapshot().await.expect("snapshots can be read");
    let Some(snapshot) = snapshot else {
        return Vec::new();
    };
    let mut batches = Vec::new();
    for split in lake
        .plan(&snapshot, &Filter::default())
        .await
        .expect("a plan")
    {
        let stream = lake
            .read_split(&split, None)
            .await
            .expect("a split can be read");
        batches.extend(
            stream
                .try_collect::<Vec<_>>()
                .await
                .expect("files can be read"),
        );
    }
    batches
}

/// The entries of all manifests of the newest snapshot.
pub async fn entries(lake: &Table) -> Vec<ManifestEntry> {
    let snapshot = lake.latest_snapshot().await.expect("snapshots can be read");
    let snapshot = snapshot.expect("there is a snapshot");
    lake.live_entries(&snapshot)
        .await
        .expect("manifests can be read")
}

fn batch_texts(batch: &RecordBatch) -> Vec<String> {
    let rows = StructArray::from(batch.clone());
    (0..batch.num_rows())
        .map(|row| struct_text(&rows, row))
        .collect()
}

fn struct_text(rows: &StructArray, row: usize) -> String {
    let cells = rows
        .columns()
        .iter()
        .zip(rows.fields())
        .map(|(array, field)| format!("{}={}", field.name(), cell(array.as_ref(), row)));
    format!("{{{}}}", cells.collect::<Vec<_>>().join(", "))
}

fn cell(array: &dyn Array, row: usize) -> String {
    if array.is_null(row) {
        return "null".to_owned();
    }
    match array.data_type() {
        DataType::List(_) => list_text(array.as_list::<i32>().value(row).as_ref()),
        DataType::Map(..) => {
            let entries = array.as_map().value(row);
            let pair = |at| {
                format!(
                    "{}: {}",
                    cell(entries.column(0), at),
                    cell(entries.column(1), at)
                )
            };
            format!(
                "({})",
                (0..entries.len()).map(pair).collect::<Vec<_>>().join(", ")
            )
        }
        DataType::Struct(_) => struct_text(array.as_struct(), row),
        DataType::Timestamp(unit, _) | DataType::Time32(unit) | DataType::Time64(unit) => {
            nanos(array, row, *unit).to_string()
        }
        _ => {
            let options = FormatOptions::default();
            let text = ArrayFormatter::try_new(array, &options).expect("a type with a text");
            text.value(row).to_string()
        }
    }
}

fn list_text(elements: &dyn Array) -> String {
    let texts: Vec<String> = (0..elements.len()).map(|at| cell(elements, at)).collect();
    format!("[{}]", texts.join(", "))
}

fn nanos(array: &dyn Array, row: usize, unit: TimeUnit) -> i128 {
    let one = array.slice(row, 1);
    let number = match one.data_type() {
        DataType::Time32(_) => cast(&cast(&one, &DataType::Int32).unwrap(), &DataType::Int64),
        _ => cast(&one, &DataType::Int64),
    };
    let number = number
        .expect("times are numbers")
        .as_primitive::<Int64Type>()
        .value(0);
    let factor: i128 = match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    };
    i128::from(number) * factor
}
