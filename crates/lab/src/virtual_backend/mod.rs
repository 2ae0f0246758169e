//! The virtual-time backend: the state machines of the product in a simulated network.
//!
//! ```text
//!   case ─▶ world (network) ─▶ run (events, samples) ─▶ collect (metrics, series)
//! ```

pub mod addresses;
mod collect;
mod lwip;
mod memory;
mod run;
mod slices;
mod world;

use crate::backend::{Backend, Outcome, Progress, Unable};
use crate::scenario::Case;
use crate::scenario::file::BackendName;
use anabranch_steer::Functionality;

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
        refuse_tcp_lane(case)?;
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

/// Refuses a TCP lane, since the kernel's part in it is not modelled.
fn refuse_tcp_lane(case: &Case) -> anyhow::Result<()> {
    for (ue, of) in &case.ues {
        if let Some(rule) = of.rules.iter().find(|rule| rule.functionality == Functionality::Mptcp) {
            anyhow::bail!(Unable(format!(
                "ue.{ue}.rules.{}.functionality = \"mptcp\": the TCP lane is the kernel's Multipath TCP; run it in \
                 namespaces (--backend netns)",
                rule.name
            )));
        }
    }
    Ok(())
}
