//! Transactions: what they expect, and the checks that need no backend.

use bytes::Bytes;

use super::{Key, Limit, Limits, Result, Revision, SessionId, StoreError, Versioned};

/// What must hold for a key when a transaction is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The key has no value.
    Absent,
    /// The key was last written at this revision.
    At(Revision),
    /// The key has a value and was created at this revision, whatever wrote it since.
    Incarnation(Revision),
    /// The key has a value.
    Present,
    /// Nothing.
    Any,
}

impl Expect {
    /// Whether the expectation holds for what a key has now.
    pub fn holds(self, found: Option<&Versioned>) -> bool {
        match (self, found) {
            (Expect::Any, _) | (Expect::Absent, None) | (Expect::Present, Some(_)) => true,
            (Expect::At(at), Some(found)) => found.modified == at,
            (Expect::Incarnation(at), Some(found)) => found.created == at,
            (Expect::Absent, Some(_)) => false,
            (Expect::Present | Expect::At(_) | Expect::Incarnation(_), None) => false,
        }
    }
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Writes nothing.
    Check {
        /// The key.
        key: Key,
        /// What must hold.
        expect: Expect,
    },
    /// Writes a value.
    Put {
        /// The key.
        key: Key,
        /// The bytes.
        value: Bytes,
        /// What must hold.
        expect: Expect,
        /// With a session the key vanishes when the session ends.
        session: Option<SessionId>,
    },
    /// Deletes one key; deleting nothing is fine where the expectation allows it.
    Delete {
        /// The key.
        key: Key,
        /// What must hold.
        expect: Expect,
    },
    /// Deletes a key and everything below it.
    DeleteTree {
        /// The key.
        key: Key,
        /// What must hold for the key itself.
        expect: Expect,
    },
}

impl Op {
    /// The key that the operation names.
    pub fn key(&self) -> &Key {
        match self {
            Op::Check { key, .. }
            | Op::Put { key, .. }
            | Op::Delete { key, .. }
            | Op::DeleteTree { key, .. } => key,
        }
    }

    /// What the operation expects.
    pub fn expect(&self) -> Expect {
        match self {
            Op::Check { expect, .. }
            | Op::Put { expect, .. }
            | Op::Delete { expect, .. }
            | Op::DeleteTree { expect, .. } => *expect,
        }
    }

    fn bytes(&self) -> usize {
        let value_bytes = match self {
            Op::Put { value, .. } => value.len(),
            Op::Check { .. } | Op::Delete { .. } | Op::DeleteTree { .. } => 0,
        };
        self.key().as_str().len() + value_bytes
    }
}

/// A key that must still stand at a revision for a transaction to be applied: the coordinator
/// epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The key.
    pub key: Key,
    /// Its revision.
    pub at: Revision,
}

/// Operations that happen together. The order is that of the checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Txn {
    /// The operations; each names a key of its own.
    pub ops: Vec<Op>,
    /// The fence; `None` only for registrations and tests.
    pub fence: Option<Fence>,
}

impl Txn {
    /// An empty transaction under `fence`.
    pub fn new(fence: Option<Fence>) -> Self {
        Self {
            ops: Vec::new(),
            fence,
        }
    }

    /// Adds a check.
    pub fn check(self, key: Key, expect: Expect) -> Self {
        self.with(Op::Check { key, expect })
    }

    /// Adds a write.
    pub fn put(self, key: Key, value: impl Into<Bytes>, expect: Expect) -> Self {
        self.with(Op::Put {
            key,
            value: value.into(),
            expect,
            session: None,
        })
    }

    /// Adds a write of a key that lives as long as `session`.
    pub fn put_ephemeral(
        self,
        key: Key,
        value: impl Into<Bytes>,
        expect: Expect,
        session: SessionId,
    ) -> Self {
        self.with(Op::Put {
            key,
            value: value.into(),
            expect,
            session: Some(session),
        })
    }

    /// Adds a deletion.
    pub fn delete(self, key: Key, expect: Expect) -> Self {
        self.with(Op::Delete { key, expect })
    }

    /// Adds a deletion of a key and everything below.
    pub fn delete_tree(self, key: Key, expect: Expect) -> Self {
        self.with(Op::DeleteTree { key, expect })
    }

    /// Adds an operation.
    pub fn with(mut self, op: Op) -> Self {
        self.ops.push(op);
        self
    }

    /// Checks what needs no store: limits, and that no key is named twice.
    pub fn validate(&self, limits: &Limits) -> Result<()> {
        let too_large = |what, size, max| Err(StoreError::TooLarge { what, size, max });
        if self.ops.len() > limits.max_ops {
            return too_large(Limit::Ops, self.ops.len(), limits.max_ops);
        }
        let mut txn_bytes = 0;
        for op in &self.ops {
            if let Op::Put { value, .. } = op
                && value.len() > limits.max_value_bytes
            {
                return too_large(Limit::ValueBytes, value.len(), limits.max_value_bytes);
            }
            txn_bytes += op.bytes();
        }
        if txn_bytes > limits.max_txn_bytes {
            return too_large(Limit::TxnBytes, txn_bytes, limits.max_txn_bytes);
        }
        self.validate_keys()
    }

    fn validate_keys(&self) -> Result<()> {
        let mut keys: Vec<&Key> = self.ops.iter().map(Op::key).collect();
        keys.sort_unstable();
        for pair in keys.windows(2) {
            if let [left, right] = pair
                && left == right
            {
                return Err(StoreError::KeyTwice {
                    key: (*left).clone(),
                });
            }
        }
        for op in &self.ops {
            let Op::DeleteTree { key: root, .. } = op else {
                continue;
            };
            if let Some(below) = keys.iter().find(|key| **key != root && key.is_under(root)) {
                return Err(StoreError::KeyTwice {
                    key: (*below).clone(),
                });
            }
        }
        Ok(())
    }
}
