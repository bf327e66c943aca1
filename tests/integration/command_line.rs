//! The command line against a running cluster: what it says, and what it leaves behind.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use weir_protocol::error_code::ErrorCode;
use weir_protocol::ids::TablePath;
use weir_tests::binary::{self, Ended};
use weir_tests::cluster::Cluster;

/// Runs a command that must end with this code, without a panic.
async fn weir(code: i32, arguments: &[&str]) -> Ended {
    let ended = binary::run(arguments.iter().copied()).await;
    assert_eq!(ended.code, Some(code), "{arguments:?}: {ended:?}");
    assert!(!ended.log.contains("panicked"), "{ended:?}");
    ended
}

fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).expect("the file is written");
    path.to_str().expect("a plain name").to_owned()
}

/// `weir load --table d.t SOURCE …`, which must end with this code.
async fn load(cluster: &Cluster, code: i32, source: &str, more: &[&str]) -> Ended {
    let addr = cluster.addr();
    let mut arguments = vec!["load", "--bootstrap", &addr, "--table", "d.t", source];
    arguments.extend(more);
    weir(code, &arguments).await
}

/// What shuts clients out for good is not done without a word; later changes shut out nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_change_of_the_bucket_count_wants_a_yes() {
    let mut cluster = Cluster::start().await;
    let addr = cluster.addr();
    let table = async |code: i32, verb: &str, more: &[&str]| {
        let arguments = [&["table", verb, "d.t", "--bootstrap", &addr], more].concat();
        weir(code, &arguments).await
    };
    let columns = ["--column", "id BIGINT", "--column", "day STRING"];
    let keys = ["--partition-by", "day", "--bucket-key", "id"];
    table(0, "create", &[columns, keys].concat()).await;
    // As many as there are: nothing changes.
    table(0, "alter", &["--set", "bucket.num=1"]).await;
    let ended = table(2, "alter", &["--set", "bucket.num=4"]).await;
    assert!(ended.log.contains("nothing was changed"), "{ended:?}");
    assert!(ended.log.contains("pyfluss"), "{ended:?}");
    let path = TablePath::new("d", "t");
    let info = cluster.client.table_info(&path).await.unwrap();
    assert_eq!(
        (info.descriptor.bucket_count, info.bucket_layout_epoch),
        (Some(1), 0)
    );
    table(0, "alter", &["--set", "bucket.num=4", "--yes"]).await;
    table(0, "alter", &["--set", "bucket.num=8"]).await;
    let info = cluster.client.table_info(&path).await.unwrap();
    assert_eq!(
        (info.descriptor.bucket_count, info.bucket_layout_epoch),
        (Some(8), 2)
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_load_leaves_no_table_that_it_made_and_no_hint_to_resume() {
    let mut cluster = Cluster::start().await;
    let folder = TempDir::new().unwrap();
    let rows = |count: usize| "1,a\n".repeat(count);
    let text = format!("id,name\n{}zz,a\n", rows(10_000));
    let bad = file(folder.path(), "bad.csv", &text);
    let state = folder.path().join("state");
    let state = state.to_str().unwrap();
    for more in [&["--create"][..], &["--create", "--state", state]] {
        let ended = load(&cluster, 1, &bad, more).await;
        assert!(
            ended.log.contains("bad.csv") && ended.log.contains("'zz'"),
            "{ended:?}"
        );
        assert!(ended.log.contains("was dropped again"), "{ended:?}");
        assert!(!ended.log.contains("goes on"), "{ended:?}");
        assert!(!Path::new(state).exists());
        let gone = cluster.client.database_info("d").await.unwrap_err();
        assert_eq!(gone.code(), Some(ErrorCode::DatabaseNotExist));
    }

    // A table that was there stays, with the rows it has.
    let good = file(folder.path(), "good.csv", &format!("id,name\n{}", rows(3)));
    load(&cluster, 0, &good, &["--create"]).await;
    let ended = load(&cluster, 1, &bad, &["--create"]).await;
    assert!(!ended.log.contains("dropped"), "{ended:?}");
    let path = TablePath::new("d", "t");
    cluster.client.table_info(&path).await.expect("it stays");
    let ends = cluster.log_ends(&path).await;
    assert_eq!(ends.values().map(|end| end.0).sum::<i64>(), 3);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_goes_on_with_the_same_file_only() {
    let mut cluster = Cluster::start().await;
    let folder = TempDir::new().unwrap();
    let state = folder.path().join("state");
    let state = state.to_str().unwrap();
    let csv = file(folder.path(), "a.csv", "id,name\n1,a\n2,b\n");
    let more = ["--create", "--state", state];
    load(&cluster, 0, &csv, &more).await;
    load(&cluster, 0, &csv, &more).await;
    for changed in ["id,name\n1,a\n2,b\n3,c\n", "id,name\n1,a\n2,x\n"] {
        file(folder.path(), "a.csv", changed);
        let ended = load(&cluster, 1, &csv, &more).await;
        assert!(ended.log.contains("has changed since"), "{ended:?}");
        assert!(ended.log.contains("2 rows are acknowledged"), "{ended:?}");
    }
    let ends = cluster.log_ends(&TablePath::new("d", "t")).await;
    assert_eq!(ends.values().map(|end| end.0).sum::<i64>(), 2);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_goes_into_the_types_of_its_table_or_is_refused_with_both() {
    let mut cluster = Cluster::start().await;
    let addr = cluster.addr();
    let create = [
        "table",
        "create",
        "--bootstrap",
        &addr,
        "d.t",
        "--buckets",
        "2",
    ];
    let columns = [
        "--column",
        "id INT NOT NULL",
        "--column",
        "price DECIMAL(10, 2)",
    ];
    weir(0, &[&create[..], &columns[..]].concat()).await;

    let folder = TempDir::new().unwrap();
    let csv = file(folder.path(), "a.csv", "id,price\n1,1.5\n2,\n");
    load(&cluster, 0, &csv, &["--create", "--buckets", "2"]).await;
    let ended = load(&cluster, 1, &csv, &["--create", "--buckets", "4"]).await;
    assert!(
        ended.log.contains("its --buckets is 2 where 4 is wanted"),
        "{ended:?}"
    );
    let ended = load(&cluster, 1, "tpch:region", &[]).await;
    assert!(
        ended
            .log
            .contains("column `r_regionkey` is not in table d.t"),
        "{ended:?}"
    );

    let shown = weir(0, &["table", "show", "--bootstrap", &addr, "d.t"]).await;
    assert!(
        shown.data.contains("rows in log 2 (sums over 2 buckets"),
        "{shown:?}"
    );
    let alter = ["table", "alter", "--bootstrap", &addr, "d.t"];
    let ended = weir(2, &alter).await;
    assert!(ended.log.contains("nothing to change"), "{ended:?}");
    let ended = weir(0, &[&alter[..], &["--reset", "a"]].concat()).await;
    assert_eq!(ended.data, "d.t: nothing to change\n");
    let ended = weir(
        1,
        &[
            "table",
            "create",
            "--bootstrap",
            &addr,
            "e.t",
            "--column",
            "a INT",
            "--set",
            "table.x=1",
        ],
    )
    .await;
    assert!(ended.log.contains("`table.x`"), "{ended:?}");
    let gone = cluster.client.database_info("e").await.unwrap_err();
    assert_eq!(gone.code(), Some(ErrorCode::DatabaseNotExist));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_a_lake_makes_nothing_and_names_the_warehouse() {
    let mut cluster = Cluster::start().await;
    let addr = cluster.addr();
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("lake");
    let lake = missing.to_str().unwrap();
    for arguments in [
        &["lake", "snapshots", "d.t", "--warehouse", lake][..],
        &["lake", "check", "d.t", "--warehouse", lake],
        &["verify", "d.t", "--bootstrap", &addr, "--warehouse", lake],
        &[
            "tier",
            "--bootstrap",
            &addr,
            "--warehouse",
            lake,
            "--http",
            "127.0.0.1:0",
            "--grpc",
            "127.0.0.1:0",
        ],
    ] {
        let ended = weir(1, arguments).await;
        assert!(
            ended.log.contains(lake) && ended.log.contains("does not exist"),
            "{ended:?}"
        );
        assert!(!missing.exists(), "{arguments:?}");
    }

    let csv = file(folder.path(), "a.csv", "id\n1\n");
    load(&cluster, 0, &csv, &["--create"]).await;
    fs::create_dir(&missing).unwrap();
    let ended = weir(
        1,
        &["verify", "d.t", "--bootstrap", &addr, "--warehouse", lake],
    )
    .await;
    assert!(
        ended.log.contains("there is no lake table of d.t"),
        "{ended:?}"
    );
    assert!(ended.log.contains(lake), "{ended:?}");
    let warehouse = cluster.warehouse();
    let warehouse = warehouse.to_str().unwrap();
    let ended = weir(
        1,
        &[
            "lake",
            "cat",
            "d.t",
            "--warehouse",
            warehouse,
            "--snapshot",
            "9",
        ],
    )
    .await;
    assert!(
        ended.log.contains("d.t has no snapshot 9: it has none yet"),
        "{ended:?}"
    );
    cluster.stop().await;
}
