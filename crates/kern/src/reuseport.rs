//! Distribution of the tunnel's datagrams among several SO_REUSEPORT sockets, to the worker that has the session (classic BPF,
//! SO_ATTACH_REUSEPORT_CBPF).
//!
//! ```text
//!  first byte   meaning       worker
//!  0x4…         secure        receiver index          (bytes 4 to 7) mod n
//!  0x1…         handshake     shard hint              (byte 3) mod n
//!  0x8…         plain data    inner source address    (its last byte) mod n; an estimate, workers forward if wrong
//!  other                      the kernel's default: by the hash of the addresses
//! ```

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

/// Distributes the datagrams of the group of `socket` over its `workers` members, numbered in the order in which they were bound.
///
/// # Errors
/// Those of setsockopt(2): the socket is not bound, or is not SO_REUSEPORT.
pub fn spread(socket: &impl AsFd, workers: u32) -> io::Result<()> {
    let mut program = program(workers.max(1));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: `filter` describes `program`, and both outlive the call, which copies them.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            ptr::from_ref(&filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Offsets are relative to the UDP payload. A load beyond its end returns 0: the first worker.
fn program(workers: u32) -> [libc::sock_filter; 20] {
    const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const SHIFT_RIGHT: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K;
    const MODULO: u32 = libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    const RETURN_A: u32 = libc::BPF_RET | libc::BPF_A;
    let op = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // Skips `over` instructions if the accumulator equals `k`.
    let skip_if = |k: u32, over: u8| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: over,
        jf: 0,
        k,
    };
    [
        op(LOAD_BYTE, 0),
        op(SHIFT_RIGHT, 4),
        skip_if(0x4, 3),
        skip_if(0x1, 5),
        skip_if(0x8, 7),
        op(RETURN, u32::MAX), // out of range: the kernel falls back to its hash
        // Secure.
        op(LOAD_WORD, 4),
        op(MODULO, workers),
        op(RETURN_A, 0),
        // Handshake.
        op(LOAD_BYTE, 3),
        op(MODULO, workers),
        op(RETURN_A, 0),
        // Plain: a header of eight bytes, then IPv6 or IPv4.
        op(LOAD_BYTE, 8),
        op(SHIFT_RIGHT, 4),
        skip_if(6, 2),
        op(LOAD_BYTE, 8 + 15),
        op(libc::BPF_JMP | libc::BPF_JA, 1),
        op(LOAD_BYTE, 8 + 23),
        op(MODULO, workers),
        op(RETURN_A, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::{FromRawFd, OwnedFd};

    /// A UDP socket on loopback with SO_REUSEPORT; port 0 selects a free port.
    fn member(port: u16) -> UdpSocket {
        let address = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
            sin_zero: [0; 8],
        };
        // SAFETY: the calls read `one` and `address`, which outlive them; the descriptor is ours alone.
        unsafe {
            let raw = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
            let fd = OwnedFd::from_raw_fd(raw);
            let one: libc::c_int = 1;
            let set =
                libc::setsockopt(raw, libc::SOL_SOCKET, libc::SO_REUSEPORT, ptr::from_ref(&one).cast(), 4);
            let bound = libc::bind(raw, ptr::from_ref(&address).cast(), size_of_val(&address) as u32);
            assert_eq!((set, bound), (0, 0), "{}", io::Error::last_os_error());
            UdpSocket::from(fd)
        }
    }

    #[test]
    fn datagrams_reach_the_worker_of_their_session() {
        let first = member(0);
        let to = first.local_addr().unwrap();
        let members = [first, member(to.port()), member(to.port())];
        spread(&members[0], 3).unwrap();
        for socket in &members {
            socket.set_nonblocking(true).unwrap();
        }
        let who = |datagram: &[u8]| {
            let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
            sender.send_to(datagram, to).unwrap();
            let got: Vec<usize> = (0..3).filter(|&i| members[i].recv(&mut [0; 100]).is_ok()).collect();
            assert_eq!(got.len(), 1, "{datagram:?}");
            got[0]
        };
        for index in [0u32, 1, 2, 3, 250, 1_000_000, u32::MAX] {
            let mut secure = [0; 40];
            secure[0] = 0x40;
            secure[4..8].copy_from_slice(&index.to_be_bytes());
            assert_eq!(who(&secure), (index % 3) as usize);
        }
        for hint in [0, 1, 2, 200, 255u8] {
            let mut init = [0; 60];
            (init[0], init[3]) = (0x10, hint);
            assert_eq!(who(&init), usize::from(hint % 3));
            let mut plain = [0; 60];
            (plain[0], plain[8], plain[8 + 15]) = (0x83, 0x45, hint);
            assert_eq!(who(&plain), usize::from(hint % 3));
            let mut plain = [0; 60];
            (plain[0], plain[8], plain[8 + 23]) = (0x80, 0x60, hint);
            assert_eq!(who(&plain), usize::from(hint % 3));
        }
        // Other datagrams still reach a member.
        for other in [&[][..], &[0x40], &[0x10, 1], &[0xff; 9]] {
            who(other);
        }
        assert!(spread(&UdpSocket::bind("127.0.0.1:0").unwrap(), 3).is_err());
    }
}
