//! What a change does to the row of its key.

use crate::error::{Error, Result};

/// The kind of a change (paimon: `RowKind`); files keep it in the column `_VALUE_KIND`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowKind {
    /// `+I`, number 0: the row comes to be.
    Insert,
    /// `-U`, number 1: what the row was before the `+U` that follows.
    UpdateBefore,
    /// `+U`, number 2: what the row is from here on.
    UpdateAfter,
    /// `-D`, number 3: the row goes.
    Delete,
}

impl RowKind {
    /// The number in files.
    pub fn code(self) -> i8 {
        match self {
            Self::Insert => 0,
            Self::UpdateBefore => 1,
            Self::UpdateAfter => 2,
            Self::Delete => 3,
        }
    }

    /// Whether it takes a row back: `-U` and `-D`.
    pub fn is_retraction(self) -> bool {
        matches!(self, Self::UpdateBefore | Self::Delete)
    }
}

impl TryFrom<i8> for RowKind {
    type Error = Error;

    /// The kind of a number in files.
    ///
    /// # Errors
    /// [`Error::Malformed`] if no kind has that number.
    fn try_from(code: i8) -> Result<Self> {
        match code {
            0 => Ok(Self::Insert),
            1 => Ok(Self::UpdateBefore),
            2 => Ok(Self::UpdateAfter),
            3 => Ok(Self::Delete),
            _ => {
                let reason = format!("a row is of no known kind: {code}");
                Err(Error::malformed("data file", reason))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_number_and_no_other_number_is_a_kind() {
        for code in i8::MIN..=i8::MAX {
            match RowKind::try_from(code) {
                Ok(kind) => assert_eq!(kind.code(), code),
                Err(error) => {
                    assert!(!(0..=3).contains(&code));
                    assert!(matches!(error, Error::Malformed { .. }));
                }
            }
        }
    }
}
