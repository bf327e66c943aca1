//! Column statistics of data files and of the partitions in a manifest.

use std::cmp::Ordering;

use crate::binary_row::BinaryRow;
use crate::datum::Datum;
use crate::error::{Error, Result};
use crate::types::DataType;

mod collect;
mod text_bounds;

pub use collect::{StatsCollector, ValueStats};

/// Minimum, maximum and null count of columns, as manifests store them (paimon: `SimpleStats`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimpleStats {
    /// The minima: a serialized binary row, null where there is none.
    pub min: Vec<u8>,
    /// The maxima: a serialized binary row, null where there is none.
    pub max: Vec<u8>,
    /// The null counts, `None` where not counted.
    pub null_counts: Vec<Option<i64>>,
}

/// What is known of one column of a file. Wrong bounds lose rows; absent ones only cost time.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnStats {
    /// No value is below it; `Null` if unknown or if there is no value.
    pub min: Datum,
    /// No value is above it; `Null` if unknown or if there is no value.
    pub max: Datum,
    /// How many values are null, if counted.
    pub null_count: Option<i64>,
}

impl ColumnStats {
    /// Nothing is known.
    pub fn unknown() -> Self {
        Self {
            min: Datum::Null,
            max: Datum::Null,
            null_count: None,
        }
    }

    /// Takes one more value into bounds and count that began with a count of 0.
    pub fn include(&mut self, value: &Datum) {
        if value.is_null() {
            self.null_count = self.null_count.map(|count| count + 1);
            return;
        }
        if self.min.is_null() || value.compare(&self.min) == Some(Ordering::Less) {
            self.min = value.clone();
        }
        if self.max.is_null() || value.compare(&self.max) == Some(Ordering::Greater) {
            self.max = value.clone();
        }
    }

    /// Whether a column with these statistics can hold `value`; true when that is not known.
    pub fn may_hold(&self, value: &Datum) -> bool {
        if value.is_null() {
            return self.null_count != Some(0);
        }
        let below = value.compare(&self.min) == Some(Ordering::Less);
        let above = value.compare(&self.max) == Some(Ordering::Greater);
        !below && !above
    }
}

impl SimpleStats {
    /// Statistics over no column: keys of append files, partitions of unpartitioned tables.
    pub fn empty() -> Self {
        let none = BinaryRow::empty().to_serialized();
        Self {
            min: none.clone(),
            max: none,
            null_counts: Vec::new(),
        }
    }

    /// Encodes the statistics of columns of `types`.
    ///
    /// # Errors
    /// [`Error::BadValue`] if there is not one per type, or a bound is not of its type.
    pub fn encode<'a>(
        columns: &[ColumnStats],
        types: impl ExactSizeIterator<Item = &'a DataType> + Clone,
    ) -> Result<Self> {
        let min: Vec<Datum> = columns.iter().map(|column| column.min.clone()).collect();
        let max: Vec<Datum> = columns.iter().map(|column| column.max.clone()).collect();
        Ok(Self {
            min: BinaryRow::encode(&min, types.clone())?.to_serialized(),
            max: BinaryRow::encode(&max, types)?.to_serialized(),
            null_counts: columns.iter().map(|column| column.null_count).collect(),
        })
    }

    /// Decodes the statistics of columns of `types`.
    ///
    /// # Errors
    /// [`Error::Malformed`] if they are of other columns.
    pub fn decode<'a>(
        &self,
        types: impl ExactSizeIterator<Item = &'a DataType> + Clone,
    ) -> Result<Vec<ColumnStats>> {
        let min = BinaryRow::from_serialized(&self.min)?.decode(types.clone())?;
        let max = BinaryRow::from_serialized(&self.max)?.decode(types)?;
        let counts = &self.null_counts;
        if !counts.is_empty() && counts.len() != min.len() {
            let reason = format!("{} null counts for {} columns", counts.len(), min.len());
            return Err(Error::malformed("column statistics", reason));
        }
        let columns = min.into_iter().zip(max).enumerate();
        Ok(columns
            .map(|(index, (min, max))| {
                let null_count = counts.get(index).copied().flatten();
                ColumnStats {
                    min,
                    max,
                    null_count,
                }
            })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_rule_out_only_what_cannot_be_there() {
        let known = |null_count| ColumnStats {
            min: Datum::Int(2),
            max: Datum::Int(5),
            null_count,
        };
        for (value, expected) in [(1, false), (2, true), (5, true), (6, false)] {
            assert_eq!(
                known(Some(0)).may_hold(&Datum::Int(value)),
                expected,
                "{value}"
            );
            assert!(ColumnStats::unknown().may_hold(&Datum::Int(value)));
        }
        assert!(!known(Some(0)).may_hold(&Datum::Null));
        assert!(known(Some(1)).may_hold(&Datum::Null));
        assert!(known(None).may_hold(&Datum::Null));
    }
}
