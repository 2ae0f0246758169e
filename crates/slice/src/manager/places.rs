//! Which slice a UE is in at the cells.
//!
//! A UE with a name at the cells is in one slice there: of the places with this name the newest counts. It is told to the cells
//! (`Pending`), and again where a cell has it elsewhere, for a cell that starts again has its UEs where its configuration says. A
//! name whose place is taken away, or whose slice is removed, is kept with the UE until the cells at which it has no other
//! place have put it back into the rest.

use super::{Illegal, MAX_UE_SLICES, Manager, Refusal, Write};
use crate::lifecycle::State;
use crate::record::{Assignment, Attachment, Kind, Ue};
use std::collections::{BTreeMap, BTreeSet};

/// Names of a UE that wait to be put back into the rest, at most; those of slices that are removed are always kept.
const MAX_RELEASED: usize = 64;

/// A place that cells are to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The UE's name.
    pub ue: String,
    /// The slice's identifier.
    pub slice: String,
    /// The UE's name at the cells, if it has one there.
    pub cell_ue: Option<String>,
    /// The slice's name at the cells.
    pub cell_name: String,
    /// Accesses the slice is at; the UE is at one of them.
    pub accesses: Vec<String>,
}

/// A name that cells are to put back into the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// The UE's name.
    pub ue: String,
    /// Its name at the cells.
    pub cell_ue: String,
    /// Accesses whose cells were not told, for it has a place there.
    pub placed_at: Vec<String>,
}

impl Ue {
    /// Whether a name at the cells is that of one of its places, or waits to be put back.
    fn has(&self, name: &str) -> bool {
        self.released.contains(name) || self.slices.iter().any(|place| place.cell_ue.as_deref() == Some(name))
    }

    /// A name at the cells is no longer this UE's.
    fn lose(&mut self, name: &str) {
        self.released.remove(name);
        for place in self.slices.iter_mut().filter(|place| place.cell_ue.as_deref() == Some(name)) {
            place.cell_ue = None;
        }
    }

    /// Takes places away, if there are such; their names are to be put back.
    pub(super) fn release(&mut self, gone: impl Fn(&Assignment) -> bool) -> bool {
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.slices).into_iter().partition(gone);
        let any = !gone.is_empty();
        self.slices = kept;
        self.released.extend(gone.into_iter().filter_map(|place| place.cell_ue));
        any
    }

    /// Its record; none, if it was being forgotten and nothing is left to be done.
    #[must_use]
    pub fn written(self) -> Write {
        if self.leaving && self.released.is_empty() && self.session_state.is_none() {
            return Write { kind: Kind::Ue, id: self.id, record: None };
        }
        Write::ue(self)
    }
}

impl Manager {
    /// Gives a UE a place in a slice, or changes it. Another place with the same name at the cells loses the name.
    ///
    /// # Errors
    /// There is no such UE or slice, or neither is there to stay; it has as many UEs as it promises, or the UE as
    /// many slices as it can have, or names that wait to be put back.
    pub fn assign(&self, ue: &str, id: &str, cell_ue: Option<String>) -> Result<Vec<Write>, Refusal> {
        let mut ue = self.ue(ue)?.clone();
        if ue.leaving {
            return Err(Refusal::Unknown("UE that stays", ue.id));
        }
        let slice = self.slice(id)?;
        if matches!(slice.state, State::Terminating | State::Failed(_)) {
            return Err(Illegal { from: slice.state.name(), what: "take UEs" }.into());
        }
        let has = |u: &Ue| u.slices.iter().any(|a| a.slice == id);
        if !has(&ue) {
            if ue.slices.len() >= MAX_UE_SLICES {
                return Err(Refusal::Full { what: "slices of a UE", most: MAX_UE_SLICES as u64 });
            }
            if let Some(most) = slice.profile.max_ues
                && self.ues.values().filter(|u| has(u)).count() as u64 >= most
            {
                return Err(Refusal::Full { what: "UEs of this slice", most });
            }
        }
        let mut writes = Vec::new();
        if let Some(name) = &cell_ue {
            let had: Vec<&Ue> = self.ues.values().filter(|owner| owner.has(name)).collect();
            ue.lose(name);
            if !had.is_empty() {
                // The cell that has it may be none of the slice's.
                ue.released.insert(name.clone());
            }
            for owner in had.into_iter().filter(|owner| owner.id != ue.id) {
                let mut owner = owner.clone();
                owner.lose(name);
                writes.push(owner.written());
            }
        }
        ue.release(|place| place.slice == id);
        bounded(&ue)?;
        ue.slices.push(Assignment { slice: id.to_owned(), cell_ue, attachment: Attachment::Pending });
        ue.slices.sort_by(|a, b| a.slice.cmp(&b.slice));
        writes.push(Write::ue(ue));
        Ok(writes)
    }

    /// Takes a UE's place in a slice away.
    ///
    /// # Errors
    /// There is no such UE, or it has none there, or too many names wait to be put back.
    pub fn unassign(&self, ue: &str, id: &str) -> Result<Vec<Write>, Refusal> {
        let mut ue = self.ue(ue)?.clone();
        if !ue.release(|place| place.slice == id) {
            return Err(Refusal::Unknown("slice of this UE", id.to_owned()));
        }
        bounded(&ue)?;
        Ok(vec![Write::ue(ue)])
    }

    /// Forgets a UE; its token and what it needed are void at once. Its record goes when its session has ended and the cells have put it back.
    ///
    /// # Errors
    /// There is no such UE, or too many names wait to be put back.
    pub fn forget(&self, ue: &str) -> Result<Vec<Write>, Refusal> {
        let mut ue = self.ue(ue)?.clone();
        ue.release(|_| true);
        bounded(&ue)?;
        ue.token_hash.clear();
        ue.session = None;
        ue.session_state = ue.session_state.map(|_| Attachment::Pending);
        ue.leaving = true;
        let mut writes = self.needs_nothing(&ue.id);
        writes.push(ue.written());
        Ok(writes)
    }

    /// Places that cells are to be told, so many at most.
    #[must_use]
    pub fn untold(&self, most: usize) -> Vec<Place> {
        let of = |ue: &Ue| {
            let pending = ue.slices.iter().filter(|a| a.attachment == Attachment::Pending);
            let usable = pending.filter_map(|a| {
                let slice = self.slices.get(&a.slice).filter(|slice| slice.state.usable())?;
                Some(Place {
                    ue: ue.id.clone(),
                    slice: a.slice.clone(),
                    cell_ue: a.cell_ue.clone(),
                    cell_name: slice.cell_name.clone(),
                    accesses: slice.applied.keys().cloned().collect(),
                })
            });
            usable.collect::<Vec<_>>()
        };
        self.ues.values().flat_map(of).take(most).collect()
    }

    /// Cells were told places, and this came of it. A place that was changed meanwhile is still to be told.
    #[must_use]
    pub fn told(&self, results: Vec<(Place, Result<(), String>)>) -> Vec<Write> {
        let mut ues: BTreeMap<String, Ue> = BTreeMap::new();
        for (place, result) in results {
            let Ok(ue) = self.ue(&place.ue) else { continue };
            let ue = ues.entry(place.ue).or_insert_with(|| ue.clone());
            let same = |a: &&mut Assignment| {
                a.slice == place.slice && a.cell_ue == place.cell_ue && a.attachment == Attachment::Pending
            };
            if let Some(a) = ue.slices.iter_mut().find(same) {
                a.attachment = result.map_or_else(Attachment::Failed, |()| Attachment::Active);
            }
        }
        ues.into_values().map(Write::ue).collect()
    }

    /// Whether some UE has a place with a name at an access.
    #[must_use]
    pub fn has_place(&self, access: &str) -> bool {
        self.names_at(access).next().is_some()
    }

    /// Names that have a place at an access.
    pub(super) fn names_at(&self, access: &str) -> impl Iterator<Item = &str> {
        let at = move |a: &&Assignment| self.is_at(a, access);
        self.ues.values().flat_map(|ue| &ue.slices).filter(at).filter_map(|a| a.cell_ue.as_deref())
    }

    /// Places that are to be told again, for the cell of an access has the UE in another slice, or has it and refused.
    /// `there`: its slices by the names of its UEs.
    #[must_use]
    pub fn strays(&self, access: &str, there: &BTreeMap<String, String>) -> Vec<Write> {
        let strays = |a: &Assignment| {
            let slice = self.slices.get(&a.slice);
            let there = a.cell_ue.as_ref().and_then(|name| there.get(name));
            let wrong = |there: &String| match a.attachment {
                Attachment::Pending => false,
                Attachment::Active => slice.is_some_and(|slice| slice.cell_name != *there),
                Attachment::Failed(_) => true,
            };
            self.is_at(a, access) && there.is_some_and(wrong)
        };
        let of = |ue: &Ue| {
            let mut ue = ue.clone();
            let strays = ue.slices.iter_mut().filter(|a| strays(a));
            let moved = strays.map(|a| a.attachment = Attachment::Pending).count();
            (moved > 0).then(|| Write::ue(ue))
        };
        self.ues.values().filter_map(of).collect()
    }

    fn is_at(&self, place: &Assignment, access: &str) -> bool {
        self.slices.get(&place.slice).is_some_and(|s| s.state.usable() && s.applied.contains_key(access))
    }

    /// Names that cells are to put back into the rest, so many at most.
    #[must_use]
    pub fn released(&self, most: usize) -> Vec<Released> {
        let of = |ue: &Ue| {
            let name =
                |name: &String| Released { ue: ue.id.clone(), cell_ue: name.clone(), placed_at: Vec::new() };
            ue.released.iter().map(name).collect::<Vec<_>>()
        };
        self.ues.values().flat_map(of).take(most).collect()
    }

    /// Notes which of these have a place at an access: its cell is not told of them.
    pub fn note_placed(&self, access: &str, names: &mut [Released]) {
        let at: BTreeSet<&str> = self.names_at(access).collect();
        let placed = names.iter_mut().filter(|name| at.contains(name.cell_ue.as_str()));
        placed.for_each(|name| name.placed_at.push(access.to_owned()));
    }

    /// Cells have put these back. A name that lost a place meanwhile, for which a cell was not told, is still to be put back.
    #[must_use]
    pub fn put_back(&self, names: &[Released]) -> Vec<Write> {
        let mut ues: BTreeMap<&str, Ue> = BTreeMap::new();
        let accesses: BTreeSet<&String> = names.iter().flat_map(|name| &name.placed_at).collect();
        let at: BTreeMap<&String, BTreeSet<&str>> =
            accesses.into_iter().map(|access| (access, self.names_at(access).collect())).collect();
        let is_back =
            |name: &&Released| name.placed_at.iter().all(|access| at[access].contains(name.cell_ue.as_str()));
        for name in names.iter().filter(is_back) {
            let Ok(ue) = self.ue(&name.ue) else { continue };
            ues.entry(&name.ue).or_insert_with(|| ue.clone()).released.remove(&name.cell_ue);
        }
        ues.into_values().map(Ue::written).collect()
    }
}

/// Whether a UE has no more names that wait to be put back than it may have.
fn bounded(ue: &Ue) -> Result<(), Refusal> {
    if ue.released.len() > MAX_RELEASED {
        let what = "names at the cells that wait to be put back";
        return Err(Refusal::Full { what, most: MAX_RELEASED as u64 });
    }
    Ok(())
}
