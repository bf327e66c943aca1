//! The command line: what can be asked, and how it is answered.
//!
//! Standard output is data, standard error is log. Exit codes: 0 done, 1 failed, 2 usage, 75 try again.

pub mod columns;
pub mod connect;
pub mod create;
pub mod exit;
pub mod lake;
pub mod load;
pub mod maintain;
pub mod output;
pub mod progress;
pub mod replay;
pub mod settings;
pub mod status;
pub mod table;
pub mod tier;
mod values;
pub mod verify;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use weir_protocol::ids::TablePath;

use values::{address, bucket_name, http_address, setting};

/// Keeps Apache Paimon lake tables seconds behind Apache Fluss streams, exactly once.
#[derive(Debug, Parser)]
#[command(name = "weir", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Example:\n  weir demo\n  weir up --data-dir ./weir-data")]
pub struct Cli {
    /// What is logged to standard error: `error`, `warn`, `info`, `debug`, or a filter such as
    /// `weir_server=debug`.
    #[arg(
        long,
        global = true,
        env = "WEIR_LOG",
        default_value = "warn,weir=info,weir_server=info,weir_tiering=info,weir_catalog=info",
        hide_default_value = true
    )]
    pub log: String,
    /// Logs one JSON object a line.
    #[arg(long, global = true, env = "WEIR_LOG_JSON")]
    pub log_json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs server and daemon: streams in, lake tables out.
    #[command(
        after_help = "Example:\n  weir up --data-dir ./weir-data\n\nPrints READY with the addresses once usable. SIGTERM drains and ends."
    )]
    Up(Up),
    /// Runs the server alone.
    #[command(
        after_help = "Example:\n  weir serve --data-dir ./weir-data --warehouse s3://bucket/lake"
    )]
    Serve(Serve),
    /// Runs the tiering daemon alone, beside any Fluss cluster.
    #[command(
        after_help = "Example:\n  weir tier --bootstrap fluss-1:9123,fluss-2:9123 --warehouse s3://bucket/lake"
    )]
    Tier(Tier),
    /// Shows the whole thing on generated TPC-H data: loads, tiers, verifies, prints the lake.
    #[command(after_help = "Example:\n  weir demo --scale 0.1")]
    Demo(Demo),
    /// Appends a file or generated rows to a log table.
    #[command(
        after_help = "Examples:\n  weir load --table demo.flights flights.parquet --create --partition-by month --buckets 4\n  weir load --table demo.lineitem tpch:lineitem:0.1 --create --bucket-key l_orderkey"
    )]
    Load(Load),
    /// Lists, shows, creates, alters and drops tables of a cluster.
    #[command(
        subcommand,
        after_help = "Examples:\n  weir table list\n  weir table show demo.lineitem"
    )]
    Table(TableCommand),
    /// Shows every table that the daemon tiers: state, lag, last round, last error.
    #[command(
        after_help = "Examples:\n  weir status --json\n  weir status --tier-now demo.lineitem\n\nTables without table.datalake.enabled=true are not tiered and not shown: `weir table list` has all."
    )]
    Status(Status),
    /// Looks into the lake.
    #[command(
        subcommand,
        after_help = "Examples:\n  weir lake partitions demo.lineitem --warehouse ./weir-data/lake\n  weir lake cat demo.lineitem --warehouse ./weir-data/lake --limit 10\n  weir lake cat demo.lineitem --warehouse ./weir-data/lake --where 'l_quantity < 10'"
    )]
    Lake(LakeCommand),
    /// Looks over, and mends, the logs of a data directory on which no server runs.
    #[command(subcommand, after_help = "Example:\n  weir log check ./weir-data")]
    Log(LogCommand),
    /// Audits a lake table against the log it came from.
    #[command(
        after_help = "Example:\n  weir verify demo.lineitem --warehouse ./weir-data/lake\n\n\
        Exit codes: 0 what is in the lake is right; 1 a difference or damage was found, with the bucket\n\
        or file named, or --complete was asked for and rows are missing; 75 lake or cluster can't be\n\
        reached now."
    )]
    Verify(Verify),
    /// Puts bad records back into the lake table, once their cause is mended.
    #[command(
        after_help = "Example:\n  weir replay demo.lineitem --warehouse ./weir-data/lake\n\n\
        Bad records are rows that the lake table could not take, of a table with the property\n\
        weir.bad-record=divert; they are in the table TABLE__weir_bad_records beside it. Each is put back\n\
        once, whatever becomes of the command; those that still don't fit stay, and are named.\n\n\
        Exit codes: 0 none is left; 1 some still don't fit; 75 lake or cluster can't be reached now."
    )]
    Replay(replay::Replay),
}

/// How a cluster is reached.
#[derive(Args, Clone, Debug)]
pub struct Cluster {
    /// Addresses of the cluster, `HOST:PORT`, separated by commas; any one that answers will do.
    /// 127.0.0.1:9123 if not given.
    #[arg(long, env = "WEIR_BOOTSTRAP", value_delimiter = ',', value_parser = address)]
    pub bootstrap: Vec<String>,
    /// User for SASL/PLAIN.
    #[arg(long, env = "WEIR_USER", requires = "password")]
    pub user: Option<String>,
    /// Password for SASL/PLAIN; better given by the environment.
    #[arg(long, env = "WEIR_PASSWORD", hide_env_values = true, requires = "user")]
    pub password: Option<String>,
}

impl Cluster {
    /// The addresses to dial.
    pub fn addresses(&self) -> Vec<String> {
        if self.bootstrap.is_empty() {
            crate::config::DaemonConfig::default().bootstrap
        } else {
            self.bootstrap.clone()
        }
    }
}

/// Where the lake is.
#[derive(Args, Clone, Debug)]
pub struct Warehouse {
    /// The lake: a folder, or a `file://` or `s3://` address.
    #[arg(long, env = "WEIR_WAREHOUSE")]
    pub warehouse: String,
}

/// What server and daemon share on the command line.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// A file with settings (TOML); the command line and `-o` win over it.
    #[arg(long, env = "WEIR_CONFIG")]
    pub config: Option<PathBuf>,
    /// One setting, for example `-o tiering.memory=268435456`; may be repeated.
    #[arg(short = 'o', value_name = "KEY=VALUE", value_parser = setting)]
    pub options: Vec<(String, String)>,
    /// Health, metrics and the page.
    #[arg(long, value_name = "HOST:PORT", value_parser = address, default_value = "127.0.0.1:9180")]
    pub http: String,
}

/// Settings of the server on the command line.
#[derive(Args, Clone, Debug)]
pub struct Serving {
    /// Where everything is kept.
    #[arg(long, env = "WEIR_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// The lake; `DATA_DIR/lake` if not given.
    #[arg(long, env = "WEIR_WAREHOUSE")]
    pub warehouse: Option<String>,
    /// Where offsets files and later remote segments go; `DATA_DIR/remote` if not given.
    #[arg(long)]
    pub remote: Option<String>,
    /// The coordinator's address; tablet servers take the next ports, port 0 a free one each.
    /// 127.0.0.1:9123 if not given.
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    pub listen: Option<String>,
    /// The host that clients are told; the listen host if not given.
    #[arg(long, value_name = "HOST")]
    pub advertise: Option<String>,
    /// Tablet servers in this process; 1 if not given.
    #[arg(long)]
    pub tablets: Option<usize>,
}

/// `weir up`.
#[derive(Args, Clone, Debug)]
pub struct Up {
    /// The server's part.
    #[command(flatten)]
    pub serving: Serving,
    /// Shared settings.
    #[command(flatten)]
    pub common: Common,
    /// The control API.
    #[arg(long, value_name = "HOST:PORT", value_parser = address, default_value = "127.0.0.1:9181")]
    pub grpc: String,
}

/// `weir serve`.
#[derive(Args, Clone, Debug)]
pub struct Serve {
    /// The server's part.
    #[command(flatten)]
    pub serving: Serving,
    /// Shared settings.
    #[command(flatten)]
    pub common: Common,
}

/// `weir tier`.
#[derive(Args, Clone, Debug)]
pub struct Tier {
    /// The cluster.
    #[command(flatten)]
    pub cluster: Cluster,
    /// The lake: a folder, or a `file://` or `s3://` address.
    #[arg(long, env = "WEIR_WAREHOUSE")]
    pub warehouse: Option<String>,
    /// Shared settings.
    #[command(flatten)]
    pub common: Common,
    /// The control API.
    #[arg(long, value_name = "HOST:PORT", value_parser = address, default_value = "127.0.0.1:9181")]
    pub grpc: String,
}

/// `weir demo`.
#[derive(Args, Clone, Debug)]
pub struct Demo {
    /// Size of the data: 1.0 is six million line items.
    #[arg(long, default_value_t = 0.1)]
    pub scale: f64,
    /// Where everything is kept; emptied first if a demo was there. A temporary folder, kept, if not given.
    #[arg(long)]
    pub data_dir: Option<PathBuf>,
}

/// `weir load`.
#[derive(Args, Clone, Debug)]
pub struct Load {
    /// The cluster.
    #[command(flatten)]
    pub cluster: Cluster,
    /// The table, `DATABASE.TABLE`.
    #[arg(long)]
    pub table: TablePath,
    /// A file (`.parquet`, `.csv` with a header, `.jsonl`) or `tpch:TABLE[:SCALE]`. Columns are
    /// found by name; those of CSV and JSON are read as the table's types.
    pub source: String,
    /// Creates database and table, with the columns of the source, where they are missing. A table
    /// that is there must be as the options say.
    #[arg(long)]
    pub create: bool,
    /// With --create: the partition column, or columns separated by commas.
    #[arg(long, value_delimiter = ',', requires = "create")]
    pub partition_by: Vec<String>,
    /// With --create: the columns whose hash picks the bucket.
    #[arg(long, value_delimiter = ',', requires = "create")]
    pub bucket_key: Vec<String>,
    /// With --create: the primary key; rows are put by it, the last one of a key stays.
    #[arg(long, value_delimiter = ',', requires = "create")]
    pub primary_key: Vec<String>,
    /// With --create: buckets of each partition, or of the table.
    #[arg(long, requires = "create")]
    pub buckets: Option<i32>,
    /// With --create: keeps the table out of the lake.
    #[arg(long, requires = "create")]
    pub no_lake: bool,
    /// With --create: how far the lake may lag, for example `30s`; 5 s for a new table if not given.
    #[arg(long, requires = "create", conflicts_with = "no_lake")]
    pub freshness: Option<String>,
    /// Remembers what was acknowledged: the same command again goes on where it stopped and sends
    /// the same bytes.
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
}

/// `weir table …`.
#[derive(Debug, Subcommand)]
pub enum TableCommand {
    /// Lists the tables of all databases, or of one.
    #[command(after_help = "Example:\n  weir table list --database demo")]
    List(TableList),
    /// Shows columns, options, buckets and offsets of a table.
    #[command(after_help = "Example:\n  weir table show demo.lineitem --json")]
    Show(TableTarget),
    /// Creates a log table, or a table with a primary key.
    #[command(
        after_help = "Example:\n  weir table create demo.events --column 'id BIGINT NOT NULL' --column 'day STRING' --partition-by day --buckets 4"
    )]
    Create(TableCreate),
    /// Changes options or the bucket count of new partitions, or adds a nullable column at the end.
    #[command(
        after_help = "Examples, options and columns one command each:\n  weir table alter demo.events --set table.datalake.freshness=30s\n  weir table alter demo.events --set bucket.num=8 --yes\n  weir table alter demo.events --add-column 'note STRING'"
    )]
    Alter(TableAlter),
    /// Drops a table; its lake table stays.
    #[command(after_help = "Example:\n  weir table drop demo.events --if-exists")]
    Drop(TableDrop),
    /// Lists the partitions of a table with their own bucket counts.
    #[command(after_help = "Example:\n  weir table partitions demo.lineitem")]
    Partitions(TableTarget),
}

/// `weir table list`.
#[derive(Args, Clone, Debug)]
pub struct TableList {
    /// The cluster.
    #[command(flatten)]
    pub cluster: Cluster,
    /// Only this database.
    #[arg(long)]
    pub database: Option<String>,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// A table of a cluster.
#[derive(Args, Clone, Debug)]
pub struct TableTarget {
    /// The table, `DATABASE.TABLE`.
    pub table: TablePath,
    /// The cluster.
    #[command(flatten)]
    pub cluster: Cluster,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// `weir table create`.
#[derive(Args, Clone, Debug)]
pub struct TableCreate {
    /// The table, `DATABASE.TABLE`; the database is created where it is missing.
    pub table: TablePath,
    /// The cluster.
    #[command(flatten)]
    pub cluster: Cluster,
    /// A column, `NAME TYPE [NOT NULL]`, in order; may be repeated.
    #[arg(long = "column", value_name = "COLUMN", required = true)]
    pub columns: Vec<String>,
    /// The primary key: a column, or columns separated by commas. They become NOT NULL.
    #[arg(long, value_delimiter = ',')]
    pub primary_key: Vec<String>,
    /// The partition column, or columns separated by commas.
    #[arg(long, value_delimiter = ',')]
    pub partition_by: Vec<String>,
    /// The columns whose hash picks the bucket.
    #[arg(long, value_delimiter = ',')]
    pub bucket_key: Vec<String>,
    /// Buckets of each partition, or of the table.
    #[arg(long)]
    pub buckets: Option<i32>,
    /// An option, for example `table.datalake.enabled=true`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    pub options: Vec<(String, String)>,
    /// Says nothing if the table is there.
    #[arg(long)]
    pub if_not_exists: bool,
}

/// `weir table alter`.
#[derive(Args, Clone, Debug)]
pub struct TableAlter {
    /// The table, `DATABASE.TABLE`.
    pub table: TablePath,
    /// The cluster.
    #[command(flatten)]
    pub cluster: Cluster,
    /// Sets an option; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    pub options: Vec<(String, String)>,
    /// Removes an option; may be repeated.
    #[arg(long = "reset", value_name = "KEY")]
    pub resets: Vec<String>,
    /// Adds a column, `NAME TYPE`; may be repeated.
    #[arg(long = "add-column", value_name = "COLUMN")]
    pub columns: Vec<String>,
    /// Goes on where a change shuts older clients out of the table.
    #[arg(long)]
    pub yes: bool,
}

/// `weir table drop`.
#[derive(Args, Clone, Debug)]
pub struct TableDrop {
    /// The table, `DATABASE.TABLE`.
    pub table: TablePath,
    /// The cluster.
    #[command(flatten)]
    pub cluster: Cluster,
    /// Says nothing if the table is missing.
    #[arg(long)]
    pub if_exists: bool,
}

/// `weir status`.
#[derive(Args, Clone, Debug)]
pub struct Status {
    /// The daemon's control API, `HOST:PORT` or `http://HOST:PORT`.
    #[arg(
        long,
        env = "WEIR_GRPC",
        value_name = "HOST:PORT",
        value_parser = http_address,
        default_value = "127.0.0.1:9181"
    )]
    pub grpc: String,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
    /// Asks for a round of this table at once.
    #[arg(long, value_name = "TABLE", group = "action")]
    pub tier_now: Option<TablePath>,
    /// Holds this table.
    #[arg(long, value_name = "TABLE", group = "action")]
    pub pause: Option<TablePath>,
    /// Ends the pause of this table.
    #[arg(long, value_name = "TABLE", group = "action")]
    pub resume: Option<TablePath>,
    /// Gives up the rows of this table that its log has lost before they were tiered, as its reason to
    /// pause names them, and goes on behind them. The lake snapshot and `weir verify` tell of it.
    #[arg(long, value_name = "TABLE", group = "action")]
    pub accept_loss: Option<TablePath>,
}

/// `weir log …`.
#[derive(Debug, Subcommand)]
pub enum LogCommand {
    /// Reads all logs to the last byte: segments, end, how far they were synced, damage.
    #[command(
        after_help = "Example:\n  weir log check ./weir-data\n\nChanges nothing. Exit code 1 names the file and byte of the first damage of each bucket."
    )]
    Check(LogCheck),
    /// Takes damaged records out of a bucket's log, so that it opens again and all others can be read.
    #[command(
        after_help = "Example:\n  weir log repair ./weir-data --bucket 3/0 --accept-loss\n\nWhat is taken out stays in *.cut files beside the log. The offsets in it are never used again: a lake\ntable that does not have them yet stops at the gap, and says so in `weir status`."
    )]
    Repair(LogRepair),
}

/// `weir log check`.
#[derive(Args, Clone, Debug)]
pub struct LogCheck {
    /// The data directory.
    #[arg(env = "WEIR_DATA_DIR")]
    pub data_dir: PathBuf,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// `weir log repair`.
#[derive(Args, Clone, Debug)]
pub struct LogRepair {
    /// The data directory.
    #[arg(env = "WEIR_DATA_DIR")]
    pub data_dir: PathBuf,
    /// The bucket as `weir log check` names it: `TABLE/BUCKET` or `TABLE/PARTITION/BUCKET`, by ids.
    #[arg(long, value_parser = bucket_name)]
    pub bucket: String,
    /// Says that the damaged records may be lost; without it nothing is done.
    #[arg(long)]
    pub accept_loss: bool,
}

/// `weir lake …`.
#[derive(Debug, Subcommand)]
pub enum LakeCommand {
    /// Lists the snapshots of a table.
    #[command(
        after_help = "Example:\n  weir lake snapshots demo.lineitem --warehouse ./weir-data/lake"
    )]
    Snapshots(LakeTarget),
    /// Lists the live files of a snapshot.
    #[command(
        after_help = "Example:\n  weir lake files demo.lineitem --warehouse ./weir-data/lake --json\n\nOF is the bucket count a file was written under. BUCKET `none` (in JSON: bucket 0 of -1) is a table\nwithout bucket key: its lake table has no buckets, whatever its log has."
    )]
    Files(LakeFiles),
    /// Lists the partitions of a snapshot: rows, files, bytes, buckets.
    #[command(
        after_help = "Example:\n  weir lake partitions demo.lineitem --warehouse ./weir-data/lake\n\nBUCKETS `none` (in JSON: -1) is a table without bucket key: its lake table has no buckets,\nwhatever its log has."
    )]
    Partitions(LakeTarget),
    /// Prints the rows of a snapshot.
    #[command(
        after_help = "Example:\n  weir lake cat demo.lineitem --warehouse ./weir-data/lake --limit 10\n  weir lake cat demo.lineitem --warehouse ./weir-data/lake --where 'l_quantity < 10'"
    )]
    Cat(LakeCat),
    /// Checks the table's metadata against its files, of all its snapshots.
    #[command(
        after_help = "Example:\n  weir lake check demo.lineitem --warehouse ./weir-data/lake"
    )]
    Check(LakeTable),
    /// Removes old snapshots, and the files that only they name.
    #[command(after_help = maintain::EXPIRE_HELP)]
    Expire(maintain::LakeExpire),
    /// Finds files that nothing names, and deletes them if asked to.
    #[command(after_help = maintain::ORPHANS_HELP)]
    Orphans(maintain::LakeOrphans),
}

/// A table of the lake.
#[derive(Args, Clone, Debug)]
pub struct LakeTable {
    /// The table, `DATABASE.TABLE`.
    pub table: TablePath,
    /// The lake.
    #[command(flatten)]
    pub warehouse: Warehouse,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// A table of the lake at one of its snapshots.
#[derive(Args, Clone, Debug)]
pub struct LakeTarget {
    /// The table.
    #[command(flatten)]
    pub table: LakeTable,
    /// This snapshot instead of the newest.
    #[arg(long)]
    pub snapshot: Option<i64>,
}

/// `weir lake cat`.
#[derive(Args, Clone, Debug)]
pub struct LakeCat {
    /// The table.
    #[command(flatten)]
    pub target: LakeTarget,
    /// At most so many rows.
    #[arg(long)]
    pub limit: Option<usize>,
    /// Only these columns.
    #[arg(long, value_delimiter = ',')]
    pub columns: Vec<String>,
    /// Which rows.
    #[command(flatten)]
    pub conditions: Conditions,
}

/// `weir lake files`.
#[derive(Args, Clone, Debug)]
pub struct LakeFiles {
    /// The table.
    #[command(flatten)]
    pub target: LakeTarget,
    /// Which rows they may hold.
    #[command(flatten)]
    pub conditions: Conditions,
}

/// Conditions on rows.
#[derive(Args, Clone, Debug)]
pub struct Conditions {
    /// Only rows that meet this condition: `COLUMN OPERATOR LITERAL` with = != < <= > >=, or
    /// `COLUMN IS [NOT] NULL`; may be repeated. Times of TIMESTAMP_LTZ are in UTC, bytes in hex.
    #[arg(long = "where", value_name = "CONDITION")]
    pub conditions: Vec<String>,
}

/// `weir verify`.
#[derive(Args, Clone, Debug)]
pub struct Verify {
    /// The table, `DATABASE.TABLE`.
    pub table: TablePath,
    /// The cluster.
    #[command(flatten)]
    pub cluster: Cluster,
    /// The lake.
    #[command(flatten)]
    pub warehouse: Warehouse,
    /// Fails, too, if rows of the log are not in the lake yet.
    #[arg(long)]
    pub complete: bool,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_an_example() {
        fn check(command: &clap::Command) {
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            let examples: Vec<_> = help.lines().filter(|l| l.starts_with("  weir ")).collect();
            assert!(
                !examples.is_empty(),
                "{} has no example",
                command.get_name()
            );
            for example in examples {
                let words = example
                    .split_whitespace()
                    .map(|word| word.trim_matches('\''));
                let parsed = Cli::try_parse_from(words);
                // Quotes hold words together only in a shell.
                if !example.contains('\'') {
                    parsed.unwrap_or_else(|error| panic!("{example}: {error}"));
                }
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn an_address_is_a_host_and_a_port_and_the_control_api_takes_a_scheme_too() {
        for good in ["127.0.0.1:0", "fluss-1:9123", "[::1]:9181"] {
            assert_eq!(address(good).unwrap(), good);
            for url in [format!("http://{good}"), format!("http://{good}/")] {
                assert_eq!(http_address(&url).unwrap(), good);
            }
        }
        for bad in [
            "host",
            "host:",
            ":1",
            "host:70000",
            "::1:9181",
            "ftp://host:1",
        ] {
            assert_eq!(
                http_address(bad).unwrap_err(),
                format!("`{bad}` is no address: write HOST:PORT")
            );
        }
    }

    #[test]
    fn a_setting_without_a_value_is_refused() {
        let error = Cli::try_parse_from(["weir", "serve", "--data-dir", "d", "-o", "log.flush"])
            .unwrap_err();
        assert!(error.to_string().contains("write KEY=VALUE"), "{error}");
    }
}
