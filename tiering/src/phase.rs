//! Where a round stands.

/// Where a round stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The table was handed out; nothing is done.
    Requested,
    /// Offsets are read and splits planned.
    Splitting,
    /// Splits are read and written.
    Writing,
    /// All results are in.
    Committing,
    /// Committed, nothing to do, or failed; the coordinator is to be told.
    Reporting,
}
