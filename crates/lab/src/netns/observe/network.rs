//! Bytes on access interfaces, queues and counters of links.

use super::super::space::Space;
use super::super::stop::Stop;
use super::super::topology::LinkControl;
use anabranch_core::net::LinkStats;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// An Ethernet header, which interfaces count and the metrics do not.
const ETHERNET_BYTES: u64 = 14;

/// Bytes at times: two directions of a thing.
pub type Sampled = Vec<(f64, [u64; 2])>;
/// An interface, and the access it is.
pub type Interfaces = Vec<(String, String)>;

/// What to watch of the network.
#[derive(Debug)]
pub struct NetworkWatch {
    /// UEs: name, namespace, and interfaces with the name of their access.
    pub ues: Vec<(String, Space, Interfaces)>,
    /// Access links by name.
    pub links: BTreeMap<String, LinkControl>,
}

/// What was seen of the network.
#[derive(Debug, Default)]
pub struct NetworkSeen {
    /// IP bytes sent (up) and received (down) on an access since the start, at times; by UE and access.
    pub accesses: BTreeMap<(String, String), Sampled>,
    /// Bytes in the queues of a link, up and down, at times.
    pub queues: BTreeMap<String, Sampled>,
    /// Counters of a link at the end, up and down.
    pub links: BTreeMap<String, [LinkCounters; 2]>,
    /// How much later than the model says packets left a link, 99th percentile, microseconds.
    pub late_p99_us: BTreeMap<String, f64>,
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
pub fn watch(mut watch: NetworkWatch, start: Instant, period: Duration, end: &Stop) -> Result<NetworkSeen> {
    let mut seen = NetworkSeen::default();
    let first: Vec<_> = watch.ues.iter().map(|(_, space, _)| interfaces(space)).collect::<Result<_>>()?;
    let mut next = start;
    loop {
        let over = end.sleep_until(next);
        for ((ue, space, names), first) in watch.ues.iter().zip(&first) {
            let now = start.elapsed().as_secs_f64();
            let counted = interfaces(space)?;
            for (access, interface) in names {
                let of = |all: &BTreeMap<String, Interface>| all.get(interface).copied().unwrap_or_default();
                let (a, b) = (of(first), of(&counted));
                let up = b.sent_bytes.saturating_sub(a.sent_bytes);
                let down = b.received_bytes.saturating_sub(a.received_bytes);
                seen.accesses.entry((ue.clone(), access.clone())).or_default().push((now, [up, down]));
            }
        }
        for (name, control) in &mut watch.links {
            let now = start.elapsed().as_secs_f64();
            let stats = control.stats()?;
            let both = link_counters(&stats)?;
            let queues = seen.queues.entry(name.clone()).or_default();
            queues.push((now, both.map(|c| c.queue_bytes)));
            seen.links.insert(name.clone(), both);
            let late = stats.pointer("/late_us/p99").and_then(serde_json::Value::as_f64);
            seen.late_p99_us.insert(name.clone(), late.context("late_us of a link's counters")?);
        }
        if over {
            return Ok(seen);
        }
        next = (next + period).max(Instant::now());
    }
}

/// Up and down.
fn link_counters(stats: &serde_json::Value) -> Result<[LinkCounters; 2]> {
    let direction = |key: &str| -> Result<LinkCounters> {
        let value = stats.get(key).cloned().unwrap_or_default();
        serde_json::from_value(value).with_context(|| format!("{key} of a link's counters"))
    };
    Ok([direction("a_to_b")?, direction("b_to_a")?])
}

/// What an interface has sent and received: IP, without Ethernet headers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Interface {
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
}

/// The counters of the interfaces of a namespace.
///
/// # Errors
/// /proc cannot be read.
pub fn interfaces(space: &Space) -> Result<BTreeMap<String, Interface>> {
    let text =
        space.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev").context("/proc/net/dev"))?;
    Ok(parse_interfaces(&text))
}

fn parse_interfaces(text: &str) -> BTreeMap<String, Interface> {
    let mut all = BTreeMap::new();
    for line in text.lines().skip(2) {
        let Some((name, counters)) = line.split_once(':') else { continue };
        let counters: Vec<u64> = counters.split_whitespace().filter_map(|c| c.parse().ok()).collect();
        // Received bytes and packets come first, sent ones eight columns later.
        let &[received, received_packets, _, _, _, _, _, _, sent, sent_packets, ..] = &counters[..] else {
            continue;
        };
        let ip = |bytes: u64, packets: u64| bytes.saturating_sub(packets * ETHERNET_BYTES);
        let one =
            Interface { sent_bytes: ip(sent, sent_packets), received_bytes: ip(received, received_packets) };
        all.insert(name.trim().to_owned(), one);
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
        assert_eq!(all["wifi"], Interface { sent_bytes: 200, received_bytes: 1000 });
        assert_eq!(all["lo"], Interface::default());
    }
}
