#!/usr/bin/env python3
"""The whole path with its lake in a store of the S3 protocol, which the test starts itself.

s3.py --weir BINARY --target FOLDER [--only NAME]
Prints one line a case. Exit 0 if every case passed.
"""
import argparse
import base64
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

import smoke

HERE = pathlib.Path(__file__).resolve().parent
KEY, SECRET = "AKIDFORTESTS", "wrapped+secret/of=tests"
WAREHOUSE = "s3://lake/house"
CASES = []


def case(function):
    CASES.append(function)
    return function


class Store:
    """The store, with its bucket `lake`."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, HERE / "s3_server.py"], stdout=subprocess.PIPE, text=True)
        self.endpoint = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/lake", method="PUT")).read()

    def control(self, fault):
        """Sets the fault; the requests since the last call."""
        return json.load(urllib.request.urlopen(f"{self.endpoint}/_control?fault={fault}"))

    @contextlib.contextmanager
    def failing(self, fault):
        self.control(fault)
        try:
            yield
        finally:
            self.control("none")

    def environment(self, **more):
        """Nothing of the caller's own AWS settings."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return {**plain, "AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL": self.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1", **more}

    def stop(self):
        self.process.kill()
        self.process.wait()


def keys(store, **more):
    return store.environment(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_MAX_ATTEMPTS="2", **more)


class Weir(smoke.Weir):
    """`weir up` over the store, everything with the same environment."""

    def __init__(self, binary, folder, environment, *more):
        self.environment = environment
        before = dict(os.environ)
        os.environ.clear()
        os.environ.update(environment)
        try:
            super().__init__(binary, folder, "--warehouse", WAREHOUSE, *more)
        finally:
            os.environ.clear()
            os.environ.update(before)

    def run(self, *arguments, code=0):
        done = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True, timeout=600, env=self.environment)
        if done.returncode != code:
            raise AssertionError(f"weir {' '.join(map(str, arguments))}: exit {done.returncode}, expected {code}\n{done.stdout}{done.stderr}")
        return done.stdout

    def lake_command(self, command, table, *more):
        return self.run("lake", command, table, "--warehouse", WAREHOUSE, *more)

    def table(self, name):
        tables = json.loads(self.run("status", "--grpc", self.grpc, "--json"))
        return next((t for t in tables if t.get("table", t.get("path")) == name), {})

    def wait(self, what, seconds, found):
        until, last = time.monotonic() + seconds, None
        while time.monotonic() < until:
            last = found()
            if last:
                return last
            time.sleep(0.2)
        raise AssertionError(f"no {what} within {seconds} s: {json.dumps(self.table('s.flights'))}\n" + (self.folder / "weir.log").read_text()[-3000:])

    def wait_complete(self, table, seconds=90):
        """Waits until all rows of the log are in the lake."""
        self.wait("complete lake", seconds, lambda: (self.run("status", "--grpc", self.grpc, "--tier-now", table), self.table(table).get("lag_rows") == 0)[1])


def create_and_load(weir, table, rows, *more):
    source = weir.folder / "rows.jsonl"
    source.write_text("".join(json.dumps({"id": n, "day": f"2024-01-0{1 + n % 3}", "text": f"row {n}"}) + "\n" for n in range(rows)))
    weir.run("load", "--bootstrap", weir.fluss, "--table", table, source, *more)


@case
def fc_086_the_whole_path_and_no_secret_anywhere(weir, store):
    """Rows go from the log to S3 and are read by us and by pypaimon; keys are in no log, answer or object."""
    create_and_load(weir, "s.flights", 3_000, "--create", "--partition-by", "day", "--buckets", "2")
    weir.wait_complete("s.flights")
    weir.run("verify", "s.flights", "--bootstrap", weir.fluss, "--warehouse", WAREHOUSE, "--complete")
    weir.lake_command("check", "s.flights")
    from pypaimon import CatalogFactory

    options = {"s3.endpoint": store.endpoint, "s3.access-key": KEY, "s3.secret-key": SECRET, "s3.region": "us-east-1"}
    table = CatalogFactory.create({"warehouse": WAREHOUSE, **options}).get_table("s.flights")
    builder = table.new_read_builder()
    found = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    smoke.same("ids by pypaimon", sorted(found["id"].to_pylist()), list(range(3_000)))
    texts = [(weir.folder / "weir.log").read_text(), weir.run("status", "--grpc", weir.grpc, "--json")]
    for page in ("metrics", "", "healthz", "readyz", "status"):
        with contextlib.suppress(urllib.error.HTTPError):
            texts.append(urllib.request.urlopen(f"http://{weir.http}/{page}").read().decode())
    texts.append(weir.run("table", "show", "s.flights", "--bootstrap", weir.fluss, "--json"))
    import boto3

    bucket = boto3.resource("s3", endpoint_url=store.endpoint, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1").Bucket("lake")
    objects = [item for item in bucket.objects.all() if not item.key.endswith(".parquet")]
    texts += [item.get()["Body"].read().decode("latin-1") for item in objects]
    if len(objects) < 5:
        raise AssertionError(f"only {objects} in the bucket")
    for secret in (SECRET, KEY):
        smoke.same(f"texts with {secret}", [text[:200] for text in texts if secret in text], [])


@case
def a_large_file_goes_up_in_parts(weir, store):
    """Files beyond 32 MiB are uploaded in parts, and read back whole."""
    store.control("none")
    source = weir.folder / "large.jsonl"
    with source.open("w") as lines:
        for number in range(4_500):
            lines.write(json.dumps({"id": number, "text": base64.b64encode(os.urandom(12_000)).decode()}) + "\n")
    weir.run("load", "--bootstrap", weir.fluss, "--table", "s.large", source, "--create", "--buckets", "1")
    weir.wait_complete("s.large")
    if not store.control("none").get("POST"):
        raise AssertionError("no upload in parts was begun")
    weir.run("verify", "s.large", "--bootstrap", weir.fluss, "--warehouse", WAREHOUSE, "--complete")


@case
def fc_084_a_commit_is_few_requests_and_an_idle_table_none(weir, store):
    weir.run("table", "alter", "s.flights", "--bootstrap", weir.fluss, "--set", "table.datalake.freshness=1s")
    commits = 5
    before = int(weir.table("s.flights")["lake_snapshot"])
    store.control("none")
    for _ in range(commits):
        create_and_load(weir, "s.flights", 3)
        weir.wait_complete("s.flights")
    made = int(weir.table("s.flights")["lake_snapshot"]) - before
    seen = store.control("none")
    if not commits <= made or sum(seen.values()) >= 40 * made:
        raise AssertionError(f"{sum(seen.values())} requests for {made} commits: {seen}")
    # Longer than several times the freshness: rounds are run, and find nothing to do.
    time.sleep(5)
    smoke.same("requests of idle seconds", store.control("none"), {})
    metrics = urllib.request.urlopen(f"http://{weir.http}/metrics").read().decode()
    if 'weir_tiering_lake_requests_total{table="s.flights"}' not in metrics:
        raise AssertionError("the requests of a table are no metric")


def failing_round(weir, code, setting):
    """Loads rows, and waits until status and log name the table, the code and the setting."""
    create_and_load(weir, "s.flights", 3)

    def told():
        weir.run("status", "--grpc", weir.grpc, "--tier-now", "s.flights")
        table = weir.table("s.flights")
        text = f"{table.get('reason')} {table.get('last_error')}"
        return table if code in text and setting in text else None

    table = weir.wait(f"{code} and {setting}", 45, told)
    log = (weir.folder / "weir.log").read_text()
    if not any("s.flights" in line and code in line and setting in line for line in log.splitlines()):
        raise AssertionError(f"the log does not name table, {code} and {setting}")
    return table


@case
def fc_082_what_is_wrong_is_named_with_the_setting(weir, store):
    """Within one round, in status and log: the table, the store's code, what to look at. It heals by itself."""
    wanted = {
        "denied": ("AccessDenied", "permissions"),
        "region": ("AuthorizationHeaderMalformed", "AWS_REGION"),
        "no-bucket": ("NoSuchBucket", "bucket in the warehouse's address"),
        "expired": ("ExpiredToken", "AWS_SESSION_TOKEN"),
        "slow": ("SlowDown", "overloaded"),
    }
    for fault, (code, setting) in wanted.items():
        with store.failing(fault):
            table = failing_round(weir, code, setting)
            if fault == "slow":
                smoke.same("state under a storm", table["state"], "retrying")
        weir.run("status", "--grpc", weir.grpc, "--resume", "s.flights")
        weir.wait_complete("s.flights")
    weir.run("verify", "s.flights", "--bootstrap", weir.fluss, "--warehouse", WAREHOUSE, "--complete")


@case
def fc_080_commits_need_no_permission_to_list(weir, store):
    with store.failing("no-list"):
        before = int(weir.table("s.flights")["lake_snapshot"])
        create_and_load(weir, "s.flights", 3)

        def committed():
            weir.run("status", "--grpc", weir.grpc, "--tier-now", "s.flights")
            return int(weir.table("s.flights")["lake_snapshot"]) > before

        weir.wait("commit without a listing", 45, committed)
    weir.wait_complete("s.flights")


@case
def fc_039_of_two_that_put_a_snapshot_at_once_one_goes_after_the_other(weir, store):
    """Both have read the same snapshot when the store takes their puts."""
    import pyarrow
    import pyarrow.parquet

    source, schema = weir.folder / "raced.parquet", weir.folder / "raced.json"
    pyarrow.parquet.write_table(pyarrow.table({"id": pyarrow.array(range(10), pyarrow.int64())}), source)
    fields = [{"id": 0, "name": "id", "type": "BIGINT"}]
    schema.write_text(json.dumps({"fields": fields, "partitionKeys": [], "options": {"bucket": "-1"}}))
    writer = pathlib.Path(weir.binary).with_name("weir-lake-writer")

    def start(user):
        return subprocess.Popen([writer, WAREHOUSE, "s", "raced", source, schema, user], stderr=subprocess.PIPE, text=True, env=keys(store))

    def finish(process):
        error = process.communicate(timeout=120)[1]
        smoke.same(f"exit of a writer ({error[-1000:]})", process.returncode, 0)

    finish(start("first"))
    store.control("meet")
    try:
        for process in [start("one"), start("other")]:
            finish(process)
    finally:
        seen = store.control("none")
    smoke.same("puts that met", seen.get("met"), 2)
    snapshots = json.loads(weir.lake_command("snapshots", "s.raced", "--json"))
    smoke.same("snapshots", sorted(int(snapshot["id"]) for snapshot in snapshots), [1, 2, 3])
    smoke.same("users", sorted(snapshot["commitUser"] for snapshot in snapshots), ["first", "one", "other"])
    smoke.same("rows", max(int(snapshot["totalRecordCount"]) for snapshot in snapshots), 30)
    weir.lake_command("check", "s.raced")


@case
def snapshots_expire_and_orphans_are_swept(weir, store):
    expired = json.loads(weir.lake_command("expire", "s.flights", "--retain-max", "2", "--older-than", "0s", "--json"))
    if not expired["snapshots"]:
        raise AssertionError(f"nothing expired: {expired}")
    smoke.same("orphans", json.loads(weir.lake_command("orphans", "s.flights", "--json"))["files"], [])
    weir.lake_command("check", "s.flights")
    weir.run("verify", "s.flights", "--bootstrap", weir.fluss, "--warehouse", WAREHOUSE, "--complete")


@case
def fc_082_a_start_says_what_is_wrong(weir, store):
    """The start-up check names the store's code and the setting."""
    wrong = [
        ("s3://nowhere/house", {}, "NoSuchBucket", "bucket in the warehouse's address"),
        (WAREHOUSE, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "no connection to the store", "AWS_ENDPOINT_URL"),
        (WAREHOUSE, {"AWS_PROFILE": "nobody"}, "no profile `nobody`", "credentials"),
    ]
    for warehouse, more, code, setting in wrong:
        command = [weir.binary, "up", "--data-dir", weir.folder / "wrong", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
        done = subprocess.run([*command, "--warehouse", warehouse], capture_output=True, text=True, timeout=60, env=keys(store, **more))
        if done.returncode == 0 or code not in done.stderr or setting not in done.stderr:
            raise AssertionError(f"exit {done.returncode}, expected {code} and {setting}: {done.stderr[-1500:]}")


@case
def a_profile_gives_keys_and_endpoint(weir, store):
    folder = weir.folder / "aws"
    folder.mkdir()
    (folder / "credentials").write_text(f"[weir]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    (folder / "config").write_text(f"[profile weir]\nregion = us-east-1\nendpoint_url = {store.endpoint}\n")
    environment = store.environment(AWS_PROFILE="weir", AWS_SHARED_CREDENTIALS_FILE=str(folder / "credentials"), AWS_CONFIG_FILE=str(folder / "config"))
    del environment["AWS_ENDPOINT_URL"], environment["AWS_REGION"]
    done = subprocess.run([weir.binary, "lake", "snapshots", "s.flights", "--warehouse", WAREHOUSE], capture_output=True, text=True, env=environment)
    smoke.same(f"exit with a profile: {done.stderr}", done.returncode, 0)


@case
def fc_082_an_endpoint_that_is_gone_is_named_with_the_setting(weir, store):
    """The last case: the store does not come back."""
    store.stop()
    failing_round(weir, "no connection to the store", "AWS_ENDPOINT_URL")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weir", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--only")
    options = parser.parse_args()
    store, passed, failed = Store(), 0, 0
    try:
        weir = Weir(options.weir, pathlib.Path(options.target) / "s3", keys(store))
        try:
            for function in CASES:
                if options.only and options.only != function.__name__:
                    continue
                started = time.monotonic()
                try:
                    function(weir, store)
                except Exception as error:  # noqa: BLE001 - one case must not hide the others
                    failed += 1
                    with contextlib.suppress(OSError):
                        store.control("none")
                    print(f"FAILED  {function.__name__}: {error}", flush=True)
                    continue
                passed += 1
                print(f"ok      {function.__name__} ({time.monotonic() - started:.1f} s)", flush=True)
        finally:
            weir.stop()
    finally:
        store.stop()
    print(f"s3: {passed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
