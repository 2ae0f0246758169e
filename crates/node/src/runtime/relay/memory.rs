//! Bounds of the memory that relayed flows use for waiting data.
//!
//! The kernel lets each connection fill its socket buffers independently of others, until the TCP memory of the whole machine is
//! short (`net.ipv4.tcp_mem`); then it slows down all connections. The relay therefore measures the data that the directions of
//! its flows *hold*: the receive queue of one end, the send queue of the other, and the pipe between them.
//!
//! ```text
//!  bound of an owner = min(share, total - held by all, each at most its share)
//!  held by an owner > bound / 4 ─▶ its buffers are limited            < bound / 8 ─▶ no longer limited
//!    progressing direction: an equal part of (bound - held by stalled directions), at least MIN_BUFFER per buffer
//!    stalled direction: MIN_BUFFER per buffer
//!  held by an owner > bound     ─▶ no new flows
//! ```
//!
//! The threshold for owners is that of Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches"
//! (1998), with factor 1: the bound of each owner is the memory that is free, so some memory always remains free. Limits apply
//! early, because a buffer that was enlarged for a fast flow can fill up within a measurement interval and cannot be shrunk below
//! its content.

use super::flows::{Flow, Flows, RelayKind};
use super::pipe;
use anabranch_kern::socket::{self, SocketMemory};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval of the measurements.
const INTERVAL: Duration = Duration::from_millis(100);
/// A direction without progress for this time is stalled.
const STALLED_AFTER: Duration = Duration::from_secs(1);
/// Smallest limit of a socket buffer, bytes including the kernel's overhead: the kernel's initial receive buffer.
const MIN_BUFFER: u32 = 128 << 10;
/// Minimum limits, of received data and of data to be sent, when a direction is no longer limited, as far as its share permits.
/// The kernel does not resume automatic sizing for Multipath TCP sockets.
const RESTORED_LIMITS: [u32; 2] = [8 << 20, 4 << 20];
/// Maximum content of a pipe of a limited direction, bytes.
const MIN_BATCH: usize = 16 << 10;
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

    /// The bound of each owner, if owners hold `held`. An excess over the share, due to the smallest buffer size, does not
    /// reduce the bound of others.
    fn of_owner(self, held: impl Iterator<Item = u64>) -> u64 {
        let held = held.map(|held| held.min(self.share)).sum();
        self.share.min(self.total.saturating_sub(held))
    }
}

/// A direction of a flow.
#[derive(Debug, Default)]
pub struct Direction {
    /// Bytes in the pipe that the receiver's connection does not accept now.
    waiting_bytes: AtomicUsize,
    limited: AtomicBool,
}

impl Direction {
    /// The receiver's connection has not accepted `bytes` bytes.
    pub fn set_waiting(&self, bytes: usize) {
        self.waiting_bytes.store(bytes, Relaxed);
    }

    /// Maximum number of bytes to take from the sender's connection at once.
    pub fn batch(&self) -> usize {
        if self.limited.load(Relaxed) { MIN_BATCH } else { pipe::BYTES }
    }
}

/// Data held by the flows of a relay.
#[derive(Debug, Default)]
pub struct Memory {
    over: Mutex<BTreeSet<IpAddr>>,
    held: AtomicU64,
    waiting: AtomicU64,
    limited: AtomicU64,
}

impl Memory {
    /// Whether flows of this owner hold more than its bound.
    pub fn is_over(&self, owner: IpAddr) -> bool {
        self.over().contains(&owner)
    }

    /// Bytes held by all flows and by stalled directions, at the last measurement.
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
pub async fn watch<K: RelayKind>(flows: Arc<Flows<K>>, bounds: Bounds) -> Infallible {
    let mut tick = tokio::time::interval(INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut watched = Watch::default();
    loop {
        tick.tick().await;
        watched.measure(&flows, bounds, Instant::now());
    }
}

#[derive(Default)]
struct Watch {
    last: BTreeMap<u64, [DirectionMemory; 2]>,
    /// Owners with limited buffers.
    limited_owners: BTreeSet<IpAddr>,
}

/// A direction at the last measurement.
#[derive(Debug, Clone, Copy)]
struct DirectionMemory {
    bytes: u64,
    last_progress: Instant,
    progresses: bool,
    held: u64,
    /// Received bytes that cannot be read yet because earlier data is missing.
    out_of_order: u32,
    /// The present limits of received data and of data to be sent.
    limits: [u32; 2],
    /// The limits to restore, if it is limited.
    unlimited: Option<[u32; 2]>,
}

/// Data held by the flows of an owner, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct OwnerMemory {
    held: u64,
    /// Part of it in stalled directions.
    stalled: u64,
    /// Number of directions that are not stalled.
    progressing: u64,
}

impl OwnerMemory {
    /// The part of `bound` for each direction that is not stalled, bytes.
    fn part(&self, bound: u64) -> u64 {
        bound.saturating_sub(self.stalled) / self.progressing.max(1)
    }
}

impl Watch {
    fn measure<K: RelayKind>(&mut self, flows: &Flows<K>, bounds: Bounds, now: Instant) {
        let mut before = std::mem::take(&mut self.last);
        let mut owners = BTreeMap::<IpAddr, OwnerMemory>::new();
        let mut measured = Vec::with_capacity(before.len());
        for flow in flows.list(0, usize::MAX) {
            let Some(ends) = flow.ends.get() else { continue };
            let last = before.remove(&flow.id);
            let bytes = [&flow.up, &flow.down].map(|bytes| bytes.load(Relaxed));
            let is_idle = last.is_some_and(|last| {
                let idle = |i: usize| last[i].bytes == bytes[i] && last[i].held == 0;
                let waits = flow.directions.iter().any(|direction| direction.waiting_bytes.load(Relaxed) > 0);
                idle(0) && idle(1) && !waits && !self.limited_owners.contains(&flow.owner)
            });
            let directions = match last {
                // The sockets of an idle flow are as they were.
                Some(last) if is_idle => last.map(|direction| direction.at(now)),
                _ => {
                    // A connection that has ended holds nothing.
                    let memory = ends.each_ref().map(|end| socket::memory(end).unwrap_or_default());
                    [0, 1].map(|i| {
                        let waiting_bytes = flow.directions[i].waiting_bytes.load(Relaxed);
                        let last = last.map(|last| last[i]);
                        DirectionMemory::new(last, bytes[i], [memory[i], memory[1 - i]], waiting_bytes, now)
                    })
                }
            };
            let owned = owners.entry(flow.owner).or_default();
            directions.iter().for_each(|direction| owned.add(direction));
            measured.push((flow, directions));
        }
        let bound = bounds.of_owner(owners.values().map(|owned| owned.held));
        let is_limited = |owner: &IpAddr, owned: &OwnerMemory| {
            owned.held > bound / if self.limited_owners.contains(owner) { 8 } else { 4 }
        };
        self.limited_owners =
            owners.iter().filter(|(owner, owned)| is_limited(owner, owned)).map(|(o, _)| *o).collect();
        let mut limited = 0;
        for (flow, mut directions) in measured {
            let part = self.limited_owners.contains(&flow.owner).then(|| owners[&flow.owner].part(bound));
            apply_limits(&flow, &mut directions, part);
            limited += directions.iter().filter(|direction| direction.unlimited.is_some()).count() as u64;
            self.last.insert(flow.id, directions);
        }
        let memory = &flows.memory;
        *memory.over() = owners.iter().filter(|(_, owned)| owned.held > bound).map(|(o, _)| *o).collect();
        memory.held.store(owners.values().map(|owned| owned.held).sum(), Relaxed);
        memory.waiting.store(owners.values().map(|owned| owned.stalled).sum(), Relaxed);
        memory.limited.store(limited, Relaxed);
    }
}

impl OwnerMemory {
    fn add(&mut self, direction: &DirectionMemory) {
        self.held += direction.held;
        if direction.progresses {
            self.progressing += 1;
        } else {
            self.stalled += direction.held;
        }
    }
}

impl DirectionMemory {
    /// From the memory of sender's and receiver's connection, and the number of bytes in the pipe that wait.
    fn new(
        last: Option<Self>,
        bytes: u64,
        [from, to]: [SocketMemory; 2],
        waiting_bytes: usize,
        now: Instant,
    ) -> Self {
        let last_progress = last.filter(|last| last.bytes == bytes).map_or(now, |last| last.last_progress);
        let direction = Self {
            bytes,
            last_progress,
            progresses: false,
            held: u64::from(from.received) + u64::from(to.queued) + waiting_bytes as u64,
            // The relay has read everything that can be read.
            out_of_order: if waiting_bytes == 0 { from.received } else { 0 },
            limits: [from.receive_limit, to.send_limit],
            unlimited: last.and_then(|last| last.unlimited),
        };
        direction.at(now)
    }

    fn at(self, now: Instant) -> Self {
        Self { progresses: now.saturating_duration_since(self.last_progress) < STALLED_AFTER, ..self }
    }

    /// Its limits while its owner's buffers are limited, if each direction that is not stalled has `part`.
    fn allowed(&self, part: u64) -> [u32; 2] {
        let unlimited = self.unlimited.unwrap_or(self.limits);
        let part = if self.progresses { part } else { 0 };
        // Space that one buffer does not need is available to the other.
        let least = u64::from(unlimited[0].min(unlimited[1]));
        let each = if least < part / 2 { part - least } else { part / 2 };
        let each = u32::try_from(each).unwrap_or(u32::MAX).max(MIN_BUFFER);
        // A Multipath TCP receiver cannot take the missing data while its buffer is full.
        let receive = each.max(self.out_of_order.saturating_add(MIN_BUFFER));
        [unlimited[0].min(receive), unlimited[1].min(each)]
    }
}

/// Limits the buffers of a flow, or restores them without a `part`.
fn apply_limits<K>(flow: &Flow<K>, directions: &mut [DirectionMemory; 2], part: Option<u64>) {
    let Some(ends) = flow.ends.get() else { return };
    let mut released = false;
    for (i, direction) in directions.iter_mut().enumerate() {
        let limits = part.map(|part| direction.allowed(part));
        let unlimited = match (limits, direction.unlimited) {
            (Some(limits), unlimited) if unlimited.is_some() || limits != direction.limits => {
                let of = unlimited.unwrap_or(direction.limits);
                Some([of[0].max(RESTORED_LIMITS[0]), of[1].max(RESTORED_LIMITS[1])])
            }
            (None, Some(_)) => {
                released = true;
                None
            }
            _ => continue,
        };
        let limits = limits.or(direction.unlimited).unwrap_or(direction.limits);
        direction.unlimited = unlimited;
        flow.directions[i].limited.store(unlimited.is_some(), Relaxed);
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
        let limited = directions.map(|direction| direction.unlimited.is_some());
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

    const MIN_BUFFER_PAIR: u64 = 2 * MIN_BUFFER as u64;

    prop_compose! {
        fn direction()(
            held in 0u64..40 << 20,
            stalls in any::<bool>(),
            waits in any::<bool>(),
            limits in [2304u32..40 << 20, 4608u32..8 << 20],
            limited in any::<bool>(),
        ) -> DirectionMemory {
            let now = Instant::now();
            let memory = SocketMemory { received: held as u32, receive_limit: limits[0], ..SocketMemory::default() };
            let to = SocketMemory { send_limit: limits[1], ..SocketMemory::default() };
            let mut direction = DirectionMemory::new(None, 0, [memory, to], usize::from(waits), now);
            direction.unlimited = limited.then(|| [limits[0].max(RESTORED_LIMITS[0]), limits[1].max(RESTORED_LIMITS[1])]);
            direction.at(now + if stalls { STALLED_AFTER } else { Duration::ZERO })
        }
    }

    proptest! {
        #[test]
        fn shares_are_within_the_bound_and_no_buffer_is_below_the_least(
            directions in proptest::collection::vec(direction(), 1..200),
            bound in 0u64..1 << 30,
            again in any::<proptest::sample::Index>(),
        ) {
            let sum = |directions: &[DirectionMemory]| {
                let mut owned = OwnerMemory::default();
                directions.iter().for_each(|direction| owned.add(direction));
                owned
            };
            let owned = sum(&directions);
            let part = owned.part(bound);
            let mut shares = 0;
            for direction in &directions {
                let unlimited = direction.unlimited.unwrap_or(direction.limits);
                let limits = direction.allowed(part);
                for (limit, unlimited) in limits.into_iter().zip(unlimited) {
                    prop_assert!(limit <= unlimited && limit >= unlimited.min(MIN_BUFFER), "{direction:?}: {limits:?}");
                }
                let both = u64::from(limits[0]) + u64::from(limits[1]) - u64::from(limits[0].min(direction.out_of_order));
                if direction.progresses {
                    shares += both.saturating_sub(MIN_BUFFER_PAIR);
                } else {
                    prop_assert!(both <= MIN_BUFFER_PAIR);
                }
            }
            prop_assert!(shares <= bound.saturating_sub(owned.stalled), "{shares} of {bound}, {owned:?}");
            // A stalled direction that progresses again has the share of the others.
            let mut directions = directions;
            let again = again.index(directions.len());
            directions[again].progresses = true;
            let part = sum(&directions).part(bound);
            let unlimited = directions[again].unlimited.unwrap_or(directions[again].limits).map(u64::from);
            let limits = directions[again].allowed(part).map(u64::from);
            prop_assert!(limits[0] + limits[1] + 1 >= part.min(unlimited[0] + unlimited[1]));
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
