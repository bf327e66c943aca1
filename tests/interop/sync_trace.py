#!/usr/bin/env python3
"""Shows from a trace of system calls that what is answered is on the disk.

sync_trace.py --weir BINARY --target FOLDER [--expect-unsynced]
Runs `weir up -o log.flush=always` under strace, appends with the released Python client, one batch at a time, and lets
the daemon tier in between. Then it reads the trace:
  * between each write to a log segment and the answer to its append, that segment is synced, and so is its name;
  * before each COMMIT_LAKE_TABLE_SNAPSHOT is sent, each data file, manifest, manifest list, snapshot and offsets file
    is synced, and so are the folders that lead to it.
Prints what it counted. Exit 1 names the file that was not synced. With --expect-unsynced the server runs with
log.flush=os, and it is a failure if the trace of the appends looks synced.
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
import socket
import struct
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
CALLS = (
    "openat,creat,write,writev,pwrite64,pwritev,sendto,sendmsg,recvfrom,recvmsg,read,readv,fsync,fdatasync,"
    "sync_file_range,rename,renameat,renameat2,link,linkat,unlink,unlinkat,mkdir,mkdirat,close"
)
SHOWN_BYTES = 4096
PRODUCE_LOG, COMMIT_LAKE_TABLE_SNAPSHOT = 1014, 1030
ROUNDS, APPENDS_PER_ROUND, ROWS_PER_APPEND = 4, 6, 10


class NotSynced(Exception):
    """The trace shows an answer before a sync; the text names the file."""


class Unreadable(Exception):
    """The trace can't be followed."""


# The trace: calls with their begin and end, in the order in which strace saw them.

Call = collections.namedtuple("Call", "begin end name arguments result")
LINE = re.compile(r"^(\d+)\s+\d+\.\d+ (.*)$")
ENTRY = re.compile(r"^(\w+)\((.*)$", re.S)
RESUMED = re.compile(r"^<\.\.\. (\w+) resumed>(.*)$", re.S)
RESULT = re.compile(r"^(.*)\)\s+= (-?\d+|\?)(.*)$", re.S)
UNFINISHED = " <unfinished ...>"


def calls_of(path):
    """Finished, successful calls, ordered by their ends."""
    open_calls = {}
    with open(path, encoding="utf-8", errors="surrogateescape") as trace:
        for number, line in enumerate(trace):
            match = LINE.match(line.rstrip("\n"))
            if not match:
                continue
            thread, text = match.groups()
            if text.endswith(UNFINISHED):
                open_calls[thread] = (number, text[: -len(UNFINISHED)])
                continue
            begin = number
            resumed = RESUMED.match(text)
            if resumed:
                if thread not in open_calls:
                    raise Unreadable(f"line {number + 1}: {text[:80]}: the call never began")
                begin, entry = open_calls.pop(thread)
                text = entry + resumed.group(2)
            entry = ENTRY.match(text)
            result = entry and RESULT.match(entry.group(2))
            if not result:
                continue
            if result.group(2) != "?" and int(result.group(2)) >= 0:
                yield Call(begin, number, entry.group(1), result.group(1), result.group(2) + result.group(3))


ESCAPE = re.compile(rb"\\(x[0-9a-f]{2}|[0-7]{1,3}|.)", re.S)
PLAIN = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"v": b"\v", b"f": b"\f"}


def unescape(text):
    def one(match):
        code = match.group(1)
        if code[:1] == b"x" and len(code) == 3:
            return bytes([int(code[1:], 16)])
        if code[:1].isdigit():
            return bytes([int(code, 8) & 255])
        return PLAIN.get(code, code)

    return ESCAPE.sub(one, text.encode("utf-8", "surrogateescape"))


STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
FILE = re.compile(r"^(?:\d+|AT_FDCWD)<(/[^>]*)>")
SOCKET = re.compile(r"^\d+<TCP(?:v6)?:\[([^\]]*)->([^\]]*)\]>")


def strings(call):
    return [unescape(text) for text in STRING.findall(call.arguments)]


def file_of(call):
    """The path of the descriptor that a call works on."""
    match = FILE.match(call.arguments)
    return match and match.group(1)


def named(call):
    """The paths that a call names, made absolute."""
    folders = re.findall(r"(?:\d+|AT_FDCWD)<(/[^>]*)>", call.arguments)
    names = [os.fsdecode(text) for text in strings(call)]
    folders += folders[:1] * len(names)
    return [os.path.join(folder, name) if folder else name for folder, name in zip(folders or [""] * len(names), names)]


# What is on the disk.


class Disk:
    """Which bytes and names a power cut could still take."""

    def __init__(self):
        self.dirty = {}  # file -> the end of the last write that no sync began after
        self.nameless = collections.defaultdict(dict)  # folder -> names made in it -> when
        self.files = set()
        self.syncs = 0

    def feed(self, call):
        name = call.name
        if name in ("write", "writev", "pwrite64", "pwritev") and file_of(call):
            self.dirty[file_of(call)] = call.end
        elif name in ("fsync", "fdatasync"):
            self.sync(file_of(call), call)
        elif name in ("openat", "creat"):
            if name == "creat" or "O_CREAT" in call.arguments:
                path = FILE.match(call.result)
                if path and path.group(1) not in self.files:
                    self.make(path.group(1), call)
        elif name in ("mkdir", "mkdirat"):
            self.make(named(call)[0], call)
        elif name.startswith("rename"):
            old, new = named(call)
            self.follow(old, new, call)
            self.forget(old)
        elif name.startswith("link"):
            old, new = named(call)
            self.follow(old, new, call)
        elif name.startswith("unlink"):
            self.forget(named(call)[0])

    def sync(self, path, call):
        self.syncs += 1
        if self.dirty.get(path, call.begin) < call.begin:
            del self.dirty[path]
        names = self.nameless.get(path, {})
        for name in [name for name, made in names.items() if made < call.begin]:
            del names[name]

    def make(self, path, call):
        self.files.add(path)
        self.nameless[os.path.dirname(path)][path] = call.end

    def follow(self, old, new, call):
        self.make(new, call)
        self.dirty.pop(new, None)
        if old in self.dirty:
            self.dirty[new] = self.dirty[old]

    def forget(self, path):
        self.files.discard(path)
        self.dirty.pop(path, None)
        self.nameless[os.path.dirname(path)].pop(path, None)

    def require(self, path, root, why):
        """The bytes of a file, its name, and the names of the folders from `root` to it."""
        if path in self.dirty:
            raise NotSynced(f"{path}: written and not synced before {why}")
        while path.startswith(root + "/"):
            folder = os.path.dirname(path)
            if path in self.nameless.get(folder, {}):
                raise NotSynced(f"{folder}: not synced since {os.path.basename(path)} was made in it, before {why}")
            path = folder


# What went over sockets.


class Frames:
    """The headers of the frames in one direction of a connection."""

    def __init__(self, header_bytes):
        self.header_bytes, self.header, self.skip, self.lost = header_bytes, b"", 0, False

    def feed(self, shown, length):
        """Headers that are complete with these bytes: `length` in all, of which the first ones are shown."""
        found, at = [], 0
        while at < length and not self.lost:
            if self.skip:
                step = min(self.skip, length - at)
                self.skip, at = self.skip - step, at + step
                continue
            if at >= len(shown):
                self.lost = True
                break
            self.header, at = self.header + shown[at : at + 1], at + 1
            if len(self.header) == self.header_bytes:
                found.append(self.header)
                self.skip = 4 + struct.unpack(">i", self.header[:4])[0] - self.header_bytes
                self.header = b""
        return found


def port(address):
    return int(address.rsplit(":", 1)[1])


def moved(call):
    """Bytes that a call moved over a socket: what is shown of them, and their number."""
    shown = call.arguments.split('"...', 1)[0]
    return b"".join(unescape(text) for text in STRING.findall(shown + '"')), int(re.match(r"\d+", call.result).group())


class Reader:
    """Goes through the trace once and checks both rules."""

    def __init__(self, coordinator, tablet, root):
        self.coordinator, self.tablet, self.root = coordinator, tablet, root
        self.disk = Disk()
        self.streams = {}
        self.open_appends = {}  # (connection, request id) -> the number of log writes before it
        self.log_writes = []
        self.appends, self.commits = 0, 0
        self.checked, self.kinds = set(), collections.Counter()

    def read(self, path):
        """Reads all. A send counts at its begin, all else at its end."""
        events = []
        for call in calls_of(path):
            is_send = call.name in ("sendto", "sendmsg", "write", "writev") and SOCKET.match(call.arguments)
            events.append((call.begin if is_send else call.end, len(events), call))
        for _, _, call in sorted(events):
            self.step(call)

    def step(self, call):
        connection = SOCKET.match(call.arguments)
        if connection is None:
            if call.name == "pwrite64" and (file_of(call) or "").endswith(".log"):
                self.log_writes.append(file_of(call))
            self.disk.feed(call)
            return
        local, peer = map(port, connection.groups())
        receives = call.name in ("recvfrom", "recvmsg", "read", "readv")
        if local == self.tablet and receives:
            for header in self.frames(connection, "requests", 12, call):
                if struct.unpack(">h", header[4:6])[0] == PRODUCE_LOG:
                    self.open_appends[connection.group(), header[8:12]] = len(self.log_writes)
        elif local == self.tablet:
            for header in self.frames(connection, "answers", 9, call):
                before = self.open_appends.pop((connection.group(), header[5:9]), None)
                if before is not None:
                    self.check_append(before)
        elif peer == self.coordinator and not receives:
            for header in self.frames(connection, "requests", 12, call):
                if struct.unpack(">h", header[4:6])[0] == COMMIT_LAKE_TABLE_SNAPSHOT:
                    self.check_commit()

    def frames(self, connection, direction, header_bytes, call):
        # A descriptor's number may be used again, a pair of ports is not, in so short a time.
        stream = self.streams.setdefault((connection.groups(), direction), Frames(header_bytes))
        return stream.feed(*moved(call))

    def check_append(self, before):
        written = set(self.log_writes[before:])
        if not written:
            raise Unreadable("an append was answered, but the trace shows no write to a log segment")
        self.appends += 1
        for path in written:
            self.disk.require(path, self.root, f"the answer to append {self.appends}")
            self.checked.add(path)

    def check_commit(self):
        self.commits += 1
        for path in sorted(self.disk.files):
            kind = lake_kind(path)
            if kind:
                self.disk.require(path, self.root, f"COMMIT {self.commits}")
                if path not in self.checked:
                    self.checked.add(path)
                    self.kinds[kind] += 1


def lake_kind(path):
    """What a published file of the lake is; None for hints, staged files and all else."""
    name = os.path.basename(path)
    if name.startswith(".") or "#" in name:
        return None
    if "/remote/" in path:
        return "offsets files" if name.endswith(".offsets") else None
    for pattern, kind in (
        (r"data-.*\.parquet$", "data files"), (r"manifest-list-", "manifest lists"), (r"manifest-", "manifests"),
        (r"snapshot-\d+$", "snapshots"), (r"schema-\d+$", "schemas"),
    ):
        if "/lake/" in path and re.match(pattern, name):
            return kind
    return None


# The run.


def need_strace():
    if shutil.which("strace"):
        return
    if not shutil.which("apt-get"):
        raise SystemExit("please install strace")
    sudo = [] if os.getuid() == 0 else ["sudo"]
    subprocess.run([*sudo, "apt-get", "update", "-qq"], check=True, stdout=sys.stderr)
    subprocess.run([*sudo, "apt-get", "install", "-y", "-qq", "--no-install-recommends", "strace"], check=True, stdout=sys.stderr)


def free_pair():
    """A port that is free, and the next one too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            found = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", found + 1))
            except OSError:
                continue
            return found


class Traced:
    """`weir up` under strace, in its own folder."""

    def __init__(self, binary, folder, flush):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder, self.data, self.trace = folder, folder / "data", folder / "trace"
        self.port = free_pair()
        self.log = open(folder / "weir.log", "wb")
        command = ["strace", "-f", "--seccomp-bpf", "-ttt", "-yy", "-s", str(SHOWN_BYTES), "-e", "signal=none", "-e", f"trace={CALLS}", "-o", self.trace]
        command += [binary, "up", "--data-dir", self.data, "--listen", f"127.0.0.1:{self.port}"]
        command += ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "-o", f"log.flush={flush}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("READY "):
            raise SystemExit(f"weir up did not become ready: {line!r}\n{self.log_tail()}")

    def log_tail(self):
        return (self.folder / "weir.log").read_text(errors="replace")[-4000:]

    def snapshots(self, table):
        folder = self.data / "lake/trace.db" / table / "snapshot"
        return sorted(int(path.name[9:]) for path in folder.glob("snapshot-*"))

    def lake_rows(self, table):
        ids = self.snapshots(table)
        if not ids:
            return 0
        path = self.data / "lake/trace.db" / table / f"snapshot/snapshot-{ids[-1]}"
        return json.loads(path.read_text())["totalRecordCount"]

    def wait_tiered(self, table, rows, seconds=60):
        until = time.monotonic() + seconds
        while self.lake_rows(table) < rows:
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{table}: {self.lake_rows(table)} of {rows} rows in the lake after {seconds} s\n{self.log_tail()}")
            time.sleep(0.1)

    def stop(self):
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGTERM)
        code = self.process.wait(60)
        self.log.close()
        if code != 0:
            raise SystemExit(f"weir up: exit {code} after SIGTERM\n{self.log_tail()}")


async def append_and_tier(weir):
    """Appends one batch at a time, each time waiting for its answer; new partitions come with each round."""
    import fluss
    import pyarrow as pa
    import pyfluss_session

    connection, admin = await pyfluss_session.connect(f"127.0.0.1:{weir.port}")
    await admin.create_database("trace", None, True)
    schema = pa.schema([("p", pa.string()), ("n", pa.int64())])
    properties = {"table.datalake.enabled": "true", "table.datalake.freshness": "1s"}
    path = fluss.TablePath("trace", "rows")
    await admin.create_table(path, fluss.TableDescriptor(fluss.Schema(schema), partition_keys=["p"], bucket_count=2, properties=properties), False)
    table = await connection.get_table(path)
    writer = table.new_append().create_writer()
    sent = 0
    for round_number in range(ROUNDS):
        partition = f"p{round_number}"
        await admin.create_partition(path, {"p": partition}, False)
        for _ in range(APPENDS_PER_ROUND):
            for _ in range(ROWS_PER_APPEND):
                writer.append(dict(p=partition, n=sent))
                sent += 1
            await writer.flush()
        await asyncio.to_thread(weir.wait_tiered, "rows", sent)
    await connection.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weir", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--expect-unsynced", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    need_strace()
    flush = "os" if options.expect_unsynced else "always"
    weir = Traced(options.weir, pathlib.Path(options.target).resolve() / f"sync-trace-{flush}", flush)
    try:
        asyncio.run(append_and_tier(weir))
    finally:
        weir.stop()
    reader = Reader(weir.port, weir.port + 1, str(weir.folder))
    try:
        reader.read(weir.trace)
    except NotSynced as found:
        print(f"log.flush={flush}: {found}")
        sys.exit(0 if options.expect_unsynced and ".log" in str(found).split(":")[0] else 1)
    if options.expect_unsynced:
        print("log.flush=os: every append looks synced: this check finds nothing")
        sys.exit(1)
    snapshots = len(weir.snapshots("rows"))
    files = ", ".join(f"{count} {kind}" for kind, count in sorted(reader.kinds.items()))
    print(f"synced before the answer: {reader.appends} appends; before {reader.commits} commits: {files}; {reader.disk.syncs} syncs in all")
    expected = ROUNDS * APPENDS_PER_ROUND
    if reader.appends < expected or reader.commits < snapshots or snapshots < ROUNDS or len(reader.kinds) < 6:
        print(f"the trace shows too little: expected {expected} appends and {snapshots} commits of 6 kinds of files")
        sys.exit(1)


if __name__ == "__main__":
    main()
