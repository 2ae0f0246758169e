//! Removal of connection tracking entries created while the table of the address translation was missing. The
//! kernel never translates a flow that it already tracks, so retransmissions of such flows would leave with
//! addresses of the pool for ever. Without their entries they are tracked as new flows (ctnetlink,
//! linux/netfilter/nfnetlink_conntrack.h).

use anyhow::Context;
use ipnet::IpNet;
use nix::libc;
use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{Socket, SocketAddr};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// NFNL_SUBSYS_CTNETLINK with IPCTNL_MSG_CT_NEW (entries of a dump), _GET and _DELETE.
const NEW: u16 = 1 << 8;
const GET: u16 = 1 << 8 | 1;
const DELETE: u16 = 1 << 8 | 2;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_IP: u16 = 1;
const CTA_STATUS: u16 = 3;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const IPS_SEEN_REPLY: u32 = 1 << 1;
const IPS_SRC_NAT: u32 = 1 << 4;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// struct nlmsghdr and struct nfgenmsg.
const HEAD: usize = 16 + 4;
/// Time limit. A dump of a million flows takes one to two seconds.
const MOST: Duration = Duration::from_secs(10);

/// Removes the entries of flows from `sources` to other destinations that are neither translated nor
/// answered; returns their number.
///
/// # Errors
/// Connection tracking cannot be queried.
pub fn forget_untranslated(sources: &[IpNet]) -> anyhow::Result<usize> {
    let mut forgotten = 0;
    for (family, v6) in [(libc::AF_INET as u8, false), (libc::AF_INET6 as u8, true)] {
        if !sources.iter().any(|source| source.addr().is_ipv6() == v6) {
            continue;
        }
        let within = |address: IpAddr| sources.iter().any(|source| source.contains(&address));
        let mut stuck = Vec::new();
        dump(family, |flow| {
            let unanswered = flow.status & (IPS_SEEN_REPLY | IPS_SRC_NAT) == 0;
            if unanswered && within(flow.source) && !within(flow.destination) {
                stuck.push(flow.name);
            }
        })
        .context("querying connection tracking")?;
        let socket = Socket::new(NETLINK_NETFILTER)?;
        socket.connect(&SocketAddr::new(0, 0))?;
        for name in &stuck {
            socket.send(&message(DELETE, NLM_F_REQUEST, family, name), 0)?;
        }
        forgotten += stuck.len();
    }
    Ok(forgotten)
}

struct Flow {
    source: IpAddr,
    destination: IpAddr,
    status: u32,
    /// The attributes that identify the flow.
    name: Vec<u8>,
}

fn dump(family: u8, mut each: impl FnMut(Flow)) -> anyhow::Result<()> {
    let start = Instant::now();
    let socket = Socket::new(NETLINK_NETFILTER)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&message(GET, NLM_F_REQUEST | NLM_F_DUMP, family, &[]), 0)?;
    while start.elapsed() < MOST {
        let (answer, _) = socket.recv_from_full()?;
        let mut rest = &answer[..];
        while let Some((kind, body, after)) = next(rest) {
            rest = after;
            match kind {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => anyhow::bail!("the kernel refuses"),
                NEW => body.get(4..).and_then(flow).into_iter().for_each(&mut each),
                _ => {}
            }
        }
    }
    anyhow::bail!("it took more than {} s", MOST.as_secs())
}

fn message(kind: u16, flags: u16, family: u8, attributes: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEAD];
    bytes[..4].copy_from_slice(&((HEAD + attributes.len()) as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    bytes[16] = family;
    bytes.extend_from_slice(attributes);
    bytes
}

/// Type and body of the first message, and the following messages.
fn next(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let [a, b, c, d, e, f, ..] = *bytes.first_chunk::<16>()?;
    let length = u32::from_ne_bytes([a, b, c, d]) as usize;
    let body = bytes.get(16..length)?;
    Some((u16::from_ne_bytes([e, f]), body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// The attributes: type without flags, value, and the complete attribute with header and padding.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8], &[u8])> {
    std::iter::from_fn(move || {
        let [a, b, c, d] = *bytes.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let value = bytes.get(4..length)?;
        let end = length.next_multiple_of(4).min(bytes.len());
        let (whole, after) = bytes.split_at(end);
        bytes = after;
        Some((u16::from_ne_bytes([c, d]) & 0x3fff, value, whole))
    })
}

fn flow(bytes: &[u8]) -> Option<Flow> {
    let (mut addresses, mut status, mut name) = (None, None, Vec::new());
    for (kind, value, whole) in attributes(bytes) {
        match kind {
            CTA_TUPLE_ORIG => {
                let (_, tuple, _) = attributes(value).find(|(kind, ..)| *kind == CTA_TUPLE_IP)?;
                let mut ips = attributes(tuple).filter_map(|(_, value, _)| ip(value));
                // The source address precedes the destination, in both families.
                addresses = ips.next().zip(ips.next());
                name.extend_from_slice(whole);
            }
            CTA_STATUS => status = Some(u32::from_be_bytes(*value.first_chunk()?)),
            CTA_ID | CTA_ZONE => name.extend_from_slice(whole),
            _ => {}
        }
    }
    let (source, destination) = addresses?;
    Some(Flow { source, destination, status: status?, name })
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use super::super::nat::{self, Nat};
    use super::*;
    use crate::testing::{in_private_network, sh};
    use std::net::UdpSocket;

    /// Flows that began while the table of the translation was missing, and others.
    #[test]
    fn flows_that_began_without_translation_are_translated_after_its_restoration() {
        in_private_network(|| {
            // Rules of another program keep connection tracking active all the time.
            sh("ip link add va type veth peer vb; ip link set va up; ip link set vb up
                ip addr add 192.0.2.1/24 dev va; ip addr add 10.45.0.1/16 dev lo; ip addr add 10.46.0.1/16 dev lo
                ip -6 addr add 2001:db8::1/64 dev va nodad; ip -6 addr add fd45::1/64 dev lo nodad
                ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev va
                ip -6 neigh add 2001:db8::9 lladdr 02:00:00:00:00:09 dev va
                nft 'add table inet host; add chain inet host out { type filter hook postrouting priority 300; }
                     add rule inet host out ct state new counter
                     add set inet host seen { type ipv4_addr; }; add set inet host seen6 { type ipv6_addr; }
                     add chain inet host egress { type filter hook postrouting priority 400; }
                     add rule inet host egress oifname va add @seen { ip saddr }
                     add rule inet host egress oifname va add @seen6 { ip6 saddr }'");
            let nat = Nat {
                table: "anabranch_t".to_owned(),
                sources: vec!["10.45.0.0/16".parse().unwrap(), "fd45::/64".parse().unwrap()],
                device: "anb0".to_owned(),
                only_by: None,
            };
            let seen = || {
                let all = sh("nft list set inet host seen; nft list set inet host seen6
                              nft flush set inet host seen; nft flush set inet host seen6");
                ["192.0.2.1", "10.45.0.1", "10.46.0.1", "2001:db8::1", "fd45::1"].map(|a| all.contains(a))
            };
            let socket = |from: &str| UdpSocket::bind((from, 0)).unwrap();
            let to = |s: &UdpSocket| {
                if s.local_addr().unwrap().is_ipv6() { "[2001:db8::9]:9" } else { "192.0.2.9:9" }
            };
            let send = |sockets: &[UdpSocket]| {
                sockets.iter().for_each(|s| assert_eq!(s.send_to(b"x", to(s)).unwrap(), 1))
            };
            nat::install(&nat).unwrap();
            let before = [socket("10.45.0.1"), socket("fd45::1")];
            send(&before);
            assert_eq!(seen(), [true, false, false, true, false]);
            sh("nft delete table inet anabranch_t");
            let meanwhile = [socket("10.45.0.1"), socket("fd45::1"), socket("10.46.0.1")];
            send(&meanwhile);
            assert_eq!(seen(), [false, true, true, false, true]);
            nat::install(&nat).unwrap();
            // Without the removal this state would last.
            send(&meanwhile);
            assert_eq!(seen(), [false, true, true, false, true]);
            assert_eq!(forget_untranslated(&nat.sources).unwrap(), 2);
            send(&meanwhile);
            assert_eq!(seen(), [true, false, true, true, false]);
            send(&before);
            assert_eq!(seen(), [true, false, false, true, false]);
            assert_eq!(forget_untranslated(&nat.sources).unwrap(), 0);
        });
    }
}
