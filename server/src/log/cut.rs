//! Which of the bytes that were read of a segment are served.

use std::ops::Range;

use weir_protocol::ids::LogOffset;

use super::batch::{BatchHeader, MAX_HEADER_BYTES};

/// What a reader wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadRequest {
    pub(crate) from: LogOffset,
    pub(crate) max_bytes: usize,
    /// A first batch that is larger than this is left out, whatever else is said.
    pub(crate) most_bytes: usize,
    /// Batches that reach beyond are not served.
    pub(crate) upto: LogOffset,
}

/// What to do after a piece of a segment was read.
pub(crate) enum Cut {
    /// Serve this part of what was read.
    Batches {
        range: Range<usize>,
        next_offset: LogOffset,
    },
    /// There is nothing to serve.
    Nothing,
    /// Reading goes on `bytes` further, where a batch of at least `batch_bytes` begins.
    ReadOn {
        bytes: usize,
        next_offset: LogOffset,
        batch_bytes: u64,
    },
}

/// What there is to serve before bytes that are no header: cut off by the end of the buffer, or, if nothing
/// stands before them, damaged.
fn without_header(
    start: Option<usize>,
    at: usize,
    rest: &[u8],
    next_offset: LogOffset,
) -> Result<Cut, (usize, &'static str)> {
    match start {
        None if at == 0 || rest.len() >= MAX_HEADER_BYTES => Err((at, "no batch header")),
        None => Ok(Cut::ReadOn {
            bytes: at,
            next_offset,
            batch_bytes: 0,
        }),
        Some(begin) => Ok(Cut::Batches {
            range: begin..at,
            next_offset,
        }),
    }
}

/// Finds the batches to serve in what was read; the first one there has the base offset `expected`.
pub(crate) fn cut_batches(
    buffer: &[u8],
    mut expected: LogOffset,
    request: &ReadRequest,
) -> Result<Cut, (usize, &'static str)> {
    let mut at = 0;
    let mut start = None;
    while let Some(rest) = buffer.get(at..).filter(|rest| !rest.is_empty()) {
        let Ok(header) = BatchHeader::parse(rest) else {
            return without_header(start, at, rest, expected);
        };
        let next = header
            .next_offset()
            .filter(|_| header.base_offset == expected);
        let whole = rest.get(..header.size_bytes);
        let wanted = next.is_none_or(|next| next > request.from);
        if wanted {
            let fault = match (next, whole) {
                (None, _) => Some("batch does not follow the one before"),
                (_, Some(batch)) if !header.crc_holds(batch) => Some("checksum does not hold"),
                _ => None,
            };
            let full =
                start.is_some_and(|begin| at + header.size_bytes - begin > request.max_bytes);
            let beyond = next.is_some_and(|next| next > request.upto);
            match (start, fault) {
                // Batches before are whole; the next read meets the damage first.
                (Some(_), Some(_)) => break,
                (None, Some(reason)) => return Err((at, reason)),
                _ if full || beyond => break,
                (Some(_), None) if whole.is_none() => break,
                (None, None) if whole.is_none() => {
                    let batch_bytes = header.size_bytes as u64;
                    return Ok(Cut::ReadOn {
                        bytes: at,
                        next_offset: expected,
                        batch_bytes,
                    });
                }
                _ => {
                    start.get_or_insert(at);
                }
            }
        }
        at += header.size_bytes;
        expected = next.unwrap_or(expected);
        if at > buffer.len() {
            // A batch before the wanted one, longer than what was read.
            return Ok(Cut::ReadOn {
                bytes: at,
                next_offset: expected,
                batch_bytes: 0,
            });
        }
    }
    Ok(match start {
        Some(begin) => Cut::Batches {
            range: begin..at,
            next_offset: expected,
        },
        // The end of the buffer, but perhaps not of the segment.
        None if at == buffer.len() => Cut::ReadOn {
            bytes: at,
            next_offset: expected,
            batch_bytes: 0,
        },
        None => Cut::Nothing,
    })
}
