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
const ENOUGH: u8 = 3;
const WINDOW: Duration = Duration::from_secs(60);
/// Most UEs watched at a time; the one seen longest ago is removed.
const MOST: usize = 64;

#[derive(Debug, Clone, Copy)]
struct Watched {
    user: UserIndex,
    since: Instant,
    last: Instant,
    turns: u8,
    /// Whether keys were used since the last turn.
    used: bool,
}

/// UEs whose keys were ended by other keys of theirs.
#[derive(Debug, Default)]
pub struct Twins {
    watched: Vec<Watched>,
    /// Turns in total.
    turns: u64,
}

impl Twins {
    /// A UE whose session carries traffic names keys that have ended. Returns whether two devices have its
    /// key, at most once per [`WINDOW`].
    pub fn pushed_out(&mut self, user: UserIndex, now: Instant) -> bool {
        let Some(known) = self.watched.iter_mut().find(|watched| watched.user == user) else {
            if self.watched.len() >= MOST {
                let oldest = (0..MOST).min_by_key(|&n| self.watched[n].last);
                if let Some(n) = oldest {
                    self.watched.swap_remove(n);
                }
            }
            self.watched.push(Watched { user, since: now, last: now, turns: 1, used: false });
            self.turns += 1;
            return false;
        };
        known.last = now;
        if !core::mem::take(&mut known.used) {
            // The same handshake again, or one whose keys never arrived.
            return false;
        }
        self.turns += 1;
        if now.saturating_since(known.since) > WINDOW {
            (known.since, known.turns) = (now, 0);
        }
        known.turns = known.turns.saturating_add(1);
        known.turns == ENOUGH
    }

    /// New keys of a UE that already had keys were used.
    pub fn took_over(&mut self, user: UserIndex) {
        self.watched
            .iter_mut()
            .filter(|watched| watched.user == user)
            .for_each(|watched| watched.used = true);
    }

    /// How often one device was displaced by another.
    pub const fn turns(&self) -> u64 {
        self.turns
    }
}
