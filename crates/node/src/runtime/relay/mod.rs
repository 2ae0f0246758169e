//! TCP connections that end here and go on elsewhere: what a transparent proxy and a TCP lane have in common.
//!
//! ```text
//!  one end ──▶ [socket] ─ splice ─▶ pipe ─ splice ─▶ [socket] ──▶ other end      and the same the other way
//!    FIN ─▶ FIN once the pipe is empty, the other way goes on;   RST, an error, or our own end ─▶ RST to the other end
//! ```
//!
//! What one end does not take stays in the sockets' buffers, and the other end's window closes.

mod flows;
mod pipe;
mod tally;

pub use flows::{Entry, Flow, Flows, Full, Kind, Totals, accept};
pub(crate) use tally::named;
pub use tally::{Named, Tally};

use super::netctl;
use anyhow::Context;
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

/// Connections that may wait to be taken.
pub const BACKLOG: i32 = 4096;
/// The ends of a pipe.
const DESCRIPTORS_PER_PIPE: usize = 2;
/// Descriptors of a flow: two sockets, and two pipes while it is busy both ways.
const DESCRIPTORS_PER_FLOW: u64 = 2 + 2 * DESCRIPTORS_PER_PIPE as u64;
/// Descriptors of everything else, without the pipes that threads keep.
const DESCRIPTORS_BESIDE: u64 = 256;

/// Copies both ways until both ends are done, and counts the bytes.
///
/// # Errors
/// One end is broken.
async fn both(client: &TcpStream, far: &TcpStream, up: &AtomicU64, down: &AtomicU64) -> io::Result<()> {
    let (mut up, mut down) = (pin!(one_way(client, far, up)), pin!(one_way(far, client, down)));
    tokio::select! {
        done = &mut up => {
            done?;
            other_way(down, client).await
        }
        done = &mut down => {
            done?;
            other_way(up, far).await
        }
    }
}

/// One way once an end has sent all. Nobody reads there any more: that it is gone shows only so, for the other end may never send.
async fn other_way(way: impl Future<Output = io::Result<()>>, ended: &TcpStream) -> io::Result<()> {
    tokio::select! {
        biased;
        done = way => done,
        error = gone(ended) => Err(error),
    }
}

/// Copies until there is no more, and says so.
async fn one_way(from: &TcpStream, to: &TcpStream, bytes: &AtomicU64) -> io::Result<()> {
    loop {
        from.readable().await?;
        let mut pipe = Pipe::take()?;
        let filled = from.try_io(Interest::READABLE, || pipe.fill(from));
        match filled {
            Ok(0) => {
                pipe.give();
                return match SockRef::from(to).shutdown(Shutdown::Write) {
                    // It is gone already, and the other way will say how.
                    Err(error) if error.kind() == ErrorKind::NotConnected => Ok(()),
                    other => other,
                };
            }
            Ok(taken) => {
                while pipe.held() > 0 {
                    match to.try_io(Interest::WRITABLE, || pipe.drain(to)) {
                        Ok(_) => {}
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            // Nobody reads `from` meanwhile: that it is gone shows only so.
                            tokio::select! {
                                ready = to.writable() => ready?,
                                error = gone(from) => return Err(error),
                            }
                        }
                        Err(error) => return Err(error),
                    }
                }
                bytes.fetch_add(taken as u64, Relaxed);
                pipe.give();
                // Others want their turn, too.
                tokio::task::coop::consume_budget().await;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => pipe.give(),
            Err(error) => return Err(error),
        }
    }
}

/// Waits until a connection is broken.
pub async fn gone(stream: &TcpStream) -> io::Error {
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

/// Closing it resets it, whoever closes it: also the kernel, when this program is killed.
pub fn reset(stream: &TcpStream) {
    // If it is broken already there is nothing to reset.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Two ends that have not said all: an end of ours, of this program for instance, must not look like theirs.
struct Unfinished<'a>([&'a TcpStream; 2]);

impl<'a> Unfinished<'a> {
    fn new(ends: [&'a TcpStream; 2]) -> Self {
        // Not of Multipath TCP before it comes to that: the kernel would reset also a subflow that goes.
        let plain = |end: &&&TcpStream| {
            let protocol = SockRef::from(**end).protocol();
            !matches!(protocol, Ok(Some(Protocol::MPTCP)))
        };
        ends.iter().filter(plain).for_each(|end| reset(end));
        Self(ends)
    }

    /// They have; closing ends them as usual.
    fn done(self) {
        for end in std::mem::ManuallyDrop::new(self).0 {
            let _ = SockRef::from(end).set_linger(None);
        }
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.into_iter().for_each(reset);
    }
}

/// A relay sends what it has at once, passes urgent bytes on in their place, and notices when an end is gone.
///
/// # Errors
/// The socket is no TCP socket.
pub fn relayed(socket: &Socket, keepalive: Duration) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    // Multipath TCP has no urgent bytes, and refuses it.
    let _ = socket.set_out_of_band_inline(true);
    let often = (keepalive / 4).max(Duration::from_secs(1));
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(keepalive).with_interval(often).with_retries(4))
}

/// Lets a socket have an address that is not this machine's.
///
/// # Errors
/// It takes CAP_NET_ADMIN or CAP_NET_RAW.
pub fn transparent(socket: &Socket, v6: bool) -> io::Result<()> {
    if v6 { socket.set_ip_transparent_v6(true) } else { socket.set_ip_transparent_v4(true) }
}

/// A bound socket that flows are led to, transparent, so that it has the addresses the program wants. Its mark, which
/// connections inherit, keeps what they send from being led here again.
///
/// # Errors
/// The port is taken, or the capabilities are missing.
pub fn door(at: SocketAddr, kind: Type, protocol: Protocol, own_mark: u32) -> anyhow::Result<Socket> {
    let socket = Socket::new(Domain::for_address(at), kind.nonblocking(), Some(protocol))?;
    if at.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if kind == Type::STREAM {
        // What an earlier run left waiting does not keep the port.
        socket.set_reuse_address(true)?;
    }
    transparent(&socket, at.is_ipv6()).context("IP_TRANSPARENT: run as root, or with CAP_NET_ADMIN")?;
    socket.set_mark(own_mark).context("SO_MARK: run as root, or with CAP_NET_ADMIN")?;
    netctl::bind_when_free(|| socket.bind(&at.into()))
        .context("is another proxy running, or another program on this port?")?;
    Ok(socket)
}

/// Whether a socket could not be made because there is no IPv6 here.
pub fn no_ipv6(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|e| {
        e.kind() == ErrorKind::AddrNotAvailable || e.raw_os_error() == Some(nix::libc::EAFNOSUPPORT)
    })
}

/// Whether there are no descriptors left.
pub fn no_descriptors(error: &io::Error) -> bool {
    [nix::libc::EMFILE, nix::libc::ENFILE].map(Some).contains(&error.raw_os_error())
}

/// As many flows as are configured, or as there are descriptors for; `threads` copy (0: as many as there are cores). The
/// soft limit of open files is raised as far as that takes.
fn flow_limit(key: &str, wanted: u32, threads: u16) -> anyhow::Result<usize> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("limit of open files")?;
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cores() } else { threads.into() };
    let beside = DESCRIPTORS_BESIDE + (threads * pipe::KEPT * DESCRIPTORS_PER_PIPE) as u64;
    let need = u64::from(wanted) * DESCRIPTORS_PER_FLOW + beside;
    if soft < need {
        setrlimit(Resource::RLIMIT_NOFILE, need.min(hard), hard).context("limit of open files")?;
    }
    let fit = fit(hard, beside);
    if hard < need {
        tracing::warn!(
            "{key} = {wanted} needs {need} open files, {hard} are allowed: at most {fit} flows; raise the limit \
             (LimitNOFILE= of the unit, ulimit -n)"
        );
    }
    Ok(usize::try_from(fit.min(wanted.into()))?)
}

/// How many flows `allowed` descriptors are for, if so many have other uses; one at least.
const fn fit(allowed: u64, beside: u64) -> u64 {
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
            let flows = fit(allowed, beside);
            let used = |flows| beside + flows * DESCRIPTORS_PER_FLOW;
            prop_assert!(used(flows) <= allowed || flows == 1);
            prop_assert!(used(flows + 1) > allowed);
        }
    }

    /// A connection, relayed at one end as flows are.
    async fn pair() -> (Socket, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let outer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (inner, _) = listener.accept().await.unwrap();
        relayed(&SockRef::from(&inner), Duration::from_secs(60)).unwrap();
        (outer.into(), inner)
    }

    /// splice(2) stops before an urgent byte for ever. What comes after it arrives, and so does the byte, in its place (RFC 6093).
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn urgent_bytes_stop_nothing() {
        use std::io::{Read, Write};
        // Each part, and whether its last byte is urgent.
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
                both(&near, &far, &up, &down).await.map(|()| up.load(Relaxed))
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
                    // So that there is something before the next urgent byte, and not.
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
