//! Calls between the servers of this process: the protocol's own messages over bounded channels.

use tokio::sync::{mpsc, oneshot};
use weir_protocol::ids::{BucketId, LogOffset, ServerId};
use weir_protocol::proto::{
    ListOffsetsRequest, ListOffsetsResponse, NotifyLakeTableOffsetRequest,
    NotifyLeaderAndIsrRequest, NotifyLeaderAndIsrResponse, StopReplicaRequest,
    UpdateMetadataRequest,
};

use crate::error::Error;

/// How many calls to one server may wait.
const QUEUE_CALLS: usize = 256;
/// How many acknowledgements of one leader change may wait.
const QUEUE_ACKS: usize = 64;

/// What a server says that gave buckets up.
#[derive(Debug, Default)]
pub(crate) struct Stopped {
    /// Where the logs end of those that it led and closed: nothing is appended to them any more.
    pub(crate) log_ends: Vec<(BucketId, LogOffset)>,
}

/// A call to a tablet server, with where its answer goes.
#[derive(Debug)]
pub(crate) enum Call {
    /// Answered bucket by bucket, as each becomes ready: a slow one holds up nobody.
    NotifyLeaderAndIsr(
        NotifyLeaderAndIsrRequest,
        mpsc::Sender<NotifyLeaderAndIsrResponse>,
    ),
    UpdateMetadata(
        Box<UpdateMetadataRequest>,
        oneshot::Sender<Result<(), Error>>,
    ),
    StopReplica(StopReplicaRequest, oneshot::Sender<Result<Stopped, Error>>),
    NotifyLakeTableOffset(
        NotifyLakeTableOffsetRequest,
        oneshot::Sender<Result<(), Error>>,
    ),
    ListOffsets(
        ListOffsetsRequest,
        oneshot::Sender<Result<ListOffsetsResponse, Error>>,
    ),
}

/// The calling end of a tablet server; calls arrive in the order they were made. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) server: ServerId,
    calls: mpsc::Sender<Call>,
}

impl Peer {
    /// A peer and the receiving end that the tablet server works off.
    pub(crate) fn new(server: ServerId) -> (Self, mpsc::Receiver<Call>) {
        let (calls, receiver) = mpsc::channel(QUEUE_CALLS);
        (Self { server, calls }, receiver)
    }

    /// Makes the server leader of buckets; the receiver yields one acknowledgement a bucket.
    pub(crate) async fn notify_leader_and_isr(
        &self,
        request: NotifyLeaderAndIsrRequest,
    ) -> Result<mpsc::Receiver<NotifyLeaderAndIsrResponse>, Error> {
        let (acks, receiver) = mpsc::channel(QUEUE_ACKS);
        self.send(Call::NotifyLeaderAndIsr(request, acks)).await?;
        Ok(receiver)
    }

    /// Tells the server who leads what.
    pub(crate) async fn update_metadata(
        &self,
        request: UpdateMetadataRequest,
    ) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.send(Call::UpdateMetadata(Box::new(request), answer))
            .await?;
        answered.await.map_err(|_| Error::Stopping)?
    }

    /// Takes buckets from the server, with or without their data.
    pub(crate) async fn stop_replica(&self, request: StopReplicaRequest) -> Result<Stopped, Error> {
        let (answer, answered) = oneshot::channel();
        self.send(Call::StopReplica(request, answer)).await?;
        answered.await.map_err(|_| Error::Stopping)?
    }

    /// Tells the server how far the lake is.
    pub(crate) async fn notify_lake_table_offset(
        &self,
        request: NotifyLakeTableOffsetRequest,
    ) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.send(Call::NotifyLakeTableOffset(request, answer))
            .await?;
        answered.await.map_err(|_| Error::Stopping)?
    }

    /// Asks for offsets that clients are not told.
    pub(crate) async fn list_offsets(
        &self,
        request: ListOffsetsRequest,
    ) -> Result<ListOffsetsResponse, Error> {
        let (answer, answered) = oneshot::channel();
        self.send(Call::ListOffsets(request, answer)).await?;
        answered.await.map_err(|_| Error::Stopping)?
    }

    async fn send(&self, call: Call) -> Result<(), Error> {
        self.calls.send(call).await.map_err(|_| Error::Stopping)
    }
}
