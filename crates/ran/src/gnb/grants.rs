//! The gNB's view of a UE's uplink backlog: the backlog of `delay` slots ago, minus what was granted since.
//!
//! ```text
//!   UE:   backlog ── scheduling request ─▶ ── buffer status report ─▶ ── grant ─▶ data        delay slots
//!   gNB:  known(s) = min(backlog(s − delay) − granted in between, backlog(s))
//! ```
//!
//! The steps of TS 38.321 §5.4.4 and §5.4.5 are modelled as one fixed delay. The known backlog never exceeds the actual
//! one, so no grant is wasted because of an outdated report. The backlog includes RLC and the packets above it: packets
//! that a limiter keeps in SDAP are fetched by the grant.
//!
//! A non-zero backlog is rounded up to the smallest PDU including headers: a smaller grant carries nothing but would be
//! counted as granted. Without this rule, 12 remaining bytes caused blocks of 4 bytes in three of four slots forever.

/// Delays the backlog of one UE by a fixed number of slots.
#[derive(Debug, Clone)]
pub(super) struct GrantDelay {
    /// Bytes granted so far plus the backlog, for each of the last `delay` slots, indexed by slot modulo `delay`.
    requested: Box<[u64]>,
    granted: u64,
    /// Bytes of the smallest block that carries any data.
    min_bytes: u64,
    /// The slot after the last recorded one, and its index in `requested`.
    next_slot: u64,
    next_index: usize,
}

impl GrantDelay {
    /// `min_bytes` is the size in bytes of the smallest block that carries any data.
    pub(super) fn new(delay_slots: u8, min_bytes: u32) -> Self {
        let requested = vec![0; usize::from(delay_slots)].into();
        Self { requested, granted: 0, min_bytes: min_bytes.into(), next_slot: 0, next_index: 0 }
    }

    /// Slots from a backlog to the grant for it.
    pub(super) fn delay_slots(&self) -> u8 {
        self.requested.len() as u8
    }

    /// The backlog known in `slot`, in which the actual backlog is `bytes`. Skipped slots count with the last recorded backlog.
    #[inline]
    pub(super) fn known_backlog(&mut self, slot: u64, bytes: u64) -> u64 {
        let delay = self.requested.len();
        if delay == 0 {
            return bytes;
        }
        if self.next_slot != slot {
            self.catch_up(slot);
        }
        let requested = self.granted.saturating_add(bytes);
        let before = std::mem::replace(&mut self.requested[self.next_index], requested);
        self.next_slot = slot + 1;
        self.next_index = if self.next_index + 1 < delay { self.next_index + 1 } else { 0 };
        match before.saturating_sub(self.granted) {
            0 => 0,
            known => known.max(self.min_bytes).min(bytes),
        }
    }

    /// Records the skipped slots before `slot`.
    fn catch_up(&mut self, slot: u64) {
        let delay = self.requested.len() as u64;
        let at = |slot: u64| (slot % delay) as usize;
        let last = self.next_slot.checked_sub(1).map_or(0, |last| self.requested[at(last)]);
        for missed in (self.next_slot..slot).rev().take(self.requested.len()) {
            self.requested[at(missed)] = last;
        }
        self.next_index = at(slot);
    }

    /// Records a grant of `bytes`.
    pub(super) fn grant(&mut self, bytes: u64) {
        self.granted = self.granted.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_packet_is_granted_with_its_headers() {
        // 2 RBs at MCS 2: blocks of 4 or 9 bytes, of which 7 are headers.
        for (delay, first) in (0..6).flat_map(|delay| (1..200).map(move |bytes| (delay, bytes))) {
            let (mut grants, mut bytes) = (GrantDelay::new(delay, 8), first);
            let slots = (0..2000).take_while(|slot| {
                let backlog = if bytes > 0 { bytes + 7 } else { 0 };
                let block: u64 = match grants.known_backlog(*slot, backlog) {
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
        assert_eq!([0, 1, 2, 3].map(|slot| grants.known_backlog(slot, 100)), [0, 0, 0, 100]);
        grants.grant(60);
        assert_eq!(grants.known_backlog(4, 40), 40, "60 of 100 are granted");
        grants.grant(40);
        assert_eq!(grants.known_backlog(5, 0), 0);
        // After a pause, the next packet waits as long as the first.
        assert_eq!([90, 91, 92, 93].map(|slot| grants.known_backlog(slot, 7)), [0, 0, 0, 7]);
        // A grant beyond the backlog is not deducted from later packets.
        grants.grant(1000);
        assert_eq!([94, 95, 96, 97].map(|slot| grants.known_backlog(slot, 50)), [0, 0, 0, 50]);
        assert_eq!(GrantDelay::new(0, 8).known_backlog(9, 5), 5);
    }
}
