//! Subflows of Multipath TCP in this namespace, from the kernel's socket tables (sock_diag(7)). These include connections that
//! programs have closed but that still have data to send.

use super::mptcp::{HEADER_BYTES, NLM_F_DUMP, NLM_F_REQUEST, attributes, receive};
use anyhow::Context;
use nix::libc;
use rtnetlink::sys::{Socket, SocketAddr, constants::NETLINK_SOCK_DIAG};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// struct inet_diag_req_v2 and struct inet_diag_msg.
const REQUEST_BYTES: usize = 56;
const ANSWER_BYTES: usize = 72;
const SOURCE_AT: usize = 8;
/// The state ESTABLISHED, as a bit of the requested states.
const ESTABLISHED: u32 = 1 << 1;

const INFO: u16 = 2;
const ULP_INFO: u16 = 19;
const ULP_MPTCP: u16 = 3;
const TOKEN_LOCAL: u16 = 2;

/// The `addresses` whose removal would leave a connection without a subflow, each with the number of such connections.
pub fn needed(addresses: &[IpAddr]) -> anyhow::Result<BTreeMap<IpAddr, usize>> {
    Ok(only_there(&list()?, addresses))
}

/// All established subflows: the token of the connection and the local address.
fn list() -> anyhow::Result<Vec<(u32, IpAddr)>> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG).context("opening sock_diag")?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    // An answer comes at once or not at all; never hang the control plane on it.
    socket.set_non_blocking(true)?;
    socket.send(&request(), 0)?;
    let mut subflows = Vec::new();
    receive(&socket, true, |answer| subflows.extend(subflow(answer))).context("listing subflows")?;
    Ok(subflows)
}

fn only_there(subflows: &[(u32, IpAddr)], addresses: &[IpAddr]) -> BTreeMap<IpAddr, usize> {
    let mut of: BTreeMap<u32, Option<Vec<IpAddr>>> = BTreeMap::new();
    for (connection, address) in subflows {
        let there = of.entry(*connection).or_insert_with(|| Some(Vec::new()));
        match there {
            Some(list) if addresses.contains(address) => list.push(*address),
            _ => *there = None,
        }
    }
    let mut needed = BTreeMap::new();
    for mut list in of.into_values().flatten() {
        list.sort_unstable();
        list.dedup();
        for address in list {
            *needed.entry(address).or_default() += 1;
        }
    }
    needed
}

/// A request for all established TCP sockets over IPv6.
fn request() -> [u8; HEADER_BYTES + REQUEST_BYTES] {
    let mut b = [0; HEADER_BYTES + REQUEST_BYTES];
    let length = b.len() as u32;
    b[0..4].copy_from_slice(&length.to_ne_bytes());
    b[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    b[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    b[16] = libc::AF_INET6 as u8;
    b[17] = libc::IPPROTO_TCP as u8;
    // Without it the kernel leaves out what is known of Multipath TCP.
    b[18] = 1 << (INFO - 1);
    b[20..24].copy_from_slice(&ESTABLISHED.to_ne_bytes());
    b
}

/// The token of the connection and the local address; `None` if the socket is not a subflow.
fn subflow(answer: &[u8]) -> Option<(u32, IpAddr)> {
    let source: [u8; 16] = *answer.get(SOURCE_AT..)?.first_chunk()?;
    let find = |bytes, kind| attributes(bytes).find(|a| a.0 == kind).map(|a| a.1);
    let token = find(find(find(answer.get(ANSWER_BYTES..)?, ULP_INFO)?, ULP_MPTCP)?, TOKEN_LOCAL)?;
    Some((u32::from_ne_bytes(*token.first_chunk()?), Ipv6Addr::from(source).into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn ip(last: u8) -> IpAddr {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).into()
    }

    proptest! {
        #[test]
        fn a_connection_keeps_one_that_stays_or_all_that_would_go(
            subflows in proptest::collection::vec((0_u32..6, 0_u8..4), 0..20),
            going in proptest::collection::btree_set(0_u8..4, 0..4),
        ) {
            let listed: Vec<_> = subflows.iter().map(|(of, at)| (*of, ip(*at))).collect();
            let addresses: Vec<_> = going.iter().map(|at| ip(*at)).collect();
            let needed = only_there(&listed, &addresses);
            let mut expected = BTreeMap::new();
            for connection in 0..6 {
                let at: BTreeSet<u8> = subflows.iter().filter(|s| s.0 == connection).map(|s| s.1).collect();
                if at.is_subset(&going) {
                    at.iter().for_each(|at| *expected.entry(ip(*at)).or_insert(0) += 1);
                }
            }
            prop_assert_eq!(needed, expected);
        }

        #[test]
        fn any_answer_is_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = subflow(&bytes);
        }
    }

    #[test]
    fn connections_that_are_not_of_multipath_tcp_are_left_out() {
        let Ok(listener) = std::net::TcpListener::bind("[::1]:0") else { return };
        let _stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let listed = list().unwrap();
        assert!(
            listed.iter().all(|(_, address)| *address != IpAddr::from(Ipv6Addr::LOCALHOST)),
            "{listed:?}"
        );
    }
}
