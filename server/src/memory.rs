//! A budget of memory that requests and answers share.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Memory is counted in pieces of this many bytes.
const PIECE_BYTES: usize = 1024;

/// A budget. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    free: Arc<Semaphore>,
    pieces: u32,
}

impl Memory {
    pub(crate) fn new(bytes: usize) -> Self {
        let pieces = u32::try_from(bytes.div_ceil(PIECE_BYTES))
            .unwrap_or(u32::MAX)
            .max(1);
        let permits = usize::try_from(pieces).unwrap_or(usize::MAX);
        Self {
            free: Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))),
            pieces,
        }
    }

    /// Waits until `bytes` are free, and takes them; more than the whole budget takes all of it.
    pub(crate) async fn reserve(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let pieces = u32::try_from(bytes.div_ceil(PIECE_BYTES)).unwrap_or(u32::MAX);
        let pieces = pieces.clamp(1, self.pieces);
        Arc::clone(&self.free).acquire_many_owned(pieces).await.ok()
    }
}

/// Gives back what of `held` is more than `bytes` need.
pub(crate) fn give_back_beyond(held: &mut OwnedSemaphorePermit, bytes: usize) {
    let needed = bytes.div_ceil(PIECE_BYTES).max(1);
    let surplus = held.num_permits().saturating_sub(needed);
    drop(held.split(surplus));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_not_needed_is_free_again() {
        let memory = Memory::new(64 << 10);
        let mut held = memory.reserve(64 << 10).await.unwrap();
        give_back_beyond(&mut held, 5_000);
        assert_eq!(memory.free.available_permits(), 59);
        give_back_beyond(&mut held, 9_000);
        assert_eq!(memory.free.available_permits(), 59);
    }

    #[tokio::test]
    async fn a_request_above_the_whole_memory_takes_all_of_it() {
        let memory = Memory::new(4096);
        let all = memory.reserve(usize::MAX).await.unwrap();
        assert_eq!(memory.free.available_permits(), 0);
        drop(all);
        assert!(memory.reserve(1).await.is_some());
    }
}
