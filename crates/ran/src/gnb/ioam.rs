//! The cell as an IOAM node: what a bearer's queue, RLC and the MAC know, written into traces, both ways.
//!
//! ```text
//!   N3 ─▶ arrived: rate, flows ─▶ SDAP, limiter ─▶ fill ─▶ PDCP, RLC ─▶ MAC ─▶ air
//!                                     │                     │             │
//!                       queue, drops ─┘        RLC occupancy┘             └─ MCS, RB share, link rate, lost blocks
//!
//!   N3 ◀─ fill ◀─ PDCP, RLC ◀─ MAC ◀─ air ◀─ the modem: arrived, SDAP, RLC
//! ```
//!
//! In the downlink a trace is filled when the packet goes down to PDCP, the last place where a gNB can: behind it packets are ciphered.
//! Queue depth is what is in front of the packet then, in SDAP and RLC of its bearer together; the capacity is the
//! buffer's that drops, SDAP's behind a limiter and RLC's otherwise.
//!
//! The link's rate is what the MAC expects to give the UE: its part of the RBs that retransmissions leave, at the MCS now
//! in force, among those that have something to send. It is smoothed over about 16 slots, and is new with each slot: a
//! change of the channel is told before the queue shows it.
//!
//! A loss of the medium is a transport block that was given up, in unacknowledged mode; in acknowledged mode, a packet
//! that RLC sent as often as it may.
//!
//! In the uplink the gNB fills when it hands a packet to N3, with what waits at the modem by then: a cell is both ends of its
//! bearers. A gNB of its own would know the modem's queue by buffer status reports, and not what the modem dropped.

use super::Gnb;
use super::bearer::Bearer;
use super::config::{GnbError, IoamConfig};
use super::ue::index;
use crate::amc::{Amc, Direction};
use crate::queue::Forecast;
use crate::sdap::{DrbId, Sdap};
use anabranch_element::ioam::{IoamNode, IoamStats, Node, NodeReport, WINDOW};
use anabranch_element::time::{Duration, Instant, nanos};

/// Each slot moves the expected bytes a sixteenth of the way.
const WEIGHT: u64 = 16;
/// Their fraction, so that they do not stick.
const SCALE: u64 = 1 << 8;
/// All RBs of the carrier.
const ALL_HALF_PERCENT: u64 = 200;

/// What a direction of a UE tells.
#[derive(Debug)]
pub(super) struct Reporter {
    /// A node per bearer: each has a queue of its own.
    nodes: Vec<(DrbId, Node)>,
    /// Slots of the direction per second.
    slots_per_s: u64,
    /// Bytes per slot that the MAC would give; `None`: nothing was ever to send.
    expected_scaled: Option<u64>,
    mcs: Option<u8>,
    /// RBs of the window under way: granted, and all.
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

    /// A packet entered SDAP.
    pub(super) fn arrived(&mut self, id: DrbId, packet: &[u8], at: Instant) {
        if let Some((_, node)) = self.nodes.iter_mut().find(|(drb, _)| *drb == id) {
            node.arrived(packet, at);
        }
    }

    /// A packet goes down to its bearer, or in the uplink leaves it.
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

    /// What the MAC would give; none if nothing was ever to send.
    pub(super) fn link_bps(&self) -> Option<u64> {
        self.expected_scaled.map(|bytes| (bytes * 8).saturating_mul(self.slots_per_s) / SCALE)
    }

    /// A slot passed in which the UE had something to send; `all` RBs were there for data.
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

    /// The UE was given RBs.
    pub(super) fn granted(&mut self, rbs: u16) {
        self.rbs.0 += u64::from(rbs);
    }

    /// A block of it was given up.
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
    /// Has the UEs tell, both ways.
    pub(super) fn set_ioam(&mut self, config: IoamConfig) -> Result<(), GnbError> {
        if config.check().is_err() {
            return Err(GnbError::value("ioam.node_id", config.node_id, "1 to 16777214"));
        }
        let node = config.node(Duration::ZERO);
        let slots_per_s = Direction::ALL.map(|direction| slots_per_s(&self.amc, direction));
        for ue in &mut self.ues {
            let teller = |per_s| Reporter::new(node, ue.bearers.iter().map(|bearer| bearer.id), per_s);
            ue.tellers = Some(Box::new(slots_per_s.map(teller)));
        }
        Ok(())
    }

    /// What the clock of time stamps in traces says when the cell's says 0: the time since 1970, where the cell runs in
    /// real time.
    pub fn set_ioam_epoch(&mut self, epoch: Duration) {
        for teller in self.ues.iter_mut().filter_map(|ue| ue.tellers.as_deref_mut()).flatten() {
            teller.set_epoch(epoch);
        }
    }

    /// What became of traces, of all UEs, both ways.
    #[must_use]
    pub fn ioam_stats(&self) -> IoamStats {
        let mut all = IoamStats::default();
        let tellers = self.ues.iter().filter_map(|ue| ue.tellers.as_deref()).flatten();
        tellers.for_each(|teller| all += teller.stats());
        all
    }

    /// What the MAC expects after a slot, for the next packet's trace.
    pub(super) fn note_slot(&mut self, direction: Direction, number: u32, slot: u64) {
        if self.ues.get(number as usize).is_none_or(|ue| ue.tellers.is_none()) {
            return;
        }
        let expected = self.expectation(direction, number, slot);
        let all = self.data_rbs(direction, slot).unwrap_or(0);
        let at = self.time_of(slot);
        let Self { ues, amc, .. } = self;
        let Some(ue) = ues.get_mut(number as usize) else { return };
        let mcs = ue.mcs(direction, amc, at);
        if let Some(tellers) = &mut ue.tellers {
            tellers[index(direction)].slot(expected, mcs, all, at);
        }
    }

    /// The first packet of a UE is told something, too.
    pub(super) fn note_first(&mut self, number: u32, slot: u64) {
        for direction in Direction::ALL {
            let tellers = self.ues.get(number as usize).and_then(|ue| ue.tellers.as_deref());
            if tellers.is_some_and(|tellers| tellers[index(direction)].is_new()) {
                self.note_slot(direction, number, slot);
            }
        }
    }

    /// Notes RBs given to a UE, and a block of it that was given up.
    pub(super) fn note_block(&mut self, direction: Direction, number: u32, rbs: u16, lost: bool) {
        let ue = self.ues.get_mut(number as usize);
        if let Some(tellers) = ue.and_then(|ue| ue.tellers.as_deref_mut()) {
            let teller = &mut tellers[index(direction)];
            teller.granted(rbs);
            if lost {
                teller.lost();
            }
        }
    }
}

/// Slots per second that carry a direction, in whole or in part.
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
    fn a_cell_tells_both_ways() {
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
                let told = Snapshot::parse(node.snapshot.unwrap()).unwrap().unwrap();
                assert_eq!((told.mcs, told.queue_drops, told.medium_losses), (Some(20), Some(0), Some(0)));
                assert!(told.link_kbps.is_some_and(|kbps| kbps > 1000), "{told:?}");
                assert!(told.capacity_bytes.is_some_and(|bytes| bytes > 40_000), "{told:?}");
                assert!(ioam::report(packet, 0).unwrap().unwrap().complete);
            }
            assert!(deepest > 20_000, "{deepest}");
        }
        assert_eq!(gnb.ioam_stats(), IoamStats { marked: 80, ..IoamStats::default() });
    }
}
