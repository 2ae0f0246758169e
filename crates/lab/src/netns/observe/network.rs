//! Bytes on access interfaces, queues and counters of links.

use super::super::space::Space;
use super::super::stop::Stop;
use super::super::topology::LinkControl;
use anabranch_link::LinkStats;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Length of an Ethernet header, which interfaces count and metrics do not.
pub const ETHERNET_BYTES: u64 = 14;

/// Bytes over time, in two directions.
pub type Sampled = Vec<(f64, [u64; 2])>;
/// An access of a UE.
#[derive(Debug, Clone)]
pub struct Access {
    /// Name of the access.
    pub name: String,
    /// Interface of the access in the UE's namespace.
    pub interface: String,
    /// Bytes per packet that the interface counts in addition to IP.
    pub header_bytes: u64,
}

/// What to observe.
#[derive(Debug)]
pub struct NetworkWatch {
    /// UEs: name, namespace and accesses.
    pub ues: Vec<(String, Space, Vec<Access>)>,
    /// Access links by name.
    pub links: BTreeMap<String, LinkControl>,
}

/// Observations of the network.
#[derive(Debug, Default)]
pub struct NetworkObservations {
    /// IP bytes sent (up) and received (down) on an access since the start, over time; by UE and access.
    pub accesses: BTreeMap<(String, String), Sampled>,
    /// Bytes in the queues of a link, up and down, over time.
    pub queues: BTreeMap<String, Sampled>,
    /// Counters of a link at the end, up and down.
    pub links: BTreeMap<String, [LinkCounters; 2]>,
    /// 99th percentile of the additional delay of packets of a link compared with the model, microseconds.
    pub late_p99_us: BTreeMap<String, f64>,
}

/// The counters of one direction of a link that metrics use.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub struct LinkCounters {
    /// Bytes delivered at the far end.
    pub bytes_out: u64,
    /// Packets dropped by the full queue.
    pub queue_drops: u64,
    /// Packets dropped by the loss model.
    pub random_drops: u64,
    /// Packets lost because the link was down or went down.
    pub down_drops: u64,
    /// Packets dropped by a black hole.
    pub black_hole_drops: u64,
    /// Queue depth, bytes.
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

/// Observes interfaces and links until the end is requested.
///
/// # Errors
/// A link no longer answers; /proc cannot be read.
pub fn watch(
    mut watch: NetworkWatch,
    start: Instant,
    period: Duration,
    end: &Stop,
) -> Result<NetworkObservations> {
    let mut seen = NetworkObservations::default();
    let first: Vec<_> = watch.ues.iter().map(|(_, space, _)| interfaces(space)).collect::<Result<_>>()?;
    let mut next = start;
    loop {
        let over = end.sleep_until(next);
        for ((ue, space, accesses), first) in watch.ues.iter().zip(&first) {
            let now = start.elapsed().as_secs_f64();
            let counted = interfaces(space)?;
            for access in accesses {
                let [a, b] = [first, &counted].map(|all| ip_bytes(all, access));
                let both = [b[0].saturating_sub(a[0]), b[1].saturating_sub(a[1])];
                seen.accesses.entry((ue.clone(), access.name.clone())).or_default().push((now, both));
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

/// Bytes and packets sent and received according to an interface.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Interface {
    sent: (u64, u64),
    received: (u64, u64),
}

/// IP bytes sent and received over an access.
#[must_use]
pub fn ip_bytes(all: &BTreeMap<String, Interface>, access: &Access) -> [u64; 2] {
    let counted = all.get(&access.interface).copied().unwrap_or_default();
    let ip = |(bytes, packets): (u64, u64)| bytes.saturating_sub(packets * access.header_bytes);
    [ip(counted.sent), ip(counted.received)]
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
        // Received bytes and packets come first; sent ones are eight columns later.
        let &[received, received_packets, _, _, _, _, _, _, sent, sent_packets, ..] = &counters[..] else {
            continue;
        };
        let (sent, received) = ((sent, sent_packets), (received, received_packets));
        all.insert(name.trim().to_owned(), Interface { sent, received });
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
        let access = |header_bytes| Access { name: "w".into(), interface: "wifi".into(), header_bytes };
        assert_eq!(ip_bytes(&all, &access(ETHERNET_BYTES)), [200, 1000]);
        assert_eq!(ip_bytes(&all, &access(0)), [228, 1140]);
        assert_eq!(all["lo"], Interface::default());
    }
}
