//! Connecting: ways are tried one after the other, the next one when an earlier one fails or is late (RFC 8305).

use super::policy::Way;
use super::{Proxy, open};
use anabranch_element::time;
use anabranch_selection::race::{Race, RaceAction, RaceConfig};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

type Attempt = (usize, io::Result<TcpStream>);

/// The first of the ways by which a server can be reached, and the connection.
///
/// # Errors
/// Why the best way failed, if all did; or that there was no time left.
pub async fn connect(
    proxy: &Arc<Proxy>,
    ways: &[Arc<Way>],
    server: SocketAddr,
    source: Option<IpAddr>,
) -> io::Result<(Arc<Way>, TcpStream)> {
    let limits = proxy.limits.load();
    let config =
        RaceConfig { deadline: Duration::from_secs(limits.connect_s.into()), ..RaceConfig::default() };
    let keepalive = Duration::from_secs(limits.keepalive_s.into());
    drop(limits);
    let started = Instant::now();
    let now = || time::Instant::from_nanos(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut race = Race::new(ways.iter().map(|way| config.delay(way.rtt_us)).collect(), &config, now());
    let mut tried = JoinSet::<Attempt>::new();
    let mut handles: Vec<Option<AbortHandle>> = vec![None; ways.len()];
    let mut connected: Option<TcpStream> = None;
    let mut failure: Option<io::Error> = None;
    loop {
        while let Some(action) = race.poll_action() {
            match action {
                RaceAction::Start(i) => {
                    if i > 0 {
                        proxy.flows.counters.retries.fetch_add(1, Relaxed);
                    }
                    let (proxy, way) = (proxy.clone(), ways[i].clone());
                    let attempt = async move { (i, once(&proxy, &way, server, source, keepalive).await) };
                    handles[i] = Some(tried.spawn(attempt));
                }
                RaceAction::Cancel(i) => {
                    if let Some(handle) = &handles[i] {
                        handle.abort();
                    }
                }
                RaceAction::Won(i) => {
                    let stream = connected.take().ok_or(io::ErrorKind::NotConnected)?;
                    return Ok((ways[i].clone(), stream));
                }
                RaceAction::Failed => {
                    return Err(failure.unwrap_or_else(|| io::ErrorKind::TimedOut.into()));
                }
            }
        }
        let Some((at, _)) = race.poll_timeout() else { continue };
        let until = started + Duration::from_nanos(at.as_nanos());
        tokio::select! {
            Some(done) = tried.join_next() => match done {
                Ok((i, Ok(stream))) => {
                    connected = Some(stream);
                    race.on_connected(i);
                }
                Ok((i, Err(error))) => {
                    tracing::debug!(%server, interface = ways[i].interface, "connecting: {error}");
                    failure.get_or_insert(error);
                    race.on_failed(i, now());
                }
                // One that was given up.
                Err(_) => {}
            },
            () = tokio::time::sleep_until(until.into()) => race.on_timeout(now()),
        }
    }
}

async fn once(
    proxy: &Proxy,
    way: &Way,
    server: SocketAddr,
    source: Option<IpAddr>,
    keepalive: Duration,
) -> io::Result<TcpStream> {
    let socket = open::socket(way, server, source, proxy.own_mark, &proxy.flows.counters)?;
    crate::runtime::relay::relayed(&socket, keepalive)?;
    TcpSocket::from_std_stream(socket.into()).connect(server).await
}
