//! Destinations that UEs may reach: public addresses, unless the operator opens others.
//!
//! A connected UE may reach the Internet. It may not reach other UEs, hosts with private addresses near the
//! UPF, or the metadata service of the UPF's cloud (169.254.169.254). An address that contains an IPv4
//! address is checked as both.
//!
//! | order | destination | admitted |
//! |---|---|---|
//! | 1 | the UPF's own address in a pool | yes |
//! | 2 | another address of a pool, that is, a UE | if UEs may reach one another |
//! | 3 | in an open prefix | yes |
//! | 4 | in [`CLOSED`] | no |
//! | 5 | any other | yes |

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Destinations that are closed unless opened (IANA's special-purpose registries, RFC 6890; multicast, RFC
/// 5771 and RFC 4291).
pub const CLOSED: [IpNet; 17] = [
    v4([0, 0, 0, 0], 8),          // this network
    v4([10, 0, 0, 0], 8),         // private, RFC 1918
    v4([100, 64, 0, 0], 10),      // shared: carrier-grade NAT, RFC 6598
    v4([127, 0, 0, 0], 8),        // loopback
    v4([169, 254, 0, 0], 16),     // link-local
    v4([172, 16, 0, 0], 12),      // private
    v4([192, 0, 0, 0], 24),       // IETF protocol assignments
    v4([192, 168, 0, 0], 16),     // private
    v4([224, 0, 0, 0], 4),        // multicast
    v4([240, 0, 0, 0], 4),        // reserved, and limited broadcast
    v6([0, 0, 0, 0], 32),         // unspecified, loopback, IPv4 inside
    v6([0x64, 0xff9b, 1, 0], 48), // local IPv4/IPv6 translation, RFC 8215
    v6([0x100, 0, 0, 0], 64),     // discard, RFC 6666
    v6([0xfc00, 0, 0, 0], 7),     // unique local, RFC 4193
    v6([0xfe80, 0, 0, 0], 10),    // link-local
    v6([0xfec0, 0, 0, 0], 10),    // site-local, deprecated by RFC 3879
    v6([0xff00, 0, 0, 0], 8),     // multicast
];

/// IPv4 addresses in IPv6 form (RFC 4291 §2.5.5.2).
const MAPPED: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::from_bits(0xffff_0000_0000), 96);

/// The rules for all UEs of a UPF.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Destinations {
    /// No destination is checked.
    any: bool,
    pools: Box<[IpNet]>,
    own: Box<[IpAddr]>,
    open: Box<[IpNet]>,
    between_ues: bool,
}

impl Destinations {
    /// All destinations are open. For simulations, where no others are reachable.
    #[must_use]
    pub fn any() -> Self {
        Self { any: true, ..Self::default() }
    }

    /// `pools`: addresses of UEs, which may reach one another if `between_ues`. `own`: the UPF's addresses
    /// among them. `open`: destinations that would otherwise be closed.
    #[must_use]
    pub fn new(
        pools: impl IntoIterator<Item = IpNet>,
        own: impl IntoIterator<Item = IpAddr>,
        open: impl IntoIterator<Item = IpNet>,
        between_ues: bool,
    ) -> Self {
        Self {
            any: false,
            pools: pools.into_iter().collect(),
            own: own.into_iter().collect(),
            open: open.into_iter().collect(),
            between_ues,
        }
    }

    /// Whether a UE's packet may be sent to this destination.
    #[must_use]
    pub fn admits(&self, to: IpAddr) -> bool {
        if self.any {
            return true;
        }
        match to {
            IpAddr::V4(_) => self.admits_one(to),
            IpAddr::V6(v6) => {
                let inside = inside(v6);
                // An IPv4-mapped address is that IPv4 address; of a translated address, both must be open.
                let mapped = v6.to_ipv4_mapped().is_some();
                (mapped || self.admits_one(to)) && inside.is_none_or(|v4| self.admits_one(v4.into()))
            }
        }
    }

    /// The same as prefixes, for packet filters: the first prefix that contains the destination decides;
    /// without one, the packet may be sent.
    #[must_use]
    pub fn rules(&self) -> Vec<(IpNet, bool)> {
        if self.any {
            return Vec::new();
        }
        let own = self.own.iter().map(|own| (IpNet::from(*own), true));
        let pools = self.pools.iter().map(|pool| (*pool, self.between_ues));
        let open = self.open.iter().map(|open| (*open, true));
        let all: Vec<_> = own.chain(pools).chain(open).chain(CLOSED.map(|closed| (closed, false))).collect();
        let of = |v6: bool| all.iter().filter(move |(net, _)| net.addr().is_ipv6() == v6).copied();
        let within = of(false).flat_map(|(net, admitted)| outside(net).map(move |net| (net, admitted)));
        // Any other IPv4-mapped address is that IPv4 address.
        let mapped = [(IpNet::V6(MAPPED), true)];
        of(false).chain(within).chain(mapped).chain(of(true)).collect()
    }

    fn admits_one(&self, to: IpAddr) -> bool {
        let among = |prefixes: &[IpNet]| prefixes.iter().any(|prefix| prefix.contains(&to));
        if self.own.contains(&to) {
            return true;
        }
        if among(&self.pools) {
            return self.between_ues;
        }
        among(&self.open) || !among(&CLOSED)
    }
}

/// The IPv4 address to which an IPv6 address leads: mapped (RFC 4291), translated (RFC 6052), 6to4 (RFC
/// 3056).
fn inside(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = v6.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match [a, b, c, d, e, f] {
        [0x64, 0xff9b, 0, 0, 0, 0] | [0, 0, 0, 0, 0, 0xffff] => Some(v4(g, h)),
        [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    }
}

/// The IPv6 prefixes whose addresses lead to an address of `net`, an IPv4 prefix: see [`inside`].
fn outside(net: IpNet) -> impl Iterator<Item = IpNet> {
    let IpAddr::V4(address) = net.addr() else { return None.into_iter().flatten() };
    let bits = u128::from(address.to_bits());
    let forms =
        [(0xffff_0000_0000 | bits, 96), (0x64_ff9b << 96 | bits, 96), (0x2002 << 112 | bits << 80, 16)];
    let net = move |(bits, before): (u128, u8)| {
        Ipv6Net::new(Ipv6Addr::from_bits(bits), before + net.prefix_len()).ok().map(IpNet::V6)
    };
    Some(forms.into_iter().filter_map(net)).into_iter().flatten()
}

const fn v4([a, b, c, d]: [u8; 4], length: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length))
}

const fn v6([a, b, c, d]: [u16; 4], length: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0), length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn closed(open: &[&str], between_ues: bool) -> Destinations {
        let pools = [net("10.45.0.0/16"), net("2001:db8:45::/64")];
        let own = [ip("10.45.0.1"), ip("2001:db8:45::1")];
        Destinations::new(pools, own, open.iter().map(|open| net(open)), between_ues)
    }

    #[test]
    fn public_addresses_are_open_and_all_others_are_not() {
        let destinations = closed(&[], false);
        for open in [
            "9.9.9.9",
            "192.0.2.1",
            "172.32.0.1",
            "172.15.255.255",
            "100.63.255.255",
            "100.128.0.0",
            "2001:db8::1",
            "2620:fe::fe",
            "64:ff9b::9.9.9.9",
            "::ffff:9.9.9.9",
            "2002:909:909::1",
            "10.45.0.1",
            "2001:db8:45::1",
            "::ffff:10.45.0.1",
        ] {
            assert!(destinations.admits(ip(open)), "{open}");
        }
        for shut in [
            "10.45.0.2",
            "2001:db8:45::2",
            "10.0.0.1",
            "172.16.0.0",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.0",
            "100.127.255.255",
            "169.254.169.254",
            "127.0.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.251",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "febf::1",
            "fc00::1",
            "fdff::1",
            "fd00:ec2::254",
            "fec0::1",
            "ff02::fb",
            "64:ff9b::10.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::9.9.9.9",
            "::ffff:169.254.169.254",
            "::10.0.0.1",
            "2002:a00:1::1",
            "::ffff:10.45.0.2",
        ] {
            assert!(!destinations.admits(ip(shut)), "{shut}");
        }
    }

    #[test]
    fn only_opened_destinations_are_open() {
        let destinations = closed(&["10.0.0.0/8", "fd00::/8"], false);
        for open in ["10.0.0.1", "10.255.255.255", "fd12::1", "64:ff9b::10.1.1.1"] {
            // A translated address that leads to an open one, and is public itself.
            assert!(destinations.admits(ip(open)), "{open}");
        }
        // An open prefix does not open the pool inside it.
        for shut in ["10.45.0.9", "192.168.1.1", "fc00::1", "169.254.169.254"] {
            assert!(!destinations.admits(ip(shut)), "{shut}");
        }
        let among = closed(&[], true);
        assert!(
            among.admits(ip("10.45.0.9"))
                && among.admits(ip("2001:db8:45::9"))
                && !among.admits(ip("10.46.0.1"))
        );
        let all = closed(&["0.0.0.0/0", "::/0"], true);
        assert!(["127.0.0.1", "fe80::1", "10.45.0.9", "::1"].iter().all(|to| all.admits(ip(to))));
        assert!(Destinations::any().admits(ip("127.0.0.1")));
    }

    proptest! {
        #[test]
        fn the_prefixes_say_the_same(random: u128, near in 0usize..40, between_ues: bool, v6: bool) {
            let destinations = closed(&["192.168.0.0/16", "10.7.0.0/16", "fd07::/16", "169.254.169.254/32"], between_ues);
            let rules = destinations.rules();
            // Half of the addresses are in a prefix that has a rule, or adjacent to one.
            let mut to = match rules.get(near).map(|(net, _)| net.addr()) {
                Some(IpAddr::V4(a)) => IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() ^ random as u32 >> (random % 32))),
                Some(IpAddr::V6(a)) => IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() ^ random >> (random % 128))),
                None if v6 => Ipv6Addr::from_bits(random).into(),
                None => Ipv4Addr::from_bits(random as u32).into(),
            };
            if near == 39 {
                to = Ipv6Addr::from_bits(0x64_ff9b << 96 | random & 0xffff_ffff).into();
            }
            let decided = rules.iter().find(|(net, _)| net.contains(&to)).is_none_or(|(_, admitted)| *admitted);
            prop_assert_eq!(decided, destinations.admits(to), "{}", to);
        }

        #[test]
        fn an_address_inside_another_is_judged_by_itself(v4: u32, form in 0usize..3) {
            let destinations = closed(&["192.168.0.0/16"], false);
            let (v4, alone) = (u128::from(v4), destinations.admits(Ipv4Addr::from_bits(v4).into()));
            let v6 = [0xffff_0000_0000 | v4, 0x64_ff9b << 96 | v4, 0x2002 << 112 | v4 << 80][form];
            prop_assert_eq!(destinations.admits(Ipv6Addr::from_bits(v6).into()), alone);
        }
    }
}
