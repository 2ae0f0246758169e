//! The fast path on real interfaces: packets at the far end of a veth pair, and data received by an application.

// Packets need real time.
#![allow(clippy::disallowed_methods)]

use super::alone;
use crate::bpf::{FastCounters, FastFlow, FastPath, FastPathConfig, FastTunnel};
use crate::interface;
use crate::packet::{Options, PacketSocket};
use crate::tests::in_private_network;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

/// `v0` is the access, observed at `v1`; nobody reads the TUN device.
const NETWORK: &str = "ip link set lo up; ip tuntap add anb0 mode tun; ip link set anb0 up mtu 1400
ip addr add 10.64.0.2/32 dev anb0; ip route add 10.64.0.0/24 dev anb0
ip link add v0 type veth peer name v1; ip link set v0 address 02:00:00:00:00:01
ip addr add 10.0.0.1/24 dev v0; ip link set v0 up; ip link set v1 up
ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev v0";
const LONG: Duration = Duration::from_secs(60);

fn tunnel() -> FastTunnel {
    FastTunnel {
        interface: interface::index("v0").unwrap(),
        local: "10.0.0.1:4000".parse().unwrap(),
        remote: "10.0.0.2:4500".parse().unwrap(),
        mark: 7,
        mtu: 1400,
        inner_v4: Some([10, 64, 0, 1].into()),
        inner_v6: None,
    }
}

fn flow(source: &str, destination: &str) -> FastFlow {
    FastFlow { source: source.parse().unwrap(), destination: destination.parse().unwrap(), protocol: 17 }
}

/// Frames of the tunnel seen by `wire` within a short time.
fn seen(wire: &mut PacketSocket) -> Vec<Vec<u8>> {
    std::thread::sleep(Duration::from_millis(20));
    let mut all = Vec::new();
    while wire
        .recv(|frame| {
            if frame.bytes[12..14] == [8, 0] && frame.bytes.get(36..38) == Some(&4500u16.to_be_bytes()) {
                all.push(frame.bytes.to_vec());
            }
        })
        .unwrap()
        > 0
    {}
    all
}

fn folded(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// A frame from the far end: headers without checksums, and one inner UDP packet.
fn frame(source: SocketAddr, destination: SocketAddr, from_port: u16, text: &[u8]) -> Vec<u8> {
    let octets = |a: SocketAddr| match a.ip() {
        std::net::IpAddr::V4(v4) => v4.octets(),
        std::net::IpAddr::V6(_) => unreachable!("IPv4 only"),
    };
    let ip = |source: [u8; 4], destination: [u8; 4], len: usize| {
        let mut ip = vec![0x45, 0];
        ip.extend((20 + len as u16).to_be_bytes());
        ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
        ip.extend(source);
        ip.extend(destination);
        let sum = !folded(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ip
    };
    let udp = |source: u16, destination: u16, len: usize| {
        [source, destination, 8 + len as u16, 0].into_iter().flat_map(u16::to_be_bytes).collect::<Vec<_>>()
    };
    let inner = [
        ip(octets(source), octets(destination), 8 + text.len()),
        udp(source.port(), destination.port(), text.len()),
        text.to_vec(),
    ]
    .concat();
    let mut all = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    all.extend(ip([10, 0, 0, 2], [10, 0, 0, 1], 8 + 8 + inner.len()));
    all.extend(udp(from_port, 4000, 8 + inner.len()));
    all.extend([0x80, 4, 0, 0, 0, 0, 0, 0]);
    all.extend(inner);
    all
}

#[test]
fn only_configured_flows_leave_in_the_plain_form() {
    let Some(_alone) = alone() else { return };
    in_private_network(NETWORK, || {
        let config = FastPathConfig { ue: true, slots: 2, flows: 16 };
        let fast = FastPath::attach("anb0", config).unwrap();
        let slot = fast.open(&tunnel()).unwrap().unwrap();
        assert!(fast.open(&tunnel()).is_err(), "that far end has a slot");
        let mut wire = PacketSocket::open("v1", &Options::default()).unwrap();
        let application = UdpSocket::bind("10.64.0.2:5000").unwrap();
        let mut say = |text: &[u8], to: &str| {
            application.send_to(text, to).unwrap();
            seen(&mut wire)
        };
        let given = flow("10.64.0.2:5000", "10.64.0.1:6000");

        assert!(say(b"nobody was told", "10.64.0.1:6000").is_empty());
        fast.offload(slot, &given).unwrap();
        assert!(say(b"no lease", "10.64.0.1:6000").is_empty());
        fast.renew(slot, LONG);
        let [frame] = say(b"hello", "10.64.0.1:6000").try_into().unwrap();
        assert_eq!(frame[..14], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
        let (outer, inner) = (&frame[14..34], &frame[50..]);
        assert_eq!(folded(outer), 0xffff, "the header's checksum is right");
        assert_eq!(outer[..2], [0x45, 0]);
        assert_eq!(usize::from(outer[2]) << 8 | usize::from(outer[3]), frame.len() - 14);
        assert_eq!(outer[6..10], [0x40, 0, 64, 17]);
        assert_eq!(outer[12..], [10, 0, 0, 1, 10, 0, 0, 2]);
        assert_eq!(
            frame[34..42],
            [0x0f, 0xa0, 0x11, 0x94, 0, 8 + 8 + 33, 0, 0],
            "ports, length, no checksum"
        );
        assert_eq!(frame[42..50], [0x80, 4, 0, 0, 0, 0, 0, 0], "data in no order, up to the end");
        assert_eq!((inner.len(), &inner[28..]), (33, &b"hello"[..]));
        let once = FastCounters { tx_packets: 1, tx_bytes: 41, ..FastCounters::default() };
        assert_eq!(fast.counters(slot), once);

        assert!(say(b"another flow", "10.64.0.1:6001").is_empty());
        assert!(say(&[0; 1373], "10.64.0.1:6000").is_empty(), "a fragment, or more than the tunnel carries");
        assert_eq!(say(&[0; 1372], "10.64.0.1:6000").len(), 1);
        fast.revoke(slot);
        assert!(say(b"taken back", "10.64.0.1:6000").is_empty());
        fast.offload(slot, &given).unwrap();
        assert_eq!(say(b"given again", "10.64.0.1:6000").len(), 1);
        fast.drop_flow(&given);
        assert!(say(b"this one alone", "10.64.0.1:6000").is_empty());
        fast.offload(slot, &given).unwrap();
        fast.renew(slot, Duration::ZERO);
        assert!(say(b"the lease has run out", "10.64.0.1:6000").is_empty());
        fast.renew(slot, LONG);
        fast.close(slot, &tunnel());
        assert!(say(b"closed", "10.64.0.1:6000").is_empty());

        let again = fast.open(&tunnel()).unwrap().unwrap();
        fast.renew(again, LONG);
        fast.offload(again, &given).unwrap();
        assert_eq!(say(b"open again", "10.64.0.1:6000").len(), 1);
        assert_eq!(fast.counters(again).tx_packets, 1, "a new slot counts from zero");
        drop(fast);
        assert!(say(b"nothing is left", "10.64.0.1:6000").is_empty());
    });
}

#[test]
fn what_comes_by_another_interface_is_not_taken_for_the_far_end() {
    let Some(_alone) = alone() else { return };
    let second = "ip link add v2 type veth peer name v3; ip link set v2 address 02:00:00:00:00:01
ip addr add 10.1.0.1/24 dev v2; ip link set v2 up; ip link set v3 up
ip neigh add 10.1.0.2 lladdr 02:00:00:00:00:02 dev v2";
    // The closure outlives this call, as far as the compiler knows.
    let network: &str = Box::leak(format!("{NETWORK}; {second}").into_boxed_str());
    in_private_network(network, || {
        let application = UdpSocket::bind("10.64.0.2:5000").unwrap();
        application.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let fast = FastPath::attach("anb0", FastPathConfig { ue: true, slots: 2, flows: 16 }).unwrap();
        let here = tunnel();
        // A path of another session: the program is on that interface as well.
        let there = FastTunnel {
            interface: interface::index("v2").unwrap(),
            local: "10.1.0.1:4000".parse().unwrap(),
            remote: "10.1.0.2:4500".parse().unwrap(),
            ..here
        };
        let slots = [fast.open(&here).unwrap().unwrap(), fast.open(&there).unwrap().unwrap()];
        slots.iter().for_each(|slot| fast.renew(*slot, LONG));
        for (wire, delivered) in [("v1", true), ("v3", false)] {
            let mut wire = PacketSocket::open(wire, &Options::default()).unwrap();
            let to = application.local_addr().unwrap();
            assert!(wire.push(&frame("10.64.0.1:6000".parse().unwrap(), to, 4500, b"hello")));
            assert_eq!(wire.flush().unwrap().sent, 1);
            assert_eq!(application.recv_from(&mut [0; 64]).is_ok(), delivered);
        }
        assert_eq!(fast.counters(slots[0]).rx_packets, 1);
    });
}

#[test]
fn what_comes_from_the_far_end_is_delivered_if_it_may() {
    let Some(_alone) = alone() else { return };
    in_private_network(NETWORK, || {
        let mut wire = PacketSocket::open("v1", &Options::default()).unwrap();
        let application = UdpSocket::bind("10.64.0.2:5000").unwrap();
        application.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let to = application.local_addr().unwrap();
        let mut hears = |source: &str, from_port: u16, change: &dyn Fn(&mut Vec<u8>)| {
            let mut sent = frame(source.parse().unwrap(), to, from_port, b"hello");
            change(&mut sent);
            assert!(wire.push(&sent));
            assert_eq!(wire.flush().unwrap().sent, 1);
            let mut got = [0; 64];
            match application.recv_from(&mut got) {
                Ok((len, from)) => {
                    assert_eq!((&got[..len], from.to_string().as_str()), (&b"hello"[..], source));
                    true
                }
                Err(_) => false,
            }
        };
        let as_it_is = |_: &mut Vec<u8>| {};
        for ue in [true, false] {
            let fast = FastPath::attach("anb0", FastPathConfig { ue, slots: 2, flows: 16 }).unwrap();
            let slot = fast.open(&tunnel()).unwrap().unwrap();
            assert!(!hears("10.64.0.1:6000", 4500, &as_it_is), "no lease");
            fast.renew(slot, LONG);
            assert!(hears("10.64.0.1:6000", 4500, &as_it_is));
            assert_eq!(fast.counters(slot).rx_packets, 1);
            assert_eq!(fast.counters(slot).rx_bytes, 8 + 33);
            assert_eq!(fast.counters_then(slot).rx_packets, 0, "nothing else has come");
            assert_eq!(hears("10.64.0.1:53", 4500, &as_it_is), !ue, "the UE reads names out of answers");
            assert_eq!(hears("10.64.0.9:6000", 4500, &as_it_is), ue, "a source that is not the session's");
            assert!(!hears("10.64.0.1:6000", 4501, &as_it_is), "another peer");
            assert!(!hears("10.64.0.1:6000", 4500, &|f| f[5] = 9), "a frame for somebody else");
            assert!(
                !hears("10.64.0.1:6000", 4500, &|f| f[42] = 0x84),
                "part of a stream: to be put in order"
            );
            let now = fast.counters(slot);
            assert_eq!(fast.counters_then(slot), now, "what had come when the stream's packet passed");
            assert!(!hears("10.64.0.1:6000", 4500, &|f| f[41] = 1), "a checksum: nobody would look at it");
            assert!(!hears("10.64.0.1:6000", 4500, &|f| f[43] = 41), "said to be IPv6");
            assert!(!hears("10.64.0.1:6000", 4500, &|f| f[53] += 1), "longer than the datagram");
            assert!(!hears("10.64.0.1:6000", 4500, &|f| f[56] = 0x20), "a fragment");
            assert!(!hears("10.64.0.1:6000", 4500, &|f| f.truncate(60)), "cut off");
            fast.close(slot, &tunnel());
            assert!(!hears("10.64.0.1:6000", 4500, &as_it_is), "closed");
        }
    });
}
