//! Conditions on single columns: by them files are left out unread, and rows are picked.
//!
//! They follow SQL: null meets no comparison; −0.0 equals 0.0; NaN equals itself and is above all
//! numbers; texts and bytes compare by unsigned bytes. Statistics only ever rule a file out that
//! cannot hold a row that passes.

use std::cmp::Ordering;

use arrow::array::{BooleanArray, RecordBatch};

use crate::datum::Datum;
use crate::error::{Error, Result};
use crate::schema::TableSchema;
use crate::stats::ColumnStats;
use crate::types::DataField;

mod literal;

use literal::Literal;

/// A condition on one column of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicate {
    field: DataField,
    test: Test,
}

#[derive(Clone, Debug, PartialEq)]
enum Test {
    /// No value passes: the literal is none of the column's type.
    Never,
    IsNull,
    IsNotNull,
    Compare(Comparison, Datum),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// The operators as text, longer ones before those that they begin with.
const OPERATORS: [(&str, Comparison); 7] = [
    ("<=", Comparison::LessOrEqual),
    (">=", Comparison::GreaterOrEqual),
    ("!=", Comparison::NotEqual),
    ("<>", Comparison::NotEqual),
    ("=", Comparison::Equal),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
];

impl Predicate {
    /// Reads `COLUMN OPERATOR LITERAL` or `COLUMN IS [NOT] NULL`.
    ///
    /// A column whose name is no plain word stands in backticks. Operators are `=`, `!=`, `<>`,
    /// `<`, `<=`, `>` and `>=`. A literal may stand in quotes, which are doubled within: numbers,
    /// `true`, text, bytes in hex, `2024-03-01`, `12:30:00.5`, `2024-03-01 12:30:00.5` (of instants
    /// in UTC). It is compared exactly, with as many digits as it has; only floats are rounded to
    /// the column's type.
    ///
    /// # Errors
    /// [`Error::BadValue`] if the text is no condition, names no column, or its literal is none of
    /// the column's type.
    pub fn parse(text: &str, schema: &TableSchema) -> Result<Self> {
        let no_condition = || {
            let reason = "is no condition: write COLUMN OPERATOR LITERAL or COLUMN IS NULL";
            Error::bad_value(text, reason)
        };
        let (name, rest) = column_name(text).ok_or_else(no_condition)?;
        let field = schema.field(&name);
        let field = field.ok_or_else(|| Error::bad_value(&name, "is no column"))?;
        let words: Vec<String> = rest.split_whitespace().map(str::to_uppercase).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let test = match words.as_slice() {
            ["IS", "NULL"] => Test::IsNull,
            ["IS", "NOT", "NULL"] => Test::IsNotNull,
            _ => {
                let found = OPERATORS
                    .iter()
                    .find_map(|(word, operator)| Some((rest.strip_prefix(word)?, *operator)));
                let (literal, comparison) = found.ok_or_else(no_condition)?;
                let literal = literal::unquoted(literal.trim()).ok_or_else(no_condition)?;
                comparison.with(Literal::parse(&literal, field)?)
            }
        };
        Ok(Self {
            field: field.clone(),
            test,
        })
    }

    /// The column that it looks at.
    pub fn column(&self) -> &str {
        &self.field.name
    }

    /// The column that it looks at, as it was when the condition was read.
    pub(crate) fn field(&self) -> &DataField {
        &self.field
    }

    /// Whether a value of the column passes.
    pub fn lets_through(&self, value: &Datum) -> bool {
        match (&self.test, value.is_null()) {
            (Test::IsNull, is_null) => is_null,
            (Test::Never, _) | (_, true) => false,
            (Test::IsNotNull, false) => true,
            (Test::Compare(comparison, literal), false) => {
                sql_order(value, literal).is_some_and(|order| comparison.holds(order))
            }
        }
    }

    /// Whether one of `rows` values with these statistics may pass; true when that is not known.
    pub fn may_pass(&self, stats: &ColumnStats, rows: i64) -> bool {
        if self.test == Test::IsNull {
            return stats.null_count != Some(0);
        }
        if self.test == Test::Never || stats.null_count == Some(rows) {
            return false;
        }
        let Test::Compare(comparison, literal) = &self.test else {
            return true;
        };
        let low = sql_order(&stats.min, literal);
        let high = sql_order(&stats.max, literal);
        // Other writers leave NaN out of the bounds of floats, and NaN is above them all.
        let high_is_known = !matches!(literal, Datum::Float(_) | Datum::Double(_));
        let is_nan = matches!(literal, Datum::Float(v) if v.is_nan())
            || matches!(literal, Datum::Double(v) if v.is_nan());
        let low_at_most = low.is_none_or(Ordering::is_le);
        let high_at_least = high.is_none_or(Ordering::is_ge) || (is_nan && !high_is_known);
        match comparison {
            Comparison::Equal => low_at_most && high_at_least,
            Comparison::NotEqual => {
                !high_is_known || low != Some(Ordering::Equal) || high != Some(Ordering::Equal)
            }
            Comparison::Less => low.is_none_or(Ordering::is_lt),
            Comparison::LessOrEqual => low_at_most,
            Comparison::Greater => !high_is_known || high.is_none_or(Ordering::is_gt),
            Comparison::GreaterOrEqual => !high_is_known || high_at_least,
        }
    }

    /// Which rows of a batch pass all of the conditions, whose columns it has by name.
    ///
    /// # Errors
    /// [`Error::BadValue`] if it lacks a column, or has it in another type.
    pub fn pick(conditions: &[Self], batch: &RecordBatch) -> Result<BooleanArray> {
        let mut picked = vec![true; batch.num_rows()];
        for condition in conditions {
            let name = condition.column();
            let column = batch.column_by_name(name);
            let column = column.ok_or_else(|| Error::bad_value(name, "is not in the batch"))?;
            for (row, picked) in picked.iter_mut().enumerate() {
                if *picked {
                    let value = condition.value(column, row)?;
                    *picked = condition.lets_through(&value);
                }
            }
        }
        Ok(picked.into())
    }

    /// The value in a row; of nested ones only whether it is null.
    fn value(&self, column: &arrow::array::ArrayRef, row: usize) -> Result<Datum> {
        if self.field.data_type.kind.is_nested() {
            let is_null = column.is_null(row);
            return Ok(if is_null {
                Datum::Null
            } else {
                Datum::Boolean(true)
            });
        }
        Datum::from_array(column, row, &self.field.data_type)
    }
}

impl Comparison {
    /// The test against a literal, which may lie between two values of the column's type.
    fn with(self, literal: Literal) -> Test {
        match (literal, self) {
            (Literal::Value(value), comparison) => Test::Compare(comparison, value),
            (_, Self::Equal) => Test::Never,
            (_, Self::NotEqual) => Test::IsNotNull,
            (Literal::Above(value), Self::Less | Self::LessOrEqual) => {
                Test::Compare(Self::LessOrEqual, value)
            }
            (Literal::Above(value), _) => Test::Compare(Self::Greater, value),
            (Literal::BelowAll, Self::Less | Self::LessOrEqual) => Test::Never,
            (Literal::BelowAll, _) => Test::IsNotNull,
        }
    }

    /// Whether a value in this order to the literal passes.
    fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
        }
    }
}

/// As [`Datum::compare`], but −0.0 equals 0.0.
fn sql_order(a: &Datum, b: &Datum) -> Option<Ordering> {
    match (a, b) {
        (Datum::Float(a), Datum::Float(b)) if *a == 0.0 && *b == 0.0 => Some(Ordering::Equal),
        (Datum::Double(a), Datum::Double(b)) if *a == 0.0 && *b == 0.0 => Some(Ordering::Equal),
        _ => a.compare(b),
    }
}

/// The column's name at the start of a text, and what follows it.
fn column_name(text: &str) -> Option<(String, &str)> {
    let text = text.trim();
    if let Some(rest) = text.strip_prefix('`') {
        let (name, rest) = rest.split_once('`')?;
        return Some((name.to_owned(), rest.trim()));
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    let (name, rest) = text.split_at_checked(end)?;
    (!name.is_empty()).then(|| (name.to_owned(), rest.trim()))
}

#[cfg(test)]
mod tests;
