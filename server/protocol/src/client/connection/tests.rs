use super::*;
use crate::client::mock::{Call, Handler, Reply, all_versions, at_once, serve};
use proptest::prelude::*;
use tokio::task::JoinSet;

const SOON: Duration = Duration::from_millis(50);
const LATE: Duration = Duration::from_secs(20);

struct Bench {
    config: ConnectionConfig,
    tasks: TaskTracker,
    stop: CancellationToken,
    servers: JoinSet<()>,
}

impl Bench {
    fn new() -> Self {
        let config = ConnectionConfig {
            address: "mock:1".into(),
            role: None,
            credentials: None,
            max_frame_bytes: 1 << 20,
            max_in_flight: 64,
            handshake_timeout: LATE,
        };
        let tasks = TaskTracker::new();
        Self {
            config,
            tasks,
            stop: CancellationToken::new(),
            servers: JoinSet::new(),
        }
    }

    async fn open(&mut self, handler: Handler) -> Result<Connection, Error> {
        let (ours, theirs) = tokio::io::duplex(4096);
        self.servers.spawn(serve(theirs, handler));
        Connection::open(ours, self.config.clone(), &self.tasks, &self.stop).await
    }
}

fn after_hello(answer: impl Fn(Call) -> Reply + Send + Sync + 'static) -> Handler {
    at_once(move |call| match call.api {
        ApiKey::ApiVersions => call.ok(&all_versions(None)),
        _ => answer(call),
    })
}

fn exists(name: &str) -> proto::DatabaseExistsRequest {
    proto::DatabaseExistsRequest {
        database_name: name.to_owned(),
    }
}

#[tokio::test]
async fn a_server_without_type_is_taken_for_any_role() {
    let mut bench = Bench::new();
    bench.config.role = Some(ServerRole::Coordinator);
    bench.open(after_hello(|_| Reply::Silence)).await.unwrap();
}

#[tokio::test]
async fn a_server_of_another_role_is_refused_only_if_a_role_is_expected() {
    let tablet = || at_once(|call| call.ok(&all_versions(Some(2))));
    let mut bench = Bench::new();
    bench.open(tablet()).await.unwrap();
    bench.config.role = Some(ServerRole::Coordinator);
    let error = bench.open(tablet()).await.unwrap_err();
    let expected = ServerRole::Coordinator;
    assert!(matches!(error, Error::WrongRole { expected: e, found: 2, .. } if e == expected));
}

#[tokio::test]
async fn the_lower_of_both_highest_versions_is_used() {
    let mut bench = Bench::new();
    let handler = at_once(|call| match call.api {
        ApiKey::ApiVersions => {
            let mut answer = all_versions(None);
            for offered in &mut answer.api_versions {
                match offered.api_key {
                    1014 => (offered.min_version, offered.max_version) = (0, 0),
                    1016 => (offered.min_version, offered.max_version) = (2, 9),
                    1017 => (offered.min_version, offered.max_version) = (5, 9),
                    _ => {}
                }
            }
            answer
                .api_versions
                .retain(|offered| offered.api_key != 1033);
            call.ok(&answer)
        }
        _ => Reply::Silence,
    });
    let connection = bench.open(handler).await.unwrap();
    assert_eq!(connection.version(ApiKey::ProduceLog, 0).unwrap(), 0);
    assert_eq!(connection.version(ApiKey::PutKv, 0).unwrap(), 3);
    let too_new = connection.version(ApiKey::ProduceLog, 1).unwrap_err();
    assert!(matches!(
        too_new,
        Error::UnsupportedVersion { needed: 1, .. }
    ));
    for api in [ApiKey::Lookup, ApiKey::LimitScan] {
        assert!(matches!(
            connection.version(api, 0),
            Err(Error::UnsupportedVersion { .. })
        ));
    }
}

/// Logs in with a server that gives `challenge`; answers how many AUTHENTICATE it saw.
async fn login(challenge: Option<&'static [u8]>) -> (Result<Connection, Error>, usize) {
    let mut bench = Bench::new();
    let (user, password) = ("alice".to_owned(), "secret".to_owned());
    bench.config.credentials = Some(PlainCredentials { user, password });
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let handler = after_hello(move |call| {
        let request = call.read::<proto::AuthenticateRequest>();
        log.lock()
            .push(sasl::parse_plain_token(&request.token).unwrap().user);
        let challenge = challenge.map(Bytes::from_static);
        call.ok(&proto::AuthenticateResponse { challenge })
    });
    let connection = bench.open(handler).await;
    let count = seen.lock().len();
    (connection, count)
}

#[tokio::test]
async fn a_login_is_done_without_challenge_and_with_an_empty_one() {
    for challenge in [None, Some(&b""[..])] {
        let (connection, count) = login(challenge).await;
        connection.unwrap();
        assert_eq!(count, 1);
    }
    assert!(matches!(
        login(Some(b"more")).await.0,
        Err(Error::Challenge { .. })
    ));
}

#[tokio::test]
async fn answers_find_their_requests_in_any_order() {
    let mut bench = Bench::new();
    // The first request is answered only after the second one's answer is out.
    let (release, first_may_go) = tokio::sync::watch::channel(false);
    let handler: Handler = Arc::new(move |call| {
        let (release, mut first_may_go) = (release.clone(), first_may_go.clone());
        Box::pin(async move {
            match call.api {
                ApiKey::ApiVersions => call.ok(&all_versions(None)),
                ApiKey::DatabaseExists => {
                    first_may_go.wait_for(|go| *go).await.unwrap();
                    call.ok(&proto::DatabaseExistsResponse { exists: true })
                }
                _ => {
                    release.send_replace(true);
                    call.ok(&proto::ListTablesResponse {
                        table_name: vec!["t".into()],
                    })
                }
            }
        })
    });
    let connection = bench.open(handler).await.unwrap();
    let first = connection.send(&exists("d"), LATE).await.unwrap();
    let list = proto::ListTablesRequest {
        database_name: "d".into(),
    };
    let second = connection.call(&list, LATE).await.unwrap();
    assert_eq!(second.table_name, ["t"]);
    assert!(first.await.unwrap().exists);
}

#[tokio::test]
async fn an_error_answer_fails_its_request_and_the_connection_lives_on() {
    let mut bench = Bench::new();
    let handler = after_hello(|call| match call.read::<proto::DatabaseExistsRequest>() {
        request if request.database_name == "bad" => call.fail(ErrorCode::InvalidDatabase),
        _ => call.ok(&proto::DatabaseExistsResponse { exists: true }),
    });
    let connection = bench.open(handler).await.unwrap();
    let error = connection.call(&exists("bad"), LATE).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::InvalidDatabase));
    assert!(!error.is_retriable() && !error.outcome_is_unknown());
    assert!(connection.call(&exists("good"), LATE).await.unwrap().exists);
}

#[tokio::test]
async fn a_closed_connection_fails_all_in_flight_with_unknown_outcome() {
    let mut bench = Bench::new();
    let handler = after_hello(|call| match call.api {
        ApiKey::DatabaseExists => Reply::Silence,
        _ => Reply::Close,
    });
    let connection = bench.open(handler).await.unwrap();
    let first = connection.send(&exists("a"), LATE).await.unwrap();
    let second = connection.send(&exists("b"), LATE).await.unwrap();
    let close = connection
        .send(&proto::ListDatabasesRequest::default(), LATE)
        .await
        .unwrap();
    for error in [
        first.await.unwrap_err(),
        second.await.unwrap_err(),
        close.await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::ConnectionLost { .. }), "{error:?}");
        assert!(error.is_retriable() && error.outcome_is_unknown());
    }
    assert!(connection.is_lost());
    let later = connection.call(&exists("c"), LATE).await.unwrap_err();
    assert!(matches!(later, Error::ConnectionLost { .. }));
    drop(connection);
    bench.tasks.close();
    bench.tasks.wait().await;
}

#[tokio::test]
async fn a_failure_of_the_server_names_its_code_to_all_in_flight() {
    let mut bench = Bench::new();
    let handler = after_hello(|_| {
        Reply::Frame(frame::encode_server_failure(
            ErrorCode::Storage,
            "disk full",
        ))
    });
    let connection = bench.open(handler).await.unwrap();
    let error = connection.call(&exists("a"), LATE).await.unwrap_err();
    assert!(matches!(&error, Error::ServerFailure { message, .. } if message == "disk full"));
    assert!(error.outcome_is_unknown());
    assert!(connection.is_lost());
}

#[tokio::test]
async fn a_silent_peer_times_out_and_loses_the_connection() {
    let mut bench = Bench::new();
    let connection = bench.open(after_hello(|_| Reply::Silence)).await.unwrap();
    let error = connection.call(&exists("a"), SOON).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { after, .. } if after == SOON));
    assert!(error.outcome_is_unknown());
    assert!(
        connection.is_lost(),
        "no byte came while the request was out"
    );
}

#[tokio::test]
async fn a_slow_call_on_a_talking_connection_times_out_alone() {
    let mut bench = Bench::new();
    let handler = after_hello(|call| match call.api {
        ApiKey::DatabaseExists => Reply::Silence,
        _ => call.ok(&proto::ListDatabasesResponse::default()),
    });
    let connection = bench.open(handler).await.unwrap();
    let slow = connection.send(&exists("a"), SOON).await.unwrap();
    connection
        .call(&proto::ListDatabasesRequest::default(), LATE)
        .await
        .unwrap();
    assert!(matches!(slow.await.unwrap_err(), Error::Timeout { .. }));
    assert!(!connection.is_lost());
}

#[tokio::test]
async fn a_request_above_the_bound_waits_until_one_is_answered_or_given_up() {
    let mut bench = Bench::new();
    bench.config.max_in_flight = 1;
    let connection = bench.open(after_hello(|_| Reply::Silence)).await.unwrap();
    let first = connection.send(&exists("a"), LATE).await.unwrap();
    let error = connection.send(&exists("b"), SOON).await.unwrap_err();
    assert!(matches!(error, Error::Busy { .. }));
    assert!(!error.outcome_is_unknown(), "nothing was sent");
    drop(first);
    connection.send(&exists("c"), LATE).await.unwrap();
}

#[tokio::test]
async fn a_request_that_the_queue_has_no_room_for_is_never_taken_for_sent() {
    let mut bench = Bench::new();
    bench.config.max_in_flight = 1;
    let (ours, mut theirs) = tokio::io::duplex(256);
    // Says hello, and then reads nothing more.
    bench.servers.spawn(async move {
        let mut requests = FramedRead::new(&mut theirs, FrameCodec::default());
        let hello = requests.next().await.unwrap().unwrap();
        let id = frame::decode_request(hello).unwrap().request_id;
        let hello = frame::encode_success(id, &all_versions(None));
        theirs.write_all(&hello).await.unwrap();
        std::future::pending::<()>().await;
    });
    let connection = Connection::open(ours, bench.config.clone(), &bench.tasks, &bench.stop);
    let connection = connection.await.unwrap();
    let large = exists(&"a".repeat(1000));
    // One is being written, one is queued; both are given up, and their slots are free.
    for _ in 0..2 {
        drop(connection.send(&large, LATE).await.unwrap());
    }
    let error = connection.send(&large, SOON).await.unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    assert!(connection.is_lost(), "no byte came all the while");
}

#[tokio::test]
async fn an_answer_above_the_limit_loses_the_connection() {
    let mut bench = Bench::new();
    bench.config.max_frame_bytes = 64 * 1024;
    let handler = after_hello(|call| {
        call.ok(&proto::ListTablesResponse {
            table_name: vec!["t".repeat(70 * 1024)],
        })
    });
    let connection = bench.open(handler).await.unwrap();
    let list = proto::ListTablesRequest {
        database_name: "d".into(),
    };
    let error = connection.call(&list, LATE).await.unwrap_err();
    let Error::ConnectionLost {
        source: Some(source),
        ..
    } = error
    else {
        panic!("{error:?}")
    };
    assert!(matches!(*source, frame::Error::TooLarge { .. }));
}

#[tokio::test]
async fn stopping_ends_all_tasks() {
    let mut bench = Bench::new();
    let connection = bench.open(after_hello(|_| Reply::Silence)).await.unwrap();
    let pending = connection.send(&exists("a"), LATE).await.unwrap();
    bench.stop.cancel();
    assert!(matches!(
        pending.await.unwrap_err(),
        Error::ConnectionLost { .. }
    ));
    bench.tasks.close();
    bench.tasks.wait().await;
}

proptest! {
    #[test]
    fn negotiated_versions_lie_in_both_ranges(min in -3_i32..6, max in -3_i32..6) {
        let offered = proto::PbApiVersion { api_key: 1016, min_version: min, max_version: max };
        let answer = proto::ApiVersionsResponse { api_versions: vec![offered], server_type: None };
        let (our_min, our_max) = ApiKey::PutKv.versions();
        let both: Vec<i32> =
            (min..=max).filter(|v| (i32::from(our_min)..=i32::from(our_max)).contains(v)).collect();
        let found = negotiate(&answer).get(&ApiKey::PutKv).map(|v| i32::from(*v));
        prop_assert_eq!(found, both.last().copied());
    }
}
