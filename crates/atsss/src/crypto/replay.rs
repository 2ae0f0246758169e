//! Replay protection: a sliding window per path and key epoch (RFC 4303 §3.4.3, RFC 6479), and the
//! greatest timestamp per UE for inits (WireGuard §5.1).
//!
//! ```text
//!            next - 1024                       next
//!   too old │ seen or not, one bit each         │ new
//!  ─────────┴───────────────────────────────────┴───────▶ packet number
//! ```

use thiserror::Error;

/// Range of packet numbers within which packets may arrive out of order on one path.
const WINDOW: u64 = 1024;
const WORDS: usize = (WINDOW / 64) as usize;

/// Why a packet number is rejected. Each reason has a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Replay {
    /// It has already arrived.
    #[error("packet number has arrived already")]
    Duplicate,
    /// It is too old to know whether it has arrived.
    #[error("packet number is older than the window")]
    TooOld,
}

/// The packet numbers of one path that have arrived, exact for the last 1024.
///
/// At rest it takes 24 bytes and is exact for the last 64. The other bits, 128 bytes on the heap, exist
/// between the first packet and [`ReplayWindow::cool_down`].
#[derive(Debug, Clone, Default)]
pub struct ReplayWindow {
    /// One more than the highest number that arrived.
    next: u64,
    /// At rest, bit `n`: whether `next - 1 - n` has arrived. Older numbers count as having arrived.
    recent: u64,
    /// Bit `pn % 1024`: whether `pn` of the window has arrived. `None`: at rest.
    bits: Option<Box<[u64; WORDS]>>,
}

/// Packet numbers that are exact at rest.
const RECENT: u64 = u64::BITS as u64;

impl ReplayWindow {
    /// Whether `pn` may be new. Cheap, so to be called before opening the packet.
    ///
    /// # Errors
    /// [`Replay`] if it is not new.
    #[inline]
    pub fn check(&self, pn: u64) -> Result<(), Replay> {
        if pn >= self.next {
            return Ok(());
        }
        let age = self.next - pn;
        let arrived = match &self.bits {
            Some(bits) if age <= WINDOW => {
                let (word, bit) = place(pn);
                bits[word] & bit != 0
            }
            None if age <= RECENT => self.recent >> (age - 1) & 1 != 0,
            _ => return Err(Replay::TooOld),
        };
        if arrived { Err(Replay::Duplicate) } else { Ok(()) }
    }

    /// Notes that `pn` has arrived, after its packet was authenticated. Returns whether it is the highest one
    /// so far (only such a packet may move a path to a new address).
    ///
    /// A number that [`ReplayWindow::check`] rejects changes nothing.
    #[inline]
    pub fn commit(&mut self, pn: u64) -> bool {
        if self.check(pn).is_err() {
            return false;
        }
        let (next, recent) = (self.next, self.recent);
        let bits = self.bits.get_or_insert_with(|| awake(next, recent));
        let highest = pn >= self.next;
        if highest {
            // The skipped numbers have not arrived; their bits still belong to older ones.
            if pn - self.next >= WINDOW {
                **bits = [0; WORDS];
            } else {
                for skipped in self.next..pn {
                    let (word, bit) = place(skipped);
                    bits[word] &= !bit;
                }
            }
            self.next = pn.saturating_add(1);
        }
        let (word, bit) = place(pn);
        bits[word] |= bit;
        highest
    }

    /// Frees the bits: from now on, everything older than the last 64 counts as too old. For a path with few
    /// packets in flight.
    pub fn cool_down(&mut self) {
        let Some(bits) = self.bits.take() else { return };
        self.recent = 0;
        for age in 1..=RECENT.min(self.next) {
            let (word, bit) = place(self.next - age);
            self.recent |= u64::from(bits[word] & bit != 0) << (age - 1);
        }
    }

    /// One more than the highest number that arrived.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }
}

/// The bits of a window that was at rest; the numbers whose bits were freed count as having arrived.
#[cold]
fn awake(next: u64, recent: u64) -> Box<[u64; WORDS]> {
    let mut bits = Box::new([if next <= RECENT { 0 } else { u64::MAX }; WORDS]);
    for age in 1..=RECENT.min(next) {
        let (word, bit) = place(next - age);
        if recent >> (age - 1) & 1 == 0 {
            bits[word] &= !bit;
        } else {
            bits[word] |= bit;
        }
    }
    bits
}

#[inline]
fn place(pn: u64) -> (usize, u64) {
    ((pn % WINDOW / 64) as usize, 1 << (pn % 64))
}

/// The greatest timestamp of a UE's inits. An init is accepted only with a greater one, so a recorded init is
/// useless. Kept per configured UE, across its sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimestampGuard(u64);

impl TimestampGuard {
    /// Accepts a timestamp greater than every one before.
    pub fn accept(&mut self, timestamp_ns: u64) -> bool {
        let fresh = timestamp_ns > self.0;
        if fresh {
            self.0 = timestamp_ns;
        }
        fresh
    }

    /// The greatest timestamp so far, in ns; 0 before the first.
    #[must_use]
    #[cfg(test)]
    pub fn greatest_ns(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn in_order_out_of_order_and_again() {
        let mut w = ReplayWindow::default();
        assert!(w.commit(0));
        assert!(w.commit(5));
        assert_eq!(w.check(5), Err(Replay::Duplicate));
        assert_eq!(w.check(3), Ok(()));
        assert!(!w.commit(3));
        assert_eq!(w.check(3), Err(Replay::Duplicate));
        assert!(w.commit(1024));
        assert_eq!(w.check(0), Err(Replay::TooOld));
        assert_eq!(w.check(1), Ok(()), "the oldest of 1024");
        assert!(w.commit(10_000));
        assert_eq!(w.check(10_000 - 1024), Err(Replay::TooOld));
        assert_eq!(w.check(10_000 - 1023), Ok(()));
    }

    #[test]
    fn the_last_number_of_all_does_not_overflow() {
        let mut w = ReplayWindow::default();
        assert!(w.commit(u64::MAX - 1));
        assert_eq!(w.check(u64::MAX - 1), Err(Replay::Duplicate));
        assert!(w.commit(u64::MAX));
        assert_eq!(w.check(u64::MAX - 5), Ok(()));
    }

    #[test]
    fn cooling_keeps_all_that_arrived_and_most_that_did_not() {
        let mut w = ReplayWindow::default();
        for pn in (0..200).filter(|pn| pn % 3 != 0) {
            w.commit(pn);
        }
        w.cool_down();
        for pn in 0..200 {
            let expected = match pn {
                0..136 => Err(Replay::TooOld),
                _ if pn % 3 != 0 => Err(Replay::Duplicate),
                _ => Ok(()),
            };
            assert_eq!(w.check(pn), expected, "{pn}");
        }
        assert!(w.commit(210));
        assert_eq!(w.check(135), Err(Replay::Duplicate), "counts as arrived");
        assert_eq!(w.check(199), Err(Replay::Duplicate));
        assert_eq!(w.check(198), Ok(()));
        assert_eq!(w.check(209), Ok(()), "skipped after waking");
        let mut fresh = ReplayWindow::default();
        fresh.cool_down();
        assert!(fresh.commit(3));
        assert_eq!(fresh.check(0), Ok(()));
        assert_eq!(size_of::<ReplayWindow>(), 24);
    }

    #[test]
    fn timestamps_must_grow() {
        let mut g = TimestampGuard::default();
        assert!(!g.accept(0));
        assert!(g.accept(10));
        assert!(!g.accept(10));
        assert!(!g.accept(9));
        assert!(g.accept(11));
        assert_eq!(g.greatest_ns(), 11);
    }

    proptest! {
        /// Compared with a set that remembers everything.
        #[test]
        fn agrees_with_a_set(
            steps in proptest::collection::vec((0u64..3000, any::<bool>(), 0u8..10), 1..300),
            naps: bool,
        ) {
            let mut window = ReplayWindow::default();
            let mut seen: BTreeSet<u64> = BTreeSet::new();
            let mut base = 0;
            for (offset, advance, nap) in steps {
                if naps && nap == 0 {
                    window.cool_down();
                    let next = seen.last().map_or(0u64, |h| h + 1);
                    let (oldest, recent) = (next.saturating_sub(WINDOW), next.saturating_sub(RECENT));
                    for pn in 0..next {
                        prop_assert_eq!(window.check(pn).is_ok(), pn >= recent && !seen.contains(&pn));
                    }
                    // Forgotten numbers count as having arrived.
                    seen.extend(oldest..recent);
                    prop_assert!(window.commit(next));
                    seen.insert(next);
                }
                let pn = base + offset;
                if advance {
                    base += offset / 4;
                }
                let next = seen.last().map_or(0, |h| h + 1);
                let expected = if seen.contains(&pn) && next - pn <= WINDOW {
                    Err(Replay::Duplicate)
                } else if pn < next && next - pn > WINDOW {
                    Err(Replay::TooOld)
                } else {
                    Ok(())
                };
                prop_assert_eq!(window.check(pn), expected);
                prop_assert_eq!(window.commit(pn), expected.is_ok() && pn >= next);
                if expected.is_ok() {
                    seen.insert(pn);
                }
            }
        }
    }
}
