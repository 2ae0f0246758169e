//! A TCP flow: connected to its server, then both ways until both ends are done.
//!
//! ```text
//!  client ──▶ [socket] ─ splice ─▶ pipe ─ splice ─▶ [socket] ──▶ server      and the same the other way
//!    FIN ─▶ FIN once the pipe is empty, the other way goes on;   RST, or an error ─▶ RST to the other end
//! ```
//!
//! What one end does not take stays in the sockets' buffers, and the other end's window closes.

use super::agent::Answer;
use super::flows::{Entry, Opened, Refused};
use super::pipe::Pipe;
use super::race;
use super::rules::Transport;
use super::{Proxy, open};
use crate::config::{Source, Unmet};
use socket2::SockRef;
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Takes a connection over.
pub async fn serve(proxy: Arc<Proxy>, client: TcpStream, from: SocketAddr) {
    // What the program connected to.
    let Ok(server) = client.local_addr() else { return reset(&client) };
    let Some(entry) = proxy.flows.open(Transport::Tcp, from, server) else { return reset(&client) };
    let far = tokio::select! {
        far = reach(&proxy, &entry, from, server) => far,
        // Who hangs up while we connect does not want to any more.
        _ = gone(&client) => Err(None),
    };
    match far {
        Ok(far) => relay(&proxy, &entry, &client, &far).await,
        Err(why) => {
            if let Some(why) = why {
                proxy.flows.counters.refuse(why);
            }
            reset(&client);
        }
    }
}

/// The connection to the server.
async fn reach(
    proxy: &Arc<Proxy>,
    entry: &Entry,
    client: SocketAddr,
    server: SocketAddr,
) -> Result<TcpStream, Option<Refused>> {
    let rule = proxy.rule(Transport::Tcp, client, server).ok_or(Refused::NoRule)?;
    // Set once, here.
    let _ = entry.flow.rule.set(rule.name.clone());
    let (answer, origin) = proxy.policy.ways(&rule, Transport::Tcp, server).await;
    proxy.flows.counters.origin(origin);
    let plain = [Arc::new(super::policy::Way::plain(Transport::Tcp))];
    let ways = match &*answer {
        Answer::Ways(ways) => ways.as_slice(),
        Answer::Unmet(why) if rule.unmet == Unmet::Refuse => {
            tracing::debug!(%client, %server, rule = rule.name, "refused: {why}");
            return Err(Some(Refused::Unmet));
        }
        Answer::Unmet(_) => &plain,
    };
    let source = (rule.source == Source::Client).then_some(client.ip());
    match race::connect(proxy, ways, server, source).await {
        Ok((way, far)) => {
            let _ = entry.flow.opened.set(Opened { way, origin });
            Ok(far)
        }
        Err(error) => {
            tracing::debug!(%client, %server, rule = rule.name, "the server cannot be reached: {error}");
            let out = [nix::libc::EMFILE, nix::libc::ENFILE].map(Some).contains(&error.raw_os_error());
            Err(Some(if out { Refused::Socket } else { Refused::Unreachable }))
        }
    }
}

async fn relay(proxy: &Proxy, entry: &Entry, client: &TcpStream, far: &TcpStream) {
    let keepalive = Duration::from_secs(proxy.limits.load().keepalive_s.into());
    // The far end's were set when it was opened.
    let _ = open::relayed(&SockRef::from(client), keepalive);
    let flow = &entry.flow;
    let both = tokio::try_join!(one_way(client, far, &flow.up), one_way(far, client, &flow.down));
    if let Err(error) = both {
        proxy.flows.counters.resets.fetch_add(1, Relaxed);
        tracing::debug!(client = %flow.client, server = %flow.server, "reset: {error}");
        reset(client);
        reset(far);
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
async fn gone(stream: &TcpStream) -> io::Error {
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

/// Closing it resets it.
fn reset(stream: &TcpStream) {
    // If it is broken already there is nothing to reset.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
