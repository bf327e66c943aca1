//! Limits on connections, in all and per address, and on the memory of requests.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use crate::config::LimitsConfig;
use crate::memory::Memory;

/// Counts what clients hold; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    counts: Arc<Mutex<Counts>>,
    connections: usize,
    connections_per_address: usize,
    memory: Memory,
}

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// The right to be connected; given back on drop.
#[derive(Debug)]
pub(crate) struct Ticket {
    counts: Arc<Mutex<Counts>>,
    address: IpAddr,
}

impl Admission {
    pub(crate) fn new(limits: &LimitsConfig) -> Self {
        Self {
            counts: Arc::default(),
            connections: limits.connections,
            connections_per_address: limits.connections_per_address,
            memory: Memory::new(limits.request_memory_bytes),
        }
    }

    /// A ticket for one more connection of `address`, or `None` above a limit.
    pub(crate) fn admit(&self, address: IpAddr) -> Option<Ticket> {
        let mut counts = self.counts.lock();
        let of_address = counts.by_address.get(&address).copied().unwrap_or(0);
        if counts.total >= self.connections || of_address >= self.connections_per_address {
            return None;
        }
        counts.total += 1;
        counts.by_address.insert(address, of_address + 1);
        drop(counts);
        Some(Ticket {
            counts: Arc::clone(&self.counts),
            address,
        })
    }

    /// Waits until `bytes` of request memory are free, and takes them.
    pub(crate) async fn reserve(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.memory.reserve(bytes).await
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        counts.total = counts.total.saturating_sub(1);
        let left = counts
            .by_address
            .get(&self.address)
            .copied()
            .unwrap_or(0)
            .saturating_sub(1);
        if left == 0 {
            counts.by_address.remove(&self.address);
        } else {
            counts.by_address.insert(self.address, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(connections: usize, connections_per_address: usize) -> Admission {
        Admission::new(&LimitsConfig {
            connections,
            connections_per_address,
            ..LimitsConfig::default()
        })
    }

    #[test]
    fn an_address_has_its_own_limit_below_that_of_the_process() {
        let admission = admission(3, 2);
        let one = IpAddr::from([10, 0, 0, 1]);
        let other = IpAddr::from([10, 0, 0, 2]);
        let first = admission.admit(one).unwrap();
        let _second = admission.admit(one).unwrap();
        assert!(admission.admit(one).is_none());
        let _third = admission.admit(other).unwrap();
        assert!(admission.admit(other).is_none(), "the process is full");
        drop(first);
        assert!(admission.admit(one).is_some());
    }
}
