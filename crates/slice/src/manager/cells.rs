//! Expected configuration of cells, and their health.

use super::change::degrade;
use super::{Manager, State, Write};
use crate::compile::{self, SliceShare};
use crate::plan::Action;
use crate::record::{Kind, Slice};
use std::collections::BTreeSet;

/// The configuration that a cell must report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    /// The required shares.
    pub shares: Vec<SliceShare>,
    /// Other slices permitted at the cell, by their names there; `None`: any.
    pub others: Option<BTreeSet<String>>,
}

impl Manager {
    /// Whether this manager controls the shares of an access, because it has or had a slice there. Before that, the configuration of
    /// its cell belongs to the operator.
    #[must_use]
    pub fn sets_shares(&self, access: &str) -> bool {
        self.documents.contains_key(&(Kind::Access, access.to_owned()))
            || self.slices.values().any(|slice| slice.reserved().contains_key(access))
    }

    /// The shares an access must have after `action` of slice `id`.
    #[must_use]
    pub fn shares(&self, access: &str, id: &str, action: &Action) -> Vec<SliceShare> {
        let access = self.inventory.get(access);
        access.map_or_else(Vec::new, |access| compile::shares(&self.slices, access, id, action))
    }

    /// The configuration that an access must report when `action` of slice `id` is verified. Slices that are changing or in an unknown
    /// state there may be present in either form.
    #[must_use]
    pub fn verified(&self, access: &str, id: &str, action: &Action) -> Expected {
        let is_open = |s: &Slice| s.id != id && (s.unsure.contains_key(access) || changes_at(s, access));
        Expected { others: Some(BTreeSet::new()), shares: self.shares(access, id, action) }
            .but(self.slices.values().filter(|s| is_open(s)))
    }

    /// The configuration that an access must report in a health check; `None` while its shares change, because its report is then
    /// inconclusive. Slices that are being removed there, which may take long, may be present in either form.
    #[must_use]
    pub fn expected_configuration(&self, access: &str) -> Option<Expected> {
        let changing: Vec<&Slice> = self.slices.values().filter(|s| changes_at(s, access)).collect();
        if changing.iter().any(|s| s.state != State::Terminating) {
            return None;
        }
        let others = self.sets_shares(access).then(BTreeSet::new);
        Some(Expected { others, shares: self.shares_now(access) }.but(changing.into_iter()))
    }

    /// The current shares of an access.
    #[must_use]
    pub fn shares_now(&self, access: &str) -> Vec<SliceShare> {
        let access = self.inventory.get(access);
        access.map_or_else(Vec::new, |access| compile::shares_now(&self.slices, access))
    }

    /// The accesses with guarantees in force that the inventory does not contain.
    #[must_use]
    pub fn unknown_accesses(&self) -> BTreeSet<String> {
        let is_unknown = |access: &&String| !self.inventory.iter().any(|known| known.name == **access);
        self.slices.values().flat_map(|slice| slice.applied.keys()).filter(is_unknown).cloned().collect()
    }

    /// Records the health of an access: `Some(reason)` for a fault. Returns the slices whose state changes.
    pub fn health(&self, access: &str, problem: Option<&str>, now_ms: u64) -> Vec<Write> {
        let changes = |s: &&Slice| {
            // The access has exactly the expected configuration.
            let sure = problem.is_none() && s.plan.is_none() && s.unsure.contains_key(access);
            let told = s.problems.get(access).map(String::as_str) != problem;
            sure || s.applied.contains_key(access) && told
        };
        let changed = self.slices.values().filter(changes);
        changed
            .filter_map(|slice| {
                let mut slice = slice.clone();
                match problem {
                    Some(why) => drop(slice.problems.insert(access.to_owned(), why.to_owned())),
                    None => drop(slice.problems.remove(access)),
                }
                if problem.is_none() && slice.plan.is_none() {
                    slice.unsure.remove(access);
                }
                let before = slice.state.name();
                degrade(&mut slice).ok()?;
                if slice.state.name() != before {
                    slice.since_ms = now_ms;
                }
                Some(Write::slice(slice))
            })
            .collect()
    }
}

impl Expected {
    /// Permits these slices in either form.
    fn but<'a>(mut self, open: impl Iterator<Item = &'a Slice>) -> Self {
        let open: BTreeSet<String> = open.map(|s| s.cell_name.clone()).collect();
        self.shares.retain(|share| !open.contains(&share.name));
        if let Some(others) = &mut self.others {
            others.extend(open);
        }
        self
    }
}

/// Whether a change of a slice's configuration at an access is in progress.
fn changes_at(slice: &Slice, access: &str) -> bool {
    slice.plan.is_some() && slice.reserved().contains_key(access)
}
