#!/usr/bin/env python3
"""`weir tier` against an unmodified Fluss 0.9.1 cluster (ZooKeeper, coordinator, tablet server), compared by row hashes.

real_cluster.py --weir BINARY --target FOLDER [--rows N] [--port P]
Needs Java 17 and Maven. Starts the cluster on loopback, loads a lineitem-like log table with the released Java client,
lets `weir tier` bring it into a Paimon table, and compares log and lake as multisets. Exit 0 if they are equal.
"""
import argparse
import json
import pathlib
import shutil
import signal
import os
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
RIG = HERE / "rig"


def run(*command, env=None, timeout=900):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=env, timeout=timeout)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def snapshot_rows(lake, table):
    database, name = table.split(".")
    folder = lake / f"{database}.db" / name / "snapshot"
    ids = [int(p.name[9:]) for p in folder.glob("snapshot-*")] if folder.is_dir() else []
    return json.loads((folder / f"snapshot-{max(ids)}").read_text())["totalRecordCount"] if ids else 0


def tier_until(weir, bootstrap, lake, folder, table, rows):
    """Runs `weir tier` until the lake holds `rows` rows of the table."""
    log = open(folder / "tier.log", "wb")
    command = [weir, "tier", "--bootstrap", bootstrap, "--warehouse", lake, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    daemon = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log)
    try:
        until = time.monotonic() + 180
        while snapshot_rows(lake, table) < rows:
            if daemon.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"weir tier: {snapshot_rows(lake, table)} of {rows} rows\n" + (folder / "tier.log").read_text()[-4000:])
            time.sleep(0.5)
    finally:
        daemon.send_signal(signal.SIGTERM)
        code = daemon.wait(60)
    if code != 0:
        raise SystemExit(f"weir tier: exit {code} after SIGTERM\n" + (folder / "tier.log").read_text()[-4000:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weir", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--port", type=int, default=19123)
    options = parser.parse_args()
    if not shutil.which("java") or not shutil.which("mvn"):
        raise SystemExit("the real cluster needs Java 17 and Maven")
    folder = pathlib.Path(options.target) / "real-cluster"
    run(RIG / "fluss/down", "--run", folder / "run") if (folder / "run").exists() else None
    shutil.rmtree(folder, ignore_errors=True)
    lake = folder / "lake"
    lake.mkdir(parents=True)
    environment = {**os.environ, "RIG_BUILD": str(pathlib.Path(options.target) / "rig")}
    ready = run(RIG / "fluss/up", "--run", folder / "run", "--warehouse", lake, "--port", options.port, env=environment)
    bootstrap = ready.split()[-1]
    table = "g.log"
    try:
        load = RIG / "load/load"
        run(load, "create", "--bootstrap", bootstrap, "--table", table, "--kind", "log", "--freshness", "2s", "+",
            "write", "--rows", options.rows, env=environment)
        tier_until(options.weir, bootstrap, lake, folder, table, options.rows)
        hashes = folder / "hashes"
        run(load, "read", "--bootstrap", bootstrap, "--table", table, "--out", hashes, env=environment)
        print(run(sys.executable, RIG / "load/verify.py", "--warehouse", lake, "--table", table, "--hashes", hashes).strip())
    finally:
        run(RIG / "fluss/down", "--run", folder / "run")
    print("real cluster: 1 passed, 0 failed")


if __name__ == "__main__":
    main()
