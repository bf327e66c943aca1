//! One Parquet file from batches: everything that computes, nothing that does IO.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use bytes::Bytes;
use parquet::arrow::arrow_writer::{ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::basic::Compression;
use parquet::errors::Result;
use parquet::file::properties::{
    EnabledStatistics, WriterProperties, WriterPropertiesPtr, WriterVersion,
};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor};

use super::dictionary::DictionaryChoice;
use super::int96::{Int96Encoder, has_int96, int96_leaves};
use super::nan::{has_floats, nan_leaves};
use super::parquet_schema::parquet_schema;

/// Said in each file; the form is the one that `parquet-mr` can read.
const CREATED_BY: &str = concat!("weir-lake-format version ", env!("CARGO_PKG_VERSION"));

/// Encodes one file in memory. Encoded row groups are taken out as they finish
/// ([`FileEncoder::take_output`]).
pub(crate) struct FileEncoder {
    writer: SerializedFileWriter<Vec<u8>>,
    factory: ArrowRowGroupWriterFactory,
    arrow_schema: SchemaRef,
    columns: SchemaDescPtr,
    properties: WriterPropertiesPtr,
    open: Option<Vec<LeafEncoder>>,
    row_count: usize,
}

impl FileEncoder {
    /// A file with the columns of `schema`: data pages of version 1, statistics for each column
    /// chunk.
    pub(crate) fn new(
        schema: &SchemaRef,
        compression: Compression,
        dictionary: &DictionaryChoice,
    ) -> Result<Self> {
        let message = parquet_schema(schema)?;
        let columns = Arc::new(SchemaDescriptor::new(Arc::clone(&message)));
        let properties = Arc::new(properties(&columns, compression, dictionary));
        let writer = SerializedFileWriter::new(Vec::new(), message, Arc::clone(&properties))?;
        let factory = ArrowRowGroupWriterFactory::new(&writer, Arc::clone(schema));
        let arrow_schema = Arc::clone(schema);
        Ok(Self {
            writer,
            factory,
            arrow_schema,
            columns,
            properties,
            open: None,
            row_count: 0,
        })
    }

    /// Encodes a batch, which must have exactly the columns of the schema.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut leaves = match self.open.take() {
            Some(leaves) => leaves,
            None => self.open_row_group()?,
        };
        let mut place = 0;
        for (field, array) in self.arrow_schema.fields().iter().zip(batch.columns()) {
            if !has_floats(field.data_type()) {
                place += leaf_count(field.data_type());
                continue;
            }
            for has_nan in nan_leaves(array) {
                if let Some(LeafEncoder::Arrow(_, seen)) = leaves.get_mut(place) {
                    *seen |= has_nan;
                }
                place += 1;
            }
        }
        let mut encoders = leaves.iter_mut();
        for (field, array) in self.arrow_schema.fields().iter().zip(batch.columns()) {
            let arrow_leaves = compute_leaves(field, array)?.into_iter();
            if !has_int96(field.data_type()) {
                for (leaf, encoder) in arrow_leaves.zip(&mut encoders) {
                    encoder.write_arrow(&leaf)?;
                }
                continue;
            }
            let pairs = arrow_leaves.zip(int96_leaves(field, array));
            for ((arrow_leaf, int96_leaf), encoder) in pairs.zip(&mut encoders) {
                match (encoder, int96_leaf) {
                    (LeafEncoder::Int96(encoder), Some(leaf)) => encoder.write(&leaf)?,
                    (encoder, _) => encoder.write_arrow(&arrow_leaf)?,
                }
            }
        }
        self.row_count += batch.num_rows();
        self.open = Some(leaves);
        Ok(())
    }

    /// Rows written so far.
    pub(crate) fn row_count(&self) -> usize {
        self.row_count
    }

    /// Bytes that the open row group holds in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.open
            .iter()
            .flatten()
            .map(LeafEncoder::memory_bytes)
            .sum()
    }

    /// About how many bytes the open row group will be in the file.
    pub(crate) fn open_bytes(&self) -> usize {
        self.open
            .iter()
            .flatten()
            .map(LeafEncoder::encoded_bytes)
            .sum()
    }

    /// About how many bytes the file will have, footer aside.
    pub(crate) fn file_bytes(&self) -> usize {
        self.writer.bytes_written() + self.open_bytes()
    }

    /// Ends the open row group, if any; its bytes join the output.
    pub(crate) fn close_row_group(&mut self) -> Result<()> {
        let Some(leaves) = self.open.take() else {
            return Ok(());
        };
        let mut group = self.writer.next_row_group()?;
        for leaf in leaves {
            match leaf {
                LeafEncoder::Arrow(writer, has_nan) => {
                    let mut chunk = writer.close()?;
                    if has_nan {
                        let close = chunk.close_mut();
                        let metadata = close.metadata.clone().into_builder();
                        close.metadata = metadata.clear_statistics().build()?;
                    }
                    chunk.append_to_row_group(&mut group)?;
                }
                LeafEncoder::Int96(encoder) => {
                    let (bytes, result) = encoder.close()?;
                    group.append_column(&bytes, result)?;
                }
            }
        }
        group.close()?;
        Ok(())
    }

    /// The bytes of the file since the last call.
    pub(crate) fn take_output(&mut self) -> Result<Bytes> {
        self.writer.flush()?;
        Ok(Bytes::from(std::mem::take(self.writer.inner_mut())))
    }

    /// Ends the file. The rest of its bytes, and the size of the whole file.
    pub(crate) fn finish(mut self) -> Result<(Bytes, usize)> {
        self.close_row_group()?;
        self.writer.finish()?;
        let rest = self.take_output()?;
        Ok((rest, self.writer.bytes_written()))
    }

    fn open_row_group(&self) -> Result<Vec<LeafEncoder>> {
        let index = self.writer.flushed_row_groups().len();
        let writers = self.factory.create_column_writers(index)?;
        let leaves = writers
            .into_iter()
            .zip(self.columns.columns())
            .map(|(writer, column)| {
                if column.physical_type() == parquet::basic::Type::INT96 {
                    let properties = Arc::clone(&self.properties);
                    return Int96Encoder::new(Arc::clone(column), properties)
                        .map(LeafEncoder::Int96);
                }
                Ok(LeafEncoder::Arrow(writer, false))
            });
        leaves.collect()
    }
}

/// The encoder of one leaf column in the open row group.
enum LeafEncoder {
    /// The writer, and whether it was given a NaN.
    Arrow(ArrowColumnWriter, bool),
    Int96(Int96Encoder),
}

impl LeafEncoder {
    fn write_arrow(&mut self, leaf: &parquet::arrow::arrow_writer::ArrowLeafColumn) -> Result<()> {
        match self {
            Self::Arrow(writer, _) => writer.write(leaf),
            Self::Int96(_) => {
                let reason = "an INT96 column got a leaf that is none".to_owned();
                Err(parquet::errors::ParquetError::General(reason))
            }
        }
    }

    fn memory_bytes(&self) -> usize {
        match self {
            Self::Arrow(writer, _) => writer.memory_size(),
            Self::Int96(encoder) => encoder.encoded_bytes(),
        }
    }

    fn encoded_bytes(&self) -> usize {
        match self {
            Self::Arrow(writer, _) => writer.get_estimated_total_bytes(),
            Self::Int96(encoder) => encoder.encoded_bytes(),
        }
    }
}

/// How many leaves a column of this type has in a file.
fn leaf_count(data_type: &DataType) -> usize {
    match data_type {
        DataType::List(field) | DataType::Map(field, _) => leaf_count(field.data_type()),
        DataType::Struct(fields) => fields
            .iter()
            .map(|field| leaf_count(field.data_type()))
            .sum(),
        _ => 1,
    }
}

fn properties(
    columns: &SchemaDescriptor,
    compression: Compression,
    dictionary: &DictionaryChoice,
) -> WriterProperties {
    let mut builder = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_created_by(CREATED_BY.to_owned())
        .set_compression(compression)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true);
    for (index, column) in columns.columns().iter().enumerate() {
        let path = column.path();
        builder = builder.set_column_dictionary_enabled(path.clone(), dictionary.is_enabled(index));
        if column.physical_type() == parquet::basic::Type::INT96 {
            // The order of INT96 is not defined; readers that trust such bounds would lose rows.
            builder = builder.set_column_statistics_enabled(path.clone(), EnabledStatistics::None);
        }
    }
    builder.build()
}
