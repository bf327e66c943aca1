//! Batches as they come against the columns of a table.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int32Array, ListArray, MapArray, RecordBatch, StructArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;

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
            let nulls = NullBuffer::union(array.nulls(), present);
            let (values, offsets) = elements(list.values(), list.offsets(), nulls.as_ref())
                .map_err(|e| arrow_error(place, e))?;
            check_nulls(element, &values, None, &below)?;
            let values = conform_array(element, &values, None, &below)?;
            let list = ListArray::try_new(Arc::clone(element), offsets, values, nulls);
            Ok(Arc::new(list.map_err(|e| arrow_error(place, e))?))
        }
        (DataType::Map(entries, sorted), DataType::Map(..)) => {
            let map = array.as_map();
            let DataType::Struct(parts) = entries.data_type() else {
                return Err(mismatch(data_type, array, place));
            };
            let nulls = NullBuffer::union(array.nulls(), present);
            let rows: ArrayRef = Arc::new(map.entries().clone());
            let (rows, offsets) = elements(&rows, map.offsets(), nulls.as_ref())
                .map_err(|e| arrow_error(place, e))?;
            let rows = conform_row(parts, rows.as_struct(), None, place)?;
            let map = MapArray::try_new(Arc::clone(entries), offsets, rows, nulls, *sorted);
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

/// The elements of lists one behind the other, without those that no list has: what lies outside of
/// the offsets or under a null list is only filling.
fn elements(
    values: &ArrayRef,
    offsets: &OffsetBuffer<i32>,
    nulls: Option<&NullBuffer>,
) -> Result<(ArrayRef, OffsetBuffer<i32>), ArrowError> {
    let ranges = || {
        let pairs = offsets.windows(2).enumerate();
        pairs.filter_map(|(row, pair)| match pair {
            [start, end] => Some((nulls.is_some_and(|nulls| nulls.is_null(row)), *start, *end)),
            _ => None,
        })
    };
    if ranges().any(|(is_null, start, end)| is_null && start < end) {
        let kept = || ranges().filter(|(is_null, _, _)| !is_null);
        let indices = Int32Array::from_iter_values(kept().flat_map(|(_, start, end)| start..end));
        let lengths = ranges().map(|(is_null, start, end)| if is_null { 0 } else { end - start });
        let offsets = OffsetBuffer::from_lengths(lengths.map(|l| usize::try_from(l).unwrap_or(0)));
        return Ok((arrow::compute::take(values, &indices, None)?, offsets));
    }
    let first = offsets.first().copied().unwrap_or_default();
    let count = offsets.last().copied().unwrap_or_default() - first;
    let (start, count) = (
        first.cast_unsigned() as usize,
        count.cast_unsigned() as usize,
    );
    let offsets = if first == 0 {
        offsets.clone()
    } else {
        OffsetBuffer::new(offsets.iter().map(|offset| offset - first).collect())
    };
    Ok((values.slice(start, count), offsets))
}

fn mismatch(expected: &DataType, array: &ArrayRef, place: &Place<'_>) -> Error {
    let reason = format!(
        "its Arrow type is {expected}, but the batch has {}",
        array.data_type()
    );
    Error::bad_value(place.path(), reason)
}

fn arrow_error(place: &Place<'_>, source: ArrowError) -> Error {
    Error::Arrow {
        what: format!("column `{}`", place.path()),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{BinaryArray, FixedSizeBinaryArray, TimestampMillisecondArray};
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

    /// Elements 1, null, 3, 4, null in lists of these lengths, the first `skipped` rows cut off.
    fn lists(
        lengths: &[usize],
        nulls: Option<Vec<bool>>,
        (skipped, kept): (usize, usize),
    ) -> (RecordBatch, RecordBatch) {
        let values: ArrayRef = Arc::new(Int32Array::from(vec![
            Some(1),
            None,
            Some(3),
            Some(4),
            None,
        ]));
        let offsets = OffsetBuffer::<i32>::from_lengths(lengths.iter().copied());
        let nulls = nulls.map(NullBuffer::from);
        let element = Arc::new(Field::new("item", DataType::Int32, true));
        let list = ListArray::new(element, offsets.clone(), Arc::clone(&values), nulls.clone());
        let list: ArrayRef = Arc::new(list.slice(skipped, kept));
        let keys: ArrayRef = Arc::new(Int32Array::from_iter_values(10..15));
        let fields = vec![
            Field::new("keys", DataType::Int32, false),
            Field::new("values", DataType::Int32, true),
        ];
        let entries = StructArray::new(fields.into(), vec![keys, values], None);
        let entry = Arc::new(Field::new("entries", entries.data_type().clone(), false));
        let map = MapArray::new(entry, offsets, entries, nulls, false);
        let map: ArrayRef = Arc::new(map.slice(skipped, kept));
        (
            one_column(Field::new("a", list.data_type().clone(), true), list),
            one_column(Field::new("a", map.data_type().clone(), true), map),
        )
    }

    fn strict_lists() -> (SchemaRef, SchemaRef) {
        let element = Arc::new(Field::new("element", DataType::Int32, false));
        let parts = vec![
            Field::new("key", DataType::Int32, false),
            Field::new("value", DataType::Int32, false),
        ];
        let entries = Field::new("entries", DataType::Struct(parts.into()), false);
        (
            table("a", DataType::List(element), true),
            table("a", DataType::Map(Arc::new(entries), false), true),
        )
    }

    #[test]
    fn elements_under_a_null_list_or_outside_of_a_slice_may_be_null() {
        let (list_schema, map_schema) = strict_lists();
        // Rows: [1], null over [null], [3, 4], null over [null].
        let nulls = Some(vec![true, false, true, false]);
        let (list, map) = lists(&[1, 1, 2, 1], nulls, (0, 4));
        let found = conform(&list, &list_schema).unwrap();
        let expected = [Some(vec![1]), None, Some(vec![3, 4]), None];
        let row = |row: usize, array: &ArrayRef| {
            let list = array.as_list::<i32>();
            let values = list.value(row);
            let values = values.as_primitive::<Int32Type>().values().to_vec();
            list.is_valid(row).then_some(values)
        };
        let rows: Vec<_> = (0..4).map(|i| row(i, found.column(0))).collect();
        assert_eq!(rows, expected);
        let found = conform(&map, &map_schema).unwrap();
        let found = found.column(0).as_map();
        assert_eq!((found.null_count(), found.value(2).len()), (2, 2));
        assert_eq!(
            found.keys().as_primitive::<Int32Type>().values(),
            &[10, 12, 13]
        );
        // Rows [1, null], [3, 4], [null], of which the middle one is taken.
        let (list, map) = lists(&[2, 2, 1], None, (1, 1));
        let found = conform(&list, &list_schema).unwrap();
        assert_eq!(row(0, found.column(0)), Some(vec![3, 4]));
        let found = conform(&map, &map_schema).unwrap();
        assert_eq!(found.column(0).as_map().value(0).len(), 2);
    }

    #[test]
    fn a_null_element_of_a_list_that_is_there_is_an_error() {
        let (list_schema, map_schema) = strict_lists();
        let (list, map) = lists(&[1, 1, 2, 1], Some(vec![true, true, true, false]), (0, 4));
        assert!(error_of(&list, &list_schema).contains("`a.element`"));
        assert!(error_of(&map, &map_schema).contains("`a.value`"));
    }

    #[test]
    fn lists_of_a_row_that_is_null_are_only_filling() {
        let (list, _) = lists(&[1, 1, 2, 1], None, (0, 4));
        let fields = vec![Field::new("l", list.column(0).data_type().clone(), true)];
        let nulls = Some(vec![true, false, true, false].into());
        let outer = StructArray::new(fields.into(), vec![Arc::clone(list.column(0))], nulls);
        let (strict, _) = strict_lists();
        let field = Field::new("l", strict.field(0).data_type().clone(), false);
        let batch = one_column(
            Field::new("b", outer.data_type().clone(), true),
            Arc::new(outer),
        );
        let schema = table("b", DataType::Struct(vec![field].into()), true);
        conform(&batch, &schema).unwrap();
    }
}
