//! The merge engine `partial-update`: the last value of each column that is not null, or by groups
//! of columns that have an order of their own (paimon: `PartialUpdateMergeFunction`).

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::aggregate::{Aggregator, Total};
use super::cell::{Cell, Held, Place};
use super::rule::{Scope, ignore_delete, names};
use super::{Merged, Version};
use crate::error::{Error, Result};
use crate::row_kind::RowKind;
use crate::schema::{TableSchema, invalid};
use crate::types::DataField;

const ON_DELETE: &str = "partial-update.remove-record-on-delete";
const ON_GROUP: &str = "partial-update.remove-record-on-sequence-group";

/// The engine.
#[derive(Debug)]
pub(super) struct PartialUpdate {
    table: String,
    columns: Vec<Column>,
    has_groups: bool,
    ignore_delete: bool,
    remove_on_delete: bool,
    /// The ordering columns at whose delete the whole row goes.
    remove_on: BTreeSet<usize>,
}

#[derive(Debug)]
struct Column {
    field: DataField,
    /// The columns by which its group is ordered, if it is in one.
    group: Option<Arc<[usize]>>,
    aggregator: Option<Aggregator>,
}

/// A group as an option states it: `fields.ORDERING.sequence-group=PROTECTED`.
struct Group<'a> {
    ordering: Vec<&'a str>,
    protected: Vec<&'a str>,
}

/// A row as it comes to be.
struct Row<'a> {
    totals: Vec<Total>,
    held: &'a Held,
}

impl PartialUpdate {
    /// The columns that all groups are ordered by.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] if an option names no column, or one of the key.
    pub(super) fn ordering_columns(schema: &TableSchema, table: &str) -> Result<Vec<String>> {
        let mut columns = Vec::new();
        for group in groups(schema) {
            for name in group.ordering.iter().chain(&group.protected) {
                if schema.field(name).is_none() || schema.primary_keys.iter().any(|k| k == name) {
                    let reason = format!("{table}: `{name}` cannot be in a sequence group");
                    return Err(invalid(reason));
                }
            }
            columns.extend(group.ordering.iter().map(|name| (*name).to_owned()));
        }
        Ok(columns)
    }

    pub(super) fn new(scope: Scope<'_>) -> Result<Self> {
        let options = scope.options();
        let found = groups(scope.schema);
        let mut columns = Vec::with_capacity(scope.fields.len());
        for (place, field) in scope.fields.iter().enumerate() {
            let name = field.name.as_str();
            let mut own = found
                .iter()
                .filter(|group| group.ordering.contains(&name) || group.protected.contains(&name));
            let group = own.next();
            if own.next().is_some() {
                let reason = format!("{}: `{name}` is in two sequence groups", scope.table);
                return Err(invalid(reason));
            }
            let is_ordering = group.is_some_and(|group| group.ordering.contains(&name));
            let ordering = group.map(|group| {
                let places = group.ordering.iter().map(|name| scope.place(name));
                places.collect::<Result<Arc<[usize]>>>()
            });
            columns.push(Column {
                aggregator: aggregator(scope, place, field, group.is_some(), is_ordering)?,
                group: ordering.transpose()?,
                field: field.clone(),
            });
        }
        let on_groups = names(options.get(ON_GROUP).unwrap_or_default());
        let remove_on = on_groups.iter().map(|name| scope.place(name));
        let engine = Self {
            table: scope.table.to_owned(),
            columns,
            has_groups: !found.is_empty(),
            ignore_delete: ignore_delete(options)?,
            remove_on_delete: options.is_true(ON_DELETE, false)?,
            remove_on: remove_on.collect::<Result<_>>()?,
        };
        engine.check_options()?;
        Ok(engine)
    }

    fn check_options(&self) -> Result<()> {
        let conflicts = [
            (self.remove_on_delete && self.ignore_delete, ON_DELETE),
            (!self.remove_on.is_empty() && self.ignore_delete, ON_GROUP),
            (self.remove_on_delete && self.has_groups, ON_DELETE),
        ];
        match conflicts.iter().find(|(conflict, _)| *conflict) {
            Some((_, option)) => {
                let table = &self.table;
                let reason = format!("{table}: option `{option}` and another exclude each other");
                Err(invalid(reason))
            }
            None => Ok(()),
        }
    }

    /// The row of the versions; it is retracted if it is deleted or was never inserted. Its sequence
    /// number is that of the last version that counts.
    pub(super) fn merge(&self, versions: &[Version], held: &Held) -> Result<Merged> {
        let mut row = Row {
            totals: vec![Total::new(); self.columns.len()],
            held,
        };
        let (mut has_values, mut is_inserted, mut is_deleted) = (false, false, false);
        for version in versions {
            is_deleted = false;
            if !version.kind.is_retraction() {
                if self.has_groups {
                    self.update_groups(&mut row, version.place)?;
                } else {
                    self.update(&mut row, version.place)?;
                }
                (has_values, is_inserted) = (true, true);
                continue;
            }
            // A retraction that comes first leaves its values behind: since 1.4.1 all of them, and
            // before only those that cannot be null.
            if !std::mem::replace(&mut has_values, true) {
                row.set_all(version.place)?;
            }
            if self.ignore_delete {
                continue;
            }
            if self.has_groups {
                is_deleted = self.retract_groups(&mut row, version)?;
            } else if !self.remove_on_delete {
                return Err(Error::Unsupported {
                    what: format!("a retraction in {}, partial updates", self.table),
                    reason: format!("it needs option `ignore-delete`, `{ON_DELETE}` or groups"),
                });
            } else if version.kind == RowKind::Delete {
                is_deleted = true;
                row.set_all(version.place)?;
            }
        }
        let mut newest_first = versions.iter().rev();
        let counts = |version: &&Version| !(self.ignore_delete && version.kind.is_retraction());
        let last = newest_first.find(counts).or(versions.last());
        Ok(Merged {
            cells: row.totals.into_iter().map(|total| total.cell).collect(),
            sequence: last.map_or(0, |version| version.sequence),
            kind: if is_inserted && !is_deleted {
                RowKind::Insert
            } else {
                RowKind::Delete
            },
        })
    }

    fn update(&self, row: &mut Row<'_>, place: Place) -> Result<()> {
        for (at, column) in self.columns.iter().enumerate() {
            let value = row.held.cell(at, place)?;
            if !value.is_null() {
                row.set(at, value);
            } else if !column.field.data_type.nullable {
                let reason = format!("a row of {} has no value for it", self.table);
                return Err(Error::bad_value(column.field.name.clone(), reason));
            }
        }
        Ok(())
    }

    fn update_groups(&self, row: &mut Row<'_>, place: Place) -> Result<()> {
        let mut done = BTreeSet::new();
        for (at, column) in self.columns.iter().enumerate() {
            let value = row.held.cell(at, place)?;
            let Some(ordering) = &column.group else {
                match &column.aggregator {
                    Some(aggregator) => row.add(aggregator, at, value)?,
                    None if !value.is_null() => row.set(at, value),
                    None => {}
                }
                continue;
            };
            if done.contains(&at) {
                continue;
            }
            if row.has_no_order(ordering, place)? {
                done.extend(ordering.iter().copied());
                continue;
            }
            let is_newer = self.order(row, ordering, place)?.is_ge();
            match &column.aggregator {
                _ if is_newer && ordering.contains(&at) => {
                    // The columns of an order change together.
                    for at in ordering.iter() {
                        row.set(*at, row.held.cell(*at, place)?);
                    }
                    done.extend(ordering.iter().copied());
                }
                None if is_newer => row.set(at, value),
                None => {}
                Some(aggregator) if is_newer => row.add(aggregator, at, value)?,
                Some(aggregator) => row.add_older(aggregator, at, value)?,
            }
        }
        Ok(())
    }

    /// Whether the whole row is deleted by it.
    fn retract_groups(&self, row: &mut Row<'_>, version: &Version) -> Result<bool> {
        let place = version.place;
        let mut done = BTreeSet::new();
        for (at, column) in self.columns.iter().enumerate() {
            let Some(ordering) = &column.group else {
                continue;
            };
            if done.contains(&at) {
                continue;
            }
            if row.has_no_order(ordering, place)? {
                done.extend(ordering.iter().copied());
                continue;
            }
            let is_newer = self.order(row, ordering, place)?.is_ge();
            if is_newer && ordering.contains(&at) {
                for at in ordering.iter() {
                    if version.kind == RowKind::Delete && self.remove_on.contains(at) {
                        row.set_all(place)?;
                        return Ok(true);
                    }
                    row.set(*at, row.held.cell(*at, place)?);
                }
                done.extend(ordering.iter().copied());
                continue;
            }
            match &column.aggregator {
                Some(aggregator) => row.retract(aggregator, at, place)?,
                None if is_newer => row.set(at, Cell::Null),
                None => {}
            }
        }
        Ok(false)
    }

    /// The order of a version to the row, by the columns of a group; null is the lowest.
    fn order(&self, row: &Row<'_>, ordering: &[usize], place: Place) -> Result<Ordering> {
        for at in ordering {
            let Some(column) = self.columns.get(*at) else {
                continue;
            };
            let data_type = &column.field.data_type;
            let value = row.held.cell(*at, place)?;
            let value = row.held.datum(*at, data_type, &value)?;
            let known = row.held.datum(*at, data_type, row.cell(*at))?;
            let order = match (value.is_null(), known.is_null()) {
                (true, true) => Some(Ordering::Equal),
                (true, false) => Some(Ordering::Less),
                (false, true) => Some(Ordering::Greater),
                (false, false) => value.compare(&known),
            };
            let order = order.ok_or_else(|| Error::Unsupported {
                what: format!(
                    "a sequence group by `{}` in {}",
                    column.field.name, self.table
                ),
                reason: format!("{} has no order", data_type.kind),
            })?;
            if order.is_ne() {
                return Ok(order);
            }
        }
        Ok(Ordering::Equal)
    }
}

impl Row<'_> {
    fn cell(&self, at: usize) -> &Cell {
        self.totals.get(at).map_or(&Cell::Null, |total| &total.cell)
    }

    fn set(&mut self, at: usize, cell: Cell) {
        if let Some(total) = self.totals.get_mut(at) {
            total.cell = cell;
        }
    }

    fn set_all(&mut self, place: Place) -> Result<()> {
        for (at, total) in self.totals.iter_mut().enumerate() {
            total.cell = self.held.cell(at, place)?;
        }
        Ok(())
    }

    fn add(&mut self, aggregator: &Aggregator, at: usize, value: Cell) -> Result<()> {
        match self.totals.get_mut(at) {
            Some(total) => aggregator.add(self.held, total, value),
            None => Ok(()),
        }
    }

    fn add_older(&mut self, aggregator: &Aggregator, at: usize, value: Cell) -> Result<()> {
        match self.totals.get_mut(at) {
            Some(total) => aggregator.add_older(self.held, total, value),
            None => Ok(()),
        }
    }

    fn retract(&mut self, aggregator: &Aggregator, at: usize, place: Place) -> Result<()> {
        let value = self.held.cell(at, place)?;
        match self.totals.get_mut(at) {
            Some(total) => aggregator.retract(self.held, total, value),
            None => Ok(()),
        }
    }

    /// Whether a version has null in all columns of an order: it leaves the group alone.
    fn has_no_order(&self, ordering: &[usize], place: Place) -> Result<bool> {
        for at in ordering {
            if !self.held.cell(*at, place)?.is_null() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn groups(schema: &TableSchema) -> Vec<Group<'_>> {
    let options = schema.options.iter();
    options
        .filter_map(|(option, protected)| {
            let ordering = option.strip_prefix("fields.")?;
            let ordering = ordering.strip_suffix(".sequence-group")?;
            Some(Group {
                ordering: names(ordering),
                protected: names(protected),
            })
        })
        .collect()
}

/// The function of a column, if it has one; all but `last_non_null_value` need a group.
fn aggregator(
    scope: Scope<'_>,
    place: usize,
    field: &DataField,
    is_grouped: bool,
    is_ordering: bool,
) -> Result<Option<Aggregator>> {
    if is_ordering {
        return Ok(None);
    }
    if scope.schema.primary_keys.contains(&field.name) {
        return Aggregator::new(scope, place, field, "primary-key").map(Some);
    }
    let options = scope.options();
    let own = options.get(&format!("fields.{}.aggregate-function", field.name));
    let function = own.or(options.get("fields.default-aggregate-function"));
    let Some(function) = function else {
        return Ok(None);
    };
    if function != "last_non_null_value" && !is_grouped {
        let (table, name) = (scope.table, &field.name);
        let reason = format!("{table}: function `{function}` of `{name}` needs a sequence group");
        return Err(invalid(reason));
    }
    Aggregator::new(scope, place, field, function).map(Some)
}
