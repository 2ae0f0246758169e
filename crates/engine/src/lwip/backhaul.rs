//! The backhaul of an LWIP node, towards servers: an interface, or the N3 tunnels of a UPF.
//!
//! ```text
//!   UPF ── G-PDU, TEID of the UE ──▶ unwrapped ─▶ Node::downlink
//!       ◀─ G-PDU, TEID of the UPF, QFI ── wrapped, by source address ◀─ Node::uplink, or later
//! ```
//!
//! Source: 3GPP TS 29.281 and TS 38.415. Tunnels are configured, because there is no N2. The node answers Echo
//! Requests (TS 29.281 §7.2.1) and sends Error Indications (§7.3.1) and Supported Extension Headers Notifications
//! (§7.2.3). It sends no other messages: path management is left to the UPF.

use crate::device::{Device, DeviceCounters};
use crate::gtpu::{Indications, PeerIndication};
use crate::udp::{AccessSocket, Inbox, SocketCounters, Sockets};
use anabranch_atsss::DatagramSink;
use anabranch_ran::gnb::N3Fault;
use anabranch_wire::gtpu::{GtpuHeader, PduSession, is_unknown_extension, message};
use anabranch_wire::ip::src_dst;
use anyhow::Context;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

/// The Recovery element of an Echo Response, which is always 0 (TS 29.281 §8.2).
const RECOVERY: [u8; 2] = [14, 0];

/// The backhaul; the module documentation describes it.
pub enum Backhaul {
    /// Plain IP.
    Device(Box<Device>),
    /// GTP-U.
    Gtpu(Box<Gtpu>),
}

/// GTP-U to one UPF.
pub struct Gtpu {
    sockets: Sockets,
    inbox: Inbox,
    peer: SocketAddr,
    tunnels: Tunnels,
    indications: Indications,
    dropped: Dropped,
}

/// The tunnel of a UE.
#[derive(Debug, Clone)]
pub struct Tunnel {
    /// Addresses of the UE. A tunnel without one carries downlink packets only.
    pub addresses: Vec<IpAddr>,
    /// TEID with which the UPF sends packets to the UE.
    pub teid_downlink: u32,
    /// TEID with which the node sends packets of the UE to the UPF.
    pub teid_uplink: u32,
    /// QoS flow identifier of the uplink.
    pub qfi: u8,
}

/// The tunnels of all UEs, uplink and downlink. A UE without a tunnel cannot reach servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tunnels {
    /// Address of the UE, TEID and QFI of its uplink, sorted by address.
    by_source: Vec<(IpAddr, u32, u8)>,
    /// TEIDs of the downlinks, sorted.
    downlink: Vec<u32>,
}

/// Dropped packets and messages, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Datagrams from other addresses than the UPF's.
    pub unknown_peer: u64,
    /// Downlink packets with a TEID that belongs to no UE.
    pub unknown_tunnel: u64,
    /// Uplink packets whose source address belongs to no UE with a tunnel.
    pub unknown_source: u64,
    /// Uplink packets for which the UPF reported (Error Indication) that it has no tunnel.
    pub unknown_at_peer: u64,
    /// Packets with an unsupported extension header whose comprehension is required.
    pub unknown_extension: u64,
    /// Notifications of the UPF that it does not support an extension header of the uplink packets.
    pub extension_at_peer: u64,
    /// Datagrams that are not GTP-U, and messages other than G-PDUs, Echo Requests and reports about own packets.
    pub not_understood: u64,
    /// Packets longer than the largest datagram.
    pub too_big: u64,
}

impl Dropped {
    /// The counters by reason, without those that are 0.
    pub fn by_reason(self) -> BTreeMap<String, u64> {
        let all = [
            ("unknown_peer", self.unknown_peer),
            ("unknown_tunnel", self.unknown_tunnel),
            ("unknown_source", self.unknown_source),
            ("unknown_at_peer", self.unknown_at_peer),
            ("unknown_extension", self.unknown_extension),
            ("extension_at_peer", self.extension_at_peer),
            ("not_understood", self.not_understood),
            ("too_big", self.too_big),
        ];
        all.into_iter().filter(|(_, n)| *n > 0).map(|(reason, n)| (reason.to_owned(), n)).collect()
    }
}

impl FromIterator<Tunnel> for Tunnels {
    fn from_iter<T: IntoIterator<Item = Tunnel>>(each: T) -> Self {
        let mut tunnels = Self::default();
        for Tunnel { addresses, teid_downlink, teid_uplink, qfi } in each {
            tunnels.downlink.push(teid_downlink);
            tunnels.by_source.extend(addresses.into_iter().map(|address| (address, teid_uplink, qfi)));
        }
        tunnels.downlink.sort_unstable();
        tunnels.by_source.sort_unstable();
        tunnels
    }
}

impl Tunnels {
    /// The header of an uplink packet from this address.
    fn header(&self, source: IpAddr) -> Option<GtpuHeader> {
        let at = self.by_source.binary_search_by_key(&source, |(address, ..)| *address).ok()?;
        let (_, teid, qfi) = *self.by_source.get(at)?;
        Some(GtpuHeader::g_pdu(teid, Some(PduSession::uplink(qfi))))
    }
}

impl Gtpu {
    /// GTP-U over a bound socket.
    ///
    /// # Errors
    /// The system refuses a socket option.
    pub fn new(socket: UdpSocket, peer: SocketAddr, tunnels: Tunnels) -> std::io::Result<Self> {
        let sockets = Sockets::new(vec![Some(AccessSocket::new(socket, false, true)?)]);
        let (inbox, indications, dropped) = Default::default();
        Ok(Self { sockets, inbox, peer, tunnels, indications, dropped })
    }

    /// Passes the waiting packets to `each`; true if there may be more.
    fn receive(&mut self, mut each: impl FnMut(&mut [u8])) -> std::io::Result<bool> {
        let Self { sockets, inbox, peer, tunnels, indications, dropped } = self;
        let Some(socket) = sockets.get_mut(0) else { return Ok(false) };
        let filled = inbox.receive(socket)?;
        inbox.for_each(|from, at, datagram| {
            if from != *peer {
                dropped.unknown_peer += 1;
                return;
            }
            match GtpuHeader::parse(datagram) {
                Ok((header, rest)) if header.message == message::G_PDU => {
                    let inner = datagram.len() - rest.len();
                    match tunnels.downlink.binary_search(&header.teid) {
                        Ok(_) => each(&mut datagram[inner..]),
                        Err(_) => {
                            dropped.unknown_tunnel += 1;
                            let fault = N3Fault::NoTunnel(header.teid);
                            indications.send_indication(sockets, *peer, at, fault, datagram.len());
                        }
                    }
                }
                Ok((header, _)) if header.message == message::ECHO_REQUEST => {
                    echo(sockets, *peer, header.sequence);
                }
                Err(error) if is_unknown_extension(&error) && datagram[1] == message::G_PDU => {
                    dropped.unknown_extension += 1;
                    indications.send_indication(
                        sockets,
                        *peer,
                        at,
                        N3Fault::UnknownExtension,
                        datagram.len(),
                    );
                }
                _ => match indications.on_message(*peer, datagram) {
                    Some(PeerIndication::NoTunnel) => dropped.unknown_at_peer += 1,
                    Some(PeerIndication::UnknownExtension) => dropped.extension_at_peer += 1,
                    None => dropped.not_understood += 1,
                },
            }
        });
        Ok(Inbox::may_be_more(filled))
    }

    fn send(&mut self, packet: &[u8]) {
        let header = src_dst(packet).ok().and_then(|(source, _)| self.tunnels.header(source));
        let Some(header) = header else {
            self.dropped.unknown_source += 1;
            return;
        };
        let len = header.header_len();
        // A packet that fits into a datagram fits the length field.
        if let Some(room) = self.sockets.reserve(0, self.peer, len + packet.len())
            && header.emit(packet.len(), room).is_ok()
        {
            room[len..].copy_from_slice(packet);
        } else {
            self.dropped.too_big += 1;
        }
    }
}

fn echo(sockets: &mut Sockets, peer: SocketAddr, sequence: Option<u16>) {
    let header = GtpuHeader { message: message::ECHO_RESPONSE, sequence, ..GtpuHeader::g_pdu(0, None) };
    let len = header.header_len();
    if let Some(room) = sockets.reserve(0, peer, len + RECOVERY.len())
        && header.emit(RECOVERY.len(), room).is_ok()
    {
        room[len..].copy_from_slice(&RECOVERY);
    }
}

impl Backhaul {
    /// Passes packets for UEs to `each`; true if there may be more.
    ///
    /// # Errors
    /// The interface no longer exists, or the system reports an error.
    pub fn receive(&mut self, each: impl FnMut(&mut [u8])) -> anyhow::Result<bool> {
        match self {
            Self::Device(device) => {
                let read = device.receive(each);
                Ok(read.context("reading the device of [backhaul]; was it removed?")? > 0)
            }
            Self::Gtpu(gtpu) => gtpu.receive(each).context("receiving on [gtpu]"),
        }
    }

    /// Sends a packet of a UE towards the servers.
    pub fn send(&mut self, packet: &[u8]) {
        match self {
            Self::Device(device) => device.send(packet),
            Self::Gtpu(gtpu) => gtpu.send(packet),
        }
    }

    /// Sends the packets queued for a batch.
    pub fn flush(&mut self) {
        match self {
            Self::Device(device) => device.flush(),
            Self::Gtpu(gtpu) => gtpu.sockets.flush(),
        }
    }

    /// The file descriptor to poll for readability.
    pub fn raw_fd(&mut self) -> RawFd {
        match self {
            Self::Device(device) => device.as_raw_fd(),
            Self::Gtpu(gtpu) => gtpu.sockets.get_mut(0).map_or(-1, |socket| socket.as_raw_fd()),
        }
    }

    /// Counters of the interface; `None` with GTP-U.
    pub fn device(&self) -> Option<DeviceCounters> {
        match self {
            Self::Device(device) => Some(device.counters()),
            Self::Gtpu(_) => None,
        }
    }

    /// Counters of the socket, and drops by reason; `None` with an interface.
    pub fn gtpu(&mut self) -> Option<(SocketCounters, Dropped)> {
        match self {
            Self::Device(_) => None,
            Self::Gtpu(gtpu) => {
                let counters = gtpu.sockets.get_mut(0).map(|socket| socket.counters()).unwrap_or_default();
                Some((counters, gtpu.dropped))
            }
        }
    }

    /// Replaces the tunnels, from the next packet on.
    pub fn set_tunnels(&mut self, tunnels: Tunnels) {
        if let Self::Gtpu(gtpu) = self {
            gtpu.tunnels = tunnels;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_wire::gtpu::{ErrorIndication, SupportedExtensions};
    use std::time::{Duration, Instant};

    fn addresses(text: &[&str]) -> Vec<IpAddr> {
        text.iter().map(|address| address.parse().unwrap()).collect()
    }

    /// A minimal IPv4 packet whose source address has this last byte.
    fn packet(last: u8) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, last, 10, 9, 0, 1];
        let sum = packet.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum::<u32>();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    fn pair() -> (Gtpu, UdpSocket, SocketAddr) {
        let tunnels = [
            Tunnel {
                addresses: addresses(&["10.0.0.2", "fd00::2"]),
                teid_downlink: 11,
                teid_uplink: 21,
                qfi: 9,
            },
            Tunnel { addresses: addresses(&["10.0.0.3"]), teid_downlink: 12, teid_uplink: 22, qfi: 1 },
        ];
        let tunnels = tunnels.into_iter().collect();
        let [own, upf] = std::array::from_fn(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let (at, peer) = (own.local_addr().unwrap(), upf.local_addr().unwrap());
        upf.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        (Gtpu::new(own, peer, tunnels).unwrap(), upf, at)
    }

    fn received(gtpu: &mut Gtpu, want: usize, until: impl Fn(&Gtpu) -> bool) -> Vec<Vec<u8>> {
        let (start, mut got) = (Instant::now(), Vec::new());
        while got.len() < want || !until(gtpu) {
            assert!(start.elapsed() < Duration::from_secs(5), "{:?}", gtpu.dropped);
            gtpu.receive(|packet| got.push(packet.to_vec())).unwrap();
        }
        got
    }

    /// The messages that the node sends until none follows for 200 ms.
    fn answers(gtpu: &mut Gtpu, upf: &UdpSocket) -> Vec<Vec<u8>> {
        upf.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        waiting(gtpu, upf)
    }

    /// The messages that the node has sent; over loopback they arrive at once.
    fn waiting(gtpu: &mut Gtpu, upf: &UdpSocket) -> Vec<Vec<u8>> {
        gtpu.sockets.flush();
        let mut datagram = [0; 128];
        let next = || upf.recv_from(&mut datagram).ok().map(|(len, _)| datagram[..len].to_vec());
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn uplink_has_the_tunnel_and_the_flow_of_its_source() {
        let (mut gtpu, upf, _) = pair();
        for (last, teid, qfi) in [(2, 21, 9), (3, 22, 1)] {
            gtpu.send(&packet(last));
            gtpu.sockets.flush();
            let mut datagram = [0; 128];
            let (len, _) = upf.recv_from(&mut datagram).unwrap();
            let (header, inner) = GtpuHeader::parse(&datagram[..len]).unwrap();
            assert_eq!((header.message, header.teid, inner), (message::G_PDU, teid, &packet(last)[..]));
            assert_eq!(header.session, Some(PduSession::uplink(qfi)));
        }
        gtpu.send(&packet(4));
        gtpu.send(&[]);
        assert_eq!(gtpu.dropped.unknown_source, 2);
    }

    #[test]
    fn downlink_is_unwrapped_and_the_rest_counted() {
        let (mut gtpu, upf, at) = pair();
        let wrap = |teid, session, inner: &[u8]| {
            let header = GtpuHeader::g_pdu(teid, session);
            let mut bytes = vec![0; header.header_len()];
            header.emit(inner.len(), &mut bytes).unwrap();
            [&bytes, inner].concat()
        };
        upf.send_to(&wrap(99, None, b"other"), at).unwrap();
        upf.send_to(b"no GTP-U", at).unwrap();
        upf.send_to(&wrap(11, None, b"one"), at).unwrap();
        upf.send_to(&wrap(12, Some(PduSession::downlink(5)), b"two"), at).unwrap();
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        stranger.send_to(&wrap(11, None, b"three"), at).unwrap();
        let got = received(&mut gtpu, 2, |gtpu| gtpu.dropped.unknown_peer == 1);
        assert_eq!(got, [b"one".to_vec(), b"two".to_vec()]);
        let expected =
            Dropped { unknown_peer: 1, unknown_tunnel: 1, not_understood: 1, ..Dropped::default() };
        assert_eq!(gtpu.dropped, expected);
        assert_eq!(gtpu.dropped.by_reason().len(), 3);
    }

    #[test]
    fn unknown_tunnels_are_indicated_and_indications_are_counted() {
        let (mut gtpu, upf, at) = pair();
        let wrong = GtpuHeader::g_pdu(99, None);
        let mut bytes = vec![0; wrong.header_len() + 20];
        wrong.emit(20, &mut bytes).unwrap();
        for _ in 0..200 {
            upf.send_to(&bytes, at).unwrap();
        }
        let no_packet = received(&mut gtpu, 0, |gtpu| gtpu.dropped.unknown_tunnel == 200);
        assert!(no_packet.is_empty());
        let told = answers(&mut gtpu, &upf);
        assert!((1..=20).contains(&told.len()), "{}", told.len());
        for message in told {
            let (header, elements) = GtpuHeader::parse(&message).unwrap();
            assert_eq!(header.message, message::ERROR_INDICATION);
            assert_eq!(ErrorIndication::parse(elements), Ok(ErrorIndication { teid: 99, peer: at.ip() }));
            assert!(message.len() <= bytes.len());
        }

        let mut message = [0; ErrorIndication::MAX];
        let len = ErrorIndication { teid: 21, peer: at.ip() }.emit(&mut message).unwrap();
        upf.send_to(&message[..len], at).unwrap();
        received(&mut gtpu, 0, |gtpu| gtpu.dropped.unknown_at_peer == 1);
        assert_eq!(gtpu.dropped.not_understood, 0);
        // The indication is counted; the tunnel remains.
        gtpu.send(&packet(2));
        let sent = answers(&mut gtpu, &upf);
        assert_eq!(GtpuHeader::parse(&sent[0]).unwrap().0.teid, 21);
    }

    #[test]
    fn unknown_extension_headers_are_notified_and_notifications_are_counted() {
        let (mut gtpu, upf, at) = pair();
        let with = |kind: u8, message: u8| [0x34, message, 0, 8, 0, 0, 0, 11, 0, 0, 0, kind, 1, 0, 0, 0];
        for kind in [0x81, 0xc0] {
            upf.send_to(&with(kind, message::G_PDU), at).unwrap();
        }
        received(&mut gtpu, 0, |gtpu| gtpu.dropped.unknown_extension == 2);
        let told = answers(&mut gtpu, &upf);
        assert_eq!(told.len(), 2);
        for message in told {
            let (header, elements) = GtpuHeader::parse(&message).unwrap();
            assert_eq!((header.message, header.teid), (message::SUPPORTED_EXTENSION_HEADERS, 0));
            assert_eq!(SupportedExtensions::parse(elements), Ok(SupportedExtensions::OWN));
        }
        // An extension header whose comprehension is not required.
        upf.send_to(&[&with(0x20, message::G_PDU)[..], &[]].concat(), at).unwrap();
        assert_eq!(received(&mut gtpu, 1, |_| true).len(), 1);

        let mut message = [0; SupportedExtensions::OWN_LEN];
        SupportedExtensions::OWN.emit(&mut message).unwrap();
        upf.send_to(&message, at).unwrap();
        received(&mut gtpu, 0, |gtpu| gtpu.dropped.extension_at_peer == 1);
        assert_eq!(gtpu.dropped.not_understood, 0);
        assert!(answers(&mut gtpu, &upf).is_empty());
    }

    /// With a forged address of the peer there is neither amplification nor an answer to an answer.
    #[test]
    fn answers_do_not_amplify_and_answers_are_not_answered() {
        let (mut gtpu, upf, at) = pair();
        upf.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut sent = 0;
        for kind in [message::G_PDU, message::ERROR_INDICATION, message::SUPPORTED_EXTENSION_HEADERS, 254] {
            for extension in [None, Some(0x20), Some(0x81), Some(0x85)] {
                for len in 0..40_u8 {
                    let options: &[u8] = &match extension {
                        None => vec![],
                        Some(kind) => vec![0, 0, 0, kind, 1, 0, 0, 0],
                    };
                    let flags = if extension.is_some() { 0x34 } else { 0x30 };
                    let head = [flags, kind, 0, options.len() as u8 + len, 0, 0, 0, 99];
                    let bytes = [&head, options, &vec![0; usize::from(len)]].concat();
                    // As if a second had passed.
                    gtpu.indications = Indications::default();
                    upf.send_to(&bytes, at).unwrap();
                    sent += 1;
                    let all = |d: &Dropped| {
                        d.unknown_tunnel + d.unknown_extension + d.not_understood + d.unknown_at_peer
                    };
                    received(&mut gtpu, 0, |gtpu| all(&gtpu.dropped) == sent);
                    let told = waiting(&mut gtpu, &upf);
                    assert!(told.iter().all(|t| t.len() <= bytes.len()), "{bytes:?}: {told:?}");
                    assert!(told.is_empty() || kind == message::G_PDU, "{bytes:?}: {told:?}");
                }
            }
        }
    }

    #[test]
    fn echo_requests_are_answered() {
        let (mut gtpu, upf, at) = pair();
        let header =
            GtpuHeader { message: message::ECHO_REQUEST, sequence: Some(7), ..GtpuHeader::g_pdu(0, None) };
        let mut bytes = vec![0; header.header_len()];
        header.emit(0, &mut bytes).unwrap();
        upf.send_to(&bytes, at).unwrap();
        let start = Instant::now();
        upf.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let mut answer = [0; 64];
        let len = loop {
            assert!(start.elapsed() < Duration::from_secs(5));
            gtpu.receive(|_| panic!("it is no packet")).unwrap();
            gtpu.sockets.flush();
            if let Ok((len, _)) = upf.recv_from(&mut answer) {
                break len;
            }
        };
        let (header, rest) = GtpuHeader::parse(&answer[..len]).unwrap();
        assert_eq!((header.message, header.sequence, rest), (message::ECHO_RESPONSE, Some(7), &RECOVERY[..]));
    }
}
