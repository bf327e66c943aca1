//! Compression of single buffers. Contexts live per thread: making one costs more than a small
//! buffer.

use std::cell::RefCell;
use std::io::{Read, Write};

use lz4_flex::frame::{FrameDecoder, FrameEncoder};
use zstd::bulk::{Compressor, Decompressor};

use crate::error::{Error, Result};

thread_local! {
    static COMPRESSOR: RefCell<Option<(i32, Compressor<'static>)>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

const FORMAT: &str = "arrow buffer";

/// Compresses `raw` into `out`, replacing what is there.
pub(super) fn zstd_compress(raw: &[u8], level: i32, out: &mut Vec<u8>) -> Result<()> {
    let failed = |source| Error::Compression {
        codec: "zstd",
        source,
    };
    out.clear();
    out.reserve(zstd::zstd_safe::compress_bound(raw.len()));
    COMPRESSOR.with_borrow_mut(|slot| {
        let (_, compressor) = match slot {
            Some(entry) if entry.0 == level => entry,
            _ => slot.insert((level, Compressor::new(level).map_err(failed)?)),
        };
        compressor
            .compress_to_buffer(raw, out)
            .map_err(failed)
            .map(drop)
    })
}

/// Compresses `raw` into `out` as one LZ4 frame of independent blocks (readers of the reference
/// know no others).
pub(super) fn lz4_compress(raw: &[u8], out: &mut Vec<u8>) -> Result<()> {
    out.clear();
    let mut encoder = FrameEncoder::new(std::mem::take(out));
    encoder
        .write_all(raw)
        .map_err(|source| Error::Compression {
            codec: "lz4",
            source,
        })?;
    let finished = encoder.finish();
    *out = finished.map_err(|error| Error::Compression {
        codec: "lz4",
        source: error.into(),
    })?;
    Ok(())
}

/// The `size` bytes that a ZSTD frame holds.
pub(super) fn zstd_decompress(frame: &[u8], size: usize) -> Result<Vec<u8>> {
    let failed = |source| Error::Compression {
        codec: "zstd",
        source,
    };
    let mut out = Vec::with_capacity(size);
    DECOMPRESSOR.with_borrow_mut(|slot| {
        let decompressor = match slot {
            Some(decompressor) => decompressor,
            None => slot.insert(Decompressor::new().map_err(failed)?),
        };
        decompressor
            .decompress_to_buffer(frame, &mut out)
            .map_err(failed)
            .map(drop)
    })?;
    of_size(out, size)
}

/// The `size` bytes that LZ4 frames hold.
pub(super) fn lz4_decompress(frame: &[u8], size: usize) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(size);
    // One byte more than declared shows a frame that holds too much.
    let mut reader = FrameDecoder::new(frame).take(size as u64 + 1);
    reader
        .read_to_end(&mut out)
        .map_err(|source| Error::Compression {
            codec: "lz4",
            source,
        })?;
    of_size(out, size)
}

fn of_size(out: Vec<u8>, size: usize) -> Result<Vec<u8>> {
    if out.len() == size {
        return Ok(out);
    }
    Err(Error::corrupt(
        FORMAT,
        "buffer holds another number of bytes than declared",
    ))
}
