//! Messages of GTP-U ends about packets that they cannot accept, in both directions: unknown tunnels (Error
//! Indication, TS 29.281 §7.3.1), and supported extension headers (§7.2.3).
//!
//! Received messages are counted and logged but change nothing, because they are not authenticated.

use crate::udp::Sockets;
use anabranch_atsss::DatagramSink;
use anabranch_ran::gnb::N3Fault;
use anabranch_wire::gtpu::{ErrorIndication, GtpuHeader, SupportedExtensions, message};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Maximum number of messages sent per [`WINDOW`]; one per packet would double the load of a peer with a wrong
/// tunnel.
const MAX_PER_WINDOW: u32 = 10;
const WINDOW: Duration = Duration::from_secs(1);
const MAX: usize = if ErrorIndication::MAX > SupportedExtensions::OWN_LEN {
    ErrorIndication::MAX
} else {
    SupportedExtensions::OWN_LEN
};

/// Rate limits and counters of one socket, which has one peer; the module documentation describes them.
#[derive(Debug, Default)]
pub struct Indications {
    window_start: Option<Instant>,
    sent_in_window: u32,
    tunnels_heard: u64,
    extensions_heard: u64,
}

/// A message of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerIndication {
    /// The peer has no tunnel for a packet.
    NoTunnel,
    /// The peer does not support an extension header.
    UnknownExtension,
}

impl Indications {
    /// Reports to the peer that its packet of `received` bytes, sent to the address `at`, cannot be accepted.
    /// The answer is never longer than the packet, so a forged source address cannot be used for
    /// amplification.
    pub fn send_indication(
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
        if self.window_start.is_none_or(|since| now.saturating_duration_since(since) >= WINDOW) {
            (self.window_start, self.sent_in_window) = (Some(now), 0);
        }
        if self.sent_in_window == MAX_PER_WINDOW {
            return;
        }
        self.sent_in_window += 1;
        if let Some(room) = sockets.reserve(0, peer, len) {
            room.copy_from_slice(&bytes[..len]);
        }
    }

    /// Handles a message of the peer; `None` if it is of another kind or cannot be parsed.
    pub fn on_message(&mut self, peer: SocketAddr, message: &[u8]) -> Option<PeerIndication> {
        match *message.get(1)? {
            message::ERROR_INDICATION => {
                let sent_in_window = ErrorIndication::parse(GtpuHeader::parse(message).ok()?.1).ok()?;
                self.tunnels_heard += 1;
                // The peer sends one per packet, so logging is limited.
                if self.tunnels_heard.is_power_of_two() {
                    tracing::warn!(
                        "{peer} has no tunnel {} ({:#x}) and drops its packets: correct teid_uplink, or create the session there",
                        sent_in_window.teid,
                        sent_in_window.teid
                    );
                }
                Some(PeerIndication::NoTunnel)
            }
            message::SUPPORTED_EXTENSION_HEADERS => {
                let known = SupportedExtensions::parse(GtpuHeader::parse(message).ok()?.1).ok()?;
                self.extensions_heard += 1;
                if self.extensions_heard.is_power_of_two() && !known.has_session_container() {
                    tracing::warn!(
                        "{peer} does not support PDU session containers (TS 38.415) and drops packets with one: it is not a 5G UPF"
                    );
                }
                Some(PeerIndication::UnknownExtension)
            }
            _ => None,
        }
    }
}
