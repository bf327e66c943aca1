//! Which messages belong to which API.

use crate::api_key::ApiKey;
use crate::proto;

/// A request body with its API and the type of its answer.
pub trait Request: prost::Message + Default + Clone + Send + Sync + 'static {
    /// The API.
    const API_KEY: ApiKey;
    /// The body of a successful answer.
    type Response: prost::Message + Default + Clone + Send + Sync + 'static;
}

macro_rules! requests {
    ($($key:ident: $request:ident => $response:ident;)*) => {
        $(impl Request for proto::$request {
            const API_KEY: ApiKey = ApiKey::$key;
            type Response = proto::$response;
        })*
    };
}

requests! {
    ApiVersions: ApiVersionsRequest => ApiVersionsResponse;
    CreateDatabase: CreateDatabaseRequest => CreateDatabaseResponse;
    DropDatabase: DropDatabaseRequest => DropDatabaseResponse;
    ListDatabases: ListDatabasesRequest => ListDatabasesResponse;
    DatabaseExists: DatabaseExistsRequest => DatabaseExistsResponse;
    CreateTable: CreateTableRequest => CreateTableResponse;
    DropTable: DropTableRequest => DropTableResponse;
    GetTableInfo: GetTableInfoRequest => GetTableInfoResponse;
    ListTables: ListTablesRequest => ListTablesResponse;
    ListPartitionInfos: ListPartitionInfosRequest => ListPartitionInfosResponse;
    TableExists: TableExistsRequest => TableExistsResponse;
    GetTableSchema: GetTableSchemaRequest => GetTableSchemaResponse;
    GetMetadata: MetadataRequest => MetadataResponse;
    UpdateMetadata: UpdateMetadataRequest => UpdateMetadataResponse;
    ProduceLog: ProduceLogRequest => ProduceLogResponse;
    FetchLog: FetchLogRequest => FetchLogResponse;
    PutKv: PutKvRequest => PutKvResponse;
    Lookup: LookupRequest => LookupResponse;
    NotifyLeaderAndIsr: NotifyLeaderAndIsrRequest => NotifyLeaderAndIsrResponse;
    StopReplica: StopReplicaRequest => StopReplicaResponse;
    AdjustIsr: AdjustIsrRequest => AdjustIsrResponse;
    ListOffsets: ListOffsetsRequest => ListOffsetsResponse;
    CommitKvSnapshot: CommitKvSnapshotRequest => CommitKvSnapshotResponse;
    GetLatestKvSnapshots: GetLatestKvSnapshotsRequest => GetLatestKvSnapshotsResponse;
    GetKvSnapshotMetadata: GetKvSnapshotMetadataRequest => GetKvSnapshotMetadataResponse;
    GetFilesystemSecurityToken: GetFileSystemSecurityTokenRequest => GetFileSystemSecurityTokenResponse;
    InitWriter: InitWriterRequest => InitWriterResponse;
    CommitRemoteLogManifest: CommitRemoteLogManifestRequest => CommitRemoteLogManifestResponse;
    NotifyRemoteLogOffsets: NotifyRemoteLogOffsetsRequest => NotifyRemoteLogOffsetsResponse;
    NotifyKvSnapshotOffset: NotifyKvSnapshotOffsetRequest => NotifyKvSnapshotOffsetResponse;
    CommitLakeTableSnapshot: CommitLakeTableSnapshotRequest => CommitLakeTableSnapshotResponse;
    NotifyLakeTableOffset: NotifyLakeTableOffsetRequest => NotifyLakeTableOffsetResponse;
    GetLakeSnapshot: GetLakeSnapshotRequest => GetLakeSnapshotResponse;
    LimitScan: LimitScanRequest => LimitScanResponse;
    PrefixLookup: PrefixLookupRequest => PrefixLookupResponse;
    GetDatabaseInfo: GetDatabaseInfoRequest => GetDatabaseInfoResponse;
    CreatePartition: CreatePartitionRequest => CreatePartitionResponse;
    DropPartition: DropPartitionRequest => DropPartitionResponse;
    Authenticate: AuthenticateRequest => AuthenticateResponse;
    CreateAcls: CreateAclsRequest => CreateAclsResponse;
    ListAcls: ListAclsRequest => ListAclsResponse;
    DropAcls: DropAclsRequest => DropAclsResponse;
    LakeTieringHeartbeat: LakeTieringHeartbeatRequest => LakeTieringHeartbeatResponse;
    ControlledShutdown: ControlledShutdownRequest => ControlledShutdownResponse;
    AlterTable: AlterTableRequest => AlterTableResponse;
    DescribeClusterConfigs: DescribeClusterConfigsRequest => DescribeClusterConfigsResponse;
    AlterClusterConfigs: AlterClusterConfigsRequest => AlterClusterConfigsResponse;
    AddServerTag: AddServerTagRequest => AddServerTagResponse;
    RemoveServerTag: RemoveServerTagRequest => RemoveServerTagResponse;
    Rebalance: RebalanceRequest => RebalanceResponse;
    ListRebalanceProgress: ListRebalanceProgressRequest => ListRebalanceProgressResponse;
    CancelRebalance: CancelRebalanceRequest => CancelRebalanceResponse;
    PrepareLakeTableSnapshot: PrepareLakeTableSnapshotRequest => PrepareLakeTableSnapshotResponse;
    RegisterProducerOffsets: RegisterProducerOffsetsRequest => RegisterProducerOffsetsResponse;
    GetProducerOffsets: GetProducerOffsetsRequest => GetProducerOffsetsResponse;
    DeleteProducerOffsets: DeleteProducerOffsetsRequest => DeleteProducerOffsetsResponse;
    AcquireKvSnapshotLease: AcquireKvSnapshotLeaseRequest => AcquireKvSnapshotLeaseResponse;
    ReleaseKvSnapshotLease: ReleaseKvSnapshotLeaseRequest => ReleaseKvSnapshotLeaseResponse;
    DropKvSnapshotLease: DropKvSnapshotLeaseRequest => DropKvSnapshotLeaseResponse;
    GetTableStats: GetTableStatsRequest => GetTableStatsResponse;
    AlterDatabase: AlterDatabaseRequest => AlterDatabaseResponse;
    ScanKv: ScanKvRequest => ScanKvResponse;
    GetClusterHealth: GetClusterHealthRequest => GetClusterHealthResponse;
    ListRemoteLogManifests: ListRemoteLogManifestsRequest => ListRemoteLogManifestsResponse;
    ListKvSnapshots: ListKvSnapshotsRequest => ListKvSnapshotsResponse;
    AddServerTagByRack: AddServerTagByRackRequest => AddServerTagByRackResponse;
    RemoveServerTagByRack: RemoveServerTagByRackRequest => RemoveServerTagByRackResponse;
}
