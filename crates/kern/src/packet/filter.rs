//! Selects the packets read by a socket: a classic BPF program that the kernel runs for each packet (SO_ATTACH_FILTER).

use super::Framing;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

/// The packets read by a [`PacketSocket`](super::PacketSocket).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PacketFilter {
    /// All packets.
    #[default]
    All,
    /// IPv6 packets with hop-by-hop options directly after the fixed header, which may carry a trace.
    HopByHop,
}

const ETHERNET: u32 = 14;
/// Offsets of version and next header in an IPv6 header.
const VERSION: u32 = 0;
const NEXT_HEADER: u32 = 6;
const HOP_BY_HOP: u32 = 0;

/// Attaches the filter for [`PacketFilter::HopByHop`] to a socket that is not bound yet.
pub(super) fn hop_by_hop(fd: &OwnedFd, framing: Framing) -> io::Result<()> {
    // The type of a frame is inferred from the version in the byte after the header: a packet with a 6 there and next header 0 that
    // is not IPv6 is rejected by the parser.
    let at = match framing {
        Framing::Ethernet => ETHERNET,
        Framing::Ip { .. } => 0,
    };
    let load = |offset| instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, at + offset);
    let unless = |value, skip| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skip, value);
    let mut program = [
        load(VERSION),
        instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, 0xf0),
        unless(0x60, 3),
        load(NEXT_HEADER),
        unless(HOP_BY_HOP, 1),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_mut_ptr() };
    // SAFETY: `filter` describes `program`; the kernel copies both before the call returns.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            ptr::from_ref(&filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// One instruction; `yes` and `no` are the numbers of instructions to skip.
const fn instruction(code: u32, yes: u8, no: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: yes, jf: no, k }
}

#[cfg(test)]
mod tests {
    use super::super::{Options, PacketSocket};
    use super::*;
    use crate::tests::in_private_network;

    #[test]
    fn only_hop_by_hop_options_pass() {
        in_private_network(
            "ip link add va type veth peer vb; ip link set va address 02:00:00:00:00:01
             sysctl -qw net.ipv6.conf.va.disable_ipv6=1 net.ipv6.conf.vb.disable_ipv6=1
             ip link set va up; ip link set vb up",
            || {
                let to = [0x02, 0, 0, 0, 0, 1];
                let framing = Framing::Ip { peer: to };
                let all = Options { framing, ..Options::default() };
                let mut sender = PacketSocket::open("vb", &all).unwrap();
                let filtered = Options { filter: PacketFilter::HopByHop, ..all };
                let mut tap = PacketSocket::open("va", &filtered).unwrap();
                let six = |next: u8| [&[0x60, 0, 0, 0, 0, 8, next, 64][..], &[next; 40]].concat();
                // Options; TCP; destination options; IPv4 with a 0 at the offset of the next header; options again.
                let mut four = vec![0x45; 48];
                four[6] = 0;
                for packet in [six(0), six(6), six(60), four, six(0)] {
                    assert!(sender.push(&packet));
                }
                assert_eq!(sender.flush().unwrap().sent, 5);
                let mut got = Vec::new();
                while tap.recv(|r| got.push((r.bytes.to_vec(), r.wire_bytes))).unwrap() > 0 {}
                assert_eq!(got, [(six(0), 48), (six(0), 48)]);
            },
        );
    }
}
