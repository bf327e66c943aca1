//! Log batches, key-value batches and rows.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use weir_protocol::ids::{SchemaId, WriterId};
use weir_protocol::record::arrow::{Compression, DecodeLimits};
use weir_protocol::record::kv_batch::{self, KvBatch};
use weir_protocol::record::rows::{self, RowFormat};
use weir_protocol::record::{self, BatchIdentity, LogBatch, arrow as arrow_record};
use weir_protocol::row::{binary, compacted, indexed};
use weir_protocol::schema::{Column, Schema};
use weir_tests::table;

use crate::golden;
use crate::target::Target;

/// No batch under test may take more than this.
const LIMITS: DecodeLimits = DecodeLimits {
    max_uncompressed_bytes: 1 << 20,
};

pub(crate) fn targets() -> Vec<Target> {
    vec![
        Target {
            name: "log_batch",
            run: log_batch,
            seeds: log_batches,
        },
        Target {
            name: "log_batch_mended",
            run: |data| log_batch(&mended(data)),
            seeds: log_batches,
        },
        Target {
            name: "kv_batch",
            run: kv_batch,
            seeds: kv_batches,
        },
        Target {
            name: "row_compacted",
            run: |data| row(data, Form::Compacted),
            seeds: || encoded(Form::Compacted),
        },
        Target {
            name: "row_indexed",
            run: |data| row(data, Form::Indexed),
            seeds: || encoded(Form::Indexed),
        },
        Target {
            name: "row_binary",
            run: |data| row(data, Form::Binary),
            seeds: || encoded(Form::Binary),
        },
    ]
}

#[derive(Clone, Copy)]
enum Form {
    Compacted,
    Indexed,
    Binary,
}

fn every_type() -> Schema {
    Schema::new(table::every_type(), Vec::new()).expect("the columns are a schema")
}

fn log_batches() -> Vec<Vec<u8>> {
    let mut seeds = golden::files("server/protocol/tests/golden", |name| {
        name.starts_with("log_") && name.ends_with(".bin")
    });
    let schema = every_type();
    let rows = table::rows(&schema, 0..16);
    let id = BatchIdentity {
        schema_id: SchemaId(1),
        writer_id: WriterId(1),
        batch_sequence: 0,
    };
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd(1)] {
        let batch = arrow_record::encode_append(SchemaId(1), WriterId(1), 0, &rows, compression);
        seeds.push(batch.expect("the rows can be encoded").to_vec());
    }
    seeds.push(
        rows::encode_indexed(id, None, &rows, &schema)
            .expect("encodable")
            .to_vec(),
    );
    seeds.push(
        rows::encode_compacted(id, None, &rows, &schema)
            .expect("encodable")
            .to_vec(),
    );
    seeds
}

/// The batch with the length and the checksum that its bytes should have, so that what lies behind
/// the checksum is reached.
fn mended(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    let Some(size) = bytes
        .len()
        .checked_sub(12)
        .and_then(|size| i32::try_from(size).ok())
    else {
        return bytes;
    };
    bytes[8..12].copy_from_slice(&size.to_le_bytes());
    let magic = bytes.get(12).copied().unwrap_or_default();
    // Up to magic 0 the checksum stands behind the commit time, later a leader epoch lies between.
    let at = if magic == 0 { 21 } else { 25 };
    if bytes.len() > at + 4 {
        let crc = crc32c::crc32c(&bytes[at + 4..]);
        bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}

fn log_batch(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let schema = every_type();
    for batch in record::batches(bytes).take_while(Result::is_ok).flatten() {
        let _holds = batch.verify_crc();
        decode(&batch, &schema);
        let few = Schema::new(schema.columns.iter().take(3).cloned().collect(), Vec::new());
        decode(&batch, &few.expect("three columns are a schema"));
    }
}

fn decode(batch: &LogBatch, schema: &Schema) {
    let arrow: SchemaRef = schema.arrow_schema();
    if let Ok(decoded) = arrow_record::decode_limited(batch, &arrow, LIMITS) {
        assert_eq!(decoded.batch.num_columns(), arrow.fields().len());
        // What came through can be read to its last value, and sent on.
        let rows = rows::rows_of(&decoded.batch, schema);
        if decoded.batch.num_rows() > 0 && rows.is_ok() {
            let again = arrow_record::encode_append(
                SchemaId(1),
                WriterId(1),
                0,
                &decoded.batch,
                Compression::None,
            );
            assert!(again.is_ok(), "a decoded batch can't be encoded: {again:?}");
        }
    }
    // Under its own schema, and as a batch that is older than all columns but the first.
    let first = Arc::new(arrow.project(&[0]).expect("the first column exists"));
    let all: Vec<usize> = (0..arrow.fields().len()).collect();
    for (written, columns, narrow) in [(&arrow, &[0][..], &first), (&first, &all, &arrow)] {
        let Ok(projected) = arrow_record::project(batch, written, &arrow, columns) else {
            continue;
        };
        if let Ok(part) = LogBatch::parse(&mut projected.clone()) {
            let _rows = arrow_record::decode_limited(&part, narrow, LIMITS);
        }
    }
    for format in [RowFormat::Compacted, RowFormat::Indexed] {
        let _rows = rows::decode(batch, schema, format, LIMITS);
    }
}

fn kv_batches() -> Vec<Vec<u8>> {
    golden::files("server/protocol/tests/golden", |name| {
        (name.starts_with("kv_") || name.contains("value")) && name.ends_with(".bin")
    })
}

fn kv_batch(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let mut rest = bytes.clone();
    if let Ok(batch) = KvBatch::parse(&mut rest) {
        let _holds = batch.verify_crc();
        let _records = batch.records();
    }
    let _value = kv_batch::Value::decode(&bytes);
    if let Ok(values) = kv_batch::decode_values(&bytes) {
        assert!(values.len() <= data.len(), "more values than bytes");
    }
}

fn types() -> Vec<Column> {
    every_type().columns
}

fn encoded(form: Form) -> Vec<Vec<u8>> {
    let schema = every_type();
    let rows = rows::rows_of(&table::rows(&schema, 0..12), &schema).expect("rows are readable");
    let encode = |row: &Vec<_>| match form {
        Form::Compacted => compacted::encode(row, &schema.columns),
        Form::Indexed => indexed::encode(row, &schema.columns),
        Form::Binary => binary::encode(row, &schema.columns),
    };
    rows.iter()
        .map(|row| encode(row).expect("rows can be encoded"))
        .collect()
}

/// A row that is read is written to bytes that read as the same row.
fn row(data: &[u8], form: Form) {
    let types = types();
    let read = |bytes: &[u8]| match form {
        Form::Compacted => compacted::decode(bytes, &types),
        Form::Indexed => indexed::decode(bytes, &types),
        Form::Binary => binary::decode(bytes, &types),
    };
    let Ok(row) = read(data) else {
        return;
    };
    let written = match form {
        Form::Compacted => compacted::encode(&row, &types),
        Form::Indexed => indexed::encode(&row, &types),
        Form::Binary => binary::encode(&row, &types),
    };
    if let Ok(written) = written {
        let again = read(&written);
        // By text: a NaN equals nothing.
        assert_eq!(
            format!("{:?}", again.expect("what was written is readable")),
            format!("{row:?}"),
            "a row changes when it is written again"
        );
    }
}
