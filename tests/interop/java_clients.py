#!/usr/bin/env python3
"""Released Java clients against the weir binary: whole sessions on log tables and tables with a primary key (clients/README.md).

java_clients.py --weir BINARY --target FOLDER [--only VERSION]
Needs Java 17 and Maven. Starts `weir up` on free loopback ports, runs a session with each client version, lets each version read and extend what
the other wrote, and compares logs (by pyfluss) and lake (by pypaimon, `weir lake cat`, lakecheck) with it. Exit 0 if nothing differs.
"""
import argparse
import asyncio
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "matrix")]

import readers  # noqa: E402
from kinds import utf16  # noqa: E402
from smoke import Weir, java_check, java_tools, same  # noqa: E402

VERSIONS = ["0.9.1-incubating", "1.0.0"]
FORMATS = ["ARROW", "INDEXED", "COMPACTED"]
KEYED = ["keys", "partial", "pairs", "keyed_parts", "first", "versions"]
SOURCES = HERE / "clients"
# The client maps direct memory by itself, as Arrow does.
JVM = ["-Xmx512m", "--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED"]


class Client:
    """The session program compiled against one released client."""

    def __init__(self, version, target):
        self.version, self.folder = version, pathlib.Path(target) / "java-clients" / version
        build = f"-Dbuild={self.folder}"
        subprocess.run(["mvn", "-q", "-B", "-f", SOURCES / "pom.xml", f"-Dfluss.version={version}", build, "generate-resources"], check=True, stdout=sys.stderr)
        sources = sorted((SOURCES / "src").rglob("*.java"))
        if not version.startswith("0."):
            sources += sorted((SOURCES / "since-1.0").rglob("*.java"))
        self.path = (self.folder / "classpath").read_text().strip()
        shutil.rmtree(self.folder / "classes", ignore_errors=True)
        subprocess.run(["javac", "--release", "17", "-d", self.folder / "classes", "-cp", self.path, *sources], check=True, stdout=sys.stderr)

    def run(self, *arguments, seconds=420):
        """Runs the program; prints the lines of its steps as they come, returns all that it printed."""
        configuration = f"-Dlog4j.configurationFile={SOURCES / 'log4j2.properties'}"
        command = ["java", *JVM, configuration, "-cp", f"{self.folder / 'classes'}:{self.path}", "session.Main", *map(str, arguments)]
        log = self.folder / f"{arguments[0]}.log"
        lines = []
        with open(log, "wb") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, encoding="utf-8") as process:
            alarm = threading.Timer(seconds, process.kill)
            alarm.start()
            for line in process.stdout:
                lines.append(line.rstrip("\n"))
                if line.startswith(("ok ", "FAILED")):
                    print(f"{line[:8]}{self.version} {line[8:]}", end="", flush=True)
            alarm.cancel()
        if process.returncode != 0:
            raise AssertionError(f"client {self.version}, {arguments[0]}: exit {process.returncode}\n{log.read_text(errors='replace')[-3000:]}")
        return lines


def step(name, function, *arguments):
    """Runs a step of this driver; one line, like those of the clients."""
    started = time.monotonic()
    function(*arguments)
    print(f"ok      {name} ({time.monotonic() - started:.1f} s)", flush=True)


def same_lines(what, found, expected):
    found, expected = sorted(found, key=utf16), sorted(expected, key=utf16)
    for number, (left, right) in enumerate(zip(found, expected)):
        same(f"{what}, row {number}", left, right)
    same(f"{what}: rows", len(found), len(expected))


async def pyfluss_lines(bootstrap, database, table, count):
    """All rows of an Arrow log by the Python client, as canonical lines."""
    import fluss
    import pyfluss_session

    connection, admin = await pyfluss_session.connect(bootstrap)
    path = fluss.TablePath(database, table)
    buckets = (await admin.get_table_info(path)).num_buckets
    scanner = await (await connection.get_table(path)).new_scan().create_record_batch_log_scanner()
    scanner.subscribe_buckets({bucket: fluss.EARLIEST_OFFSET for bucket in range(buckets)})
    rows = await scanner.to_arrow()
    same(f"rows of {table} by pyfluss", rows.num_rows, count)
    await connection.close()
    return readers.LAKECHECK.lines(rows)


def lake_is(weir, database, table, expected):
    """The lake table, by three readers."""
    name = f"{database}.{table}"
    weir.wait_tiered(name, len(expected))
    same_lines(f"{name} by pypaimon", readers.Pypaimon().lines(weir.lake, name), expected)
    same_lines(f"{name} by weir lake cat", readers.Weir(weir.run, None).lines(weir.lake, name), expected)
    weir.run("verify", name, "--bootstrap", weir.fluss, "--warehouse", weir.warehouse, "--complete")


def keyed_lake_is(weir, database, table):
    """A lake table with a primary key is what its log says, by key, and the same to two readers."""
    name = f"{database}.{table}"
    weir.wait_verified(name)
    lines = readers.Weir(weir.run, None).lines(weir.lake, name)
    same_lines(f"{name} by pypaimon", readers.Pypaimon().lines(weir.lake, name), lines)
    same(f"rows of {name}", bool(lines), True)


def free_ports():
    """A free port of loopback whose successor is free, too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port, port + 1


def through_cut_connections(weir, client, folder):
    """A server that tells clients an address at which there is only the client's own proxy."""
    for _ in range(5):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        ports = free_ports()
        command = [weir, "serve", "--data-dir", folder / "data", "--listen", f"127.0.0.1:{ports[0]}", "--advertise", "127.0.0.2", "--http", "127.0.0.1:0"]
        with open(folder / "weir.log", "wb") as log:
            process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=log, text=True)
        if process.stdout.readline().startswith("READY"):
            break
        process.wait()  # Somebody else took the port meanwhile.
    else:
        raise AssertionError("weir serve: " + (folder / "weir.log").read_text()[-4000:])
    try:
        client.run("cut", f"127.0.0.2:{ports[0]}", "cut", *ports)
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    same("exit code of weir serve", code, 0)


def sessions(weir, clients, expected):
    databases = {client.version: "java_" + client.version.replace(".", "_").replace("-", "_") for client in clients}
    for client in clients:
        client.run("session", weir.fluss, databases[client.version])
    for client in clients:
        for other in clients:
            if other is not client or len(clients) == 1:
                client.run("read", weir.fluss, databases[other.version])
    for database in databases.values():
        for form in FORMATS:
            table = f"types_{form.lower()}"
            step(f"lake of {database}.{table}", lake_is, weir, database, table, expected[form] * 2)
        lines = asyncio.run(pyfluss_lines(weir.fluss, database, "types_arrow", 2 * len(expected["ARROW"])))
        step(f"log of {database}.types_arrow by pyfluss", same_lines, "pyfluss", lines, expected["ARROW"] * 2)
    environment = java_tools(pathlib.Path(os.environ["TARGET"]))
    for client in clients:
        if not client.version.startswith("0."):
            name = f"{databases[client.version]}.rescaled"
            step(f"lake of {name}", weir.wait_verified, name)
    for database in databases.values():
        for table in KEYED:
            step(f"lake of {database}.{table}", keyed_lake_is, weir, database, table)
    for database in databases.values():
        for table in ("types_arrow", "grows_arrow", "parts", *KEYED):
            step(f"lakecheck {database}.{table}", java_check, environment, weir, f"{database}.{table}")
    for client in clients:
        client.run("drop", weir.fluss, databases[client.version])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weir", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--only", choices=VERSIONS)
    options = parser.parse_args()
    os.environ["TARGET"] = options.target
    if not shutil.which("java") or not shutil.which("mvn"):
        raise SystemExit("the Java clients need Java 17 and Maven")
    clients = [Client(version, options.target) for version in VERSIONS if options.only in (None, version)]
    expected = {form: clients[-1].run("expected", form) for form in FORMATS}
    for client in clients:
        for form in FORMATS:
            same(f"rows by {client.version}", client.run("expected", form), expected[form])
    folder = pathlib.Path(options.target) / "java-clients" / "server"
    weir = Weir(options.weir, folder)
    try:
        sessions(weir, clients, expected)
    finally:
        weir.stop()
    for client in clients:
        through_cut_connections(options.weir, client, folder)
    print("java clients: 1 passed, 0 failed")


if __name__ == "__main__":
    main()
