//! What a target is, and all of them.

use crate::{documents, lake, logs, records, sources, wire};

/// One decoder under test.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, of `a-z_`.
    pub name: &'static str,
    /// Takes any bytes. A panic is a finding, as are time and memory out of proportion.
    pub run: fn(&[u8]),
    /// Inputs to begin with: right ones, and some that once went wrong.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets, in the order of their names.
pub fn targets() -> Vec<Target> {
    let mut all = wire::targets();
    all.extend(records::targets());
    all.extend(documents::targets());
    all.extend(lake::targets());
    all.extend(logs::targets());
    all.extend(sources::targets());
    all.sort_by_key(|target| target.name);
    all
}
