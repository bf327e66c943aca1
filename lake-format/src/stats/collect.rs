//! Statistics of a data file, taken from its batches while they are written.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::{max, max_boolean, min, min_boolean};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType as ArrowType, Date32Type, Decimal128Type, Float32Type,
    Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType, TimeUnit,
    TimestampMicrosecondType, TimestampMillisecondType,
};

use super::text_bounds::text_bounds;
use super::{ColumnStats, SimpleStats};
use crate::datum::{Datum, Timestamp};
use crate::error::{Error, Result};
use crate::options::{StatsMode, TableOptions};
use crate::schema::TableSchema;
use crate::types::{DataField, TypeKind};

/// Characters of a bound of a key column.
const KEY_CHARACTERS: usize = 128;

/// Gathers the value statistics of one data file, batch by batch, with Arrow's kernels.
///
/// What has bounds follows Paimon 1.3.1: nested types have no statistics; bytes and timestamps
/// beyond microseconds have a null count only. A float column with a NaN has no bounds, since a
/// bound that leaves NaN out would lose rows.
#[derive(Debug)]
pub struct StatsCollector {
    columns: Vec<Column>,
    is_dense: bool,
}

/// The value statistics of a file, as [`crate::DataFileMeta`] takes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueStats {
    /// The statistics of the columns that `columns` names.
    pub stats: SimpleStats,
    /// The columns; `None` for all of the schema.
    pub columns: Option<Vec<String>>,
}

#[derive(Debug)]
struct Column {
    field: DataField,
    mode: StatsMode,
    stats: ColumnStats,
    has_nan: bool,
}

impl StatsCollector {
    /// A collector for files of `schema`, with the modes that its options set.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] if an option of statistics has no meaning.
    pub fn new(schema: &TableSchema) -> Result<Self> {
        let options = TableOptions::new(&schema.options);
        let mut columns = Vec::with_capacity(schema.fields.len());
        for (index, field) in schema.fields.iter().enumerate() {
            let is_nested = field.data_type.kind.is_nested();
            let mode = if is_nested {
                StatsMode::None
            } else {
                options.stats_mode(&field.name, index)?
            };
            let stats = ColumnStats {
                null_count: Some(0),
                ..ColumnStats::unknown()
            };
            columns.push(Column {
                field: field.clone(),
                mode,
                stats,
                has_nan: false,
            });
        }
        Ok(Self {
            columns,
            is_dense: options.dense_stats()?,
        })
    }

    /// A collector of the key columns of a file: all have bounds, text is cut to 128 characters
    /// (paimon: `StatsCollectorFactories`).
    pub(crate) fn of_keys(fields: &[DataField]) -> Self {
        let column = |field: &DataField| Column {
            field: field.clone(),
            mode: StatsMode::Truncate(KEY_CHARACTERS),
            stats: ColumnStats {
                null_count: Some(0),
                ..ColumnStats::unknown()
            },
            has_nan: false,
        };
        Self {
            columns: fields.iter().map(column).collect(),
            is_dense: false,
        }
    }

    /// Takes in a batch, whose columns are those of the schema in its order, in the Arrow types of
    /// [`crate::DataType::arrow_type`] (bytes in any binary type).
    ///
    /// # Errors
    /// [`Error::BadValue`] if a column is absent or of another type.
    pub fn update(&mut self, batch: &RecordBatch) -> Result<()> {
        if batch.num_columns() != self.columns.len() {
            let reason = format!(
                "{} columns where the schema has {}",
                batch.num_columns(),
                self.columns.len()
            );
            return Err(Error::bad_value("batch", reason));
        }
        for (column, array) in self.columns.iter_mut().zip(batch.columns()) {
            column.update(array)?;
        }
        Ok(())
    }

    /// The statistics of all batches.
    ///
    /// # Errors
    /// Never in practice: bounds are of their columns' types.
    pub fn finish(self) -> Result<ValueStats> {
        let is_dense = self.is_dense;
        let all = self.columns.len();
        let kept = self
            .columns
            .into_iter()
            .filter(|column| !is_dense || column.mode != StatsMode::None);
        let (fields, stats): (Vec<DataField>, Vec<ColumnStats>) = kept.map(Column::finish).unzip();
        let names = (is_dense && fields.len() < all)
            .then(|| fields.iter().map(|field| field.name.clone()).collect());
        let stats = SimpleStats::encode(&stats, fields.iter().map(|field| &field.data_type))?;
        Ok(ValueStats {
            stats,
            columns: names,
        })
    }
}

impl Column {
    fn update(&mut self, array: &ArrayRef) -> Result<()> {
        if self.mode == StatsMode::None {
            return Ok(());
        }
        let nulls = i64::try_from(array.null_count()).unwrap_or(i64::MAX);
        self.stats.null_count = self.stats.null_count.map(|count| count + nulls);
        if self.mode == StatsMode::Counts || array.null_count() == array.len() {
            return Ok(());
        }
        let bounds = self.bounds(array);
        let (min, max) = bounds.ok_or_else(|| {
            let reason = format!(
                "an Arrow array of {} for {}",
                array.data_type(),
                self.field.data_type
            );
            Error::bad_value(&self.field.name, reason)
        })?;
        self.has_nan |= is_nan(&min) || is_nan(&max);
        self.stats.include_bounds(&min, &max);
        Ok(())
    }

    /// Lowest and highest value of an array; both null if the type has no bounds, `None` if the
    /// array is not of the type.
    fn bounds(&self, array: &ArrayRef) -> Option<(Datum, Datum)> {
        match (&self.field.data_type.kind, array.data_type()) {
            (TypeKind::Boolean, ArrowType::Boolean) => {
                let array = array.as_boolean();
                Some((
                    Datum::Boolean(min_boolean(array)?),
                    Datum::Boolean(max_boolean(array)?),
                ))
            }
            (TypeKind::TinyInt, ArrowType::Int8) => primitive::<Int8Type>(array, Datum::TinyInt),
            (TypeKind::SmallInt, ArrowType::Int16) => {
                primitive::<Int16Type>(array, Datum::SmallInt)
            }
            (TypeKind::Int, ArrowType::Int32) => primitive::<Int32Type>(array, Datum::Int),
            (TypeKind::BigInt, ArrowType::Int64) => primitive::<Int64Type>(array, Datum::BigInt),
            (TypeKind::Float, ArrowType::Float32) => primitive::<Float32Type>(array, Datum::Float),
            (TypeKind::Double, ArrowType::Float64) => {
                primitive::<Float64Type>(array, Datum::Double)
            }
            (TypeKind::Decimal { scale, .. }, ArrowType::Decimal128(_, arrow_scale))
                if i8::try_from(*scale) == Ok(*arrow_scale) =>
            {
                primitive::<Decimal128Type>(array, Datum::Decimal)
            }
            (TypeKind::Date, ArrowType::Date32) => primitive::<Date32Type>(array, Datum::Date),
            (TypeKind::Time { .. }, ArrowType::Time32(TimeUnit::Millisecond)) => {
                primitive::<Time32MillisecondType>(array, Datum::Time)
            }
            (TypeKind::Char { .. } | TypeKind::VarChar { .. }, ArrowType::Utf8) => {
                let (low, high) = text_bounds(array.as_string::<i32>())?;
                Some((
                    Datum::String(low.to_owned()),
                    Datum::String(high.to_owned()),
                ))
            }
            (
                TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision },
                ArrowType::Timestamp(unit, _),
            ) => match (precision, unit) {
                (0..=3, TimeUnit::Millisecond) => {
                    primitive::<TimestampMillisecondType>(array, |value| {
                        Datum::Timestamp(Timestamp::from_millis(value))
                    })
                }
                (4..=6, TimeUnit::Microsecond) => {
                    primitive::<TimestampMicrosecondType>(array, |value| {
                        Datum::Timestamp(Timestamp::from_micros(value))
                    })
                }
                (7.., TimeUnit::Nanosecond) => Some((Datum::Null, Datum::Null)),
                _ => None,
            },
            (
                TypeKind::Binary { .. } | TypeKind::VarBinary { .. },
                ArrowType::Binary | ArrowType::LargeBinary | ArrowType::FixedSizeBinary(_),
            ) => Some((Datum::Null, Datum::Null)),
            _ => None,
        }
    }

    fn finish(mut self) -> (DataField, ColumnStats) {
        if self.mode == StatsMode::None {
            self.stats = ColumnStats::unknown();
        }
        if self.has_nan {
            (self.stats.min, self.stats.max) = (Datum::Null, Datum::Null);
        }
        if let StatsMode::Truncate(length) = self.mode {
            truncate(&mut self.stats, length);
        }
        widen_zeros(&mut self.stats);
        (self.field, self.stats)
    }
}

impl ColumnStats {
    fn include_bounds(&mut self, min: &Datum, max: &Datum) {
        if !min.is_null() && !max.is_null() {
            self.include(min);
            self.include(max);
        }
    }
}

fn primitive<T: ArrowPrimitiveType>(
    array: &ArrayRef,
    datum: impl Fn(T::Native) -> Datum,
) -> Option<(Datum, Datum)> {
    let array = array.as_primitive_opt::<T>()?;
    Some((datum(min(array)?), datum(max(array)?)))
}

fn is_nan(value: &Datum) -> bool {
    match value {
        Datum::Float(value) => value.is_nan(),
        Datum::Double(value) => value.is_nan(),
        _ => false,
    }
}

/// −0.0 equals 0.0 in filters, so bounds that are zero take in both.
fn widen_zeros(stats: &mut ColumnStats) {
    match &mut stats.min {
        Datum::Float(value) if *value == 0.0 => *value = -0.0,
        Datum::Double(value) if *value == 0.0 => *value = -0.0,
        _ => {}
    }
    match &mut stats.max {
        Datum::Float(value) if *value == 0.0 => *value = 0.0,
        Datum::Double(value) if *value == 0.0 => *value = 0.0,
        _ => {}
    }
}

/// Cuts text bounds to `length` characters, the upper one raised above all it stands for; if that
/// cannot be, there are no bounds.
fn truncate(stats: &mut ColumnStats, length: usize) {
    let (Datum::String(min), Datum::String(max)) = (&stats.min, &stats.max) else {
        return;
    };
    let max = truncate_up(max, length);
    let min: String = min.chars().take(length).collect();
    (stats.min, stats.max) = match max {
        Some(max) => (Datum::String(min), Datum::String(max)),
        None => (Datum::Null, Datum::Null),
    };
}

/// The shortest text of at most `length` characters that is not below any text with this prefix.
fn truncate_up(text: &str, length: usize) -> Option<String> {
    let mut kept: Vec<char> = text.chars().take(length + 1).collect();
    if kept.len() <= length {
        return Some(text.to_owned());
    }
    kept.truncate(length);
    while let Some(last) = kept.pop() {
        // The next character; surrogates are none, so U+D7FF is followed by U+E000.
        let next = if last == '\u{d7ff}' {
            Some('\u{e000}')
        } else {
            char::from_u32(u32::from(last) + 1)
        };
        if let Some(next) = next {
            kept.push(next);
            return Some(kept.into_iter().collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{BinaryArray, Float64Array, Int32Array, StringArray};
    use proptest::prelude::*;

    use super::*;
    use crate::schema::NewTable;

    fn schema(types: &[&str]) -> TableSchema {
        let columns = types.iter().enumerate();
        let fields =
            columns.map(|(i, text)| DataField::new(0, format!("c{i}"), text.parse().unwrap()));
        TableSchema::create(
            NewTable {
                fields: fields.collect(),
                ..NewTable::default()
            },
            0,
        )
        .unwrap()
    }

    fn collect(types: &[&str], batches: Vec<Vec<ArrayRef>>) -> Vec<ColumnStats> {
        let schema = schema(types);
        let mut collector = StatsCollector::new(&schema).unwrap();
        for columns in batches {
            let batch = RecordBatch::try_new(schema.arrow_schema(), columns).unwrap();
            collector.update(&batch).unwrap();
        }
        let found = collector.finish().unwrap();
        assert_eq!(found.columns, None);
        found.stats.decode(schema.types()).unwrap()
    }

    #[test]
    fn bounds_span_all_batches_and_nulls_are_counted() {
        let batch = |values: Vec<Option<i32>>| vec![Arc::new(Int32Array::from(values)) as ArrayRef];
        let stats = collect(
            &["INT"],
            vec![
                batch(vec![Some(5), None]),
                batch(vec![None]),
                batch(vec![Some(-3)]),
            ],
        );
        let expected = ColumnStats {
            min: Datum::Int(-3),
            max: Datum::Int(5),
            null_count: Some(2),
        };
        assert_eq!(stats, [expected]);
    }

    #[test]
    fn a_nan_leaves_no_bounds_even_if_it_comes_first() {
        let batch = |values: Vec<f64>| vec![Arc::new(Float64Array::from(values)) as ArrayRef];
        for batches in [
            vec![vec![f64::NAN, 1.0], vec![2.0]],
            vec![vec![1.0], vec![-f64::NAN]],
            vec![vec![1.0, -f64::NAN, 2.0]],
        ] {
            let stats = collect(&["DOUBLE"], batches.into_iter().map(batch).collect());
            assert_eq!(
                stats,
                [ColumnStats {
                    null_count: Some(0),
                    ..ColumnStats::unknown()
                }]
            );
        }
    }

    #[test]
    fn zeros_of_both_signs_lie_within_the_bounds() {
        let stats = collect(
            &["DOUBLE"],
            vec![vec![Arc::new(Float64Array::from(vec![0.0]))]],
        );
        let Datum::Double(min) = stats[0].min else {
            panic!()
        };
        assert!(min.is_sign_negative());
    }

    #[test]
    fn bytes_have_a_null_count_only() {
        let bytes = Arc::new(BinaryArray::from(vec![Some(b"x".as_slice()), None]));
        let stats = collect(&["BYTES"], vec![vec![bytes]]);
        assert_eq!(
            stats,
            [ColumnStats {
                null_count: Some(1),
                ..ColumnStats::unknown()
            }]
        );
    }

    #[test]
    fn a_text_bound_that_cannot_be_raised_is_left_out() {
        assert_eq!(
            truncate_up("string value number 1", 16).unwrap(),
            "string value nun"
        );
        assert_eq!(
            truncate_up(&format!("a{}", "\u{10ffff}".repeat(20)), 16).unwrap(),
            "b"
        );
        assert_eq!(truncate_up(&"\u{d7ff}".repeat(2), 1).unwrap(), "\u{e000}");
        assert_eq!(truncate_up(&"\u{10ffff}".repeat(20), 16), None);
    }

    #[test]
    fn an_array_of_another_type_is_refused() {
        let schema = schema(&["STRING"]);
        let other =
            RecordBatch::try_from_iter([("c0", Arc::new(Int32Array::from(vec![1])) as ArrayRef)]);
        let found = StatsCollector::new(&schema)
            .unwrap()
            .update(&other.unwrap());
        assert!(matches!(found, Err(Error::BadValue { .. })));
    }

    proptest! {
        #[test]
        fn no_text_lies_outside_its_cut_bounds(
            texts in prop::collection::vec(prop::option::of("[a\u{d7ff}\u{10ffff}z]{0,24}"), 1..12),
        ) {
            let array = Arc::new(StringArray::from(texts.clone()));
            let stats = collect(&["STRING"], vec![vec![array]]);
            for text in texts.into_iter().flatten() {
                let text = Datum::String(text);
                prop_assert!(stats[0].min.compare(&text).is_none_or(std::cmp::Ordering::is_le));
                prop_assert!(stats[0].max.compare(&text).is_none_or(std::cmp::Ordering::is_ge));
            }
        }
    }
}
