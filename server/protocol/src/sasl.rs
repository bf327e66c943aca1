//! The SASL/PLAIN token: `authzid NUL user NUL password`, UTF-8 (RFC 4616).

use bytes::Bytes;

/// The mechanism's name as `AuthenticateRequest.protocol` carries it; compare without case.
pub const PLAIN: &str = "PLAIN";

/// A user and a password, neither empty.
#[derive(Clone, PartialEq, Eq)]
pub struct PlainCredentials {
    /// The user.
    pub user: String,
    /// The password; never printed.
    pub password: String,
}

impl std::fmt::Debug for PlainCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlainCredentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Why bytes are no PLAIN token. No variant holds what the peer sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A part is not UTF-8.
    #[error("PLAIN token is not UTF-8")]
    NotUtf8,
    /// Not exactly three parts.
    #[error("PLAIN token has not exactly three parts")]
    Parts,
    /// The user is empty.
    #[error("PLAIN token names no user")]
    NoUser,
    /// The password is empty.
    #[error("PLAIN token holds no password")]
    NoPassword,
    /// An authorization id that is not the user.
    #[error("PLAIN token asks to act as another user")]
    OtherUser,
}

/// The token both reference clients send: an empty authorization id, then user and password.
pub fn encode_plain_token(user: &str, password: &str) -> Bytes {
    format!("\0{user}\0{password}").into()
}

/// Reads a token; a non-empty authorization id must equal the user.
///
/// # Errors
/// [`Error`], which never repeats the token.
pub fn parse_plain_token(token: &[u8]) -> Result<PlainCredentials, Error> {
    let text = std::str::from_utf8(token).map_err(|_| Error::NotUtf8)?;
    let mut parts = text.split('\0');
    let (Some(authzid), Some(user), Some(password), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(Error::Parts);
    };
    if user.is_empty() {
        return Err(Error::NoUser);
    }
    if password.is_empty() {
        return Err(Error::NoPassword);
    }
    if !authzid.is_empty() && authzid != user {
        return Err(Error::OtherUser);
    }
    Ok(PlainCredentials {
        user: user.to_owned(),
        password: password.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_token_starts_with_an_empty_authorization_id() {
        assert_eq!(
            &encode_plain_token("alice", "secret")[..],
            b"\0alice\0secret"
        );
    }

    #[test]
    fn bad_tokens_are_refused_with_their_reason() {
        let cases: [(&[u8], Error); 7] = [
            (b"\xff\0a\0b", Error::NotUtf8),
            (b"", Error::Parts),
            (b"\0a", Error::Parts),
            (b"\0a\0b\0c", Error::Parts),
            (b"\0\0b", Error::NoUser),
            (b"\0a\0", Error::NoPassword),
            (b"bob\0alice\0secret", Error::OtherUser),
        ];
        for (token, reason) in cases {
            assert_eq!(parse_plain_token(token), Err(reason), "{token:?}");
        }
    }

    #[test]
    fn an_authorization_id_equal_to_the_user_is_accepted() {
        assert_eq!(
            parse_plain_token(b"alice\0alice\0secret").unwrap().user,
            "alice"
        );
    }

    #[test]
    fn debug_output_hides_the_password() {
        let credentials = parse_plain_token(b"\0alice\0secret").unwrap();
        assert!(!format!("{credentials:?}").contains("secret"));
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_read_back(user in "[^\0]{1,20}", password in "[^\0]{1,20}") {
            let read = parse_plain_token(&encode_plain_token(&user, &password)).unwrap();
            prop_assert_eq!(read, PlainCredentials { user, password });
        }
    }
}
