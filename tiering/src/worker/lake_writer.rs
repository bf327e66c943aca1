//! What writes a lane's files: rows in their order, or changes of keys.

use std::sync::Arc;

use arrow::array::RecordBatch;
use object_store::ObjectStore;
use object_store::path::Path;
use weir_lake_format::write::{
    CommitMessage, DataFileWriter, MergeTreeWriter, WriteTarget, WriterOptions,
};
use weir_lake_format::{Error, Result, RowKind};

/// Most bytes of changes that wait for their files; the round's budget asks for them earlier.
const KEYED_BUFFER_BYTES: usize = 64 << 20;

/// The open writer of one lake bucket.
#[derive(Debug)]
pub(super) enum LakeWriter {
    /// Of a table without primary key.
    Append(Box<DataFileWriter>),
    /// Of a table with one.
    Keyed(Box<MergeTreeWriter>),
}

impl LakeWriter {
    /// A writer for the table that `target` names. Does no IO.
    pub(super) fn open(
        target: WriteTarget,
        options: WriterOptions,
        store: Arc<dyn ObjectStore>,
        root: Path,
    ) -> Result<Self> {
        if target.schema.is_primary_key_table() {
            let writer = MergeTreeWriter::new(target, options, KEYED_BUFFER_BYTES, store, root)?;
            return Ok(Self::Keyed(Box::new(writer)));
        }
        let writer = DataFileWriter::new(target, options, store, root)?;
        Ok(Self::Append(Box::new(writer)))
    }

    /// Writes rows of the table's columns; `kinds` says of a table with keys what each does.
    pub(super) async fn write(
        &mut self,
        rows: RecordBatch,
        kinds: Option<&[RowKind]>,
    ) -> Result<()> {
        match (self, kinds) {
            (Self::Append(writer), None) => writer.write(rows).await,
            (Self::Keyed(writer), Some(kinds)) => writer.write(rows, kinds).await,
            (Self::Append(_), Some(_)) => Err(unequal("the log has keys, the lake table has none")),
            (Self::Keyed(_), None) => Err(unequal("the lake table has keys, the log has none")),
        }
    }

    /// Bytes held in memory.
    pub(super) fn memory_bytes(&self) -> u64 {
        let bytes = match self {
            Self::Append(writer) => writer.memory_bytes(),
            Self::Keyed(writer) => writer.memory_bytes(),
        };
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Ends the open files.
    pub(super) async fn finish(self) -> Result<CommitMessage> {
        match self {
            Self::Append(writer) => writer.finish().await,
            Self::Keyed(writer) => writer.finish().await,
        }
    }

    /// Deletes all files of this writer.
    pub(super) async fn abort(self) -> Result<()> {
        match self {
            Self::Append(writer) => writer.abort().await,
            Self::Keyed(writer) => writer.abort().await,
        }
    }
}

fn unequal(reason: &str) -> Error {
    Error::BadValue {
        column: "primary key".to_owned(),
        reason: reason.to_owned(),
    }
}
