//! Path MTU discovery by probing (DPLPMTUD, RFC 8899), per path, without relying on ICMP.
//!
//! All sizes are **outer UDP payloads** in bytes: what is handed to the socket. The owner sends a
//! probe of the size asked for, padded, with the don't-fragment bit set; the peer acknowledges what
//! arrived. Nothing else is ever sent larger than [`PathMtu::current`].
//!
//! ```text
//!            ┌──────── base acked ────────┐
//!            │                            ▼
//!  new ──▶ BASE ◀─── current lost ─── SEARCHING ──── nothing left to try ───▶ COMPLETE
//!            │ ▲      (black hole)     ▲      ▲                                │  │
//!   3 lost   │ │                       │      └────── raise timer 600 s ───────┘  │
//!            ▼ │                       │                                          │
//!          ERROR ── base acked ────────┘     BASE ◀──── current lost (30 s, or suspect) ┘
//! ```
//!
//! *Search*: the largest size first, as most paths carry it; after a failure by halving between what
//! was acknowledged and what failed, down to 8 bytes. A size has failed after three probes without an
//! acknowledgement in 1 s each (MAX_PROBES and the least PROBE_TIMER of RFC 8899 §5.1).
//! *Black hole* (§4.3): the current size is confirmed every 30 s, and at once when the owner suspects
//! it (its counters show data lost while small probes pass). If three confirmations are lost, the
//! path falls back to the base size and searches again below what failed.

use crate::element::Reason;
use crate::time::{Duration, Instant};

/// The base: an IP packet of 1280 bytes, IPv6's least MTU, less 40 of IPv6 and 8 of UDP.
pub const BASE_BYTES: u16 = 1232;
/// Used while not even the base passes: an IPv4 datagram every host accepts (576 less 28).
pub const MIN_BYTES: u16 = 548;

const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_PROBES: u8 = 3;
const GRANULARITY: u16 = 8;
const CONFIRM: Duration = Duration::from_secs(30);
const RAISE: Duration = Duration::from_secs(600);
/// Between a confirmation and the next one on suspicion.
const SUSPECT_AGAIN: Duration = Duration::from_secs(1);
/// Between attempts at the base in ERROR.
const RETRY: Duration = Duration::from_secs(5);

/// Where the search stands (RFC 8899 §5.2; its DISABLED has no object here).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The base size is being confirmed.
    Base,
    /// Larger sizes are being tried.
    Searching,
    /// The largest size is known.
    Complete,
    /// Not even the base passes.
    Error,
}

/// What a search has found, for as long as the path is not used: four bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    /// Largest size acknowledged; 0: never searched.
    low: u16,
    /// Smallest size that failed.
    high: u16,
}

impl Found {
    /// The largest UDP payload that is known to pass, in bytes; 0 if that was never searched.
    #[must_use]
    pub const fn low_bytes(self) -> u16 {
        self.low
    }
}

/// Path MTU state of one path in one direction.
#[derive(Debug, Clone)]
pub struct PathMtu {
    /// The next thing to do: send a probe, or give up on the one in flight.
    due: Instant,
    confirm_at: Instant,
    raise_at: Instant,
    /// Largest size worth trying.
    max: u16,
    /// Largest size acknowledged, or assumed in BASE and ERROR.
    low: u16,
    /// Smallest size that failed; above `max`: none did.
    high: u16,
    /// Size in flight or to be repeated; 0: none.
    probe: u16,
    attempts: u8,
    in_flight: bool,
    phase: Phase,
}

impl PathMtu {
    /// A path whose interface, or whose configuration, allows UDP payloads up to `max` bytes.
    #[must_use]
    pub fn new(max: u16, now: Instant) -> Self {
        let max = max.clamp(MIN_BYTES, u16::MAX - 1);
        Self {
            due: now,
            confirm_at: now,
            raise_at: now,
            max,
            low: BASE_BYTES.min(max),
            high: max + 1,
            probe: 0,
            attempts: 0,
            in_flight: false,
            phase: Phase::Base,
        }
    }

    /// A path whose search had found this: it goes on from there, and confirms it first.
    #[must_use]
    pub fn resume(found: Found, max: u16, now: Instant) -> Self {
        let mut mtu = Self::new(max, now);
        if found.low > 0 && found.low <= mtu.max && found.low < found.high {
            mtu.low = found.low;
            mtu.high = found.high.min(mtu.max + 1);
            mtu.phase = if found.low < BASE_BYTES.min(mtu.max) { Phase::Error } else { Phase::Searching };
        }
        mtu
    }

    /// What the search has found so far.
    #[must_use]
    pub const fn found(&self) -> Found {
        match self.phase {
            Phase::Base if self.high > self.max => Found { low: 0, high: 0 },
            _ => Found { low: self.low, high: self.high },
        }
    }

    /// The largest UDP payload to send now, in bytes.
    #[must_use]
    pub const fn current(&self) -> u16 {
        self.low
    }

    /// Where the search stands.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// UDP payload that user data may fill: the largest worth trying until a size has failed, then what
    /// was acknowledged. Starting low instead would have senders cache a path MTU far too small.
    #[must_use]
    pub const fn usable(&self) -> u16 {
        let nothing_failed = self.high > self.max;
        if nothing_failed && !matches!(self.phase, Phase::Error) { self.max } else { self.low }
    }

    /// The UDP payload size of the probe to send now, if one is due. It counts as sent.
    pub fn poll_probe(&mut self, now: Instant) -> Option<u16> {
        if self.in_flight || self.due > now {
            return None;
        }
        if self.probe == 0 {
            self.probe = self.choose(now)?;
        }
        self.in_flight = true;
        self.due = now + PROBE_TIMEOUT;
        Some(self.probe)
    }

    /// The peer acknowledged a probe of `size` bytes.
    pub fn on_ack(&mut self, size: u16, now: Instant) {
        if self.probe == 0 || size != self.probe {
            return; // late, or never sent
        }
        let confirms = size == self.low;
        self.settled(now);
        self.low = size;
        self.confirm_at = now + CONFIRM;
        match self.phase {
            Phase::Base | Phase::Error => self.phase = Phase::Searching,
            Phase::Searching | Phase::Complete if confirms => {}
            Phase::Searching | Phase::Complete => self.high = self.high.max(size.saturating_add(1)),
        }
        self.schedule(now);
    }

    /// Gives up on an unanswered probe if its time is over; harmless otherwise.
    pub fn on_timeout(&mut self, now: Instant) {
        if !self.in_flight || self.due > now {
            return;
        }
        self.in_flight = false;
        self.attempts += 1;
        if self.attempts < MAX_PROBES {
            self.due = now; // the same size again
            return;
        }
        let size = self.probe;
        self.settled(now);
        match self.phase {
            Phase::Base | Phase::Error => {
                self.phase = Phase::Error;
                self.low = MIN_BYTES;
                self.due = now + RETRY;
            }
            Phase::Searching | Phase::Complete if size <= self.low => {
                self.fall_back(size);
                self.due = now;
            }
            Phase::Searching | Phase::Complete => {
                self.high = size;
                self.schedule(now);
            }
        }
    }

    /// When [`Self::on_timeout`], then [`Self::poll_probe`], should be called next, and why.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        Some((self.due, if self.in_flight { "mtu probe lost" } else { "mtu probe" }))
    }

    /// Large packets seem to vanish: confirm the current size now, unless that was done within a second.
    pub fn suspect(&mut self, now: Instant) {
        let lately = self.confirm_at > now + (CONFIRM - SUSPECT_AGAIN);
        let settled = matches!(self.phase, Phase::Searching | Phase::Complete);
        if settled && !lately && self.probe != self.low {
            self.settled(now);
            self.confirm_at = now;
            self.due = now;
        }
    }

    /// A router's packet-too-big, or the socket's own refusal, named `limit` bytes of UDP payload.
    ///
    /// Only believed downwards and not below the base, as it may be forged (RFC 8899 §4.6.1).
    pub fn on_too_big(&mut self, limit: u16, now: Instant) {
        let base = BASE_BYTES.min(self.max);
        if matches!(self.phase, Phase::Base | Phase::Error) || limit >= self.high - 1 || limit < base {
            return;
        }
        self.high = limit + 1;
        if self.low > limit {
            self.low = limit;
            self.confirm_at = now;
        }
        if self.probe > limit {
            self.settled(now);
        }
        if self.probe == 0 {
            self.schedule(now);
        }
    }

    /// The size to try next, if any is due.
    fn choose(&mut self, now: Instant) -> Option<u16> {
        if matches!(self.phase, Phase::Base | Phase::Error) {
            return Some(BASE_BYTES.min(self.max));
        }
        if self.confirm_at <= now {
            return Some(self.low);
        }
        if self.phase == Phase::Complete && self.raise_at <= now {
            self.phase = Phase::Searching;
            self.high = self.max + 1;
        }
        let size = self.candidate();
        if size.is_none() {
            self.schedule(now);
        }
        size.filter(|_| self.phase == Phase::Searching)
    }

    fn candidate(&self) -> Option<u16> {
        let room = self.high - self.low;
        if self.low >= self.max {
            None
        } else if self.high > self.max {
            Some(self.max)
        } else {
            (room > GRANULARITY).then(|| self.low + room / 2)
        }
    }

    /// What comes next once no probe is in flight.
    fn schedule(&mut self, now: Instant) {
        if self.phase == Phase::Searching {
            if self.candidate().is_some() {
                self.due = now;
                return;
            }
            self.phase = Phase::Complete;
            self.raise_at = now + RAISE;
        }
        self.due = if self.low < self.max { self.confirm_at.min(self.raise_at) } else { self.confirm_at };
    }

    /// The current size does not pass any more.
    fn fall_back(&mut self, failed: u16) {
        self.phase = Phase::Base;
        self.low = BASE_BYTES.min(self.max);
        self.high = if failed > self.low { failed } else { self.max + 1 };
    }

    fn settled(&mut self, now: Instant) {
        self.probe = 0;
        self.attempts = 0;
        self.in_flight = false;
        self.due = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RTT: Duration = Duration::from_millis(40);

    /// A channel that carries payloads up to a size and loses every n-th probe.
    struct Bed {
        mtu: PathMtu,
        now: Instant,
        carries: u16,
        sent: Vec<u16>,
        lose_every: usize,
    }

    impl Bed {
        fn new(max: u16, carries: u16) -> Self {
            Self {
                mtu: PathMtu::new(max, Instant::ZERO),
                now: Instant::ZERO,
                carries,
                sent: Vec::new(),
                lose_every: usize::MAX,
            }
        }

        /// Lets `seconds` pass.
        fn run(&mut self, seconds: u64) {
            let end = self.now + Duration::from_secs(seconds);
            let mut steps = 0;
            while let Some((at, _)) = self.mtu.poll_timeout().filter(|(at, _)| *at <= end) {
                self.now = self.now.max(at);
                self.mtu.on_timeout(self.now);
                if let Some(size) = self.mtu.poll_probe(self.now) {
                    self.sent.push(size);
                    assert!(size <= self.mtu.max);
                    if size <= self.carries && !self.sent.len().is_multiple_of(self.lose_every) {
                        self.now += RTT;
                        self.mtu.on_ack(size, self.now);
                    }
                }
                steps += 1;
                assert!(steps < 10_000, "spins: {:?}", self.mtu);
            }
            self.now = self.now.max(end);
        }
    }

    #[test]
    fn it_is_small() {
        assert!(size_of::<PathMtu>() <= 64);
    }

    #[test]
    fn a_path_that_carries_the_maximum_needs_two_probes() {
        let mut bed = Bed::new(1472, 9000);
        assert_eq!(bed.mtu.current(), BASE_BYTES);
        bed.run(1);
        assert_eq!((bed.mtu.current(), &bed.sent[..]), (1472, &[1232, 1472][..]));
        assert_eq!(bed.mtu.phase(), Phase::Complete);
        bed.run(100);
        assert_eq!(bed.sent[2..], [1472; 3], "only confirmations follow");
    }

    #[test]
    fn a_smaller_path_is_found_within_the_granularity() {
        let mut bed = Bed::new(1472, 1412);
        bed.run(30);
        let current = bed.mtu.current();
        assert!((1412 - GRANULARITY..=1412).contains(&current), "{current}");
        assert_eq!(bed.mtu.phase(), Phase::Complete);
    }

    #[test]
    fn a_shrinking_path_is_noticed_and_a_growing_one_used_again() {
        let mut bed = Bed::new(1472, 1472);
        bed.run(5);
        bed.carries = 1300;
        bed.run(60);
        assert!((1292..=1300).contains(&bed.mtu.current()), "{:?}", bed.mtu);
        bed.carries = 1472;
        bed.run(600);
        assert_eq!(bed.mtu.current(), 1472);
    }

    #[test]
    fn a_suspicion_finds_a_black_hole_in_three_seconds() {
        let mut bed = Bed::new(1472, 1472);
        bed.run(5);
        bed.carries = 1250;
        bed.mtu.suspect(bed.now);
        bed.run(3);
        assert!(bed.mtu.current() <= 1250);
        bed.run(40);
        assert!((1242..=1250).contains(&bed.mtu.current()), "{:?}", bed.mtu);
        // A wrong suspicion costs one probe, and no more than one a second.
        let (before, sent) = (bed.mtu.current(), bed.sent.len());
        for _ in 0..10 {
            bed.mtu.suspect(bed.now);
            bed.now += Duration::from_millis(50);
            bed.run(0);
        }
        assert_eq!((bed.mtu.current(), bed.sent.len()), (before, sent + 1));
    }

    #[test]
    fn what_was_found_survives_a_rest_and_is_confirmed_after_it() {
        for carries in [1000, 1232, 1380, 1472] {
            let mut bed = Bed::new(1472, carries);
            bed.run(40);
            let (found, usable) = (bed.mtu.found(), bed.mtu.usable());
            bed.now += Duration::from_secs(3600);
            bed.mtu = PathMtu::resume(found, 1472, bed.now);
            assert_eq!(bed.mtu.usable(), usable, "no packet is sent that was too large before");
            bed.sent.clear();
            bed.run(40);
            assert_eq!((bed.mtu.usable(), bed.sent[0]), (usable, usable.max(BASE_BYTES)));
        }
        let fresh = PathMtu::resume(Found::default(), 1472, Instant::ZERO);
        assert_eq!((fresh.usable(), fresh.phase()), (1472, Phase::Base));
        assert_eq!(size_of::<Found>(), 4);
    }

    #[test]
    fn a_path_below_the_base_is_an_error_until_it_grows() {
        let mut bed = Bed::new(1472, 1000);
        bed.run(20);
        assert_eq!((bed.mtu.phase(), bed.mtu.current()), (Phase::Error, MIN_BYTES));
        bed.carries = 1472;
        bed.run(10);
        assert_eq!((bed.mtu.phase(), bed.mtu.current()), (Phase::Complete, 1472));
    }

    #[test]
    fn packet_too_big_is_believed_downwards_to_the_base() {
        let mut bed = Bed::new(1472, 1472);
        bed.run(1);
        bed.mtu.on_too_big(600, bed.now);
        bed.mtu.on_too_big(2000, bed.now);
        assert_eq!(bed.mtu.current(), 1472);
        bed.carries = 1380;
        bed.mtu.on_too_big(1380, bed.now);
        assert_eq!(bed.mtu.current(), 1380);
        bed.run(1);
        assert_eq!((bed.mtu.current(), bed.sent.last()), (1380, Some(&1380)));
    }

    #[test]
    fn forged_and_late_acknowledgements_change_nothing() {
        let mut bed = Bed::new(1472, 1300);
        bed.mtu.on_ack(1472, bed.now);
        assert_eq!(bed.mtu.current(), BASE_BYTES);
        bed.run(40);
        let found = bed.mtu.current();
        for size in [0, 1, 1472, u16::MAX, found] {
            bed.mtu.on_ack(size, bed.now);
        }
        assert_eq!(bed.mtu.current(), found);
    }

    #[test]
    fn extreme_maxima_are_survived() {
        for max in [0, 547, 548, 1231, 1232, 1233, u16::MAX] {
            let mut bed = Bed::new(max, u16::MAX);
            bed.run(50);
            assert_eq!(bed.mtu.current(), max.clamp(MIN_BYTES, u16::MAX - 1));
        }
    }

    proptest! {
        /// Whatever the sizes, with every third or so probe lost: 15 minutes after a change (the raise
        /// timer is ten) the size is right to the granularity.
        #[test]
        fn it_converges(max in 600..9000_u16, changes in prop::collection::vec(600..9000_u16, 1..4), lose_every in 3..9_usize) {
            let mut bed = Bed::new(max, changes[0]);
            bed.lose_every = lose_every;
            for carries in changes {
                bed.carries = carries;
                bed.run(900);
                let (current, right) = (bed.mtu.current(), carries.min(max));
                if right < BASE_BYTES.min(max) {
                    prop_assert_eq!(current, MIN_BYTES);
                } else {
                    prop_assert!(current <= right, "{} of {}", current, right);
                    prop_assert!(current + GRANULARITY >= right, "{} of {}", current, right);
                }
            }
        }
    }
}
