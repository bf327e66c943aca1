//! A column as a file holds it to the column as a later schema has it.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, ListArray, MapArray, StringArray, StructArray, make_array,
    new_null_array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType as ArrowType, Field, Fields};
use arrow::error::ArrowError;

use crate::datum::Datum;
use crate::error::{Error, Result};
use crate::options::Names;
use crate::partition::value_text;
use crate::types::{DataField, DataType, TypeKind};

/// `array`, read from a file whose schema has the column as `from`, as the column `to`, in the
/// Arrow type `target`.
///
/// # Errors
/// [`Error::Unsupported`] if the type changed in a way that is not read; [`Error::BadValue`] if the
/// file's array is not of its schema's type; [`Error::Arrow`] if a value does not fit the new type.
pub(super) fn adapt(
    array: &ArrayRef,
    from: &DataField,
    to: &DataField,
    target: &ArrowType,
) -> Result<ArrayRef> {
    Column { name: &to.name }.adapt(array, &from.data_type, &to.data_type, target)
}

/// A row's field that is a row itself, with the nulls of the row around it: what is in those may be
/// null even where it is not nullable, and Arrow accepts that only under a null.
fn masked(column: &ArrayRef, around: Option<&NullBuffer>) -> Result<ArrayRef, ArrowError> {
    match column.as_struct_opt() {
        Some(row) if around.is_some() => {
            let (fields, columns, nulls) = row.clone().into_parts();
            let nulls = NullBuffer::union(nulls.as_ref(), around);
            let row = StructArray::try_new_with_length(fields, columns, nulls, column.len())?;
            Ok(Arc::new(row))
        }
        _ => Ok(Arc::clone(column)),
    }
}

struct Column<'a> {
    name: &'a str,
}

impl Column<'_> {
    fn adapt(
        &self,
        array: &ArrayRef,
        from: &DataType,
        to: &DataType,
        target: &ArrowType,
    ) -> Result<ArrayRef> {
        match (&from.kind, &to.kind, target) {
            (TypeKind::Array(from), TypeKind::Array(to), ArrowType::List(element)) => {
                let list = array
                    .as_list_opt::<i32>()
                    .ok_or_else(|| self.mismatch(array, target))?;
                let values = self.adapt(list.values(), from, to, element.data_type())?;
                let nulls = list.nulls().cloned();
                let adapted =
                    ListArray::try_new(Arc::clone(element), list.offsets().clone(), values, nulls);
                Ok(Arc::new(adapted.map_err(|e| self.arrow(e))?))
            }
            (
                TypeKind::Map(from_key, from_value),
                TypeKind::Map(key, value),
                ArrowType::Map(entries, _),
            ) => self.adapt_map(array, [(from_key, key), (from_value, value)], entries),
            (TypeKind::Multiset(from), TypeKind::Multiset(to), ArrowType::Map(entries, _)) => {
                let count = TypeKind::Int.not_null();
                self.adapt_map(array, [(from, to), (&count, &count)], entries)
            }
            (TypeKind::Row(from), TypeKind::Row(to), ArrowType::Struct(fields)) => {
                self.adapt_row(array, from, to, fields)
            }
            (from, to, _) if from.is_nested() || to.is_nested() => Err(self.unsupported(from, to)),
            (from, to, _) if is_same(from, to) => self.cast(array, target),
            (from, to, _) if is_widening(from, to) => self.cast(array, target),
            (from, TypeKind::VarChar { .. }, _) => self.to_text(array, from),
            (from, to, _) => Err(self.unsupported(from, to)),
        }
    }

    fn adapt_map(
        &self,
        array: &ArrayRef,
        parts: [(&DataType, &DataType); 2],
        entries_field: &Arc<Field>,
    ) -> Result<ArrayRef> {
        let mismatch = || self.mismatch(array, entries_field.data_type());
        let map = array.as_map_opt().ok_or_else(mismatch)?;
        let ArrowType::Struct(fields) = entries_field.data_type() else {
            return Err(mismatch());
        };
        let mut columns = Vec::with_capacity(2);
        for (((from, to), column), field) in
            parts.into_iter().zip(map.entries().columns()).zip(fields)
        {
            columns.push(self.adapt(column, from, to, field.data_type())?);
        }
        let entries =
            StructArray::try_new(fields.clone(), columns, None).map_err(|e| self.arrow(e))?;
        let nulls = map.nulls().cloned();
        let adapted = MapArray::try_new(
            Arc::clone(entries_field),
            map.offsets().clone(),
            entries,
            nulls,
            false,
        );
        Ok(Arc::new(adapted.map_err(|e| self.arrow(e))?))
    }

    /// Fields are found by id, as columns are.
    fn adapt_row(
        &self,
        array: &ArrayRef,
        from: &[DataField],
        to: &[DataField],
        fields: &Fields,
    ) -> Result<ArrayRef> {
        let row = array
            .as_struct_opt()
            .ok_or_else(|| self.mismatch(array, &ArrowType::Struct(fields.clone())))?;
        let mut columns = Vec::with_capacity(to.len());
        for (field, arrow_field) in to.iter().zip(fields) {
            let old = from.iter().find(|old| old.id == field.id);
            columns.push(match old {
                None => new_null_array(arrow_field.data_type(), row.len()),
                Some(old) => {
                    let column = row.column_by_name(&old.name);
                    let column = column.ok_or_else(|| {
                        Error::bad_value(
                            self.name,
                            format!("the file has no field `{}` in it", old.name),
                        )
                    })?;
                    let column = masked(column, row.nulls()).map_err(|e| self.arrow(e))?;
                    self.adapt(
                        &column,
                        &old.data_type,
                        &field.data_type,
                        arrow_field.data_type(),
                    )?
                }
            });
        }
        let adapted = if columns.is_empty() {
            Ok(StructArray::new_empty_fields(
                row.len(),
                row.nulls().cloned(),
            ))
        } else {
            StructArray::try_new(fields.clone(), columns, row.nulls().cloned())
        };
        Ok(Arc::new(adapted.map_err(|e| self.arrow(e))?))
    }

    fn cast(&self, array: &ArrayRef, target: &ArrowType) -> Result<ArrayRef> {
        if array.data_type() == target {
            return Ok(Arc::clone(array));
        }
        if let (ArrowType::Timestamp(unit, zone), ArrowType::Timestamp(new_unit, _)) =
            (array.data_type(), target)
        {
            // Both are counted from 1970 in UTC, so the zone is only a label; INT96 comes without.
            let array = if unit == new_unit {
                Arc::clone(array)
            } else {
                self.convert(array, &ArrowType::Timestamp(*new_unit, zone.clone()))?
            };
            let data = array
                .to_data()
                .into_builder()
                .data_type(target.clone())
                .build();
            return Ok(make_array(data.map_err(|e| self.arrow(e))?));
        }
        self.convert(array, target)
    }

    fn convert(&self, array: &ArrayRef, target: &ArrowType) -> Result<ArrayRef> {
        // Not "safe": that would turn what does not fit into null.
        let options = CastOptions {
            safe: false,
            ..CastOptions::default()
        };
        cast_with_options(array, target, &options).map_err(|e| self.arrow(e))
    }

    /// The text that an SQL cast gives.
    fn to_text(&self, array: &ArrayRef, from: &TypeKind) -> Result<ArrayRef> {
        let nullable = from.clone().nullable();
        let array = self.cast(array, &nullable.arrow_type())?;
        let mut texts = Vec::with_capacity(array.len());
        for row in 0..array.len() {
            let value = Datum::from_array(&array, row, &nullable)?;
            texts.push(value_text(&value, from, Names::Sql)?);
        }
        Ok(Arc::new(StringArray::from(texts)))
    }

    fn mismatch(&self, array: &ArrayRef, target: &ArrowType) -> Error {
        Error::bad_value(
            self.name,
            format!(
                "the file holds {} where {target} is expected",
                array.data_type()
            ),
        )
    }

    fn arrow(&self, source: ArrowError) -> Error {
        Error::Arrow {
            what: format!("column `{}`", self.name),
            source,
        }
    }

    fn unsupported(&self, from: &TypeKind, to: &TypeKind) -> Error {
        Error::Unsupported {
            what: format!("reading column `{}` as {to}", self.name),
            reason: format!("a file of an older schema holds it as {from}"),
        }
    }
}

/// Whether values are kept alike, so that nothing but an Arrow label can differ.
pub(super) fn is_same(from: &TypeKind, to: &TypeKind) -> bool {
    use TypeKind::{Binary, Char, Time, VarBinary, VarChar};
    match (from, to) {
        (Char { .. } | VarChar { .. }, Char { .. } | VarChar { .. })
        | (Binary { .. } | VarBinary { .. }, Binary { .. } | VarBinary { .. })
        | (Time { .. }, Time { .. }) => true,
        _ => from == to,
    }
}

/// Whether every value of the old type is one of the new, save digits of a float.
fn is_widening(from: &TypeKind, to: &TypeKind) -> bool {
    use TypeKind::{
        BigInt, Date, Decimal, Double, Float, Int, SmallInt, Timestamp, TimestampLtz, TinyInt,
    };
    match (from, to) {
        (TinyInt, SmallInt | Int | BigInt | Float | Double | Decimal { .. })
        | (SmallInt, Int | BigInt | Float | Double | Decimal { .. })
        | (Int, BigInt | Float | Double | Decimal { .. })
        | (BigInt, Float | Double | Decimal { .. })
        | (Float | Decimal { .. }, Double)
        | (Date, Timestamp { .. }) => true,
        (Decimal { scale: old, .. }, Decimal { scale: new, .. })
        | (Timestamp { precision: old }, Timestamp { precision: new })
        | (TimestampLtz { precision: old }, TimestampLtz { precision: new }) => new >= old,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
