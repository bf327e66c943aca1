//! Which APIs a listener serves, and `API_VERSIONS`.

use weir_protocol::api_key::{ApiKey, ServedBy, Visibility};
use weir_protocol::proto::{ApiVersionsRequest, ApiVersionsResponse, PbApiVersion};

use super::{Answer, Call, Outcome, decode};

/// The two roles, as `API_VERSIONS` numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoleKind {
    Coordinator = 1,
    Tablet = 2,
}

/// The versions of an API that a client listener of this role serves, both inclusive.
///
/// The highest version of release 1.0.0, except where its meaning is not implemented here: writes
/// to historical partitions (`PRODUCE_LOG` 1, `PUT_KV` 3), tagged values in key snapshots
/// (`GET_KV_SNAPSHOT_METADATA` 1). Calls between servers are made inside the process and refused
/// here; those of lake workers are served.
pub(super) fn served(api: ApiKey, role: RoleKind) -> Option<(i16, i16)> {
    let here = match api.served_by() {
        ServedBy::Both => true,
        ServedBy::Coordinator => role == RoleKind::Coordinator,
        ServedBy::Tablet => role == RoleKind::Tablet,
    };
    let for_clients = match api {
        ApiKey::CommitLakeTableSnapshot
        | ApiKey::LakeTieringHeartbeat
        | ApiKey::PrepareLakeTableSnapshot => true,
        _ => api.visibility() == Visibility::Public,
    };
    if !here || !for_clients {
        return None;
    }
    let (lowest, highest) = api.versions();
    let highest = match api {
        ApiKey::ProduceLog | ApiKey::GetKvSnapshotMetadata => 0,
        ApiKey::PutKv => 2,
        _ => highest,
    };
    Some((lowest, highest))
}

pub(super) fn run(role: RoleKind, call: Call) -> Outcome {
    let _client: ApiVersionsRequest = decode(call.api, call.body)?;
    let of = |api: &ApiKey| {
        let (min_version, max_version) = served(*api, role)?;
        let (min_version, max_version) = (i32::from(min_version), i32::from(max_version));
        Some(PbApiVersion {
            api_key: i32::from(api.key()),
            min_version,
            max_version,
        })
    };
    let api_versions = ApiKey::ALL.iter().filter_map(of).collect();
    Ok(Answer::new(ApiVersionsResponse {
        api_versions,
        server_type: Some(role as i32),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_between_servers_are_not_served_to_clients() {
        for key in [1013, 1018, 1019, 1020, 1022, 1027, 1028, 1029, 1031, 1043] {
            let api = ApiKey::from_key(key).unwrap();
            for role in [RoleKind::Coordinator, RoleKind::Tablet] {
                assert_eq!(served(api, role), None, "{}", api.name());
            }
        }
    }

    #[test]
    fn lake_workers_find_their_calls_on_the_coordinator_alone() {
        for key in [1030, 1042, 1052] {
            let api = ApiKey::from_key(key).unwrap();
            assert_eq!(served(api, RoleKind::Coordinator), Some((0, 0)));
            assert_eq!(served(api, RoleKind::Tablet), None);
        }
    }

    #[test]
    fn versions_whose_meaning_is_missing_are_not_offered() {
        assert_eq!(served(ApiKey::ProduceLog, RoleKind::Tablet), Some((0, 0)));
        assert_eq!(served(ApiKey::PutKv, RoleKind::Tablet), Some((0, 2)));
        assert_eq!(
            served(ApiKey::AlterTable, RoleKind::Coordinator),
            Some((0, 1))
        );
        assert_eq!(served(ApiKey::Lookup, RoleKind::Tablet), Some((0, 1)));
        assert_eq!(served(ApiKey::Lookup, RoleKind::Coordinator), None);
    }
}
