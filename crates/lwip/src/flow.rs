//! The state of one flow.

use super::dida::{Track, before};
use super::estimate::Estimate;
use super::holding_time::{Model, RoundTrips};
use super::law::FlowLaw;
use super::steer::Carry;
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ip::FlowKey;

/// A flow: one direction of data, from a server to a UE.
pub(super) struct Flow {
    /// The 5-tuple in the direction of the data.
    pub key: FlowKey,
    /// Keyed hash of `key`.
    pub hash: u64,
    /// Index of the UE in `Node::ues`.
    pub ue: u32,
    /// Remainder of the share of LTE.
    pub carry: Carry,
    /// When the last packet passed, in either direction.
    pub seen: Instant,
    /// Data packets sent, by leg.
    pub sent: [u64; 2],
    pub held_acks: u64,
    pub track: Track,
    pub estimate: Estimate,
    pub gap: Option<Gap>,
    /// Present while the node steers by the autonomous law.
    pub law: Option<Box<FlowLaw>>,
    /// When the UE's SYN was forwarded.
    pub syn_at: Option<Instant>,
}

/// A gap: duplicates since the last advance that DIDA holds, or would hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gap {
    /// When the first of these duplicates was received.
    pub since: Instant,
    /// When a retransmission of the missing segment was forwarded, and its timestamp.
    pub again: Option<(Instant, Option<u32>)>,
}

impl Gap {
    pub(super) const fn new(now: Instant) -> Self {
        Self { since: now, again: None }
    }

    /// Whether the missing packet was late, not lost. It was late if it was not retransmitted, if the ACK echoes a
    /// timestamp older than that of the retransmission (RFC 3522), or if the retransmission passed the node less
    /// than `shortest` before the ACK.
    pub(super) fn was_late(&self, echo: Option<u32>, shortest: Duration, now: Instant) -> bool {
        let Some((at, stamp)) = self.again else { return true };
        match (stamp, echo) {
            (Some(stamp), Some(echo)) if echo != stamp => before(echo, stamp),
            _ => now.saturating_since(at) < shortest,
        }
    }
}

impl Flow {
    pub(super) fn new(key: FlowKey, hash: u64, ue: u32, now: Instant) -> Self {
        Self {
            key,
            hash,
            ue,
            carry: Carry::with_phase(hash),
            seen: now,
            sent: [0; 2],
            held_acks: 0,
            track: Track::default(),
            estimate: Estimate::default(),
            gap: None,
            law: None,
            syn_at: None,
        }
    }

    /// The paper's model of the flow at `now`; `None` before a round trip has been measured.
    pub(super) fn model(&self, now: Instant) -> Option<Model> {
        let trips = self.estimate.round_trips()?;
        let elapsed = now.saturating_since(self.estimate.epoch).as_secs_f64();
        Some(Model::of_flow(self.window(), elapsed, trips.smoothed_s))
    }

    /// Estimate of the sender's window, segments.
    pub(super) fn window(&self) -> f64 {
        self.estimate.window(self.track.in_flight())
    }

    pub(super) fn view(&self, min_rto_s: f64) -> FlowView {
        let round_trips = self.estimate.round_trips();
        FlowView {
            round_trips,
            window_segments: self.window(),
            optimum_s: self.model(self.seen).map_or(0.0, |model| model.optimum_s()),
            longest_hold_s: round_trips.map_or(0.0, |trips| trips.mht_s(min_rto_s)),
            key: self.key,
            last_seen: self.seen,
            packets: self.sent,
            in_flight_bytes: self.track.in_flight(),
            holding: self.track.held.len(),
            held_acks: self.held_acks,
        }
    }
}

/// The state of a flow, for inspection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlowView {
    /// In the direction of the data: from the server to the UE.
    pub key: FlowKey,
    /// When its last packet passed the node.
    pub last_seen: Instant,
    /// Data packets sent by each leg, in the order of [`super::Leg::ALL`].
    pub packets: [u64; 2],
    /// Bytes sent and not acknowledged.
    pub in_flight_bytes: u32,
    /// Number of ACKs held now.
    pub holding: u32,
    /// Number of ACKs held so far.
    pub held_acks: u64,
    /// The sender's round trips, measured from both sides.
    pub round_trips: Option<RoundTrips>,
    /// Estimate of the sender's window, segments.
    pub window_segments: f64,
    /// The paper's t_opt at the time of the last packet, seconds.
    pub optimum_s: f64,
    /// T_MHT as limited in docs/lwip.md, seconds from the last advance.
    pub longest_hold_s: f64,
}
