//! The memory of requests that are being read: taken as their bytes arrive.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::memory::Memory;

/// The memory of all requests. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct RequestsMemory {
    memory: Memory,
    /// One request at a time may take more than there is.
    overdraft: Arc<Semaphore>,
}

/// What one request takes of it; given back on drop.
#[derive(Debug)]
pub(crate) struct RequestMemory {
    all: RequestsMemory,
    bytes: usize,
    held: Option<OwnedSemaphorePermit>,
    overdraft: Option<OwnedSemaphorePermit>,
}

impl RequestsMemory {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            memory: Memory::new(bytes),
            overdraft: Arc::new(Semaphore::new(1)),
        }
    }

    /// Memory for one more request; none is taken yet.
    pub(crate) fn for_request(&self) -> RequestMemory {
        RequestMemory {
            all: self.clone(),
            bytes: 0,
            held: None,
            overdraft: None,
        }
    }
}

impl RequestMemory {
    /// Waits until there is memory for `bytes` in all, and takes it. Where requests that are half read
    /// hold all there is, one of them at a time gets more than that, so that they come to an end.
    pub(crate) async fn grow_to(&mut self, bytes: usize) {
        if self.overdraft.is_some() || bytes <= self.bytes {
            return;
        }
        let overdraft = Arc::clone(&self.all.overdraft);
        let more = self.all.memory.reserve(bytes - self.bytes);
        tokio::select! {
            biased;
            more = more => match (&mut self.held, more) {
                (Some(held), Some(more)) => held.merge(more),
                (held, more) => *held = more,
            },
            turn = overdraft.acquire_owned(), if self.held.is_some() => self.overdraft = turn.ok(),
        }
        self.bytes = bytes;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn requests_that_together_need_more_memory_than_there_is_come_to_an_end() {
        let memory = RequestsMemory::new(8 << 10);
        let mut first = memory.for_request();
        let mut second = memory.for_request();
        first.grow_to(4 << 10).await;
        second.grow_to(4 << 10).await;
        // Each holds half and needs all.
        first.grow_to(8 << 10).await;
        first.grow_to(64 << 10).await;
        let mut third = memory.for_request();
        for waits in [&mut second, &mut third] {
            let grown = waits.grow_to(8 << 10);
            assert!(grown.now_or_never().is_none(), "one at a time");
        }
        drop(first);
        second.grow_to(8 << 10).await;
        assert_eq!(second.bytes, 8 << 10);
        drop(second);
        third.grow_to(8 << 10).await;
    }
}
