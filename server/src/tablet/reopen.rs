//! Buckets whose keys take no more writes are opened again, until they are served.

use std::sync::Arc;
use std::time::Duration;

use weir_protocol::error_code::ErrorCode;

use super::transitions::Led;
use super::{Offline, Replica, Slot, TabletServer};
use crate::error::Error;

/// The pause after a first failure; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl TabletServer {
    /// Opens buckets again whose keys have failed, until the shutdown begins. They are offline until then.
    pub(crate) async fn reopen_loop(self: Arc<Self>) {
        loop {
            tokio::select! {
                biased;
                () = self.parts.shutdown.begun() => return,
                () = self.keys_failed.notified() => {}
            }
            for replica in self.leaders() {
                if self.take_offline(&replica) {
                    let server = Arc::clone(&self);
                    self.parts
                        .shutdown
                        .spawn(async move { server.reopen(&replica).await });
                }
            }
        }
    }

    /// Serves a bucket no more if its keys have failed; whether that is so.
    fn take_offline(&self, replica: &Arc<Replica>) -> bool {
        let keyed = replica.keyed().ok();
        let Some(reason) = keyed.and_then(|keyed| keyed.failure()) else {
            return false;
        };
        let offline = Offline {
            code: ErrorCode::KvStorage,
            reason: reason.to_owned(),
        };
        let mut replicas = self.replicas.write();
        match replicas.get(&replica.bucket) {
            Some(Slot::Leader(served)) if Arc::ptr_eq(served, replica) => {}
            _ => return false,
        }
        let slot = Slot::Opening(replica.epochs(), Some(Arc::new(offline)));
        replicas.insert(replica.bucket, slot);
        self.parts.metrics.leaders.dec();
        self.parts.metrics.buckets_offline.inc();
        true
    }

    /// Closes the bucket, and opens it until that succeeds or somebody else decides on it.
    async fn reopen(self: Arc<Self>, replica: &Replica) {
        replica.close().await;
        let bucket = replica.bucket;
        let asked = replica.activation(self.parts.id);
        let mut pause = FIRST_PAUSE;
        loop {
            let opened = match self.load_change(&asked, bucket.table).await {
                Ok(change) => self.open((&asked, Led::Before), bucket, change).await,
                Err(source) => Err(Error::TableNotRead { bucket, source }),
            };
            if self.settle(&asked, bucket, opened).await.is_none() {
                return;
            }
            tokio::select! {
                biased;
                () = self.parts.shutdown.begun() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
            let mut replicas = self.replicas.write();
            match replicas.get(&bucket) {
                Some(Slot::Broken(epochs, offline)) if *epochs == replica.epochs() => {
                    let slot = Slot::Opening(*epochs, Some(Arc::clone(offline)));
                    replicas.insert(bucket, slot);
                }
                // The coordinator has sent for it again, or taken it away.
                _ => return,
            }
        }
    }
}
