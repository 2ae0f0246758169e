//! What a node remembers of one flow.

use super::dida::Track;
use super::steer::Carry;
use crate::time::Instant;
use anabranch_wire::ip::FlowKey;

/// A flow: one direction of data, from a server to a UE.
pub(super) struct Flow {
    pub key: FlowKey,
    pub hash: u64,
    pub ue: u32,
    pub carry: Carry,
    pub seen: Instant,
    /// Packets with data by leg.
    pub sent: [u64; 2],
    pub held_acks: u64,
    pub track: Track,
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
        }
    }

    pub(super) const fn view(&self) -> FlowView {
        FlowView {
            key: self.key,
            last_seen: self.seen,
            packets: self.sent,
            in_flight_bytes: self.track.in_flight(),
            holding: self.track.held.len(),
            held_acks: self.held_acks,
        }
    }
}

/// A flow, for those who look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlowView {
    /// In the direction of the data: from the server to the UE.
    pub key: FlowKey,
    /// When its last packet passed.
    pub last_seen: Instant,
    /// Packets with data by leg, in the order of [`super::Leg::ALL`].
    pub packets: [u64; 2],
    /// Bytes sent and not acknowledged.
    pub in_flight_bytes: u32,
    /// ACKs held now.
    pub holding: u32,
    /// ACKs ever held.
    pub held_acks: u64,
}
