//! A minimal UPF: GTP-U on one side, a TUN interface on the other.

use super::net::Namespace;
use anabranch_wire::gtpu::{ErrorIndication, GtpuHeader, PduSession, message};
use anabranch_wire::ip::src_dst;
use std::collections::BTreeSet;
use std::net::{IpAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tun_rs::{DeviceBuilder, SyncDevice};

/// Runs until the end of the test.
pub struct Upf {
    socket: Arc<UdpSocket>,
    gnb: String,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    teids: BTreeSet<u32>,
    echoes: u32,
    /// TEIDs that the gNB has reported as unknown.
    told: BTreeSet<u32>,
}

impl Upf {
    /// `tunnels`: last byte of a UE's address, and the TEID of its downlink.
    pub fn start(inside: &Namespace, gnb: &str, tunnels: &[(u8, u32)]) -> Self {
        let (tun, socket) = inside.run(|| {
            let tun = DeviceBuilder::new().name("n6").mtu(1400).build_sync().unwrap();
            (Arc::new(tun), Arc::new(UdpSocket::bind("10.9.0.1:2152").unwrap()))
        });
        let seen = Arc::<Mutex<Seen>>::default();
        let upf = Self { socket: socket.clone(), gnb: gnb.to_owned(), seen: seen.clone() };
        let (out, to, tunnels) = (tun.clone(), gnb.to_owned(), tunnels.to_vec());
        let sender = socket.clone();
        std::thread::spawn(move || downlink(&out, &sender, &to, &tunnels));
        std::thread::spawn(move || uplink(&tun, &socket, &seen));
        upf
    }

    /// Whether the gNB answers an echo request.
    pub fn echo(&self) -> bool {
        let header =
            GtpuHeader { message: message::ECHO_REQUEST, sequence: Some(7), ..GtpuHeader::g_pdu(0, None) };
        let mut bytes = vec![0; header.header_len()];
        header.emit(0, &mut bytes).unwrap();
        self.socket.send_to(&bytes, &self.gnb).unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            if self.seen.lock().unwrap().echoes > 0 {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// The TEIDs in Error Indications.
    pub fn unknown_teids(&self) -> Vec<u32> {
        self.seen.lock().unwrap().told.iter().copied().collect()
    }

    /// The tunnels over which packets arrived.
    pub fn uplink_teids(&self) -> Vec<u32> {
        self.seen.lock().unwrap().teids.iter().copied().collect()
    }
}

fn downlink(tun: &SyncDevice, socket: &UdpSocket, gnb: &str, tunnels: &[(u8, u32)]) {
    let mut packet = [0; 2048];
    while let Ok(len) = tun.recv(&mut packet) {
        let Ok((_, to)) = src_dst(&packet[..len]) else { continue };
        let last = match to {
            IpAddr::V4(to) => to.octets()[3],
            IpAddr::V6(to) => to.octets()[15],
        };
        let Some((_, teid)) = tunnels.iter().find(|(ue, _)| *ue == last) else { continue };
        let header = GtpuHeader::g_pdu(*teid, Some(PduSession::downlink(9)));
        let mut message = vec![0; header.header_len()];
        message.extend_from_slice(&packet[..len]);
        header.emit(len, &mut message).unwrap();
        let _ = socket.send_to(&message, gnb);
    }
}

fn uplink(tun: &SyncDevice, socket: &UdpSocket, seen: &Mutex<Seen>) {
    let mut message = [0; 2048];
    while let Ok((len, _)) = socket.recv_from(&mut message) {
        let (header, packet) = GtpuHeader::parse(&message[..len]).expect("what a gNB sends can be read");
        match header.message {
            message::G_PDU => {
                assert_eq!(header.session.map(|s| s.qfi), Some(9));
                seen.lock().unwrap().teids.insert(header.teid);
                let _ = tun.send(packet);
            }
            message::ECHO_RESPONSE if header.sequence == Some(7) => seen.lock().unwrap().echoes += 1,
            message::ERROR_INDICATION => {
                let error = ErrorIndication::parse(packet).unwrap();
                seen.lock().unwrap().told.insert(error.teid);
            }
            other => panic!("message {other}"),
        }
    }
}
