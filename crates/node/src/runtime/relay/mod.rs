//! Relaying of TCP connections that are terminated here: common parts of transparent proxy and TCP lane.
//!
//! ```text
//!  one end ──▶ [socket] ─ splice ─▶ pipe ─ splice ─▶ [socket] ──▶ other end      and the same the other way
//!    FIN ─▶ FIN once the pipe is empty, the other direction continues;   RST, error, end ─▶ RST to the other end
//! ```
//!
//! Data that one end does not read stays in the socket buffers, which closes the window of the other end.

mod flows;
mod memory;
mod pipe;
mod tally;

pub use flows::{Entry, Flow, Flows, LimitReached, RelayKind, Totals, accept};
pub use memory::{Bounds, watch as watch_memory};
pub(crate) use tally::named;
pub use tally::{Named, Tally};

use super::netctl;
use anyhow::Context;
use memory::Direction;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pipe::Pipe;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Maximum number of connections that wait to be accepted.
pub const BACKLOG: i32 = 4096;
/// File descriptors of a pipe.
const DESCRIPTORS_PER_PIPE: usize = 2;
/// File descriptors of a flow: two sockets, and two pipes while both directions are busy.
const DESCRIPTORS_PER_FLOW: u64 = 2 + 2 * DESCRIPTORS_PER_PIPE as u64;
/// File descriptors for all other purposes, without the pipes that threads keep.
const DESCRIPTORS_BESIDE: u64 = 256;

/// Relays both directions until both ends have finished, and counts the bytes.
///
/// # Errors
/// One end has failed.
async fn relay_both(
    client: &TcpStream,
    far: &TcpStream,
    up: (&AtomicU64, &Direction),
    down: (&AtomicU64, &Direction),
) -> io::Result<()> {
    let (mut up, mut down) =
        (pin!(relay_direction(client, far, up)), pin!(relay_direction(far, client, down)));
    tokio::select! {
        done = &mut up => {
            done?;
            remaining_direction(down, client).await
        }
        done = &mut down => {
            done?;
            remaining_direction(up, far).await
        }
    }
}

/// Relays the other direction after `ended` has sent its FIN. Nobody reads from that end any more, so its
/// failure is detected separately; the other end may never send.
async fn remaining_direction(
    direction: impl Future<Output = io::Result<()>>,
    ended: &TcpStream,
) -> io::Result<()> {
    tokio::select! {
        biased;
        done = direction => done,
        error = failure(ended) => Err(error),
    }
}

/// Relays one direction until FIN, and passes that on.
async fn relay_direction(
    from: &TcpStream,
    to: &TcpStream,
    (bytes, direction): (&AtomicU64, &Direction),
) -> io::Result<()> {
    loop {
        from.readable().await?;
        let mut pipe = Pipe::take()?;
        let filled = from.try_io(Interest::READABLE, || pipe.fill(from, direction.batch()));
        match filled {
            Ok(0) => {
                pipe.recycle();
                return match SockRef::from(to).shutdown(Shutdown::Write) {
                    // The end has disappeared; the other direction returns the cause.
                    Err(error) if error.kind() == ErrorKind::NotConnected => Ok(()),
                    other => other,
                };
            }
            Ok(_) => {
                while pipe.buffered() > 0 {
                    match to.try_io(Interest::WRITABLE, || pipe.drain(to)) {
                        Ok(given) => {
                            bytes.fetch_add(given as u64, Relaxed);
                        }
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            direction.set_waiting(pipe.buffered());
                            // Nobody reads from `from` meanwhile, so its failure is detected here.
                            tokio::select! {
                                ready = to.writable() => ready?,
                                error = failure(from) => return Err(error),
                            }
                        }
                        Err(error) => return Err(error),
                    }
                }
                direction.set_waiting(0);
                pipe.recycle();
                // Lets other tasks run.
                tokio::task::coop::consume_budget().await;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => pipe.recycle(),
            Err(error) => return Err(error),
        }
    }
}

/// Waits until a connection fails.
pub async fn failure(stream: &TcpStream) -> io::Error {
    loop {
        match stream.ready(Interest::ERROR).await {
            Ok(ready) if ready.is_error() => match stream.take_error() {
                Ok(Some(error)) | Err(error) => return error,
                // The error was taken by a read or write, which returns it.
                Ok(None) => return ErrorKind::ConnectionReset.into(),
            },
            Ok(_) => {}
            Err(error) => return error,
        }
    }
}

/// Makes the closing of the socket a reset, also by the kernel when this program is killed.
pub fn reset(stream: &TcpStream) {
    // A failed connection need not be reset.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Two ends that have not finished. If the relay ends, for instance with this program, they are reset, so
/// that its end does not look like a regular end of the connection.
struct ResetOnDrop<'a>([&'a TcpStream; 2]);

impl<'a> ResetOnDrop<'a> {
    fn new(ends: [&'a TcpStream; 2]) -> Self {
        // Not for Multipath TCP before that: the kernel would also reset single subflows that end.
        let plain = |end: &&&TcpStream| {
            let protocol = SockRef::from(**end).protocol();
            !matches!(protocol, Ok(Some(Protocol::MPTCP)))
        };
        ends.iter().filter(plain).for_each(|end| reset(end));
        Self(ends)
    }

    /// Both ends have finished; closing ends them regularly.
    fn done(self) {
        for end in std::mem::ManuallyDrop::new(self).0 {
            let _ = SockRef::from(end).set_linger(None);
        }
    }
}

impl Drop for ResetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.into_iter().for_each(reset);
    }
}

/// Options of relayed sockets: data is sent at once, urgent bytes are passed on in their place, and failed
/// peers are detected.
///
/// # Errors
/// The socket is not a TCP socket.
pub fn relayed(socket: &Socket, keepalive: Duration) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    // Multipath TCP does not support urgent bytes and refuses the option.
    let _ = socket.set_out_of_band_inline(true);
    let often = (keepalive / 4).max(Duration::from_secs(1));
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(keepalive).with_interval(often).with_retries(4))
}

/// Permits a socket to use an address that does not belong to this machine.
///
/// # Errors
/// CAP_NET_ADMIN or CAP_NET_RAW is missing.
pub fn transparent(socket: &Socket, v6: bool) -> io::Result<()> {
    if v6 { socket.set_ip_transparent_v6(true) } else { socket.set_ip_transparent_v4(true) }
}

/// A bound, transparent socket to which flows are redirected, so that its local address is the program's
/// destination. Its mark, which connections inherit, prevents that their packets are redirected again.
///
/// # Errors
/// The port is in use, or capabilities are missing.
pub fn intercepting_socket(
    at: SocketAddr,
    kind: Type,
    protocol: Protocol,
    own_mark: u32,
) -> anyhow::Result<Socket> {
    let socket = Socket::new(Domain::for_address(at), kind.nonblocking(), Some(protocol))?;
    if at.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if kind == Type::STREAM {
        // Connections of an earlier run in TIME_WAIT do not block the port.
        socket.set_reuse_address(true)?;
    }
    transparent(&socket, at.is_ipv6()).context("IP_TRANSPARENT: run as root, or with CAP_NET_ADMIN")?;
    socket.set_mark(own_mark).context("SO_MARK: run as root, or with CAP_NET_ADMIN")?;
    netctl::bind_when_free(|| socket.bind(&at.into()))
        .context("is another proxy running, or another program on this port?")?;
    Ok(socket)
}

/// Whether a socket could not be created because the machine has no IPv6.
pub fn no_ipv6(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|e| {
        e.kind() == ErrorKind::AddrNotAvailable || e.raw_os_error() == Some(nix::libc::EAFNOSUPPORT)
    })
}

/// Whether the error is a lack of file descriptors.
pub fn no_descriptors(error: &io::Error) -> bool {
    [nix::libc::EMFILE, nix::libc::ENFILE].map(Some).contains(&error.raw_os_error())
}

/// The configured maximum of flows, limited by the available file descriptors. `threads` relay data (0: one
/// per core). The soft limit of open files is raised as far as needed.
fn flow_limit(key: &str, wanted: u32, threads: u16) -> anyhow::Result<usize> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("limit of open files")?;
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cores() } else { threads.into() };
    let beside = DESCRIPTORS_BESIDE + (threads * pipe::KEPT * DESCRIPTORS_PER_PIPE) as u64;
    let need = u64::from(wanted) * DESCRIPTORS_PER_FLOW + beside;
    if soft < need {
        setrlimit(Resource::RLIMIT_NOFILE, need.min(hard), hard).context("limit of open files")?;
    }
    let fit = max_flows(hard, beside);
    if hard < need {
        tracing::warn!(
            "{key} = {wanted} needs {need} open files, {hard} are allowed: at most {fit} flows; raise the limit \
             (LimitNOFILE= of the unit, ulimit -n)"
        );
    }
    Ok(usize::try_from(fit.min(wanted.into()))?)
}

/// The number of flows for which `allowed` descriptors suffice if `beside` have other uses; at least one.
const fn max_flows(allowed: u64, beside: u64) -> u64 {
    let fit = allowed.saturating_sub(beside) / DESCRIPTORS_PER_FLOW;
    if fit == 0 { 1 } else { fit }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn flows_have_the_descriptors_that_are_left(allowed in 0u64..1 << 40, beside in 0u64..1 << 20) {
            let flows = max_flows(allowed, beside);
            let used = |flows| beside + flows * DESCRIPTORS_PER_FLOW;
            prop_assert!(used(flows) <= allowed || flows == 1);
            prop_assert!(used(flows + 1) > allowed);
        }
    }

    /// A connection, one end of which has the options of relayed sockets.
    async fn pair() -> (Socket, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let outer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (inner, _) = listener.accept().await.unwrap();
        relayed(&SockRef::from(&inner), Duration::from_secs(60)).unwrap();
        (outer.into(), inner)
    }

    /// splice(2) never passes an urgent byte. The relay must deliver the data after it, and the byte itself
    /// in its place (RFC 6093).
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn urgent_bytes_do_not_block_a_flow() {
        use std::io::{Read, Write};
        // Parts of the data, and whether the last byte of each is urgent.
        let cases: [&[(usize, bool)]; 8] = [
            &[(1, true)],
            &[(1, true), (3, false)],
            &[(5, false), (1, true), (5, false)],
            &[(7, true)],
            &[(1, true), (1, true), (1, true)],
            &[(300_000, true), (300_000, false)],
            &[(300_000, false), (1, true), (1, false), (300_000, true)],
            &[(3, true), (100_000, true), (100_000, true), (1, false)],
        ];
        for case in cases {
            let (mut client, near) = pair().await;
            let (mut server, far) = pair().await;
            let relay = tokio::spawn(async move {
                let (up, down) = (AtomicU64::new(0), AtomicU64::new(0));
                let directions = <[Direction; 2]>::default();
                relay_both(&near, &far, (&up, &directions[0]), (&down, &directions[1]))
                    .await
                    .map(|()| up.load(Relaxed))
            });
            let mut sent = Vec::new();
            let mut parts = Vec::new();
            for (length, urgent) in case {
                let part: Vec<u8> = (0..*length).map(|i| (i + sent.len()) as u8).collect();
                sent.extend_from_slice(&part);
                parts.push((part, *urgent));
            }
            let writes = tokio::task::spawn_blocking(move || {
                for (part, urgent) in parts {
                    let (last, before) = part.split_last().unwrap();
                    client.write_all(if urgent { before } else { &part }).unwrap();
                    if urgent {
                        assert_eq!(client.send_out_of_band(&[*last]).unwrap(), 1);
                    }
                    // With and without data before the next urgent byte.
                    std::thread::sleep(Duration::from_millis(20));
                }
                client.shutdown(Shutdown::Write).unwrap();
                client
            });
            server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let reads = tokio::task::spawn_blocking(move || {
                let mut got = Vec::new();
                let end = server.read_to_end(&mut got);
                (got, end.is_ok())
            });
            let (got, ended) = reads.await.unwrap();
            assert!(ended, "{case:?}: it stops after {} of {} bytes", got.len(), sent.len());
            assert!(got == sent, "{case:?}: {} of {} bytes", got.len(), sent.len());
            drop(writes.await.unwrap());
            let up = tokio::time::timeout(Duration::from_secs(20), relay).await.unwrap().unwrap().unwrap();
            assert_eq!(up, sent.len() as u64, "{case:?}");
        }
    }
}
