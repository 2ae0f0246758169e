//! What the gNB knows of a UE's backlog: what it was `delay` slots ago, less what was granted since.
//!
//! ```text
//!   UE:   backlog ── scheduling request ─▶ ── buffer status report ─▶ ── grant ─▶ data        delay slots
//!   gNB:  known(s) = min(backlog(s − delay) − granted in between, backlog(s))
//! ```
//!
//! The steps of TS 38.321 §5.4.4 and §5.4.5 are one fixed delay here. The gNB is never told more than there
//! is, so no grant is wasted on a report that is out of date. The backlog is what waits in RLC and above it: what a limiter keeps in
//! SDAP is fetched by the grant.
//!
//! Whoever has a backlog is known to have what the least PDU takes, headers included: a grant of less carries nothing, and
//! is counted as granted all the same. With 12 bytes left, blocks of 4 went out in three of four slots for ever.

/// See the top of this file.
#[derive(Debug, Clone)]
pub(super) struct GrantDelay {
    /// Granted so far plus backlog, of the last `delay` slots, by slot modulo their number.
    wanted: Box<[u64]>,
    granted: u64,
    /// Bytes of the least block that carries any data.
    least: u64,
    /// The slot after the last noted, and its place.
    noted: u64,
    place: usize,
}

impl GrantDelay {
    /// `least` is in bytes: of the least block that carries any data.
    pub(super) fn new(delay_slots: u8, least: u32) -> Self {
        let wanted = vec![0; usize::from(delay_slots)].into();
        Self { wanted, granted: 0, least: least.into(), noted: 0, place: 0 }
    }

    /// Slots from a backlog to the grant for it.
    pub(super) fn delay_slots(&self) -> u8 {
        self.wanted.len() as u8
    }

    /// What is known in `slot`, in which the backlog is `bytes`. Slots left out had the backlog of the last.
    #[inline]
    pub(super) fn known(&mut self, slot: u64, bytes: u64) -> u64 {
        let delay = self.wanted.len();
        if delay == 0 {
            return bytes;
        }
        if self.noted != slot {
            self.catch_up(slot);
        }
        let wanted = self.granted.saturating_add(bytes);
        let before = std::mem::replace(&mut self.wanted[self.place], wanted);
        self.noted = slot + 1;
        self.place = if self.place + 1 < delay { self.place + 1 } else { 0 };
        match before.saturating_sub(self.granted) {
            0 => 0,
            known => known.max(self.least).min(bytes),
        }
    }

    /// Notes the slots before `slot` that were left out.
    fn catch_up(&mut self, slot: u64) {
        let delay = self.wanted.len() as u64;
        let at = |slot: u64| (slot % delay) as usize;
        let last = self.noted.checked_sub(1).map_or(0, |last| self.wanted[at(last)]);
        for missed in (self.noted..slot).rev().take(self.wanted.len()) {
            self.wanted[at(missed)] = last;
        }
        self.place = at(slot);
    }

    /// Bytes were granted.
    pub(super) fn grant(&mut self, bytes: u64) {
        self.granted = self.granted.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_packet_is_granted_headers_and_all() {
        // 2 RBs at MCS 2: blocks of 4 or 9 bytes, of which 7 are headers.
        for (delay, first) in (0..6).flat_map(|delay| (1..200).map(move |bytes| (delay, bytes))) {
            let (mut grants, mut bytes) = (GrantDelay::new(delay, 8), first);
            let slots = (0..2000).take_while(|slot| {
                let backlog = if bytes > 0 { bytes + 7 } else { 0 };
                let block: u64 = match grants.known(*slot, backlog) {
                    0 => 0,
                    1..=4 => 4,
                    _ => 9,
                };
                grants.grant(block);
                bytes -= bytes.min(block.saturating_sub(7));
                backlog > 0
            });
            assert!(slots.count() < 2000, "{bytes} of {first} bytes stay with a delay of {delay} slots");
        }
    }

    #[test]
    fn a_backlog_is_known_later() {
        let mut grants = GrantDelay::new(3, 8);
        assert_eq!([0, 1, 2, 3].map(|slot| grants.known(slot, 100)), [0, 0, 0, 100]);
        grants.grant(60);
        assert_eq!(grants.known(4, 40), 40, "60 of 100 are granted");
        grants.grant(40);
        assert_eq!(grants.known(5, 0), 0);
        // A pause; the next packet waits as long as the first.
        assert_eq!([90, 91, 92, 93].map(|slot| grants.known(slot, 7)), [0, 0, 0, 7]);
        // A grant beyond the backlog takes nothing from what comes later.
        grants.grant(1000);
        assert_eq!([94, 95, 96, 97].map(|slot| grants.known(slot, 50)), [0, 0, 0, 50]);
        assert_eq!(GrantDelay::new(0, 8).known(9, 5), 5);
    }
}
