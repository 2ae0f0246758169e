//! What a cell was seen to do, in either backend, and the metrics and series of it.

use crate::backend::{Outcome, Series};
use crate::claims::percentiles;
use crate::scenario::Case;
use anabranch_core::ran::gnb::{LinkStats, PacketTimes};

/// What a cell was seen to do.
#[derive(Debug, Default)]
pub struct CellSeen {
    /// Downlink packets that were delivered; times from the beginning of the run.
    pub packets: Vec<PacketTimes>,
    /// Time, and counters of the downlink.
    pub counters: Vec<(f64, Counters)>,
    /// Per UE, in the cell's order: time and SDU bytes in RLC.
    pub rlc_bytes: Vec<Vec<(f64, f64)>>,
    /// Per UE: time, MCS, and bytes of a whole carrier at it; no point in an outage.
    pub radio: Vec<Vec<(f64, u8, u32)>>,
    /// Per slice: time and RBs it is owed.
    pub owed_rbs: Vec<Vec<(f64, f64)>>,
}

/// Those counters of one direction of a cell that metrics are made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
pub struct Counters {
    /// RBs for new data and retransmissions.
    pub rbs: u64,
    /// RBs granted for new data.
    pub used_rbs: u64,
    /// RBs of retransmissions.
    pub retx_rbs: u64,
    /// Bytes that transport blocks had room for.
    pub block_bytes: u64,
    /// Bytes of padding in them.
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

/// Waits counted within these, milliseconds, and how they are written in the names of metrics.
const WITHIN: [(f64, &str); 4] = [
    (1.0, "within_1ms_percent"),
    (2.0, "within_2ms_percent"),
    (4.0, "within_4ms_percent"),
    (50.0, "within_50ms_percent"),
];

impl CellSeen {
    /// Metrics and series of cell `name`; the run ended at `end` seconds.
    pub fn collect(&self, case: &Case, name: &str, end: f64, out: &mut Outcome) {
        let from = case.measure_from.as_secs_f64();
        let Some(gnb) = case.gnbs.get(name) else { return };
        let first = self.counters.iter().find(|(at, _)| *at >= from);
        let last = self.counters.iter().rfind(|(at, _)| *at <= end + 1e-6);
        if let (Some((_, a)), Some((_, b))) = (first, last) {
            // Of counters that went on after the end, or began anew, there is no difference.
            let rbs = b.rbs.saturating_sub(a.rbs).max(1) as f64;
            let used = (b.used_rbs + b.retx_rbs).saturating_sub(a.used_rbs + a.retx_rbs);
            let bytes = b.block_bytes.saturating_sub(a.block_bytes).max(1) as f64;
            let mut put = |what: &str, value: f64| out.metrics.insert(format!("gnb.{name}.{what}"), value);
            put("rb_percent", used as f64 * 100.0 / rbs);
            put("retx_rb_percent", b.retx_rbs.saturating_sub(a.retx_rbs) as f64 * 100.0 / rbs);
            put("padding_percent", b.padding_bytes.saturating_sub(a.padding_bytes) as f64 * 100.0 / bytes);
        }
        for (u, (ue, _)) in case.ues_of(name).into_iter().enumerate() {
            if let Some(points) = self.rlc_bytes.get(u) {
                let series = Series { points: points.clone() };
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
            for qfi in gnb.qfis() {
                let name = |what: &str| format!("gnb.{name}.ue.{ue}.qfi{qfi}.{what}");
                let of_flow = || self.packets.iter().filter(|p| p.ue as usize == u && p.qfi == qfi);
                let most = of_flow().count();
                let [mut waits_ms, mut sdap_ms, mut rlc_ms] = [(); 3].map(|()| vec![(0.0, 0.0); most]);
                let points = waits_ms.iter_mut().zip(&mut sdap_ms).zip(&mut rlc_ms);
                let mut waits = Vec::with_capacity(most);
                let mut sums = [0.0; 5];
                for (((wait_point, sdap_point), rlc_point), p) in points.zip(of_flow()) {
                    let at = p.delivered.as_secs_f64();
                    let [wait, sdap, rlc] =
                        [p.queue_wait(), p.sdap_wait(), p.rlc_wait()].map(|wait| wait.as_secs_f64() * 1e3);
                    (*wait_point, *sdap_point, *rlc_point) = ((at, wait), (at, sdap), (at, rlc));
                    if (from..=end).contains(&at) {
                        waits.push(wait);
                        let [reassembly, total] =
                            [p.reassembly_wait(), p.total()].map(|wait| wait.as_secs_f64() * 1e3);
                        for (sum, value) in sums.iter_mut().zip([wait, sdap, rlc, reassembly, total]) {
                            *sum += value;
                        }
                    }
                }
                for (points, what) in
                    [(waits_ms, "wait_ms"), (sdap_ms, "sdap_wait_ms"), (rlc_ms, "rlc_wait_ms")]
                {
                    out.series.insert(name(what), Series { points });
                }
                if waits.is_empty() {
                    continue;
                }
                let n = waits.len() as f64;
                let [p50, p95, p99] = percentiles(&mut waits, [0.5, 0.95, 0.99]);
                let mut put = |what: &str, value: f64| out.metrics.insert(name(what), value);
                put("wait_p50_ms", p50);
                put("wait_p95_ms", p95);
                put("wait_p99_ms", p99);
                const MEANS: [&str; 5] = [
                    "wait_mean_ms",
                    "sdap_wait_mean_ms",
                    "rlc_wait_mean_ms",
                    "reassembly_wait_mean_ms",
                    "total_mean_ms",
                ];
                for (what, sum) in MEANS.into_iter().zip(sums) {
                    put(what, sum / n);
                }
                for (limit, what) in WITHIN {
                    put(what, waits.iter().filter(|w| **w < limit).count() as f64 * 100.0 / n);
                }
            }
        }
        for (slice, points) in gnb.slices().iter().zip(&self.owed_rbs) {
            let series = Series { points: points.clone() };
            out.series.insert(format!("gnb.{name}.slice.{}.owed_rbs", slice.name), series);
        }
    }
}
