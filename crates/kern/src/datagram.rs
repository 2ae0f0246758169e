//! Sends datagrams with a given traffic class (DSCP and ECN), in batches (UDP GSO).
//!
//! quinn-udp writes that byte with every send, and has no parameter for a DSCP (RFC 2474, RFC 3168).

use socket2::{MsgHdr, SockAddr, SockRef};
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};

/// Room for a traffic class, a segment length and a source: each a header of 16 bytes plus at most 20 bytes.
const CONTROL_BYTES: usize = 128;

/// Datagrams to one peer.
#[derive(Debug, Clone, Copy)]
pub struct Datagrams<'a> {
    /// Destination.
    pub to: SocketAddr,
    /// Source address, if not determined by the socket.
    pub from: Option<IpAddr>,
    /// The concatenated payloads.
    pub bytes: &'a [u8],
    /// Payload size of each datagram; the last may be shorter. `None`: a single datagram.
    pub segment_bytes: Option<u16>,
    /// Traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub class: u8,
}

/// Sends the datagrams in one call.
///
/// # Errors
/// Those of sendmsg(2): `WouldBlock` if a non-blocking socket's buffer is full; EIO or EINVAL if the device does not support
/// batches, or their total size exceeds 65,507 bytes.
pub fn send(socket: &SockRef<'_>, datagrams: &Datagrams<'_>) -> io::Result<()> {
    let Datagrams { to, from, bytes, segment_bytes, class } = *datagrams;
    let mut control = Control { bytes: [0; CONTROL_BYTES], len: 0 };
    // A dual-stack socket sends IPv4 with mapped addresses.
    let v4 = match to.ip() {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => address.to_ipv4_mapped().is_some(),
    };
    let kind = if v4 { (libc::IPPROTO_IP, libc::IP_TOS) } else { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) };
    control.push(kind, &libc::c_int::from(class).to_ne_bytes());
    if let Some(segment) = segment_bytes.filter(|s| usize::from(*s) < bytes.len()) {
        control.push((libc::SOL_UDP, libc::UDP_SEGMENT), &segment.to_ne_bytes());
    }
    match from {
        // struct in_pktinfo: interface, source address, and an address only used on reception.
        Some(IpAddr::V4(address)) => {
            let mut info = [0; 12];
            info[4..8].copy_from_slice(&address.octets());
            control.push((libc::IPPROTO_IP, libc::IP_PKTINFO), &info);
        }
        // struct in6_pktinfo: address, interface.
        Some(IpAddr::V6(address)) => {
            let mut info = [0; 20];
            info[..16].copy_from_slice(&address.octets());
            control.push((libc::IPPROTO_IPV6, libc::IPV6_PKTINFO), &info);
        }
        None => {}
    }
    let (peer, parts) = (SockAddr::from(to), [IoSlice::new(bytes)]);
    let message =
        MsgHdr::new().with_addr(&peer).with_buffers(&parts).with_control(&control.bytes[..control.len]);
    loop {
        match socket.sendmsg(&message, 0) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map(drop),
        }
    }
}

/// Ancillary data of a message (cmsg(3)).
struct Control {
    bytes: [u8; CONTROL_BYTES],
    len: usize,
}

impl Control {
    /// Appends struct cmsghdr and the data, padded to a word.
    fn push(&mut self, (level, kind): (libc::c_int, libc::c_int), data: &[u8]) {
        const HEAD: usize = size_of::<libc::cmsghdr>();
        const WORD: usize = size_of::<usize>();
        let length = HEAD + data.len();
        let Some(room) = self.bytes.get_mut(self.len..self.len + length.next_multiple_of(WORD)) else {
            debug_assert!(false, "CONTROL_BYTES holds one of each kind");
            return;
        };
        room[..WORD].copy_from_slice(&length.to_ne_bytes());
        room[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        room[WORD + 4..HEAD].copy_from_slice(&kind.to_ne_bytes());
        room[HEAD..length].copy_from_slice(data);
        self.len += room.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
    use std::io::IoSliceMut;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    /// The next datagram: its payload, sender and traffic class.
    fn receive(socket: &UdpSocket) -> (Vec<u8>, String, i32) {
        let (mut buffer, mut control) = ([0; 2048], nix::cmsg_space!(i32, i32));
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let message =
            recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty())
                .unwrap();
        let class = message.cmsgs().unwrap().find_map(|one| match one {
            ControlMessageOwned::Ipv4Tos(tos) => Some(i32::from(tos)),
            ControlMessageOwned::Ipv6TClass(class) => Some(class),
            _ => None,
        });
        let (len, from) = (message.bytes, message.address.unwrap().to_string());
        (buffer[..len].to_vec(), from, class.unwrap())
    }

    #[test]
    fn every_datagram_of_a_batch_has_its_class_and_source() {
        for (any, to, source) in [
            ("0.0.0.0:0", "127.0.0.1:0", "127.0.0.5"),
            ("[::]:0", "[::1]:0", "::1"),
            // Dual-stack.
            ("[::]:0", "127.0.0.1:0", "::ffff:127.0.0.5"),
        ] {
            let (Ok(sender), Ok(server)) = (UdpSocket::bind(any), UdpSocket::bind(to)) else { continue };
            server.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
            let mut to = server.local_addr().unwrap();
            if to.is_ipv4() {
                setsockopt(&server, sockopt::IpRecvTos, &true).unwrap();
            } else {
                setsockopt(&server, sockopt::Ipv6RecvTClass, &true).unwrap();
            }
            if let (true, IpAddr::V4(address)) = (any.starts_with('['), to.ip()) {
                to.set_ip(address.to_ipv6_mapped().into());
            }
            let bytes: Vec<u8> = (0..2500).map(|i| i as u8).collect();
            let batch = Datagrams {
                to,
                from: Some(source.parse().unwrap()),
                bytes: &bytes,
                segment_bytes: Some(1000),
                class: 34 << 2 | 2,
            };
            send(&SockRef::from(&sender), &batch).unwrap();
            let source = source.trim_start_matches("::ffff:");
            for part in bytes.chunks(1000) {
                let (got, from, class) = receive(&server);
                assert_eq!((got.as_slice(), class), (part, 138), "{any}");
                assert!(from.starts_with(source) || from.starts_with(&format!("[{source}]")), "{from}");
            }
            send(&SockRef::from(&sender), &Datagrams { from: None, bytes: &[], class: 0, ..batch }).unwrap();
            let (got, _, class) = receive(&server);
            assert_eq!((got.len(), class), (0, 0));
        }
    }

    #[test]
    fn refusals_of_the_kernel_are_errors() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let bytes = vec![0; 70_000];
        let to = socket.local_addr().unwrap();
        let long = Datagrams { to, from: None, bytes: &bytes, segment_bytes: None, class: 0 };
        assert_eq!(send(&SockRef::from(&socket), &long).unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
    }
}
