//! Timestamps of precision 7 to 9 as INT96, which the `parquet` crate's Arrow writer cannot write.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, TimestampNanosecondArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, TimestampNanosecondType};
use bytes::Bytes;
use parking_lot::Mutex;
use parquet::column::page::{CompressedPage, PageWriteSpec, PageWriter};
use parquet::column::writer::{
    ColumnCloseResult, ColumnWriter, ColumnWriterImpl, get_column_writer,
};
use parquet::data_type::{Int96, Int96Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::WriterPropertiesPtr;
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;

use super::parquet_schema::is_int96;

const NANOS_PER_DAY: i64 = 86_400_000_000_000;

/// Where the writer ends a page at the latest.
const MAX_ROWS_PER_PAGE: usize = parquet::file::properties::DEFAULT_DATA_PAGE_ROW_COUNT_LIMIT;

/// The Julian day number of 1970-01-01.
const JULIAN_DAY_OF_EPOCH: i64 = 2_440_588;

/// Encodes one INT96 leaf of one row group. Pages are compressed as they fill and kept in memory.
pub(crate) struct Int96Encoder {
    writer: ColumnWriterImpl<'static, Int96Type>,
    pages: Arc<Mutex<TrackedWrite<Vec<u8>>>>,
    value_count: usize,
}

impl Int96Encoder {
    /// An encoder for the leaf `column`, which must be INT96.
    pub(crate) fn new(column: ColumnDescPtr, properties: WriterPropertiesPtr) -> Result<Self> {
        let pages = Arc::new(Mutex::new(TrackedWrite::new(Vec::new())));
        let sink = Box::new(PageSink(Arc::clone(&pages)));
        match get_column_writer(column, properties, sink) {
            ColumnWriter::Int96ColumnWriter(writer) => Ok(Self {
                writer,
                pages,
                value_count: 0,
            }),
            _ => Err(ParquetError::General("the column is not INT96".to_owned())),
        }
    }

    /// Appends the values of the leaf, with the levels that place them in their rows.
    pub(crate) fn write(&mut self, leaf: &Int96Leaf<'_>) -> Result<()> {
        let mut levels = Levels::default();
        leaf.node.emit_rows(leaf.row_count, &mut levels);
        let Levels {
            values,
            definition,
            repetition,
        } = &levels;
        self.writer
            .write_batch(values, Some(definition), Some(repetition))?;
        self.value_count += values.len();
        Ok(())
    }

    /// About how many bytes it holds, and how many it will be in the file: finished pages, and the
    /// open one as if plain.
    pub(crate) fn encoded_bytes(&self) -> usize {
        let finished = usize::try_from(self.writer.get_total_bytes_written()).unwrap_or(usize::MAX);
        finished + self.value_count.min(MAX_ROWS_PER_PAGE) * size_of::<Int96>()
    }

    /// Finishes the column chunk: its bytes and what the row group must know of it.
    pub(crate) fn close(self) -> Result<(Bytes, ColumnCloseResult)> {
        let result = self.writer.close()?;
        let mut pages = self.pages.lock();
        std::io::Write::flush(&mut *pages)?;
        Ok((Bytes::from(std::mem::take(pages.inner_mut())), result))
    }
}

/// Takes compressed pages into memory.
struct PageSink(Arc<Mutex<TrackedWrite<Vec<u8>>>>);

impl PageWriter for PageSink {
    fn write_page(&mut self, page: CompressedPage) -> Result<PageWriteSpec> {
        SerializedPageWriter::new(&mut self.0.lock()).write_page(page)
    }

    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

/// One INT96 leaf of a batch: the way from its column down to the values.
pub(crate) struct Int96Leaf<'a> {
    node: Node<'a>,
    row_count: usize,
}

/// The leaves of a column in file order: `Some` for those stored as INT96. The array must have
/// exactly the field's type.
pub(crate) fn int96_leaves<'a>(
    field: &'a Field,
    array: &'a ArrayRef,
) -> Vec<Option<Int96Leaf<'a>>> {
    let row_count = array.len();
    let nodes = leaf_nodes(field, array, 0).into_iter();
    nodes
        .map(|node| node.map(|node| Int96Leaf { node, row_count }))
        .collect()
}

/// Whether any leaf of the type is stored as INT96.
pub(crate) fn has_int96(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(field) | DataType::Map(field, _) => has_int96(field.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_int96(field.data_type())),
        leaf => is_int96(leaf),
    }
}

fn leaf_nodes<'a>(field: &'a Field, array: &'a ArrayRef, depth: i16) -> Vec<Option<Node<'a>>> {
    let nullable = field.is_nullable();
    match field.data_type() {
        DataType::List(element) => {
            let list = array.as_list::<i32>();
            let place = (list.value_offsets(), list.nulls());
            let wrap = |child| Node::list(place, nullable, depth + 1, child);
            let children = leaf_nodes(element, list.values(), depth + 1).into_iter();
            children.map(|child| child.map(wrap)).collect()
        }
        DataType::Map(entries, _) => {
            let map = array.as_map();
            let DataType::Struct(parts) = entries.data_type() else {
                return Vec::new();
            };
            let place = (map.value_offsets(), map.nulls());
            let wrap = |child| Node::list(place, nullable, depth + 1, child);
            let columns = parts.iter().zip(map.entries().columns());
            let children = columns.flat_map(|(part, column)| leaf_nodes(part, column, depth + 1));
            children.map(|child| child.map(wrap)).collect()
        }
        DataType::Struct(fields) => {
            let row = array.as_struct();
            let wrap = |child| Node::Row {
                nulls: row.nulls(),
                nullable,
                child: Box::new(child),
            };
            let columns = fields.iter().zip(row.columns());
            let children = columns.flat_map(|(field, column)| leaf_nodes(field, column, depth));
            children.map(|child| child.map(wrap)).collect()
        }
        data_type if is_int96(data_type) => {
            let values = array.as_primitive::<TimestampNanosecondType>();
            vec![Some(Node::Leaf { values, nullable })]
        }
        _ => vec![None],
    }
}

/// A step on the way from a column to a leaf. Map entries are a list without a row of their own.
enum Node<'a> {
    Leaf {
        values: &'a TimestampNanosecondArray,
        nullable: bool,
    },
    Row {
        nulls: Option<&'a NullBuffer>,
        nullable: bool,
        child: Box<Node<'a>>,
    },
    List {
        offsets: &'a [i32],
        nulls: Option<&'a NullBuffer>,
        nullable: bool,
        /// Lists around the elements, this one included.
        depth: i16,
        child: Box<Node<'a>>,
    },
}

impl<'a> Node<'a> {
    fn list(
        (offsets, nulls): (&'a [i32], Option<&'a NullBuffer>),
        nullable: bool,
        depth: i16,
        child: Self,
    ) -> Self {
        Self::List {
            offsets,
            nulls,
            nullable,
            depth,
            child: Box::new(child),
        }
    }
}

/// The values that are not null, and for each value or gap the levels as Dremel has them.
#[derive(Default)]
struct Levels {
    values: Vec<Int96>,
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

impl Levels {
    fn push(&mut self, definition: i16, repetition: i16) {
        self.definition.push(definition);
        self.repetition.push(repetition);
    }
}

impl Node<'_> {
    fn emit_rows(&self, row_count: usize, levels: &mut Levels) {
        for row in 0..row_count {
            self.emit(row, 0, 0, levels);
        }
    }

    /// Emits element `index` of this node, with the levels that lead to it.
    fn emit(&self, index: usize, definition: i16, repetition: i16, levels: &mut Levels) {
        match self {
            Self::Leaf { values, nullable } => {
                if values.is_null(index) {
                    return levels.push(definition, repetition);
                }
                levels.push(definition + i16::from(*nullable), repetition);
                levels.values.push(int96(values.value(index)));
            }
            Self::Row {
                nulls,
                nullable,
                child,
            } => {
                if nulls.is_some_and(|nulls| nulls.is_null(index)) {
                    return levels.push(definition, repetition);
                }
                child.emit(index, definition + i16::from(*nullable), repetition, levels);
            }
            Self::List {
                offsets,
                nulls,
                nullable,
                depth,
                child,
            } => {
                if nulls.is_some_and(|nulls| nulls.is_null(index)) {
                    return levels.push(definition, repetition);
                }
                let definition = definition + i16::from(*nullable);
                let elements = element_range(offsets, index);
                if elements.is_empty() {
                    return levels.push(definition, repetition);
                }
                let first = elements.start;
                for element in elements {
                    let repetition = if element == first { repetition } else { *depth };
                    child.emit(element, definition + 1, repetition, levels);
                }
            }
        }
    }
}

fn element_range(offsets: &[i32], index: usize) -> std::ops::Range<usize> {
    let at = |index: usize| {
        offsets
            .get(index)
            .copied()
            .unwrap_or_default()
            .cast_unsigned() as usize
    };
    at(index)..at(index + 1)
}

/// Eight bytes of nanoseconds of the day, then four of the Julian day, little endian.
fn int96(nanos: i64) -> Int96 {
    let nanos_of_day = nanos.rem_euclid(NANOS_PER_DAY).cast_unsigned();
    let julian_day = nanos.div_euclid(NANOS_PER_DAY) + JULIAN_DAY_OF_EPOCH;
    let mut value = Int96::new();
    #[expect(clippy::cast_possible_truncation, reason = "the halves of 64 bits")]
    let (low, high) = (nanos_of_day as u32, (nanos_of_day >> 32) as u32);
    // 64 bits of nanoseconds are Julian days 2,333,836 to 2,547,339.
    value.set_data(low, high, u32::try_from(julian_day).unwrap_or_default());
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_nanoseconds_of_the_day_and_the_julian_day() {
        for (nanos, nanos_of_day, julian_day) in [
            (0, 0, 2_440_588),
            (1, 1, 2_440_588),
            (-1, 86_399_999_999_999, 2_440_587),
            (NANOS_PER_DAY, 0, 2_440_589),
            (i64::MAX, 85_636_854_775_807, 2_547_339),
            (i64::MIN, 763_145_224_192, 2_333_836),
        ] {
            let value = int96(nanos);
            let data = value.data();
            let low = u64::from(data[0]) | (u64::from(data[1]) << 32);
            assert_eq!((low, data[2]), (nanos_of_day, julian_day), "{nanos}");
            assert_eq!(value.to_nanos(), nanos);
        }
    }
}
