//! Converts observations to the metrics and series of [`crate::metrics`].

use super::run::Observations;
use super::world::World;
use crate::backend::{Outcome, Series};
use crate::measure::{self, Arrival, Times, increments, rate_mbps};
use crate::scenario::Case;
use crate::scenario::model::{Direction, Flow, Traffic};
use crate::sim::host::{App, AppId, Host};
use crate::sim::network::NodeId;
use crate::sim::tcp::{TcpStats, TelemetryStats};
use crate::sim::tcp_app::TcpApp;
use crate::sim::udp_app::{MAX_ARRIVALS, UdpApp};
use anabranch_element::time::{Duration, Instant};
use anyhow::{Context, Result, bail, ensure};

/// Adds all metrics and series of the run to `out`.
///
/// # Errors
/// A flow has no application, which is a fault of this program.
pub fn collect(world: &mut World, case: &Case, seen: Observations, out: &mut Outcome) -> Result<()> {
    let origin = world.origin;
    // Except for packets, only events before the end count.
    for (name, flow) in &case.flows {
        let node = world.flows.get(name).context("a flow")?;
        let times = times(case, flow);
        // The ends are read one after the other, since both may be on hosts of one network.
        let mut ends = [node.ue, node.server];
        if receives_at_server(&flow.traffic) {
            ends.reverse();
        }
        let [receiver, sender] = ends;
        let sender_stats = match app(world, sender)? {
            App::Tcp(tcp) => Some(tcp.stats()),
            App::Udp(_) => None,
        };
        if let App::Tcp(tcp) = app(world, receiver)? {
            self::tcp(out, name, &flow.traffic, tcp, &times, origin);
            let duplicates = tcp.receive_disorder().1;
            if let Some(stats) = sender_stats {
                self::sender(out, name, &stats, duplicates);
            }
        }
        if let Some(choice) = world.choices.get(name) {
            out.metrics.insert(format!("flow.{name}.paths"), choice.paths.len() as f64);
            if let Some(window) = choice.window {
                out.metrics.insert(format!("flow.{name}.initial_window_segments"), f64::from(window));
            }
        }
        if let Some(points) = seen.senders.get(name) {
            let windows = points.iter().map(|(at, window, _)| (*at, *window)).collect();
            let triples = points.iter().map(|(at, _, triples)| (*at, *triples)).collect();
            out.series.insert(format!("flow.{name}.cwnd_bytes"), Series { points: windows });
            out.series.insert(format!("flow.{name}.triple_duplicates"), Series { points: triples });
        }
        if flow.telemetry.is_some() {
            let mut ends = [TelemetryStats::default(); 2];
            for (end, place) in ends.iter_mut().zip([receiver, sender]) {
                if let App::Tcp(tcp) = app(world, place)? {
                    *end = tcp.telemetry().map(|(_, stats)| stats).unwrap_or_default();
                }
            }
            telemetry(out, name, &ends, &seen);
        }
    }
    paths(case, &seen, out);
    links(&seen, out);
    for (name, cell) in seen.cells {
        cell.collect(case, &name, case.duration.as_secs_f64(), out);
    }
    for (name, node) in &seen.lwips {
        node.collect(name, out);
    }
    out.events.extend(seen.events);
    packets(world, case, out)
}

/// Maximum time to wait for a full queue to drain at the end, ms.
const MOST_QUEUE_MS: f64 = 60_000.0;
/// Interval at which the arrival of all packets is checked.
const STEP: Duration = Duration::from_millis(10);

/// Metrics of UDP flows. As in namespaces, packets in transit at the end are awaited and are not lost.
fn packets(world: &mut World, case: &Case, out: &mut Outcome) -> Result<()> {
    let (origin, mut flows) = (world.origin, Vec::new());
    for (name, flow) in &case.flows {
        let payload_bytes = match &flow.traffic {
            Traffic::Cbr { payload_bytes, .. }
            | Traffic::OnOff { payload_bytes, .. }
            | Traffic::Ping { payload_bytes, .. } => u64::from(*payload_bytes),
            Traffic::BulkTcp { .. } | Traffic::RequestResponse { .. } => continue,
        };
        let node = world.flows.get(name).context("a flow")?;
        // A ping client has both roles: it sends and receives the replies.
        let [sender, receiver] = match &flow.traffic {
            Traffic::Ping { .. } => [node.ue, node.ue],
            of if receives_at_server(of) => [node.ue, node.server],
            _ => [node.server, node.ue],
        };
        flows.push((name, flow, payload_bytes, sender, receiver));
    }
    let until = world.net.now() + case.under_way(MOST_QUEUE_MS);
    while world.net.now() < until {
        let mut under_way = false;
        for (_, _, _, sender, receiver) in &flows {
            under_way |= udp(world, *sender)?.sent() > udp(world, *receiver)?.arrivals().len() as u64;
        }
        if !under_way {
            break;
        }
        let next = world.net.now() + STEP;
        world.net.run_until(next)?;
    }
    for (name, flow, payload_bytes, sender, receiver) in flows {
        let sent = udp(world, sender)?.sent();
        let sink = udp(world, receiver)?;
        ensure!(
            sink.unkept() == 0,
            "flow {name}: more than {MAX_ARRIVALS} packets: make the run shorter, or its rate lower"
        );
        let arrivals = arrivals(sink, origin);
        measure::packets(out, name, sent, payload_bytes, &arrivals, &times(case, flow));
        if let Traffic::Ping { .. } = flow.traffic {
            out.metrics.insert(format!("flow.{name}.responses"), arrivals.len() as f64);
        }
    }
    Ok(())
}

fn udp(world: &mut World, place: (NodeId, AppId)) -> Result<&UdpApp> {
    match app(world, place)? {
        App::Udp(udp) => Ok(udp),
        App::Tcp(_) => bail!("an application is of another protocol"),
    }
}

fn app(world: &mut World, (host, app): (NodeId, AppId)) -> Result<&App> {
    world.net.get_mut::<Host>(host).and_then(|host| host.app(app)).context("an application")
}

/// Whether the metrics of the flow are measured at the server.
fn receives_at_server(traffic: &Traffic) -> bool {
    match traffic {
        Traffic::Cbr { direction, .. }
        | Traffic::OnOff { direction, .. }
        | Traffic::BulkTcp { direction, .. } => *direction == Direction::Up,
        Traffic::RequestResponse { .. } | Traffic::Ping { .. } => false,
    }
}

fn times(case: &Case, flow: &Flow) -> Times {
    Times {
        start_s: flow.start.as_secs_f64(),
        stop_s: flow.stop.min(case.duration).as_secs_f64(),
        window_from_s: case.measure_from.as_secs_f64(),
        end_s: case.duration.as_secs_f64(),
        sample_s: case.sample.as_secs_f64(),
    }
}

/// The arrivals at a UDP application, with times relative to the start of the run.
fn arrivals(udp: &UdpApp, origin: Instant) -> Vec<Arrival> {
    let origin_s = origin.as_secs_f64();
    let shifted =
        |a: &Arrival| Arrival { sent_s: a.sent_s - origin_s, arrived_s: a.arrived_s - origin_s, ..*a };
    udp.arrivals().iter().map(shifted).collect()
}

fn tcp(out: &mut Outcome, name: &str, traffic: &Traffic, tcp: &TcpApp, times: &Times, origin: Instant) {
    let seconds = |at: &Instant| at.saturating_since(origin).as_secs_f64();
    let deliveries = tcp.deliveries().iter().map(|(at, n)| (seconds(at), *n));
    let last = deliveries.clone().next_back().map(|(at, _)| at);
    let mut put = |what: &str, value: f64| out.metrics.insert(format!("flow.{name}.{what}"), value);
    put("intact", f64::from(u8::from(tcp.is_intact())));
    let mut times = *times;
    match traffic {
        Traffic::BulkTcp { bytes: Some(bytes), .. } => {
            let whole = tcp.received() == *bytes && tcp.is_complete();
            put("completed", f64::from(u8::from(whole)));
            if let Some(last) = last.filter(|_| whole) {
                put("completion_s", last - times.start_s);
                // After its last byte a transfer is complete rather than idle.
                times.stop_s = times.stop_s.min(last);
            }
        }
        Traffic::RequestResponse { .. } => {
            put("responses", tcp.answers().len() as f64);
            let took: Vec<(f64, f64)> = tcp
                .answers()
                .iter()
                .map(|(at, took): &(Instant, _)| (seconds(at), took.as_secs_f64() * 1e3))
                .collect();
            measure::delay_metrics(out, name, "response", &took, &times);
        }
        _ => {}
    }
    measure::deliveries(out, name, deliveries, &times);
}

/// Counters of the sender of a TCP flow; `duplicates` are the segments that the receiver already had.
fn sender(out: &mut Outcome, name: &str, stats: &TcpStats, duplicates: u64) {
    let mut put = |what: &str, value: f64| out.metrics.insert(format!("flow.{name}.{what}"), value);
    let cuts = (stats.recoveries + stats.timeouts) as f64;
    put("retransmissions", stats.retransmissions() as f64);
    put("spurious_retransmissions", duplicates as f64);
    put("timeouts", stats.timeouts as f64);
    put("duplicate_acks", stats.duplicate_acks as f64);
    put("triple_duplicates", stats.triple_duplicates as f64);
    put("fast_retransmits", stats.recoveries as f64);
    put("undos", stats.undos as f64);
    if stats.acked_bytes > 0 {
        put("cuts_per_mb", cuts * 1e6 / stats.acked_bytes as f64);
    }
}

/// Cost of a flow's telemetry, and the reports received by its sender.
fn telemetry(out: &mut Outcome, name: &str, [receiver, sender]: &[TelemetryStats; 2], seen: &Observations) {
    let mut put = |what: &str, value: f64| out.metrics.insert(format!("flow.{name}.{what}"), value);
    put("traces", receiver.traces_in as f64);
    put("trace_nodes", receiver.trace_nodes as f64);
    put("reports", sender.reports_in as f64);
    if sender.reports_in > 0 {
        put("report_age_ms", sender.reports_age.as_secs_f64() * 1e3 / sender.reports_in as f64);
    }
    let bytes = receiver.telemetry_bytes + sender.telemetry_bytes;
    put(
        "telemetry_percent",
        bytes as f64 * 100.0 / ((receiver.sent_bytes + sender.sent_bytes) as f64).max(1.0),
    );
    let told = seen.path_reports.get(name).map_or(&[][..], Vec::as_slice);
    let depth = told.iter().filter_map(|t| Some((t.at_s, t.depth_bytes? as f64))).collect();
    let losses = told.windows(2).map(|w| (w[1].at_s, f64::from(w[1].losses.wrapping_sub(w[0].losses))));
    let mut series = |what: &str, points| out.series.insert(format!("flow.{name}.{what}"), Series { points });
    series("told_queue_bytes", depth);
    series("told_losses", losses.collect());
    let windows = seen.senders.get(name).map_or(&[][..], Vec::as_slice);
    series("cwnd_change_bytes", windows.windows(2).map(|w| (w[1].0, w[1].1 - w[0].1)).collect());
}

fn paths(case: &Case, seen: &Observations, out: &mut Outcome) {
    let (from, end) = (case.measure_from.as_secs_f64(), case.duration.as_secs_f64());
    let sample_s = case.sample.as_secs_f64();
    for (ue, of) in &case.ues {
        let mut window = vec![[0u64; 2]; of.accesses.len()];
        for (path, access) in of.accesses.iter().enumerate() {
            let samples = seen.paths.get(&(ue.clone(), path)).map_or(&[][..], Vec::as_slice);
            let name = |what: &str| format!("ue.{ue}.path.{}.{what}", access.name);
            let last = samples.last();
            out.metrics.insert(name("up_bytes"), last.map_or(0.0, |s| s.up_bytes as f64));
            out.metrics.insert(name("down_bytes"), last.map_or(0.0, |s| s.down_bytes as f64));
            let failed = seen.failures.get(&(ue.clone(), path)).copied().unwrap_or_default();
            out.metrics.insert(name("failures"), failed.into_iter().max().unwrap_or(0) as f64);
            let first = samples.iter().find(|s| s.at_s >= from);
            if let (Some(first), Some(last)) = (first, last) {
                window[path] = [last.up_bytes - first.up_bytes, last.down_bytes - first.down_bytes];
            }
            let rtts: Vec<f64> =
                samples.iter().filter(|s| s.at_s >= from && s.rtt_ms > 0.0).map(|s| s.rtt_ms).collect();
            if !rtts.is_empty() {
                out.metrics.insert(name("rtt_ms"), rtts.iter().sum::<f64>() / rtts.len() as f64);
            }
            // Bytes between two readings belong to the interval before the second one.
            let middle = |s: f64| (s - sample_s / 2.0).max(0.0);
            let up: Vec<(f64, u64)> = samples.iter().map(|s| (middle(s.at_s), s.up_bytes)).collect();
            let down: Vec<(f64, u64)> = samples.iter().map(|s| (middle(s.at_s), s.down_bytes)).collect();
            out.series.insert(name("up_mbps"), rate_mbps(increments(&up), end, sample_s));
            out.series.insert(name("down_mbps"), rate_mbps(increments(&down), end, sample_s));
            let points = samples.iter().map(|s| (s.at_s, s.rtt_ms)).collect();
            out.series.insert(name("rtt_ms"), Series { points });
        }
        for (direction, what) in ["up_share_percent", "down_share_percent"].into_iter().enumerate() {
            let sum: u64 = window.iter().map(|w| w[direction]).sum();
            for (access, bytes) in of.accesses.iter().zip(&window) {
                let share = if sum == 0 { 0.0 } else { bytes[direction] as f64 * 100.0 / sum as f64 };
                out.metrics.insert(format!("ue.{ue}.path.{}.{what}", access.name), share);
            }
        }
    }
}

fn links(seen: &Observations, out: &mut Outcome) {
    for (link, stats) in &seen.links {
        for (direction, stats) in ["up", "down"].into_iter().zip(stats) {
            let mut put = |what: &str, value: u64| {
                out.metrics.insert(format!("link.{link}.{direction}.{what}"), value as f64);
            };
            put("carried_bytes", stats.bytes_out);
            put("queue_drops", stats.queue_drops);
            put("random_losses", stats.random_drops);
            put("down_losses", stats.down_drops + stats.black_hole_drops);
        }
    }
    for (link, samples) in &seen.queues {
        for (i, direction) in ["up", "down"].into_iter().enumerate() {
            let points = samples.iter().map(|(at, queued)| (*at, queued[i] as f64)).collect();
            out.series.insert(format!("link.{link}.{direction}.queue_bytes"), Series { points });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::VirtualBackend;
    use crate::backend::{Backend, Quiet};
    use std::path::Path;

    #[test]
    fn packets_in_transit_at_the_end_are_not_lost() {
        let text = "title = \"far\"\nduration_s = 5\n[link.sat]\nup = { delay_ms = 2000 }\ndown = { delay_ms = 2000 }\n\
                    [ue.u]\naccesses = [{ name = \"sat\", link = \"sat\" }]\n\
                    [flow.call]\nkind = \"cbr\"\nrate_mbps = 0.1\nvia = \"direct:sat\"\n\
                    [flow.ping]\nkind = \"ping\"\nvia = \"direct:sat\"\n";
        let run = |sets: &[String]| {
            let scenario = crate::scenario::parse(Path::new("far.toml"), text, sets).unwrap();
            VirtualBackend.run(&scenario.cases[0], 1, &Quiet).unwrap()
        };
        let out = run(&[]);
        for flow in ["call", "ping"] {
            assert_eq!(out.metrics[&format!("flow.{flow}.lost_packets")], 0.0, "{flow}");
        }
        assert_eq!((out.metrics["flow.ping.sent_packets"], out.metrics["flow.ping.responses"]), (50.0, 50.0));
        // For other metrics, only events within the run count.
        assert!(out.series["flow.call.delay_ms"].points.iter().all(|(at, _)| *at <= 5.0));
        let delivered = out.metrics["flow.call.delivered_bytes"] / 1200.0;
        assert!((30.0..33.0).contains(&delivered), "3 s of 10.4 packets each: {delivered}");
        let lossy = run(&["link.sat.down.loss={model=\"bernoulli\",percent=100}".to_owned()]);
        assert_eq!(lossy.metrics["flow.call.lost_percent"], 100.0);
    }
}
