//! What cells are to have, and what is learnt of them.

use super::change::degrade;
use super::{Manager, State, Write};
use crate::compile::{self, SliceShare};
use crate::plan::Action;
use crate::record::{Kind, Slice};
use std::collections::BTreeSet;

/// What a cell must say it has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    /// These shares.
    pub shares: Vec<SliceShare>,
    /// Other slices that it may have besides, by their names there; `None`: any.
    pub others: Option<BTreeSet<String>>,
}

impl Manager {
    /// Whether this manager sets the shares of an access: it has or had a slice there. Until then what its cell gives is
    /// the operator's.
    #[must_use]
    pub fn sets_shares(&self, access: &str) -> bool {
        self.documents.contains_key(&(Kind::Access, access.to_owned()))
            || self.slices.values().any(|slice| slice.reserved().contains_key(access))
    }

    /// The shares an access must have once `action` of slice `id` is done.
    #[must_use]
    pub fn shares(&self, access: &str, id: &str, action: &Action) -> Vec<SliceShare> {
        let access = self.inventory.get(access);
        access.map_or_else(Vec::new, |access| compile::shares(&self.slices, access, id, action))
    }

    /// What an access must say it has while `action` of slice `id` is checked. Of slices that are changing or not sure there it
    /// may have either.
    #[must_use]
    pub fn verified(&self, access: &str, id: &str, action: &Action) -> Expected {
        let is_open = |s: &Slice| s.id != id && (s.unsure.contains_key(access) || changes_at(s, access));
        Expected { others: Some(BTreeSet::new()), shares: self.shares(access, id, action) }
            .but(self.slices.values().filter(|s| is_open(s)))
    }

    /// What an access must say it has when it is looked at; `None` while its shares change, for what it says then tells
    /// nothing. Of slices that are being removed there, which may last, it may have either.
    #[must_use]
    pub fn looked_at(&self, access: &str) -> Option<Expected> {
        let changing: Vec<&Slice> = self.slices.values().filter(|s| changes_at(s, access)).collect();
        if changing.iter().any(|s| s.state != State::Terminating) {
            return None;
        }
        let others = self.sets_shares(access).then(BTreeSet::new);
        Some(Expected { others, shares: self.shares_now(access) }.but(changing.into_iter()))
    }

    /// The shares an access should have now.
    #[must_use]
    pub fn shares_now(&self, access: &str) -> Vec<SliceShare> {
        let access = self.inventory.get(access);
        access.map_or_else(Vec::new, |access| compile::shares_now(&self.slices, access))
    }

    /// How an access is: `Some(why)` when something is wrong there. Gives the slices whose state changes.
    pub fn health(&self, access: &str, problem: Option<&str>, now_ms: u64) -> Vec<Write> {
        let changes = |s: &&Slice| {
            // It has what it should, and nothing else.
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
    /// Of these slices it may have either.
    fn but<'a>(mut self, open: impl Iterator<Item = &'a Slice>) -> Self {
        let open: BTreeSet<String> = open.map(|s| s.cell_name.clone()).collect();
        self.shares.retain(|share| !open.contains(&share.name));
        if let Some(others) = &mut self.others {
            others.extend(open);
        }
        self
    }
}

/// Whether a change of what a slice has at an access is under way.
fn changes_at(slice: &Slice, access: &str) -> bool {
    slice.plan.is_some() && slice.reserved().contains_key(access)
}
