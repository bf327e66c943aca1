//! Batches as they come against the columns of a table.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, MapArray, RecordBatch, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, SchemaRef};

use crate::error::{Error, Result};

/// The batch with exactly the columns of `schema`.
///
/// Names and order must agree. Arrays are taken as they are; only labels change: names and ids of
/// nested parts, the zone of an instant. `FixedSizeBinary` becomes `Binary`. No other type is
/// converted.
///
/// # Errors
/// [`Error::BadValue`] naming the column if it is another, has another type, or has a null where
/// none may be.
pub(crate) fn conform(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let found = batch.schema_ref();
    if found.fields().len() != schema.fields().len() {
        let missing = schema.fields().get(found.fields().len());
        let surplus = || found.fields().get(schema.fields().len());
        let column = missing.or_else(surplus).map(|field| field.name().clone());
        let reason = format!(
            "the batch has {} columns, the table {}",
            found.fields().len(),
            schema.fields().len()
        );
        return Err(Error::bad_value(column.unwrap_or_default(), reason));
    }
    let mut columns = Vec::with_capacity(batch.num_columns());
    let pairs = schema.fields().iter().zip(found.fields());
    for ((field, found), array) in pairs.zip(batch.columns()) {
        if field.name() != found.name() {
            let reason = format!("the batch has the column `{}` in its place", found.name());
            return Err(Error::bad_value(field.name(), reason));
        }
        let place = Place {
            name: field.name(),
            above: None,
        };
        check_nulls(field, array, None, &place)?;
        columns.push(conform_array(field, array, None, &place)?);
    }
    RecordBatch::try_new(Arc::clone(schema), columns).map_err(|source| Error::Arrow {
        what: "a batch".to_owned(),
        source,
    })
}

/// Where in a column an array is; shown as `column.element.field`.
struct Place<'a> {
    name: &'a str,
    above: Option<&'a Place<'a>>,
}

impl Place<'_> {
    fn path(&self) -> String {
        match self.above {
            None => self.name.to_owned(),
            Some(above) => format!("{}.{}", above.path(), self.name),
        }
    }
}

/// `present`: which rows of `array` have a parent at all; nulls elsewhere are only filling.
fn check_nulls(
    field: &Field,
    array: &ArrayRef,
    present: Option<&NullBuffer>,
    place: &Place<'_>,
) -> Result<()> {
    let nulls = match array.nulls() {
        Some(nulls) if !field.is_nullable() && nulls.null_count() > 0 => nulls,
        _ => return Ok(()),
    };
    let is_present = |row: usize| present.is_none_or(|present| present.is_valid(row));
    match (0..array.len()).find(|row| nulls.is_null(*row) && is_present(*row)) {
        None => Ok(()),
        Some(row) => {
            let reason = format!("it is NOT NULL, but value {row} of the batch is null");
            Err(Error::bad_value(place.path(), reason))
        }
    }
}

/// `present`: as for [`check_nulls`].
fn conform_array(
    field: &Field,
    array: &ArrayRef,
    present: Option<&NullBuffer>,
    place: &Place<'_>,
) -> Result<ArrayRef> {
    let data_type = field.data_type();
    match (data_type, array.data_type()) {
        (DataType::List(element), DataType::List(_)) => {
            let list = array.as_list::<i32>();
            let below = Place {
                name: "element",
                above: Some(place),
            };
            check_nulls(element, list.values(), None, &below)?;
            let values = conform_array(element, list.values(), None, &below)?;
            let offsets = list.offsets().clone();
            let list = ListArray::try_new(Arc::clone(element), offsets, values, nulls_of(array));
            Ok(Arc::new(list.map_err(|e| arrow_error(place, e))?))
        }
        (DataType::Map(entries, sorted), DataType::Map(..)) => {
            let map = array.as_map();
            let DataType::Struct(parts) = entries.data_type() else {
                return Err(mismatch(data_type, array, place));
            };
            let rows = conform_row(parts, map.entries(), None, place)?;
            let offsets = map.offsets().clone();
            let entries = Arc::clone(entries);
            let map = MapArray::try_new(entries, offsets, rows, nulls_of(array), *sorted);
            Ok(Arc::new(map.map_err(|e| arrow_error(place, e))?))
        }
        (DataType::Struct(fields), DataType::Struct(_)) => Ok(Arc::new(conform_row(
            fields,
            array.as_struct(),
            present,
            place,
        )?)),
        (DataType::Timestamp(unit, zone), DataType::Timestamp(found_unit, found_zone))
            if unit == found_unit && zone.is_some() == found_zone.is_some() =>
        {
            relabel(array, data_type, place)
        }
        (DataType::Binary, DataType::FixedSizeBinary(_)) => relabel(array, data_type, place),
        (expected, found) if expected == found => Ok(Arc::clone(array)),
        _ => Err(mismatch(data_type, array, place)),
    }
}

fn conform_row(
    fields: &arrow::datatypes::Fields,
    row: &StructArray,
    present: Option<&NullBuffer>,
    place: &Place<'_>,
) -> Result<StructArray> {
    if fields.len() != row.num_columns() {
        let reason = format!("it has {} fields, not {}", row.num_columns(), fields.len());
        return Err(Error::bad_value(place.path(), reason));
    }
    // Under a null row even a field that is not nullable may be null, however deep.
    let nulls = NullBuffer::union(row.nulls(), present);
    let mut columns = Vec::with_capacity(fields.len());
    for (field, column) in fields.iter().zip(row.columns()) {
        let below = Place {
            name: field.name(),
            above: Some(place),
        };
        check_nulls(field, column, nulls.as_ref(), &below)?;
        columns.push(conform_array(field, column, nulls.as_ref(), &below)?);
    }
    StructArray::try_new_with_length(fields.clone(), columns, nulls, row.len())
        .map_err(|e| arrow_error(place, e))
}

fn relabel(array: &ArrayRef, data_type: &DataType, place: &Place<'_>) -> Result<ArrayRef> {
    if array.data_type() == data_type {
        return Ok(Arc::clone(array));
    }
    arrow::compute::cast(array, data_type).map_err(|e| arrow_error(place, e))
}

fn nulls_of(array: &ArrayRef) -> Option<NullBuffer> {
    array.nulls().cloned()
}

fn mismatch(expected: &DataType, array: &ArrayRef, place: &Place<'_>) -> Error {
    let reason = format!(
        "its Arrow type is {expected}, but the batch has {}",
        array.data_type()
    );
    Error::bad_value(place.path(), reason)
}

fn arrow_error(place: &Place<'_>, source: arrow::error::ArrowError) -> Error {
    Error::Arrow {
        what: format!("column `{}`", place.path()),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{BinaryArray, FixedSizeBinaryArray, Int32Array, TimestampMillisecondArray};
    use arrow::datatypes::{Int32Type, Schema, TimeUnit};

    fn one_column(field: Field, array: ArrayRef) -> RecordBatch {
        RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![array]).unwrap()
    }

    fn table(name: &str, data_type: DataType, nullable: bool) -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new(name, data_type, nullable)]))
    }

    fn error_of(batch: &RecordBatch, schema: &SchemaRef) -> String {
        let error = conform(batch, schema).unwrap_err();
        assert!(matches!(error, Error::BadValue { .. }), "{error}");
        error.to_string()
    }

    #[test]
    fn wrong_columns_are_errors_that_name_the_column() {
        let ints: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None]));
        let batch = one_column(Field::new("a", DataType::Int32, true), ints);
        for schema in [
            table("a", DataType::Int64, true),
            table("a", DataType::Int32, false),
            table("x", DataType::Int32, true),
            Arc::new(Schema::new(vec![
                Field::new("a", DataType::Int32, true),
                Field::new("x", DataType::Int32, true),
            ])),
        ] {
            let name = schema.fields().last().unwrap().name().clone();
            let error = error_of(&batch, &schema);
            assert!(error.contains(&format!("`{name}`")), "{error}");
        }
    }

    #[test]
    fn labels_of_nested_parts_and_zones_are_the_table_s() {
        let lists =
            ListArray::from_iter_primitive::<Int32Type, _, _>(vec![Some(vec![Some(1)]), None]);
        let batch = one_column(
            Field::new("a", lists.data_type().clone(), true),
            Arc::new(lists),
        );
        let element = Arc::new(Field::new("element", DataType::Int32, false));
        let schema = table("a", DataType::List(element), true);
        assert_eq!(conform(&batch, &schema).unwrap().schema(), schema);

        let instants = TimestampMillisecondArray::from(vec![7]).with_timezone("+00:00");
        let batch = one_column(
            Field::new("a", instants.data_type().clone(), true),
            Arc::new(instants),
        );
        let utc = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
        assert!(conform(&batch, &table("a", utc, true)).is_ok());
        let local = DataType::Timestamp(TimeUnit::Millisecond, None);
        assert!(conform(&batch, &table("a", local, true)).is_err());
    }

    #[test]
    fn fixed_size_binary_becomes_binary() {
        let fixed = FixedSizeBinaryArray::try_from_iter([b"ab", b"cd"].into_iter()).unwrap();
        let batch = one_column(
            Field::new("a", fixed.data_type().clone(), true),
            Arc::new(fixed),
        );
        let conformed = conform(&batch, &table("a", DataType::Binary, true)).unwrap();
        assert_eq!(
            conformed.column(0).as_ref(),
            &BinaryArray::from_vec(vec![b"ab", b"cd"]) as &dyn Array
        );
    }

    #[test]
    fn a_null_in_a_part_that_is_not_null_is_an_error_unless_the_row_around_it_is_null() {
        let ints: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None]));
        let row = |nulls: Option<NullBuffer>| {
            let fields = vec![Field::new("x", DataType::Int32, true)].into();
            let row = StructArray::new(fields, vec![Arc::clone(&ints)], nulls);
            one_column(
                Field::new("a", row.data_type().clone(), true),
                Arc::new(row),
            )
        };
        let strict = DataType::Struct(vec![Field::new("x", DataType::Int32, false)].into());
        let schema = table("a", strict, true);
        let error = error_of(&row(None), &schema);
        assert!(error.contains("`a.x`"), "{error}");
        assert!(conform(&row(Some(vec![true, false].into())), &schema).is_ok());

        let inner = Arc::clone(row(None).column(0));
        let outer = vec![Field::new("r", inner.data_type().clone(), true)].into();
        let outer = StructArray::new(outer, vec![inner], Some(vec![true, false].into()));
        let strict = Field::new("r", schema.field(0).data_type().clone(), false);
        let strict = table("b", DataType::Struct(vec![strict].into()), true);
        let batch = one_column(
            Field::new("b", outer.data_type().clone(), true),
            Arc::new(outer),
        );
        assert!(conform(&batch, &strict).is_ok());
    }
}
