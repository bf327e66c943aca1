"""Filters on columns of every type, over files whose statistics rule some of them out."""
import itertools

import kinds
import tables
from filters import OPERATORS, Filter
from findings import answer
from site_of_tables import case
from smoke import same


def conditions_on(column, ty, count):
    """Each operator with `count` values of the column, and tests for null."""
    found = [Filter(column, "IS NULL"), Filter(column, "IS NOT NULL")]
    if ty.name in ("ARRAY", "MAP", "ROW"):
        return found
    values = itertools.cycle(kinds.edges(ty))
    return found + [Filter(column, operator, value) for operator in OPERATORS for value in itertools.islice(values, count)]


def wrong(site, name, reader, column):
    """The first filter on a column that a reader answers wrongly."""
    table = site.tables[name]
    ty = dict(table.columns)[column]
    for condition in conditions_on(column, ty, reader.filters_a_column):
        ids, expected = reader.filtered(site.weir.lake, name, condition, ty), condition.ids(table)
        if ids != expected:
            return f"{condition.operator} gives {len(ids)} rows instead of {len(expected)}"
    return ""


@case
def filters_of_every_type_let_through_exactly_their_rows(site):
    """Every operator with the ends of every type, in files of few values each."""
    table = tables.for_filters()
    name = f"filters.{table.name}"
    site.make_alone(table, "filters", parts=6)
    for column, ty in table.columns:
        for reader in site.readers:
            site.findings.add("filter", str(ty), reader.name, answer(lambda: wrong(site, name, reader, column)))
    site.findings.check("filter")


@case
def filters_on_columns_without_bounds_that_take_no_null_lose_nothing(site):
    """A reader that took missing bounds of a NOT NULL column for values would leave files out."""
    texts = ["STRING", "BINARY(4)", "BYTES", "TIMESTAMP(9)", "DOUBLE", "DECIMAL(38, 10)"]
    columns = tables.columns_of(*(f"c{i} {text} NOT NULL" for i, text in enumerate(texts)))
    made = tables.all_values("no_bounds", columns, required=True)
    rows = [(*row[:5], float("nan") if row[0] % 2 else row[5], row[6]) for row in made.rows]
    site.make_alone(tables.Table("no_bounds", columns, rows), "filters", parts=2)
    for column, ty in columns[1:]:
        for reader in site.readers:
            for operator in ("=", "!="):
                value = next(row for row in rows if row[5] == row[5])[site.tables["filters.no_bounds"].column(column)]
                condition = Filter(column, operator, value)
                if ty.name == "DOUBLE" and operator == "!=":  # how NaN compares is told elsewhere
                    continue
                found = reader.filtered(site.weir.lake, "filters.no_bounds", condition, ty)
                same(f"{condition} by {reader.name}", found, condition.ids(site.tables["filters.no_bounds"]))


@case
def filters_on_floats_know_nan_and_both_zeros(site):
    """NaN equals itself and is above all numbers, zeros are equal: by SQL's order, as Spark has it; readers that differ are named."""
    nan, inf = float("nan"), float("inf")
    columns = tables.columns_of("f FLOAT", "d DOUBLE")
    values = [nan, 1.0, -1.0, None, inf, -inf, -0.0, 0.0, 2.5]
    table = tables.Table("floats", columns, [(i, value, value) for i, value in enumerate(values)])
    site.make_alone(table, "filters", parts=3)
    for operator, value in (("=", nan), ("<", nan), (">", 1.0), (">=", inf), ("=", 0.0), ("=", -0.0), ("<", 0.0), ("<=", -0.0), ("!=", 1.0), ("!=", nan)):
        for reader in site.readers:
            for column, ty in columns[1:]:
                condition = Filter(column, operator, value)
                expected = condition.ids(table)
                text = answer(lambda: told(values, reader.filtered(site.weir.lake, "filters.floats", condition, ty), expected))
                site.findings.add("float", f"`{operator} {value!r}`", reader.name, text)
    site.findings.check("float")


def told(values, found, expected):
    """The values that a reader leaves out, or lets through, against what is right."""
    texts = [f"without {values[i]!r}" for i in expected if i not in found] + [f"with {values[i]!r}" for i in found if i not in expected]
    return ", ".join(texts)


@case
def a_filter_reads_only_files_that_may_hold_its_rows(site):
    """`weir lake files --where` leaves out what statistics rule out, and no more."""
    table = tables.Table("ranges", tables.columns_of("n INT", "s STRING"), [(i, i // 10, f"{i // 10:05}" + "x" * 30) for i in range(60)])
    site.tables["filters.ranges"] = table
    for start in range(0, 60, 10):
        part = tables.Table("ranges", table.columns, table.rows[start : start + 10])
        site.make_alone(part, "filters", parts=1)
    site.tables["filters.ranges"] = table
    for condition, files in (("n = 3", 1), ("n >= 4", 2), ("n < 0", 0), ("s > '00002'", 4), (f"s = '{table.rows[0][2]}'", 1), ("n IS NULL", 0), ("n != 2", 5)):
        found = site.json("lake", "files", "filters.ranges", "--warehouse", site.weir.warehouse, "--where", condition)
        same(f"files for {condition}", len(found), files)


@case
def fc_011_filters_on_decimals_of_every_width(site):
    """-2, -0.5, 0, 0.5 and 2 under three precisions: 3, 2 and 1 rows, with filters pushed down and without."""
    for precision, scale in ((9, 2), (18, 4), (38, 10)):
        one = 10**scale
        columns = tables.columns_of(f"d DECIMAL({precision}, {scale})")
        table = tables.Table(f"decimal_{precision}", columns, list(enumerate((-2 * one, -one // 2, 0, one // 2, 2 * one))))
        site.make_alone(table, "filters")
        name, ty = f"filters.{table.name}", columns[1][1]
        for operator, value, rows in ((">", -one // 2, 3), ("<=", -one // 2, 2), ("=", 0, 1)):
            condition = Filter("d", operator, value)
            same("rows that the generator expects", len(condition.ids(table)), rows)
            for reader in site.readers:
                same(f"{condition} of {name} by {reader.name}", reader.filtered(site.weir.lake, name, condition, ty), condition.ids(table))
                if hasattr(reader, "filtered_without_push_down"):
                    found = reader.filtered_without_push_down(site.weir.lake, name, condition, ty)
                    same(f"{condition} of {name} by {reader.name} without push-down", found, condition.ids(table))
