//! Bounds of the memory in which data of relayed flows waits.
//!
//! The kernel lets each connection fill its socket buffers, whatever others hold, until the TCP memory of the whole machine is
//! short (`net.ipv4.tcp_mem`); then all connections suffer. The relay therefore measures what the directions of its flows *hold*:
//! the receive queue of one end, the send queue of the other, and the pipe between them.
//!
//! ```text
//!  bound of an owner = min(share, total - held by all, each at most its share)
//!  held by an owner > bound / 4 ─▶ its buffers are limited            < bound / 8 ─▶ they no longer are
//!    direction that moves: an equal part of (bound - held by those that stand), at least LEAST per buffer
//!    direction that stands: LEAST per buffer
//!  held by an owner > bound     ─▶ no new flows
//! ```
//!
//! The threshold for owners is that of Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches"
//! (1998), with factor 1: what is left is the bound of each, so that some is always left. It limits early because a buffer that was
//! enlarged for a fast flow can be filled within a measurement interval, and is never taken back with its content.

use super::flows::{Flow, Flows, Kind};
use super::pipe;
use anabranch_kern::socket::{self, SocketMemory};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval of the measurements.
const TICK: Duration = Duration::from_millis(100);
/// A direction without progress for this time stands.
const STANDS: Duration = Duration::from_secs(1);
/// Least limit of a socket buffer, bytes including the kernel's overhead: the kernel's initial receive buffer.
const LEAST: u32 = 128 << 10;
/// Limits of received data and of data to be sent that a direction which was limited may have again at least, as far as its share
/// permits. Multipath TCP sockets do not grow by themselves any more.
const AGAIN: [u32; 2] = [8 << 20, 4 << 20];
/// Maximum content of a pipe of a limited direction, bytes.
const LEAST_BATCH: usize = 16 << 10;
const PAGE_BYTES: u64 = 4096;

/// Bounds of held data, bytes including the kernel's overhead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Of all flows.
    pub total: u64,
    /// Of the flows of an owner.
    pub share: u64,
}

impl Bounds {
    /// The configured bounds, MiB. 0 as total: half of the memory from which the kernel limits all TCP connections of the
    /// machine. 0 as share: `1/part` of the total.
    pub fn of(total_mb: u32, share_mb: u32, part: u64) -> Self {
        let mb = |mb: u32| u64::from(mb) << 20;
        let total =
            if total_mb > 0 { mb(total_mb) } else { pressure_bytes().map_or(u64::MAX, |bytes| bytes / 2) };
        Self { total, share: if share_mb > 0 { mb(share_mb).min(total) } else { total / part } }
    }

    /// The bound of each owner, if owners hold `held`. What one holds beyond its share, because its buffers cannot be smaller,
    /// does not reduce the bound of others.
    fn of_owner(self, held: impl Iterator<Item = u64>) -> u64 {
        let held = held.map(|held| held.min(self.share)).sum();
        self.share.min(self.total.saturating_sub(held))
    }
}

/// A direction of a flow.
#[derive(Debug, Default)]
pub struct Direction {
    /// Bytes that the receiver's connection does not accept now.
    waits: AtomicUsize,
    limited: AtomicBool,
}

impl Direction {
    /// The receiver's connection has not accepted `bytes` bytes.
    pub fn wait_with(&self, bytes: usize) {
        self.waits.store(bytes, Relaxed);
    }

    /// Maximum number of bytes to take from the sender's connection at once.
    pub fn batch(&self) -> usize {
        if self.limited.load(Relaxed) { LEAST_BATCH } else { pipe::BYTES }
    }
}

/// What the flows of a relay hold.
#[derive(Debug, Default)]
pub struct Memory {
    over: Mutex<BTreeSet<IpAddr>>,
    held: AtomicU64,
    waiting: AtomicU64,
    limited: AtomicU64,
}

impl Memory {
    /// Whether flows of this owner hold more than they may.
    pub fn is_over(&self, owner: IpAddr) -> bool {
        self.over().contains(&owner)
    }

    /// Bytes held by all flows, and those of directions that stand, at the last measurement.
    pub fn bytes(&self) -> (u64, u64) {
        (self.held.load(Relaxed), self.waiting.load(Relaxed))
    }

    /// Number of directions of flows with limited buffers.
    pub fn limited(&self) -> u64 {
        self.limited.load(Relaxed)
    }

    fn over(&self) -> MutexGuard<'_, BTreeSet<IpAddr>> {
        // The mutex may be poisoned: each change is a single step.
        self.over.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the flows of a relay within `bounds`, for ever.
pub async fn watch<K: Kind>(flows: Arc<Flows<K>>, bounds: Bounds) -> Infallible {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut watched = Watch::default();
    loop {
        tick.tick().await;
        watched.look(&flows, bounds, Instant::now());
    }
}

#[derive(Default)]
struct Watch {
    known: BTreeMap<u64, [Measured; 2]>,
    /// Owners with limited buffers.
    tight: BTreeSet<IpAddr>,
}

/// What is known of a direction at a measurement.
#[derive(Debug, Clone, Copy)]
struct Measured {
    bytes: u64,
    moved: Instant,
    moves: bool,
    held: u64,
    /// Received data that cannot be read yet because earlier data is missing.
    early: u32,
    /// The present limits of received data and of data to be sent.
    limits: [u32; 2],
    /// The limits that it has without bounds, if it is limited.
    natural: Option<[u32; 2]>,
}

/// What the flows of an owner hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Owned {
    held: u64,
    /// Of it, in directions that stand.
    standing: u64,
    /// Number of directions that move.
    moving: u64,
}

impl Owned {
    /// The part of `bound` for each direction that moves.
    fn part(&self, bound: u64) -> u64 {
        bound.saturating_sub(self.standing) / self.moving.max(1)
    }
}

impl Watch {
    fn look<K: Kind>(&mut self, flows: &Flows<K>, bounds: Bounds, now: Instant) {
        let mut before = std::mem::take(&mut self.known);
        let mut owners = BTreeMap::<IpAddr, Owned>::new();
        let mut measured = Vec::with_capacity(before.len());
        for flow in flows.list(0, usize::MAX) {
            let Some(ends) = flow.ends.get() else { continue };
            let known = before.remove(&flow.id);
            let bytes = [&flow.up, &flow.down].map(|bytes| bytes.load(Relaxed));
            let rests = known.is_some_and(|known| {
                let idle = |i: usize| known[i].bytes == bytes[i] && known[i].held == 0;
                let waits = flow.directions.iter().any(|direction| direction.waits.load(Relaxed) > 0);
                idle(0) && idle(1) && !waits && !self.tight.contains(&flow.owner)
            });
            let directions = match known {
                // The sockets of an idle flow are as they were.
                Some(known) if rests => known.map(|direction| direction.at(now)),
                _ => {
                    // A connection that has ended holds nothing.
                    let memory = ends.each_ref().map(|end| socket::memory(end).unwrap_or_default());
                    [0, 1].map(|i| {
                        let waits = flow.directions[i].waits.load(Relaxed);
                        let known = known.map(|known| known[i]);
                        Measured::new(known, bytes[i], [memory[i], memory[1 - i]], waits, now)
                    })
                }
            };
            let owned = owners.entry(flow.owner).or_default();
            directions.iter().for_each(|direction| owned.add(direction));
            measured.push((flow, directions));
        }
        let bound = bounds.of_owner(owners.values().map(|owned| owned.held));
        let is_tight = |owner: &IpAddr, owned: &Owned| {
            owned.held > bound / if self.tight.contains(owner) { 8 } else { 4 }
        };
        self.tight = owners.iter().filter(|(owner, owned)| is_tight(owner, owned)).map(|(o, _)| *o).collect();
        let mut limited = 0;
        for (flow, mut directions) in measured {
            let part = self.tight.contains(&flow.owner).then(|| owners[&flow.owner].part(bound));
            adapt(&flow, &mut directions, part);
            limited += directions.iter().filter(|direction| direction.natural.is_some()).count() as u64;
            self.known.insert(flow.id, directions);
        }
        let memory = &flows.memory;
        *memory.over() = owners.iter().filter(|(_, owned)| owned.held > bound).map(|(o, _)| *o).collect();
        memory.held.store(owners.values().map(|owned| owned.held).sum(), Relaxed);
        memory.waiting.store(owners.values().map(|owned| owned.standing).sum(), Relaxed);
        memory.limited.store(limited, Relaxed);
    }
}

impl Owned {
    fn add(&mut self, direction: &Measured) {
        self.held += direction.held;
        if direction.moves {
            self.moving += 1;
        } else {
            self.standing += direction.held;
        }
    }
}

impl Measured {
    /// From the memory of sender's and receiver's connection, and the number of bytes in the pipe that wait.
    fn new(
        known: Option<Self>,
        bytes: u64,
        [from, to]: [SocketMemory; 2],
        waits: usize,
        now: Instant,
    ) -> Self {
        let moved = known.filter(|known| known.bytes == bytes).map_or(now, |known| known.moved);
        let direction = Self {
            bytes,
            moved,
            moves: false,
            held: u64::from(from.received) + u64::from(to.queued) + waits as u64,
            // The relay has read everything that can be read.
            early: if waits == 0 { from.received } else { 0 },
            limits: [from.receive_limit, to.send_limit],
            natural: known.and_then(|known| known.natural),
        };
        direction.at(now)
    }

    fn at(self, now: Instant) -> Self {
        Self { moves: now.saturating_duration_since(self.moved) < STANDS, ..self }
    }

    /// Its limits while its owner's buffers are limited, if each direction that moves has `part`.
    fn allowed(&self, part: u64) -> [u32; 2] {
        let natural = self.natural.unwrap_or(self.limits);
        let part = if self.moves { part } else { 0 };
        // What one buffer does not need is for the other.
        let least = u64::from(natural[0].min(natural[1]));
        let each = if least < part / 2 { part - least } else { part / 2 };
        let each = u32::try_from(each).unwrap_or(u32::MAX).max(LEAST);
        // A Multipath TCP receiver cannot take the missing data while its buffer is full.
        let receive = each.max(self.early.saturating_add(LEAST));
        [natural[0].min(receive), natural[1].min(each)]
    }
}

/// Limits the buffers of a flow, or restores them without a `part`.
fn adapt<K>(flow: &Flow<K>, directions: &mut [Measured; 2], part: Option<u64>) {
    let Some(ends) = flow.ends.get() else { return };
    let mut released = false;
    for (i, direction) in directions.iter_mut().enumerate() {
        let limits = part.map(|part| direction.allowed(part));
        let natural = match (limits, direction.natural) {
            (Some(limits), natural) if natural.is_some() || limits != direction.limits => {
                let of = natural.unwrap_or(direction.limits);
                Some([of[0].max(AGAIN[0]), of[1].max(AGAIN[1])])
            }
            (None, Some(_)) => {
                released = true;
                None
            }
            _ => continue,
        };
        let limits = limits.or(direction.natural).unwrap_or(direction.limits);
        direction.natural = natural;
        flow.directions[i].limited.store(natural.is_some(), Relaxed);
        // A connection that has ended needs no limits.
        if limits[0] != direction.limits[0] {
            let _ = socket::set_receive_limit(&ends[i], limits[0]);
        }
        if limits[1] != direction.limits[1] {
            let _ = socket::set_send_limit(&ends[1 - i], limits[1]);
        }
        direction.limits = limits;
    }
    if released {
        let limited = directions.map(|direction| direction.natural.is_some());
        for (i, end) in ends.iter().enumerate() {
            // Not possible for Multipath TCP: its limits remain.
            let _ = socket::keep_limits(end, limited[i], limited[1 - i]);
        }
    }
}

/// TCP memory of the machine from which the kernel limits all connections, bytes.
fn pressure_bytes() -> Option<u64> {
    let pages = |text: String| text.split_whitespace().nth(1)?.parse::<u64>().ok();
    match std::fs::read_to_string("/proc/sys/net/ipv4/tcp_mem") {
        Ok(text) => pages(text).map(|n| n * PAGE_BYTES),
        // Not shown in network namespaces: the kernel's default is 1/16 of the memory ("MemTotal: 1234 kB").
        Err(_) => pages(std::fs::read_to_string("/proc/meminfo").ok()?).map(|kib| (kib << 10) / 16),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEAST_PAIR: u64 = 2 * LEAST as u64;

    prop_compose! {
        fn direction()(
            held in 0u64..40 << 20,
            stands in any::<bool>(),
            waits in any::<bool>(),
            limits in [2304u32..40 << 20, 4608u32..8 << 20],
            limited in any::<bool>(),
        ) -> Measured {
            let now = Instant::now();
            let memory = SocketMemory { received: held as u32, receive_limit: limits[0], ..SocketMemory::default() };
            let to = SocketMemory { send_limit: limits[1], ..SocketMemory::default() };
            let mut direction = Measured::new(None, 0, [memory, to], usize::from(waits), now);
            direction.natural = limited.then(|| [limits[0].max(AGAIN[0]), limits[1].max(AGAIN[1])]);
            direction.at(now + if stands { STANDS } else { Duration::ZERO })
        }
    }

    proptest! {
        #[test]
        fn shares_are_within_the_bound_and_no_buffer_is_below_the_least(
            directions in proptest::collection::vec(direction(), 1..200),
            bound in 0u64..1 << 30,
            again in any::<proptest::sample::Index>(),
        ) {
            let sum = |directions: &[Measured]| {
                let mut owned = Owned::default();
                directions.iter().for_each(|direction| owned.add(direction));
                owned
            };
            let owned = sum(&directions);
            let part = owned.part(bound);
            let mut shares = 0;
            for direction in &directions {
                let natural = direction.natural.unwrap_or(direction.limits);
                let limits = direction.allowed(part);
                for (limit, natural) in limits.into_iter().zip(natural) {
                    prop_assert!(limit <= natural && limit >= natural.min(LEAST), "{direction:?}: {limits:?}");
                }
                let both = u64::from(limits[0]) + u64::from(limits[1]) - u64::from(limits[0].min(direction.early));
                if direction.moves {
                    shares += both.saturating_sub(LEAST_PAIR);
                } else {
                    prop_assert!(both <= LEAST_PAIR);
                }
            }
            prop_assert!(shares <= bound.saturating_sub(owned.standing), "{shares} of {bound}, {owned:?}");
            // One that stood and is read again has the share of the others.
            let mut directions = directions;
            let again = again.index(directions.len());
            directions[again].moves = true;
            let part = sum(&directions).part(bound);
            let natural = directions[again].natural.unwrap_or(directions[again].limits).map(u64::from);
            let limits = directions[again].allowed(part).map(u64::from);
            prop_assert!(limits[0] + limits[1] + 1 >= part.min(natural[0] + natural[1]));
        }

        #[test]
        fn an_owner_with_little_is_not_limited_while_others_have_their_bound(
            owners in 1u64..50,
            total in 1u64 << 20..1 << 40,
            part in 1u64..64,
            excess in 0u64..1 << 50,
        ) {
            let bounds = Bounds { total, share: total / part };
            // Owners fill their flows until each holds its bound.
            let all = |each| std::iter::repeat_n(each, owners as usize);
            let (mut each, step) = (0, total / 1000 / owners + 1);
            while each < bounds.of_owner(all(each)) {
                each += step;
            }
            let held = each * owners;
            let rest = bounds.of_owner(all(each));
            prop_assert!(held <= total);
            prop_assert!(rest >= bounds.share.min(total / (owners + 1)) / 2, "{rest} of {bounds:?}, {held} held");
            // However much the least buffers of others are.
            if owners < part {
                prop_assert!(bounds.of_owner(all(excess)) >= total / part);
            }
        }
    }
}
