//! The merge engine `aggregation`: a function per column. Facts: fluss `AggFunctionType`,
//! `AggregationContext`, and the field aggregators.
//!
//! Unlike in the reference, a number that its column can't hold is an error: the reference lets
//! integers wrap around and makes null of decimals.

use std::cmp::Ordering;

use arrow::datatypes::i256;
use roaring::RoaringBitmap;
use weir_protocol::row::Datum;
use weir_protocol::schema::{AggFunction, LogicalType, Schema, TypeKind};

use crate::error::{Error, Result};

#[cfg(test)]
mod tests;

/// The parameter of LISTAGG.
const DELIMITER: &str = "delimiter";

/// What becomes of a column's old and new value.
#[derive(Clone, Debug, PartialEq)]
enum Function {
    Sum,
    Product,
    Max,
    Min,
    /// The new value, null or not; of key columns, too.
    Last,
    /// The new value unless it is null; of columns that name no function.
    LastNonNull,
    /// The old value unless it is null; both functions of first values, for null is not told from
    /// no value.
    First,
    ListAgg {
        delimiter: String,
    },
    And,
    Or,
    /// The union of bitmaps of 32-bit numbers.
    Union,
}

/// The functions of a table's columns, in their order.
#[derive(Debug)]
pub(super) struct Aggregators(Vec<Aggregator>);

#[derive(Debug)]
struct Aggregator {
    function: Function,
    column: String,
    ty: LogicalType,
}

impl Aggregators {
    /// The functions that a schema names.
    ///
    /// # Errors
    /// [`Error::AggregateFunction`] for one that is not known, does not take the column's type, or
    /// a parameter that it does not take.
    pub(super) fn of(schema: &Schema) -> Result<Self> {
        let columns = schema.columns.iter().map(|column| {
            let function = match &column.agg_function {
                _ if schema.primary_key.contains(&column.name) => Function::Last,
                None => Function::LastNonNull,
                Some(function) => {
                    let refused = |reason| Error::AggregateFunction {
                        column: column.name.clone(),
                        function: function.kind.clone(),
                        reason,
                    };
                    Function::of(function, &column.ty.kind).map_err(refused)?
                }
            };
            Ok(Aggregator {
                function,
                column: column.name.clone(),
                ty: column.ty.clone(),
            })
        });
        Ok(Self(columns.collect::<Result<_>>()?))
    }

    /// What a column becomes.
    ///
    /// # Errors
    /// [`Error::Aggregate`] for a number or bitmap that the column can't hold.
    pub(super) fn merge(&self, column: usize, old: &Datum, new: Datum) -> Result<Datum> {
        match self.0.get(column) {
            Some(aggregator) => aggregator.merge(old, new),
            None => Ok(new),
        }
    }
}

impl Aggregator {
    fn merge(&self, old: &Datum, new: Datum) -> Result<Datum> {
        match &self.function {
            Function::Last => return Ok(new),
            _ if new.is_null() => return Ok(old.clone()),
            Function::LastNonNull => return Ok(new),
            _ if old.is_null() => return Ok(new),
            _ => {}
        }
        let refused = |reason| Error::Aggregate {
            column: self.column.clone(),
            reason,
        };
        let beyond = || refused("the result is beyond the column's type");
        match &self.function {
            Function::Last | Function::LastNonNull => Ok(new),
            Function::First => Ok(old.clone()),
            Function::Max => Ok(if order(old, &new) == Ordering::Less {
                new
            } else {
                old.clone()
            }),
            Function::Min => Ok(if order(old, &new) == Ordering::Less {
                old.clone()
            } else {
                new
            }),
            Function::And => Ok(Datum::Boolean(is_true(old) && is_true(&new))),
            Function::Or => Ok(Datum::Boolean(is_true(old) || is_true(&new))),
            Function::Sum => sum(old, &new)
                .filter(|sum| self.holds(sum))
                .ok_or_else(beyond),
            Function::Product => product(old, &new, &self.ty.kind)
                .filter(|product| self.holds(product))
                .ok_or_else(beyond),
            Function::ListAgg { delimiter } => match (old, new) {
                (Datum::String(old), Datum::String(new)) => {
                    Ok(Datum::String(format!("{old}{delimiter}{new}")))
                }
                (_, new) => Ok(new),
            },
            Function::Union => match (old, new) {
                (Datum::Bytes(old), Datum::Bytes(new)) => {
                    let union = union(old, &new).map_err(refused)?;
                    Ok(Datum::Bytes(union))
                }
                (_, new) => Ok(new),
            },
        }
    }

    /// Whether a decimal has no more digits than its type.
    fn holds(&self, value: &Datum) -> bool {
        match (value, &self.ty.kind) {
            (Datum::Decimal(unscaled), TypeKind::Decimal { precision, .. }) => {
                let digits = unscaled.unsigned_abs().checked_ilog10().unwrap_or(0) + 1;
                i64::from(digits) <= i64::from(*precision)
            }
            _ => true,
        }
    }
}

impl Function {
    fn of(function: &AggFunction, kind: &TypeKind) -> std::result::Result<Self, &'static str> {
        let name = function.kind.replace('-', "_").to_ascii_uppercase();
        let is_list = matches!(name.as_str(), "LISTAGG" | "STRING_AGG");
        let mut delimiter = ",".to_owned();
        for (parameter, value) in &function.parameters {
            match parameter.as_str() {
                DELIMITER if is_list && !value.is_empty() => delimiter.clone_from(value),
                DELIMITER if is_list => return Err("its delimiter must not be empty"),
                _ => return Err("it does not take this parameter"),
            }
        }
        let known = match name.as_str() {
            "SUM" => Self::Sum,
            "PRODUCT" => Self::Product,
            "MAX" => Self::Max,
            "MIN" => Self::Min,
            "LAST_VALUE" => Self::Last,
            "LAST_VALUE_IGNORE_NULLS" => Self::LastNonNull,
            "FIRST_VALUE" | "FIRST_VALUE_IGNORE_NULLS" => Self::First,
            "LISTAGG" | "STRING_AGG" => Self::ListAgg { delimiter },
            "BOOL_AND" => Self::And,
            "BOOL_OR" => Self::Or,
            "RBM32" => Self::Union,
            // Its bitmaps have a layout that only one library of one language reads.
            "RBM64" => return Err("this server does not support it"),
            _ => return Err("it is not known"),
        };
        if known.takes(kind) {
            Ok(known)
        } else {
            Err("it does not take the column's type")
        }
    }

    fn takes(&self, kind: &TypeKind) -> bool {
        let is_number = matches!(
            kind,
            TypeKind::TinyInt
                | TypeKind::SmallInt
                | TypeKind::Int
                | TypeKind::BigInt
                | TypeKind::Float
                | TypeKind::Double
                | TypeKind::Decimal { .. }
        );
        match self {
            Self::Sum | Self::Product => is_number,
            Self::Max | Self::Min => {
                is_number
                    || matches!(
                        kind,
                        TypeKind::Char { .. }
                            | TypeKind::String
                            | TypeKind::Date
                            | TypeKind::Time { .. }
                            | TypeKind::Timestamp { .. }
                            | TypeKind::TimestampLtz { .. }
                    )
            }
            Self::ListAgg { .. } => *kind == TypeKind::String,
            Self::And | Self::Or => *kind == TypeKind::Boolean,
            Self::Union => *kind == TypeKind::Bytes,
            Self::Last | Self::LastNonNull | Self::First => true,
        }
    }
}

fn is_true(value: &Datum) -> bool {
    *value == Datum::Boolean(true)
}

/// The order of two values of one type; NaN is the greatest, -0.0 is below 0.0.
fn order(a: &Datum, b: &Datum) -> Ordering {
    match (a, b) {
        (Datum::TinyInt(a), Datum::TinyInt(b)) => a.cmp(b),
        (Datum::SmallInt(a), Datum::SmallInt(b)) => a.cmp(b),
        (Datum::Int(a), Datum::Int(b))
        | (Datum::Date(a), Datum::Date(b))
        | (Datum::Time(a), Datum::Time(b)) => a.cmp(b),
        (Datum::BigInt(a), Datum::BigInt(b)) => a.cmp(b),
        (Datum::Float(a), Datum::Float(b)) => order_of_floats(f64::from(*a), f64::from(*b)),
        (Datum::Double(a), Datum::Double(b)) => order_of_floats(*a, *b),
        (Datum::Decimal(a), Datum::Decimal(b)) => a.cmp(b),
        (Datum::String(a), Datum::String(b)) => a.as_bytes().cmp(b.as_bytes()),
        (
            Datum::Timestamp { millis, nanos },
            Datum::Timestamp {
                millis: other_millis,
                nanos: other_nanos,
            },
        ) => (millis, nanos).cmp(&(other_millis, other_nanos)),
        _ => Ordering::Equal,
    }
}

fn order_of_floats(a: f64, b: f64) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (false, false) => a.total_cmp(&b),
        (a, b) => a.cmp(&b),
    }
}

/// `None` beyond the type.
fn sum(a: &Datum, b: &Datum) -> Option<Datum> {
    Some(match (a, b) {
        (Datum::TinyInt(a), Datum::TinyInt(b)) => Datum::TinyInt(a.checked_add(*b)?),
        (Datum::SmallInt(a), Datum::SmallInt(b)) => Datum::SmallInt(a.checked_add(*b)?),
        (Datum::Int(a), Datum::Int(b)) => Datum::Int(a.checked_add(*b)?),
        (Datum::BigInt(a), Datum::BigInt(b)) => Datum::BigInt(a.checked_add(*b)?),
        (Datum::Float(a), Datum::Float(b)) => Datum::Float(a + b),
        (Datum::Double(a), Datum::Double(b)) => Datum::Double(a + b),
        (Datum::Decimal(a), Datum::Decimal(b)) => Datum::Decimal(a.checked_add(*b)?),
        _ => return None,
    })
}

/// `None` beyond the type; digits of decimals beyond their scale are rounded half away from zero.
fn product(a: &Datum, b: &Datum, kind: &TypeKind) -> Option<Datum> {
    Some(match (a, b) {
        (Datum::TinyInt(a), Datum::TinyInt(b)) => Datum::TinyInt(a.checked_mul(*b)?),
        (Datum::SmallInt(a), Datum::SmallInt(b)) => Datum::SmallInt(a.checked_mul(*b)?),
        (Datum::Int(a), Datum::Int(b)) => Datum::Int(a.checked_mul(*b)?),
        (Datum::BigInt(a), Datum::BigInt(b)) => Datum::BigInt(a.checked_mul(*b)?),
        (Datum::Float(a), Datum::Float(b)) => Datum::Float(a * b),
        (Datum::Double(a), Datum::Double(b)) => Datum::Double(a * b),
        (Datum::Decimal(a), Datum::Decimal(b)) => {
            let TypeKind::Decimal { scale, .. } = kind else {
                return None;
            };
            let product = i256::from_i128(*a).checked_mul(i256::from_i128(*b))?;
            let unit = i256::from_i128(10_i128.checked_pow(u32::from(*scale))?);
            let half = unit.checked_div(i256::from_i128(2))?;
            let half = if product.is_negative() { -half } else { half };
            let rounded = product.checked_add(half)?.checked_div(unit)?;
            Datum::Decimal(rounded.to_i128()?)
        }
        _ => return None,
    })
}

/// The portable form of roaring bitmaps, both ways.
fn union(old: &[u8], new: &[u8]) -> std::result::Result<Vec<u8>, &'static str> {
    let unreadable = |_| "a value is no roaring bitmap of 32-bit numbers";
    let mut all = RoaringBitmap::deserialize_from(old).map_err(unreadable)?;
    all |= RoaringBitmap::deserialize_from(new).map_err(unreadable)?;
    let mut bytes = Vec::with_capacity(all.serialized_size());
    all.serialize_into(&mut bytes)
        .map_err(|_| "the union can't be written")?;
    Ok(bytes)
}
