//! Splits to batches in the columns of one schema.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::arrow::async_reader::ParquetRecordBatchStream;

use super::adapt::adapt;
use super::file::{BATCH_BYTES, DataFileReader, OpenedFile, decoding, file_error};
use super::object::ObjectReader;
use super::{Split, schemas_of};
use crate::data_file::DataFileMeta;
use crate::error::{Error, Result};
use crate::merge::is_system_column;
use crate::options::TableOptions;
use crate::paths::named;
use crate::schema::TableSchema;
use crate::table::Table;
use crate::types::{DataField, arrow_schema};

/// Batches as they are read; one batch and one row group's columns are held at a time. They are
/// decoded on blocking threads, one a stream at a time.
pub type BatchStream = BoxStream<'static, Result<RecordBatch>>;

impl Table {
    /// The rows of a split in the latest schema; with a projection only its columns, in its order.
    ///
    /// Columns are found by field id in the schema of each file: renamed ones under their old
    /// name, widened ones are cast, later ones are null.
    ///
    /// With a primary key the versions of a row are merged as the table's options say, and rows
    /// come in the order of their keys; the split must have all files of its bucket in which a
    /// wanted key may be, as [`Table::plan_where`] gives them.
    ///
    /// # Errors
    /// [`Error::BadValue`] if the projection names no column; [`Error::Unsupported`] or
    /// [`Error::InvalidSchema`] if rows are merged in a way that is not known here. The stream ends
    /// with the first error: [`Error::NotFound`], [`Error::Corrupt`], [`Error::Store`] about a file,
    /// [`Error::Unsupported`] and [`Error::BadValue`] about a row that cannot be merged.
    pub async fn read_split(
        &self,
        split: &Split,
        projection: Option<&[&str]>,
    ) -> Result<BatchStream> {
        let schema = Arc::new(self.latest_schema().await?);
        self.read_split_as(split, &schema, projection).await
    }

    /// The rows of a split in a schema of the table's, otherwise as [`Table::read_split`].
    ///
    /// # Errors
    /// As [`Table::read_split`].
    pub async fn read_split_as(
        &self,
        split: &Split,
        schema: &TableSchema,
        projection: Option<&[&str]>,
    ) -> Result<BatchStream> {
        if schema.is_primary_key_table() {
            return self.read_merged(split, schema, projection).await;
        }
        let target = Arc::new(Target::new(schema, projection)?);
        let ids = split.files.iter().map(|file| file.schema_id);
        let schemas = schemas_of(self, ids).await?;
        let mut files = Vec::with_capacity(split.files.len());
        for reader in self.file_readers(split, schema)? {
            files.push((file_fields(&target, &schemas, &reader)?, reader));
        }
        let batches = stream::iter(files).then(move |(from, reader)| {
            let target = Arc::clone(&target);
            async move { read_file(target, from, reader).await }
        });
        Ok(batches.try_flatten().boxed())
    }

    /// The rows of a file as they are, in columns that it must have under these names.
    pub(crate) async fn read_columns(
        &self,
        reader: DataFileReader,
        fields: Vec<DataField>,
    ) -> Result<BatchStream> {
        let from = fields.iter().cloned().map(Some).collect();
        read_file(Arc::new(Target::of_fields(fields)), from, reader).await
    }

    /// Where the files of a split are.
    pub(crate) fn file_readers(
        &self,
        split: &Split,
        schema: &TableSchema,
    ) -> Result<Vec<DataFileReader>> {
        let directory = TableOptions::new(&schema.options).data_directory();
        let folder =
            self.paths()
                .bucket_dir(directory, &split.partition.path(schema)?, split.bucket)?;
        let reader = |file: &DataFileMeta| {
            Ok(DataFileReader {
                store: Arc::clone(self.store()),
                path: named(&folder, &file.file_name)?,
                file: file.clone(),
                batch_bytes: BATCH_BYTES,
            })
        };
        split.files.iter().map(reader).collect()
    }
}

/// The columns that are wanted.
pub(super) struct Target {
    fields: Vec<DataField>,
    schema: SchemaRef,
}

impl Target {
    fn new(schema: &TableSchema, projection: Option<&[&str]>) -> Result<Self> {
        let fields = match projection {
            None => schema.fields.clone(),
            Some(names) => {
                let field = |name: &&str| {
                    schema
                        .field(name)
                        .cloned()
                        .ok_or_else(|| Error::bad_value(*name, "is no column"))
                };
                names.iter().map(field).collect::<Result<_>>()?
            }
        };
        Ok(Self::of_fields(fields))
    }

    pub(super) fn of_fields(fields: Vec<DataField>) -> Self {
        let schema = arrow_schema(&fields);
        Self { fields, schema }
    }
}

/// Per wanted column the field of a file's schema with its id, if there is one.
pub(super) fn file_fields(
    target: &Target,
    schemas: &BTreeMap<i64, Arc<TableSchema>>,
    reader: &DataFileReader,
) -> Result<Vec<Option<DataField>>> {
    let id = reader.file.schema_id;
    let schema = schemas.get(&id).ok_or_else(|| {
        Error::corrupt(
            reader.path.to_string(),
            format!("its schema {id} was not read"),
        )
    })?;
    Ok(target
        .fields
        .iter()
        .map(|field| {
            if is_system_column(field) {
                Some(field.clone())
            } else {
                schema.field_by_id(field.id).cloned()
            }
        })
        .collect())
}

pub(super) async fn read_file(
    target: Arc<Target>,
    from: Vec<Option<DataField>>,
    reader: DataFileReader,
) -> Result<BatchStream> {
    let mut names: Vec<&str> = from
        .iter()
        .flatten()
        .map(|field| field.name.as_str())
        .collect();
    names.sort_unstable();
    names.dedup();
    let OpenedFile { stream, columns } = reader.open(&names).await?;
    let places: Vec<Option<(usize, DataField)>> = from
        .into_iter()
        .map(|field| {
            let field = field?;
            columns.get(&field.name).map(|place| (*place, field))
        })
        .collect();
    let reading = Reading {
        stream,
        row_group: None,
        decoding: Arc::new(Decoding {
            target,
            places,
            path: reader.path,
        }),
    };
    Ok(stream::try_unfold(reading, Reading::next).boxed())
}

/// A file that is being read: row groups are fetched here, and decoded on blocking threads, one
/// batch and so one thread at a time.
struct Reading {
    stream: ParquetRecordBatchStream<ObjectReader>,
    row_group: Option<ParquetRecordBatchReader>,
    decoding: Arc<Decoding>,
}

/// What a thread needs to make a batch of what a file holds.
struct Decoding {
    target: Arc<Target>,
    /// Per wanted column where it is in the file's batches and its field there, if it is.
    places: Vec<Option<(usize, DataField)>>,
    path: Path,
}

impl Reading {
    async fn next(mut self) -> Result<Option<(RecordBatch, Self)>> {
        loop {
            let mut row_group = match self.row_group.take() {
                Some(row_group) => row_group,
                None => {
                    let next = self.stream.next_row_group();
                    match decoding(&self.decoding.path, next).await? {
                        Some(row_group) => row_group,
                        None => return Ok(None),
                    }
                }
            };
            let shared = Arc::clone(&self.decoding);
            let decode = move || {
                let batch = row_group.next().map(|batch| shared.batch(batch));
                (row_group, batch)
            };
            let decoded = tokio::task::spawn_blocking(decode).await;
            let (row_group, batch) = decoded.map_err(|_| {
                Error::corrupt(self.decoding.path.to_string(), "its decoder failed")
            })?;
            if let Some(batch) = batch {
                self.row_group = Some(row_group);
                return Ok(Some((batch?, self)));
            }
        }
    }
}

impl Decoding {
    fn batch(&self, batch: Result<RecordBatch, ArrowError>) -> Result<RecordBatch> {
        let batch = batch.map_err(|e| file_error(&self.path, e.into()))?;
        to_target(&self.target, &self.places, &batch, &self.path)
    }
}

fn to_target(
    target: &Target,
    places: &[Option<(usize, DataField)>],
    batch: &RecordBatch,
    path: &Path,
) -> Result<RecordBatch> {
    let mut columns: Vec<ArrayRef> = Vec::with_capacity(places.len());
    for ((place, field), arrow_field) in places
        .iter()
        .zip(&target.fields)
        .zip(target.schema.fields())
    {
        let array = match place {
            None => new_null_array(arrow_field.data_type(), batch.num_rows()),
            Some((place, from)) => {
                let found = batch.columns().get(*place);
                let found = found.ok_or_else(|| {
                    Error::corrupt(
                        path.to_string(),
                        format!("column `{}` is not in its batch", from.name),
                    )
                })?;
                adapt(found, from, field, arrow_field.data_type())?
            }
        };
        columns.push(array);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(&target.schema), columns, &options).map_err(
        |source| Error::Arrow {
            what: path.to_string(),
            source,
        },
    )
}
