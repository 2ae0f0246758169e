//! An IP router: longest-prefix match, hop limit, MTU per port.

use anabranch_element::packet::Packet;
use anabranch_element::time::Instant;
use anabranch_element::{Element, Port, Reason};
use anabranch_wire::ip::{dst, packet_too_big, src_dst};
use ipnet::IpNet;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::net::IpAddr;

/// Forwards by destination. Packets without a route or with an expired hop limit are dropped and counted.
#[derive(Debug, Default)]
pub struct Router {
    /// Sorted by decreasing prefix length.
    routes: Vec<(IpNet, Port)>,
    mtu: BTreeMap<Port, (u16, IpAddr)>,
    /// The most recent destinations and their ports, one per direction.
    recent: [Option<(IpAddr, Port)>; 2],
    out: VecDeque<(Port, Packet)>,
    /// Hop limits stay unchanged.
    bridge: bool,
    stats: RouterStats,
}

/// Counters of a router.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RouterStats {
    /// Packets forwarded.
    pub forwarded: u64,
    /// Packets without a route, and packets that are not IP.
    pub no_route: u64,
    /// Packets with an expired hop limit.
    pub expired: u64,
    /// Packets larger than the MTU of their outgoing port.
    pub too_big: u64,
}

/// A change of a router's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouterCommand {
    /// Adds or replaces the route for a prefix.
    Route(IpNet, Port),
    /// Removes the route for a prefix.
    Forget(IpNet),
}

impl Router {
    /// A router without routes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a route; replaces one for the same prefix.
    #[must_use]
    pub fn route(mut self, prefix: IpNet, port: Port) -> Self {
        self.set(prefix, port);
        self
    }

    /// Sets the MTU of a port. The source of a larger packet receives an ICMP error from `address` (RFC 1191, RFC 8201).
    #[must_use]
    pub fn mtu(mut self, port: Port, bytes: u16, address: IpAddr) -> Self {
        self.mtu.insert(port, (bytes, address));
        self
    }

    /// Leaves hop limits unchanged: the router only joins wires and is not a hop for telemetry.
    #[must_use]
    pub fn bridge(mut self) -> Self {
        self.bridge = true;
        self
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> RouterStats {
        self.stats
    }

    fn set(&mut self, prefix: IpNet, port: Port) {
        self.forget(&prefix);
        let place = self.routes.partition_point(|(other, _)| other.prefix_len() >= prefix.prefix_len());
        self.routes.insert(place, (prefix.trunc(), port));
    }

    fn forget(&mut self, prefix: &IpNet) {
        self.recent = [None; 2];
        self.routes.retain(|(other, _)| *other != prefix.trunc());
    }

    /// Decrements the hop limit and returns the outgoing port; `None` if the packet is dropped. ICMP errors are returned by
    /// [`Element::poll_transmit`].
    #[inline]
    pub fn forward(&mut self, packet: &mut Packet, now: Instant) -> Option<Port> {
        let Ok(to) = dst(packet) else {
            self.stats.no_route += 1;
            return None;
        };
        let Some(port) = self.find_again(to) else {
            self.stats.no_route += 1;
            return None;
        };
        if !self.bridge && !take_hop(packet) {
            self.stats.expired += 1;
            return None;
        }
        if !self.mtu.is_empty() && self.is_too_big(port, packet, now) {
            return None;
        }
        self.stats.forwarded += 1;
        Some(port)
    }

    /// Whether a packet is larger than the MTU of its outgoing port. If so, queues an ICMP error for its source.
    fn is_too_big(&mut self, port: Port, packet: &Packet, now: Instant) -> bool {
        let Some(&(mtu, address)) = self.mtu.get(&port).filter(|(mtu, _)| packet.len() > usize::from(*mtu))
        else {
            return false;
        };
        self.stats.too_big += 1;
        let back = src_dst(packet).ok().and_then(|(from, _)| self.find(from));
        if let (Some(back), Some(bytes)) = (back, packet_too_big(packet, mtu, address)) {
            self.out.push_back((back, Packet::new(now, bytes)));
        }
        true
    }

    #[inline]
    fn find_again(&mut self, to: IpAddr) -> Option<Port> {
        match self.recent {
            [Some((known, port)), _] | [_, Some((known, port))] if known == to => Some(port),
            _ => {
                let port = self.find(to)?;
                self.recent = [Some((to, port)), self.recent[0]];
                Some(port)
            }
        }
    }

    fn find(&self, to: IpAddr) -> Option<Port> {
        self.routes.iter().find(|(prefix, _)| prefix.contains(&to)).map(|(_, port)| *port)
    }
}

impl Element for Router {
    type Command = RouterCommand;
    type Event = Infallible;

    fn on_packet(&mut self, _: Port, mut packet: Packet, now: Instant) {
        if let Some(port) = self.forward(&mut packet, now) {
            self.out.push_back((port, packet));
        }
    }

    fn poll_transmit(&mut self, _: Instant) -> Option<(Port, Packet)> {
        self.out.pop_front()
    }

    fn on_command(&mut self, command: RouterCommand, _: Instant) {
        match command {
            RouterCommand::Route(prefix, port) => self.set(prefix, port),
            RouterCommand::Forget(prefix) => self.forget(&prefix),
        }
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }

    fn on_timeout(&mut self, _: Instant) {}

    fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        None
    }
}

/// Decrements TTL or hop limit. Returns false if it has expired.
#[inline]
fn take_hop(packet: &mut Packet) -> bool {
    // `dst` has checked that there is a whole fixed header.
    let Some(header) = packet.first_chunk_mut::<20>() else { return false };
    match header[0] >> 4 {
        4 if header[8] > 1 => {
            header[8] -= 1;
            // RFC 1624 eqn. 3, for a decrease by 0x0100.
            let total = u32::from(!u16::from_be_bytes([header[10], header[11]])) + 0xFEFF;
            let checksum = !(total + (total >> 16)) as u16;
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            true
        }
        6 if header[7] > 1 => {
            header[7] -= 1;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_wire::ip::{parse_udp, udp_datagram, update_u16};
    use proptest::prelude::*;

    proptest! {
        /// After any traffic, the router forwards as one that has forwarded nothing before.
        #[test]
        fn earlier_traffic_does_not_change_routing(
            steps in prop::collection::vec((0usize..3, 0usize..24, any::<u8>(), 0usize..60), 1..40),
            bridge: bool, bounded: bool,
        ) {
            let make = || {
                let r = Router::new().route(net("10.1.0.0/16"), Port(1)).route(net("0.0.0.0/0"), Port(0));
                let r = if bridge { r.bridge() } else { r };
                if bounded { r.mtu(Port(1), 30, "10.1.0.254".parse().unwrap()) } else { r }
            };
            let mut router = make();
            for (to, at, value, len) in steps {
                let plain = udp(["10.1.0.1:1", "9.9.9.9:1", "10.1.2.3:1"][to], 12);
                let mut damaged = plain.clone();
                damaged[at] = value;
                damaged.truncate(len);
                for packet in [&damaged, &plain] {
                    let (mut a, mut b) = (packet.clone(), packet.clone());
                    let port = router.forward(&mut a, Instant::ZERO);
                    prop_assert_eq!(port, make().forward(&mut b, Instant::ZERO));
                    prop_assert_eq!(&*a, &*b);
                    if port.is_some() && !bridge && packet[0] >> 4 == 4 {
                        let word = |p: &[u8], at: usize| u16::from_be_bytes([p[at], p[at + 1]]);
                        prop_assert_eq!(word(&a, 10), update_u16(word(packet, 10), word(packet, 8), word(&a, 8)));
                    }
                }
            }
        }
    }

    fn net(s: &str) -> IpNet {
        s.parse().unwrap()
    }

    fn udp(to: &str, len: usize) -> Packet {
        let to: std::net::SocketAddr = to.parse().unwrap();
        let from = if to.is_ipv4() { "10.0.0.1:1" } else { "[fd00::1]:1" };
        Packet::new(Instant::ZERO, udp_datagram(from.parse().unwrap(), to, &vec![7; len]).unwrap())
    }

    fn pass(r: &mut Router, packet: Packet) -> Option<(Port, Packet)> {
        r.on_packet(Port(9), packet, Instant::ZERO);
        r.poll_transmit(Instant::ZERO)
    }

    #[test]
    fn the_longest_prefix_wins_and_hops_run_out() {
        let mut r = Router::new()
            .route(net("0.0.0.0/0"), Port(0))
            .route(net("10.1.0.0/16"), Port(1))
            .route(net("10.1.2.0/24"), Port(2))
            .route(net("fd00::/16"), Port(3));
        for (to, port) in [("1.1.1.1:1", 0), ("10.1.9.9:1", 1), ("10.1.2.9:1", 2), ("[fd00::2]:1", 3)] {
            let (out, mut packet) = pass(&mut r, udp(to, 10)).unwrap();
            assert_eq!(out, Port(port));
            for _ in 0..62 {
                assert!(parse_udp(&packet).is_ok(), "the checksum is kept right");
                packet = pass(&mut r, packet).unwrap().1;
            }
            assert!(pass(&mut r, packet).is_none());
        }
        r.on_command(RouterCommand::Forget(net("10.1.2.0/24")), Instant::ZERO);
        assert_eq!(pass(&mut r, udp("10.1.2.9:1", 10)).unwrap().0, Port(1));
        assert!(pass(&mut r, udp("[2001::1]:1", 1)).is_none());
        assert!(pass(&mut r, Packet::new(Instant::ZERO, vec![1, 2, 3])).is_none());
        assert_eq!((r.stats().expired, r.stats().no_route), (4, 2));
    }

    #[test]
    fn the_source_of_a_too_big_packet_receives_an_icmp_error() {
        let mut r = Router::new().route(net("10.0.0.0/24"), Port(0)).route(net("10.1.0.0/16"), Port(1)).mtu(
            Port(1),
            576,
            "10.1.0.254".parse().unwrap(),
        );
        assert_eq!(pass(&mut r, udp("10.1.0.1:1", 548)).unwrap().0, Port(1));
        let (port, told) = pass(&mut r, udp("10.1.0.1:1", 549)).unwrap();
        assert_eq!((port, told[9]), (Port(0), 1), "ICMP, back to where it came from");
    }
}
