//! Rows by key, by the beginning of keys, and the first ones: as they are below the high watermark.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use futures::StreamExt;
use tokio::sync::OwnedSemaphorePermit;
use weir_kv::StoredValue;
use weir_protocol::api_key::ApiKey;
use weir_protocol::ids::TableBucket;
use weir_protocol::record::kv_batch::{Value, encode_values};

use super::{Replica, TabletServer};
use crate::error::Error;
use crate::memory::give_back_beyond;

/// How many keys are looked up at once: their rows are in memory before they are counted.
const KEYS_AT_ONCE: usize = 32;
/// How many buckets of a request are looked up at once by keys.
const BUCKETS_AT_ONCE: usize = 8;
/// What an answer is taken to need, if nothing is known: so much, and so much a key.
const FIRST_BYTES: usize = 64 << 10;
const KEY_BYTES: usize = 256;

/// Keys of one bucket, or beginnings of keys.
#[derive(Clone, Debug)]
pub(crate) struct LookupBucket {
    pub(crate) bucket: TableBucket,
    pub(crate) keys: Vec<Bytes>,
    pub(crate) routing_bucket_count: Option<i32>,
}

/// What is looked up.
#[derive(Clone, Debug)]
pub(crate) struct LookupRequest {
    pub(crate) version: i16,
    pub(crate) by: LookupBy,
    pub(crate) buckets: Vec<LookupBucket>,
}

/// How keys are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupBy {
    /// Each names one row.
    Key,
    /// Each names the rows whose keys begin with it.
    Prefix,
}

/// The rows of each key, as the wire carries them: of a whole key one or none.
pub(crate) type Rows = Vec<Vec<Bytes>>;

/// What all buckets gave, in the order they were asked for.
pub(crate) struct LookupAnswer {
    pub(crate) buckets: Vec<Result<Rows, Error>>,
    /// Given back once the answer is sent.
    pub(crate) memory: Option<OwnedSemaphorePermit>,
}

/// Bytes that an answer may still have. A bucket that is refused leaves them to the others.
#[derive(Debug)]
struct Budget {
    max: usize,
    used: AtomicUsize,
    has_refused: AtomicBool,
}

impl Budget {
    fn new(max: usize) -> Self {
        Self {
            max,
            used: AtomicUsize::new(0),
            has_refused: AtomicBool::new(false),
        }
    }

    fn take(&self, api: ApiKey, bytes: usize) -> Result<(), Error> {
        let fits = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.max);
        let order = Ordering::Relaxed;
        match self.used.fetch_update(order, order, fits) {
            Ok(_) => Ok(()),
            Err(_) => Err(self.refuse(api)),
        }
    }

    fn refuse(&self, api: ApiKey) -> Error {
        self.has_refused.store(true, Ordering::Relaxed);
        let max = self.max;
        Error::AnswerTooLarge { api, max }
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn left(&self) -> usize {
        self.max.saturating_sub(self.used.load(Ordering::Relaxed))
    }
}

impl LookupBy {
    fn api(self) -> ApiKey {
        match self {
            Self::Key => ApiKey::Lookup,
            Self::Prefix => ApiKey::PrefixLookup,
        }
    }
}

impl TabletServer {
    /// Looks up all keys of all buckets. With memory for as much as such answers need mostly; what was
    /// read is given up before more is waited for. Cancel-safe: it changes nothing.
    pub(crate) async fn lookup(&self, request: &LookupRequest) -> LookupAnswer {
        let max = self.parts.limits.max_fetch_bytes;
        let keys: usize = request.buckets.iter().map(|asked| asked.keys.len()).sum();
        let mut room = FIRST_BYTES
            .saturating_add(keys.saturating_mul(KEY_BYTES))
            .min(max);
        loop {
            let mut memory = self.answers.reserve(room).await;
            let budget = Budget::new(room);
            let mut all = Vec::with_capacity(request.buckets.len());
            for asked in &request.buckets {
                all.push(self.lookup_one(request, asked, &budget));
            }
            let at_once = match request.by {
                LookupBy::Key => BUCKETS_AT_ONCE,
                // Each may read as much as is left.
                LookupBy::Prefix => 1,
            };
            let buckets: Vec<_> = futures::stream::iter(all).buffered(at_once).collect().await;
            let used = budget.used.into_inner();
            if budget.has_refused.into_inner() && room < max {
                room = max;
                continue;
            }
            if let Some(memory) = &mut memory {
                give_back_beyond(memory, used);
            }
            let bytes = u64::try_from(used).unwrap_or(0);
            self.parts.metrics.fetched_bytes.inc_by(bytes);
            return LookupAnswer { buckets, memory };
        }
    }

    async fn lookup_one(
        &self,
        request: &LookupRequest,
        asked: &LookupBucket,
        budget: &Budget,
    ) -> Result<Rows, Error> {
        let of = (request.by.api(), request.version);
        let replica = self.keyed_leader(of, asked.bucket, asked.routing_bucket_count)?;
        let mut taken = 0;
        let found = match request.by {
            LookupBy::Key => by_key(&replica, &asked.keys, budget, &mut taken).await,
            LookupBy::Prefix => by_prefix(&replica, &asked.keys, budget, &mut taken).await,
        };
        if found.is_err() {
            budget.give_back(taken);
        }
        found
    }

    /// The first rows of a bucket in the order of their keys, at most `limit`. With the memory they take.
    ///
    /// # Errors
    /// [`Error::NoPrimaryKey`]; [`Error::Kv`]; [`Error::AnswerTooLarge`].
    pub(crate) async fn first_rows(
        &self,
        replica: &Arc<Replica>,
        limit: usize,
    ) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Error> {
        let store = replica.keyed()?.store();
        let max = self.parts.limits.max_fetch_bytes;
        let mut room = FIRST_BYTES.min(max);
        loop {
            let mut memory = self.answers.reserve(room).await;
            let scanned = store.scan_within(Bytes::new(), limit, room).await?;
            if scanned.is_cut && room < max {
                room = max;
                continue;
            }
            if scanned.is_cut {
                // Fewer rows would look like all there are.
                let api = ApiKey::LimitScan;
                return Err(Error::AnswerTooLarge { api, max });
            }
            let values = scanned.entries.into_iter().map(|(_, value)| wire(value));
            let records = encode_values(&values.collect::<Vec<_>>())?;
            if let Some(memory) = &mut memory {
                give_back_beyond(memory, records.len());
            }
            let bytes = u64::try_from(records.len()).unwrap_or(0);
            self.parts.metrics.fetched_bytes.inc_by(bytes);
            return Ok((records, memory));
        }
    }
}

/// Adds what it takes of the budget to `taken`.
async fn by_key(
    replica: &Replica,
    keys: &[Bytes],
    budget: &Budget,
    taken: &mut usize,
) -> Result<Rows, Error> {
    let store = replica.keyed()?.store();
    let mut rows = Vec::with_capacity(keys.len());
    for some in keys.chunks(KEYS_AT_ONCE) {
        for value in store.multi_get(some.to_vec()).await? {
            let mut of_key = Vec::new();
            if let Some(value) = value {
                budget.take(ApiKey::Lookup, value.row.len())?;
                *taken += value.row.len();
                of_key.push(wire(value).encode()?);
            }
            rows.push(of_key);
        }
    }
    Ok(rows)
}

/// Adds what it takes of the budget to `taken`.
async fn by_prefix(
    replica: &Replica,
    prefixes: &[Bytes],
    budget: &Budget,
    taken: &mut usize,
) -> Result<Rows, Error> {
    let store = replica.keyed()?.store();
    let mut rows = Vec::with_capacity(prefixes.len());
    for prefix in prefixes {
        let left = budget.left();
        let scanned = store.scan_within(prefix.clone(), usize::MAX, left).await?;
        if scanned.is_cut {
            return Err(budget.refuse(ApiKey::PrefixLookup));
        }
        let mut bytes = 0_usize;
        let mut of_prefix = Vec::with_capacity(scanned.entries.len());
        for (key, value) in scanned.entries {
            bytes = bytes.saturating_add(key.len() + value.row.len());
            of_prefix.push(wire(value).encode()?);
        }
        budget.take(ApiKey::PrefixLookup, bytes)?;
        *taken += bytes;
        rows.push(of_prefix);
    }
    Ok(rows)
}

/// A value as the wire carries it.
pub(super) fn wire(value: StoredValue) -> Value {
    Value {
        schema_id: value.schema_id,
        row: value.row,
    }
}
