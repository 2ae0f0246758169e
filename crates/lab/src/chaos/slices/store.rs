//! A store in memory with the faults of a database. Replaces `node`'s `slicemgr::store` and the commit of its `engine`: a change
//! is applied to the newest records atomically, as one revision.

use anabranch_slice::{Kind, Manager, Record, Write};
use std::collections::BTreeMap;

/// Present behaviour of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreBehaviour {
    /// Changes are stored and acknowledged at once.
    Good,
    /// Changes are rejected and not stored.
    Full,
    /// Changes are not stored; the result is reported as unknown.
    FailsBefore,
    /// Changes are stored; the result is reported as unknown.
    FailsAfter,
    /// The store does not answer.
    Gone,
}

/// Records as text, as in a database.
#[derive(Debug, Default)]
pub struct Store {
    records: BTreeMap<(Kind, String), (i64, Option<String>)>,
    /// Revision of the last change.
    pub revision: i64,
}

impl Store {
    /// Records newer than a revision, in the order of their revisions.
    pub fn newer(&self, known: i64) -> Result<Vec<Write>, String> {
        let mut rows: Vec<_> = self.records.iter().filter(|(_, (revision, _))| *revision > known).collect();
        rows.sort_by_key(|(_, (revision, _))| *revision);
        let write = |((kind, id), (_, body)): (&(Kind, String), &(i64, Option<String>))| {
            let record = body.as_ref().map(|body| Record::from_json(*kind, body)).transpose();
            record.map_err(|error| format!("{id}: {error}")).map(|record| Write {
                kind: *kind,
                id: id.clone(),
                record,
            })
        };
        rows.into_iter().map(write).collect()
    }

    /// Stores a change as `revision`.
    pub fn put(&mut self, revision: i64, writes: &[Write]) -> Result<(), String> {
        for write in writes {
            let body = write.record.as_ref().map(Record::to_json).transpose();
            let body = body.map_err(|error| format!("{}: {error}", write.id))?;
            self.records.insert((write.kind, write.id.clone()), (revision, body));
        }
        self.revision = revision;
        Ok(())
    }

    /// Length of the longest record, bytes.
    pub fn longest(&self) -> usize {
        self.records.values().filter_map(|(_, body)| Some(body.as_ref()?.len())).max().unwrap_or(0)
    }
}

/// Whether two managers have the same records.
pub fn same(a: &Manager, b: &Manager) -> bool {
    a.slices() == b.slices() && a.ues() == b.ues()
}
