"""The tables of the compatibility run in one lake, and what the readers say of them."""
import asyncio
import collections
import json
import pathlib
import subprocess
import time

import kinds
import manifests
import pyarrow.parquet as pq
import readers
from findings import Findings
from smoke import same

CASES = []


def case(function):
    """Adds a case to the run, in the order of the sources."""
    CASES.append(function)
    return function


def wait_until(what, holds, seconds=60):
    """Waits for a condition."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise AssertionError(f"it did not come to pass that {what}")
        time.sleep(0.2)


async def append(bootstrap, database, table):
    """Appends the rows with the released Python client."""
    import fluss
    import pyfluss_session

    connection, _ = await pyfluss_session.connect(bootstrap)
    writer = (await connection.get_table(fluss.TablePath(database, table.name))).new_append().create_writer()
    writer.write_arrow(kinds.arrow_table(table.columns, table.rows))
    await writer.flush()
    await connection.close()


class Site:
    """The tables in one lake, and what the readers say of them."""

    def __init__(self, weir, writer, java_build=None):
        self.weir, self.writer = weir, writer
        self.tables, self.streamed = {}, set()
        self.sources = weir.folder / "sources"
        self.sources.mkdir()
        self.weir_reader = readers.Weir(weir.run, lambda table: self.tables[table].columns)
        self.findings = Findings()
        self.readers = [self.weir_reader, readers.Pypaimon(), readers.Rust()]
        self.java = readers.Java(java_build, lambda table: self.tables[table].columns) if java_build else None
        self.readers += [self.java] if self.java else []

    def make(self, made, database):
        """Creates tables, gives them their rows by a client of Fluss, and waits until these are in the lake."""
        for table in made:
            name = f"{database}.{table.name}"
            self.tables[name] = table
            self.streamed.add(name)
            arguments = [argument for column, ty in table.columns for argument in ("--column", f"{column} {ty}")]
            for flag, keys in (("--bucket-key", table.bucket_key), ("--partition-by", table.partition_by)):
                arguments += [flag, ",".join(keys)] if keys else []
            arguments += ["--buckets", table.buckets, "--set", "table.datalake.enabled=true", "--set", "table.datalake.freshness=1s"]
            self.weir.run("table", "create", name, "--bootstrap", self.weir.fluss, *arguments)
            self.append(table, database)
        for table in made:
            self.weir.wait_tiered(f"{database}.{table.name}", len(table.rows))

    def append(self, table, database):
        if table.source == "pyfluss":
            asyncio.run(append(self.weir.fluss, database, table))
            return
        path = self.sources / f"{database}.{table.name}.{table.source}"
        if table.source == "parquet":
            pq.write_table(kinds.arrow_table(table.columns, table.rows), path)
        else:
            path.write_text("".join(kinds.source_line(table.columns, row) + "\n" for row in table.rows))
        self.weir.run("load", "--bootstrap", self.weir.fluss, "--table", f"{database}.{table.name}", path)

    def make_alone(self, table, database, options=None, parts=1):
        """Creates a table and gives it its rows by the table format alone, in so many commits."""
        name = f"{database}.{table.name}"
        self.tables[name] = table
        schema = {
            "fields": [{"name": column, "type": kinds.lake_json(ty, iter(range(-(10**6), 0)))} for column, ty in table.columns],
            "partitionKeys": list(table.partition_by),
            "options": {"bucket": "-1", **(options or {})},
        }
        schema_path = self.sources / f"{name}.json"
        schema_path.write_text(json.dumps(schema))
        for part in range(parts):
            self.append_alone(name, table.rows[part::parts], schema_path)

    def append_alone(self, name, rows, *schema):
        """Appends rows of a table by the table format alone."""
        columns = [(column, kinds.lake_form(ty)) for column, ty in self.tables[name].columns]
        path = self.sources / f"{name}.parquet"
        pq.write_table(kinds.arrow_table(columns, rows), path)
        self.append_file(name, path, *schema)

    def append_file(self, name, path, *schema):
        """Appends the rows of a Parquet file by the table format alone."""
        done = subprocess.run([self.writer, self.weir.lake, *name.split("."), path, *schema], capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise AssertionError(f"weir-lake-writer {name}: {done.stderr[-2000:]}")

    def json(self, *arguments):
        """What a subcommand of weir prints as JSON."""
        return json.loads(self.weir.run(*arguments, "--json"))

    def lake(self, name):
        """The metadata of a table as it stands in its files."""
        database, short = name.split(".")
        return manifests.Lake(pathlib.Path(self.weir.lake) / f"{database}.db" / short)

    def compare(self, name, reader, expected=None, found=None):
        """Per column the pairs of expected and found value that differ."""
        expected = self.tables[name].cells() if expected is None else expected
        found = reader.rows(self.weir.lake, name) if found is None else found
        same(f"ids of {name} by {reader.name}", sorted(found), sorted(expected))
        differences = collections.defaultdict(list)
        for key, row in expected.items():
            same(f"columns of {name} by {reader.name}", list(found[key]), list(row))
            for column, value in row.items():
                if found[key][column] != value:
                    differences[column].append((value, found[key][column]))
        return differences
