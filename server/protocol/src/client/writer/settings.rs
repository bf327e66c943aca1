//! What the parts of a writer know of it.

use std::sync::Arc;

use super::LogWriterConfig;
use super::changes::ChangeForm;
use crate::client::Client;
use crate::ids::{SchemaId, TableId, TablePath};
use crate::record::arrow::Compression;

/// What never changes while a writer is open.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) client: Client,
    pub(super) path: TablePath,
    pub(super) table: TableId,
    pub(super) schema_id: SchemaId,
    pub(super) compression: Compression,
    pub(super) batch_bytes: usize,
    pub(super) buffer_bytes: usize,
    /// Of a table with a primary key: its batches are puts.
    pub(super) changes: Option<Arc<ChangeForm>>,
    pub(super) config: LogWriterConfig,
}
