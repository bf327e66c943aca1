//! Which columns of a table's files get a dictionary.
//!
//! A dictionary that fails over costs a fifth of the encoding time and saves nothing; one on a
//! column of few values saves most of the bytes. So the first batch decides by its distinct values,
//! and the table's writer remembers.

use std::collections::HashSet;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{ArrowPrimitiveType, DataType, ToByteSlice};

/// Values looked at in each leaf column.
const SAMPLED_VALUES: usize = 8192;

/// Rows from which on a choice is good for other files too.
const SETTLED_ROWS: usize = 1024;

/// For each leaf column of a table's files, in file order, whether it gets a dictionary.
///
/// The default, made of no rows, gives each a dictionary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DictionaryChoice {
    columns: Vec<bool>,
    sampled_rows: usize,
}

impl DictionaryChoice {
    /// Decides by the first 8192 values of each leaf of `batch`. Costs one hash a value.
    pub(crate) fn sample(batch: &RecordBatch) -> Self {
        let mut columns = Vec::with_capacity(batch.num_columns());
        for array in batch.columns() {
            sample_leaves(array, &mut columns);
        }
        Self {
            columns,
            sampled_rows: batch.num_rows(),
        }
    }

    /// Whether enough rows were seen to use the choice for other files of the same schema.
    pub fn is_settled(&self) -> bool {
        self.sampled_rows >= SETTLED_ROWS
    }

    /// Whether leaf `index` gets a dictionary.
    pub fn is_enabled(&self, index: usize) -> bool {
        self.columns.get(index).copied().unwrap_or(true)
    }
}

fn sample_leaves(array: &ArrayRef, columns: &mut Vec<bool>) {
    match array.data_type() {
        DataType::List(_) => sample_leaves(array.as_list::<i32>().values(), columns),
        DataType::Map(..) => {
            for column in array.as_map().entries().columns() {
                sample_leaves(column, columns);
            }
        }
        DataType::Struct(_) => {
            for column in array.as_struct().columns() {
                sample_leaves(column, columns);
            }
        }
        _ => columns.push(is_worth_it(array)),
    }
}

/// Few distinct values, and few new ones in the second half: a key that grows with the rows is told
/// from a small set.
fn is_worth_it(array: &ArrayRef) -> bool {
    let array = array.slice(0, array.len().min(SAMPLED_VALUES));
    let half = array.len() / 2;
    let mut seen = HashSet::new();
    count(&array.slice(0, half), &mut seen);
    let early = seen.len();
    count(&array.slice(half, array.len() - half), &mut seen);
    let new = seen.len() - early;
    let values = array.len() - array.null_count();
    seen.len() * 2 <= values && new * 2 <= early
}

fn count(array: &ArrayRef, seen: &mut HashSet<u64>) {
    use arrow::datatypes as arrow_types;
    match array.data_type() {
        DataType::Int8 => count_primitive::<arrow_types::Int8Type>(array, seen),
        DataType::Int16 => count_primitive::<arrow_types::Int16Type>(array, seen),
        DataType::Int64 => count_primitive::<arrow_types::Int64Type>(array, seen),
        DataType::Float32 => count_primitive::<arrow_types::Float32Type>(array, seen),
        DataType::Float64 => count_primitive::<arrow_types::Float64Type>(array, seen),
        DataType::Decimal128(..) => count_primitive::<arrow_types::Decimal128Type>(array, seen),
        DataType::Utf8 => {
            seen.extend(
                array
                    .as_string::<i32>()
                    .iter()
                    .flatten()
                    .map(|text| hash(text.as_bytes())),
            );
        }
        DataType::Binary => {
            seen.extend(array.as_binary::<i32>().iter().flatten().map(hash));
        }
        DataType::Int32 => count_primitive::<arrow_types::Int32Type>(array, seen),
        DataType::Date32 => count_primitive::<arrow_types::Date32Type>(array, seen),
        DataType::Time32(_) => count_primitive::<arrow_types::Time32MillisecondType>(array, seen),
        DataType::Timestamp(unit, _) => match unit {
            arrow_types::TimeUnit::Second => {
                count_primitive::<arrow_types::TimestampSecondType>(array, seen);
            }
            arrow_types::TimeUnit::Millisecond => {
                count_primitive::<arrow_types::TimestampMillisecondType>(array, seen);
            }
            arrow_types::TimeUnit::Microsecond => {
                count_primitive::<arrow_types::TimestampMicrosecondType>(array, seen);
            }
            arrow_types::TimeUnit::Nanosecond => {
                count_primitive::<arrow_types::TimestampNanosecondType>(array, seen);
            }
        },
        // Booleans have no dictionary in Parquet; the writer ignores the choice.
        _ => {}
    }
}

fn count_primitive<T: ArrowPrimitiveType>(array: &ArrayRef, seen: &mut HashSet<u64>) {
    let values = array.as_primitive::<T>().iter().flatten();
    seen.extend(values.map(|value| hash(value.to_byte_slice())));
}

/// FNV-1a over words of eight bytes: a collision in 8192 values only sways an estimate.
fn hash(bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mut state = 0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(chunk) {
            *to = *from;
        }
        state = (state ^ u64::from_le_bytes(word)).wrapping_mul(PRIME);
        state ^= state >> 32;
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Int64Array, StringArray};
    use std::sync::Arc;

    fn choice(array: ArrayRef) -> bool {
        let batch = RecordBatch::try_from_iter([("a", array)]).unwrap();
        DictionaryChoice::sample(&batch).is_enabled(0)
    }

    #[test]
    fn few_values_get_a_dictionary_and_many_or_growing_ones_do_not() {
        let words = (0..8192).map(|i| ["air", "rail", "ship"][i % 3]);
        assert!(choice(Arc::new(StringArray::from_iter_values(words))));
        let scattered = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 2500;
        let days = (0..8192).map(|i| scattered(i).cast_signed());
        assert!(choice(Arc::new(Int64Array::from_iter_values(days))));
        assert!(!choice(Arc::new(Int64Array::from_iter_values(0..8192))));
        let order_keys = (0..8192).map(|i| i / 4);
        assert!(!choice(Arc::new(Int64Array::from_iter_values(order_keys))));
        let comments = (0..8192).map(|i| format!("comment {i}"));
        assert!(!choice(Arc::new(StringArray::from_iter_values(comments))));
    }

    #[test]
    fn a_choice_from_few_rows_is_not_kept() {
        let batch = |rows: i64| {
            let array: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
            DictionaryChoice::sample(&RecordBatch::try_from_iter([("a", array)]).unwrap())
        };
        assert!(!batch(1000).is_settled());
        assert!(batch(1024).is_settled());
    }
}
