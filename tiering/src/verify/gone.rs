//! Offsets that can't be compared any more.

use std::fmt;

use serde::Serialize;

use super::LakeBucket;

/// Offsets of one bucket that are in the lake and no longer in the log, by retention or a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gone {
    /// The bucket, by its number in the log.
    pub bucket: LakeBucket,
    /// How many offsets.
    pub offsets: i64,
    /// Offsets that the log holds, but whose rows can't be told from those that are gone.
    pub beside: i64,
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (offsets, bucket) = (self.offsets, &self.bucket);
        if offsets == 0 {
            return write!(
                f,
                "{} offsets of {bucket} stand in the same files as offsets that are no longer in the \
                 log; not comparable",
                self.beside
            );
        }
        write!(
            f,
            "{offsets} offsets of {bucket} are in the lake but no longer in the log (retention or \
             repair); not comparable"
        )?;
        if self.beside > 0 {
            write!(f, ", nor are {} in the same files", self.beside)?;
        }
        Ok(())
    }
}
