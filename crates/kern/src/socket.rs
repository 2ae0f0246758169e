//! Options of sockets opened by applications (`anabranch-taps`): the pacing rate, and the kernel's measurements of a connection.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// Limits the sending rate of a socket to `bytes_per_s` (`SO_MAX_PACING_RATE`); `u64::MAX` means no limit. TCP paces by itself;
/// datagrams are paced only with the `fq` qdisc.
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_max_pacing_rate(socket: &impl AsFd, bytes_per_s: u64) -> io::Result<()> {
    // SAFETY: the kernel copies eight bytes from the address of a u64.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            std::ptr::from_ref(&bytes_per_s).cast(),
            size_of::<u64>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The smoothed round-trip time of a TCP connection, in microseconds (`TCP_INFO`).
///
/// # Errors
/// Those of getsockopt(2): it is not a TCP socket.
pub fn tcp_rtt_us(socket: &impl AsFd) -> io::Result<u32> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    // An older kernel fills in less; the rest is zero.
    let filled = get(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    if filled < std::mem::offset_of!(libc::tcp_info, tcpi_rttvar) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: plain numbers, zero before the kernel wrote them.
    Ok(unsafe { info.assume_init() }.tcpi_rtt)
}

/// Number of paths in use by a Multipath TCP connection (`MPTCP_INFO`): 1 plus its additional subflows. `None` after a fallback to
/// TCP.
///
/// # Errors
/// Those of getsockopt(2): it is not a Multipath TCP socket, or the kernel is older than 5.16.
pub fn mptcp_paths(socket: &impl AsFd) -> io::Result<Option<u8>> {
    const SOL_MPTCP: libc::c_int = 284;
    const MPTCP_INFO: libc::c_int = 1;
    // struct mptcp_info: eight counts of one byte each, the first of which is the number of subflows besides the first one, which may
    // have ended; then two words, the first of which is flags. The total number of subflows is available since Linux 6.6.
    const FLAGS: usize = 8;
    const TOTAL: usize = 80;
    const FALLBACK: u8 = 1;
    let mut info = MaybeUninit::<[u8; 96]>::zeroed();
    let filled = match get(socket, SOL_MPTCP, MPTCP_INFO, &mut info) {
        // After a fallback the connection no longer has this level.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(None),
        other => other?,
    };
    if filled <= FLAGS {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: bytes, zero before the kernel wrote them.
    let info = unsafe { info.assume_init() };
    let flags = u32::from_ne_bytes([info[FLAGS], info[FLAGS + 1], info[FLAGS + 2], info[FLAGS + 3]]);
    let count = if filled > TOTAL { info[TOTAL] } else { info[0].saturating_add(1) };
    Ok((flags & u32::from(FALLBACK) == 0).then_some(count))
}

/// Memory of a socket: what its queues hold and their limits, in bytes including the kernel's overhead (`SO_MEMINFO`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SocketMemory {
    /// Received and not yet read.
    pub received: u32,
    /// Limit of `received`; grows by itself unless it was set.
    pub receive_limit: u32,
    /// To be sent, or sent and not yet acknowledged.
    pub queued: u32,
    /// Limit of `queued`; grows by itself unless it was set.
    pub send_limit: u32,
}

/// Memory of a socket (`SO_MEMINFO`, Linux 4.12). That of the subflows of a Multipath TCP connection is not included.
///
/// # Errors
/// Those of getsockopt(2).
pub fn memory(socket: &impl AsFd) -> io::Result<SocketMemory> {
    const SO_MEMINFO: libc::c_int = 55;
    // linux/sock_diag.h: SK_MEMINFO_RMEM_ALLOC, RCVBUF, WMEM_ALLOC, SNDBUF, FWD_ALLOC, WMEM_QUEUED, and three more.
    let mut values = MaybeUninit::<[u32; 9]>::zeroed();
    get(socket, libc::SOL_SOCKET, SO_MEMINFO, &mut values)?;
    // SAFETY: plain numbers, zero before the kernel wrote them.
    let [received, receive_limit, _, send_limit, _, queued, ..] = unsafe { values.assume_init() };
    Ok(SocketMemory { received, receive_limit, queued, send_limit })
}

/// Sets the limit of received data to `bytes` including overhead, also above `net.core.rmem_max` (`SO_RCVBUFFORCE`). From then on it
/// does not grow by itself. Queued data above it stays; further data is dropped and the window is closed.
///
/// # Errors
/// Those of setsockopt(2): CAP_NET_ADMIN is missing.
pub fn set_receive_limit(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    // The kernel doubles the value.
    set(socket, libc::SO_RCVBUFFORCE, bytes / 2)
}

/// The same for data to be sent (`SO_SNDBUFFORCE`).
///
/// # Errors
/// Those of setsockopt(2): CAP_NET_ADMIN is missing.
pub fn set_send_limit(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    set(socket, libc::SO_SNDBUFFORCE, bytes / 2)
}

/// Lets the limits of a socket that are not named here grow by themselves again (`SO_BUF_LOCK`, Linux 5.14).
///
/// # Errors
/// Those of setsockopt(2): the kernel is older, or it is a Multipath TCP socket.
pub fn keep_limits(socket: &impl AsFd, receive: bool, send: bool) -> io::Result<()> {
    const SO_BUF_LOCK: libc::c_int = 72;
    set(socket, SO_BUF_LOCK, u32::from(send) | u32::from(receive) << 1)
}

fn set(socket: &impl AsFd, name: libc::c_int, value: u32) -> io::Result<()> {
    // SAFETY: the kernel copies four bytes from the address of a u32.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            std::ptr::from_ref(&value).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The congestion window of a TCP connection, in segments (`TCP_INFO`).
///
/// # Errors
/// Those of getsockopt(2): it is not a TCP socket.
pub fn tcp_window_segments(socket: &impl AsFd) -> io::Result<u32> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    // An older kernel fills in less; the rest is zero.
    let filled = get(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    if filled < std::mem::offset_of!(libc::tcp_info, tcpi_advmss) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: plain numbers, zero before the kernel wrote them.
    Ok(unsafe { info.assume_init() }.tcpi_snd_cwnd)
}

/// The network namespace cookie of a socket, as used by kernel programs (`SO_NETNS_COOKIE`).
///
/// # Errors
/// Those of getsockopt(2): the kernel is older than 5.14.
pub fn netns_cookie(socket: &impl AsFd) -> io::Result<u64> {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let mut cookie = MaybeUninit::<u64>::zeroed();
    get(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut cookie)?;
    // SAFETY: a number, zero before the kernel wrote it.
    Ok(unsafe { cookie.assume_init() })
}

/// Reads an option into zeroed memory; returns the number of bytes written by the kernel.
fn get<T>(
    socket: &impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    into: &mut MaybeUninit<T>,
) -> io::Result<usize> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into a buffer of that size, and the length to `length`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            into.as_mut_ptr().cast(),
            std::ptr::from_mut(&mut length),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(length as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn a_connection_has_an_rtt_and_accepts_a_rate() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(tcp_rtt_us(&client).unwrap() > 0);
        assert!(tcp_window_segments(&client).unwrap() >= 1);
        assert_eq!(netns_cookie(&client).unwrap(), netns_cookie(&listener).unwrap());
        set_max_pacing_rate(&client, 1_000_000).unwrap();
        set_max_pacing_rate(&client, u64::MAX).unwrap();
    }

    #[test]
    fn queued_bytes_are_counted_and_a_limit_applies_until_it_is_released() {
        use std::io::Write;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.write_all(&[0; 10_000]).unwrap();
        while memory(&server).unwrap().received < 10_000 {
            std::thread::yield_now();
        }
        // Only with CAP_NET_ADMIN.
        if set_receive_limit(&server, 65_536).is_ok() {
            set_send_limit(&server, 131_072).unwrap();
            let limited = memory(&server).unwrap();
            assert_eq!((limited.receive_limit, limited.send_limit), (65_536, 131_072));
            keep_limits(&server, false, true).unwrap();
        }
    }

    #[test]
    fn other_sockets_are_reported_as_errors() {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(tcp_rtt_us(&udp).is_err());
        assert!(!matches!(mptcp_paths(&udp), Ok(Some(_))));
    }
}
