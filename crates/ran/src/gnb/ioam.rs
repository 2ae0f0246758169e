//! The cell as an IOAM node: state of a bearer's queue, RLC and the MAC is written into traces, in both directions.
//!
//! ```text
//!   N3 ─▶ arrived: rate, flows ─▶ SDAP, limiter ─▶ fill ─▶ PDCP, RLC ─▶ MAC ─▶ air
//!                                     │                     │             │
//!                       queue, drops ─┘        RLC occupancy┘             └─ MCS, RB share, link rate, lost blocks
//!
//!   N3 ◀─ fill ◀─ PDCP, RLC ◀─ MAC ◀─ air ◀─ the modem: arrived, SDAP, RLC
//! ```
//!
//! In the downlink, a trace is filled when the packet is passed to PDCP: after that the packet is ciphered. The queue depth
//! is the number of bytes ahead of the packet at that time, in SDAP and RLC of its bearer together. The capacity is that of
//! the buffer that drops: SDAP behind a limiter, RLC otherwise.
//!
//! The link rate is the rate that the MAC expects to give the UE: its part of the RBs that retransmissions leave, among the
//! UEs with data, at the current MCS. It is smoothed over about 16 slots and updated in each slot, so it reports a change of
//! the channel before the queue does.
//!
//! A medium loss is a transport block that HARQ gave up (unacknowledged mode) or a packet that reached RLC's maximum number
//! of retransmissions (acknowledged mode).
//!
//! In the uplink, the gNB fills a trace when it sends the packet to N3, with the modem's queue at that time; the model has
//! both ends of its bearers. A real gNB would learn the modem's queue from buffer status reports, but not the modem's drops.

use super::Gnb;
use super::bearer::Bearer;
use super::config::{GnbError, IoamConfig};
use super::ue::index;
use crate::amc::{Amc, Direction};
use crate::queue::Forecast;
use crate::sdap::{DrbId, Sdap};
use anabranch_element::ioam::{IoamNode, IoamStats, Node, NodeReport, WINDOW};
use anabranch_element::time::{Duration, Instant, nanos};

/// Weight of the moving average: each slot contributes 1/16.
const WEIGHT: u64 = 16;
/// Scale of the fixed-point average, so that rounding does not stall it.
const SCALE: u64 = 1 << 8;
/// The whole carrier in units of half a percent.
const ALL_HALF_PERCENT: u64 = 200;

/// The reporter of one direction of a UE.
#[derive(Debug)]
pub(super) struct Reporter {
    /// One node per bearer, because each bearer has its own queue.
    nodes: Vec<(DrbId, Node)>,
    /// Slots per second that carry the direction.
    slots_per_s: u64,
    /// Expected bytes per slot, times [`SCALE`]; `None` until the UE first has data.
    expected_scaled: Option<u64>,
    mcs: Option<u8>,
    /// RBs in the current window: granted to the UE, and in total.
    rbs: (u64, u64),
    rbs_since: Instant,
    rb_half_percent: Option<u8>,
    lost_blocks: u64,
}

impl Reporter {
    pub(super) fn new(config: IoamNode, drbs: impl Iterator<Item = DrbId>, slots_per_s: u64) -> Self {
        Self {
            nodes: drbs.map(|id| (id, Node::new(config))).collect(),
            slots_per_s,
            expected_scaled: None,
            mcs: None,
            rbs: (0, 0),
            rbs_since: Instant::ZERO,
            rb_half_percent: None,
            lost_blocks: 0,
        }
    }

    /// Records a packet that entered SDAP.
    pub(super) fn arrived(&mut self, id: DrbId, packet: &[u8], at: Instant) {
        if let Some((_, node)) = self.nodes.iter_mut().find(|(drb, _)| *drb == id) {
            node.arrived(packet, at);
        }
    }

    /// Fills the trace of a packet that is passed to its bearer (downlink) or leaves it (uplink).
    pub(super) fn leaves(
        &mut self,
        direction: Direction,
        bearer: &Bearer,
        sdap: &Sdap,
        packet: &mut [u8],
        arrived: Instant,
        now: Instant,
    ) {
        let link_bps = self.link_bps();
        let Some((_, node)) = self.nodes.iter_mut().find(|(drb, _)| *drb == bearer.id) else { return };
        let (mcs, rb_half_percent, lost_blocks) = (self.mcs, self.rb_half_percent, self.lost_blocks);
        node.fill(packet, arrived, now, || {
            let stats = bearer.stats(direction, now);
            let above = sdap.queue_of(bearer.id);
            let open = sdap.limiter(bearer.id).is_none_or(|limiter| limiter.is_open());
            let losses = if bearer.acknowledged { stats.sender.max_retx_reached } else { lost_blocks };
            NodeReport {
                depth_bytes: Some(above.waiting_bytes + stats.buffer_bytes),
                capacity_bytes: Some(if open { bearer.limit_bytes } else { above.limit_bytes }),
                link_bps,
                queue_drops: Some(above.drops + stats.buffer.full_drops + stats.buffer.aqm_drops),
                medium_losses: Some(losses),
                mcs,
                rb_half_percent,
                rlc_bytes: Some(stats.buffer_bytes),
            }
        });
    }

    /// The expected rate; `None` until the UE first has data.
    pub(super) fn link_bps(&self) -> Option<u64> {
        self.expected_scaled.map(|bytes| (bytes * 8).saturating_mul(self.slots_per_s) / SCALE)
    }

    /// Records a slot in which the UE had data; `all` is the number of RBs for data.
    fn slot(&mut self, expected: Option<Forecast>, mcs: Option<u8>, all: u16, at: Instant) {
        let now = expected.map_or(0, |forecast| u64::from(forecast.bytes) * SCALE);
        self.expected_scaled = Some(match self.expected_scaled {
            Some(before) => (before * (WEIGHT - 1) + now) / WEIGHT,
            None => now,
        });
        self.mcs = mcs;
        self.rbs.1 += u64::from(all);
        if at.saturating_since(self.rbs_since) >= WINDOW {
            let (granted, all) = std::mem::take(&mut self.rbs);
            self.rb_half_percent = (granted * ALL_HALF_PERCENT)
                .checked_div(all)
                .map(|share| u8::try_from(share.min(ALL_HALF_PERCENT)).unwrap_or(u8::MAX));
            self.rbs_since = at;
        }
    }

    /// Records RBs granted to the UE.
    pub(super) fn granted(&mut self, rbs: u16) {
        self.rbs.0 += u64::from(rbs);
    }

    /// Records a block that HARQ gave up.
    pub(super) fn lost(&mut self) {
        self.lost_blocks += 1;
    }

    fn is_new(&self) -> bool {
        self.expected_scaled.is_none()
    }

    fn stats(&self) -> IoamStats {
        let mut all = IoamStats::default();
        self.nodes.iter().for_each(|(_, node)| all += node.stats());
        all
    }

    fn set_epoch(&mut self, epoch: Duration) {
        self.nodes.iter_mut().for_each(|(_, node)| node.set_epoch(epoch));
    }
}

impl Gnb {
    /// Enables IOAM for all UEs in both directions.
    pub(super) fn set_ioam(&mut self, config: IoamConfig) -> Result<(), GnbError> {
        if config.check().is_err() {
            return Err(GnbError::value("ioam.node_id", config.node_id, "1 to 16777214"));
        }
        let node = config.node(Duration::ZERO);
        let slots_per_s = Direction::ALL.map(|direction| slots_per_s(&self.amc, direction));
        for ue in &mut self.ues {
            let reporter = |per_s| Reporter::new(node, ue.bearers.iter().map(|bearer| bearer.id), per_s);
            ue.reporters = Some(Box::new(slots_per_s.map(reporter)));
        }
        Ok(())
    }

    /// Sets the wall-clock time (since 1970) at the cell's time 0, for time stamps in traces, if the cell runs in real time.
    pub fn set_ioam_epoch(&mut self, epoch: Duration) {
        for reporter in self.ues.iter_mut().filter_map(|ue| ue.reporters.as_deref_mut()).flatten() {
            reporter.set_epoch(epoch);
        }
    }

    /// Counters of traces, summed over all UEs and both directions.
    #[must_use]
    pub fn ioam_stats(&self) -> IoamStats {
        let mut all = IoamStats::default();
        let reporters = self.ues.iter().filter_map(|ue| ue.reporters.as_deref()).flatten();
        reporters.for_each(|reporter| all += reporter.stats());
        all
    }

    /// Records the MAC's expectation after a slot, for the traces of the following packets.
    pub(super) fn record_slot(&mut self, direction: Direction, number: u32, slot: u64) {
        if self.ues.get(number as usize).is_none_or(|ue| ue.reporters.is_none()) {
            return;
        }
        let expected = self.expectation(direction, number, slot);
        let all = self.data_rbs(direction, slot).unwrap_or(0);
        let at = self.time_of(slot);
        let Self { ues, amc, .. } = self;
        let Some(ue) = ues.get_mut(number as usize) else { return };
        let mcs = ue.mcs(direction, amc, at);
        if let Some(reporters) = &mut ue.reporters {
            reporters[index(direction)].slot(expected, mcs, all, at);
        }
    }

    /// Records the expectation for a UE without one, so that its first packet carries a rate as well.
    pub(super) fn record_first(&mut self, number: u32, slot: u64) {
        for direction in Direction::ALL {
            let reporters = self.ues.get(number as usize).and_then(|ue| ue.reporters.as_deref());
            if reporters.is_some_and(|reporters| reporters[index(direction)].is_new()) {
                self.record_slot(direction, number, slot);
            }
        }
    }

    /// Records RBs granted to a UE, and whether HARQ gave up a block.
    pub(super) fn record_block(&mut self, direction: Direction, number: u32, rbs: u16, lost: bool) {
        let ue = self.ues.get_mut(number as usize);
        if let Some(reporters) = ue.and_then(|ue| ue.reporters.as_deref_mut()) {
            let reporter = &mut reporters[index(direction)];
            reporter.granted(rbs);
            if lost {
                reporter.lost();
            }
        }
    }
}

/// Slots per second that carry a direction, wholly or in part.
fn slots_per_s(amc: &Amc, direction: Direction) -> u64 {
    let period = amc.period_slots().max(1);
    let carry = (0..period).filter(|slot| amc.table(direction, *slot).is_some()).count() as u64;
    1_000_000_000 * carry / (period * nanos(amc.slot()).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::ChannelConfig;
    use crate::gnb::{GnbConfig, UeConfig};
    use anabranch_element::packet::Packet;
    use anabranch_element::{Element, Port};
    use anabranch_wire::ioam::{
        self, HOP_BY_HOP, Snapshot, TraceHeader, TraceKind, TraceType, TraceView, emit_trace_header,
        trace_header_len,
    };
    use anabranch_wire::tcp::{TcpHeader, emit_packet};

    const UE: &str = "[fd00::2]:4711";
    const SERVER: &str = "[fd00::3]:80";

    fn traced(from: &str, to: &str) -> Vec<u8> {
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        let mut packet = emit_packet(from, to, &TcpHeader::default(), &[9; 1000]).unwrap();
        let mut header = vec![0; trace_header_len(27)];
        emit_trace_header(6, &TraceHeader::new(123, TraceType::REPORTED, 27), &mut header).unwrap();
        ioam::insert(&mut packet, HOP_BY_HOP, &header).unwrap();
        packet
    }

    #[test]
    fn a_cell_fills_traces_in_both_directions() {
        let mut config: GnbConfig = serde_json::from_str(r#"{"ues": [], "ioam": {"node_id": 7}}"#).unwrap();
        config.ues.push(UeConfig {
            addresses: vec!["fd00::2".parse().unwrap()],
            ..UeConfig::new("ue".to_owned(), "default".to_owned(), ChannelConfig::mcs(20))
        });
        let mut gnb = Gnb::new(&config, &mut |file| Err(format!("no file {file}"))).unwrap();
        for (start_s, way_in, way_out, from, to) in
            [(1, Gnb::N3, Gnb::ue(0), SERVER, UE), (3, Gnb::ue(0), Gnb::N3, UE, SERVER)]
        {
            let start = Instant::from_millis(1000 * start_s);
            for _ in 0..40 {
                gnb.on_packet(way_in, Packet::new(start, traced(from, to)), start);
            }
            let mut out: Vec<(Port, Packet)> = Vec::new();
            while let Some((at, _)) =
                gnb.poll_timeout().filter(|(at, _)| *at < start + Duration::from_secs(1))
            {
                gnb.on_timeout(at);
                out.extend(std::iter::from_fn(|| gnb.poll_transmit(at)));
            }
            assert_eq!(out.len(), 40);
            let mut deepest = 0;
            for (port, packet) in &out {
                assert_eq!(*port, way_out);
                let range = ioam::trace_range(packet).unwrap().unwrap();
                let trace = TraceView::parse(&packet[range], TraceKind::PreAllocated).unwrap();
                let nodes: Vec<_> = trace.nodes().collect();
                let [node] = nodes[..] else { panic!("{nodes:?}") };
                assert_eq!(node.hop.unwrap().node_id, Some(7));
                deepest = deepest.max(node.queue_depth.unwrap());
                let snapshot = Snapshot::parse(node.snapshot.unwrap()).unwrap().unwrap();
                assert_eq!(
                    (snapshot.mcs, snapshot.queue_drops, snapshot.medium_losses),
                    (Some(20), Some(0), Some(0))
                );
                assert!(snapshot.link_kbps.is_some_and(|kbps| kbps > 1000), "{snapshot:?}");
                assert!(snapshot.capacity_bytes.is_some_and(|bytes| bytes > 40_000), "{snapshot:?}");
                assert!(ioam::report(packet, 0).unwrap().unwrap().complete);
            }
            assert!(deepest > 20_000, "{deepest}");
        }
        assert_eq!(gnb.ioam_stats(), IoamStats { marked: 80, ..IoamStats::default() });
    }
}
