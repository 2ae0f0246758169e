//! The cell as an IOAM node: what a bearer's queue, RLC and the MAC know, written into downlink traces.
//!
//! ```text
//!   N3 ─▶ arrived: rate, flows ─▶ SDAP, limiter ─▶ fill ─▶ PDCP, RLC ─▶ MAC ─▶ air
//!                                     │                     │             │
//!                       queue, drops ─┘        RLC occupancy┘             └─ MCS, RB share, link rate, lost blocks
//! ```
//!
//! A trace is filled when the packet goes down to PDCP, the last place where a gNB can: behind it packets are ciphered.
//! Queue depth is what is in front of the packet then, in SDAP and RLC of its bearer together; the capacity is the
//! buffer's that drops, SDAP's behind a limiter and RLC's otherwise.
//!
//! The link's rate is what the MAC expects to give the UE: its part of the RBs that retransmissions leave, at the MCS now
//! in force, among those that have something to send. It is smoothed over about 16 slots, and is new with each slot: a
//! change of the channel is told before the queue shows it.
//!
//! A loss of the medium is a transport block that was given up, in unacknowledged mode; in acknowledged mode, a packet
//! that RLC sent as often as it may. The uplink's packets pass as they are.

use super::Gnb;
use super::bearer::Bearer;
use super::config::{GnbError, IoamConfig};
use super::ue::index;
use crate::ioam::{IoamNode, MOST_NODE_ID, Node, Told, WINDOW};
use crate::ran::amc::{Amc, Direction};
use crate::ran::queue::{Forecast, Sdu};
use crate::ran::sdap::{DrbId, Sdap};
use crate::time::{Duration, Instant, nanos};

/// Each slot moves the expected bytes a sixteenth of the way.
const WEIGHT: u64 = 16;
/// Their fraction, so that they do not stick.
const SCALE: u64 = 1 << 8;
/// All RBs of the carrier.
const ALL_HALF_PERCENT: u64 = 200;

/// What a UE's downlink tells.
#[derive(Debug)]
pub(super) struct Teller {
    /// A node per bearer: each has a queue of its own.
    nodes: Vec<(DrbId, Node)>,
    /// Slots of the downlink per second.
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

impl Teller {
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

    /// A packet goes down to its bearer.
    pub(super) fn leaves(&mut self, bearer: &Bearer, sdap: &Sdap, sdu: &mut Sdu, now: Instant) {
        let Some((_, node)) = self.nodes.iter_mut().find(|(drb, _)| *drb == bearer.id) else { return };
        let (scaled, slots_per_s) = (self.expected_scaled, self.slots_per_s);
        let (mcs, rb_half_percent, lost_blocks) = (self.mcs, self.rb_half_percent, self.lost_blocks);
        let arrived = sdu.arrived;
        node.fill(sdu.ip_mut(), arrived, now, || {
            let stats = bearer.stats(Direction::Downlink, now);
            let above = sdap.queue_of(bearer.id);
            let open = sdap.limiter(bearer.id).is_none_or(|limiter| limiter.is_open());
            let losses = if bearer.acknowledged { stats.sender.max_retx_reached } else { lost_blocks };
            Told {
                depth_bytes: above.waiting_bytes + stats.buffer_bytes,
                capacity_bytes: if open { bearer.limit_bytes } else { above.limit_bytes },
                link_bps: scaled.map(|bytes| (bytes * 8).saturating_mul(slots_per_s) / SCALE),
                queue_drops: above.drops + stats.buffer.full_drops + stats.buffer.aqm_drops,
                medium_losses: losses,
                mcs,
                rb_half_percent,
                rlc_bytes: Some(stats.buffer_bytes),
            }
        });
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

    fn set_epoch(&mut self, epoch: Duration) {
        self.nodes.iter_mut().for_each(|(_, node)| node.set_epoch(epoch));
    }
}

impl Gnb {
    /// Has the UEs' downlinks tell.
    pub(super) fn tell(&mut self, config: IoamConfig) -> Result<(), GnbError> {
        if !(1..=MOST_NODE_ID).contains(&config.node_id) {
            return Err(GnbError::value("ioam.node_id", config.node_id, "1 to 16777214"));
        }
        let node = IoamNode { node_id: config.node_id, namespace: config.namespace, epoch: Duration::ZERO };
        let slots_per_s = downlink_slots_per_s(&self.amc);
        for ue in &mut self.ues {
            let drbs = ue.bearers.iter().map(|bearer| bearer.id);
            ue.teller = Some(Box::new(Teller::new(node, drbs, slots_per_s)));
        }
        Ok(())
    }

    /// What the clock of time stamps in traces says when the cell's says 0: the time since 1970, where the cell runs in
    /// real time.
    pub fn set_ioam_epoch(&mut self, epoch: Duration) {
        for teller in self.ues.iter_mut().filter_map(|ue| ue.teller.as_mut()) {
            teller.set_epoch(epoch);
        }
    }

    /// What the MAC expects after a slot, for the next packet's trace.
    pub(super) fn note_slot(&mut self, number: u32, slot: u64) {
        if self.ues.get(number as usize).is_none_or(|ue| ue.teller.is_none()) {
            return;
        }
        let expected = self.expectation(number, slot);
        let all = self.data_rbs(Direction::Downlink, slot).unwrap_or(0);
        let at = self.time_of(slot);
        let Self { ues, amc, .. } = self;
        let Some(ue) = ues.get_mut(number as usize) else { return };
        let mcs = ue.mcs(Direction::Downlink, amc, at);
        if let Some(teller) = &mut ue.teller {
            teller.slot(expected, mcs, all, at);
        }
    }

    /// The first packet of a UE is told something, too.
    pub(super) fn note_first(&mut self, number: u32, slot: u64) {
        let new = |ue: &super::Ue| ue.teller.as_ref().is_some_and(|teller| teller.is_new());
        if self.ues.get(number as usize).is_some_and(new) {
            self.note_slot(number, slot);
        }
    }

    /// Notes RBs given to a UE, and a block of it that was given up.
    pub(super) fn note_block(&mut self, direction: Direction, number: u32, rbs: u16, lost: bool) {
        if index(direction) != 0 {
            return;
        }
        let ue = self.ues.get_mut(number as usize);
        if let Some(teller) = ue.and_then(|ue| ue.teller.as_mut()) {
            teller.granted(rbs);
            if lost {
                teller.lost();
            }
        }
    }
}

/// Slots per second that carry the downlink, in whole or in part.
fn downlink_slots_per_s(amc: &Amc) -> u64 {
    let period = amc.period_slots().max(1);
    let carry = (0..period).filter(|slot| amc.table(Direction::Downlink, *slot).is_some()).count() as u64;
    1_000_000_000 * carry / (period * nanos(amc.slot()).max(1))
}
