//! The frames of tables with a primary key.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use weir_protocol::api_key::ApiKey;
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::WriterId;
use weir_protocol::proto::{self, PbTableMetadata};
use weir_protocol::record::kv_batch::{self, KvBatch};
use weir_protocol::record::{BatchIdentity, arrow, batches, rows};
use weir_protocol::schema::Schema;

use super::{Exchange, Ids, Replay};

/// The schemas of one table.
type Schemas = BTreeMap<i32, Schema>;

impl Ids {
    /// A batch of changes under the writer id that our server gave.
    fn kv_records(&self, records: &Bytes) -> Bytes {
        let mut rest = records.clone();
        let mut all = BytesMut::new();
        while !rest.is_empty() {
            let batch = KvBatch::parse(&mut rest).unwrap();
            let writer = batch.writer_id.0;
            let id = BatchIdentity {
                schema_id: batch.schema_id,
                writer_id: WriterId(*self.writers.get(&writer).unwrap_or(&writer)),
                batch_sequence: batch.batch_sequence,
            };
            all.extend(kv_batch::encode(id, &batch.records().unwrap()).unwrap());
        }
        all.freeze()
    }
}

/// Changes as text, with their offsets: how they are compressed is the server's choice.
pub(super) fn changes(schemas: &Schemas, records: &Bytes) -> Bytes {
    let mut text = String::new();
    for batch in batches(records.clone()) {
        let batch = batch.unwrap();
        let header = &batch.header;
        let schema = &schemas[&header.schema_id.0];
        text += &format!("{} {}:", header.base_offset, header.batch_sequence);
        if header.record_count > 0 {
            let decoded = arrow::decode(&batch, &schema.arrow_schema()).unwrap();
            let rows = rows::rows_of(&decoded.batch, schema).unwrap();
            for (change, row) in decoded.change_types.unwrap().iter().zip(rows) {
                text += &format!(" {change:?} {row:?}");
            }
        }
        text += "\n";
    }
    text.into()
}

impl Replay {
    pub(super) fn remember_keys(&mut self, table: &PbTableMetadata) {
        let descriptor = TableDescriptor::from_json(&table.table_json).unwrap();
        if descriptor.schema.has_primary_key() {
            let key = (table.table_id, table.schema_id);
            self.ids.keyed.insert(key, descriptor.schema);
        }
    }

    pub(super) fn keyed_schemas(&self, table: i64) -> Option<Schemas> {
        let all = self.ids.keyed.range((table, 0)..=(table, i32::MAX));
        let schemas: Schemas = all.map(|((_, id), schema)| (*id, schema.clone())).collect();
        (!schemas.is_empty()).then_some(schemas)
    }

    pub(super) async fn keys(&mut self, api: ApiKey, exchange: &Exchange) {
        match api {
            ApiKey::PutKv => self.put(exchange).await,
            ApiKey::Lookup => self.lookup(exchange).await,
            ApiKey::PrefixLookup => {
                let ours = |ids: &Ids, mut request: proto::PrefixLookupRequest| {
                    request.table_id = ids.table(request.table_id);
                    for bucket in &mut request.buckets_req {
                        bucket.partition_id = ids.partition(bucket.partition_id);
                    }
                    request
                };
                let shown = |answer: proto::PrefixLookupResponse| {
                    let of = |bucket: proto::PbPrefixLookupRespForBucket| {
                        let lists = bucket.value_lists.into_iter();
                        let lists: Vec<_> = lists.map(|list| list.values).collect();
                        (bucket.bucket_id, bucket.error_code.unwrap_or(0), lists)
                    };
                    let buckets = answer.buckets_resp.into_iter();
                    buckets.map(of).collect::<BTreeSet<_>>()
                };
                self.same(exchange, ours, shown).await;
            }
            _ => {
                let shown = |answer: proto::GetLatestKvSnapshotsResponse| {
                    let buckets = answer.latest_snapshots.iter();
                    buckets
                        .map(|bucket| bucket.bucket_id)
                        .collect::<BTreeSet<_>>()
                };
                let same = |_: &Ids, request: proto::GetLatestKvSnapshotsRequest| request;
                self.same(exchange, same, shown).await;
            }
        }
    }

    async fn put(&mut self, exchange: &Exchange) {
        let ours = |ids: &Ids, mut request: proto::PutKvRequest| {
            request.table_id = ids.table(request.table_id);
            for bucket in &mut request.buckets_req {
                bucket.partition_id = ids.partition(bucket.partition_id);
                bucket.records = ids.kv_records(&bucket.records);
            }
            request
        };
        let shown = |answer: proto::PutKvResponse| {
            let of = |bucket: proto::PbPutKvRespForBucket| {
                let code = bucket.error_code.unwrap_or(0);
                (bucket.bucket_id, code, bucket.log_end_offset)
            };
            let buckets = answer.buckets_resp.into_iter();
            buckets.map(of).collect::<BTreeSet<_>>()
        };
        self.same(exchange, ours, shown).await;
    }

    async fn lookup(&mut self, exchange: &Exchange) {
        let ours = |ids: &Ids, mut request: proto::LookupRequest| {
            request.table_id = ids.table(request.table_id);
            for bucket in &mut request.buckets_req {
                bucket.partition_id = ids.partition(bucket.partition_id);
            }
            request
        };
        let shown = |answer: proto::LookupResponse| {
            let of = |bucket: proto::PbLookupRespForBucket| {
                let values = bucket.values.into_iter();
                let values: Vec<_> = values.map(|value| value.values).collect();
                (bucket.bucket_id, bucket.error_code.unwrap_or(0), values)
            };
            let buckets = answer.buckets_resp.into_iter();
            buckets.map(of).collect::<BTreeSet<_>>()
        };
        self.same(exchange, ours, shown).await;
    }
}
