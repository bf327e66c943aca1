//! Writers of a table with a primary key, and what a lookup of each key may answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow::array::{Array as _, ArrayRef, AsArray as _, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use bytes::Bytes;
use futures::stream::FuturesUnordered;
use futures::{StreamExt as _, TryStreamExt as _};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use weir_lake_format::{Filter, Table, open_warehouse};
use weir_protocol::client::Client;
use weir_protocol::client::admin::TableInfo;
use weir_protocol::client::writer::{LogWriter, LogWriterConfig};
use weir_protocol::descriptor::{DatabaseDescriptor, TableDescriptor};
use weir_protocol::error_code::ErrorCode;
use weir_protocol::ids::{BucketId, TablePath};
use weir_protocol::proto::{LookupRequest, PbLookupReqForBucket};
use weir_protocol::record::kv_batch::Value;
use weir_protocol::row::key::KeyFormat;
use weir_protocol::row::{Datum, compacted};
use weir_protocol::schema::{Column, LogicalType, Schema, TypeKind};
use weir_tests::Result;
use weir_tests::wire::Wire;

use crate::site::Site;

/// Keys of a writer; each gets a new version again and again.
const KEYS: i64 = 40;
/// Changes that wait for their acknowledgement at the same time.
const MAX_IN_FLIGHT: usize = 16;
/// How long a bucket may take to answer lookups again.
const RECOVERY: Duration = Duration::from_secs(30);

/// What happened to a key: its versions are numbered from 0, in the order they were sent.
#[derive(Clone, Debug, Default)]
struct History {
    /// Per version, whether it deletes.
    sent: Vec<bool>,
    /// How many of the versions are acknowledged, all from the first on.
    acknowledged: usize,
}

type Histories = Arc<Mutex<BTreeMap<i64, History>>>;

impl History {
    /// Whether a key may hold `version` when `acknowledged` versions were acknowledged before it was
    /// looked up, and no more than these were sent by the end.
    fn allows(&self, version: Option<i64>, acknowledged: usize) -> bool {
        let Some(version) = version else {
            let newest = acknowledged.saturating_sub(1);
            let deletes = self.sent.get(newest..).unwrap_or_default();
            return acknowledged == 0 || deletes.contains(&true);
        };
        let Ok(version) = usize::try_from(version) else {
            return false;
        };
        version + 1 >= acknowledged && self.sent.get(version) == Some(&false)
    }
}

/// Writers of one table, one after the other, each with keys of its own.
#[derive(Debug)]
pub(crate) struct KeyedWorkload {
    client: Client,
    table: TableInfo,
    path: TablePath,
    rng: StdRng,
    writers: i64,
    histories: Histories,
    acknowledged: Arc<AtomicU64>,
    task: JoinHandle<Result<()>>,
    flush: CancellationToken,
    give_up: CancellationToken,
}

/// `id` to `version`, with text that follows from both.
pub(crate) async fn create_table(client: &Client, path: &TablePath) -> Result<()> {
    client
        .create_database(&path.database, &DatabaseDescriptor::default(), true)
        .await?;
    let columns = vec![
        Column::new("id", LogicalType::not_null(TypeKind::BigInt)),
        Column::new("version", LogicalType::nullable(TypeKind::BigInt)),
        Column::new("payload", LogicalType::nullable(TypeKind::String)),
    ];
    let schema = Schema::new(columns, vec!["id".to_owned()])?;
    let mut descriptor = TableDescriptor::new(schema);
    for (key, value) in [
        ("table.datalake.enabled", "true"),
        ("table.datalake.freshness", "1s"),
    ] {
        let (key, value) = (key.to_owned(), value.to_owned());
        descriptor.properties.insert(key, value);
    }
    descriptor.bucket_count = Some(2);
    client.create_table(path, &descriptor, false).await?;
    Ok(())
}

fn payload(id: i64, version: i64) -> Option<String> {
    let length = usize::try_from((id * 31 + version * 17).rem_euclid(53)).unwrap_or(0);
    (version % 13 != 0).then(|| format!("{id}/{version}/").repeat(1 + length / 8))
}

fn rows(versions: &[(i64, i64)]) -> Result<RecordBatch> {
    let ids = Int64Array::from_iter_values(versions.iter().map(|(id, _)| *id));
    let numbers = Int64Array::from_iter_values(versions.iter().map(|(_, version)| *version));
    let payloads = versions.iter().map(|(id, version)| payload(*id, *version));
    let columns: [(&str, ArrayRef); 3] = [
        ("id", Arc::new(ids)),
        ("version", Arc::new(numbers)),
        ("payload", Arc::new(payloads.collect::<StringArray>())),
    ];
    Ok(RecordBatch::try_from_iter(columns)?)
}

impl KeyedWorkload {
    /// Opens the first writer.
    pub(crate) async fn start(client: Client, path: TablePath, seed: u64) -> Result<Self> {
        let mut rng = StdRng::seed_from_u64(seed);
        let table = client.table_info(&path).await?;
        let (histories, acknowledged) = (Histories::default(), Arc::<AtomicU64>::default());
        let (flush, give_up) = (CancellationToken::new(), CancellationToken::new());
        let writer = Writer::open(&client, &path, 0, rng.random()).await?;
        let ends = (flush.clone(), give_up.clone());
        let task = writer.run(ends, Arc::clone(&histories), Arc::clone(&acknowledged));
        Ok(Self {
            client,
            table,
            path,
            rng,
            writers: 1,
            histories,
            acknowledged,
            task: tokio::spawn(task),
            flush,
            give_up,
        })
    }

    /// Puts and deletes acknowledged so far, counted by request.
    pub(crate) fn acknowledged_changes(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Drops the writer as it stands; what it has not seen acknowledged may be there or not. The next
    /// one has other keys.
    pub(crate) async fn replace_writer(&mut self) -> Result<()> {
        self.give_up.cancel();
        (&mut self.task).await??;
        self.give_up = CancellationToken::new();
        let seed = self.rng.random();
        let writer = Writer::open(&self.client, &self.path, self.writers, seed).await?;
        self.writers += 1;
        let ends = (self.flush.clone(), self.give_up.clone());
        let histories = Arc::clone(&self.histories);
        self.task = tokio::spawn(writer.run(ends, histories, Arc::clone(&self.acknowledged)));
        Ok(())
    }

    /// Looks up every key that was ever written, while the writer goes on; answers how many, and how
    /// long the slowest bucket took to answer its first lookup.
    pub(crate) async fn look(&self, site: &Site) -> Result<(usize, Duration)> {
        let before = self.histories.lock().clone();
        let (found, recovered) = self.lookup(site, before.keys().copied()).await?;
        let after = self.histories.lock().clone();
        for (id, history) in &before {
            let now = after.get(id).ok_or("a key has no history any more")?;
            let version = found.get(id).copied();
            if !now.allows(version, history.acknowledged) {
                return Err(format!(
                    "key {id}: the lookup found version {version:?} after {} acknowledged of {} sent; \
                     deletes {:?}",
                    history.acknowledged,
                    now.sent.len(),
                    now.sent.get(history.acknowledged.saturating_sub(1)..)
                )
                .into());
            }
        }
        Ok((before.len(), recovered))
    }

    /// The versions of the keys that are there.
    async fn lookup(
        &self,
        site: &Site,
        ids: impl Iterator<Item = i64>,
    ) -> Result<(BTreeMap<i64, i64>, Duration)> {
        let format = KeyFormat::of_table(&self.table.descriptor)?;
        let total = self.table.total_buckets()?;
        let key_type = [LogicalType::not_null(TypeKind::BigInt)];
        let mut buckets = BTreeMap::<BucketId, Vec<(i64, Bytes)>>::new();
        for id in ids {
            let key = Bytes::from(format.encode(&[Datum::BigInt(id)], &key_type)?);
            let bucket = format.bucket(&key, total)?;
            buckets.entry(bucket).or_default().push((id, key));
        }
        let started = Instant::now();
        let mut wire = Wire::connect(&site.tablet_address()?).await;
        let (mut found, mut recovered) = (BTreeMap::new(), Duration::ZERO);
        for (bucket, keys) in buckets {
            let request = LookupRequest {
                table_id: self.table.table_id.0,
                buckets_req: vec![PbLookupReqForBucket {
                    bucket_id: bucket.0,
                    keys: keys.iter().map(|(_, key)| key.clone()).collect(),
                    ..PbLookupReqForBucket::default()
                }],
                ..LookupRequest::default()
            };
            let values = loop {
                let answer = wire.call(&request).await;
                let answer =
                    answer.map_err(|(code, message)| format!("lookup: {code} {message}"))?;
                let answer = answer.buckets_resp.into_iter().next();
                let answer = answer.ok_or("an answer without its bucket")?;
                let code = answer.error_code.map(ErrorCode::from_code);
                match code {
                    None => break answer.values,
                    Some(code) if code.is_retriable() && started.elapsed() < RECOVERY => {
                        // The bucket is being brought up to its log; nobody tells when it is there.
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    Some(code) => {
                        return Err(format!("{bucket:?}: {code} {:?}", answer.error_message).into());
                    }
                }
            };
            recovered = recovered.max(started.elapsed());
            if values.len() != keys.len() {
                return Err(format!("{} keys, {} values", keys.len(), values.len()).into());
            }
            for ((id, _), value) in keys.iter().zip(values) {
                if let Some(bytes) = value.values {
                    found.insert(*id, self.version_of(*id, &bytes)?);
                }
            }
        }
        Ok((found, recovered))
    }

    fn version_of(&self, id: i64, value: &Bytes) -> Result<i64> {
        let value = Value::decode(value)?;
        let row = compacted::decode(&value.row, &self.table.descriptor.schema.columns)?;
        let [Datum::BigInt(key), Datum::BigInt(version), text] = row.as_slice() else {
            return Err(format!("key {id} has the row {row:?}").into());
        };
        let text = match text {
            Datum::String(text) => Some(text.clone()),
            _ => None,
        };
        if *key != id || text != payload(id, *version) {
            return Err(format!("key {id} has the row {row:?}").into());
        }
        Ok(*version)
    }

    /// Ends the last writer once all its changes are acknowledged; then lookups and the merged lake must
    /// be the same, and right. Answers how many rows there are.
    pub(crate) async fn end(mut self, site: &mut Site) -> Result<u64> {
        self.flush.cancel();
        (&mut self.task).await??;
        self.look(site).await?;
        let ids: Vec<i64> = self.histories.lock().keys().copied().collect();
        let (found, _) = self.lookup(site, ids.into_iter()).await?;
        let (table, warehouse) = (self.path.to_string(), site.warehouse());
        let warehouse = warehouse.to_string_lossy().into_owned();
        let arguments = ["verify", &table, "--complete", "--bootstrap"];
        let address = site.address().to_owned();
        let arguments = [&arguments[..], &[&address, "--warehouse", &warehouse]].concat();
        let give_up = Instant::now() + RECOVERY;
        while let Err(error) = site.run(&arguments) {
            if Instant::now() > give_up {
                return Err(error);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        site.run(&["lake", "check", &table, "--warehouse", &warehouse])?;
        let in_lake = lake_versions(&warehouse, &self.path).await?;
        if in_lake != found {
            let differs = |id: &&i64| in_lake.get(*id) != found.get(*id);
            let ids = found.keys().chain(in_lake.keys()).filter(differs);
            let ids: Vec<_> = ids.take(10).collect();
            return Err(format!("{table}: lookups and lake differ in the keys {ids:?}").into());
        }
        Ok(u64::try_from(found.len())?)
    }
}

async fn lake_versions(warehouse: &str, path: &TablePath) -> Result<BTreeMap<i64, i64>> {
    let (store, root) = open_warehouse(warehouse, &BTreeMap::new())?;
    let root = root
        .join(format!("{}.db", path.database))
        .join(path.table.as_str());
    let table = Table::open(store, root).await?;
    let snapshot = table.latest_snapshot().await?;
    let snapshot = snapshot.ok_or("the lake table has no snapshot")?;
    let mut versions = BTreeMap::new();
    for split in table.plan(&snapshot, &Filter::default()).await? {
        let mut batches = table.read_split(&split, None).await?;
        while let Some(batch) = batches.try_next().await? {
            let column = |name: &str| batch.column_by_name(name).ok_or("a column is missing");
            let ids = column("id")?.as_primitive::<Int64Type>();
            let numbers = column("version")?.as_primitive::<Int64Type>();
            let texts = column("payload")?.as_string::<i32>();
            for row in 0..batch.num_rows() {
                let (id, version) = (ids.value(row), numbers.value(row));
                let text = texts.is_valid(row).then(|| texts.value(row).to_owned());
                if text != payload(id, version) {
                    return Err(format!("key {id} has payload {text:?} in the lake").into());
                }
                if versions.insert(id, version).is_some() {
                    return Err(format!("key {id} is twice in the lake").into());
                }
            }
        }
    }
    Ok(versions)
}

struct Writer {
    id: i64,
    log: LogWriter,
    rng: StdRng,
}

impl Writer {
    async fn open(client: &Client, path: &TablePath, id: i64, seed: u64) -> Result<Self> {
        let config = LogWriterConfig {
            linger: Some(Duration::from_millis(5)),
            ..LogWriterConfig::default()
        };
        let log = LogWriter::open(client.clone(), path.clone(), config).await?;
        let rng = StdRng::seed_from_u64(seed);
        Ok(Self { id, log, rng })
    }

    /// The next versions of some keys, noted as sent.
    fn next(&mut self, histories: &Histories, is_delete: bool) -> Vec<(i64, i64)> {
        let count = self.rng.random_range(1..20);
        let ids = (0..count).map(|_| self.id * KEYS + self.rng.random_range(0..KEYS));
        let mut histories = histories.lock();
        let versions = ids.map(|id| {
            let history = histories.entry(id).or_default();
            history.sent.push(is_delete);
            (
                id,
                i64::try_from(history.sent.len()).unwrap_or(i64::MAX) - 1,
            )
        });
        versions.collect()
    }

    /// Puts and deletes without a pause; a server that is gone is waited for.
    async fn run(
        mut self,
        (flush, give_up): (CancellationToken, CancellationToken),
        histories: Histories,
        acknowledged: Arc<AtomicU64>,
    ) -> Result<()> {
        let mut in_flight = FuturesUnordered::new();
        loop {
            let flushing = flush.is_cancelled();
            if flushing && in_flight.is_empty() {
                return Ok(());
            }
            if !flushing && in_flight.len() < MAX_IN_FLIGHT {
                let is_delete = self.rng.random_bool(0.25);
                let versions = self.next(&histories, is_delete);
                let batch = rows(&versions)?;
                let write = async {
                    if is_delete {
                        self.log.delete(batch).await
                    } else {
                        self.log.append(batch).await
                    }
                };
                let Some(written) = give_up.run_until_cancelled(write).await else {
                    return Ok(());
                };
                let written = written.map_err(|error| format!("writer {}: {error:?}", self.id))?;
                in_flight.push(async move { (versions, written.wait().await) });
                continue;
            }
            let Some(Some((versions, result))) =
                give_up.run_until_cancelled(in_flight.next()).await
            else {
                return Ok(());
            };
            result.map_err(|error| format!("writer {}: {versions:?}: {error:?}", self.id))?;
            acknowledged.fetch_add(1, Ordering::Relaxed);
            let mut histories = histories.lock();
            for (id, version) in versions {
                let history = histories.entry(id).or_default();
                let reached = usize::try_from(version + 1)?;
                history.acknowledged = history.acknowledged.max(reached);
            }
        }
    }
}
