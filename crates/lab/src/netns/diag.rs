//! Kernel state of TCP connections and MPTCP subflows through sock_diag(7), the interface of `ss -ti`.
//!
//! One request lists the sockets of a namespace that have a given port, with `struct tcp_info`. The namespaces of the sandbox
//! have small socket tables (see [`super::sandbox`]), so a request every few milliseconds is cheap.

use super::space::Space;
use anyhow::{Context, Result, bail};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;
use std::os::fd::{AsRawFd, OwnedFd};

/// The port that identifies a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Local port: at the server.
    Local(u16),
    /// Remote port: at the client.
    Remote(u16),
}

/// Counters of a connected socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Unique identifier of the socket for its lifetime.
    pub cookie: u64,
    /// Bytes acknowledged by the peer (TCP).
    pub bytes_acked: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Segments retransmitted (TCP).
    pub retransmissions: u64,
    /// Retransmission timeouts (TCP; Linux 6.7 and later).
    pub timeouts: u64,
    /// Congestion window, bytes (TCP).
    pub cwnd_bytes: u64,
    /// Number of packets by which the sender expects reordering before it assumes a loss (TCP).
    pub reordering: u64,
}

/// A sock_diag socket; it belongs to the namespace in which it was opened.
#[derive(Debug)]
pub struct Diag {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const INET_DIAG_INFO: u16 = 2;
/// All states except LISTEN and TIME_WAIT (which has no counters).
const CONNECTED: u32 = 0xfff & !(1 << 10) & !(1 << 6);
const HEADER: usize = 16;
/// Length of struct inet_diag_msg.
const MESSAGE: usize = 72;

impl Diag {
    /// Opens a socket in `space`.
    ///
    /// # Errors
    /// The kernel has no sock_diag.
    pub fn open(space: &Space) -> Result<Self> {
        let socket = space.enter(|| {
            let protocol = SockProtocol::NetlinkSockDiag;
            socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
                .context("sock_diag (the kernel needs CONFIG_INET_DIAG)")
        })?;
        // The kernel answers at once; the timeout is a safeguard.
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(1, 0)).context("timeout")?;
        Ok(Self { socket, buffer: vec![0; 64 << 10] })
    }

    /// Appends the sockets with this port to `found`.
    ///
    /// # Errors
    /// The kernel refuses the request.
    pub fn list(&mut self, side: Side, found: &mut Vec<Counters>) -> Result<()> {
        for family in [nix::libc::AF_INET, nix::libc::AF_INET6] {
            let request = request(family as u8, side);
            let kernel = NetlinkAddr::new(0, 0);
            sendto(self.socket.as_raw_fd(), &request, &kernel, MsgFlags::empty()).context("sock_diag")?;
            loop {
                let n = recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty())
                    .context("sock_diag")?;
                if parse(&self.buffer[..n], found)? {
                    break;
                }
            }
        }
        Ok(())
    }
}

fn request(family: u8, side: Side) -> Vec<u8> {
    let (source, destination) = match side {
        Side::Local(port) => (port, 0),
        Side::Remote(port) => (0, port),
    };
    let mut message = Vec::with_capacity(80);
    // struct nlmsghdr; the length is set at the end.
    message.extend(0u32.to_ne_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(NLM_F_REQUEST_DUMP.to_ne_bytes());
    message.extend([0; 8]);
    // struct inet_diag_req_v2.
    let tcp = nix::libc::IPPROTO_TCP as u8;
    message.extend([family, tcp, 1 << (INET_DIAG_INFO - 1), 0]);
    message.extend(CONNECTED.to_ne_bytes());
    // struct inet_diag_sockid: ports, addresses, interface, cookie.
    message.extend(source.to_be_bytes());
    message.extend(destination.to_be_bytes());
    message.extend([0; 32 + 4 + 8]);
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message
}

/// Parses a reply. Returns true when the list is complete.
fn parse(mut bytes: &[u8], found: &mut Vec<Counters>) -> Result<bool> {
    while let (Some(length), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        let length = length as usize;
        let Some(message) = bytes.get(..length).filter(|m| m.len() >= HEADER) else { break };
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let code = u32_at(message, HEADER).unwrap_or(0).cast_signed();
                bail!("sock_diag: {}", std::io::Error::from_raw_os_error(-code));
            }
            SOCK_DIAG_BY_FAMILY => found.extend(socket_of(message)),
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn socket_of(message: &[u8]) -> Option<Counters> {
    // struct inet_diag_msg: family, state, timer, retrans, then the id, whose last 8 bytes are the cookie.
    let cookie = u64_at(message, HEADER + 4 + 40)?;
    let mut attributes = message.get(HEADER + MESSAGE..)?;
    while let (Some(length), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let attribute = attributes.get(4..usize::from(length))?;
        if kind == INET_DIAG_INFO {
            let mut counters = tcp_info(attribute)?;
            counters.cookie = cookie;
            return Some(counters);
        }
        attributes = attributes.get(usize::from(length).next_multiple_of(4)..)?;
    }
    None
}

/// Parses struct tcp_info of linux/tcp.h.
fn tcp_info(info: &[u8]) -> Option<Counters> {
    let mss = u64::from(u32_at(info, 16)?);
    Some(Counters {
        cookie: 0,
        bytes_acked: u64_at(info, 120)?,
        bytes_received: u64_at(info, 128)?,
        retransmissions: u64::from(u32_at(info, 100)?),
        timeouts: u16_at(info, 240).map_or(0, u64::from),
        cwnd_bytes: u64::from(u32_at(info, 80)?) * mss,
        reordering: u64::from(u32_at(info, 88)?),
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_ne_bytes(*b))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_ne_bytes(*b))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_ne_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_at_the_offsets_of_the_kernel() {
        let mut info = vec![0; 248];
        info[16..20].copy_from_slice(&1448u32.to_ne_bytes());
        info[80..84].copy_from_slice(&10u32.to_ne_bytes());
        info[88..92].copy_from_slice(&3u32.to_ne_bytes());
        info[100..104].copy_from_slice(&7u32.to_ne_bytes());
        info[120..128].copy_from_slice(&98u64.to_ne_bytes());
        info[128..136].copy_from_slice(&99u64.to_ne_bytes());
        info[240..242].copy_from_slice(&2u16.to_ne_bytes());
        let mut message = vec![0; HEADER + MESSAGE];
        message[HEADER + 44..HEADER + 52].copy_from_slice(&5u64.to_ne_bytes());
        // Preceded by another attribute, of a length that needs padding.
        message.extend([6u16.to_ne_bytes(), 8u16.to_ne_bytes(), [b'c', 0], [0, 0]].concat());
        message.extend(((info.len() + 4) as u16).to_ne_bytes());
        message.extend(INET_DIAG_INFO.to_ne_bytes());
        message.extend(&info);
        let length = message.len() as u32;
        message[..4].copy_from_slice(&length.to_ne_bytes());
        message[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        let mut found = Vec::new();
        assert!(!parse(&message, &mut found).unwrap());
        let expected = Counters {
            cookie: 5,
            bytes_acked: 98,
            bytes_received: 99,
            retransmissions: 7,
            timeouts: 2,
            cwnd_bytes: 14480,
            reordering: 3,
        };
        assert_eq!(found, [expected]);
        // Truncated messages are rejected.
        for n in 0..message.len() {
            let _ = parse(&message[..n], &mut found);
        }
    }
}
