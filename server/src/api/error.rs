//! Every crate's errors as codes of the protocol: the one place where meaning becomes a number.

use bytes::Bytes;
use weir_catalog::sentence::sentence;
use weir_catalog::store::StoreError;
use weir_protocol::error_code::ErrorCode;
use weir_protocol::frame;
use weir_protocol::proto::ErrorResponse;

use crate::coordinator::tiering::Refusal;
use crate::error::Error;
use crate::log;

/// The longest message sent to a client, bytes.
const MAX_MESSAGE_BYTES: usize = 4096;

/// An error as a client sees it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: ErrorCode,
    pub(crate) message: String,
}

impl Failure {
    /// The frame that fails the request `request_id`.
    pub(crate) fn frame(&self, request_id: i32) -> Bytes {
        frame::encode_error(request_id, self.code, &self.message)
    }

    /// The two fields of a failed entry inside of a successful answer.
    pub(crate) fn fields(self) -> (Option<i32>, Option<String>) {
        (Some(self.code.code()), Some(self.message))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let code = ErrorCode::from(error);
        // The protocol has no code for some mistakes of clients: they are no event of the server.
        if code == ErrorCode::UnknownServerError && !is_of_client(error) {
            tracing::warn!(error = %sentence(error), "a request failed inside of the server");
        } else {
            tracing::debug!(%code, %error, "a request was refused");
        }
        let mut message = sentence(error);
        let end = message.floor_char_boundary(MAX_MESSAGE_BYTES);
        message.truncate(end);
        Self { code, message }
    }
}

fn is_of_client(error: &Error) -> bool {
    matches!(
        error,
        Error::TooManyBuckets { .. }
            | Error::BadRequest { .. }
            | Error::KeyMismatch { .. }
            | Error::Kv(
                weir_kv::Error::PartialUpdate { .. }
                    | weir_kv::Error::NullValue { .. }
                    | weir_kv::Error::NumbersUsedUp { .. }
                    | weir_kv::Error::Aggregate { .. }
            )
            | Error::Catalog(weir_catalog::Error::DatabaseProtected { .. })
    )
}

impl From<Failure> for ErrorResponse {
    fn from(failure: Failure) -> Self {
        let (error_code, error_message) = (failure.code.code(), Some(failure.message));
        Self {
            error_code,
            error_message,
        }
    }
}

impl From<&Error> for ErrorCode {
    fn from(error: &Error) -> Self {
        match error {
            Error::Config { .. }
            | Error::PortInUse { .. }
            | Error::Listen { .. }
            | Error::Locked { .. }
            | Error::NewerFormat { .. }
            | Error::Corrupt { .. }
            | Error::Interrupted { .. } => Self::UnknownServerError,
            Error::Disk { .. } | Error::Warehouse { .. } | Error::Remote { .. } => Self::Storage,
            Error::MetaStore(_) => Self::UnknownServerError,
            Error::Catalog(source) => of_catalog(source),
            Error::Log(source) => of_log(source),
            Error::Kv(source) => of_kv(source),
            Error::BadKvBatch { .. } => Self::CorruptRecord,
            Error::KeyMismatch { .. } => Self::UnknownServerError,
            Error::TooManyChanges { .. } | Error::AnswerTooLarge { .. } => Self::RecordTooLarge,
            Error::StateApart { .. } => Self::KvStorage,
            Error::InvalidScan { .. } => Self::InvalidScanRequest,
            Error::UnknownScanner => Self::UnknownScannerId,
            Error::OldKeys { .. } => Self::UnsupportedVersion,
            Error::Protocol(_) => Self::InvalidTable,
            Error::StoredBatch { .. } => Self::CorruptRecord,
            Error::UnknownApi { .. } | Error::UnsupportedVersion { .. } => Self::UnsupportedVersion,
            Error::Unsupported { .. } => Self::UnsupportedVersion,
            Error::BrokenMessage { .. } => Self::CorruptMessage,
            Error::TooManyBuckets { .. } | Error::BadRequest { .. } => Self::UnknownServerError,
            Error::UnknownMechanism { .. }
            | Error::LoginToken(_)
            | Error::BadCredentials { .. }
            | Error::NotLoggedIn { .. } => Self::Authenticate,
            Error::UnknownBucket { .. } => Self::UnknownTableOrBucket,
            Error::NotLeader { .. } => Self::NotLeaderOrFollower,
            Error::Offline { code, .. } => *code,
            Error::UnknownLog { .. } => Self::LogStorage,
            Error::TableNotRead { source, .. } => Self::from(&**source),
            Error::StaleRouting { .. } => Self::InvalidBucketRouting,
            Error::InvalidAcks { .. } => Self::InvalidRequiredAcks,
            Error::OffsetOutOfRange { .. } => Self::LogOffsetOutOfRange,
            Error::AckTimeout { .. } | Error::TooManyPuts { .. } => Self::RequestTimeOut,
            Error::UnknownSchema { .. } => Self::SchemaNotExist,
            Error::InvalidProjection { .. } => Self::InvalidColumnProjection,
            Error::FutureTimestamp { .. } => Self::InvalidTimestamp,
            Error::NoPrimaryKey { .. } => Self::NonPrimaryKeyTable,
            Error::PrimaryKeyTable { .. } => Self::InvalidTable,
            Error::SecurityDisabled => Self::SecurityDisabled,
            Error::UnknownServer { .. } => Self::ServerNotExist,
            Error::TagExists { .. } => Self::SeverTagAlreadyExist,
            Error::TagMissing { .. } => Self::SeverTagNotExist,
            Error::NoRebalancer => Self::RebalanceFailure,
            Error::NoRebalance => Self::NoRebalanceInProgress,
            Error::NoKvSnapshot { .. } | Error::KeysWithoutSnapshot { .. } => {
                Self::KvSnapshotNotExist
            }
            Error::WrongCoordinator { .. } => Self::InvalidCoordinator,
            Error::FencedLeader { .. } => Self::FencedLeaderEpoch,
            Error::Tiering(Refusal::UnknownTable { .. }) => Self::TableNotExist,
            Error::Tiering(Refusal::Fenced { .. }) => Self::FencedTieringEpoch,
            Error::OtherTable { .. } | Error::UnknownTable { .. } => Self::TableNotExist,
            Error::UnknownPartition { .. } => Self::PartitionNotExists,
            Error::LakeRegression { .. } => Self::FencedTieringEpoch,
            Error::LakeAheadOfLog { .. } => Self::LogOffsetOutOfRange,
            Error::OffsetsFile { .. } => Self::InvalidTable,
            Error::Stopping => Self::Network,
        }
    }
}

fn of_catalog(error: &weir_catalog::Error) -> ErrorCode {
    use weir_catalog::Error as E;
    match error {
        E::Conflict { .. } => ErrorCode::Storage,
        E::Fenced { .. } => ErrorCode::NotCoordinatorLeader,
        E::OutcomeUnknown { .. } | E::Corrupt { .. } | E::NewerVersion { .. } => {
            ErrorCode::UnknownServerError
        }
        E::Store { source, .. } => of_store(source),
        E::DatabaseNotExist { .. } => ErrorCode::DatabaseNotExist,
        E::DatabaseAlreadyExist { .. } => ErrorCode::DatabaseAlreadyExist,
        E::DatabaseNotEmpty { .. } => ErrorCode::DatabaseNotEmpty,
        E::DatabaseProtected { .. } => ErrorCode::UnknownServerError,
        E::InvalidDatabase { .. } => ErrorCode::InvalidDatabase,
        E::TableNotExist { .. } | E::TableIdNotExist { .. } => ErrorCode::TableNotExist,
        E::TableAlreadyExist { .. } => ErrorCode::TableAlreadyExist,
        E::InvalidTable { .. } | E::LakeNotConfigured { .. } => ErrorCode::InvalidTable,
        E::InvalidAlterTable { .. } | E::TooLarge { .. } => ErrorCode::InvalidAlterTable,
        E::InvalidConfig { .. } => ErrorCode::InvalidConfig,
        E::InvalidReplicationFactor { .. } => ErrorCode::InvalidReplicationFactor,
        E::TooManyBuckets { .. } => ErrorCode::BucketMaxNum,
        E::SchemaNotExist { .. } => ErrorCode::SchemaNotExist,
        E::TableNotPartitioned { .. } => ErrorCode::TableNotPartitioned,
        E::PartitionNotExist { .. } => ErrorCode::PartitionNotExists,
        E::PartitionAlreadyExist { .. } => ErrorCode::PartitionAlreadyExists,
        E::InvalidPartition { .. } => ErrorCode::PartitionSpecInvalid,
        E::TooManyPartitions { .. } => ErrorCode::PartitionMaxNum,
        E::StaleMetadata { .. } => ErrorCode::InvalidBucketRouting,
        E::LakeTableAlreadyExist { .. } => ErrorCode::LakeTableAlreadyExist,
        E::Lake { .. } => ErrorCode::Storage,
        E::BucketNotExist { .. } => ErrorCode::UnknownTableOrBucket,
        E::LakeSnapshotNotExist { .. } => ErrorCode::LakeSnapshotNotExist,
        E::InvalidLakeSnapshot { .. } => ErrorCode::InvalidTable,
    }
}

fn of_store(error: &StoreError) -> ErrorCode {
    match error {
        StoreError::Conflict { .. } | StoreError::Unavailable { .. } => ErrorCode::Storage,
        StoreError::Fenced => ErrorCode::NotCoordinatorLeader,
        StoreError::TooLarge { .. } => ErrorCode::InvalidAlterTable,
        StoreError::Unknown
        | StoreError::SessionLost
        | StoreError::Corrupt { .. }
        | StoreError::BadKey { .. }
        | StoreError::KeyTwice { .. } => ErrorCode::UnknownServerError,
    }
}

fn of_log(error: &log::Error) -> ErrorCode {
    match error {
        log::Error::Io { .. }
        | log::Error::Corrupt { .. }
        | log::Error::TooMuchAside { .. }
        | log::Error::Failed { .. } => ErrorCode::LogStorage,
        log::Error::DiskFull { .. } => ErrorCode::DiskWriteLocked,
        log::Error::NewerFormat { .. } | log::Error::WrongBucket { .. } => {
            ErrorCode::UnknownServerError
        }
        log::Error::BadBatch { .. } => ErrorCode::CorruptRecord,
        log::Error::OutOfOrderSequence { .. } => ErrorCode::OutOfOrderSequence,
        log::Error::OutOfRange { .. } => ErrorCode::LogOffsetOutOfRange,
        log::Error::Closed { .. } => ErrorCode::NotLeaderOrFollower,
    }
}

fn of_kv(error: &weir_kv::Error) -> ErrorCode {
    use weir_kv::Error as E;
    match error {
        E::Corrupt { .. }
        | E::Disk { .. }
        | E::RocksDb { .. }
        | E::CorruptValue { .. }
        | E::NewerValueLayout { .. }
        | E::OtherBucket { .. }
        | E::NewerFormat { .. }
        | E::Remote { .. }
        | E::CorruptSnapshot { .. }
        | E::NewerSnapshot { .. } => ErrorCode::KvStorage,
        E::Closed { .. } => ErrorCode::NotLeaderOrFollower,
        E::UnknownSchema { .. } => ErrorCode::SchemaNotExist,
        E::TargetColumns { .. } => ErrorCode::InvalidTargetColumn,
        E::TableProperty { .. } | E::AggregateFunction { .. } => ErrorCode::InvalidConfig,
        E::DeletesDisabled => ErrorCode::DeletionDisabled,
        E::TooManyCursors { .. } => ErrorCode::TooManyScanners,
        E::CursorExpired { .. } => ErrorCode::ScannerExpired,
        E::UnknownCursor { .. } => ErrorCode::UnknownScannerId,
        E::PageOrder { .. } => ErrorCode::InvalidScanRequest,
        E::SchemaIdRange { .. }
        | E::OffsetOrder { .. }
        | E::PartialUpdate { .. }
        | E::NumbersUsedUp { .. }
        | E::Aggregate { .. }
        | E::NullValue { .. }
        | E::Row { .. } => ErrorCode::UnknownServerError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_said_in_one_plain_sentence() {
        let full = || std::io::Error::from_raw_os_error(28);
        let error = Error::Log(log::Error::io("/d/0.log".as_ref(), "write", full()));
        let Failure { code, message } = Failure::from(error);
        assert_eq!(code, ErrorCode::DiskWriteLocked);
        let said = "cannot write /d/0.log: No space left on device (os error 28)";
        assert_eq!(message, said);
    }
}
