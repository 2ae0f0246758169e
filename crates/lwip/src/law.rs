//! The autonomous law of steering ([`anabranch_steer`]) applied to the two legs of a UE.
//!
//! In a tunnel, the far end reports what has arrived. Here nobody does; the node derives that information from the packets
//! that it forwards, from retransmissions and from ACKs (docs/lwip.md, "Autonomous"):
//!
//! ```text
//!   queue, capacity   probes: the round trip, and the data sent between two probes, less the part that was lost
//!   loss              a retransmitted segment counts as lost on the leg that it took, unless a duplicate SACK shows that
//!                     it had arrived, or the leg was down in the meantime
//!   nearer leg        time from data to its ACK: all ACKs return by LTE, so the legs differ only in the downlink delay
//!   idle legs         trains: full-size packets that nobody answers, each followed by a short echo request
//! ```

use super::Leg;
use super::beside::{OtherTrafficRate, Uplink};
use super::dida::before;
use super::early_loss::{EarlyLoss, Use};
use super::link::Link;
use super::probe::train_byte;
use anabranch_element::time::{Duration, Instant, nanos};
use anabranch_steer::measure::{Load, TrainBudget, Trains};
use anabranch_steer::{
    Arrived, FlowSteer, LoadView, Mode, ModeState, Packet, PathState, PathStates, Pick, View,
};
use anabranch_wire::control::{CapacityAck, CapacityProbe, PathCounters, Probe, ProbeKind};
use anabranch_wire::tcp::{SackBlocks, TcpOption, TcpView};

/// Probes per leg whose answers are awaited.
const MARKS: usize = 16;
/// Shortest time between the probes of a UE that receives packets. With long round trips the time is the longer one
/// divided by [`PROBE_RTT_PARTS`].
const PROBE: Duration = Duration::from_millis(20);
const PROBE_RTT_PARTS: u32 = 8;
/// A longer queue counts as one if it also exceeds the round trip divided by [`QUEUE_RTT_PARTS`]. Microseconds.
const QUEUE_US: u32 = 2_000;
const QUEUE_RTT_PARTS: u32 = 16;
/// Minimum filter of [`Law::beyond`]: a value is remembered for one to two of these periods.
const MIN_FILTER_PERIOD: Duration = Duration::from_secs(30);
/// A timed segment that has not been acknowledged after this time is given up.
const MAX_TIMED: Duration = Duration::from_secs(2);
/// While the sender repairs a loss, its packets spill only if the delays of the legs differ by at most this,
/// microseconds.
const RECOVERY_DISTANCE_US: u64 = 20_000;
/// Base-2 logarithm of the bytes of sequence space per bit of [`FlowLaw::legs`]: less than a full segment.
const SEGMENT_SHIFT: u32 = 10;
/// 64-bit words of [`FlowLaw::legs`]: enough for 8 MB in flight.
const WORDS: usize = 128;
/// Segments of a SACK block that are examined at most, to bound the cost of an ACK.
const MAX_EXAMINED_SEGMENTS: u32 = 64;
/// Size of one packet of a train including the short packet behind it, bytes.
pub(super) const TRAIN_PACKET: u16 = 1_250;

/// The minimum of a value over the current and the previous period. Both are kept while there are no samples.
#[derive(Debug, Clone, Copy, Default)]
struct WindowedMin {
    us: [Option<f64>; 2],
    since: Instant,
}

impl WindowedMin {
    fn sample(&mut self, us: f64, now: Instant) {
        if now.saturating_since(self.since) > MIN_FILTER_PERIOD {
            (self.us, self.since) = ([None, self.us[0]], now);
        }
        self.us[0] = Some(self.us[0].map_or(us, |least| least.min(us)));
    }

    fn get(&self) -> Option<f64> {
        let [this, before] = self.us;
        match (this, before) {
            (Some(this), Some(before)) => Some(this.min(before)),
            (one, other) => one.or(other),
        }
    }
}

/// The state of one leg.
#[derive(Debug, Clone, Default)]
struct LegState {
    /// Path model: queue, capacity and loss.
    load: Load,
    /// Trains that measure the leg while it is idle.
    trains: Trains,
    /// Number of the newest train.
    train: u16,
    /// Packets and bytes sent by the leg, probes included.
    sent: PathCounters,
    /// Packets and bytes lost so far, modulo 2³².
    lost: (u32, u32),
    early: EarlyLoss,
    others: OtherTrafficRate,
    /// Number of times the leg went down, modulo 2¹⁶.
    outages: u16,
    /// Awaited probes: sequence number, departure time, and the counters at departure.
    marks: [Option<(u16, Instant, PathCounters)>; MARKS],
}

/// The state of the two legs of one UE.
#[derive(Debug, Clone, Default)]
pub(super) struct Law {
    leg_states: [LegState; 2],
    /// Traffic from the UE, all of which uses LTE.
    uplink: Uplink,
    /// Additional time until data sent by Wi-Fi is acknowledged, compared with a probe by Wi-Fi, microseconds: the
    /// ACK returns by LTE, the answer to the probe by Wi-Fi.
    beyond: WindowedMin,
    state: ModeState,
    sequence: u32,
}

/// The state of one flow.
#[derive(Debug, Clone, Default)]
pub(super) struct FlowLaw {
    steer: FlowSteer,
    remote: u64,
    /// The leg of the newest segment.
    leg: Option<Leg>,
    /// One bit per 2^[`SEGMENT_SHIFT`] bytes: 1 if the segment took Wi-Fi. Allocated at the first change of leg.
    legs: Option<Box<[u64; WORDS]>>,
    /// The segment sent by Wi-Fi that is being timed: its end, its departure, and the queue before it in microseconds.
    timed: Option<(u32, Instant, u32)>,
    /// When the flow last changed its leg.
    split_at: Option<Instant>,
    /// Largest payload seen, bytes.
    mss: u16,
    /// [`LegState::outages`] of both legs at the last check.
    outages: Option<[u16; 2]>,
    /// By leg: the end of the data sent before its last outage, until that has been acknowledged.
    before_outage: [Option<u32>; 2],
    /// End of the newest segment.
    newest: Option<u32>,
}

impl FlowLaw {
    pub(super) fn new(remote: u64) -> Self {
        Self { remote, ..Self::default() }
    }

    /// Memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.legs.as_deref().map_or(0, size_of_val)
    }

    /// Word and bit of a sequence number in [`Self::legs`].
    const fn slot(seq: u32) -> (usize, u64) {
        let slot = (seq >> SEGMENT_SHIFT) as usize % (WORDS * 64);
        (slot / 64, 1 << (slot % 64))
    }

    /// The leg that a segment took when it was last sent.
    fn leg_of(&self, seq: u32) -> Option<Leg> {
        let Some(legs) = &self.legs else { return self.leg };
        let (word, bit) = Self::slot(seq);
        Some(if legs[word] & bit == 0 { Leg::Lte } else { Leg::Wifi })
    }

    /// Whether the flow has ever used both legs.
    pub(super) const fn is_split(&self) -> bool {
        self.split_at.is_some()
    }

    /// Whether the data missing from `una` on may be late instead of lost, judged by an ACK that reports a gap. It
    /// may be late if the flow has used both legs within `longest`, and no segment of the newest SACK block was
    /// sent behind the missing one on the same leg: each leg preserves order.
    pub(super) fn may_be_late(&self, tcp: &TcpView<'_>, una: u32, longest: Duration, now: Instant) -> bool {
        if self.split_at.is_none_or(|at| now.saturating_since(at) > longest) {
            return false;
        }
        let Some(missing) = self.leg_of(una) else { return false };
        let newest = sack_blocks(tcp)
            .and_then(|blocks| blocks.as_slice().iter().find(|(left, _)| before(una, *left)).copied());
        let Some((left, right)) = newest else { return true };
        let mss = u32::from(self.mss.max(1));
        let segments = right.wrapping_sub(left).div_ceil(mss).min(MAX_EXAMINED_SEGMENTS);
        !(0..segments).any(|n| self.leg_of(left.wrapping_add(n * mss)) == Some(missing))
    }

    /// A segment is sent by a leg that has a queue of `queue_us`.
    pub(super) fn takes(&mut self, segment: &Segment, leg: Leg, queue_us: u32, now: Instant) {
        self.mss = self.mss.max(u16::try_from(segment.payload).unwrap_or(u16::MAX));
        let end = segment.seq.wrapping_add(segment.payload as u32);
        self.newest = Some(self.newest.filter(|newest| before(end, *newest)).unwrap_or(end));
        self.note(segment, leg, now);
        // Data in flight on the other leg may delay the ACK, so a flow that recently changed its leg is not timed.
        let is_whole = self.split_at.is_none_or(|at| now.saturating_since(at) > MAX_TIMED);
        let is_free = self.timed.is_none_or(|(_, at, _)| now.saturating_since(at) > MAX_TIMED);
        if leg == Leg::Wifi && is_whole && is_free && !segment.is_retransmission && !segment.recovers {
            self.timed = Some((segment.seq.wrapping_add(segment.payload as u32), now, queue_us));
        }
    }

    /// Whether the leg went down after the segment had left by it: lost data in flight does not make a leg lossy.
    fn was_interrupted(&mut self, leg: Leg, seq: u32, outages: u16) -> bool {
        if let Some(known) = &mut self.outages
            && core::mem::replace(&mut known[leg as usize], outages) != outages
        {
            self.before_outage[leg as usize] = self.newest;
        }
        self.before_outage[leg as usize].is_some_and(|end| before(seq, end))
    }

    fn note(&mut self, segment: &Segment, leg: Leg, now: Instant) {
        if let Some(before) = self.leg.filter(|before| *before != leg) {
            self.split_at = Some(now);
            let all = if before == Leg::Wifi { u64::MAX } else { 0 };
            self.legs.get_or_insert_with(|| Box::new([all; WORDS]));
        }
        self.leg = Some(leg);
        if let Some(legs) = &mut self.legs {
            let (word, bit) = Self::slot(segment.seq);
            match leg {
                Leg::Lte => legs[word] &= !bit,
                Leg::Wifi => legs[word] |= bit,
            }
        }
    }
}

/// A data segment, as the law sees it.
pub(super) struct Segment {
    pub seq: u32,
    pub payload: usize,
    pub bytes: usize,
    pub hash: u64,
    /// Whether the segment is a retransmission.
    pub is_retransmission: bool,
    /// FIN or RST: no more data follows.
    pub ends: bool,
    /// The UE can be reached by Wi-Fi.
    pub has_wifi: bool,
    /// The sender is repairing a loss; it would take reordering for further loss.
    pub recovers: bool,
}

impl Law {
    /// A segment is retransmitted: the original was lost on the leg that it took.
    pub(super) fn again(&mut self, links: &[Link; 2], flow: &mut FlowLaw, segment: &Segment, now: Instant) {
        if let Some(leg) = flow.leg_of(segment.seq)
            && !flow.was_interrupted(leg, segment.seq, self.leg_states[leg as usize].outages)
        {
            self.lost(leg, 1, segment.bytes as i64);
            let of = self.use_of(links, leg, now);
            self.leg_states[leg as usize].early.lost(&of, now);
        }
        flow.timed = None;
    }

    fn use_of(&self, links: &[Link; 2], leg: Leg, now: Instant) -> Use {
        let leg_state = &self.leg_states[leg as usize];
        let load = self.load(&links[leg as usize], leg, now);
        // All ACKs return by LTE, so no round trip of a flow is shorter than that of LTE.
        let rtt_us = links[leg as usize].rtt_us().max(links[Leg::Lte as usize].rtt_us()) as u32;
        Use {
            packets: leg_state.sent.tx_packets,
            bytes: leg_state.sent.tx_bytes,
            estimate_bps: load.estimate_bps,
            has_queue: load.queue_us > QUEUE_US.max(rtt_us / QUEUE_RTT_PARTS),
            rtt: Duration::from_micros(rtt_us.into()),
        }
    }

    /// The leg of a segment by the autonomous law, and the queue of that leg in microseconds.
    pub(super) fn pick(
        &mut self,
        mode: &Mode,
        links: &[Link; 2],
        flow: &mut FlowLaw,
        segment: &Segment,
        now: Instant,
    ) -> (Leg, u32) {
        self.sequence = self.sequence.wrapping_add(1);
        flow.outages.get_or_insert([0, 1].map(|leg: usize| self.leg_states[leg].outages));
        for leg in Leg::ALL {
            if self.leg_states[leg as usize].early.is_due(now) {
                let of = self.use_of(links, leg, now);
                self.leg_states[leg as usize].early.update(&of, now);
            }
        }
        let paths = self.paths(links, segment.has_wifi);
        let loads = self.loads(links, now);
        let packet = Packet {
            sequence: self.sequence,
            flow_hash: segment.hash,
            remote: flow.remote,
            bytes: u32::try_from(segment.bytes).unwrap_or(u32::MAX),
            datagram: false,
            ends: segment.ends,
            flow: &mut flow.steer,
        };
        let view = View { steady: &paths, live: &paths, loads: &loads, restores: false };
        let picked = match self.state.pick(mode, view, packet, now) {
            Pick::One(path) => Some(path),
            _ => None,
        };
        let stays = segment.recovers && distance_us(&loads) > RECOVERY_DISTANCE_US;
        let home = flow.steer.home().filter(|path| stays && paths.is_up(*path));
        let leg = if home.or(picked) == Some(Leg::Wifi as u8) { Leg::Wifi } else { Leg::Lte };
        (leg, loads[leg as usize].queue_us)
    }

    /// Whether `leg` is Wi-Fi and its least round trip is longer than that of LTE. A sender whose handshake takes
    /// this leg then starts with the round trip of its data.
    pub(super) fn is_further(&self, links: &[Link; 2], leg: Leg) -> bool {
        leg == Leg::Wifi && links[1].least_rtt_us() > links[0].least_rtt_us()
    }

    /// Estimate of the largest difference between the arrival times of two packets of a flow that leave at the same
    /// time by different legs.
    pub(super) fn spread(&self, links: &[Link; 2], now: Instant) -> Duration {
        let loads = self.loads(links, now);
        let bases = loads.map(|load| load.base_us.unwrap_or(0));
        let arrivals =
            loads.map(|load| load.base_us.unwrap_or(0) + i64::from(load.queue_us.max(load.modelled_us)));
        let most_us = arrivals[0].max(arrivals[1]) - bases[0].min(bases[1]);
        Duration::from_micros(most_us.max(0).cast_unsigned())
    }

    /// A packet is sent by a leg.
    pub(super) fn sent(&mut self, leg: Leg, bytes: usize, now: Instant) {
        let leg_state = &mut self.leg_states[leg as usize];
        leg_state.sent.tx_packets += 1;
        leg_state.sent.tx_bytes += bytes as u64;
        leg_state.load.on_sent(bytes, now);
    }

    /// A packet that is not steered is sent by a leg.
    pub(super) fn on_other_sent(&mut self, leg: Leg, bytes: usize, now: Instant) {
        self.leg_states[leg as usize].others.sent(bytes, now);
        self.sent(leg, bytes, now);
    }

    /// A packet is received from the UE.
    pub(super) fn uplink(&mut self, bytes: usize) {
        self.uplink.on_received(bytes);
    }

    /// An uplink packet of a flow with downlink data.
    pub(super) fn acknowledged(
        &mut self,
        links: &[Link; 2],
        flow: &mut FlowLaw,
        tcp: &TcpView<'_>,
        bytes: usize,
        now: Instant,
    ) {
        flow.steer.arrives(Arrived { bytes: u32::try_from(bytes).unwrap_or(u32::MAX), paths: 1 });
        if let Some((_, at, queue_us)) = flow.timed.take_if(|(end, ..)| !before(tcp.ack(), *end))
            && flow.split_at.is_none_or(|split| split < at)
        {
            let [lte_us, wifi_us] = [0, 1].map(|leg: usize| links[leg].least_rtt_us());
            let took_us = nanos(now.saturating_since(at)) as f64 / 1e3 - f64::from(queue_us);
            if lte_us.is_finite() && wifi_us.is_finite() {
                self.beyond.sample((took_us - wifi_us).clamp(-wifi_us, lte_us), now);
            }
        }
        for end in &mut flow.before_outage {
            *end = end.filter(|end| before(tcp.ack(), *end));
        }
        if let Some((left, right)) = duplicate(tcp)
            && let Some(leg) = flow.leg_of(left)
        {
            let bytes = right.wrapping_sub(left).min(u16::MAX.into());
            let packets = bytes.div_ceil(u32::from(flow.mss.max(1)));
            self.lost(leg, -i64::from(packets), -i64::from(bytes));
            self.leg_states[leg as usize].early.found();
        }
    }

    fn lost(&mut self, leg: Leg, packets: i64, bytes: i64) {
        let (of_packets, of_bytes) = &mut self.leg_states[leg as usize].lost;
        *of_packets = of_packets.wrapping_add(packets as u32);
        *of_bytes = of_bytes.wrapping_add(bytes as u32);
    }

    /// Time between probes; `most` is the configured interval.
    pub(super) fn probe_interval(links: &[Link; 2], most: Duration) -> Duration {
        let rtt_us = links[0].rtt_us().max(links[1].rtt_us()) as u64;
        (Duration::from_micros(rtt_us) / PROBE_RTT_PARTS).max(PROBE).min(most.max(PROBE))
    }

    /// A probe of `bytes` is sent by a leg.
    pub(super) fn probes(&mut self, leg: Leg, sequence: u16, bytes: usize, now: Instant) {
        self.sent(leg, bytes, now);
        let leg_state = &mut self.leg_states[leg as usize];
        leg_state.load.departs(sequence.into(), &leg_state.sent, now);
        leg_state.marks[usize::from(sequence) % MARKS] = Some((sequence, now, leg_state.sent));
    }

    /// A probe is answered.
    pub(super) fn answered(&mut self, links: &[Link; 2], leg: Leg, sequence: u16, now: Instant) {
        let leg_state = &mut self.leg_states[leg as usize];
        let mark = leg_state.marks[usize::from(sequence) % MARKS].take_if(|(of, ..)| *of == sequence);
        let Some((_, mut at, sent)) = mark else { return };
        let estimate_bps = leg_state.load.view(0, now).estimate_bps;
        if leg == Leg::Lte && self.uplink.is_uplink_queue(sent.tx_bytes, estimate_bps, now) {
            // The delay is due to the uplink queue: count the probe as if there was no queue.
            let least = Duration::from_micros(links[leg as usize].least_rtt_us() as u64);
            at += now.saturating_since(at).saturating_sub(least);
        }
        let counters = PathCounters {
            rx_packets: u64::from((sent.tx_packets as u32).wrapping_sub(leg_state.lost.0)),
            rx_bytes: u64::from((sent.tx_bytes as u32).wrapping_sub(leg_state.lost.1)),
            ..PathCounters::default()
        };
        let ns = |at: Instant| nanos(at.saturating_since(Instant::ZERO));
        leg_state.load.answered(
            &Probe {
                kind: ProbeKind::Ack,
                id: sequence.into(),
                timestamp_ns: ns(now),
                echo_ns: ns(at),
                rtt_us: 0,
                counters,
                reorder_available: 0,
                lasting_loss: 0,
            },
            now,
        );
    }

    /// The next packet of a train on a leg, if one is due.
    pub(super) fn poll_train(
        &mut self,
        leg: Leg,
        budget: &mut TrainBudget,
        now: Instant,
    ) -> Option<CapacityProbe> {
        let session: u64 = self.leg_states.iter().map(|leg_state| leg_state.sent.tx_bytes).sum();
        let leg_state = &mut self.leg_states[leg as usize];
        leg_state.trains.begin(TRAIN_PACKET, leg_state.sent.tx_bytes, session, 2, budget, now);
        let probe = leg_state.trains.poll()?;
        leg_state.train = probe.train;
        Some(probe)
    }

    /// The short packet behind a packet of a train is answered. Returns whether the next train may follow at once.
    pub(super) fn train_answered(&mut self, leg: Leg, train: u8, index: u16, now: Instant) -> bool {
        let leg_state = &mut self.leg_states[leg as usize];
        if train_byte(leg_state.train) != train {
            return false;
        }
        let timestamp_ns = nanos(now.saturating_since(Instant::ZERO));
        let ack = CapacityAck { train: leg_state.train, index, timestamp_ns };
        if let Some(rate) = leg_state.trains.acknowledged(&ack, now) {
            leg_state.load.measured(rate, now);
        }
        leg_state.trains.is_due(now)
    }

    /// A leg no longer answers.
    pub(super) fn interrupted(&mut self, leg: Leg) {
        let leg_state = &mut self.leg_states[leg as usize];
        leg_state.load.interrupted();
        leg_state.trains.interrupted();
        leg_state.early.interrupted();
        leg_state.outages = leg_state.outages.wrapping_add(1);
        leg_state.marks = [None; MARKS];
    }

    /// The path model of a leg.
    fn load(&self, link: &Link, leg: Leg, now: Instant) -> LoadView {
        let least_us = link.least_rtt_us();
        self.leg_states[leg as usize].load.view(if least_us.is_finite() { least_us as u32 } else { 0 }, now)
    }

    /// Estimated capacity of a leg, or else the highest rate seen on it, bit/s; 0 if neither is known.
    pub(super) fn estimate_bps(&self, leg: Leg) -> u64 {
        let load = self.leg_states[leg as usize].load.view(0, Instant::ZERO);
        if load.estimate_bps > 0 { load.estimate_bps } else { load.seen_bps }
    }

    fn paths(&self, links: &[Link; 2], has_wifi: bool) -> PathStates {
        let mut paths = PathStates::DOWN;
        for (leg, path) in Leg::ALL.into_iter().zip(0..) {
            let (link, load) = (&links[leg as usize], &self.leg_states[leg as usize].load);
            let rtt_us = link.rtt_us() as u32;
            let is_up = match leg {
                Leg::Lte => true,
                Leg::Wifi => has_wifi && link.up && rtt_us > 0,
            };
            if is_up {
                // The round trip of the flow, whose ACKs return by LTE, and not that of a probe.
                let beyond_us = if leg == Leg::Wifi { self.beyond.get().unwrap_or(0.0) } else { 0.0 };
                let rtt_us = (link.rtt_us() + beyond_us).max(1.0) as u32;
                let state = PathState {
                    loss_ppm: (u32::from(load.lasting_loss()) * 100)
                        .max(self.leg_states[leg as usize].early.ppm()),
                    steady_loss_percent: load.steady_loss_percent(),
                    ..PathState::up(rtt_us)
                };
                paths.set(path, state);
            }
        }
        paths
    }

    fn loads(&self, links: &[Link; 2], now: Instant) -> [LoadView; 2] {
        let [lte, wifi] = Leg::ALL.map(|leg| links[leg as usize].least_rtt_us());
        // Difference between the downlink delays of Wi-Fi and LTE.
        let further_us = self.beyond.get().map_or((wifi - lte) / 2.0, |beyond| wifi + beyond - lte);
        Leg::ALL.map(|leg| {
            let base = if leg == Leg::Wifi { further_us } else { 0.0 };
            let load = self.load(&links[leg as usize], leg, now);
            let others = &self.leg_states[leg as usize].others;
            let left = |bps| others.available_bps(bps, now);
            LoadView {
                capacity_bps: left(load.capacity_bps),
                estimate_bps: left(load.estimate_bps),
                seen_bps: left(load.seen_bps),
                base_us: further_us.is_finite().then_some(base as i64),
                wild_ppm: load.wild_ppm.max(self.leg_states[leg as usize].early.ppm()),
                ..load
            }
        })
    }
}

fn sack_blocks(tcp: &TcpView<'_>) -> Option<SackBlocks> {
    tcp.options().map_while(Result::ok).find_map(|option| match option {
        TcpOption::Sack(blocks) => Some(blocks),
        _ => None,
    })
}

/// Difference of the delays of both legs without queues, microseconds.
fn distance_us([lte, wifi]: &[LoadView; 2]) -> u64 {
    (lte.base_us.unwrap_or(0) - wifi.base_us.unwrap_or(0)).unsigned_abs()
}

/// The duplicate reported by an ACK (RFC 2883 §4): a first block at or below the acknowledgment or within the second.
fn duplicate(tcp: &TcpView<'_>) -> Option<(u32, u32)> {
    let blocks = sack_blocks(tcp)?;
    let &(left, right) = blocks.as_slice().first()?;
    let within = |&(l, r): &(u32, u32)| !before(left, l) && !before(r, right);
    (!before(tcp.ack(), right) || blocks.as_slice().get(1).is_some_and(within)).then_some((left, right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_wire::ip::IpPacket;
    use anabranch_wire::tcp::{SackBlocks, TcpFlags, TcpHeader, TcpOptions, emit_packet};
    use std::collections::VecDeque;

    const MSS: u32 = 1_400;

    fn segment(number: u32, is_retransmission: bool) -> Segment {
        Segment {
            seq: number * MSS,
            payload: MSS as usize,
            bytes: MSS as usize + 40,
            hash: 1,
            is_retransmission,
            ends: false,
            has_wifi: true,
            recovers: false,
        }
    }

    /// Calls `look` with an ACK of the first `acked` segments; `blocks`: ranges of segment numbers, end exclusive.
    fn with_ack<T>(acked: u32, blocks: &[(u32, u32)], look: impl FnOnce(&TcpView<'_>) -> T) -> T {
        let mut sack = SackBlocks::default();
        for (left, right) in blocks {
            sack.push(left * MSS, right * MSS);
        }
        let options = TcpOptions { sack, ..TcpOptions::default() };
        let header = TcpHeader { ack: acked * MSS, flags: TcpFlags::ACK, options, ..TcpHeader::default() };
        let packet = emit_packet("10.0.0.2:2".parse().unwrap(), "10.0.0.1:1".parse().unwrap(), &header, &[]);
        let packet = packet.unwrap();
        look(&TcpView::parse(&packet[IpPacket::parse(&packet).unwrap().payload]).unwrap())
    }

    /// A flow with every third segment sent by Wi-Fi.
    fn divided(at: Instant) -> FlowLaw {
        let mut flow = FlowLaw::new(1);
        for number in 0..30 {
            flow.takes(&segment(number, false), if number % 3 == 2 { Leg::Wifi } else { Leg::Lte }, 0, at);
        }
        flow
    }

    #[test]
    fn a_missing_packet_is_lost_once_a_later_packet_of_its_leg_has_arrived() {
        let (at, longest) = (Instant::from_secs(1), Duration::from_millis(100));
        let flow = divided(at);
        let late = |blocks: &[(u32, u32)], now| {
            with_ack(9, blocks, |ack| flow.may_be_late(ack, 9 * MSS, longest, now))
        };
        assert!(late(&[], at), "without SACK, loss cannot be recognised");
        assert!(late(&[(11, 12)], at), "11 overtook on Wi-Fi");
        assert!(!late(&[(11, 13)], at), "12 was sent behind the missing segment on LTE");
        assert!(!late(&[(10, 11)], at));
        assert!(late(&[(4, 5), (11, 12)], at), "the first block is a duplicate SACK");
        assert!(!late(&[(11, 12)], at + Duration::from_millis(101)), "nothing is in flight on the other leg");
        let mut whole = FlowLaw::new(1);
        (0..30).for_each(|number| whole.takes(&segment(number, false), Leg::Wifi, 0, at));
        assert!(!with_ack(9, &[(11, 12)], |ack| whole.may_be_late(ack, 9 * MSS, longest, at)));
    }

    #[test]
    fn a_retransmitted_segment_was_lost_unless_a_duplicate_sack_reports_it() {
        let at = Instant::from_secs(1);
        let (mut law, mut flow) = (Law::default(), divided(at));
        let links = [Link::new(), Link::new()];
        law.again(&links, &mut flow, &segment(5, true), at);
        assert_eq!(law.leg_states.clone().map(|leg_state| leg_state.lost), [(0, 0), (1, MSS + 40)]);
        flow.takes(&segment(5, true), Leg::Lte, 0, at);
        law.again(&links, &mut flow, &segment(5, true), at);
        assert_eq!(law.leg_states.clone().map(|leg_state| leg_state.lost.0), [1, 1]);
        with_ack(9, &[(5, 6)], |ack| law.acknowledged(&links, &mut flow, ack, 60, at));
        assert_eq!(law.leg_states.clone().map(|leg_state| leg_state.lost.0), [0, 1]);
    }

    #[test]
    fn data_in_flight_when_a_leg_goes_down_does_not_make_the_leg_lossy() {
        let (at, mode) = (Instant::from_secs(1), Mode::autonomous_in_order());
        let ((mut law, links), mut flow) = (known([(50, 60), (50, 16)], at), FlowLaw::new(1));
        let send = |law: &mut Law, flow: &mut FlowLaw, number| {
            law.pick(&mode, &links, flow, &segment(number, false), at);
            flow.takes(&segment(number, false), Leg::Wifi, 0, at);
        };
        (0..10).for_each(|number| send(&mut law, &mut flow, number));
        law.interrupted(Leg::Wifi);
        (0..10).for_each(|number| law.again(&links, &mut flow, &segment(number, true), at));
        assert_eq!(law.leg_states[1].lost.0, 0);
        (10..20).for_each(|number| send(&mut law, &mut flow, number));
        law.again(&links, &mut flow, &segment(12, true), at);
        assert_eq!(law.leg_states[1].lost.0, 1, "a segment sent after the outage counts as lost");
        with_ack(20, &[], |ack| law.acknowledged(&links, &mut flow, ack, 60, at));
        assert_eq!(flow.before_outage, [None; 2]);
    }

    #[test]
    fn early_loss_moves_a_flow_off_an_underused_leg() {
        let (at, mode) = (Instant::from_secs(1), Mode::autonomous_in_order());
        // The flow sends 6 Mbit/s and loses one packet in forty. A leg of 8 Mbit/s may be full.
        for (mbps, every, expected) in [(441, 40, Leg::Lte), (441, u32::MAX, Leg::Wifi), (8, 40, Leg::Wifi)] {
            let ((mut law, links), mut flow) = (known([(6, 60), (mbps, 8)], at), FlowLaw::new(1));
            let mut now = at + Duration::from_secs(1);
            let mut leg = Leg::Wifi;
            for number in 0..750 {
                now += Duration::from_millis(2);
                leg = law.pick(&mode, &links, &mut flow, &segment(number, false), now).0;
                flow.takes(&segment(number, false), leg, 0, now);
                law.sent(leg, 1_440, now);
                with_ack(number, &[], |ack| law.acknowledged(&links, &mut flow, ack, 60, now));
                if number % every == every - 1 {
                    law.again(&links, &mut flow, &segment(number, true), now);
                }
            }
            assert_eq!(leg, expected, "{mbps} Mbit/s, one in {every}");
        }
    }

    #[test]
    fn a_train_measures_the_capacity_of_an_idle_leg() {
        let (mut law, mut now) = (Law::default(), Instant::from_secs(1));
        let mut sent = Vec::new();
        while let Some(probe) = law.poll_train(Leg::Wifi, &mut TrainBudget::default(), now) {
            sent.push(probe);
        }
        assert!(sent.len() > 8 && law.estimate_bps(Leg::Wifi) == 0);
        now += Duration::from_millis(20);
        for probe in sent {
            now += Duration::from_micros(1_000);
            law.train_answered(Leg::Wifi, train_byte(probe.train.wrapping_add(1)), probe.index, now);
            law.train_answered(Leg::Wifi, train_byte(probe.train), probe.index, now);
        }
        assert_eq!((law.estimate_bps(Leg::Wifi), law.estimate_bps(Leg::Lte)), (10_000_000, 0));
    }

    /// Legs with known rates and round trips, in Mbit/s and ms.
    fn known(legs: [(u64, u64); 2], now: Instant) -> (Law, [Link; 2]) {
        let (mut law, mut links) = (Law::default(), [Link::new(), Link::new()]);
        for (leg, (mbps, rtt_ms)) in legs.into_iter().enumerate() {
            law.leg_states[leg].load.resume(mbps * 1_000_000, true, now);
            for sequence in 0..2 {
                let at = now + Duration::from_millis(20) * sequence;
                let link = &mut links[leg];
                let sequence = link.probe(44, u16::MAX, at);
                law.probes(Leg::ALL[leg], sequence, 44, at);
                link.answered(sequence, at + Duration::from_millis(rtt_ms));
                law.answered(&links, Leg::ALL[leg], sequence, at + Duration::from_millis(rtt_ms));
            }
        }
        (law, links)
    }

    #[test]
    fn a_flow_whose_sender_repairs_a_loss_stays_at_home_only_if_the_legs_differ_in_delay() {
        let (at, mode) = (Instant::from_secs(1), Mode::autonomous_in_order());
        for (wifi_ms, both) in [(20, true), (50, true), (70, false)] {
            let ((mut law, links), mut flow) = (known([(20, 20), (20, wifi_ms)], at), FlowLaw::new(1));
            let mut now = at + Duration::from_secs(1);
            let mut took = [0; 2];
            // Twice what both legs carry.
            for number in 0..4_000 {
                now += Duration::from_micros(144);
                let segment = Segment { recovers: number > 2_000, ..segment(number, false) };
                let leg = law.pick(&mode, &links, &mut flow, &segment, now).0;
                flow.takes(&segment, leg, 0, now);
                law.sent(leg, 1_440, now);
                took[leg as usize] += u32::from(segment.recovers);
            }
            assert_eq!(took.iter().all(|packets| *packets > 400), both, "{wifi_ms} ms: {took:?}");
        }
    }

    #[test]
    fn a_flow_begins_with_its_handshake_on_the_leg_with_more_capacity() {
        let (at, mode) = (Instant::from_secs(1), Mode::autonomous_in_order());
        for (legs, expected, is_further) in [
            ([(12, 6), (103, 179)], Leg::Wifi, true),
            ([(71, 130), (19, 23)], Leg::Lte, false),
            ([(20, 60), (200, 5)], Leg::Wifi, false),
            // The additional capacity is too small for the longer delay.
            ([(50, 10), (55, 100)], Leg::Lte, false),
            // The delays differ too much for a flow to use both legs.
            ([(12, 6), (103, 600)], Leg::Lte, false),
        ] {
            let ((mut law, links), mut flow) = (known(legs, at), FlowLaw::new(1));
            let now = at + Duration::from_secs(1);
            let handshake = Segment { payload: 0, bytes: 60, ..segment(0, false) };
            let (leg, _) = law.pick(&mode, &links, &mut flow, &handshake, now);
            assert_eq!((leg, law.is_further(&links, leg)), (expected, is_further), "{legs:?}");
            assert_eq!(law.pick(&mode, &links, &mut flow, &segment(1, false), now).0, expected, "{legs:?}");
        }
    }

    #[test]
    fn a_flow_begins_where_other_traffic_leaves_the_most() {
        let mode = Mode::autonomous_in_order();
        for (legs, others_mbps, expected) in [
            ([(50, 20), (40, 30)], 0, Leg::Lte),
            ([(50, 20), (40, 30)], 5, Leg::Lte),
            ([(50, 20), (40, 30)], 25, Leg::Wifi),
            ([(300, 40), (290, 200)], 240, Leg::Wifi),
            ([(50, 20), (8, 30)], 25, Leg::Lte),
            // Other traffic that nearly fills the leg counts as a transfer that yields half.
            ([(50, 20), (8, 30)], 48, Leg::Lte),
            ([(50, 20), (40, 30)], 48, Leg::Wifi),
        ] {
            for silent_ms in [0, 2_000] {
                let (mut law, links) = known(legs, Instant::from_secs(1));
                let (mut now, mut flow) = (Instant::from_secs(2), FlowLaw::new(1));
                for _ in 0..2_000 {
                    now += Duration::from_millis(1);
                    law.on_other_sent(Leg::Lte, others_mbps * 125, now);
                }
                now += Duration::from_millis(silent_ms);
                let (leg, _) = law.pick(&mode, &links, &mut flow, &segment(0, false), now);
                let expected = if silent_ms > 0 { Leg::Lte } else { expected };
                assert_eq!(leg, expected, "{legs:?} with {others_mbps} Mbit/s, {silent_ms} ms ago");
            }
        }
    }

    #[test]
    fn an_uplink_queue_does_not_count_as_a_downlink_queue() {
        // Rates of the UE's uplink and downlink in Mbit/s, and the additional round trip, on a leg of 50 Mbit/s.
        for (up, down, wait_ms, is_known) in [
            (10, 0, 200, true),
            (40, 1, 40, true),
            (40, 20, 100, true),
            (0, 50, 100, true),
            (0, 10, 100, false),
            (5, 10, 100, false),
        ] {
            let (mut law, mut links) = known([(50, 20), (10, 30)], Instant::from_secs(1));
            let start = Instant::from_secs(2);
            let mut answers = VecDeque::new();
            for ms in 0..3_000 {
                let now = start + Duration::from_millis(ms);
                law.uplink(up * 125);
                law.sent(Leg::Lte, down * 125, now);
                if ms % 20 == 0 {
                    let sequence = links[0].probe(44, u16::MAX, now);
                    law.probes(Leg::Lte, sequence, 44, now);
                    let wait_ms = wait_ms.min(ms / 5);
                    answers.push_back((now + Duration::from_millis(20 + wait_ms), sequence));
                }
                while let Some((_, sequence)) = answers.pop_front_if(|(at, _)| *at <= now) {
                    links[0].answered(sequence, now);
                    law.answered(&links, Leg::Lte, sequence, now);
                }
            }
            let now = start + Duration::from_secs(3);
            let [lte, _] = law.loads(&links, now);
            let is_near = (45_000_000..55_000_000).contains(&lte.estimate_bps);
            assert_eq!(is_near, is_known, "{up} up, {down} down: {lte:?}");
            assert_eq!(lte.queue_us < 5_000, up > down, "{up} up, {down} down: {lte:?}");
        }
    }

    #[test]
    fn a_bulk_flow_keeps_its_home_across_pauses() {
        let (at, mode) = (Instant::from_secs(1), Mode::autonomous_in_order());
        let ((mut law, links), mut flow) = (known([(12, 40), (170, 100)], at), FlowLaw::new(1));
        let mut now = at + Duration::from_secs(1);
        for pause_ms in [1_000, 400, 3_000] {
            for number in 0..200 {
                now += Duration::from_millis(5);
                assert_eq!(law.pick(&mode, &links, &mut flow, &segment(number, false), now).0, Leg::Wifi);
            }
            now += Duration::from_millis(pause_ms);
        }
    }

    #[test]
    fn queueing_and_a_recent_leg_change_do_not_count_as_path_delay() {
        let at = Instant::from_secs(1);
        // The uplink takes 8 ms by Wi-Fi and 30 by LTE: the ACK of data sent by Wi-Fi takes 22 ms longer than a probe.
        for (queue_ms, other_at_ms, expected) in [(0, None, 22.0), (70, None, 22.0), (0, Some(1), f64::NAN)] {
            let ((mut law, links), mut flow) = (known([(50, 60), (50, 16)], at), FlowLaw::new(1));
            let sent = at + Duration::from_secs(1);
            if let Some(ms) = other_at_ms {
                flow.takes(&segment(0, false), Leg::Lte, 0, sent - Duration::from_millis(ms));
            }
            flow.takes(&segment(1, false), Leg::Wifi, queue_ms * 1000, sent);
            let now = sent + Duration::from_millis(u64::from(38 + queue_ms));
            with_ack(2, &[], |ack| law.acknowledged(&links, &mut flow, ack, 60, now));
            let beyond_ms = law.beyond.get().map_or(f64::NAN, |us| us / 1e3);
            assert!(
                beyond_ms.to_bits() == expected.to_bits() || (beyond_ms - expected).abs() < 0.1,
                "{beyond_ms}"
            );
        }
    }
}
