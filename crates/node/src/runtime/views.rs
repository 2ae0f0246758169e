//! Conversion of the state machines' state into its REST representation.

use super::{api, why};
use anabranch_atsss::drops::DropCounters;
use anabranch_atsss::session::{Addresses, PathLoad, PathView, Security, SessionEvent, Traffic};
use anabranch_element::ioam::IoamStats;
use anabranch_engine::udp::SocketCounters;
use anabranch_engine::worker::WorkerCounters;
use anabranch_steer::Exclusion;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// State of a path; `trouble` is the problem of its interface, if any.
pub fn path(ue: &str, view: &PathView, loads: &[PathLoad], trouble: Option<&str>) -> api::Path {
    let milliseconds = |us: u32| (us > 0).then(|| f64::from(us) / 1000.0);
    let percent = |ppm: u32| f64::from(ppm) / 10_000.0;
    let why = match (view.up, trouble) {
        (true, _) => None,
        (false, Some(trouble)) => Some(trouble.to_owned()),
        (false, None) => Some(view.down.unwrap_or("not used yet").to_owned()),
    };
    api::Path {
        ue: ue.to_owned(),
        id: view.path,
        access: view.access.clone(),
        up: view.up,
        why,
        endpoint: view.endpoint.map(|endpoint| canonical(endpoint).to_string()),
        security: security(view.security).to_owned(),
        rtt_ms: milliseconds(view.rtt_us),
        rtt_min_ms: milliseconds(view.rtt_min_us),
        loss_tx_percent: percent(view.loss_tx_ppm),
        loss_rx_percent: percent(view.loss_rx_ppm),
        tx_packets: view.tx_packets,
        tx_bytes: view.tx_bytes,
        rx_packets: view.rx_packets,
        rx_bytes: view.rx_bytes,
        mtu_bytes: view.mtu_bytes,
        tx_fragments: view.fragments.tx_pieces,
        rx_fragments: view.fragments.rx_pieces,
        rx_incomplete: view.fragments.rx_incomplete,
        load: loads.iter().find(|load| load.path == view.path).and_then(load),
    }
}

/// Load estimate of a path, once a probe has been answered.
fn load(known: &PathLoad) -> Option<api::PathLoad> {
    let PathLoad { load, steady_loss_percent, lasting_loss_rx, .. } = *known;
    load.base_us?;
    Some(api::PathLoad {
        queue_ms: f64::from(load.queue_us) / 1000.0,
        drops_at_ms: (load.drop_us != u32::MAX).then(|| f64::from(load.drop_us) / 1000.0),
        capacity_bps: (load.capacity_bps > 0).then_some(load.capacity_bps),
        estimate_bps: (load.estimate_bps > 0).then_some(load.estimate_bps),
        random_loss_percent: f64::from(load.wild_ppm) / 10_000.0,
        steady_loss_percent,
        lasting_loss_rx_percent: f64::from(lasting_loss_rx) / 100.0,
    })
}

/// State of a session, without its paths.
pub fn session(
    ue: &str,
    key: String,
    addresses: &Addresses,
    connected: bool,
    traffic: Traffic,
) -> api::Session {
    api::Session {
        ue: ue.to_owned(),
        public_key: key,
        addresses: addresses.iter().map(|a| a.to_string()).collect(),
        connected,
        tx_packets: traffic.tx_packets,
        tx_bytes: traffic.tx_bytes,
        rx_packets: traffic.rx_packets,
        rx_bytes: traffic.rx_bytes,
        paths: Vec::new(),
        uses: Vec::new(),
        coded: None,
    }
}

/// Counters of one worker; `accesses` provides the names of its sockets.
pub fn worker<'a>(counters: &WorkerCounters, accesses: impl Iterator<Item = &'a str>) -> api::WorkerStatus {
    let accesses = accesses.zip(&counters.sockets).map(|(name, c)| (name.to_owned(), socket(*c))).collect();
    api::WorkerStatus {
        accesses,
        device_rx_packets: counters.device.rx_packets,
        device_rx_frames: counters.device.rx_frames,
        device_tx_packets: counters.device.tx_packets,
        device_tx_frames: counters.device.tx_frames,
        device_errors: counters.device.errors,
        handed_over: counters.handed_over,
        handover_full: counters.handover_full,
        events_lost: counters.events_lost,
        key_conflicts: 0,
        fast_lanes: counters.fast.lanes,
        fast_flows: counters.fast.flows,
        fast_taken_back: counters.fast.taken_back,
        fast_tx_datagrams: counters.fast.traffic.tx_packets,
        fast_rx_datagrams: counters.fast.traffic.rx_packets,
        fast_failed: counters.fast.failed,
    }
}

/// Adds the drop counters by reason to `sum`.
pub fn add_drops(sum: &mut BTreeMap<String, u64>, drops: &DropCounters) {
    for (reason, count) in drops.iter().filter(|(_, count)| *count > 0) {
        *sum.entry(reason.name().to_owned()).or_default() += count;
    }
}

/// Counters of traces; empty if this is not an IOAM node.
pub fn ioam(is_node: bool, stats: IoamStats) -> BTreeMap<String, u64> {
    stats.iter().filter(|_| is_node).map(|(what, n)| (what.to_owned(), n)).collect()
}

/// An event without id and time, which the log sets.
pub fn event(kind: &str, ue: Option<&str>, message: String) -> api::Event {
    api::Event {
        id: 0,
        time_unix_ms: 0,
        kind: kind.to_owned(),
        ue: ue.map(str::to_owned),
        access: None,
        rule: None,
        message,
    }
}

/// The address in its usual form: dual-stack sockets report IPv4 addresses as IPv4-mapped ones.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The event record of a session event; `None` for events of internal interest only. `access` returns the
/// name of a path id.
pub fn session_event(ue: &str, event: SessionEvent, access: impl Fn(u8) -> String) -> Option<api::Event> {
    let about = |kind: &str, path: u8, message: String| api::Event {
        access: Some(access(path)),
        ..self::event(kind, Some(ue), message)
    };
    Some(match event {
        SessionEvent::PathUp { path, rtt_us } => {
            let rtt = match rtt_us {
                // The UE may report the path as up before the RTT has been measured.
                0 => "RTT not known yet".to_owned(),
                us => format!("RTT {:.1} ms", f64::from(us) / 1000.0),
            };
            about("path-up", path, format!("{} is up, {rtt}", access(path)))
        }
        SessionEvent::PathDown { path, reason } => {
            about("path-down", path, format!("{} is down: {}", access(path), reason.as_str()))
        }
        SessionEvent::AccessRefused { path, here } => {
            let (here, there) = match here {
                Security::Plain => ("plain", "secure"),
                Security::Secure => ("secure", "plain"),
            };
            let name = access(path);
            let message = format!(
                "{name} carries no data: its security is {here} here and {there} at the other end; set the same at both"
            );
            about("access-refused", path, message)
        }
        SessionEvent::ClosedDestination(to) => {
            let message = format!(
                "a packet for {to} was dropped: it is closed to UEs; [n6] open lists permitted prefixes, ue_to_ue permits UEs"
            );
            self::event("closed-destination", Some(ue), message)
        }
        SessionEvent::Moved { rule, from, to, why } => {
            let message = match (from, why) {
                (Some(from), Some(Exclusion::Standby)) => {
                    format!("rule {rule} moved from {} back to {}", access(from), access(to))
                }
                (Some(from), Some(why)) => {
                    let (from, why) = (access(from), why::exclusion(&why, &access));
                    format!("rule {rule} moved from {from} to {}: {from} {why}", access(to))
                }
                (Some(from), None) => {
                    format!("rule {rule} moved from {} to {}: its turn", access(from), access(to))
                }
                (None, _) => format!("rule {rule} starts on {}", access(to)),
            };
            api::Event { rule: Some(rule), ..about("moved", to, message) }
        }
        SessionEvent::Rule { rule, event } => why::rule_event(ue, rule, &event, &access),
        SessionEvent::Flapping { pause } => {
            let ms = pause.as_millis();
            self::event("flapping", Some(ue), format!("paths flap: no direct updates for {ms} ms"))
        }
        SessionEvent::Endpoint { path, address } => {
            about("endpoint", path, format!("{} is reached at {}", access(path), canonical(address)))
        }
        SessionEvent::Closed { reason } => {
            self::event("session-down", Some(ue), format!("closed by the peer (reason {reason})"))
        }
        SessionEvent::Rekeyed { .. } => self::event("rekeyed", Some(ue), "new keys in use".to_owned()),
        SessionEvent::LastingLoss { .. }
        | SessionEvent::Overdue { .. }
        | SessionEvent::OwnerWanted(_)
        | SessionEvent::Hint { .. }
        | SessionEvent::Config(_) => return None,
    })
}

fn security(security: Security) -> &'static str {
    match security {
        Security::Secure => "secure",
        Security::Plain => "plain",
    }
}

/// Counters of a socket.
pub fn socket(c: SocketCounters) -> api::Counters {
    api::Counters {
        rx_datagrams: c.rx_datagrams,
        rx_bytes: c.rx_bytes,
        tx_datagrams: c.tx_datagrams,
        tx_bytes: c.tx_bytes,
        tx_batches: c.tx_batches,
        tx_full: c.tx_full,
        tx_too_big: c.tx_too_big,
        tx_errors: c.tx_errors,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_mapped_address_is_shown_as_ipv4() {
        let ue = "tv";
        for (address, shown) in [
            ("[::ffff:10.1.0.2]:4500", "10.1.0.2:4500"),
            ("10.1.0.2:4500", "10.1.0.2:4500"),
            ("[fd02::2]:4500", "[fd02::2]:4500"),
        ] {
            let address = address.parse().unwrap();
            let moved = SessionEvent::Endpoint { path: 0, address };
            let told = session_event(ue, moved, |_| "a".into()).unwrap();
            assert_eq!(told.message, format!("a is reached at {shown}"));
        }
    }
}
