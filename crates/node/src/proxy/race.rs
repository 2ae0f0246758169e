//! Connecting: candidates are tried in order; the next one starts when an earlier one fails or is late (RFC
//! 8305).

use super::policy::Candidate;
use super::{Proxy, open};
use crate::runtime::race;
use anabranch_selection::race::RaceConfig;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};

/// Connects to the server with the first candidate that succeeds; returns the candidate and the connection.
///
/// # Errors
/// The failure of the best candidate, if all failed; or the time limit.
pub async fn connect(
    proxy: &Arc<Proxy>,
    candidates: &[Arc<Candidate>],
    server: SocketAddr,
    source: Option<IpAddr>,
) -> io::Result<(Arc<Candidate>, TcpStream)> {
    let limits = proxy.limits.load();
    let config =
        RaceConfig { deadline: Duration::from_secs(limits.connect_s.into()), ..RaceConfig::default() };
    let keepalive = Duration::from_secs(limits.keepalive_s.into());
    drop(limits);
    let delays = candidates.iter().map(|candidate| config.delay(candidate.rtt_us)).collect();
    let won = race::first(delays, &config, |i| {
        if i > 0 {
            proxy.flows.counters.retries.fetch_add(1, Relaxed);
        }
        let (proxy, candidate) = (proxy.clone(), candidates[i].clone());
        async move {
            let connected = once(&proxy, &candidate, server, source, keepalive).await;
            connected.inspect_err(|error| {
                tracing::debug!(%server, interface = candidate.interface, "connecting: {error}");
            })
        }
    });
    match won.await {
        Ok((i, stream)) => Ok((candidates[i].clone(), stream)),
        Err(failure) => Err(failure.unwrap_or_else(|| io::ErrorKind::TimedOut.into())),
    }
}

async fn once(
    proxy: &Proxy,
    candidate: &Candidate,
    server: SocketAddr,
    source: Option<IpAddr>,
    keepalive: Duration,
) -> io::Result<TcpStream> {
    let socket = open::socket(candidate, server, source, proxy.own_mark, &proxy.flows.counters)?;
    crate::runtime::relay::relayed(&socket, keepalive)?;
    TcpSocket::from_std_stream(socket.into()).connect(server).await
}
