//! Figures of the cells of a matrix, and of groups of them.
//!
//! ```text
//! run ─ [`keep`] (goodput of the bulk over time, the call) ─▶ [`figures`] (each cell with its references; groups)
//!                                                               ├─▶ claims over `matrix.<group>.<figure>.<of>`
//!                                                               └─▶ [`text`], [`tables`], the report's page
//! ```
//!
//! docs/bonding-matrix.md defines the figures, docs/ran-grid.md those of cells of a gNB.

mod capacity;
mod page;
mod text;

pub use page::tables;
pub use text::{text, worst};

use crate::backend::{Outcome, Series};
use crate::claims::{expr::Expr, median, percentile};
use crate::metrics::near;
use crate::scenario::file::{self, BackendName, Claim, Reference};
use crate::scenario::matrix::{ALL, Cell};
use crate::scenario::model::{Action, Case, Matrix};
use std::collections::BTreeMap;

/// A figure of a cell.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    /// Name in metrics.
    pub name: &'static str,
    /// Unit, empty for ratios.
    pub unit: &'static str,
    /// Description.
    pub doc: &'static str,
    /// Whether larger values are better.
    pub rises: bool,
}

const fn figure(name: &'static str, unit: &'static str, rises: bool, doc: &'static str) -> Figure {
    Figure { name, unit, doc, rises }
}

/// All figures of a cell.
pub const FIGURES: [Figure; 24] = [
    figure("goodput_mbps", "Mbit/s", true, "goodput of the bulk in the window of averages"),
    figure("of_sum", "", true, "goodput, of what the rates of all accesses together have room for"),
    figure("of_best", "", true, "goodput, of that of the best access alone through the tunnel"),
    figure("of_direct", "", true, "goodput, of that of the best access alone without the tunnel"),
    figure("of_mptcp", "", true, "goodput, of that of kernel MPTCP over all accesses"),
    figure(
        "window",
        "",
        true,
        "the worst 3 s, beside the best access alone on average and in its own worst 3 s",
    ),
    figure("settle_s", "s", false, "time from the start to 80 % of the final goodput"),
    figure("step_s", "s", false, "the same from a step up of a link's rate; the longest"),
    figure("beside", "", true, "goodput, of that of the cell named by `beside`"),
    figure(
        "call_late_ms",
        "ms",
        false,
        "99th percentile of the call's delay, less that on the better access alone",
    ),
    figure("call_lost_percent", "%", false, "share of the call lost, less that on the better access alone"),
    figure("useful_mbps", "Mbit/s", true, "what the gNBs' blocks carried, padding not counted"),
    figure("useful_of_capacity", "", true, "the same, of what they could carry at most"),
    figure("useful_plain", "", true, "the same, of that of the cell named by `plain`"),
    figure("useful_beside", "", true, "the same, of that of the cell named by `beside`"),
    figure("wait_mean_ms", "ms", false, "mean wait in the gNBs of the QoS flow `qfi`, on average over UEs"),
    figure("wait_p95_ms", "ms", false, "95th percentile of it, on average over UEs"),
    figure("wait_p99_ms", "ms", false, "99th percentile of it, on average over UEs"),
    figure("least_wait_mean_ms", "ms", false, "the least that the same packets could have waited: mean"),
    figure("least_wait_p95_ms", "ms", false, "95th percentile of it"),
    figure("least_wait_p99_ms", "ms", false, "99th percentile of it"),
    figure("wait_beside", "", false, "the mean wait, of that of the cell named by `beside`"),
    figure(
        "worse",
        "",
        false,
        "1 if less than 0.99 of the bytes of `plain` were carried, or the mean wait is above that of `beside`; else 0",
    ),
    figure(
        "share_off_percent",
        "%",
        false,
        "how far a slice's part of the RBs is from its share, the farthest",
    ),
];

/// Statistics over the cells of a group.
const OVER: [&str; 5] = ["median", "min", "max", "count", "sum"];
/// Minimum share of the bytes of `plain` that is not worse.
const CARRIES: f64 = 0.99;

/// Series of a run of a matrix: goodput of the bulk, Mbit/s.
pub const BULK: &str = "bulk_mbps";

/// Reduces the outcome of a run to what the figures need, since there are thousands of runs.
pub fn keep(matrix: &Matrix, case: &Case, outcome: &mut Outcome) {
    let spec = &matrix.spec;
    let mut bulk: Vec<(f64, f64)> = Vec::new();
    for name in case.flows.keys().filter(|name| is_of(name, &spec.bulk)) {
        let Some(series) = outcome.series.get(&format!("flow.{name}.goodput_mbps")) else { continue };
        for (i, point) in series.points.iter().enumerate() {
            match bulk.get_mut(i) {
                Some(sum) => sum.1 += point.1,
                None => bulk.push(*point),
            }
        }
    }
    let mut metrics: BTreeMap<String, f64> = outcome
        .metrics
        .iter()
        .filter(|(name, _)| {
            name.starts_with("ue.") && (name.ends_with("share_percent") || name.ends_with("failures"))
        })
        .map(|(name, value)| (name.clone(), *value))
        .collect();
    metrics.insert("goodput_mbps".into(), mean(&bulk, from_s(spec, case), f64::INFINITY));
    if let Some(call) = &spec.call {
        for what in ["delay_p99_ms", "lost_percent"] {
            let value = outcome.metrics.get(&format!("flow.{call}.{what}"));
            metrics.extend(value.map(|v| (format!("call.{what}"), *v)));
        }
    }
    metrics.extend(of_gnbs(spec, case, &outcome.metrics));
    outcome.metrics = metrics;
    outcome.series = [(BULK.to_owned(), Series { points: bulk })].into();
    outcome.events.clear();
}

/// Figures of a QoS flow's delays that are metrics of its UEs.
const WAITS: [&str; 6] = [
    "wait_mean_ms",
    "wait_p95_ms",
    "wait_p99_ms",
    "least_wait_mean_ms",
    "least_wait_p95_ms",
    "least_wait_p99_ms",
];

/// Figures of the gNBs of a run.
fn of_gnbs(
    spec: &file::Matrix,
    case: &Case,
    metrics: &BTreeMap<String, f64>,
) -> impl Iterator<Item = (String, f64)> {
    // The direction of the bulk.
    let up = case.flows.iter().any(|(name, flow)| is_of(name, &spec.bulk) && flow.is_up());
    let way = if up { "up_" } else { "" };
    let qfi = spec.qfi.map(|qfi| format!(".qfi{qfi}.{way}"));
    let average = |what: &str| {
        let of = |name: &str| qfi.as_ref().is_some_and(|qfi| name.ends_with(&format!("{qfi}{what}")));
        let all: Vec<f64> = metrics
            .iter()
            .filter(|(name, _)| name.starts_with("gnb.") && of(name))
            .map(|(_, v)| *v)
            .collect();
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    };
    let sum = |what: &str| {
        let of = |gnb| metrics.get(&format!("gnb.{gnb}.{way}{what}"));
        spec.qfi.map(|_| case.gnbs.keys().filter_map(of).sum::<f64>())
    };
    let mut off = None;
    for (name, gnb) in &case.gnbs {
        for slice in gnb.slices().iter().filter(|_| gnb.slices().len() > 1 && !up) {
            let part = metrics.get(&format!("gnb.{name}.slice.{}.rb_share_percent", slice.name));
            let from = part.map(|part| (part - slice.share_percent).abs());
            off = [from, off].into_iter().flatten().max_by(f64::total_cmp);
        }
    }
    let found = [
        ("useful_mbps", sum("useful_mbps")),
        ("capacity_mbps", sum("capacity_mbps")),
        ("share_off_percent", off),
    ];
    let waits = WAITS.map(|name| (name, average(name)));
    found.into_iter().chain(waits).filter_map(|(name, value)| Some((name.to_owned(), value?)))
}

/// Whether a flow is one of those created by a table of the file with `count`.
fn is_of(name: &str, of: &str) -> bool {
    name.strip_prefix(of).is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix('-').is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
    })
}

/// Start of the bulk, seconds.
fn start_s(spec: &file::Matrix, case: &Case) -> f64 {
    let bulk = case.flows.iter().find(|(name, _)| is_of(name, &spec.bulk));
    bulk.map_or(0.0, |(_, flow)| flow.start.as_secs_f64())
}

fn from_s(spec: &file::Matrix, case: &Case) -> f64 {
    start_s(spec, case) + spec.from_s
}

/// Adds the figures of each cell and of each group to the metrics of one seed. `series` are those of the bulk, by variant.
pub fn figures(
    matrix: &Matrix,
    cases: &[&Case],
    series: &BTreeMap<String, Series>,
    metrics: &mut BTreeMap<String, f64>,
) {
    let by_name: BTreeMap<&str, &Case> =
        cases.iter().filter_map(|c| Some((c.variant.as_deref()?, *c))).collect();
    for cell in &matrix.cells {
        let (Some(case), Some(bulk)) = (by_name.get(cell.name.as_str()), series.get(&cell.name)) else {
            continue;
        };
        for (name, value) in of_cell(matrix, cell, case, &bulk.points, series, metrics) {
            if value.is_finite() {
                metrics.insert(format!("{}.{name}", cell.name), value);
            }
        }
    }
    let groups = matrix.spec.group.keys().map(String::as_str).chain([ALL]);
    for group in groups {
        for figure in &FIGURES {
            let values: Vec<f64> =
                matrix.group(group).filter_map(|c| value(metrics, &c.name, figure.name)).collect();
            if values.is_empty() {
                continue;
            }
            let put = [
                median(&values),
                percentile(&values, 0.0),
                percentile(&values, 1.0),
                values.len() as f64,
                values.iter().sum(),
            ];
            for (over, value) in OVER.iter().zip(put) {
                metrics.insert(format!("matrix.{group}.{}.{over}", figure.name), value);
            }
        }
    }
}

/// A figure of a variant.
#[must_use]
pub fn value(metrics: &BTreeMap<String, f64>, variant: &str, figure: &str) -> Option<f64> {
    metrics.get(&format!("{variant}.{figure}")).copied()
}

fn of_cell(
    matrix: &Matrix,
    cell: &Cell,
    case: &Case,
    bulk: &[(f64, f64)],
    series: &BTreeMap<String, Series>,
    metrics: &BTreeMap<String, f64>,
) -> Vec<(&'static str, f64)> {
    let spec = &matrix.spec;
    let (start, from) = (start_s(spec, case), from_s(spec, case));
    let end = case.duration.as_secs_f64();
    let get = |variant: &str, name: &str| value(metrics, variant, name);
    let Some(goodput) = get(&cell.name, "goodput_mbps") else { return Vec::new() };
    let mut all = vec![("of_sum", goodput / capacity::sum_mbps(spec, case, from))];
    let best = |reference: Reference| {
        let of = cell.references.iter().filter(|r| r.0 == reference);
        of.filter_map(|r| Some((r.2.as_str(), get(&r.2, "goodput_mbps")?))).max_by(|a, b| a.1.total_cmp(&b.1))
    };
    if let Some((_, direct)) = best(Reference::Direct) {
        all.push(("of_direct", goodput / direct));
    }
    if let Some((_, mptcp)) = best(Reference::Mptcp) {
        all.push(("of_mptcp", goodput / mptcp));
    }
    if let Some((name, alone)) = best(Reference::Alone) {
        all.push(("of_best", goodput / alone));
        let points = series.get(name).map_or(&[][..], |s| s.points.as_slice());
        // A window in which the access alone is bad as well only counts if it is worse.
        let excused = lowest_mean(points, from, end, WINDOW_S) / WORST_WINDOW;
        all.push(("window", lowest_mean(bulk, from, end, WINDOW_S) / alone.min(excused)));
    }
    let last = mean(bulk, end - (end - start) / 4.0, end);
    all.push(("settle_s", reached(bulk, start, end, SETTLED * last)));
    let steps = steps_up(case);
    let longest = steps.iter().map(|(from, to)| {
        let last = mean(bulk, to - (to - from) / 3.0, *to);
        reached(bulk, *from, *to, SETTLED * last)
    });
    all.push(("step_s", longest.fold(f64::NAN, f64::max)));
    if let Some(other) = cell.beside.as_ref().and_then(|name| get(name, "goodput_mbps")) {
        all.push(("beside", goodput / other));
    }
    let own = |of: &str| get(&cell.name, of);
    let of = |other: &Option<String>, name: &str| Some(own(name)? / get(other.as_ref()?, name)?);
    let capacity = own("useful_mbps").zip(own("capacity_mbps")).map(|(useful, most)| useful / most);
    let (carried, wait) = (of(&cell.plain, "useful_mbps"), of(&cell.beside, "wait_mean_ms"));
    let worse = carried.zip(wait).map(|(carried, wait)| f64::from(carried < CARRIES || wait > 1.0));
    let found = [
        ("useful_of_capacity", capacity),
        ("useful_plain", carried),
        ("useful_beside", of(&cell.beside, "useful_mbps")),
        ("wait_beside", wait),
        ("worse", worse),
    ];
    all.extend(found.into_iter().filter_map(|(name, value)| Some((name, value?))));
    let call = |name: &str| Some((get(name, "call.lost_percent")?, get(name, "call.delay_p99_ms")?));
    let alone = cell.references.iter().filter(|r| r.0 == Reference::Alone);
    if let (Some((lost, late)), Some((lost_alone, late_alone))) =
        (call(&cell.name), better(alone.filter_map(|r| call(&r.2)).collect()))
    {
        all.push(("call_lost_percent", lost - lost_alone));
        all.push(("call_late_ms", late - late_alone));
    }
    all
}

/// Length of a window that must not be worse than an access alone, seconds.
const WINDOW_S: f64 = 3.0;
/// Threshold for such a window, as a share of the mean of the access alone.
pub const WORST_WINDOW: f64 = 0.85;
/// Share of the final goodput that counts as reached.
const SETTLED: f64 = 0.8;
/// Averaging time for finding when goodput has been reached, seconds.
const REACHED_OVER_S: f64 = 0.5;
/// Tolerance within which losses count as equal, percent.
const SAME_LOSS_PERCENT: f64 = 1.0;

/// Loss and delay of the call on the better access: the fastest of those with the lowest loss.
fn better(alone: Vec<(f64, f64)>) -> Option<(f64, f64)> {
    let least = alone.iter().map(|(lost, _)| *lost).fold(f64::INFINITY, f64::min);
    alone
        .into_iter()
        .filter(|(lost, _)| *lost <= least + SAME_LOSS_PERCENT)
        .min_by(|a, b| a.1.total_cmp(&b.1))
}

/// Times at which the rate of a link increases, and until which nothing else changes.
fn steps_up(case: &Case) -> Vec<(f64, f64)> {
    let mut rates: BTreeMap<String, u64> =
        case.links.iter().map(|(n, l)| (n.clone(), crate::scenario::model::bps(l.down.rate_mbps))).collect();
    let timeline = case.timeline(0);
    let mut steps = Vec::new();
    for (i, (at, action)) in timeline.iter().enumerate() {
        let Action::Rate { link, rate_bps, .. } = action else { continue };
        let before = rates.insert(link.clone(), *rate_bps).unwrap_or(0);
        if *rate_bps > before {
            let next = timeline.get(i + 1).map_or(case.duration, |(at, _)| *at);
            steps.push((at.as_secs_f64(), next.as_secs_f64()));
        }
    }
    // The last one may have been cut short by the end.
    let longest = steps.iter().map(|(from, to)| to - from).fold(0.0, f64::max);
    steps.retain(|(from, to)| to - from > 0.9 * longest);
    steps
}

fn mean(points: &[(f64, f64)], from: f64, to: f64) -> f64 {
    let within: Vec<f64> = points.iter().filter(|(t, _)| (from..to).contains(t)).map(|(_, v)| *v).collect();
    within.iter().sum::<f64>() / within.len() as f64
}

/// Means of all windows of a given length between two times, with the end of each.
fn windows(points: &[(f64, f64)], from: f64, to: f64, length_s: f64) -> impl Iterator<Item = (f64, f64)> {
    let within: Vec<(f64, f64)> = points.iter().filter(|(t, _)| (from..to).contains(t)).copied().collect();
    let step = if let [a, b, ..] = within.as_slice() { b.0 - a.0 } else { length_s };
    let count = ((length_s / step).round() as usize).max(1);
    (0..(within.len() + 1).saturating_sub(count)).map(move |i| {
        let window = &within[i..i + count];
        let end = window.last().map_or(from, |(t, _)| t + step / 2.0);
        (end, window.iter().map(|(_, v)| v).sum::<f64>() / count as f64)
    })
}

fn lowest_mean(points: &[(f64, f64)], from: f64, to: f64, length_s: f64) -> f64 {
    windows(points, from, to, length_s).map(|(_, v)| v).fold(f64::INFINITY, f64::min)
}

/// Time from `from` until the mean goodput of the last half second is `level`; the whole interval if it never is.
fn reached(points: &[(f64, f64)], from: f64, to: f64, level: f64) -> f64 {
    let first = windows(points, from, to, REACHED_OVER_S).find(|(_, v)| *v >= level);
    first.map_or(to - from, |(end, _)| end - from)
}

/// Checks that a claim may use this metric.
///
/// # Errors
/// There is no metric of this name; with similar names.
pub fn check_name(spec: &file::Matrix, name: &str) -> Result<(), String> {
    let groups = spec.group.keys().map(String::as_str).chain([ALL]);
    let known: Vec<String> = groups
        .flat_map(|g| FIGURES.iter().map(move |f| (g, f.name)))
        .flat_map(|(g, f)| OVER.iter().map(move |over| format!("matrix.{g}.{f}.{over}")))
        .collect();
    if known.iter().any(|k| k == name) {
        return Ok(());
    }
    Err(format!("there is no `{name}`{}", near(name, known.iter().map(String::as_str))))
}

/// Whether all cells used by a claim are run.
#[must_use]
pub fn is_judged(claim: &Claim, matrix: &Matrix, backend: BackendName) -> bool {
    let Ok(expr) = Expr::parse(&claim.metric) else { return true };
    let group = |name: &str| name.split('.').nth(1).map(str::to_owned);
    expr.metrics().into_iter().filter_map(group).all(|group| matrix.is_whole(&group, backend))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(to: f64) -> Vec<(f64, f64)> {
        (0..100).map(|i| f64::from(i).mul_add(0.1, 0.05)).map(|t| (t, (t * to / 5.0).min(to))).collect()
    }

    #[test]
    fn windows_have_the_requested_length() {
        let flat: Vec<(f64, f64)> = (0..100).map(|i| (f64::from(i) * 0.1 + 0.05, 7.0)).collect();
        assert_eq!(windows(&flat, 0.0, 10.0, 3.0).count(), 71);
        assert!((lowest_mean(&flat, 3.0, 10.0, 3.0) - 7.0).abs() < 1e-9);
        assert!((mean(&ramp(10.0), 5.0, 10.0) - 10.0).abs() < 0.01);
        // Eight tenths of ten are reached after 4 s; the mean over half a second is a quarter of a second later.
        assert!((reached(&ramp(10.0), 0.0, 10.0, 8.0) - 4.25).abs() < 0.11);
        assert!((reached(&flat, 0.0, 10.0, 8.0) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn the_better_access_for_a_call_loses_little_and_is_fast() {
        assert_eq!(better(vec![(40.0, 8.0), (0.2, 30.0), (0.0, 90.0)]), Some((0.2, 30.0)));
        assert_eq!(better(Vec::new()), None);
    }

    const TWO_LINKS: &str = r#"
title = "t"
[link.a]
down.rate_mbps = 50
[link.b]
down.rate_mbps = 50
[ue.u]
accesses = [{ name = "first", link = "a" }, { name = "second", link = "b" }]
[flow.bulk]
kind = "bulk_tcp"
count = 2
[flow.call]
kind = "cbr"
[matrix]
bulk = "bulk"
call = "call"
chosen.virtual = "all"
beside = { sender = "cubic" }
[[matrix.axis]]
name = "first"
value = [{ name = "good" }, { name = "worse", set.link.a.down.delay_ms = 9 }]
[[matrix.axis]]
name = "sender"
value = [{ name = "cubic" }, { name = "bbr", set.flow.bulk.congestion_control = "bbr" }]
[[claim]]
id = "no-harm"
what = "w"
metric = "matrix.all.of_best.min"
min = 0.98
[[claim]]
id = "bbr"
what = "w"
metric = "matrix.all.beside.min"
min = 0.9
[[claim]]
id = "nothing"
what = "w"
metric = "matrix.all.step_s.max"
max = 3
"#;

    /// Each access alone has 40 Mbit/s (BBR: 30) and no loss; both together have 60 (BBR: 20).
    struct Fake;

    impl crate::backend::Backend for Fake {
        fn name(&self) -> BackendName {
            BackendName::Virtual
        }
        fn parallel(&self) -> bool {
            true
        }
        fn run(&self, case: &Case, _: u64, _: &dyn crate::backend::Progress) -> anyhow::Result<Outcome> {
            let (alone, name) = (case.links.len() == 1, case.variant.as_deref().unwrap_or_default());
            let mbps = match (name.contains("bbr"), alone) {
                (false, true) => 40.0,
                (false, false) => 60.0,
                (true, true) => 30.0,
                (true, false) => 20.0,
            };
            let mut out = Outcome::default();
            for flow in ["bulk-1", "bulk-2"] {
                let points = (0..100).map(|i| (f64::from(i).mul_add(0.1, 0.05), mbps / 2.0)).collect();
                out.series.insert(format!("flow.{flow}.goodput_mbps"), Series { points });
            }
            out.metrics.insert("flow.call.delay_p99_ms".into(), if alone { 30.0 } else { 45.0 });
            out.metrics.insert("flow.call.lost_percent".into(), 0.5);
            Ok(out)
        }
    }

    #[test]
    fn cells_are_judged_beside_their_references() {
        let scenario = crate::scenario::parse(std::path::Path::new("t.toml"), TWO_LINKS, &[]).unwrap();
        let done = crate::runner::run(&scenario, &Fake, 1, 2, &crate::backend::Quiet).unwrap();
        let get = |name: &str| done.metrics[name];
        assert!(
            (get("good_cubic.of_best") - 1.5).abs() < 1e-9
                && (get("good_bbr.of_best") - 2.0 / 3.0).abs() < 1e-9
        );
        assert!((get("worse_bbr.beside") - 1.0 / 3.0).abs() < 1e-9);
        assert!((get("good_cubic.window") - 1.5).abs() < 1e-9);
        assert!((get("good_cubic.call_late_ms") - 15.0).abs() < 1e-9);
        assert!(get("good_cubic.call_lost_percent").abs() < 1e-9 && get("matrix.all.of_best.count") == 4.0);
        let verdicts: Vec<bool> =
            done.claims.iter().map(|c| c.verdict == crate::claims::Verdict::Holds).collect();
        assert_eq!(verdicts, [false, false, false]);
        assert_eq!(done.claims[2].measured, None);
        let matrix = scenario.matrix.as_ref().unwrap();
        let (figure, cells) = &worst(matrix, &done.metrics)[1];
        assert_eq!((figure.name, cells[0].0.name.as_str()), ("of_best", "good_bbr"));
        assert!(text(matrix, &done).contains("worst by of_best"));
        let folder = tempfile::tempdir().unwrap();
        let page = crate::report::write(folder.path(), "t", &scenario, &done).unwrap();
        let page = std::fs::read_to_string(page.html).unwrap();
        assert!(page.contains("<a href=\"#worse_bbr\"") && page.contains("<i class=q1>0.67</i>"));
        assert_eq!(page.matches("</script>").count(), 1);
    }

    #[test]
    fn flows_of_a_count_are_one() {
        assert!(is_of("bulk", "bulk") && is_of("bulk-12", "bulk"));
        assert!(!is_of("bulk-a", "bulk") && !is_of("bulky", "bulk"));
    }
}
