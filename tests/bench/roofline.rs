//! What the machine and the libraries allow: Arrow bodies in, synced Parquet files out, nothing else.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;

use arrow::array::RecordBatch;
use arrow::ipc::CompressionType;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use weir_tiering::load::tpch::{Source, Table};

use weir_tests::{Result, process};

/// How often each pipeline runs; the quickest run counts.
const REPETITIONS: usize = 3;

/// Rows for each second of CPU time, by the compression of the bodies.
pub(crate) struct Limits {
    /// Rows of the table.
    pub rows: u64,
    /// With plain bodies.
    pub plain_rows_per_cpu_s: f64,
    /// With ZSTD bodies, as the clients of the reference write them by default.
    pub zstd_rows_per_cpu_s: f64,
}

/// Writes the table as Arrow streams, one a bucket, and times the pipeline over them.
pub(crate) fn measure(folder: &Path, scale: f64, buckets: usize) -> Result<Limits> {
    std::fs::create_dir_all(folder)?;
    let rows = write_streams(folder, scale, buckets)?;
    let mut best = [f64::INFINITY; 2];
    for _ in 0..REPETITIONS {
        for (fastest, kind) in best.iter_mut().zip(["plain", "zstd"]) {
            let before = process::own_cpu_seconds()?;
            for bucket in 0..buckets {
                pipeline(
                    &folder.join(format!("{kind}-{bucket}.arrow")),
                    &folder.join("out.parquet"),
                )?;
            }
            *fastest = fastest.min(process::own_cpu_seconds()? - before);
        }
    }
    std::fs::remove_dir_all(folder)?;
    #[allow(clippy::cast_precision_loss, reason = "row counts are far below 2^52")]
    let count = rows as f64;
    Ok(Limits {
        rows,
        plain_rows_per_cpu_s: count / best[0],
        zstd_rows_per_cpu_s: count / best[1],
    })
}

fn write_streams(folder: &Path, scale: f64, buckets: usize) -> Result<u64> {
    let source = Source {
        table: Table::LineItem,
        scale,
    };
    let mut writers = Vec::new();
    for (kind, compression) in [("plain", None), ("zstd", Some(CompressionType::ZSTD))] {
        for bucket in 0..buckets {
            let file = BufWriter::new(File::create(folder.join(format!("{kind}-{bucket}.arrow")))?);
            let options = IpcWriteOptions::default().try_with_compression(compression)?;
            writers.push(StreamWriter::try_new_with_options(
                file,
                &source.schema(),
                options,
            )?);
        }
    }
    let mut rows = 0;
    for (number, batch) in source.batches().enumerate() {
        let batch = batch?;
        rows += batch.num_rows() as u64;
        for kind in 0..2 {
            if let Some(writer) = writers.get_mut(kind * buckets + number % buckets) {
                writer.write(&batch)?;
            }
        }
    }
    for mut writer in writers {
        writer.finish()?;
    }
    Ok(rows)
}

fn pipeline(stream: &Path, out: &Path) -> Result<()> {
    let reader =
        StreamReader::try_new(BufReader::with_capacity(1 << 20, File::open(stream)?), None)?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), reader.schema(), Some(properties))?;
    for batch in reader {
        let batch: RecordBatch = batch?;
        writer.write(&batch)?;
    }
    let bytes = writer.into_inner()?;
    let mut file = File::create(out)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    Ok(())
}
