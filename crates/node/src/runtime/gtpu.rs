//! Error indications of GTP-U (TS 29.281 §7.3.1), both ways: told for a tunnel that is not here, heard of one that the peer has not.

use super::engine::udp::Sockets;
use anabranch_atsss::DatagramSink;
use anabranch_wire::gtpu::ErrorIndication;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Indications sent in [`EVERY`] at most; one for each packet would double what a peer with a wrong tunnel brings.
const MOST: u32 = 10;
const EVERY: Duration = Duration::from_secs(1);

/// See the top of this file. One for a socket.
#[derive(Debug, Default)]
pub struct Indications {
    since: Option<Instant>,
    told: u32,
    heard: u64,
}

impl Indications {
    /// Tells the peer that there is no tunnel `teid` here; `at` is the address that its packet came to.
    pub fn tell(&mut self, sockets: &mut Sockets, peer: SocketAddr, at: Option<IpAddr>, teid: u32) {
        let Some(at) = at else { return };
        let now = Instant::now();
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= EVERY) {
            (self.since, self.told) = (Some(now), 0);
        }
        if self.told == MOST {
            return;
        }
        self.told += 1;
        let mut message = [0; ErrorIndication::MAX];
        if let Ok(len) = (ErrorIndication { teid, peer: at.to_canonical() }).emit(&mut message)
            && let Some(room) = sockets.reserve(0, peer, len)
        {
            room.copy_from_slice(&message[..len]);
        }
    }

    /// Takes the information elements of one of the peer; whether they could be read.
    pub fn hear(&mut self, peer: SocketAddr, elements: &[u8]) -> bool {
        let Ok(told) = ErrorIndication::parse(elements) else { return false };
        self.heard += 1;
        // One comes for each packet.
        if self.heard.is_power_of_two() {
            tracing::warn!(
                "{peer} has no tunnel {} ({:#x}) and drops its packets: correct teid_uplink, or make the session there",
                told.teid,
                told.teid
            );
        }
        true
    }
}
