//! What ends of GTP-U tell each other about packets that they cannot take, both ways: that a tunnel is not there (error indication,
//! TS 29.281 §7.3.1), and which extension headers they know (§7.2.3).
//!
//! What is heard is counted and told in the log, and changes nothing: neither message is authenticated.

use super::engine::udp::Sockets;
use anabranch_atsss::DatagramSink;
use anabranch_ran::gnb::N3Fault;
use anabranch_wire::gtpu::{ErrorIndication, GtpuHeader, SupportedExtensions, message};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Messages sent in [`EVERY`] at most; one for each packet would double what a peer with a wrong tunnel brings.
const MOST: u32 = 10;
const EVERY: Duration = Duration::from_secs(1);
const MAX: usize = if ErrorIndication::MAX > SupportedExtensions::OWN_LEN {
    ErrorIndication::MAX
} else {
    SupportedExtensions::OWN_LEN
};

/// See the top of this file. One for a socket, which has one peer.
#[derive(Debug, Default)]
pub struct Indications {
    since: Option<Instant>,
    told: u32,
    tunnels_heard: u64,
    extensions_heard: u64,
}

/// What the peer said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// It has no tunnel of a packet.
    NoTunnel,
    /// It does not know an extension header.
    UnknownExtension,
}

impl Indications {
    /// Tells the peer what is wrong with its packet of `received` bytes; `at` is the address that it came to. Who forges the peer's
    /// address must not have it get more than what was sent.
    pub fn tell(
        &mut self,
        sockets: &mut Sockets,
        peer: SocketAddr,
        at: Option<IpAddr>,
        fault: N3Fault,
        received: usize,
    ) {
        let mut bytes = [0; MAX];
        let written = match (fault, at) {
            (N3Fault::NoTunnel(teid), Some(at)) => {
                ErrorIndication { teid, peer: at.to_canonical() }.emit(&mut bytes)
            }
            (N3Fault::NoTunnel(_), None) => return,
            (N3Fault::UnknownExtension, _) => SupportedExtensions::OWN.emit(&mut bytes),
        };
        let Some(len) = written.ok().filter(|len| *len <= received) else { return };
        let now = Instant::now();
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= EVERY) {
            (self.since, self.told) = (Some(now), 0);
        }
        if self.told == MOST {
            return;
        }
        self.told += 1;
        if let Some(room) = sockets.reserve(0, peer, len) {
            room.copy_from_slice(&bytes[..len]);
        }
    }

    /// Takes a message of the peer; none: it says nothing of that kind, or cannot be read.
    pub fn hear(&mut self, peer: SocketAddr, message: &[u8]) -> Option<Heard> {
        match *message.get(1)? {
            message::ERROR_INDICATION => {
                let told = ErrorIndication::parse(GtpuHeader::parse(message).ok()?.1).ok()?;
                self.tunnels_heard += 1;
                // One comes for each packet.
                if self.tunnels_heard.is_power_of_two() {
                    tracing::warn!(
                        "{peer} has no tunnel {} ({:#x}) and drops its packets: correct teid_uplink, or make the session there",
                        told.teid,
                        told.teid
                    );
                }
                Some(Heard::NoTunnel)
            }
            message::SUPPORTED_EXTENSION_HEADERS => {
                let known = SupportedExtensions::parse(GtpuHeader::parse(message).ok()?.1).ok()?;
                self.extensions_heard += 1;
                if self.extensions_heard.is_power_of_two() && !known.has_session_container() {
                    tracing::warn!(
                        "{peer} does not know PDU session containers (TS 38.415) and drops packets with one: it is no UPF of 5G"
                    );
                }
                Some(Heard::UnknownExtension)
            }
            _ => None,
        }
    }
}
