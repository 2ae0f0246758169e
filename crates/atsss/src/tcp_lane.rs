//! Addresses of the TCP lane inside the tunnel (docs/tcp-lane.md): each path of a session has one, so that a subflow of
//! Multipath TCP is bound to a path by its source address.
//!
//! ```text
//!   48 bits             8      8       32             32
//! +-------------------+------+-------+--------------+------------------------------+
//! | fd6b:97c2:5e1a    | 4    | path  | 0            | IPv4 address of the session  |   a path of a UE
//! | fd6b:97c2:5e1a    | 0    | 0     | 0            | 1                            |   the UPF
//! +-------------------+------+-------+--------------+------------------------------+
//! ```
//!
//! Both ends derive them from what they know of the session; nothing is assigned or stored. They are addresses between the
//! two tunnel ends only: no packet that leaves a tunnel end for a host or a network carries one.

use crate::{MAX_PATHS, PathId};
use anabranch_wire::ip::FlowKey;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The port the UPF's lane listens on: that of the Convert Protocol (RFC 8803, section 8.1).
pub const PORT: u16 = 5124;
/// The UPF's address.
pub const UPF: Ipv6Addr = Ipv6Addr::new(PREFIX[0], PREFIX[1], PREFIX[2], 0, 0, 0, 0, 1);

/// A locally assigned prefix (RFC 4193); its global identifier was drawn at random.
const PREFIX: [u16; 3] = [0xfd6b, 0x97c2, 0x5e1a];
/// The subnet says that an IPv4 address follows.
const OF_IPV4: u16 = 4 << 8;

/// The address of a session's path.
#[must_use]
pub const fn address(session: Ipv4Addr, path: PathId) -> Ipv6Addr {
    let [a, b, c, d] = session.octets();
    let halves = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
    Ipv6Addr::new(PREFIX[0], PREFIX[1], PREFIX[2], OF_IPV4 | path as u16, 0, 0, halves[0], halves[1])
}

/// Session and path of such an address.
#[must_use]
pub fn parse(address: IpAddr) -> Option<(Ipv4Addr, PathId)> {
    let IpAddr::V6(v6) = address else { return None };
    let [_, _, _, subnet, 0, 0, high, low] = v6.segments() else { return None };
    let path = PathId::try_from(subnet.checked_sub(OF_IPV4)?).ok()?;
    let of_a_path = has_prefix(v6) && usize::from(path) < MAX_PATHS;
    of_a_path.then(|| (Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)), path))
}

/// Whether an address belongs to the lane.
#[must_use]
#[inline]
pub fn contains(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if has_prefix(v6))
}

/// The address by which the session of an inner packet is known: that of the session itself where it is one of the lane.
#[must_use]
#[inline]
pub fn session_address(address: IpAddr) -> IpAddr {
    parse(address).map_or(address, |(session, _)| session.into())
}

/// The path that a packet of the lane belongs to, if it is one between this session and the UPF; as sent by the UE, or (not
/// `by_ue`) by the UPF.
#[must_use]
pub fn path_of(flow: &FlowKey, session: Option<Ipv4Addr>, by_ue: bool) -> Option<PathId> {
    let (ue, upf) = if by_ue { (flow.src, flow.dst) } else { (flow.dst, flow.src) };
    let (of, path) = parse(ue)?;
    (Some(of) == session && upf == IpAddr::V6(UPF)).then_some(path)
}

fn has_prefix(address: Ipv6Addr) -> bool {
    address.segments()[..PREFIX.len()] == PREFIX
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_read_as_they_are_written() {
        let v4 = Ipv4Addr::new(10, 64, 0, 2);
        assert_eq!(address(v4, 1).to_string(), "fd6b:97c2:5e1a:401::a40:2");
        assert_eq!(parse(address(v4, 7).into()), Some((v4, 7)));
        for other in
            ["fd6b:97c2:5e1a::1", "fd6b:97c2:5e1a:408::a40:2", "fd6b:97c2:5e1a:401:0:1:a40:2", "10.64.0.2"]
        {
            assert_eq!(parse(other.parse().unwrap()), None, "{other}");
        }
        assert!(contains(UPF.into()) && !contains("fd6b:97c2:5e1b::1".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn only_a_sessions_own_address_to_and_from_the_upf_has_a_path(
            own: u32, other: u32, path in 0u8..8, far: [u8; 16], by_ue: bool,
        ) {
            let (own, other) = (Ipv4Addr::from(own), Ipv4Addr::from(other));
            let flow = |ue: IpAddr, upf: IpAddr| {
                let (src, dst) = if by_ue { (ue, upf) } else { (upf, ue) };
                FlowKey { src, dst, src_port: 1, dst_port: PORT, protocol: 6 }
            };
            let ue = IpAddr::V6(address(own, path));
            prop_assert_eq!(path_of(&flow(ue, UPF.into()), Some(own), by_ue), Some(path));
            prop_assert_eq!(path_of(&flow(ue, UPF.into()), Some(own), !by_ue), None);
            prop_assert_eq!(path_of(&flow(ue, UPF.into()), None, by_ue), None);
            prop_assert_eq!(path_of(&flow(ue, UPF.into()), Some(other), by_ue).is_some(), own == other);
            let far = Ipv6Addr::from(far);
            prop_assert_eq!(path_of(&flow(ue, far.into()), Some(own), by_ue).is_some(), far == UPF);
            prop_assert_eq!(session_address(ue), IpAddr::V4(own));
        }
    }
}
