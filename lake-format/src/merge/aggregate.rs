//! The merge engine `aggregation`: a function per column (paimon: `AggregateMergeFunction`,
//! `FieldAggregator` and those below it).

use std::cmp::Ordering;

use super::cell::{Cell, Held};
use super::rule::{Scope, names};
use super::{Merged, Version};
use crate::datum::Datum;
use crate::error::{Error, Result};
use crate::row_kind::RowKind;
use crate::types::{DataField, DataType, MAX_LENGTH, TypeKind};

/// What becomes of a column's values.
#[derive(Clone, Debug, PartialEq)]
enum Function {
    /// Of key columns: any value, for all are the same.
    Key,
    Sum,
    Product,
    Max,
    Min,
    LastValue,
    LastNonNull,
    FirstValue,
    FirstNonNull,
    ListAgg {
        delimiter: String,
        distinct: bool,
    },
    BoolOr,
    BoolAnd,
}

/// The function of one column.
#[derive(Debug)]
pub(super) struct Aggregator {
    function: Function,
    ignore_retract: bool,
    column: usize,
    data_type: DataType,
    /// Table, column and function, for errors.
    what: String,
}

/// What a column has become so far.
#[derive(Clone, Debug)]
pub(super) struct Total {
    pub(super) cell: Cell,
    /// Whether the function of first values has its value, which may be null.
    has_first: bool,
}

impl Total {
    pub(super) fn new() -> Self {
        Self {
            cell: Cell::Null,
            has_first: false,
        }
    }
}

/// The engine.
#[derive(Debug)]
pub(super) struct Aggregation {
    aggregators: Vec<Aggregator>,
    remove_on_delete: bool,
}

impl Aggregation {
    pub(super) fn new(scope: Scope<'_>) -> Result<Self> {
        let options = scope.options();
        let sequence = names(options.get("sequence.field").unwrap_or_default());
        let default = options.get("fields.default-aggregate-function");
        let mut aggregators = Vec::with_capacity(scope.fields.len());
        for (column, field) in scope.fields.iter().enumerate() {
            let own = format!("fields.{}.aggregate-function", field.name);
            let function = if sequence.contains(&field.name.as_str()) {
                "last_value"
            } else if scope.schema.primary_keys.contains(&field.name) {
                "primary-key"
            } else {
                let own = options.get(&own).or(default);
                own.unwrap_or("last_non_null_value")
            };
            aggregators.push(Aggregator::new(scope, column, field, function)?);
        }
        Ok(Self {
            aggregators,
            remove_on_delete: options.is_true("aggregation.remove-record-on-delete", false)?,
        })
    }

    /// The row of the versions; it is retracted if the last of them deletes it.
    pub(super) fn merge(&self, versions: &[Version], held: &Held) -> Result<Merged> {
        let mut totals = vec![Total::new(); self.aggregators.len()];
        let mut is_deleted = false;
        for version in versions {
            is_deleted = self.remove_on_delete && version.kind == RowKind::Delete;
            for (aggregator, total) in self.aggregators.iter().zip(&mut totals) {
                let value = held.cell(aggregator.column, version.place)?;
                if is_deleted {
                    // What the row was deleted with is what later versions add to.
                    total.cell = value;
                } else if version.kind.is_retraction() {
                    aggregator.retract(held, total, value)?;
                } else {
                    aggregator.add(held, total, value)?;
                }
            }
        }
        Ok(Merged {
            cells: totals.into_iter().map(|total| total.cell).collect(),
            sequence: versions.last().map_or(0, |version| version.sequence),
            kind: if is_deleted {
                RowKind::Delete
            } else {
                RowKind::Insert
            },
        })
    }
}

impl Aggregator {
    /// # Errors
    /// [`Error::Unsupported`] with table, column and function if it is not known or not for the
    /// column's type.
    pub(super) fn new(
        scope: Scope<'_>,
        column: usize,
        field: &DataField,
        name: &str,
    ) -> Result<Self> {
        let options = scope.options();
        let option = |suffix: &str| format!("fields.{}.{suffix}", field.name);
        let function = match name {
            "primary-key" => Some(Function::Key),
            "sum" => Some(Function::Sum),
            "product" => Some(Function::Product),
            "max" => Some(Function::Max),
            "min" => Some(Function::Min),
            "last_value" => Some(Function::LastValue),
            "last_non_null_value" => Some(Function::LastNonNull),
            "first_value" => Some(Function::FirstValue),
            "first_non_null_value" | "first_not_null_value" => Some(Function::FirstNonNull),
            "bool_or" => Some(Function::BoolOr),
            "bool_and" => Some(Function::BoolAnd),
            "listagg" => {
                let delimiter = options.get(&option("list-agg-delimiter"));
                Some(Function::ListAgg {
                    delimiter: delimiter.unwrap_or(",").to_owned(),
                    distinct: options.is_true(&option("distinct"), false)?,
                })
            }
            _ => None,
        };
        let what = format!(
            "aggregate function `{name}` of column `{}` in {}",
            field.name, scope.table
        );
        let Some(function) = function else {
            return Err(Error::Unsupported {
                what,
                reason: "it is not known".to_owned(),
            });
        };
        if !function.takes(&field.data_type.kind) {
            return Err(Error::Unsupported {
                what,
                reason: format!("it does not take {}", field.data_type.kind),
            });
        }
        Ok(Self {
            function,
            ignore_retract: options.is_true(&option("ignore-retract"), false)?,
            column,
            data_type: field.data_type.clone(),
            what,
        })
    }

    /// Adds a value to the total.
    pub(super) fn add(&self, held: &Held, total: &mut Total, value: Cell) -> Result<()> {
        let sum = std::mem::replace(&mut total.cell, Cell::Null);
        total.cell = self.aggregate(held, sum, value, &mut total.has_first)?;
        Ok(())
    }

    /// Adds a value that is older than the total.
    pub(super) fn add_older(&self, held: &Held, total: &mut Total, value: Cell) -> Result<()> {
        let sum = std::mem::replace(&mut total.cell, Cell::Null);
        total.cell = self.aggregate(held, value, sum, &mut total.has_first)?;
        Ok(())
    }

    /// Takes a value back.
    pub(super) fn retract(&self, held: &Held, total: &mut Total, value: Cell) -> Result<()> {
        if self.ignore_retract {
            return Ok(());
        }
        match self.function {
            Function::Key => total.cell = value,
            Function::LastValue => total.cell = Cell::Null,
            Function::LastNonNull => {
                if !value.is_null() {
                    total.cell = Cell::Null;
                }
            }
            Function::Sum if value.is_null() => {}
            Function::Sum => {
                let sum = std::mem::replace(&mut total.cell, Cell::Null);
                let zero = matches!(sum, Cell::Null).then(|| self.zero()).flatten();
                let sum = match zero {
                    Some(zero) => zero,
                    None => self.datum(held, &sum)?,
                };
                total.cell = self.difference(&sum, &self.datum(held, &value)?)?;
            }
            _ => {
                return Err(Error::Unsupported {
                    what: format!("a retraction for the {}", self.what),
                    reason: "the function cannot take values back".to_owned(),
                });
            }
        }
        Ok(())
    }

    fn aggregate(&self, held: &Held, sum: Cell, value: Cell, has_first: &mut bool) -> Result<Cell> {
        match &self.function {
            Function::Key | Function::LastValue => return Ok(value),
            Function::FirstValue => {
                let had_first = std::mem::replace(has_first, true);
                return Ok(if had_first { sum } else { value });
            }
            Function::FirstNonNull => {
                if *has_first || value.is_null() {
                    return Ok(sum);
                }
                *has_first = true;
                return Ok(value);
            }
            Function::ListAgg {
                delimiter,
                distinct,
            } => return self.joined(held, sum, value, delimiter, *distinct),
            _ => {}
        }
        if sum.is_null() {
            return Ok(value);
        }
        if value.is_null() {
            return Ok(sum);
        }
        if self.function == Function::LastNonNull {
            return Ok(value);
        }
        let (a, b) = (self.datum(held, &sum)?, self.datum(held, &value)?);
        match self.function {
            Function::Max => Ok(if a.compare(&b) == Some(Ordering::Less) {
                value
            } else {
                sum
            }),
            Function::Min => Ok(if a.compare(&b) == Some(Ordering::Less) {
                sum
            } else {
                value
            }),
            Function::Product => self.product(&a, &b),
            Function::BoolOr | Function::BoolAnd => {
                let decides = Datum::Boolean(self.function == Function::BoolOr);
                Ok(if a == decides { sum } else { value })
            }
            _ => self.sum(&a, &b),
        }
    }

    /// Blank texts are left out; without duplicates if they are not wanted (paimon:
    /// `FieldListaggAgg`).
    fn joined(
        &self,
        held: &Held,
        sum: Cell,
        value: Cell,
        delimiter: &str,
        distinct: bool,
    ) -> Result<Cell> {
        let text = |cell: &Cell| match self.datum(held, cell)? {
            Datum::String(text) if !text.trim().is_empty() => Ok(Some(text)),
            _ => Ok(None),
        };
        let Some(added) = text(&value)? else {
            return Ok(sum);
        };
        let Some(mut joined) = text(&sum)? else {
            return Ok(value);
        };
        if !distinct || delimiter.is_empty() {
            return Ok(Cell::Computed(Datum::String(joined + delimiter + &added)));
        }
        let mut known: Vec<String> = joined.split(delimiter).map(str::to_owned).collect();
        for token in added.split(delimiter) {
            if !token.trim().is_empty() && !known.iter().any(|known| known == token) {
                joined = joined + delimiter + token;
                known.push(token.to_owned());
            }
        }
        Ok(Cell::Computed(Datum::String(joined)))
    }

    fn datum(&self, held: &Held, cell: &Cell) -> Result<Datum> {
        held.datum(self.column, &self.data_type, cell)
    }

    fn zero(&self) -> Option<Datum> {
        Some(match self.data_type.kind {
            TypeKind::TinyInt => Datum::TinyInt(0),
            TypeKind::SmallInt => Datum::SmallInt(0),
            TypeKind::Int => Datum::Int(0),
            TypeKind::BigInt => Datum::BigInt(0),
            TypeKind::Float => Datum::Float(0.0),
            TypeKind::Double => Datum::Double(0.0),
            TypeKind::Decimal { .. } => Datum::Decimal(0),
            _ => return None,
        })
    }

    fn sum(&self, a: &Datum, b: &Datum) -> Result<Cell> {
        self.checked(match (a, b) {
            (Datum::TinyInt(a), Datum::TinyInt(b)) => a.checked_add(*b).map(Datum::TinyInt),
            (Datum::SmallInt(a), Datum::SmallInt(b)) => a.checked_add(*b).map(Datum::SmallInt),
            (Datum::Int(a), Datum::Int(b)) => a.checked_add(*b).map(Datum::Int),
            (Datum::BigInt(a), Datum::BigInt(b)) => a.checked_add(*b).map(Datum::BigInt),
            (Datum::Float(a), Datum::Float(b)) => Some(Datum::Float(a + b)),
            (Datum::Double(a), Datum::Double(b)) => Some(Datum::Double(a + b)),
            (Datum::Decimal(a), Datum::Decimal(b)) => return Ok(self.decimal(a.checked_add(*b))),
            _ => None,
        })
    }

    fn difference(&self, a: &Datum, b: &Datum) -> Result<Cell> {
        self.checked(match (a, b) {
            (Datum::TinyInt(a), Datum::TinyInt(b)) => a.checked_sub(*b).map(Datum::TinyInt),
            (Datum::SmallInt(a), Datum::SmallInt(b)) => a.checked_sub(*b).map(Datum::SmallInt),
            (Datum::Int(a), Datum::Int(b)) => a.checked_sub(*b).map(Datum::Int),
            (Datum::BigInt(a), Datum::BigInt(b)) => a.checked_sub(*b).map(Datum::BigInt),
            (Datum::Float(a), Datum::Float(b)) => Some(Datum::Float(a - b)),
            (Datum::Double(a), Datum::Double(b)) => Some(Datum::Double(a - b)),
            (Datum::Decimal(a), Datum::Decimal(b)) => return Ok(self.decimal(a.checked_sub(*b))),
            _ => None,
        })
    }

    fn product(&self, a: &Datum, b: &Datum) -> Result<Cell> {
        self.checked(match (a, b) {
            (Datum::TinyInt(a), Datum::TinyInt(b)) => a.checked_mul(*b).map(Datum::TinyInt),
            (Datum::SmallInt(a), Datum::SmallInt(b)) => a.checked_mul(*b).map(Datum::SmallInt),
            (Datum::Int(a), Datum::Int(b)) => a.checked_mul(*b).map(Datum::Int),
            (Datum::BigInt(a), Datum::BigInt(b)) => a.checked_mul(*b).map(Datum::BigInt),
            (Datum::Float(a), Datum::Float(b)) => Some(Datum::Float(a * b)),
            (Datum::Double(a), Datum::Double(b)) => Some(Datum::Double(a * b)),
            _ => None,
        })
    }

    /// A decimal with more digits than its type has is null (paimon: `DecimalUtils`).
    fn decimal(&self, unscaled: Option<i128>) -> Cell {
        let datum = unscaled.map(Datum::Decimal);
        match datum.filter(|datum| datum.fits(&self.data_type)) {
            Some(datum) => Cell::Computed(datum),
            None => Cell::Null,
        }
    }

    fn checked(&self, value: Option<Datum>) -> Result<Cell> {
        let overflow = || {
            let reason = format!("a value is beyond {}", self.data_type.kind);
            Error::bad_value(self.what.clone(), reason)
        };
        value.map(Cell::Computed).ok_or_else(overflow)
    }
}

impl Function {
    fn takes(&self, kind: &TypeKind) -> bool {
        let is_number = matches!(
            kind,
            TypeKind::TinyInt
                | TypeKind::SmallInt
                | TypeKind::Int
                | TypeKind::BigInt
                | TypeKind::Float
                | TypeKind::Double
        );
        match self {
            Self::Sum => is_number || matches!(kind, TypeKind::Decimal { .. }),
            // How digits of decimal products are rounded is not known here.
            Self::Product => is_number,
            Self::Max | Self::Min => !kind.is_nested(),
            Self::BoolOr | Self::BoolAnd => *kind == TypeKind::Boolean,
            Self::ListAgg { .. } => {
                matches!(kind, TypeKind::VarChar { length } if *length == MAX_LENGTH)
            }
            _ => true,
        }
    }
}
