//! How the versions of a key become one row: what a table's options say (paimon: `CoreOptions`,
//! `PrimaryKeyTableUtils`, `MergeFileSplitRead`).

use arrow::compute::SortOptions;
use arrow::datatypes::SchemaRef;
use arrow::row::SortField;

use super::aggregate::Aggregation;
use super::cell::{Cell, Held};
use super::output::Output;
use super::partial_update::PartialUpdate;
use super::{Merged, Version};
use crate::datum::Datum;
use crate::error::{Error, Result};
use crate::options::TableOptions;
use crate::row_kind::RowKind;
use crate::schema::{TableSchema, invalid};
use crate::types::{DataField, DataType, TypeKind, arrow_schema};

/// The sequence number of a row, a column of data files (paimon: `SpecialFields`).
pub(crate) const SEQUENCE_NUMBER: (&str, i32) = ("_SEQUENCE_NUMBER", i32::MAX - 1);

/// Its row kind.
pub(crate) const VALUE_KIND: (&str, i32) = ("_VALUE_KIND", i32::MAX - 2);

/// Whether a column is of data files with a primary key and of no schema.
pub(crate) fn is_system_column(field: &DataField) -> bool {
    [SEQUENCE_NUMBER.1, VALUE_KIND.1].contains(&field.id)
}

/// Options under which rows are merged by rules that are not known here.
const UNKNOWN_RULES: [&str; 3] = [
    "sequence.snapshot-ordering",
    "pk-clustering-override",
    "chain-table.enabled",
];

/// Which columns are read to merge a table's rows, and how that is done.
#[derive(Debug)]
pub(crate) struct Rule {
    table: String,
    engine: Engine,
    /// What is read: the columns, then sequence number and row kind.
    fields: Vec<DataField>,
    /// The columns that are asked for, by their place in `fields`.
    wanted: Vec<usize>,
    wanted_schema: SchemaRef,
    key: Vec<usize>,
    sequence: Vec<usize>,
    sequence_options: SortOptions,
    shape: Shape,
    is_lookup: bool,
    skips_level_0: bool,
}

/// What merged rows are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// To be read: the columns that are asked for; keys that are retracted are left out.
    Rows,
    /// To be written to a file: all columns, then sequence number and row kind; retractions stay,
    /// for there may be something older that they take back.
    Changes,
}

/// What is made of several versions (option `merge-engine`).
#[derive(Debug)]
enum Engine {
    Deduplicate { ignore_delete: bool },
    FirstRow { ignore_delete: bool },
    Aggregation(Aggregation),
    PartialUpdate(PartialUpdate),
}

/// The columns of a table that a rule reads, for the engine that is to find its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope<'a> {
    pub(super) table: &'a str,
    pub(super) schema: &'a TableSchema,
    pub(super) fields: &'a [DataField],
}

impl<'a> Scope<'a> {
    pub(super) fn options(&self) -> TableOptions<'a> {
        TableOptions::new(&self.schema.options)
    }

    /// The place of a column that is read.
    pub(super) fn place(&self, name: &str) -> Result<usize> {
        let place = self.fields.iter().position(|field| field.name == name);
        place.ok_or_else(|| invalid(format!("{}: no column `{name}`", self.table)))
    }
}

impl Rule {
    /// The rule by which the rows of a table are read; `projection` names the columns that are
    /// asked for, all by default.
    ///
    /// # Errors
    /// [`Error::BadValue`] if the projection names no column; [`Error::Unsupported`], with table,
    /// column and function or option, if rows are merged in a way that is not known here;
    /// [`Error::InvalidSchema`] if an option has no meaning.
    pub(crate) fn new(
        schema: &TableSchema,
        table: &str,
        projection: Option<&[&str]>,
    ) -> Result<Self> {
        let options = TableOptions::new(&schema.options);
        for option in UNKNOWN_RULES {
            if options.is_true(option, false)? {
                return Err(Error::Unsupported {
                    what: format!("reading {table} with option `{option}`"),
                    reason: "its rows are merged by another rule".to_owned(),
                });
            }
        }
        let engine = options.get("merge-engine").unwrap_or("deduplicate");
        let engine = engine.trim().to_lowercase();
        let sequence_names = names(options.get("sequence.field").unwrap_or_default());
        let all: Vec<&str> = schema.fields.iter().map(|f| f.name.as_str()).collect();
        let wanted_names = projection.unwrap_or(&all);
        let keys = schema.trimmed_primary_keys();
        let shape = Shape::Rows;
        let groups = if engine == "partial-update" {
            PartialUpdate::ordering_columns(schema, table)?
        } else {
            Vec::new()
        };
        let mut fields: Vec<DataField> = Vec::new();
        let groups = groups.iter().map(String::as_str);
        let read = wanted_names.iter().copied().chain(keys.iter().copied());
        for name in read.chain(sequence_names.iter().copied()).chain(groups) {
            let field = schema.field(name);
            let field = field.ok_or_else(|| Error::bad_value(name, "is no column"))?;
            if !fields.iter().any(|known| known.id == field.id) {
                fields.push(field.clone());
            }
        }
        let scope = Scope {
            table,
            schema,
            fields: &fields,
        };
        let places = |names: &[&str]| {
            let places = names.iter().map(|name| scope.place(name));
            places.collect::<Result<Vec<usize>>>()
        };
        let wanted = places(wanted_names)?;
        let (key, sequence) = (places(&keys)?, places(&sequence_names)?);
        let engine = Engine::new(&engine, scope)?;
        let wanted_fields = wanted.iter().filter_map(|place| fields.get(*place));
        let wanted_fields: Vec<DataField> = wanted_fields.cloned().collect();
        let is_first_row = matches!(engine, Engine::FirstRow { .. });
        for ((name, id), kind) in [
            (SEQUENCE_NUMBER, TypeKind::BigInt),
            (VALUE_KIND, TypeKind::TinyInt),
        ] {
            fields.push(DataField::new(id, name, kind.not_null()));
        }
        Ok(Self {
            table: table.to_owned(),
            engine,
            fields,
            wanted,
            wanted_schema: arrow_schema(&wanted_fields),
            key,
            sequence,
            sequence_options: sequence_options(options)?,
            shape,
            is_lookup: !is_first_row && needs_lookup(options)?,
            skips_level_0: skips_level_0(options, is_first_row)?,
        })
    }

    /// The rule by which changes of one or several runs become the rows of a file: one a key, with
    /// its sequence number and kind.
    ///
    /// # Errors
    /// As [`Rule::new`].
    pub(crate) fn of_changes(schema: &TableSchema, table: &str) -> Result<Self> {
        let mut rule = Self::new(schema, table, None)?;
        let (number, kind) = rule.system_columns();
        rule.wanted.extend([number, kind]);
        rule.wanted_schema = arrow_schema(&rule.fields);
        rule.shape = Shape::Changes;
        Ok(rule)
    }

    /// The table's name, for errors.
    pub(crate) fn table(&self) -> &str {
        &self.table
    }

    /// The columns that batches must have, in this order.
    pub(crate) fn fields(&self) -> &[DataField] {
        &self.fields
    }

    /// Whether files of level 0 are left out: their rows come to be seen by compaction.
    pub(crate) fn skips_level_0(&self) -> bool {
        self.skips_level_0
    }

    /// The columns of the trimmed primary key.
    pub(crate) fn key_fields(&self) -> impl Iterator<Item = &DataField> {
        self.key.iter().filter_map(|place| self.fields.get(*place))
    }

    /// The columns of merged rows.
    pub(super) fn wanted(&self) -> &[usize] {
        &self.wanted
    }

    /// The Arrow schema of merged rows.
    pub(crate) fn wanted_schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.wanted_schema)
    }

    pub(super) fn data_type(&self, column: usize) -> Result<&DataType> {
        let field = self.fields.get(column);
        field
            .map(|field| &field.data_type)
            .ok_or_else(|| Error::malformed("merged batch", "a column has no type"))
    }

    pub(super) fn key(&self) -> &[usize] {
        &self.key
    }

    pub(super) fn sequence(&self) -> &[usize] {
        &self.sequence
    }

    /// Where sequence number and row kind are.
    pub(super) fn system_columns(&self) -> (usize, usize) {
        let count = self.fields.len();
        (count - 2, count - 1)
    }

    pub(super) fn key_order(&self) -> Vec<SortField> {
        let types = self.key_fields().map(|field| field.data_type.arrow_type());
        types.map(SortField::new).collect()
    }

    /// The order of `sequence.field`; `None` without that option.
    pub(super) fn sequence_order(&self) -> Option<Vec<SortField>> {
        let fields = self.sequence.iter();
        let fields = fields.filter_map(|place| self.fields.get(*place));
        let sort_field = |field: &DataField| {
            SortField::new_with_options(field.data_type.arrow_type(), self.sequence_options)
        };
        (!self.sequence.is_empty()).then(|| fields.map(sort_field).collect())
    }

    pub(super) fn picks_whole_rows(&self) -> bool {
        matches!(
            self.engine,
            Engine::Deduplicate { .. } | Engine::FirstRow { .. }
        )
    }

    fn keeps(&self, kind: RowKind) -> bool {
        self.shape == Shape::Changes || !kind.is_retraction()
    }

    /// Makes one row of the versions of a key, oldest first, or none.
    ///
    /// A single version stays as it is, without the engine's having a say in it (paimon:
    /// `ReducerMergeFunctionWrapper`): so a retraction that an engine refuses is left out.
    pub(super) fn merge(
        &self,
        versions: &[Version],
        held: &Held,
        output: &mut Output,
    ) -> Result<()> {
        if let [version] = versions {
            if self.keeps(version.kind) {
                output.push_whole(self, held, version.place)?;
            }
            return Ok(());
        }
        let seen_by_lookup: Vec<Version>;
        let versions = if self.is_lookup {
            seen_by_lookup = without_superseded(versions);
            &seen_by_lookup
        } else {
            versions
        };
        let picked = match &self.engine {
            Engine::Deduplicate { ignore_delete } => {
                let mut newest_first = versions.iter().rev();
                let newest = newest_first.find(|v| !(*ignore_delete && v.kind.is_retraction()));
                newest.filter(|version| self.keeps(version.kind))
            }
            Engine::FirstRow { ignore_delete } => {
                if !ignore_delete && versions.iter().any(|v| v.kind.is_retraction()) {
                    return Err(Error::Unsupported {
                        what: format!("a retraction in {}, merge engine `first-row`", self.table),
                        reason: "it is ignored with option `ignore-delete` only".to_owned(),
                    });
                }
                versions.iter().find(|v| !v.kind.is_retraction())
            }
            Engine::Aggregation(engine) => {
                self.push_merged(engine.merge(versions, held)?, output);
                None
            }
            Engine::PartialUpdate(engine) => {
                self.push_merged(engine.merge(versions, held)?, output);
                None
            }
        };
        match picked {
            Some(version) => output.push_whole(self, held, version.place),
            None => Ok(()),
        }
    }
}

impl Rule {
    fn push_merged(&self, merged: Merged, output: &mut Output) {
        if !self.keeps(merged.kind) {
            return;
        }
        let mut row = merged.cells;
        if self.shape == Shape::Changes {
            // Their places are behind those of all other columns.
            row.push(Cell::Computed(Datum::BigInt(merged.sequence)));
            row.push(Cell::Computed(Datum::TinyInt(merged.kind.code())));
        }
        output.push_cells(self, &row);
    }
}

impl Engine {
    fn new(name: &str, scope: Scope<'_>) -> Result<Self> {
        Ok(match name {
            "deduplicate" => Self::Deduplicate {
                ignore_delete: ignore_delete(scope.options())?,
            },
            "first-row" => Self::FirstRow {
                ignore_delete: ignore_delete(scope.options())?,
            },
            "aggregation" => Self::Aggregation(Aggregation::new(scope)?),
            "partial-update" => Self::PartialUpdate(PartialUpdate::new(scope)?),
            other => {
                return Err(Error::Unsupported {
                    what: format!("reading {}, merge engine `{other}`", scope.table),
                    reason: "how it merges rows is not known".to_owned(),
                });
            }
        })
    }
}

/// Names between commas, blanks around them left out.
pub(super) fn names(text: &str) -> Vec<&str> {
    let names = text.split(',').map(str::trim);
    names.filter(|name| !name.is_empty()).collect()
}

/// `ignore-delete`, by any of its names.
pub(crate) fn ignore_delete(options: TableOptions<'_>) -> Result<bool> {
    let names = [
        "ignore-delete",
        "first-row.ignore-delete",
        "deduplicate.ignore-delete",
        "partial-update.ignore-delete",
    ];
    let set = names.into_iter().find(|name| options.get(name).is_some());
    options.is_true(set.unwrap_or("ignore-delete"), false)
}

/// Nulls come first in either order (paimon: `CodeGeneratorImpl`).
fn sequence_options(options: TableOptions<'_>) -> Result<SortOptions> {
    let order = options.get("sequence.field.sort-order");
    let descending = match order.map(str::to_lowercase).as_deref() {
        None | Some("ascending") => false,
        Some("descending") => true,
        Some(other) => {
            let reason = format!("option `sequence.field.sort-order` cannot be `{other}`");
            return Err(invalid(reason));
        }
    };
    Ok(SortOptions {
        descending,
        nulls_first: true,
    })
}

/// Whether compaction looks up older levels, so that a row above level 0 has in it what lies below
/// (paimon: `LookupStrategy`).
fn needs_lookup(options: TableOptions<'_>) -> Result<bool> {
    let producer = options.get("changelog-producer").unwrap_or_default();
    Ok(producer.eq_ignore_ascii_case("lookup")
        || options.is_true("deletion-vectors.enabled", false)?
        || options.is_true("force-lookup", false)?)
}

/// Paimon: `CoreOptions.batchScanSkipLevel0`.
fn skips_level_0(options: TableOptions<'_>, is_first_row: bool) -> Result<bool> {
    if options.is_true("deletion-vectors.enabled", false)? {
        return Ok(!options.is_true("deletion-vectors.merge-on-read", false)?);
    }
    Ok(is_first_row)
}

/// The versions of level 0, and of those above only the one of the lowest level (paimon:
/// `LookupMergeFunction`).
fn without_superseded(versions: &[Version]) -> Vec<Version> {
    let above = versions.iter().map(|version| version.level);
    let lowest = above.filter(|level| *level > 0).min();
    let mut is_found = false;
    let counts = |version: &&Version| {
        version.level <= 0
            || (Some(version.level) == lowest && !std::mem::replace(&mut is_found, true))
    };
    versions.iter().filter(counts).cloned().collect()
}
