//! Detects two devices that use one key at the same time: each handshake of one ends the keys of the other.
//!
//! ```text
//!   A connected ── B's handshake, B's keys used ──▶ B connected   A: gets no answer any more
//!        ▲                                                               │
//!        └── A's keys used, A's handshake, with the index of the keys that B's have ended ──┘   = one turn
//!
//! A restarted UE names no keys, and one that was asleep names its own, once. Successive turns are therefore
//! caused by two running devices.

use super::users::UserIndex;
use anabranch_element::time::{Duration, Instant};

/// Turns within [`WINDOW`] that count as a conflict.
const MIN_TURNS: u8 = 3;
const WINDOW: Duration = Duration::from_secs(60);
/// Most UEs watched at a time; the one seen longest ago is removed.
const MAX_CONFLICTS: usize = 64;

#[derive(Debug, Clone, Copy)]
struct KeyConflict {
    user: UserIndex,
    since: Instant,
    last: Instant,
    turns: u8,
    /// Whether keys were used since the last turn.
    used: bool,
}

/// UEs whose keys were ended by other keys of theirs.
#[derive(Debug, Default)]
pub struct KeyConflictDetector {
    conflicts: Vec<KeyConflict>,
    /// Turns in total.
    turns: u64,
}

impl KeyConflictDetector {
    /// A UE whose session carries traffic names keys that have ended. Returns whether two devices have its
    /// key, at most once per [`WINDOW`].
    pub fn on_keys_displaced(&mut self, user: UserIndex, now: Instant) -> bool {
        let Some(conflict) = self.conflicts.iter_mut().find(|conflict| conflict.user == user) else {
            if self.conflicts.len() >= MAX_CONFLICTS {
                let oldest = (0..MAX_CONFLICTS).min_by_key(|&n| self.conflicts[n].last);
                if let Some(n) = oldest {
                    self.conflicts.swap_remove(n);
                }
            }
            self.conflicts.push(KeyConflict { user, since: now, last: now, turns: 1, used: false });
            self.turns += 1;
            return false;
        };
        conflict.last = now;
        if !core::mem::take(&mut conflict.used) {
            // The same handshake again, or one whose keys never arrived.
            return false;
        }
        self.turns += 1;
        if now.saturating_since(conflict.since) > WINDOW {
            (conflict.since, conflict.turns) = (now, 0);
        }
        conflict.turns = conflict.turns.saturating_add(1);
        conflict.turns == MIN_TURNS
    }

    /// New keys of a UE that already had keys were used.
    pub fn on_keys_replaced(&mut self, user: UserIndex) {
        self.conflicts
            .iter_mut()
            .filter(|conflict| conflict.user == user)
            .for_each(|conflict| conflict.used = true);
    }

    /// How often one device was displaced by another.
    pub const fn turns(&self) -> u64 {
        self.turns
    }
}
