//! JUNCTION Table V, computed from the sizes of this project's data structures without simulation.

use crate::backend::Outcome;
use crate::scenario::file::FlatEntry;
use crate::scenario::model::Memory;
use anabranch_atsss::memory::{Design, Flat, table5};

/// Adds the number of users that fit, by sessions per user and design.
pub fn compute(memory: &Memory, outcome: &mut Outcome) {
    let flat = match memory.flat {
        FlatEntry::Filter => Flat::Filter,
        FlatEntry::ApplicationId => Flat::ApplicationId,
    };
    for row in table5((memory.budget_mib * 1024.0 * 1024.0) as u64, flat) {
        for (design, users) in Design::ALL.into_iter().zip(row.users) {
            let design = match design {
                Design::Naive => "naive",
                Design::Htl => "htl",
                Design::Utss => "utss",
                Design::Both => "junction",
            };
            outcome.metrics.insert(format!("memory.{}.{design}_users", row.sessions), users as f64);
        }
    }
    outcome.facts.push(("memory".into(), format!("{} MiB, computed", memory.budget_mib)));
}
