//! What is read over and over while a scenario runs: TCP sockets, interfaces, links.

use super::diag::{Counters, Diag, Protocol, Side};
use super::space::Space;
use super::stop::Stop;
use super::topology::LinkControl;
use anabranch_core::net::LinkStats;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often sockets are looked at: the resolution of silences of TCP flows whose programs tell none.
pub const TCP_PERIOD: Duration = Duration::from_millis(5);

/// An Ethernet header, which interfaces count and the metrics do not.
const ETHERNET_BYTES: u64 = 14;

/// What to watch of a TCP flow.
#[derive(Debug)]
pub struct TcpWatch {
    /// The flow.
    pub flow: String,
    /// What its sockets are at the receiving end: where, and by which port they are known.
    pub receiver: (Diag, Side),
    /// The same at the sending end.
    pub sender: (Diag, Side),
    /// Whether the connection is MPTCP.
    pub mptcp: bool,
}

/// What was seen of a TCP flow.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct TcpSeen {
    /// Bytes received in order so far, at times: of the connection that got most.
    pub received: Vec<(f64, u64)>,
    /// Congestion window of the sender at times, bytes; of MPTCP the sum over the subflows.
    pub cwnd: Vec<(f64, f64)>,
    /// Segments sent again and retransmission timeouts, over all its connections.
    pub resent: [u64; 2],
}

/// Watches TCP sockets until asked to end.
///
/// # Errors
/// The kernel does not tell.
pub fn tcp(watches: Vec<TcpWatch>, start: Instant, end: &Stop) -> Result<BTreeMap<String, TcpSeen>> {
    let mut records: Vec<Record> = watches.into_iter().map(Record::new).collect();
    let mut next = start;
    loop {
        let over = end.sleep_until(next);
        // Once more at the end, so that what is final is seen.
        for record in &mut records {
            record.look(start)?;
        }
        if over {
            break;
        }
        next = (next + TCP_PERIOD).max(Instant::now());
    }
    Ok(records.into_iter().map(Record::finish).collect())
}

struct Record {
    watch: TcpWatch,
    received: BTreeMap<u64, Vec<(f64, u64)>>,
    cwnd: Vec<(f64, f64)>,
    resent: BTreeMap<u64, [u64; 2]>,
    found: Vec<Counters>,
}

impl Record {
    fn new(watch: TcpWatch) -> Self {
        Self {
            watch,
            received: BTreeMap::new(),
            cwnd: Vec::new(),
            resent: BTreeMap::new(),
            found: Vec::new(),
        }
    }

    fn look(&mut self, start: Instant) -> Result<()> {
        let protocol = if self.watch.mptcp { Protocol::Mptcp } else { Protocol::Tcp };
        let (diag, side) = &mut self.watch.receiver;
        self.found.clear();
        diag.list(protocol, *side, &mut self.found)?;
        let now = start.elapsed().as_secs_f64();
        for socket in &self.found {
            let readings = self.received.entry(socket.cookie).or_default();
            if readings.last().is_none_or(|(_, bytes)| *bytes != socket.bytes_received) {
                readings.push((now, socket.bytes_received));
            }
        }
        let (diag, side) = &mut self.watch.sender;
        self.found.clear();
        diag.list(Protocol::Tcp, *side, &mut self.found)?;
        let mut window = 0;
        for socket in &self.found {
            self.resent.insert(socket.cookie, [socket.retransmissions, socket.timeouts]);
            // A control connection beside the data has a window too, but never the largest.
            window = if self.watch.mptcp {
                window + socket.cwnd_bytes
            } else {
                u64::max(window, socket.cwnd_bytes)
            };
        }
        let window = window as f64;
        if window > 0.0 && self.cwnd.last().is_none_or(|(_, last)| *last != window) {
            self.cwnd.push((now, window));
        }
        Ok(())
    }

    fn finish(self) -> (String, TcpSeen) {
        let most = |readings: &Vec<(f64, u64)>| readings.last().map_or(0, |(_, bytes)| *bytes);
        let received = self.received.into_values().max_by_key(most).unwrap_or_default();
        let resent = self.resent.values().fold([0, 0], |sum, one| [sum[0] + one[0], sum[1] + one[1]]);
        (self.watch.flow, TcpSeen { received, cwnd: self.cwnd, resent })
    }
}

/// What to watch of the network.
#[derive(Debug)]
pub struct NetworkWatch {
    /// UEs: name, namespace, and interfaces with the name of their access.
    pub ues: Vec<(String, Space, Vec<(String, String)>)>,
    /// Access links by name.
    pub links: BTreeMap<String, LinkControl>,
}

/// What was seen of the network.
#[derive(Debug, Default)]
pub struct NetworkSeen {
    /// IP bytes sent (up) and received (down) on an access since the start, at times; by UE and access.
    pub accesses: BTreeMap<(String, String), Vec<(f64, [u64; 2])>>,
    /// Bytes in the queues of a link, up and down, at times.
    pub queues: BTreeMap<String, Vec<(f64, [u64; 2])>>,
    /// Counters of a link at the end, up and down.
    pub links: BTreeMap<String, [LinkCounters; 2]>,
}

/// Those counters of one direction of a link that metrics are made of.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub struct LinkCounters {
    /// Bytes that arrived at the far end.
    pub bytes_out: u64,
    /// Packets the queue had no room for.
    pub queue_drops: u64,
    /// Packets the loss model took.
    pub random_drops: u64,
    /// Packets lost because the link was or went down.
    pub down_drops: u64,
    /// Packets a black hole swallowed.
    pub black_hole_drops: u64,
    /// Bytes waiting.
    pub queue_bytes: u64,
}

impl From<LinkStats> for LinkCounters {
    fn from(s: LinkStats) -> Self {
        Self {
            bytes_out: s.bytes_out,
            queue_drops: s.queue_drops,
            random_drops: s.random_drops,
            down_drops: s.down_drops,
            black_hole_drops: s.black_hole_drops,
            queue_bytes: s.queue_bytes,
        }
    }
}

/// Watches interfaces and links until asked to end.
///
/// # Errors
/// A link does not answer any more; /proc cannot be read.
pub fn network(mut watch: NetworkWatch, start: Instant, period: Duration, end: &Stop) -> Result<NetworkSeen> {
    let mut seen = NetworkSeen::default();
    let first: Vec<_> = watch.ues.iter().map(|(_, space, _)| interfaces(space)).collect::<Result<_>>()?;
    let mut next = start;
    loop {
        let over = end.sleep_until(next);
        for ((ue, space, names), first) in watch.ues.iter().zip(&first) {
            let now = start.elapsed().as_secs_f64();
            let counted = interfaces(space)?;
            for (access, interface) in names {
                let since = |i: usize| {
                    let of = |all: &BTreeMap<String, [u64; 2]>| all.get(interface).map_or(0, |c| c[i]);
                    of(&counted).saturating_sub(of(first))
                };
                let readings = seen.accesses.entry((ue.clone(), access.clone())).or_default();
                readings.push((now, [since(0), since(1)]));
            }
        }
        for (name, control) in &mut watch.links {
            let now = start.elapsed().as_secs_f64();
            let both = link_counters(control)?;
            let queues = seen.queues.entry(name.clone()).or_default();
            queues.push((now, both.map(|c| c.queue_bytes)));
            seen.links.insert(name.clone(), both);
        }
        if over {
            return Ok(seen);
        }
        next = (next + period).max(Instant::now());
    }
}

/// Up and down.
fn link_counters(control: &mut LinkControl) -> Result<[LinkCounters; 2]> {
    let stats = control.stats()?;
    let direction = |key: &str| -> Result<LinkCounters> {
        let value = stats.get(key).cloned().unwrap_or_default();
        serde_json::from_value(value).with_context(|| format!("{key} of a link's counters"))
    };
    Ok([direction("a_to_b")?, direction("b_to_a")?])
}

/// IP bytes sent and received by each interface.
fn interfaces(space: &Space) -> Result<BTreeMap<String, [u64; 2]>> {
    let text =
        space.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev").context("/proc/net/dev"))?;
    Ok(parse_interfaces(&text))
}

fn parse_interfaces(text: &str) -> BTreeMap<String, [u64; 2]> {
    let mut all = BTreeMap::new();
    for line in text.lines().skip(2) {
        let Some((name, counters)) = line.split_once(':') else { continue };
        let counters: Vec<u64> = counters.split_whitespace().filter_map(|c| c.parse().ok()).collect();
        // Received bytes and packets come first, sent ones eight columns later.
        let ip = |at: usize| Some(counters.get(at)?.saturating_sub(counters.get(at + 1)? * ETHERNET_BYTES));
        if let (Some(received), Some(sent)) = (ip(0), ip(8)) {
            all.insert(name.trim().to_owned(), [sent, received]);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_counters_are_of_ip_bytes() {
        let text = "Inter-|   Receive\n face |bytes packets errs drop fifo frame compressed multicast|bytes\n  \
                    wifi: 1140 10 0 0 0 0 0 0 228 2 0 0 0 0 0 0\n    lo:0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
        let all = parse_interfaces(text);
        assert_eq!(all["wifi"], [200, 1000]);
        assert_eq!(all["lo"], [0, 0]);
    }
}
