//! Files as a source of rows: Parquet, CSV with a header line, JSON lines.

use std::fs::File;
use std::io::{BufReader, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::csv::reader::Format;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use weir_lake_format::parquet_pages::check_page_headers;

use super::pairs::PlainPairs;
use super::tpch::{BATCH_ROWS, Batches};

/// Rows that are read to guess the types of a CSV or JSON file.
const SAMPLE_ROWS: usize = 10_000;

/// What is said of a file at which a decoder panicked.
const DECODER_FAILED: &str = "its decoder failed: the file is damaged";

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Parquet,
    Csv,
    JsonLines,
}

/// A file with the columns found in it.
#[derive(Clone, Debug)]
pub struct Source {
    path: PathBuf,
    kind: Kind,
    schema: SchemaRef,
}

/// Why a file can't be a source.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name does not tell what is in it.
    #[error("{}: unknown kind of file: its name must end in .parquet, .csv or .jsonl", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
    },
    /// A CSV file without a header line.
    #[error("{}: is empty: a CSV file starts with a line of column names", path.display())]
    NoHeader {
        /// The file.
        path: PathBuf,
    },
    /// It can't be opened or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not what its name says.
    #[error("{}: not a readable Parquet file: {source}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ParquetError,
    },
    /// It is not what its name says.
    #[error("{}: not a readable CSV or JSON file: {source}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ArrowError,
    },
}

impl Kind {
    /// Whether values of the type are read from the text of such a file.
    fn reads(self, data_type: &DataType) -> bool {
        match self {
            Kind::Parquet => false,
            Kind::JsonLines => true,
            Kind::Csv => {
                data_type.is_numeric()
                    || data_type.is_temporal()
                    || matches!(data_type, DataType::Boolean | DataType::Utf8)
            }
        }
    }
}

impl Source {
    /// Opens a file and finds its columns: a Parquet file names them; the types of CSV and JSON are
    /// guessed from
    /// the first 10,000 rows.
    ///
    /// # Errors
    /// [`Error`] names the file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let kind = match path.extension().and_then(|extension| extension.to_str()) {
            Some("parquet") => Kind::Parquet,
            Some("csv") => Kind::Csv,
            Some("jsonl" | "ndjson") => Kind::JsonLines,
            _ => {
                return Err(Error::Kind {
                    path: path.to_owned(),
                });
            }
        };
        let mut file = open(path)?;
        let schema = match kind {
            Kind::Parquet => {
                let builder = parquet(path, || ParquetRecordBatchReaderBuilder::try_new(file))?;
                Arc::clone(builder.schema())
            }
            Kind::Csv => Format::default()
                .with_header(true)
                .infer_schema(&mut file, Some(SAMPLE_ROWS))
                .map(|(schema, _)| Arc::new(schema))
                .map_err(|source| Error::Text {
                    path: path.to_owned(),
                    source,
                })?,
            Kind::JsonLines => {
                let text = PlainPairs::new(BufReader::new(file));
                arrow::json::reader::infer_json_schema(text, Some(SAMPLE_ROWS))
                    .map(|(schema, _)| Arc::new(schema))
                    .map_err(|source| Error::Text {
                        path: path.to_owned(),
                        source,
                    })?
            }
        };
        let path = path.to_owned();
        if kind == Kind::Csv && schema.fields().is_empty() {
            return Err(Error::NoHeader { path });
        }
        Ok(Self { path, kind, schema })
    }

    /// Reads the columns of text as these types instead of those that were guessed: the ones of the
    /// table that they go to. A Parquet file has types of its own and keeps them, as do columns that
    /// text has no form for. JSON lines may have any of the columns, also beyond the rows that were
    /// looked at.
    pub fn read_as(&mut self, types: &Schema) {
        let mut fields: Vec<Field> = Vec::with_capacity(self.schema.fields().len());
        for field in self.schema.fields() {
            let wanted = types.field_with_name(field.name()).ok();
            let read = wanted
                .map(Field::data_type)
                .filter(|data_type| self.kind.reads(data_type))
                .unwrap_or(field.data_type());
            fields.push(Field::new(field.name(), read.clone(), true));
        }
        if self.kind == Kind::JsonLines {
            for field in types.fields() {
                if self.schema.field_with_name(field.name()).is_err() && field.is_nullable() {
                    fields.push(field.as_ref().clone());
                }
            }
        }
        if self.kind != Kind::Parquet {
            self.schema = Arc::new(Schema::new(fields));
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The columns.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// The rows in the order of the file; the same file gives the same batches each time.
    ///
    /// # Errors
    /// [`Error`] names the file; a batch that can't be read is an error of the iterator.
    pub fn batches(&self) -> Result<Batches, Error> {
        let mut file = open(&self.path)?;
        file.rewind().map_err(|source| Error::Io {
            path: self.path.clone(),
            source,
        })?;
        Ok(match self.kind {
            Kind::Parquet => {
                let reader = parquet(&self.path, || {
                    let pages = file.try_clone()?;
                    let builder = ParquetRecordBatchReaderBuilder::try_new(file)?;
                    check_pages(pages, builder.metadata())?;
                    builder.with_batch_size(BATCH_ROWS).build()
                })?;
                Box::new(ParquetRows(Some(reader)))
            }
            Kind::Csv => Box::new(
                arrow::csv::ReaderBuilder::new(self.schema())
                    .with_header(true)
                    .with_batch_size(BATCH_ROWS)
                    .build(file)
                    .map_err(|source| Error::Text {
                        path: self.path.clone(),
                        source,
                    })?,
            ),
            Kind::JsonLines => Box::new(
                arrow::json::ReaderBuilder::new(self.schema())
                    // A column that no row of the sample had is an error, not left out.
                    .with_strict_mode(true)
                    .with_batch_size(BATCH_ROWS)
                    .build(PlainPairs::new(BufReader::new(file)))
                    .map_err(|source| Error::Text {
                        path: self.path.clone(),
                        source,
                    })?,
            ),
        })
    }
}

/// What the Parquet reader makes of a file. It panics at some damage, a negative length in a footer
/// for one: that is the file's fault, and an error like any other.
fn parquet<T>(path: &Path, work: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, Error> {
    let done = catch_unwind(AssertUnwindSafe(work));
    let done = done.unwrap_or_else(|_| Err(ParquetError::General(DECODER_FAILED.to_owned())));
    done.map_err(|source| Error::Parquet {
        path: path.to_owned(),
        source,
    })
}

/// Refuses a file whose decoder would not come to an end.
fn check_pages(file: File, metadata: &ParquetMetaData) -> Result<(), ParquetError> {
    let mut reader = BufReader::new(file);
    for group in metadata.row_groups() {
        for column in group.columns() {
            let (start, bytes) = column.byte_range();
            reader.seek(SeekFrom::Start(start))?;
            check_page_headers(&mut reader, bytes)
                .map_err(|endless| ParquetError::External(endless.into()))?;
        }
    }
    Ok(())
}

/// The batches of a Parquet file; none after a panic of the reader, which is an error here.
struct ParquetRows(Option<ParquetRecordBatchReader>);

impl Iterator for ParquetRows {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let reader = self.0.as_mut()?;
        catch_unwind(AssertUnwindSafe(|| reader.next())).unwrap_or_else(|_| {
            self.0 = None;
            Some(Err(ArrowError::ParquetError(DECODER_FAILED.to_owned())))
        })
    }
}

fn open(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Array as _, AsArray as _};

    fn written(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn rows(batches: &[RecordBatch]) -> usize {
        batches.iter().map(RecordBatch::num_rows).sum()
    }

    fn read(source: &Source) -> Vec<RecordBatch> {
        source.batches().unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn a_csv_file_has_the_columns_of_its_header() {
        let (_folder, path) = written("a.csv", "id,name\n1,one\n2,\n");
        let source = Source::open(&path).unwrap();
        let names: Vec<_> = source
            .schema()
            .fields()
            .iter()
            .map(|f| f.name().clone())
            .collect();
        assert_eq!(names, ["id", "name"]);
        assert_eq!(rows(&read(&source)), 2);
        assert_eq!(read(&source), read(&source));
    }

    #[test]
    fn json_lines_may_lack_columns() {
        let (_folder, path) = written("a.jsonl", "{\"id\":1}\n{\"id\":2,\"name\":\"two\"}\n");
        let batches = read(&Source::open(&path).unwrap());
        assert_eq!(batches[0].column(1).null_count(), 1);
    }

    #[test]
    fn text_is_read_as_the_types_of_its_table() {
        let types = Schema::new(vec![
            Field::new("id", DataType::Int32, false),
            Field::new("price", DataType::Decimal128(10, 2), true),
            Field::new("day", DataType::Date32, true),
            Field::new("late", DataType::Utf8, true),
        ]);
        let (_a, csv) = written("a.csv", "id,price,day\n1,1.5,2026-11-30\n2,,\n");
        let (_b, json) = written(
            "a.jsonl",
            "{\"id\":1,\"price\":\"1.5\",\"day\":\"2026-11-30\"}\n{\"id\":2}\n",
        );
        for path in [csv, json] {
            let mut source = Source::open(&path).unwrap();
            source.read_as(&types);
            let batches = read(&source);
            assert_eq!(rows(&batches), 2);
            for name in ["id", "price", "day"] {
                let found = batches[0].column_by_name(name).unwrap().data_type();
                assert_eq!(found, types.field_with_name(name).unwrap().data_type());
            }
            let price = batches[0].column_by_name("price").unwrap();
            let price = price.as_primitive::<arrow::datatypes::Decimal128Type>();
            assert_eq!((price.value(0), price.is_null(1)), (150, true));
        }
    }

    #[test]
    fn a_character_beyond_the_second_plane_survives_its_json_escape() {
        let line = "{\"\\ud840\\udc00\":\"\\ud840\\udc00\\udbff\\udfff\"}\n";
        let (_folder, path) = written("a.jsonl", line);
        let source = Source::open(&path).unwrap();
        let batches = read(&source);
        let column = batches[0].column_by_name("\u{20000}").unwrap();
        assert_eq!(column.as_string::<i32>().value(0), "\u{20000}\u{10ffff}");
    }

    #[test]
    fn a_json_column_that_the_sample_lacks_is_no_silent_loss() {
        let mut text = "{\"id\":1}\n".repeat(SAMPLE_ROWS);
        text += "{\"id\":2,\"late\":\"x\"}\n";
        let (_folder, path) = written("a.jsonl", &text);
        let mut source = Source::open(&path).unwrap();
        let failed = source.batches().unwrap().find_map(Result::err);
        assert!(failed.unwrap().to_string().contains("late"));
        source.read_as(&Schema::new(vec![Field::new("late", DataType::Utf8, true)]));
        assert_eq!(rows(&read(&source)), SAMPLE_ROWS + 1);
    }

    #[test]
    fn an_empty_csv_file_is_told_to_lack_its_header() {
        let (_folder, path) = written("a.csv", "");
        let error = Source::open(&path).unwrap_err().to_string();
        assert!(error.ends_with("a line of column names"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_parquet_file_is_named() {
        let (_folder, path) = written("a.parquet", "not parquet at all");
        let error = Source::open(&path).unwrap_err().to_string();
        assert!(error.contains("a.parquet"), "{error}");
        let (_folder, path) = written("a.txt", "");
        let error = Source::open(&path).unwrap_err().to_string();
        assert!(
            error.ends_with("its name must end in .parquet, .csv or .jsonl"),
            "{error}"
        );
    }
}
