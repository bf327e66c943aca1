"""The readers of the compatibility run. Each gives per id the canonical value of each column."""
import decimal
import importlib.util
import json
import pathlib
import subprocess

from filters import java_literal
from kinds import canonical, lake_type, text_json, utf16
from manifests import Lake
from pypaimon_rust.datafusion import PaimonCatalog, SQLContext
from smoke import pypaimon_table

HERE = pathlib.Path(__file__).resolve().parent


def _lakecheck():
    spec = importlib.util.spec_from_file_location("lakecheck", HERE.parent / "lakecheck/python/lakecheck.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LAKECHECK = _lakecheck()


def arrow_cells(table):
    """Per id the canonical value of each column of a pyarrow table."""
    found = {}
    for batch in table.to_batches():
        fields = list(batch.schema)
        for i in range(batch.num_rows):
            row = {field.name: LAKECHECK.value(field.type, column[i]) for field, column in zip(fields, batch.columns)}
            key = int(row["id"])
            assert key not in found, f"id {key} twice"
            found[key] = row
    return found


class Pypaimon:
    name = "pypaimon"
    filters_a_column = 3
    title, version, command = "pypaimon 2.1.0", "2.1.0", "make smoke"

    def rows(self, lake, table):
        return arrow_cells(LAKECHECK.read_pypaimon({"warehouse": lake}, table, None))

    def lines(self, lake, table):
        return LAKECHECK.lines(LAKECHECK.read_pypaimon({"warehouse": lake}, table, None))

    def filtered(self, lake, table, condition, ty):
        """The ids that pass."""
        found = pypaimon_table(lake, table)
        builder = found.new_read_builder()
        builder.with_filter(condition.pypaimon(builder.new_predicate_builder(), ty))
        splits = builder.new_scan().plan().splits()
        rows = builder.new_read().to_arrow(splits)
        return sorted(rows["id"].to_pylist())

    def filtered_without_push_down(self, lake, table, condition, ty):
        """The ids that pass where all rows are read first."""
        rows = LAKECHECK.read_pypaimon({"warehouse": lake}, table, None)
        predicate = condition.pypaimon(pypaimon_table(lake, table).new_read_builder().new_predicate_builder(), ty)
        return sorted(rows.filter(predicate.to_arrow(rows.schema))["id"].to_pylist())


class Rust:
    name = "rust"
    filters_a_column = 3
    title, version, command = "`paimon` crate 0.4.0", "0.4.0 (`pypaimon-rust`)", "make smoke"
    context = None

    def rows(self, lake, table):
        return arrow_cells(LAKECHECK.read_rust({"warehouse": lake}, table, None))

    def filtered(self, lake, table, condition, ty):
        """The ids that pass."""
        return self.selected(lake, table, condition.sql(ty))

    def lines(self, lake, table):
        return LAKECHECK.lines(LAKECHECK.read_rust({"warehouse": lake}, table, None))

    def types(self, lake, table):
        """The types of the columns, as the crate prints them."""
        return [field.field_type() for field in PaimonCatalog({"warehouse": lake}).get_table(table).schema().fields()]

    def selected(self, lake, table, condition):
        if self.context is None:
            self.context = SQLContext()
            self.context.register_catalog("p", {"warehouse": lake})
        database, name = table.split(".")
        batches = self.context.sql(f"SELECT id FROM p.`{database}`.`{name}` WHERE {condition}")
        return sorted(number for batch in batches for number in batch.column(0).to_pylist())


    def filtered_without_push_down(self, lake, table, condition, ty):
        """The ids that pass where the filter is on an expression, which no scan takes."""
        assert ty.name == "DECIMAL"
        column = f"(`{condition.column}` + CAST(0 AS DECIMAL({ty.numbers[0]}, {ty.numbers[1]})))"
        return self.selected(lake, table, condition.sql(ty).replace(f"`{condition.column}`", column))


class JavaError(Exception):
    pass


class Java:
    """Java Paimon in one JVM (lakecheck's `Answers`)."""

    name = "java"
    filters_a_column = 3
    title, version, command = "Java Paimon 1.3.1", "1.3.1 (`paimon-bundle`)", "make interop"

    def __init__(self, build, columns_of):
        self.build, self.columns_of, self.process = build, columns_of, None

    def ask(self, lake, *question):
        if self.process is None:
            folder = self.build / "java-1.3.1"
            command = ["java", "-Duser.timezone=UTC", "-cp", f"{folder}/classes:{folder}/lib/*", "lakecheck.Answers", lake]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.process.stdin.write(("\t".join(question) + "\n").encode())
        self.process.stdin.flush()
        word, count = self.process.stdout.readline().decode().split()
        lines = [self.process.stdout.readline().decode().rstrip("\n") for _ in range(int(count))]
        if word != "ANSWER":
            raise JavaError(lines[-1])
        return lines

    def rows(self, lake, table):
        return cells(self.ask(lake, "rows", table), self.columns_of(table))

    def lines(self, lake, table):
        return self.ask(lake, "rows", table)

    def problems(self, lake, table):
        return self.ask(lake, "check", table)

    def types(self, lake, table):
        return self.ask(lake, "types", table)

    def filtered(self, lake, table, condition, ty):
        """The ids that pass."""
        return self._filtered(lake, table, condition, ty, "pushed")

    def filtered_without_push_down(self, lake, table, condition, ty):
        """The ids that pass where Java reads what it must, and the rows are tested one by one."""
        return self._filtered(lake, table, condition, ty, "all")

    def _filtered(self, lake, table, condition, ty, how):
        literal = java_literal(ty, condition.value).encode().hex()
        return [int(line) for line in self.ask(lake, "filter", table, condition.column, condition.operator, literal, how)]

    def stop(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait(60)


class Weir:
    """`weir lake cat`, whose fractions of a second have as many digits as their type."""

    name = "weir"
    filters_a_column = 1  # each is a process
    title, version, command = "Weir", "this one (`weir lake cat`)", "make smoke"

    def __init__(self, run, columns_of):
        self.run, self.columns_of = run, columns_of

    def rows(self, lake, table, *more):
        text = self.run("lake", "cat", table, "--warehouse", lake, *more)
        return cells(text.split("\n")[:-1], self.columns_of(table))


    def lines(self, lake, table):
        columns = [(field["name"], lake_type(field["type"])) for field in Lake(pathlib.Path(lake) / table.replace(".", ".db/", 1)).newest_schema()["fields"]]
        found = []
        for line in self.run("lake", "cat", table, "--warehouse", lake).split("\n")[:-1]:
            row = json.loads(line, parse_float=decimal.Decimal)
            found.append("{" + ",".join(f"{text_json(name)}:{_canonical(ty, row[name])}" for name, ty in columns) + "}")
        return found

    def filtered(self, lake, table, condition, ty):
        """The ids that pass."""
        text = self.run("lake", "cat", table, "--warehouse", lake, "--columns", "id", "--where", condition.weir(ty))
        return sorted(json.loads(line)["id"] for line in text.split("\n")[:-1])


def cells(lines, columns):
    """Per id the canonical value of each column of rows in JSON."""
    found = {}
    for line in lines:
        row = json.loads(line, parse_float=decimal.Decimal)
        key = row["id"]
        assert key not in found, f"id {key} twice"
        assert list(row) == [name for name, _ in columns], row
        found[key] = {name: _canonical(ty, row[name]) for name, ty in columns}
    return found


def _canonical(ty, value):
    """A value of parsed JSON, fractions of a second filled up to all their digits."""
    if value is None:
        return "null"
    if ty.name == "ARRAY":
        return "[" + ",".join(_canonical(ty.parts[0], v) for v in value) + "]"
    if ty.name == "MAP":
        pairs = [f"[{_canonical(ty.parts[0], k)},{_canonical(ty.parts[1], v)}]" for k, v in value]
        return "[" + ",".join(sorted(pairs, key=utf16)) + "]"
    if ty.name == "ROW":
        assert list(value) == list(ty.fields), value
        return "{" + ",".join(f"{text_json(n)}:{_canonical(t, value[n])}" for n, t in zip(ty.fields, ty.parts)) + "}"
    if ty.name in ("FLOAT", "DOUBLE") and not isinstance(value, str):
        # The same number may have two shortest texts.
        return canonical(ty, float(value))
    if ty.name in ("TIME", "TIMESTAMP", "TIMESTAMP_LTZ"):
        return text_json(_filled(value, 3 if ty.name == "TIME" else 9))
    if isinstance(value, bool):
        return "true" if value else "false"
    return text_json(value) if isinstance(value, str) else str(value)


def _filled(text, digits):
    zone = "Z" if text.endswith("Z") else ""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return f"{whole}.{fraction.ljust(digits, '0')}{zone}"
