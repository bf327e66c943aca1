use super::mock::{Call, MockServer, Reply, at_once, node};
use super::*;
use crate::api_key::ApiKey;
use crate::error_code::ErrorCode;
use crate::ids::TablePath;
use crate::proto;
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A mock that is coordinator and tablet server 0 at once.
async fn cluster(answer: impl Fn(Call) -> Reply + Send + Sync + 'static) -> (MockServer, Client) {
    let port = Arc::new(OnceLock::new());
    let own = Arc::clone(&port);
    let server = MockServer::start(at_once(move |call| match call.api {
        ApiKey::GetMetadata => {
            let node = node(0, *own.wait());
            call.ok(&proto::MetadataResponse {
                coordinator_server: Some(node.clone()),
                tablet_servers: vec![node],
                ..Default::default()
            })
        }
        _ => answer(call),
    }))
    .await;
    port.set(server.port).unwrap();
    let mut config = ClientConfig::new([server.address()]);
    config.retry_timeout = Duration::from_secs(20);
    config.first_backoff = Duration::from_millis(5);
    (server, Client::connect(config).await.unwrap())
}

fn list_databases() -> proto::ListDatabasesRequest {
    proto::ListDatabasesRequest::default()
}

#[tokio::test]
async fn connecting_without_a_server_says_who_was_dialled() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut config = ClientConfig::new([unused.to_string()]);
    config.connect_timeout = Duration::from_secs(5);
    let error = Client::connect(config).await.unwrap_err();
    assert!(matches!(&error, Error::Connect { address, .. } if **address == *unused.to_string()));
    let nobody = Client::connect(ClientConfig::new(Vec::<String>::new()))
        .await
        .unwrap_err();
    assert!(matches!(nobody, Error::NoServer { .. }));
}

#[tokio::test]
async fn a_bootstrap_address_that_is_down_is_passed_over() {
    let (server, _) = cluster(|_| Reply::Silence).await;
    let unused = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let config = ClientConfig::new([unused.to_string(), server.address()]);
    Client::connect(config).await.unwrap();
}

#[tokio::test]
async fn callers_share_one_connection_per_role_and_server() {
    let (server, client) = cluster(|call| call.ok(&proto::ListDatabasesResponse::default())).await;
    let calls = (0..20).map(|_| client.coordinator(list_databases()));
    for answer in futures::future::join_all(calls).await {
        answer.unwrap();
    }
    // One to the bootstrap address, one to the coordinator.
    assert_eq!(server.count(ApiKey::ApiVersions), 2);
}

#[tokio::test]
async fn a_read_is_repeated_on_a_new_connection_after_a_loss() {
    let calls = AtomicUsize::new(0);
    let (server, client) = cluster(move |call| match calls.fetch_add(1, Ordering::Relaxed) {
        0 => Reply::Close,
        1 => call.fail(ErrorCode::RequestTimeOut),
        _ => call.ok(&proto::ListDatabasesResponse {
            database_name: vec!["d".into()],
            ..Default::default()
        }),
    })
    .await;
    assert_eq!(client.list_databases().await.unwrap(), ["d"]);
    assert_eq!(server.count(ApiKey::ListDatabases), 3);
}

#[tokio::test]
async fn a_write_is_sent_once_and_its_unknown_outcome_is_told() {
    let (server, client) = cluster(|_| Reply::Close).await;
    let path = TablePath::new("d", "t");
    let error = client.drop_table(&path, false).await.unwrap_err();
    assert!(error.outcome_is_unknown(), "{error:?}");
    assert_eq!(server.count(ApiKey::DropTable), 1);
}

#[tokio::test]
async fn no_lake_snapshot_is_a_value_and_other_errors_stay_errors() {
    let code = Arc::new(Mutex::new(ErrorCode::LakeSnapshotNotExist));
    let answer = Arc::clone(&code);
    let (_server, client) = cluster(move |call| call.fail(*answer.lock())).await;
    let path = TablePath::new("d", "t");
    assert_eq!(client.lake_snapshot(&path).await.unwrap(), None);
    *code.lock() = ErrorCode::TableNotExist;
    let error = client.lake_snapshot(&path).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::TableNotExist));
}

#[tokio::test]
async fn closing_ends_all_connections() {
    let (_server, client) = cluster(|_| Reply::Silence).await;
    client.close().await;
    let error = client.coordinator(list_databases()).await.unwrap_err();
    assert!(matches!(error, Error::ConnectionLost { .. }), "{error:?}");
}

#[test]
fn pauses_double_up_to_five_seconds_with_a_fifth_of_jitter() {
    let mut backoff = Backoff::new(Duration::from_millis(100));
    for expected in [100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0, 5000.0, 5000.0] {
        let pause = backoff.next().as_secs_f64() * 1000.0;
        assert!(
            (expected * 0.79..expected * 1.21).contains(&pause),
            "{pause} for {expected}"
        );
    }
}
