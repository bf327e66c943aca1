//! Splits of tables with a primary key to merged rows.
//!
//! The files of a bucket are cut into sections that share no key; one section is open at a time,
//! with a batch of each of its runs (paimon: `MergeFileSplitRead`, `MergeTreeReaders`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};

use super::adapt::is_same;
use super::file::{BATCH_BYTES, DataFileReader};
use super::sections::{Ranged, Section, sections};
use super::split::{BatchStream, Target, file_fields, read_file};
use super::{Split, schemas_of};
use crate::binary_row::BinaryRow;
use crate::datum::Datum;
use crate::deletion_vector::DeletionFile;
use crate::error::{Error, Result};
use crate::merge::{Input, Merge, Rule, Step};
use crate::paths::POSTPONE_BUCKET;
use crate::schema::TableSchema;
use crate::table::Table;
use crate::types::DataField;

/// Runs whose next batches are read at a time.
const RUN_READS: usize = 8;

/// A file of a run, ready to be opened.
struct RunFile {
    reader: DataFileReader,
    /// Per column that is read the field of the file's schema, if it has one.
    from: Vec<Option<DataField>>,
    deleted: Option<DeletionFile>,
    age: usize,
}

/// The batches of a run.
type RunStream = BoxStream<'static, Result<(Input, Arc<str>)>>;

impl Table {
    /// The merged rows of a split in a schema of a table with a primary key.
    pub(super) async fn read_merged(
        &self,
        split: &Split,
        schema: &TableSchema,
        projection: Option<&[&str]>,
    ) -> Result<BatchStream> {
        let name = self.root().to_string();
        let rule = Arc::new(Rule::new(schema, &name, projection)?);
        if split.bucket == POSTPONE_BUCKET {
            return Err(Error::Unsupported {
                what: format!("reading new rows of {name}, bucket -2"),
                reason: "they are in no bucket before they are compacted".to_owned(),
            });
        }
        let target = Arc::new(Target::of_fields(rule.fields().to_vec()));
        let ids = split.files.iter().map(|file| file.schema_id);
        let schemas = schemas_of(self, ids).await?;
        let readers = self.file_readers(split, schema)?.into_iter();
        let readers = readers.filter(|reader| reader.file.level > 0 || !rule.skips_level_0());
        let mut readers: Vec<DataFileReader> = readers.collect();
        // What was committed later is newer, and what was compacted is older; it decides only
        // between equal sequence numbers.
        readers.sort_by_key(|reader| Reverse(reader.file.level));
        let mut files = Vec::with_capacity(readers.len());
        for (age, reader) in readers.into_iter().enumerate() {
            let key = key_types(&rule, &schemas, &reader)?;
            files.push(Ranged {
                min: key_of(&reader, &reader.file.min_key, &key)?,
                max: key_of(&reader, &reader.file.max_key, &key)?,
                item: RunFile {
                    from: file_fields(&target, &schemas, &reader)?,
                    deleted: split.deletions.get(&reader.file.file_name).cloned(),
                    reader,
                    age,
                },
            });
        }
        let reading = Reading {
            table: self.clone(),
            rule,
            target,
            sections: sections(files).into(),
            open: None,
            last_key: None,
        };
        Ok(stream::try_unfold(reading, Reading::next).boxed())
    }
}

/// The key columns as the schema of a file has them.
fn key_types(
    rule: &Rule,
    schemas: &BTreeMap<i64, Arc<TableSchema>>,
    reader: &DataFileReader,
) -> Result<Vec<DataField>> {
    let path = &reader.path;
    let schema = schemas.get(&reader.file.schema_id);
    let mut fields = Vec::new();
    for field in rule.key_fields() {
        let old = schema.and_then(|schema| schema.field_by_id(field.id));
        let old = old.ok_or_else(|| {
            let reason = format!("its schema has no key column `{}`", field.name);
            Error::corrupt(path.to_string(), reason)
        })?;
        if !is_same(&old.data_type.kind, &field.data_type.kind) {
            return Err(Error::Unsupported {
                what: format!("reading {}, key column `{}`", rule.table(), field.name),
                reason: format!(
                    "{path} is sorted by it as {}, and it is {} now",
                    old.data_type.kind, field.data_type.kind
                ),
            });
        }
        fields.push(old.clone());
    }
    Ok(fields)
}

fn key_of(reader: &DataFileReader, bytes: &[u8], fields: &[DataField]) -> Result<Vec<Datum>> {
    let types = fields.iter().map(|field| &field.data_type);
    let key = BinaryRow::from_serialized(bytes).and_then(|row| row.decode(types));
    key.map_err(|e| e.at(reader.path.as_ref()))
}

/// A split that is being read.
struct Reading {
    table: Table,
    rule: Arc<Rule>,
    target: Arc<Target>,
    sections: VecDeque<Section<RunFile>>,
    open: Option<Open>,
    last_key: Option<Vec<u8>>,
}

/// The section that is being merged.
struct Open {
    merge: Merge,
    runs: Vec<Option<RunStream>>,
    /// What came of the runs that were asked for.
    fed: Vec<(usize, Input, Arc<str>)>,
}

impl Reading {
    async fn next(mut self) -> Result<Option<(RecordBatch, Self)>> {
        loop {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => match self.sections.pop_front() {
                    Some(section) => self.open(section)?,
                    None => return Ok(None),
                },
            };
            let fed = std::mem::take(&mut open.fed);
            let at = self.rule.table().to_owned();
            let Open {
                mut merge, runs, ..
            } = open;
            let work = move || {
                for (run, input, path) in fed {
                    merge.feed(run, input).map_err(|e| e.at(&path))?;
                }
                let step = merge.step().map_err(|e| e.at(&at))?;
                Ok((merge, step))
            };
            let done = tokio::task::spawn_blocking(work).await;
            let failed = || Error::malformed("data file", "its merge failed");
            let (merge, step) = done.unwrap_or_else(|_| Err(failed().at(self.rule.table())))?;
            let mut open = Open {
                merge,
                runs,
                fed: Vec::new(),
            };
            match step {
                Step::Need(runs) => open.read(runs).await?,
                Step::Done => {
                    self.last_key = open.merge.into_last_key();
                    continue;
                }
                Step::Rows(rows) => {
                    self.open = Some(open);
                    return Ok(Some((rows, self)));
                }
            }
            self.open = Some(open);
        }
    }

    fn open(&mut self, section: Section<RunFile>) -> Result<Open> {
        let merge = Merge::new(Arc::clone(&self.rule), section.len(), self.last_key.take())?;
        let batch_bytes = BATCH_BYTES / u64::try_from(section.len()).unwrap_or(u64::MAX).max(1);
        let stream = |files: Vec<RunFile>| {
            let (table, target) = (self.table.clone(), Arc::clone(&self.target));
            let batches = stream::iter(files).then(move |mut file| {
                file.reader.batch_bytes = batch_bytes;
                read_run_file(table.clone(), Arc::clone(&target), file)
            });
            Some(batches.try_flatten().boxed())
        };
        Ok(Open {
            merge,
            runs: section.into_iter().map(stream).collect(),
            fed: Vec::new(),
        })
    }
}

impl Open {
    /// Reads the next batch of each of these runs.
    async fn read(&mut self, wanted: Vec<usize>) -> Result<()> {
        let mut streams = Vec::with_capacity(wanted.len());
        for run in wanted {
            let stream = self.runs.get_mut(run).and_then(Option::take);
            streams.extend(stream.map(|stream| (run, stream)));
        }
        let reads: Vec<_> = streams.into_iter().map(read_next).collect();
        let mut reads = stream::iter(reads).buffer_unordered(RUN_READS);
        while let Some((run, batch, stream)) = reads.next().await {
            if let Some((input, path)) = batch? {
                self.fed.push((run, input, path));
                if let Some(slot) = self.runs.get_mut(run) {
                    *slot = Some(stream);
                }
            }
        }
        Ok(())
    }
}

/// The next batch of a run, with the run.
fn read_next(
    (run, mut stream): (usize, RunStream),
) -> BoxFuture<'static, (usize, Result<Option<(Input, Arc<str>)>>, RunStream)> {
    let read = async move {
        let batch = stream.try_next().await;
        (run, batch, stream)
    };
    read.boxed()
}

/// The batches of a file without the rows that its deletion vector names.
async fn read_run_file(table: Table, target: Arc<Target>, file: RunFile) -> Result<RunStream> {
    let path: Arc<str> = file.reader.path.as_ref().into();
    let (level, age) = (file.reader.file.level, file.age);
    let row_count = usize::try_from(file.reader.file.row_count).unwrap_or(0);
    let batches = read_file(target, file.from, file.reader).await?;
    let left = match &file.deleted {
        Some(vector) => Some(table.rows_left(vector, row_count).await?),
        None => None,
    };
    let mut row = 0;
    let inputs = batches.map(move |batch| {
        let mut batch = batch?;
        let first = row;
        row += batch.num_rows();
        if let Some(left) = &left {
            let left = left.slice(first, batch.num_rows());
            let left = left.ok_or_else(|| {
                Error::corrupt(path.as_ref(), "it has more rows than its manifest says")
            })?;
            let picked = filter_record_batch(&batch, &BooleanArray::new(left, None));
            batch = picked.map_err(|source| Error::Arrow {
                what: path.to_string(),
                source,
            })?;
        }
        Ok((Input { batch, level, age }, Arc::clone(&path)))
    });
    Ok(inputs.boxed())
}
