//! The slice of each UE at the cells.
//!
//! A UE with a name at the cells is in one slice there: of several places with this name, the newest applies. The place is sent to
//! the cells (`Pending`), and sent again if a cell has the UE in another slice: after a restart, a cell has its UEs where its
//! configuration places them. If a place is removed, or its slice, its name is kept with the UE until the cells at which it has
//! no other place have moved it back to their default slice.

use super::{Illegal, MAX_UE_SLICES, Manager, Refusal, Write};
use crate::lifecycle::State;
use crate::record::{Assignment, Attachment, Kind, Ue};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of names of a UE that wait for the move to the default slice; names of removed slices are always kept.
const MAX_RELEASED: usize = 64;

/// A place to send to cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingPlacement {
    /// Name of the UE.
    pub ue: String,
    /// Identifier of the slice.
    pub slice: String,
    /// Name of the UE at the cells, if any.
    pub cell_ue: Option<String>,
    /// Name of the slice at the cells.
    pub cell_name: String,
    /// Accesses of the slice; the UE is at one of them.
    pub accesses: Vec<String>,
}

/// A name that cells must move back to the default slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// Name of the UE.
    pub ue: String,
    /// Name of the UE at the cells.
    pub cell_ue: String,
    /// Accesses whose cells are excluded, because the name has a place there.
    pub placed_at: Vec<String>,
}

impl Ue {
    /// Whether a name at the cells belongs to one of the UE's places, or waits to be moved back.
    fn has(&self, name: &str) -> bool {
        self.released.contains(name) || self.slices.iter().any(|place| place.cell_ue.as_deref() == Some(name))
    }

    /// Removes a name at the cells from this UE.
    fn lose(&mut self, name: &str) {
        self.released.remove(name);
        for place in self.slices.iter_mut().filter(|place| place.cell_ue.as_deref() == Some(name)) {
            place.cell_ue = None;
        }
    }

    /// Removes places; their names are to be moved back. Returns whether there were any.
    pub(super) fn release(&mut self, gone: impl Fn(&Assignment) -> bool) -> bool {
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.slices).into_iter().partition(gone);
        let any = !gone.is_empty();
        self.slices = kept;
        self.released.extend(gone.into_iter().filter_map(|place| place.cell_ue));
        any
    }

    /// Stores the record, or removes it if the UE is being deleted and nothing is left to do.
    #[must_use]
    pub fn written(self) -> Write {
        if self.leaving && self.released.is_empty() && self.session_state.is_none() {
            return Write { kind: Kind::Ue, id: self.id, record: None };
        }
        Write::ue(self)
    }
}

impl Manager {
    /// Assigns a UE to a slice, or changes its place. Another place with the same name at the cells loses the name.
    ///
    /// # Errors
    /// The UE or slice does not exist or is being removed; the slice has its maximum number of UEs; or the UE has its maximum number
    /// of slices, or of names waiting to be moved back.
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
                // The cell that has the name may not be one of the slice's.
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

    /// Removes a UE's place in a slice.
    ///
    /// # Errors
    /// There is no such UE or place, or too many names wait to be moved back.
    pub fn unassign(&self, ue: &str, id: &str) -> Result<Vec<Write>, Refusal> {
        let mut ue = self.ue(ue)?.clone();
        if !ue.release(|place| place.slice == id) {
            return Err(Refusal::Unknown("slice of this UE", id.to_owned()));
        }
        bounded(&ue)?;
        Ok(vec![Write::ue(ue)])
    }

    /// Deletes a UE; its token and needs become invalid at once. Its record is removed after its session has ended and the cells have
    /// moved it back.
    ///
    /// # Errors
    /// There is no such UE, or too many names wait to be moved back.
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

    /// Up to `most` places to send to cells.
    #[must_use]
    pub fn pending_placements(&self, most: usize) -> Vec<PendingPlacement> {
        let of = |ue: &Ue| {
            let pending = ue.slices.iter().filter(|a| a.attachment == Attachment::Pending);
            let usable = pending.filter_map(|a| {
                let slice = self.slices.get(&a.slice).filter(|slice| slice.state.usable())?;
                Some(PendingPlacement {
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

    /// Records the results of sending places to cells. A place that was changed in the meantime remains to be sent.
    #[must_use]
    pub fn record_placements(&self, results: Vec<(PendingPlacement, Result<(), String>)>) -> Vec<Write> {
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

    /// Whether any UE has a place with a name at an access.
    #[must_use]
    pub fn has_place(&self, access: &str) -> bool {
        self.names_at(access).next().is_some()
    }

    /// Names with a place at an access.
    pub(super) fn names_at(&self, access: &str) -> impl Iterator<Item = &str> {
        let at = move |a: &&Assignment| self.is_at(a, access);
        self.ues.values().flat_map(|ue| &ue.slices).filter(at).filter_map(|a| a.cell_ue.as_deref())
    }

    /// Places to send again, because the cell of an access has the UE in another slice, or has it although it refused before. `there`:
    /// the slice of each UE name at the cell.
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

    /// Up to `most` names that cells must move back to the default slice.
    #[must_use]
    pub fn released(&self, most: usize) -> Vec<Released> {
        let of = |ue: &Ue| {
            let name =
                |name: &String| Released { ue: ue.id.clone(), cell_ue: name.clone(), placed_at: Vec::new() };
            ue.released.iter().map(name).collect::<Vec<_>>()
        };
        self.ues.values().flat_map(of).take(most).collect()
    }

    /// Marks the names with a place at an access: its cell is excluded.
    pub fn note_placed(&self, access: &str, names: &mut [Released]) {
        let at: BTreeSet<&str> = self.names_at(access).collect();
        let placed = names.iter_mut().filter(|name| at.contains(name.cell_ue.as_str()));
        placed.for_each(|name| name.placed_at.push(access.to_owned()));
    }

    /// Records that cells have moved these names back. A name that has since lost a place at an excluded cell remains to be moved.
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

/// Checks the limit of names waiting to be moved back.
fn bounded(ue: &Ue) -> Result<(), Refusal> {
    if ue.released.len() > MAX_RELEASED {
        let what = "names at the cells that wait to be put back";
        return Err(Refusal::Full { what, most: MAX_RELEASED as u64 });
    }
    Ok(())
}
