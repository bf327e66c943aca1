//! Every API of the protocol: its key, who serves it, who may call it, and the versions of release
//! 1.0.0.

/// Which role of a server answers an API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedBy {
    /// The coordinator alone.
    Coordinator,
    /// Tablet servers alone.
    Tablet,
    /// Both roles.
    Both,
}

/// Whether clients may call an API or only servers and lake workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Any client.
    Public,
    /// Servers among themselves; 1030, 1042 and 1052 also lake workers.
    Private,
}

macro_rules! api_keys {
    ($($variant:ident = $key:literal, $name:literal, $served:ident, $vis:ident,
        $min:literal..=$max:literal;)*) => {
        /// An API of the protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(i16)]
        pub enum ApiKey {
            $(#[doc = $name] $variant = $key,)*
        }

        impl ApiKey {
            /// All APIs, in the order of their keys.
            pub const ALL: &'static [ApiKey] = &[$(ApiKey::$variant,)*];

            /// The API with this key, or `None` for a key the protocol does not have.
            pub fn from_key(key: i16) -> Option<Self> {
                match key { $($key => Some(ApiKey::$variant),)* _ => None }
            }

            /// The number on the wire.
            pub fn key(self) -> i16 {
                match self { $(ApiKey::$variant => $key,)* }
            }

            /// The protocol's own name.
            pub fn name(self) -> &'static str {
                match self { $(ApiKey::$variant => $name,)* }
            }

            /// Who answers it.
            pub fn served_by(self) -> ServedBy {
                match self { $(ApiKey::$variant => ServedBy::$served,)* }
            }

            /// Who may call it.
            pub fn visibility(self) -> Visibility {
                match self { $(ApiKey::$variant => Visibility::$vis,)* }
            }

            /// Lowest and highest version of release 1.0.0, both inclusive.
            pub fn versions(self) -> (i16, i16) {
                match self { $(ApiKey::$variant => ($min, $max),)* }
            }
        }
    };
}

api_keys! {
    ApiVersions = 1000, "API_VERSIONS", Both, Public, 0..=0;
    CreateDatabase = 1001, "CREATE_DATABASE", Coordinator, Public, 0..=0;
    DropDatabase = 1002, "DROP_DATABASE", Coordinator, Public, 0..=0;
    ListDatabases = 1003, "LIST_DATABASES", Both, Public, 0..=0;
    DatabaseExists = 1004, "DATABASE_EXISTS", Both, Public, 0..=0;
    CreateTable = 1005, "CREATE_TABLE", Coordinator, Public, 0..=0;
    DropTable = 1006, "DROP_TABLE", Coordinator, Public, 0..=0;
    GetTableInfo = 1007, "GET_TABLE_INFO", Both, Public, 0..=0;
    ListTables = 1008, "LIST_TABLES", Both, Public, 0..=0;
    ListPartitionInfos = 1009, "LIST_PARTITION_INFOS", Both, Public, 0..=0;
    TableExists = 1010, "TABLE_EXISTS", Both, Public, 0..=0;
    GetTableSchema = 1011, "GET_TABLE_SCHEMA", Both, Public, 0..=0;
    GetMetadata = 1012, "GET_METADATA", Both, Public, 0..=0;
    UpdateMetadata = 1013, "UPDATE_METADATA", Tablet, Private, 0..=0;
    ProduceLog = 1014, "PRODUCE_LOG", Tablet, Public, 0..=1;
    FetchLog = 1015, "FETCH_LOG", Tablet, Public, 0..=0;
    PutKv = 1016, "PUT_KV", Tablet, Public, 0..=3;
    Lookup = 1017, "LOOKUP", Tablet, Public, 0..=1;
    NotifyLeaderAndIsr = 1018, "NOTIFY_LEADER_AND_ISR", Tablet, Private, 0..=0;
    StopReplica = 1019, "STOP_REPLICA", Tablet, Private, 0..=0;
    AdjustIsr = 1020, "ADJUST_ISR", Coordinator, Private, 0..=0;
    ListOffsets = 1021, "LIST_OFFSETS", Tablet, Public, 0..=0;
    CommitKvSnapshot = 1022, "COMMIT_KV_SNAPSHOT", Coordinator, Private, 0..=0;
    GetLatestKvSnapshots = 1023, "GET_LATEST_KV_SNAPSHOTS", Both, Public, 0..=0;
    GetKvSnapshotMetadata = 1024, "GET_KV_SNAPSHOT_METADATA", Both, Public, 0..=1;
    GetFilesystemSecurityToken = 1025, "GET_FILESYSTEM_SECURITY_TOKEN", Both, Public, 0..=0;
    InitWriter = 1026, "INIT_WRITER", Tablet, Public, 0..=0;
    CommitRemoteLogManifest = 1027, "COMMIT_REMOTE_LOG_MANIFEST", Coordinator, Private, 0..=0;
    NotifyRemoteLogOffsets = 1028, "NOTIFY_REMOTE_LOG_OFFSETS", Tablet, Private, 0..=0;
    NotifyKvSnapshotOffset = 1029, "NOTIFY_KV_SNAPSHOT_OFFSET", Tablet, Private, 0..=0;
    CommitLakeTableSnapshot = 1030, "COMMIT_LAKE_TABLE_SNAPSHOT", Coordinator, Private, 0..=0;
    NotifyLakeTableOffset = 1031, "NOTIFY_LAKE_TABLE_OFFSET", Tablet, Private, 0..=0;
    GetLakeSnapshot = 1032, "GET_LAKE_SNAPSHOT", Both, Public, 0..=0;
    LimitScan = 1033, "LIMIT_SCAN", Tablet, Public, 0..=0;
    PrefixLookup = 1034, "PREFIX_LOOKUP", Tablet, Public, 0..=1;
    GetDatabaseInfo = 1035, "GET_DATABASE_INFO", Both, Public, 0..=0;
    CreatePartition = 1036, "CREATE_PARTITION", Coordinator, Public, 0..=0;
    DropPartition = 1037, "DROP_PARTITION", Coordinator, Public, 0..=0;
    Authenticate = 1038, "AUTHENTICATE", Both, Public, 0..=0;
    CreateAcls = 1039, "CREATE_ACLS", Coordinator, Public, 0..=0;
    ListAcls = 1040, "LIST_ACLS", Both, Public, 0..=0;
    DropAcls = 1041, "DROP_ACLS", Coordinator, Public, 0..=0;
    LakeTieringHeartbeat = 1042, "LAKE_TIERING_HEARTBEAT", Coordinator, Private, 0..=0;
    ControlledShutdown = 1043, "CONTROLLED_SHUTDOWN", Coordinator, Private, 0..=0;
    AlterTable = 1044, "ALTER_TABLE", Coordinator, Public, 0..=1;
    DescribeClusterConfigs = 1045, "DESCRIBE_CLUSTER_CONFIGS", Both, Public, 0..=0;
    AlterClusterConfigs = 1046, "ALTER_CLUSTER_CONFIGS", Coordinator, Public, 0..=0;
    AddServerTag = 1047, "ADD_SERVER_TAG", Coordinator, Public, 0..=0;
    RemoveServerTag = 1048, "REMOVE_SERVER_TAG", Coordinator, Public, 0..=0;
    Rebalance = 1049, "REBALANCE", Coordinator, Public, 0..=0;
    ListRebalanceProgress = 1050, "LIST_REBALANCE_PROGRESS", Coordinator, Public, 0..=0;
    CancelRebalance = 1051, "CANCEL_REBALANCE", Coordinator, Public, 0..=0;
    PrepareLakeTableSnapshot = 1052, "PREPARE_LAKE_TABLE_SNAPSHOT", Coordinator, Private, 0..=0;
    RegisterProducerOffsets = 1053, "REGISTER_PRODUCER_OFFSETS", Coordinator, Public, 0..=0;
    GetProducerOffsets = 1054, "GET_PRODUCER_OFFSETS", Coordinator, Public, 0..=0;
    DeleteProducerOffsets = 1055, "DELETE_PRODUCER_OFFSETS", Coordinator, Public, 0..=0;
    AcquireKvSnapshotLease = 1056, "ACQUIRE_KV_SNAPSHOT_LEASE", Coordinator, Public, 0..=0;
    ReleaseKvSnapshotLease = 1057, "RELEASE_KV_SNAPSHOT_LEASE", Coordinator, Public, 0..=0;
    DropKvSnapshotLease = 1058, "DROP_KV_SNAPSHOT_LEASE", Coordinator, Public, 0..=0;
    GetTableStats = 1059, "GET_TABLE_STATS", Tablet, Public, 0..=0;
    AlterDatabase = 1060, "ALTER_DATABASE", Coordinator, Public, 0..=0;
    ScanKv = 1061, "SCAN_KV", Tablet, Public, 0..=0;
    GetClusterHealth = 1062, "GET_CLUSTER_HEALTH", Both, Public, 0..=0;
    ListRemoteLogManifests = 1063, "LIST_REMOTE_LOG_MANIFESTS", Coordinator, Public, 0..=0;
    ListKvSnapshots = 1064, "LIST_KV_SNAPSHOTS", Coordinator, Public, 0..=0;
    AddServerTagByRack = 1065, "ADD_SERVER_TAG_BY_RACK", Coordinator, Public, 0..=0;
    RemoveServerTagByRack = 1066, "REMOVE_SERVER_TAG_BY_RACK", Coordinator, Public, 0..=0;
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = include_str!("../tests/golden/api_keys.tsv");

    #[test]
    fn keys_roles_and_versions_are_those_of_the_reference() {
        let ours: Vec<String> = ApiKey::ALL
            .iter()
            .map(|api| {
                let server = match api.served_by() {
                    ServedBy::Coordinator => "C",
                    ServedBy::Tablet => "T",
                    ServedBy::Both => "C+T",
                };
                let visibility = match api.visibility() {
                    Visibility::Public => "pub",
                    Visibility::Private => "priv",
                };
                let (lowest, highest) = api.versions();
                let (key, name) = (api.key(), api.name());
                format!("{key}\t{name}\t{server}\t{visibility}\t{lowest}..{highest}")
            })
            .collect();
        let golden: Vec<&str> = GOLDEN.lines().skip(1).collect();
        assert_eq!(ours, golden);
    }

    #[test]
    fn a_number_gives_its_api_and_an_unknown_one_none() {
        for api in ApiKey::ALL {
            assert_eq!(ApiKey::from_key(api.key()), Some(*api));
        }
        assert_eq!(ApiKey::from_key(999), None);
        assert_eq!(ApiKey::from_key(1067), None);
    }
}
