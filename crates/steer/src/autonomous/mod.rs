//! Autonomous load-balance: each flow has a home path, and individual packets leave it only for a path where they
//! arrive no later, or, within strict limits, later.
//!
//! TS 23.501 §5.32.8, *Load-Balancing with autonomous load-balance indicator*, lets UE and UPF choose "percentages
//! ... for maximum throughput" and leaves the algorithm open; JUNCTION has only fixed ratios. The law below decides
//! per packet, from the path models ([`LoadView`]). docs/atsss-steering.md describes and derives it.
//!
//! ```text
//!   arrival(p)   base forward delay of p + queue of p
//!
//!   home         the path to which a flow is assigned; it changes rarely
//!   estimate     capacity of a path, measured by traffic that filled it, or by trains while it was idle
//!   spill        if the home has a queue, a packet of a bulk flow takes another path q with arrival(q) < arrival(home).
//!                q must be below its drop level (a small path: below half of it, or have a short queue), and must not
//!                be too small compared with the home
//!   overflow     if the home has reached a part of its drop level, q may also have a later arrival, as long as that does
//!                not reduce the rate. Only for flows that send an eighth of what the home carries, and only if the
//!                window for both paths grows soon
//!   placement    first flow: the path on which a transfer of 100 kB would end first, by the estimates, or one with twice
//!                the capacity where it ends little later. Further flows to the same host within 2 s, while one is open
//!                (within 1.5 round trips, if it is the only one): parts of a transfer, spread in proportion to the
//!                estimates. Next flow of a host whose last connections
//!                stayed small: the earliest arrival
//!   move         if a path is full and has two or more bulk flows, and another stays without a queue, one flow of the
//!                first moves to the second; at most one every 500 ms
//! ```
//!
//! *Why spilled packets do no harm.* A spilled packet arrives no later than behind the queue of its home. Whatever
//! the sender's congestion control, the largest delay that it sees is that of the home alone. If it slows down, the
//! queue of the home drains and the spill stops, so there is no feedback that could starve it.
//!
//! *Why packets overflow.* If the queue of the home is shorter than the difference of the delays, no packet ever
//! spills. An overflowing packet arrives later than packets sent after it. The sender then needs a larger window to
//! keep the home full, and may lose rate until it has one. The total rate is therefore compared with the capacity
//! of the homes (harm control): after two periods below 95 %, packets overflow only at a higher queue, and after
//! two more not at all, for 16 s, then 32 s, and at most 128 s.
//!
//! *A lone flow on the smaller path.* The only bulk flow of its home moves to an idle path with twice the capacity,
//! in its first moments or when this condition lasts. If the far end does not restore order, a later move also
//! requires that the flow's window supports the same rate there, or soon will.
//!
//! *A host's next flow.* The response of a host's last flow to loss is remembered. The placement of its next flow
//! takes into account what such a sender may have on a path with loss ([`answer::Senders`]).
//!
//! *Calls.* Small flows, calls (datagrams of up to 4 Mbit/s at the sender's own rate) and acknowledgements of bulk
//! flows are steered by delay. All their packets take the path with the earliest arrival, among those on which they
//! fit ([`small`]).
//!
//! *Loss.* A path with steady loss above 3 % takes no new flow and no packet of other homes while another path is
//! within that limit. It keeps flows that its loss does not harm: bulk that fills the path or whose sender ignores
//! loss ([`answer`]), and acknowledgements of bulk that arrives by this path, because the sender has measured the
//! round trip of both directions together. Bulk that loss holds back moves to a path with less than a quarter of
//! that loss where it may soon have more, unless its share there is known to be less than a flow has at this home.
//! If this turns out only after the move, the flow returns. Several flows move one at a time, at most one every 500
//! ms.

mod answer;
mod group;
mod overflow;
mod protection;
mod small;
mod spill;

use super::coded::Coded;
use super::record::{Departures, Record};
use super::{Cause, Exclusion, Input, LawCounts, LawView, Lossy, PathSet, Treatment};
use crate::view::{BULK_BYTES, LoadView, PERIOD_MS};
use crate::{MAX_PATHS, PathId};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::tunnel::SECURE_OVERHEAD;
use group::Group;
use overflow::Overflow;
pub use protection::is_protected;
use spill::Delays;

/// A path with more steady loss than this, in percent, is not used while another path is within the limit.
const LOSSY_PERCENT: u8 = 3;
/// Wild loss in parts per million from which on a sender that takes loss for congestion suffers.
const WILD_PPM: u32 = 1_000;
/// Largest difference of the base delays for spill, microseconds: the far end does not wait longer for order.
const MAX_SKEW_US: i64 = 150_000;
/// Size of the transfer that decides where a flow begins, bits.
const FIRST_BITS: u64 = 800_000;
/// A flow begins on a path with [`LONE_GAIN_PERCENT`] of the capacity if the transfer takes longer there by at most
/// one part in this many.
const FIRST_LATER_PART: i64 = 8;
/// Assumed capacity if other paths were measured by trains and this one was not, because its train was lost; the
/// highest rate seen, if that is more.
const UNMEASURED_BPS: u64 = 1_000_000;
/// A flow of datagrams with a shorter first packet is a query or a call and not a transfer (QUIC's first datagram
/// has at least 1,200 bytes, RFC 9000 §14.1). It begins on the path with the earliest arrival.
const TRANSFER_BYTES: u32 = 1_200;
/// Groups that are remembered.
const GROUPS: usize = 16;
/// Least time between two moves of flows.
const MOVE: Duration = Duration::from_millis(500);
/// A bulk flow leaves its home for loss after it has not filled it for this number of periods. That is longer than
/// a sender pauses to probe for the least round trip (BBR: 200 ms).
const SETTLE_PERIODS: u8 = 3;
/// It must also have been held back for this number of round trips.
const SETTLE_ROUNDS: u32 = 4;
/// A path whose capacity is below this percentage of what a flow has at a lossy home is no improvement.
const WORTH_PERCENT: u64 = 90;
/// A flow on a full home moves to a lossy path if it has less than this percentage of what each flow has there.
const RICHER_PERCENT: u64 = 80;
/// A flow that left its home for loss returns if it has less on the other path and has not gained for [`STUCK`].
/// Then no flow leaves for loss during [`STAY`].
const STUCK: Duration = Duration::from_secs(3);
const STAY: Duration = Duration::from_secs(60);
/// Weight of the newest period in the mean rate of a home: one part in this many.
const CARRIED_PARTS: u64 = 2;
/// A lone bulk flow leaves its home for an idle path with at least this percentage of the home's capacity: the
/// first value if packets can overflow, the second if they cannot, because the flow then has only its home. It
/// moves while it is [`YOUNG`]; or after the condition has held for [`LONE`], so that a fluctuating rate moves no
/// flow, and the path has been idle for [`LONE_PERIODS`].
const LONE_GAIN_PERCENT: [u64; 2] = [200, 125];
const YOUNG: Duration = Duration::from_millis(500);
const LONE: Duration = Duration::from_secs(4);
const LONE_PERIODS: u8 = 2;
/// A path that carries at least this percentage of its capacity is not idle.
const FILLED_PERCENT: u64 = 50;
/// A path that carries less than this percentage of its capacity has capacity left.
const ROOM_PERCENT: u64 = 85;
/// A sender is growing if it sends more than this percentage of its maximum so far.
const GROWTH_PERCENT: u64 = 105;
/// A flow does not count as small in its first round trips: a sender begins with ten packets and doubles them in
/// each.
const SMALL_ROUNDS: u32 = 6;
/// A bulk flow becomes small after this number of periods and [`SMALL_ROUNDS`] round trips. BBR sends four packets
/// per round trip for 200 ms and a round trip while it probes for the least round trip. On a nearer path it would
/// adopt that path's.
const PAUSE_PERIODS: u32 = 4;

/// The state of the law for one (session, rule).
#[derive(Debug, Clone, Default)]
pub(super) struct LawState {
    period: u32,
    /// Bulk flows by home, in the current period and in the previous one.
    bulk: [[u16; MAX_PATHS]; 2],
    /// Packets of the current period.
    packets: u32,
    /// Bytes sent in the current period, by path.
    bytes: [u64; MAX_PATHS],
    /// Packets of the current period that met a queue, by path.
    queued: [u32; MAX_PATHS],
    /// Full paths (a queue for more than half of the last period), and idle ones (almost no queue, and less than
    /// half of the capacity used).
    full: PathSet,
    idle: PathSet,
    /// Mean rate of each path per bulk flow with this home, in bit/s.
    carried_bps: [u64; MAX_PATHS],
    /// Paths that a flow has left for loss.
    left: PathSet,
    stay_until: Instant,
    /// Highest rate of a path since a flow moved there for another's loss, in bit/s, and when it last grew.
    peak: (u64, Instant),
    /// Consecutive periods in which each path was idle.
    idle_periods: [u8; MAX_PATHS],
    groups: [Group; GROUPS],
    senders: answer::Senders,
    move_at: Instant,
    /// For each path that is the home of a lone flow: since when an idle path has been much larger.
    small_since: [Option<Instant>; MAX_PATHS],
    overflow: Overflow,
    lossy: Lossy,
    weights: [u8; MAX_PATHS],
    record: Record,
}

impl LawState {
    /// `weights`: how flows of a group are spread while capacities are unknown (all zero: by round trip).
    /// `overflows`: whether packets may take a path with a later arrival.
    pub(super) fn new(weights: [u8; MAX_PATHS], overflows: bool) -> Self {
        let overflow = if overflows { Overflow::default() } else { Overflow::never() };
        Self { weights, overflow, ..Self::default() }
    }

    /// The path of one packet. `spill`: individual packets may leave the flow's home.
    pub(super) fn pick(&mut self, input: &mut Input<'_>, up: PathSet, spill: bool) -> Option<PathId> {
        let is_protected = input.restores
            && spill
            && input.loads.iter().any(protection::covers)
            && self.senders.slows_down(input.remote);
        self.count(input, !is_protected);
        if !is_protected {
            return self.choose(input, up, spill);
        }
        let loads = protection::restored(input.loads);
        self.choose(&mut Input { loads: &loads, flow: &mut *input.flow, ..*input }, up, spill)
    }

    /// The repair packets for a packet to the host `remote` that takes a path with this model.
    pub(super) fn protection(&self, remote: u64, load: &LoadView) -> Option<Coded> {
        protection::of(load).filter(|_| self.senders.slows_down(remote))
    }

    /// The path of one packet, after it was counted.
    fn choose(&mut self, input: &mut Input<'_>, up: PathSet, spill: bool) -> Option<PathId> {
        let usable = self.lossy.usable(up, input.live, LOSSY_PERCENT);
        let home = match input.flow.home() {
            Some(home) if usable.contains(home) || up.contains(home) && self.keeps(input, usable, home) => {
                home
            }
            before => {
                let home = self.place(input, usable)?;
                self.record.placed(home);
                if let Some(before) = before.filter(|before| up.contains(*before) && self.bulk(*before) > 1)
                    && is_bulk(input)
                {
                    self.moves(before, home, input.now);
                }
                input.flow.set_home(home, input.now);
                home
            }
        };
        let home = if spill { self.rehome(input, up, usable, home) } else { home };
        input.flow.set_home(home, input.now);
        if input.ends && input.flow.ends() {
            let was_bulk = input.flow.was_bulk();
            let lasted = is_bulk(input) && !is_young(input);
            self.group(input).into_iter().for_each(|at| self.groups[at].end(home, was_bulk, lasted));
        }
        let delays = Delays::of(input, usable);
        for path in usable {
            let queued = &mut self.queued[usize::from(path)];
            *queued = queued.saturating_add(u32::from(delays.has_queue(path, input)));
        }
        // Packets of small flows and calls are not spread: a lost one would delay the others at the far end.
        let (path, overflowed) = if spill && is_bulk(input) {
            delays.spill(input, usable, home, self.is_lone(usable), &self.overflow)
        } else {
            (home, false)
        };
        self.overflow.used |= overflowed;
        self.bytes[usize::from(path)] += u64::from(input.bytes) + SECURE_OVERHEAD as u64;
        self.record.took(path, home, overflowed, input.now);
        Some(path)
    }

    /// The counters and the state, for people.
    pub(super) fn view(&self, now: Instant) -> LawView {
        let mut bulk = [0; MAX_PATHS];
        (0..).zip(&mut bulk).for_each(|(path, flows)| *flows = self.bulk_now(path, now));
        let counts = LawCounts { pauses: self.overflow.pauses, ..self.record.counts };
        LawView { counts, bulk, paused: self.overflow.paused(now) }
    }

    /// See [`Record::unreported_departures`].
    pub(super) fn unreported_departures(&mut self) -> &mut [Departures; MAX_PATHS] {
        &mut self.record.unreported_departures
    }

    /// Bulk flows with this home; 0 if there was no packet in the last two periods.
    fn bulk_now(&self, path: PathId, now: Instant) -> u16 {
        let period = (now.as_millis() / PERIOD_MS) as u32;
        if period.wrapping_sub(self.period) <= 1 { self.bulk(path) } else { 0 }
    }

    /// The current behaviour, for people.
    pub(super) fn treatment(&self, input: &Input<'_>, up: PathSet) -> Treatment {
        let usable = { self.lossy }.usable(up, input.live, LOSSY_PERCENT);
        let bulk = |path| self.bulk_now(path, input.now);
        let homes = usable.iter().filter(|path| bulk(*path) > 0).count();
        match self.record.main_home(usable, bulk) {
            _ if self.record.overflows(input.now) => Treatment::Overflows,
            _ if self.record.spills(input.now) => Treatment::Spills,
            _ if homes > 1 => Treatment::Homes,
            Some(home) => Treatment::One(home, Cause::Home),
            None => Treatment::NoPath,
        }
    }

    /// Why packets of the main home do not take `path` now, for people.
    pub(super) fn excludes(
        &self,
        input: &Input<'_>,
        up: PathSet,
        spill: bool,
        path: PathId,
    ) -> Option<Exclusion> {
        let lossy = self.lossy.why(up, input.live, LOSSY_PERCENT, path);
        let bulk = |path| self.bulk_now(path, input.now);
        if bulk(path) > 0 {
            return None;
        }
        let used = self.record.takes_others(path, input.now);
        if lossy.is_some() || !spill || used {
            return lossy;
        }
        let usable = { self.lossy }.usable(up, input.live, LOSSY_PERCENT);
        let home = self.record.main_home(usable, bulk).filter(|home| *home != path)?;
        let delays = Delays::of(input, usable);
        if !delays.has_queue(home, input) {
            return Some(Exclusion::HomeNotFull { home, queue_us: input.load(home).queue_us });
        }
        let overflows = self.overflow.begins(&input.load(home));
        delays.refuses(input, home, self.is_lone(usable), overflows, path)
    }

    /// Updates the counters of the period and of the flow. `judges`: loss reaches the sender, so that its response is seen.
    fn count(&mut self, input: &mut Input<'_>, judges: bool) {
        let period = (input.now.as_millis() / PERIOD_MS) as u32;
        if period != self.period {
            let next = period.wrapping_sub(self.period) == 1;
            self.bulk = [[0; MAX_PATHS], if next { self.bulk[0] } else { [0; MAX_PATHS] }];
            if !next {
                (self.idle_periods, self.small_since) = ([0; MAX_PATHS], [None; MAX_PATHS]);
            }
            self.review(input);
            self.period = period;
        }
        self.packets = self.packets.saturating_add(1);
        if input.flow.period != period {
            if judges {
                let has_room = input.flow.home().is_some_and(|home| self.has_room(input, home));
                self.senders.evaluate(input, has_room);
            }
            // A sender may send the packets of a round trip at once.
            let rtt_us = input.flow.home().map_or(0, |home| input.live.get(home).rtt_us);
            let periods = 1 + rtt_us / (PERIOD_MS as u32 * 1000);
            let next = period.wrapping_sub(input.flow.period) <= periods;
            input.flow.begin(period, next);
        }
        let before = input.flow.bytes[0];
        input.flow.bytes[0] = before.saturating_add(input.bytes);
        if before < BULK_BYTES
            && input.flow.bytes[0] >= BULK_BYTES
            && is_bulk(input)
            && let Some(home) = input.flow.home()
        {
            let bulk = &mut self.bulk[0][usize::from(home)];
            *bulk = bulk.saturating_add(1);
            input.flow.note_bulk();
            self.group(input).into_iter().for_each(|at| self.groups[at].small = 0);
        }
    }

    /// Index of the group of flows to the packet's host.
    fn group(&self, input: &Input<'_>) -> Option<usize> {
        let fits = |g: &Group| (g.remote, g.datagram) == (input.remote, input.datagram);
        self.groups.iter().position(|group| fits(group) && group.at != Instant::ZERO)
    }

    /// Once per period: determines which paths are full and which are idle.
    fn review(&mut self, input: &Input<'_>) {
        (self.full, self.idle) = (PathSet::EMPTY, PathSet::EMPTY);
        let sent_bps = self.bytes.map(|bytes| bytes * 8000 / PERIOD_MS);
        for path in input.live.up() {
            let queued = self.queued[usize::from(path)];
            let capacity_bps = input.load(path).capacity_bps;
            // A sender that fills a path need not leave a queue on it (BBR).
            let filled =
                capacity_bps > 0 && sent_bps[usize::from(path)] >= capacity_bps / 100 * FILLED_PERCENT;
            if queued > self.packets / 2 {
                self.full.insert(path);
            } else if queued <= self.packets / 16 && !filled {
                self.idle.insert(path);
            }
            let flows = u64::from(self.bulk(path));
            if let Some(sent) = sent_bps[usize::from(path)].checked_div(flows) {
                let carried = &mut self.carried_bps[usize::from(path)];
                let before = if *carried == 0 { sent } else { *carried };
                *carried = (before * (CARRIED_PARTS - 1) + sent) / CARRIED_PARTS;
            }
            let periods = &mut self.idle_periods[usize::from(path)];
            *periods = if self.idle.contains(path) { periods.saturating_add(1) } else { 0 };
        }
        let homes = input.live.up().iter().filter(|path| self.bulk(*path) > 0);
        let capacity_bps = homes.map(|path| spill::carries_bps(&input.load(path))).sum();
        self.overflow.review(sent_bps.iter().sum(), capacity_bps, input.now);
        (self.packets, self.bytes, self.queued) = (0, [0; MAX_PATHS], [0; MAX_PATHS]);
    }

    fn bulk(&self, path: PathId) -> u16 {
        let i = usize::from(path);
        self.bulk[0][i].max(self.bulk[1][i])
    }

    /// Whether a path carries clearly less than it can, as far as that is known.
    fn has_room(&self, input: &Input<'_>, path: PathId) -> bool {
        let sent_bps = self.carried_bps[usize::from(path)].saturating_mul(self.bulk(path).into());
        let path_bps = spill::carries_bps(&input.load(path));
        path_bps == 0 || sent_bps < path_bps / 100 * ROOM_PERCENT
    }

    /// Whether these paths have one bulk flow together.
    fn is_lone(&self, paths: PathSet) -> bool {
        paths.iter().map(|path| self.bulk(path)).sum::<u16>() <= 1
    }

    /// The home of a new flow, or of one whose home became unusable.
    fn place(&mut self, input: &Input<'_>, usable: PathSet) -> Option<PathId> {
        let delays = Delays::of(input, usable);
        let nearest = || usable.iter().min_by_key(|path| delays.arrival_us(*path, input));
        if input.datagram && input.bytes < TRANSFER_BYTES {
            return nearest();
        }
        let known = self.group(input);
        let (at, home) = match known {
            Some(at) if self.groups[at].is_transfer(|path| input.live.get(path).rtt_us, input.now) => {
                let flows = self.groups[at].flows;
                let cost = |path: &PathId| {
                    let flows = u64::from(u16::from(flows[usize::from(*path)]).max(self.bulk(*path))) + 1;
                    // A path without an estimate is weighted by its round trip, but less than in proportion.
                    (flows << 32) / self.weight(*path, usable, input)
                };
                // It is not known yet whether the flow is a call, whose first half second must not be delayed by
                // that much.
                let base_us = |path| delays.base_us(path, input);
                let least_us = usable.iter().map(base_us).min()?;
                let near = |path: &PathId| !input.datagram || base_us(*path) - least_us <= MAX_SKEW_US;
                (at, usable.iter().filter(near).min_by_key(cost)?)
            }
            _ => {
                let group = known.map(|at| self.groups[at]).unwrap_or_default();
                let home = if group.is_asked() {
                    nearest()?
                } else {
                    self.first(input, usable, &delays, group.bulk_home)?
                };
                let at = known.or((0..GROUPS).min_by_key(|at| self.groups[*at].at)).unwrap_or(0);
                let (remote, datagram) = (input.remote, input.datagram);
                let flows = if group.is_recent(input.now) { group.flows } else { Group::default().flows };
                self.groups[at] = Group { remote, datagram, flows, ..group };
                (at, home)
            }
        };
        self.groups[at].add(home, input.now);
        Some(home)
    }

    /// The path on which a flow begins that is not part of a transfer: the one by which a transfer ends first. A path that
    /// carries much more is preferred if the transfer ends little later there, or if the host's last transfer ended there
    /// (`before`). A large flow would move to it anyway, and by then its sender would have adopted the shorter round trip.
    fn first(
        &self,
        input: &Input<'_>,
        usable: PathSet,
        delays: &Delays,
        before: Option<PathId>,
    ) -> Option<PathId> {
        let is_measured = usable.iter().any(|path| input.load(path).estimate_bps > 0);
        let share_bps = |path: PathId| {
            let bps = match self.senders.share_bps(input, path) {
                0 if is_measured => input.load(path).seen_bps.max(UNMEASURED_BPS),
                bps => bps,
            };
            bps / (u64::from(self.bulk(path)) + 1)
        };
        let end_us = |path: &PathId| {
            let transfer_us = (FIRST_BITS * 1000).checked_div(share_bps(*path) / 1000).unwrap_or(0);
            delays.arrival_us(*path, input).saturating_add(transfer_us.cast_signed())
        };
        let first = self.richest(input, usable, delays).iter().min_by_key(end_us)?;
        let rtt_us = i64::from(input.live.get(first).rtt_us);
        let whole_us = end_us(&first) - delays.base_us(first, input) + rtt_us / 2;
        let latest_us = end_us(&first).saturating_add(whole_us / FIRST_LATER_PART);
        let least_bps = share_bps(first).saturating_mul(LONE_GAIN_PERCENT[0]);
        let larger = |path: &PathId| {
            share_bps(first) > 0
                && share_bps(*path).saturating_mul(100) >= least_bps
                && (end_us(path) <= latest_us || before == Some(*path))
                && self.is_clean(input, *path)
                && delays.base_us(*path, input) - delays.base_us(first, input) <= MAX_SKEW_US
        };
        usable.iter().filter(larger).min_by_key(end_us).or(Some(first))
    }

    /// The paths on which a new flow may begin. If the far end does not restore order, a later move to a farther
    /// path does harm, because the sender has adopted the shorter round trip. Only paths are then allowed on which
    /// the flow has the most, or little less.
    fn richest(&self, input: &Input<'_>, usable: PathSet, delays: &Delays) -> PathSet {
        let share_bps = |path: PathId| self.senders.share_bps(input, path) / (u64::from(self.bulk(path)) + 1);
        if !self.overflow.is_never() || usable.iter().any(|path| share_bps(path) == 0) {
            return usable;
        }
        let base_us = |path| delays.base_us(path, input);
        let least_us = usable.iter().map(base_us).min().unwrap_or(0);
        let near = |path: &PathId| base_us(*path) - least_us <= MAX_SKEW_US;
        let most_bps = usable.iter().filter(near).map(share_bps).max().unwrap_or(0);
        let mut richest = PathSet::EMPTY;
        for path in usable.iter().filter(near) {
            if share_bps(path).saturating_mul(LONE_GAIN_PERCENT[1]) >= most_bps.saturating_mul(100) {
                richest.insert(path);
            }
        }
        richest
    }

    /// The weight of a path for the flows of a group, in arbitrary units; at least 1.
    fn weight(&self, path: PathId, usable: PathSet, input: &Input<'_>) -> u64 {
        if usable.iter().all(|path| input.load(path).estimate_bps > 0) {
            return (input.load(path).estimate_bps >> 10).max(1);
        }
        match self.weights[usize::from(path)] {
            0 => (1_000_000 / u64::from(input.live.get(path).rtt_us.max(1_000)).isqrt()).max(1),
            weight => u64::from(weight) << 10,
        }
    }

    /// Whether the flow keeps this home whatever its loss: bulk that may still fill it, that ignores loss or has
    /// nothing to gain on the others; and acknowledgements of bulk that arrives by it.
    fn keeps(&self, input: &Input<'_>, others: PathSet, home: PathId) -> bool {
        let gains = |path| {
            answer::may_gain(input, home, path) && self.is_worth(input, home, path, self.bulk(path) + 1)
        };
        let waits = self.waits(home, input.now);
        let stays = || !self.is_settled(input, home) || waits || !others.iter().any(gains);
        input.flow.acknowledges(home) && !small::is_crowded(input, others, home) || is_bulk(input) && stays()
    }

    /// Whether, for long enough, a flow has neither filled its home nor sent more than loss leaves a sender that
    /// slows down.
    fn is_settled(&self, input: &Input<'_>, home: PathId) -> bool {
        let rounds = input.live.get(home).rtt_us / (PERIOD_MS as u32 * 1000 / SETTLE_ROUNDS);
        let periods = rounds.max(u32::from(SETTLE_PERIODS));
        self.idle_periods[usize::from(home)] >= SETTLE_PERIODS
            && u32::from(input.flow.held_back) >= periods.min(u8::MAX.into())
            && input.flow.since_moved_ms(input.now) >= periods * PERIOD_MS as u32
    }

    /// Whether a flow changes its home, and the new home.
    fn rehome(&mut self, input: &Input<'_>, up: PathSet, usable: PathSet, home: PathId) -> PathId {
        let others = usable.without(PathSet::single(home));
        // Loss does not exclude paths for a sender that is known to ignore it.
        let all = if up != usable && self.senders.ignores(input) {
            up.without(PathSet::single(home))
        } else {
            others
        };
        if all.is_empty() {
            return home;
        }
        // The earlier acknowledgements arrive, the shorter is the round trip of the sender.
        let wild_ppm = input.load(home).wild_ppm;
        let acknowledges = input.flow.carries_acknowledgements()
            && (wild_ppm <= WILD_PPM || small::is_crowded(input, up, home));
        // A flow that was bulk sends in bursts, which a small path cannot absorb.
        let stays = self.overflow.is_never() && input.flow.was_bulk();
        if !acknowledges && !is_bulk(input) && !stays && self.pauses(input, home) {
            return home;
        }
        if acknowledges || !is_bulk(input) && !stays {
            let to = self.rehome_small(input, others, home);
            if to != home {
                self.record.moved(to);
                if input.flow.is_large() {
                    self.move_at = input.now + MOVE;
                }
            }
            return to;
        }
        let stays = input.flow.acknowledges(home) || input.now < self.stay_until;
        if wild_ppm > WILD_PPM && !stays && self.is_settled(input, home) {
            if input.restores && protection::covers(&input.load(home)) {
                // From now on its packets are protected.
                self.senders.note_slowing(input.remote);
                return home;
            }
            let cleaner = |path: &PathId| {
                input.load(*path).wild_ppm * 4 < wild_ppm && answer::may_gain(input, home, *path)
            };
            let better =
                |path: &PathId| cleaner(path) && self.is_worth(input, home, *path, self.bulk(*path) + 1);
            let best = others.iter().filter(better).min_by_key(|path| input.live.get(*path).rtt_us);
            let to = best.filter(|_| !self.waits(home, input.now)).unwrap_or(home);
            if to != home {
                self.left.insert(home);
                self.peak = (0, input.now);
                self.record.left(home, wild_ppm);
                if self.bulk(home) > 1 {
                    self.moves(home, to, input.now);
                }
            }
            return to;
        }
        if let Some(back) = self.back(input, others, home) {
            if self.bulk(home) > 1 {
                self.moves(home, back, input.now);
            } else {
                self.left = self.left.without(PathSet::single(back));
                self.move_at = input.now + MOVE;
            }
            self.record.moved(back);
            return back;
        }
        let larger = self.larger(input, all, home);
        let small_since = &mut self.small_since[usize::from(home)];
        *small_since = larger.map(|_| small_since.unwrap_or(input.now));
        let is_lasting = |since| input.now.saturating_since(since) >= LONE;
        if let Some(to) = larger
            && (is_young(input) || small_since.is_some_and(is_lasting))
        {
            self.record.moved(to);
            self.moves(home, to, input.now);
            return to;
        }
        if !self.full.contains(home) || input.now < self.move_at {
            return home;
        }
        if let Some(to) = self.richer(input, up, home) {
            self.record.moved(to);
            self.moves(home, to, input.now);
            return to;
        }
        if self.bulk(home) <= 1 {
            return home;
        }
        let idle = others.and(self.idle);
        if !idle.is_empty() {
            let free = |path: &PathId| self.bulk(*path) == 0 && input.load(*path).wild_ppm <= WILD_PPM;
            if let Some(to) = idle.iter().filter(free).min_by_key(|path| input.live.get(*path).rtt_us) {
                self.record.moved(to);
                self.moves(home, to, input.now);
                return to;
            }
        }
        home
    }

    /// Whether a bulk flow became small so recently that it may only be pausing, as a sender does while it probes
    /// for the least round trip. Not if losses have made it small.
    fn pauses(&self, input: &Input<'_>, home: PathId) -> bool {
        let rounds = input.live.get(home).rtt_us.saturating_mul(SMALL_ROUNDS) / (PERIOD_MS as u32 * 1000);
        input.flow.was_bulk()
            && input.flow.quiet_periods() < PAUSE_PERIODS + rounds
            && self.is_clean(input, home)
    }

    /// Whether the loss of a path does not slow down this flow's sender.
    fn is_clean(&self, input: &Input<'_>, path: PathId) -> bool {
        input.load(path).wild_ppm <= WILD_PPM || self.senders.ignores(input)
    }

    /// Whether a flow of several with this home must wait before it leaves.
    fn waits(&self, home: PathId, now: Instant) -> bool {
        self.bulk(home) > 1 && now < self.move_at
    }

    /// A bulk flow gets another home; the next flow must wait.
    fn moves(&mut self, home: PathId, to: PathId, now: Instant) {
        self.move_at = now + MOVE;
        let bulk = &mut self.bulk[0];
        bulk[usize::from(to)] = bulk[usize::from(to)].saturating_add(1);
        bulk[usize::from(home)] = bulk[usize::from(home)].saturating_sub(1);
    }

    /// Whether one of `flows` on `path` may have as much there as a flow has at the lossy `home`.
    fn is_worth(&self, input: &Input<'_>, home: PathId, path: PathId, flows: u16) -> bool {
        let load = input.load(path);
        // If the far end does not restore order, a flow that waits longer moves with a smaller window.
        let counts_estimate = load.capacity_bps == 0 && !self.overflow.is_never();
        let path_bps = if counts_estimate { load.estimate_bps } else { load.capacity_bps };
        let share_bps = path_bps / u64::from(flows.max(1));
        // In its first second a flow has less at home than loss leaves it there.
        let whole_bps = input.load(home).estimate_bps / u64::from(self.bulk(home).max(1));
        let left_bps = answer::left_by_loss_bps(input, home).min(whole_bps);
        let home_bps = self.carried_bps[usize::from(home)].max(left_bps);
        share_bps == 0 || share_bps >= home_bps / 100 * WORTH_PERCENT
    }

    /// The lossy path to which a flow returns that has less here than it had there.
    fn back(&mut self, input: &Input<'_>, others: PathSet, home: PathId) -> Option<PathId> {
        if self.left.is_empty() || input.now < self.move_at {
            return None;
        }
        let here_bps = self.carried_bps[usize::from(home)];
        if here_bps * 100 > self.peak.0 * GROWTH_PERCENT {
            self.peak = (here_bps, input.now);
        }
        let stuck = input.now.saturating_since(self.peak.1) >= STUCK;
        for path in others.and(self.left) {
            if stuck && here_bps < self.carried_bps[usize::from(path)] / 100 * WORTH_PERCENT {
                self.stay_until = input.now + STAY;
                return Some(path);
            }
            if !self.is_worth(input, path, home, self.bulk(home)) {
                return Some(path);
            }
        }
        None
    }

    /// The lossy path, if any, on which each flow has more than a flow on this full home. After a lone flow has
    /// left, its home is unused; so it moves only if the flows there are limited by loss and not by the capacity.
    fn richer(&self, input: &Input<'_>, up: PathSet, home: PathId) -> Option<PathId> {
        let of_each = |path: PathId| self.carried_bps[usize::from(path)];
        let has_room = |path: PathId| {
            of_each(path) * u64::from(self.bulk(path) + 1) <= spill::carries_bps(&input.load(path))
        };
        let is_alone = self.bulk(home) <= 1;
        let richer = |path: &PathId| {
            self.bulk(*path) > 0
                && (!is_alone || has_room(*path))
                && !self.full.contains(*path)
                && input.load(*path).wild_ppm > WILD_PPM
                && of_each(home) < of_each(*path) / 100 * RICHER_PERCENT
        };
        up.iter().filter(richer).max_by_key(|path| of_each(*path))
    }

    /// The idle path, if any, that is so much larger that the packet's flow, the only bulk flow of its home, does
    /// better there: in its first moments, if it has sent so much that the same amount would arrive earlier; later,
    /// if it fills its home. A home with wild loss is left for this reason only in the first moments of a flow
    /// whose sender is known to slow down.
    fn larger(&self, input: &Input<'_>, others: PathSet, home: PathId) -> Option<PathId> {
        let own = input.load(home);
        // Acknowledgements should return by the path with the shortest delay.
        let served = input.flow.carries_acknowledgements();
        if self.bulk(home) != 1 || input.now < self.move_at || served || own.estimate_bps == 0 {
            return None;
        }
        let own_bps = self.senders.share_bps(input, home);
        let is_limited = own_bps < own.estimate_bps;
        if own.wild_ppm > WILD_PPM && !(is_limited && is_young(input)) {
            return None;
        }
        let most_bps = if is_limited { own_bps } else { own_bps.max(own.seen_bps) };
        let delays = Delays::of(input, others.union(PathSet::single(home)));
        let is_filled = self.carried_bps[usize::from(home)] >= own.estimate_bps / 100 * FILLED_PERCENT;
        let sent_us =
            |bps: u64| i64::try_from(input.flow.sent_bits() * 1_000_000 / bps.max(1)).unwrap_or(i64::MAX);
        let gain_percent = LONE_GAIN_PERCENT[usize::from(self.overflow.is_never())];
        let larger = |path: &PathId| {
            let path_bps = self.senders.share_bps(input, *path);
            let further_us = delays.base_us(*path, input) - delays.base_us(home, input);
            let better = if is_young(input) {
                sent_us(own_bps) > sent_us(path_bps) + 2 * further_us
            } else {
                let is_idle = self.idle_periods[usize::from(*path)] >= LONE_PERIODS;
                // Its window moves with it.
                let is_worth = || !self.overflow.is_never() || answer::may_gain(input, home, *path);
                is_filled && is_idle && is_worth()
            };
            better
                && self.bulk(*path) == 0
                && !delays.has_queue(*path, input)
                && path_bps.saturating_mul(100) >= most_bps.saturating_mul(gain_percent)
                && self.is_clean(input, *path)
                && further_us <= MAX_SKEW_US
        };
        others.iter().filter(larger).max_by_key(|path| self.senders.share_bps(input, *path))
    }
}

/// Whether the packet's flow has had its home only for a moment, as a new flow.
fn is_young(input: &Input<'_>) -> bool {
    input.flow.since_moved_ms(input.now) < YOUNG.as_millis() as u32
}

/// Whether the packet's flow is bulk: it sends as fast as its paths allow.
fn is_bulk(input: &Input<'_>) -> bool {
    let home_bps = input.flow.home().map_or(0, |home| input.load(home).seen_bps);
    input.flow.is_large() && !(input.datagram && input.flow.is_call(home_bps))
}

#[cfg(test)]
mod tests;
