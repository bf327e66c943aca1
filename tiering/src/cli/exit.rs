//! How a command ends.

use std::fmt;
use std::process::ExitCode;

pub use crate::error::sentence;

/// Why a command did not do what it was asked: one sentence for the user, and an exit code.
#[derive(Debug)]
pub struct Failure {
    message: String,
    kind: Kind,
}

/// Which exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Failed,
    Usage,
    TryAgain,
}

/// What a command returns.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// The command failed; the same again would fail again. Exit code 1.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            kind: Kind::Failed,
        }
    }

    /// As [`Failure::failed`], with the error's causes.
    pub fn error(error: impl std::error::Error) -> Self {
        Self::failed(sentence(&error))
    }

    /// The command line asks for something that can't be. Exit code 2.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            kind: Kind::Usage,
        }
    }

    /// The same command may work later. Exit code 75.
    pub fn try_again(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            kind: Kind::TryAgain,
        }
    }

    /// The same failure in other words.
    #[must_use]
    pub fn reworded(self, words: impl FnOnce(String) -> String) -> Self {
        Self {
            message: words(self.message),
            kind: self.kind,
        }
    }

    /// The exit code.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(match self.kind {
            Kind::Failed => 1,
            Kind::Usage => 2,
            Kind::TryAgain => 75,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
