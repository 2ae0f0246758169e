//! Virtual time: the state machines that ship, in a simulated network.
//!
//! ```text
//!   case ─▶ world (network) ─▶ run (events, samples) ─▶ collect (metrics, series)
//! ```

mod addresses;
mod collect;
mod lwip;
mod memory;
mod run;
mod slices;
mod world;

use crate::backend::{Backend, Outcome, Progress};
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
    fn run(&self, case: &Case, seed: u64, progress: &dyn Progress) -> anyhow::Result<Outcome> {
        let mut outcome = Outcome::default();
        if let Some(memory) = &case.memory {
            memory::compute(memory, &mut outcome);
        }
        if !case.flows.is_empty() {
            let mut world = world::build(case, seed)?;
            let seen = run::run(&mut world, case, seed, progress)?;
            collect::collect(&mut world, case, seen, &mut outcome)?;
            let facts = [("time", "virtual"), ("TCP", "the simulator's (docs/simulator.md)")];
            outcome.facts.extend(facts.map(|(what, is)| (what.to_owned(), is.to_owned())));
        }
        Ok(outcome)
    }
}
