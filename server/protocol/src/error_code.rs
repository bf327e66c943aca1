//! Every error code of the protocol, with the names of release 1.0.0.

/// What a client that gets a code may do next (the class tree of the reference client).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Final: the same request fails again.
    Never,
    /// The same request may succeed later.
    Again,
    /// Refresh metadata first, then try again.
    AfterRefresh,
}

macro_rules! error_codes {
    ($($variant:ident = $code:literal, $name:literal, $retry:ident;)*) => {
        /// An error code on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorCode {
            $(#[doc = $name] $variant,)*
            /// A number that this release does not know, from a newer server; final for the caller.
            Unknown(i32),
        }

        impl ErrorCode {
            /// All known codes, in numerical order.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$variant,)*];

            /// The code with this number. Numbers that we do not know are kept, so that an error of a
            /// newer server can be looked up.
            pub fn from_code(code: i32) -> Self {
                match code { $($code => ErrorCode::$variant,)* unknown => ErrorCode::Unknown(unknown) }
            }

            /// The number on the wire.
            pub fn code(self) -> i32 {
                match self { $(ErrorCode::$variant => $code,)* ErrorCode::Unknown(code) => code }
            }

            /// The protocol's own name.
            pub fn name(self) -> &'static str {
                match self { $(ErrorCode::$variant => $name,)* ErrorCode::Unknown(_) => "UNKNOWN_CODE" }
            }

            /// What the caller may do next.
            pub fn retry(self) -> Retry {
                match self { $(ErrorCode::$variant => Retry::$retry,)* ErrorCode::Unknown(_) => Retry::Never }
            }

            /// Whether the same request may succeed later.
            pub fn is_retriable(self) -> bool {
                self.retry() != Retry::Never
            }
        }

        impl std::fmt::Display for ErrorCode {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{} ({})", self.name(), self.code())
            }
        }
    };
}

error_codes! {
    UnknownServerError = -1, "UNKNOWN_SERVER_ERROR", Never;
    None = 0, "NONE", Never;
    Network = 1, "NETWORK_EXCEPTION", AfterRefresh;
    UnsupportedVersion = 2, "UNSUPPORTED_VERSION", Never;
    CorruptMessage = 3, "CORRUPT_MESSAGE", Again;
    DatabaseNotExist = 4, "DATABASE_NOT_EXIST", Never;
    DatabaseNotEmpty = 5, "DATABASE_NOT_EMPTY", Never;
    DatabaseAlreadyExist = 6, "DATABASE_ALREADY_EXIST", Never;
    TableNotExist = 7, "TABLE_NOT_EXIST", Never;
    TableAlreadyExist = 8, "TABLE_ALREADY_EXIST", Never;
    SchemaNotExist = 9, "SCHEMA_NOT_EXIST", Again;
    LogStorage = 10, "LOG_STORAGE_EXCEPTION", Again;
    KvStorage = 11, "KV_STORAGE_EXCEPTION", Again;
    NotLeaderOrFollower = 12, "NOT_LEADER_OR_FOLLOWER", AfterRefresh;
    RecordTooLarge = 13, "RECORD_TOO_LARGE_EXCEPTION", Never;
    CorruptRecord = 14, "CORRUPT_RECORD_EXCEPTION", Again;
    InvalidTable = 15, "INVALID_TABLE_EXCEPTION", Never;
    InvalidDatabase = 16, "INVALID_DATABASE_EXCEPTION", Never;
    InvalidReplicationFactor = 17, "INVALID_REPLICATION_FACTOR", Never;
    InvalidRequiredAcks = 18, "INVALID_REQUIRED_ACKS", Never;
    LogOffsetOutOfRange = 19, "LOG_OFFSET_OUT_OF_RANGE_EXCEPTION", Never;
    NonPrimaryKeyTable = 20, "NON_PRIMARY_KEY_TABLE_EXCEPTION", Never;
    UnknownTableOrBucket = 21, "UNKNOWN_TABLE_OR_BUCKET_EXCEPTION", AfterRefresh;
    InvalidUpdateVersion = 22, "INVALID_UPDATE_VERSION_EXCEPTION", Never;
    InvalidCoordinator = 23, "INVALID_COORDINATOR_EXCEPTION", Never;
    FencedLeaderEpoch = 24, "FENCED_LEADER_EPOCH_EXCEPTION", Never;
    RequestTimeOut = 25, "REQUEST_TIME_OUT", Again;
    Storage = 26, "STORAGE_EXCEPTION", Again;
    OperationNotAttempted = 27, "OPERATION_NOT_ATTEMPTED_EXCEPTION", Never;
    NotEnoughReplicasAfterAppend = 28, "NOT_ENOUGH_REPLICAS_AFTER_APPEND_EXCEPTION", Again;
    NotEnoughReplicas = 29, "NOT_ENOUGH_REPLICAS_EXCEPTION", Again;
    SecurityToken = 30, "SECURITY_TOKEN_EXCEPTION", Never;
    OutOfOrderSequence = 31, "OUT_OF_ORDER_SEQUENCE_EXCEPTION", Never;
    DuplicateSequence = 32, "DUPLICATE_SEQUENCE_EXCEPTION", Never;
    UnknownWriterId = 33, "UNKNOWN_WRITER_ID_EXCEPTION", Never;
    InvalidColumnProjection = 34, "INVALID_COLUMN_PROJECTION", Never;
    InvalidTargetColumn = 35, "INVALID_TARGET_COLUMN", Never;
    PartitionNotExists = 36, "PARTITION_NOT_EXISTS", Never;
    TableNotPartitioned = 37, "TABLE_NOT_PARTITIONED_EXCEPTION", Never;
    InvalidTimestamp = 38, "INVALID_TIMESTAMP_EXCEPTION", Never;
    InvalidConfig = 39, "INVALID_CONFIG_EXCEPTION", Never;
    LakeStorageNotConfigured = 40, "LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION", Never;
    KvSnapshotNotExist = 41, "KV_SNAPSHOT_NOT_EXIST", Never;
    PartitionAlreadyExists = 42, "PARTITION_ALREADY_EXISTS", Never;
    PartitionSpecInvalid = 43, "PARTITION_SPEC_INVALID_EXCEPTION", Never;
    LeaderNotAvailable = 44, "LEADER_NOT_AVAILABLE_EXCEPTION", AfterRefresh;
    PartitionMaxNum = 45, "PARTITION_MAX_NUM_EXCEPTION", Never;
    Authenticate = 46, "AUTHENTICATE_EXCEPTION", Never;
    SecurityDisabled = 47, "SECURITY_DISABLED_EXCEPTION", Never;
    Authorization = 48, "AUTHORIZATION_EXCEPTION", Never;
    BucketMaxNum = 49, "BUCKET_MAX_NUM_EXCEPTION", Never;
    FencedTieringEpoch = 50, "FENCED_TIERING_EPOCH_EXCEPTION", Never;
    RetriableAuthenticate = 51, "RETRIABLE_AUTHENTICATE_EXCEPTION", Never;
    InvalidServerRackInfo = 52, "INVALID_SERVER_RACK_INFO_EXCEPTION", Never;
    LakeSnapshotNotExist = 53, "LAKE_SNAPSHOT_NOT_EXIST", Never;
    LakeTableAlreadyExist = 54, "LAKE_TABLE_ALREADY_EXIST", Never;
    IneligibleReplica = 55, "INELIGIBLE_REPLICA_EXCEPTION", Never;
    InvalidAlterTable = 56, "INVALID_ALTER_TABLE_EXCEPTION", Never;
    DeletionDisabled = 57, "DELETION_DISABLED_EXCEPTION", Never;
    ServerNotExist = 58, "SERVER_NOT_EXIST_EXCEPTION", Never;
    SeverTagAlreadyExist = 59, "SEVER_TAG_ALREADY_EXIST_EXCEPTION", Never;
    SeverTagNotExist = 60, "SEVER_TAG_NOT_EXIST_EXCEPTION", Never;
    RebalanceFailure = 61, "REBALANCE_FAILURE_EXCEPTION", Never;
    NoRebalanceInProgress = 62, "NO_REBALANCE_IN_PROGRESS_EXCEPTION", Never;
    InvalidProducerId = 63, "INVALID_PRODUCER_ID_EXCEPTION", Never;
    Config = 64, "CONFIG_EXCEPTION", Never;
    NotCoordinatorLeader = 65, "NOT_COORDINATOR_LEADER_EXCEPTION", Never;
    ScannerExpired = 66, "SCANNER_EXPIRED", Never;
    UnknownScannerId = 67, "UNKNOWN_SCANNER_ID", Never;
    InvalidScanRequest = 68, "INVALID_SCAN_REQUEST", Never;
    TooManyScanners = 69, "TOO_MANY_SCANNERS", Never;
    DiskWriteLocked = 70, "DISK_WRITE_LOCKED", Again;
    InsufficientKvLeaderReplicaCapacity = 71, "INSUFFICIENT_KV_LEADER_REPLICA_CAPACITY", Never;
    StorageBackpressure = 72, "STORAGE_BACKPRESSURE_EXCEPTION", Again;
    HistoricalPartitionThrottled = 73, "HISTORICAL_PARTITION_THROTTLED", Again;
    InvalidBucketRouting = 74, "INVALID_BUCKET_ROUTING", Never;
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = include_str!("../tests/golden/error_codes.tsv");

    #[test]
    fn codes_names_and_retries_are_those_of_the_reference() {
        let ours: Vec<String> = ErrorCode::ALL
            .iter()
            .map(|code| {
                let retry = match code.retry() {
                    Retry::Never => "never",
                    Retry::Again => "again",
                    Retry::AfterRefresh => "after refresh",
                };
                format!("{}\t{}\t{retry}", code.code(), code.name())
            })
            .collect();
        let golden: Vec<&str> = GOLDEN.lines().skip(1).collect();
        assert_eq!(ours, golden);
    }

    #[test]
    fn exactly_these_codes_are_retriable() {
        let retriable: Vec<i32> = ErrorCode::ALL
            .iter()
            .filter(|code| code.is_retriable())
            .map(|code| code.code())
            .collect();
        assert_eq!(
            retriable,
            [1, 3, 9, 10, 11, 12, 14, 21, 25, 26, 28, 29, 44, 70, 72, 73]
        );
    }

    #[test]
    fn a_number_gives_its_code_and_an_unknown_one_is_kept() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_code(code.code()), *code);
        }
        assert_eq!(ErrorCode::from_code(9999), ErrorCode::Unknown(9999));
        assert_eq!(ErrorCode::Unknown(9999).to_string(), "UNKNOWN_CODE (9999)");
        assert_eq!(
            ErrorCode::PartitionNotExists.to_string(),
            "PARTITION_NOT_EXISTS (36)"
        );
    }
}
