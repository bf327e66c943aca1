//! SASL/PLAIN on a connection.
//!
//! The `challenge` of the answer is left out: fluss-rs 1.0.0 sends one more request whenever it is
//! there, and both reference clients are content without.

use weir_protocol::proto::{AuthenticateRequest, AuthenticateResponse};
use weir_protocol::sasl;

use crate::config::SaslConfig;
use crate::error::Error;

/// Whether a connection may ask for more than versions and login.
#[derive(Debug)]
pub(crate) enum Login<'a> {
    /// No login is asked for.
    Open,
    /// Nobody has logged in yet.
    Required(&'a SaslConfig),
    /// Somebody has.
    Done,
}

impl<'a> Login<'a> {
    pub(crate) fn new(sasl: Option<&'a SaslConfig>) -> Self {
        sasl.map_or(Self::Open, Self::Required)
    }

    /// Whether other requests are refused for now.
    pub(crate) fn is_pending(&self) -> bool {
        matches!(self, Self::Required(_))
    }

    /// Handles one login request.
    pub(crate) fn attempt(
        &mut self,
        request: &AuthenticateRequest,
    ) -> Result<AuthenticateResponse, Error> {
        let answer = AuthenticateResponse { challenge: None };
        let sasl = match self {
            Self::Open if request.protocol.eq_ignore_ascii_case("PLAINTEXT") => return Ok(answer),
            Self::Open => {
                return Err(Error::UnknownMechanism {
                    mechanism: request.protocol.clone(),
                });
            }
            Self::Done => return Ok(answer),
            Self::Required(sasl) => *sasl,
        };
        if !request.protocol.eq_ignore_ascii_case(sasl::PLAIN) {
            return Err(Error::UnknownMechanism {
                mechanism: request.protocol.clone(),
            });
        }
        let given = sasl::parse_plain_token(&request.token).map_err(Error::LoginToken)?;
        let known = sasl.users.get(&given.user).map_or("", String::as_str);
        let same = equal_in_constant_time(known.as_bytes(), given.password.as_bytes());
        if known.is_empty() || !same {
            return Err(Error::BadCredentials { user: given.user });
        }
        *self = Self::Done;
        Ok(answer)
    }
}

/// Compares without telling by its duration where the difference is.
fn equal_in_constant_time(left: &[u8], right: &[u8]) -> bool {
    let mut difference = left.len() ^ right.len();
    for index in 0..right.len() {
        let l = left.get(index % left.len().max(1)).copied().unwrap_or(0);
        let r = right.get(index).copied().unwrap_or(0);
        difference |= usize::from(l ^ r);
    }
    difference == 0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn sasl() -> SaslConfig {
        let users = BTreeMap::from([("alice".to_owned(), "secret".to_owned())]);
        SaslConfig {
            users,
            login_timeout_ms: None,
        }
    }

    fn request(protocol: &str, user: &str, password: &str) -> AuthenticateRequest {
        let token = sasl::encode_plain_token(user, password);
        AuthenticateRequest {
            protocol: protocol.to_owned(),
            token,
        }
    }

    #[test]
    fn the_right_password_opens_the_connection_and_no_challenge_is_sent() {
        let config = sasl();
        let mut login = Login::new(Some(&config));
        assert!(login.is_pending());
        for (user, password) in [("alice", "wrong"), ("alice", "secre"), ("bob", "secret")] {
            assert!(login.attempt(&request("PLAIN", user, password)).is_err());
            assert!(login.is_pending());
        }
        let answer = login.attempt(&request("plain", "alice", "secret")).unwrap();
        assert_eq!(answer.challenge, None);
        assert!(!login.is_pending());
    }

    #[test]
    fn fc_087_a_password_of_special_characters_and_a_user_with_a_dot_log_in() {
        let password = r#"pa$$w"or\d!@#%&,:;"#;
        let file = toml::to_string(&BTreeMap::from([(
            "users",
            BTreeMap::from([("team.writer", password)]),
        )]));
        let config: SaslConfig = toml::from_str(&file.unwrap()).unwrap();
        let mut login = Login::new(Some(&config));
        for wrong in ["pa$$w", "pa$$w\"or\\d!@#%&,:", &password.replace('$', "")] {
            let refused = login.attempt(&request("PLAIN", "team.writer", wrong));
            let refused = format!("{:?}", refused.unwrap_err());
            assert!(!refused.contains("or\\d"), "{refused}");
        }
        assert!(
            login
                .attempt(&request("PLAIN", "team.writer", password))
                .is_ok()
        );
        assert!(!login.is_pending());
    }

    #[test]
    fn an_open_listener_accepts_only_the_plaintext_protocol() {
        let mut login = Login::new(None);
        let empty = |protocol: &str| AuthenticateRequest {
            protocol: protocol.to_owned(),
            token: Default::default(),
        };
        assert!(login.attempt(&empty("plaintext")).is_ok());
        assert!(login.attempt(&empty("PLAIN")).is_err());
    }

    #[test]
    fn the_comparison_tells_equal_from_different() {
        for (left, right) in [("", ""), ("a", "a"), ("ab", "ab")] {
            assert!(equal_in_constant_time(left.as_bytes(), right.as_bytes()));
        }
        for (left, right) in [("", "a"), ("a", ""), ("a", "aa"), ("ab", "ac")] {
            assert!(!equal_in_constant_time(left.as_bytes(), right.as_bytes()));
        }
    }
}
