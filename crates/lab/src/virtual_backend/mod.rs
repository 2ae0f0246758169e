//! Virtual time.

use crate::backend::{Backend, Outcome, Progress, Unable};
use crate::scenario::Case;
use crate::scenario::file::BackendName;

/// Runs scenarios in virtual time.
pub struct VirtualBackend;

impl Backend for VirtualBackend {
    fn name(&self) -> BackendName {
        BackendName::Virtual
    }
    fn parallel(&self) -> bool {
        true
    }
    fn run(&self, _: &Case, _: u64, _: &dyn Progress) -> anyhow::Result<Outcome> {
        Err(Unable("not here yet".into()).into())
    }
}
