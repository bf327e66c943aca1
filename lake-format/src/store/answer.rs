//! What a store answered, in its own words, and the setting to look at.

use std::error::Error as StdError;
use std::fmt;

use object_store::Error;
use object_store::client::{HttpError, HttpErrorKind};

/// A refusal or failure of an S3 store as people read it. The whole answer, with its XML, is only
/// in the debug form.
struct Answer {
    /// The store's own code, such as `AccessDenied`, or what kept it from answering.
    code: String,
    message: String,
    advice: &'static str,
    source: Box<dyn StdError + Send + Sync>,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.code)?;
        if !self.message.is_empty() {
            write!(f, " ({})", self.message)?;
        }
        if !self.advice.is_empty() {
            write!(f, "; look at {}", self.advice)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}: {:?}", self.source)
    }
}

impl StdError for Answer {}

/// The same error with the store's code, its message and the setting to look at instead of its XML.
/// A bucket that does not exist is not an object that does not exist.
pub(super) fn explain(error: Error) -> Error {
    let Some((code, message)) = answered(&error).or_else(|| unanswered(&error)) else {
        return error;
    };
    let advice = advice(&code);
    let answer = |source| -> Box<dyn StdError + Send + Sync> {
        Box::new(Answer {
            code: code.clone(),
            message: message.clone(),
            advice,
            source,
        })
    };
    match error {
        Error::NotFound { source, .. } if code == "NoSuchBucket" => Error::Generic {
            store: "S3",
            source: answer(source),
        },
        // What is not there, or there already, is no failure.
        absent @ (Error::NotFound { .. } | Error::AlreadyExists { .. }) => absent,
        Error::Precondition { path, source } => Error::Precondition {
            path,
            source: answer(source),
        },
        Error::PermissionDenied { path, source } => Error::PermissionDenied {
            path,
            source: answer(source),
        },
        Error::Unauthenticated { path, source } => Error::Unauthenticated {
            path,
            source: answer(source),
        },
        // The client tells a refusal apart for objects only, not for listings.
        Error::Generic { source, .. } if code == "AccessDenied" => Error::PermissionDenied {
            path: "a listing".to_owned(),
            source: answer(source),
        },
        Error::Generic { store, source } => Error::Generic {
            store,
            source: answer(source),
        },
        other => other,
    }
}

/// Code and message of the XML that a store sends with a refusal.
fn answered(error: &Error) -> Option<(String, String)> {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    let mut last = None;
    while let Some(error) = cause {
        let text = error.to_string();
        if let Some(code) = element(&text, "Code") {
            let message = element(&text, "Message").unwrap_or_default();
            last = Some((code.to_owned(), message.to_owned()));
        } else if text.contains("Received redirect without LOCATION") {
            // The only sign that the client gives of a bucket in another region.
            last = Some(("PermanentRedirect".to_owned(), String::new()));
        }
        cause = error.source();
    }
    last
}

fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, behind) = xml.split_once(&format!("<{name}>"))?;
    let (inside, _) = behind.split_once(&format!("</{name}>"))?;
    Some(inside.trim())
}

/// Why there was no answer at all.
fn unanswered(error: &Error) -> Option<(String, String)> {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    let mut found = None;
    let mut innermost = String::new();
    while let Some(error) = cause {
        if let Some(http) = error.downcast_ref::<HttpError>() {
            found = match http.kind() {
                HttpErrorKind::Connect => Some("no connection to the store"),
                HttpErrorKind::Timeout => Some("the store did not answer in time"),
                _ => None,
            };
        }
        innermost = error.to_string();
        cause = error.source();
    }
    found.map(|found| (found.to_owned(), innermost))
}

/// What to look at, by the store's code.
fn advice(code: &str) -> &'static str {
    match code {
        "NoSuchBucket" | "InvalidBucketName" => "the bucket in the warehouse's address",
        "AccessDenied" | "AllAccessDisabled" | "AccountProblem" => {
            "the permissions of these credentials (s3:GetObject, s3:PutObject, s3:DeleteObject, \
             s3:ListBucket)"
        }
        "InvalidAccessKeyId" => "AWS_ACCESS_KEY_ID or AWS_PROFILE",
        "SignatureDoesNotMatch" => "AWS_SECRET_ACCESS_KEY or AWS_PROFILE",
        "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" => {
            "AWS_SESSION_TOKEN: the credentials have expired; a profile is read again when its \
             file changes"
        }
        "PermanentRedirect"
        | "AuthorizationHeaderMalformed"
        | "IllegalLocationConstraintException"
        | "TemporaryRedirect" => "AWS_REGION, the region of the bucket",
        "RequestTimeTooSkewed" => "this machine's clock",
        "SlowDown" | "ServiceUnavailable" | "InternalError" | "RequestTimeout" => {
            "the store: it is overloaded, and is tried again"
        }
        "NotImplemented" => "the store: it must take conditional writes (If-None-Match)",
        "no connection to the store" | "the store did not answer in time" => {
            "AWS_ENDPOINT_URL and the network; AWS_ALLOW_HTTP=true for http://"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> Error {
        let text = format!("Server returned non-2xx status code: 403 Forbidden: {body}");
        Error::PermissionDenied {
            path: "t/snapshot/snapshot-1".to_owned(),
            source: text.into(),
        }
    }

    #[test]
    fn fc_082_the_stores_own_code_is_named_with_the_setting_to_look_at() {
        let body = "<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code><Message>Access \
                    Denied</Message><HostId>x</HostId></Error>";
        let explained = explain(refused(body));
        assert!(matches!(explained, Error::PermissionDenied { .. }));
        let text = explained.to_string();
        assert!(
            text.contains("AccessDenied (Access Denied); look at the permissions"),
            "{text}"
        );
        assert!(!text.contains('<'), "{text}");
        for (code, setting) in [
            ("SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
            ("AuthorizationHeaderMalformed", "AWS_REGION"),
            ("ExpiredToken", "AWS_SESSION_TOKEN"),
        ] {
            let text = explain(refused(&format!("<Code>{code}</Code>"))).to_string();
            assert!(text.contains(code) && text.contains(setting), "{text}");
        }
    }

    #[test]
    fn a_refused_listing_is_a_refusal() {
        let body = "403: <Error><Code>AccessDenied</Code></Error>";
        let listing = Error::Generic {
            store: "S3",
            source: body.into(),
        };
        assert!(matches!(explain(listing), Error::PermissionDenied { .. }));
    }

    #[test]
    fn a_missing_bucket_is_a_failure_and_a_missing_object_is_none() {
        let not_found = |code: &str| Error::NotFound {
            path: "x".to_owned(),
            source: format!("404: <Error><Code>{code}</Code></Error>").into(),
        };
        let bucket = explain(not_found("NoSuchBucket"));
        assert!(matches!(bucket, Error::Generic { .. }), "{bucket}");
        assert!(
            bucket
                .to_string()
                .contains("the bucket in the warehouse's address")
        );
        assert!(matches!(
            explain(not_found("NoSuchKey")),
            Error::NotFound { .. }
        ));
    }
}
