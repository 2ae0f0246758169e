//! Flows to one host that began together, which [the law](super) places together.

use crate::{MAX_PATHS, PathId};
use anabranch_element::time::{Duration, Instant};

/// Flows to one host belong together if they begin within this time.
const GROUP: Duration = Duration::from_secs(2);
/// A host is a query host after this number of consecutive connections that were never bulk. A single one may have
/// been the control connection of a transfer.
const QUESTIONS: u8 = 2;

/// Flows to one host that began together. Connections and flows of datagrams form separate groups, because a call
/// is not part of a transfer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Group {
    pub remote: u64,
    pub datagram: bool,
    pub at: Instant,
    /// Open flows, by home.
    pub flows: [u8; MAX_PATHS],
    /// Consecutive connections that ended without ever being bulk.
    pub small: u8,
    /// Home of the last connection, if it was still bulk when it ended and had not come there only a moment before.
    pub bulk_home: Option<PathId>,
}

impl Group {
    /// Whether the host is a query host.
    pub const fn is_asked(&self) -> bool {
        self.small >= QUESTIONS
    }

    /// Whether a flow begun now belongs to it.
    pub fn is_recent(&self, now: Instant) -> bool {
        self.at != Instant::ZERO && now.saturating_since(self.at) <= GROUP
    }

    /// Whether a further flow is part of a transfer. With sequential queries, the last connection may close late,
    /// so a query host needs one more open flow. So does a flow that begins more than a round trip after the only open
    /// one (`rtt_us`: by path, microseconds), which may be the control connection of a transfer (iperf3, FTP).
    pub fn is_transfer(&self, rtt_us: impl Fn(PathId) -> u32, now: Instant) -> bool {
        let open: u16 = self.flows.iter().copied().map(u16::from).sum();
        let later = now.saturating_since(self.at);
        let is_later = |path: PathId| later > Duration::from_micros(rtt_us(path).into()) * 3 / 2;
        let is_single = open == 1 && (0..).zip(self.flows).any(|(path, flows)| flows > 0 && is_later(path));
        self.is_recent(now) && open > u16::from(self.is_asked() || is_single)
    }

    /// A connection with this home has ended; `lasted`: it was bulk to its end, and for longer than a moment there.
    pub fn end(&mut self, home: PathId, was_bulk: bool, lasted: bool) {
        let flows = &mut self.flows[usize::from(home)];
        *flows = flows.saturating_sub(1);
        self.bulk_home = lasted.then_some(home);
        self.small = if was_bulk { 0 } else { self.small.saturating_add(1) };
    }

    /// A flow begins on `home`. If the counter is at its maximum, all are halved, because most of the flows have
    /// probably ended.
    pub fn add(&mut self, home: PathId, now: Instant) {
        self.at = now;
        if self.flows[usize::from(home)] == u8::MAX {
            self.flows = self.flows.map(|flows| flows / 2);
        }
        self.flows[usize::from(home)] += 1;
    }
}
