//! Virtual time.

mod memory;

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
    fn run(&self, case: &Case, _: u64, _: &dyn Progress) -> anyhow::Result<Outcome> {
        let mut outcome = Outcome::default();
        if let Some(memory) = &case.memory {
            memory::compute(memory, &mut outcome);
        }
        if !case.flows.is_empty() {
            return Err(Unable("not here yet".into()).into());
        }
        Ok(outcome)
    }
}
