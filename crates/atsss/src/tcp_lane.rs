//! Addresses of the TCP lane inside the tunnel (docs/tcp-lane.md). Each path of a session has one, so that a
//! subflow of Multipath TCP is bound to a path by its source address.
//!
//! ```text
//!   48 bits             8      8       32             32
//! +-------------------+------+-------+--------------+------------------------------+
//! | fd6b:97c2:5e1a    | 4    | path  | 0            | IPv4 address of the session  |   a path of a UE
//! | fd6b:97c2:5e1a    | 0    | 0     | 0            | 1                            |   the UPF
//! +-------------------+------+-------+--------------+------------------------------+
//! ```
//!
//! Both ends derive the addresses from the session; nothing is assigned or stored. They are used only between
//! the two tunnel ends: no packet that leaves a tunnel end for a host or network contains one.
//!
//! Also: the path on which a connection begins.

use crate::{MAX_PATHS, PathId};
use anabranch_wire::ip::FlowKey;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The port the UPF's lane listens on: that of the Convert Protocol (RFC 8803, section 8.1).
pub const PORT: u16 = 5124;
/// The UPF's address.
pub const UPF: Ipv6Addr = Ipv6Addr::new(PREFIX[0], PREFIX[1], PREFIX[2], 0, 0, 0, 0, 1);

/// A locally assigned prefix (RFC 4193); its global identifier was drawn at random.
const PREFIX: [u16; 3] = [0xfd6b, 0x97c2, 0x5e1a];
/// Value of the subnet field: an IPv4 address follows.
const OF_IPV4: u16 = 4 << 8;

/// The address of a path of a session.
#[must_use]
pub const fn address(session: Ipv4Addr, path: PathId) -> Ipv6Addr {
    let [a, b, c, d] = session.octets();
    let halves = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
    Ipv6Addr::new(PREFIX[0], PREFIX[1], PREFIX[2], OF_IPV4 | path as u16, 0, 0, halves[0], halves[1])
}

/// Session and path of an address of the lane.
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

/// The address by which the session of an inner packet is found: for an address of the lane, that of its
/// session.
#[must_use]
#[inline]
pub fn session_address(address: IpAddr) -> IpAddr {
    parse(address).map_or(address, |(session, _)| session.into())
}

/// The path of a packet of the lane, if it is between this session and the UPF. `by_ue`: sent by the UE,
/// otherwise by the UPF.
#[must_use]
pub fn path_of(flow: &FlowKey, session: Option<Ipv4Addr>, by_ue: bool) -> Option<PathId> {
    let (ue, upf) = if by_ue { (flow.src, flow.dst) } else { (flow.dst, flow.src) };
    let (of, path) = parse(ue)?;
    (Some(of) == session && upf == IpAddr::V6(UPF)).then_some(path)
}

/// The properties of a path on which a connection may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The path.
    pub path: PathId,
    /// Its round-trip time in microseconds, smoothed.
    pub rtt_us: u32,
    /// Loss of round trips (a packet lost in either direction), in parts per million; `None`: not measured
    /// yet.
    pub loss_ppm: Option<u32>,
}

impl Start {
    /// Mean duration of a round trip at the begin of a connection, in microseconds: TCP's timeouts for lost
    /// round trips are added.
    fn expected_us(&self) -> u64 {
        const ALL: u64 = 1_000_000;
        let failed = u64::from(self.loss_ppm.unwrap_or(UNMEASURED_PPM)).min(MOST_PPM);
        u64::from(self.rtt_us) + INITIAL_TIMEOUT_US * failed / (ALL - failed)
    }
}

/// TCP's timeout before the first RTT sample (RFC 6298, section 2).
const INITIAL_TIMEOUT_US: u64 = 1_000_000;
/// Assumed loss of round trips without a measurement: worse than a path known to be good, better than one
/// known to be bad.
const UNMEASURED_PPM: u32 = 100_000;
const MOST_PPM: u64 = 999_000;
/// A path whose expected round trip is longer by at most this is as good as the best.
const SAME_US: u64 = 5000;

/// The order in which a connection tries paths for its first subflow: by expected duration; equal ones in the
/// configured order.
#[must_use]
pub fn starts(mut paths: Vec<Start>) -> Vec<Start> {
    paths.sort_by_key(|start| start.path);
    let mut order = Vec::with_capacity(paths.len());
    while let Some(best) = paths.iter().min_by_key(|start| start.expected_us()) {
        let most = best.expected_us() + SAME_US;
        let next = paths.iter().position(|start| start.expected_us() <= most).unwrap_or(0);
        order.push(paths.remove(next));
    }
    order
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

    fn order(paths: &[(PathId, u32, Option<f64>)]) -> Vec<PathId> {
        let start = |(path, rtt_ms, loss): &(PathId, u32, Option<f64>)| Start {
            path: *path,
            rtt_us: rtt_ms * 1000,
            loss_ppm: loss.map(|loss| (loss * 1e6) as u32),
        };
        starts(paths.iter().map(start).collect()).iter().map(|start| start.path).collect()
    }

    #[test]
    fn a_connection_begins_on_the_path_with_the_shortest_expected_round_trip() {
        for (paths, expected) in [
            // Bursts of 40 % each way, and less.
            (vec![(0, 10, Some(0.64)), (1, 40, Some(0.0))], vec![1, 0]),
            (vec![(0, 10, Some(0.1)), (1, 40, Some(0.0))], vec![1, 0]),
            (vec![(0, 10, Some(0.02)), (1, 40, Some(0.0))], vec![0, 1]),
            // A path with little loss is not left for a satellite path, which in turn is preferred to a path
            // with very high loss.
            (vec![(0, 30, Some(0.05)), (1, 600, Some(0.0))], vec![0, 1]),
            (vec![(0, 30, Some(0.64)), (1, 600, Some(0.0))], vec![1, 0]),
            (vec![(0, 10, Some(0.64)), (1, 10, Some(0.3)), (2, 10, Some(0.9))], vec![1, 0, 2]),
            // Not measured: behind a path known to be good, before one known to be bad.
            (vec![(0, 10, None), (1, 40, Some(0.0))], vec![1, 0]),
            (vec![(0, 10, None), (1, 40, Some(0.3))], vec![0, 1]),
            (vec![(0, 40, None), (1, 10, None)], vec![1, 0]),
            // Equal: in the configured order, whatever the order of the arguments.
            (vec![(1, 10, Some(0.0)), (0, 14, Some(0.0))], vec![0, 1]),
            (vec![(0, 10, Some(0.0)), (1, 14, Some(0.0))], vec![0, 1]),
            (vec![(1, 200, Some(0.0)), (0, 205, Some(0.004))], vec![1, 0]),
            (vec![(2, 200, Some(0.0)), (0, 206, Some(0.0)), (1, 203, Some(0.0))], vec![1, 2, 0]),
            (vec![(3, 1, None)], vec![3]),
            (vec![], vec![]),
        ] {
            assert_eq!(order(&paths), expected, "{paths:?}");
        }
    }

    proptest! {
        #[test]
        fn each_path_is_tried_once_and_none_before_one_that_is_clearly_better(
            known in proptest::collection::vec((any::<u32>(), proptest::option::of(0..=1_000_000_u32)), 0..8)
        ) {
            let of = |(path, (rtt_us, loss_ppm)): (PathId, &(u32, Option<u32>))| {
                Start { path, rtt_us: *rtt_us, loss_ppm: *loss_ppm }
            };
            let paths: Vec<Start> = (0..).zip(&known).map(of).collect();
            let order = starts(paths.iter().rev().copied().collect());
            let mut again = order.clone();
            again.sort_by_key(|start| start.path);
            prop_assert_eq!(&again, &paths);
            for (at, start) in order.iter().enumerate() {
                for later in &order[at + 1..] {
                    let most = later.expected_us() + SAME_US;
                    prop_assert!(start.expected_us() <= most, "{:?} before {:?}", start, later);
                    prop_assert!(start.expected_us() <= later.expected_us() || start.path < later.path);
                }
            }
        }

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
