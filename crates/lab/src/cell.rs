//! Observations of a cell, in either backend, and the metrics and series computed from them.

use crate::backend::{Outcome, Series};
use crate::claims::percentiles;
use crate::scenario::Case;
use anabranch_element::time::{Duration, nanos};
use anabranch_ran::gnb::{LinkStats, PacketTimes, UeLinkStats};
use std::collections::BTreeMap;

/// Observations of a cell.
#[derive(Debug, Default)]
pub struct CellObservations {
    /// Waiting times of downlink packets.
    pub waits: Waits,
    /// Waiting times of uplink packets; none in namespaces.
    pub up_waits: Waits,
    /// Capacity in bytes of the downlink and uplink slots within the window, each slot for the UE with the largest block; none in
    /// namespaces.
    pub capacity_bytes: Option<[u64; 2]>,
    /// Time and downlink counters.
    pub counters: Vec<(f64, Counters)>,
    /// Time and uplink counters.
    pub uplink: Vec<(f64, Counters)>,
    /// Per UE, in the order of the cell: time and downlink counters; none in namespaces.
    pub ues: Vec<Vec<(f64, UeLinkStats)>>,
    /// Per UE, in the order of the cell: time and SDU bytes in RLC.
    pub rlc_bytes: Vec<Vec<(f64, f64)>>,
    /// Per UE: time, MCS, and bytes of a block of the entire carrier at this MCS; no point during an outage.
    pub radio: Vec<Vec<(f64, u8, u32)>>,
    /// Per slice: time and RBs owed to it.
    pub owed_rbs: Vec<Vec<(f64, f64)>>,
}

/// Waiting times of the delivered packets of one direction, by UE and QoS flow.
#[derive(Debug, Clone, Default)]
pub struct Waits {
    /// Start of the run on the clock of the packets, seconds.
    origin_s: f64,
    /// Averaging window, seconds since the start of the run.
    window_s: (f64, f64),
    /// Indices into `flows`.
    flow_index: BTreeMap<(u32, u8), usize>,
    flows: Vec<FlowWaits>,
    /// Flow of the previous packet, and its index.
    recent: Option<((u32, u8), usize)>,
}

/// Waiting times of one QoS flow of a UE. Packets are stored only as points and sums.
#[derive(Debug, Clone, Default)]
struct FlowWaits {
    /// Delivery time of each packet, seconds, and its waiting times in total, in SDAP and in RLC, milliseconds.
    points: [Vec<(f64, f64)>; 3],
    /// Lower bounds of the waiting times within the window, milliseconds; none in namespaces.
    lower_bounds_ms: Vec<f64>,
    /// Number of packets within the window, and sums of their waiting times in the order of [`MEANS`].
    count: usize,
    sums: [f64; 5],
}

/// Names of the series of waiting times, in the order of [`FlowWaits::points`].
const SERIES: [&str; 3] = ["wait_ms", "sdap_wait_ms", "rlc_wait_ms"];
/// Names of the means, in the order of [`FlowWaits::sums`].
const MEANS: [&str; 5] =
    ["wait_mean_ms", "sdap_wait_mean_ms", "rlc_wait_mean_ms", "reassembly_wait_mean_ms", "total_mean_ms"];

impl Waits {
    /// Without packets. Means cover packets between `from` and `end`, seconds.
    #[must_use]
    pub fn between(from: f64, end: f64) -> Self {
        Self { window_s: (from, end), ..Self::default() }
    }

    /// The same for packet times with an origin `origin_s` before the start of the run.
    #[must_use]
    pub fn since(self, origin_s: f64) -> Self {
        Self { origin_s, ..self }
    }

    /// Adds a delivered packet; times since the start of the run. `lower_bounds_ms` is the lower bound of its waiting time.
    pub fn note(&mut self, packet: &PacketTimes, lower_bounds_ms: Option<Duration>) {
        let at = (packet.delivered.as_secs_f64() - self.origin_s).max(0.0);
        let counts = self.is_within(at);
        let Some(flow) = self.flow((packet.ue, packet.qfi)) else { return };
        let [wait, sdap, rlc] = [packet.queue_wait(), packet.sdap_wait(), packet.rlc_wait()].map(ms);
        for (points, value) in flow.points.iter_mut().zip([wait, sdap, rlc]) {
            points.push((at, value));
        }
        if counts {
            let [reassembly, total] = [packet.reassembly_wait(), packet.total()].map(ms);
            flow.count += 1;
            flow.lower_bounds_ms.extend(lower_bounds_ms.map(ms));
            for (sum, value) in flow.sums.iter_mut().zip([wait, sdap, rlc, reassembly, total]) {
                *sum += value;
            }
        }
    }

    #[inline]
    fn flow(&mut self, key: (u32, u8)) -> Option<&mut FlowWaits> {
        let place = match self.recent {
            Some((recent, place)) if recent == key => place,
            _ => {
                let place = *self.flow_index.entry(key).or_insert(self.flows.len());
                if place == self.flows.len() {
                    self.flows.push(FlowWaits::default());
                }
                self.recent = Some((key, place));
                place
            }
        };
        self.flows.get_mut(place)
    }

    fn is_within(&self, at: f64) -> bool {
        (self.window_s.0..=self.window_s.1).contains(&at)
    }

    /// Mean and upper percentiles of the waiting times of a QoS flow, and their lower bounds; `name` forms the metric names.
    fn collect_few(&mut self, flow: (u32, u8), name: impl Fn(&str) -> String, out: &mut Outcome) {
        let (first, last) = self.window_s;
        let Some(FlowWaits { points: [points, ..], lower_bounds_ms, count, sums }) = self.flow(flow) else {
            return;
        };
        if *count == 0 {
            return;
        }
        let within = points.iter().filter(|(at, _)| (first..=last).contains(at));
        let mut waits: Vec<f64> = within.map(|(_, wait)| *wait).collect();
        let mut put = |what: &str, value: f64| out.metrics.insert(name(what), value);
        let [p95, p99] = percentiles(&mut waits, [0.95, 0.99]);
        put("wait_p95_ms", p95);
        put("wait_p99_ms", p99);
        put("wait_mean_ms", sums[0] / *count as f64);
        put_least(lower_bounds_ms, |what, value| _ = put(what, value));
    }

    /// Metrics and series of a QoS flow; `name` forms their names.
    fn collect(&mut self, flow: (u32, u8), name: impl Fn(&str) -> String, out: &mut Outcome) {
        let FlowWaits { points, mut lower_bounds_ms, count, sums } =
            self.flow(flow).map(std::mem::take).unwrap_or_default();
        if count > 0 {
            let mut waits = Vec::with_capacity(count);
            waits.extend(points[0].iter().filter(|(at, _)| self.is_within(*at)).map(|(_, wait)| *wait));
            let n = count as f64;
            let mut put = |what: &str, value: f64| out.metrics.insert(name(what), value);
            for (limit, what) in WITHIN {
                put(what, waits.iter().filter(|w| **w < limit).count() as f64 * 100.0 / n);
            }
            let [p50, p95, p99] = percentiles(&mut waits, [0.5, 0.95, 0.99]);
            put("wait_p50_ms", p50);
            put("wait_p95_ms", p95);
            put("wait_p99_ms", p99);
            for (what, sum) in MEANS.into_iter().zip(sums) {
                put(what, sum / n);
            }
            put_least(&mut lower_bounds_ms, |what, value| _ = put(what, value));
        }
        for (what, points) in SERIES.into_iter().zip(points) {
            out.series.insert(name(what), Series { points });
        }
    }
}

/// Metrics of the lower bounds of waiting times, if known.
fn put_least(lower_bounds_ms: &mut [f64], mut put: impl FnMut(&str, f64)) {
    if lower_bounds_ms.is_empty() {
        return;
    }
    put("least_wait_mean_ms", lower_bounds_ms.iter().sum::<f64>() / lower_bounds_ms.len() as f64);
    let [p95, p99] = percentiles(lower_bounds_ms, [0.95, 0.99]);
    put("least_wait_p95_ms", p95);
    put("least_wait_p99_ms", p99);
}

/// Milliseconds.
#[inline]
fn ms(wait: Duration) -> f64 {
    nanos(wait) as f64 / 1e6
}

/// The counters of one direction of a cell that metrics use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
pub struct Counters {
    /// RBs for new data and retransmissions.
    pub rbs: u64,
    /// RBs granted for new data.
    pub used_rbs: u64,
    /// RBs of retransmissions.
    pub retx_rbs: u64,
    /// Capacity of the transport blocks, bytes.
    pub block_bytes: u64,
    /// Padding in the transport blocks, bytes.
    pub padding_bytes: u64,
}

impl From<LinkStats> for Counters {
    fn from(s: LinkStats) -> Self {
        Self {
            rbs: s.rbs,
            used_rbs: s.used_rbs,
            retx_rbs: s.retx_rbs,
            block_bytes: s.block_bytes,
            padding_bytes: s.padding_bytes,
        }
    }
}

/// Limits of waiting times, milliseconds, and their form in metric names.
const WITHIN: [(f64, &str); 4] = [
    (1.0, "within_1ms_percent"),
    (2.0, "within_2ms_percent"),
    (4.0, "within_4ms_percent"),
    (50.0, "within_50ms_percent"),
];

/// Metrics of one direction of a cell, between two times.
fn direction(points: &[(f64, Counters)], (from, end): (f64, f64), mut put: impl FnMut(&str, f64)) {
    let first = points.iter().find(|(at, _)| *at >= from);
    let last = points.iter().rfind(|(at, _)| *at <= end + 1e-6);
    let (Some((since, a)), Some((until, b))) = (first, last) else { return };
    // Counters that continued after the end, or were reset, have no difference.
    let rbs = b.rbs.saturating_sub(a.rbs).max(1) as f64;
    let used = (b.used_rbs + b.retx_rbs).saturating_sub(a.used_rbs + a.retx_rbs);
    let bytes = b.block_bytes.saturating_sub(a.block_bytes).max(1) as f64;
    put("rb_percent", used as f64 * 100.0 / rbs);
    put("retx_rb_percent", b.retx_rbs.saturating_sub(a.retx_rbs) as f64 * 100.0 / rbs);
    let useful = |c: &Counters| c.block_bytes.saturating_sub(c.padding_bytes);
    let span = (until - since).max(1e-9);
    put("useful_mbps", useful(b).saturating_sub(useful(a)) as f64 * 8e-6 / span);
    put("padding_percent", b.padding_bytes.saturating_sub(a.padding_bytes) as f64 * 100.0 / bytes);
}

impl CellObservations {
    /// Metrics and series of cell `name`; the run ended at `end` seconds.
    pub fn collect(mut self, case: &Case, name: &str, end: f64, out: &mut Outcome) {
        let from = case.measure_from.as_secs_f64();
        let Some(gnb) = case.gnbs.get(name) else { return };
        for (points, prefix) in [(&self.counters, ""), (&self.uplink, "up_")] {
            direction(points, (from, end), |what, value| {
                out.metrics.insert(format!("gnb.{name}.{prefix}{what}"), value);
            });
        }
        for (what, bytes) in
            ["capacity_mbps", "up_capacity_mbps"].iter().zip(self.capacity_bytes.iter().flatten())
        {
            let mbps = *bytes as f64 * 8e-6 / (end - from).max(1e-9);
            out.metrics.insert(format!("gnb.{name}.{what}"), mbps);
        }
        self.shares(case, name, (from, end), out);
        for (u, (ue, _)) in case.ues_of(name).into_iter().enumerate() {
            if let Some(points) = self.rlc_bytes.get_mut(u) {
                let series = Series { points: std::mem::take(points) };
                out.series.insert(format!("gnb.{name}.ue.{ue}.rlc_bytes"), series);
            }
            if let Some(radio) = self.radio.get(u) {
                let mut put = |what: &str, value: &dyn Fn(u8, u32) -> f64| {
                    let points = radio.iter().map(|(at, mcs, bytes)| (*at, value(*mcs, *bytes))).collect();
                    out.series.insert(format!("gnb.{name}.ue.{ue}.{what}"), Series { points });
                };
                put("mcs", &|mcs, _| f64::from(mcs));
                put("tbs_bytes", &|_, bytes| f64::from(bytes));
            }
            let mut qfis = gnb.qfis();
            // Several rules may select the same flow.
            qfis.sort_unstable();
            qfis.dedup();
            for qfi in qfis {
                let name = |what: &str| format!("gnb.{name}.ue.{ue}.qfi{qfi}.{what}");
                self.waits.collect((u as u32, qfi), name, out);
                self.up_waits.collect_few((u as u32, qfi), |what| name(&format!("up_{what}")), out);
            }
        }
        for (slice, points) in gnb.slices().iter().zip(self.owed_rbs) {
            out.series.insert(format!("gnb.{name}.slice.{}.owed_rbs", slice.name), Series { points });
        }
    }
}

impl CellObservations {
    /// Shares of UEs and slices in the RBs for new data, and the data carried by the blocks of UEs.
    fn shares(&self, case: &Case, name: &str, (from, end): (f64, f64), out: &mut Outcome) {
        let Some(gnb) = case.gnbs.get(name) else { return };
        let slices = gnb.slices();
        let mut of_slices = vec![0.0; slices.len()];
        let mut of_ues = Vec::new();
        for ((ue, _), points) in case.ues_of(name).into_iter().zip(&self.ues) {
            let first = points.iter().find(|(at, _)| *at >= from);
            let last = points.iter().rfind(|(at, _)| *at <= end + 1e-6);
            let (Some((since, a)), Some((until, b))) = (first, last) else { continue };
            let rbs = b.used_rbs.saturating_sub(a.used_rbs) as f64;
            let useful = |c: &UeLinkStats| c.block_bytes.saturating_sub(c.padding_bytes);
            let mbps = useful(b).saturating_sub(useful(a)) as f64 * 8e-6 / (until - since).max(1e-9);
            let slice = gnb.ue.get(ue).and_then(|own| own.slice.as_ref());
            let place = slices.iter().position(|s| slice.is_none_or(|name| s.name == *name));
            if let Some(sum) = place.and_then(|place| of_slices.get_mut(place)) {
                *sum += rbs;
            }
            of_ues.push((ue, rbs, mbps));
        }
        let all = of_ues.iter().map(|(_, rbs, _)| rbs).sum::<f64>();
        if all <= 0.0 {
            return;
        }
        let mut put = |what: String, value: f64| out.metrics.insert(format!("gnb.{name}.{what}"), value);
        for (ue, rbs, mbps) in of_ues {
            put(format!("ue.{ue}.rb_share_percent"), rbs * 100.0 / all);
            put(format!("ue.{ue}.useful_mbps"), mbps);
        }
        for (slice, rbs) in slices.iter().zip(of_slices) {
            put(format!("slice.{}.rb_share_percent", slice.name), rbs * 100.0 / all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_element::time::Instant;
    use anabranch_ran::amc::Direction;

    /// A packet that waited 1 ms in SDAP, 3 ms in RLC and 2 ms at the receiver.
    fn packet(qfi: u8, delivered_ms: u64) -> PacketTimes {
        let at = |before_ms| Instant::from_millis(delivered_ms - before_ms);
        PacketTimes {
            direction: Direction::Downlink,
            ue: 1,
            drb: 1,
            qfi,
            bytes: 100,
            arrived: at(7),
            forwarded: at(6),
            first_pull: at(4),
            last_pull: at(3),
            first_received: at(2),
            delivered: at(0),
        }
    }

    #[test]
    fn all_packets_are_drawn_and_those_of_the_window_counted() {
        let mut waits = Waits::between(1.0, 2.0);
        for (qfi, ms) in [(9, 900), (9, 1000), (5, 1100), (9, 2000), (9, 2001)] {
            waits.note(&packet(qfi, ms), (qfi == 5).then_some(Duration::from_millis(1)));
        }
        let mut out = Outcome::default();
        for qfi in [5, 9, 10] {
            waits.collect((1, qfi), |what| format!("{qfi}.{what}"), &mut out);
        }
        let points = |name: &str| out.series[name].points.clone();
        assert_eq!(points("9.wait_ms"), [(0.9, 4.0), (1.0, 4.0), (2.0, 4.0), (2.001, 4.0)]);
        assert_eq!((points("5.sdap_wait_ms"), points("5.rlc_wait_ms")), (vec![(1.1, 1.0)], vec![(1.1, 3.0)]));
        assert_eq!(points("10.wait_ms"), [], "a flow without packets is drawn empty");
        let metrics = ["wait_p50_ms", "within_4ms_percent", "within_50ms_percent", "reassembly_wait_mean_ms"];
        assert_eq!(metrics.map(|name| out.metrics[&format!("9.{name}")]), [4.0, 0.0, 100.0, 2.0]);
        assert_eq!(out.metrics["9.total_mean_ms"], 7.0);
        assert_eq!(out.metrics["5.least_wait_p95_ms"], 1.0);
        assert!(!out.metrics.contains_key("9.least_wait_mean_ms"));
        assert!(!out.metrics.contains_key("10.wait_p50_ms"));
    }
}
