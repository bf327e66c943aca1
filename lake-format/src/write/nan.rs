//! Which leaves of a column hold a NaN.
//!
//! Parquet's statistics leave NaN out, so that readers to whom NaN is above all numbers would leave
//! out row groups by them; such chunks go without statistics, as they do in Java.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type};

/// Whether any leaf of the type is a float.
pub(super) fn has_floats(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(field) | DataType::Map(field, _) => has_floats(field.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_floats(field.data_type())),
        leaf => matches!(leaf, DataType::Float32 | DataType::Float64),
    }
}

/// Per leaf of an array, in the order of files, whether it holds a NaN; one under a null counts.
pub(super) fn nan_leaves(array: &ArrayRef) -> Vec<bool> {
    match array.data_type() {
        DataType::List(_) => nan_leaves(array.as_list::<i32>().values()),
        DataType::Map(..) => {
            let columns = array.as_map().entries().columns();
            columns.iter().flat_map(nan_leaves).collect()
        }
        DataType::Struct(_) => {
            let columns = array.as_struct().columns();
            columns.iter().flat_map(nan_leaves).collect()
        }
        DataType::Float32 => {
            let values = array.as_primitive::<Float32Type>().values();
            vec![values.iter().any(|value| value.is_nan())]
        }
        DataType::Float64 => {
            let values = array.as_primitive::<Float64Type>().values();
            vec![values.iter().any(|value| value.is_nan())]
        }
        _ => vec![false],
    }
}
