//! Claims: what a scenario must show, what the paper states, what was measured.

pub mod audit;
mod correlate;
pub mod expr;

use crate::backend::Outcome;
use crate::scenario::file::{BackendName, Claim, File, PaperValue, Plot, PlotKind};
use crate::scenario::model::Case;
use crate::scenario::walk::{Problem, valid_name};
use crate::{matrix, metrics};
use expr::Expr;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Whether a claim holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It holds.
    Holds,
    /// It does not hold, the scenario states why the result differs from the paper, and the value is within the band of that reason.
    Differs,
    /// It does not hold, or its reason does not match the measurement.
    Fails,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Holds => "yes",
            Self::Differs => "differs",
            Self::Fails => "NO",
        })
    }
}

/// A claim after a run.
#[derive(Debug, Clone)]
pub struct Checked {
    /// The claim.
    pub claim: Claim,
    /// Its value: the median over several seeds. `None` if it is not a finite number.
    pub measured: Option<f64>,
    /// Its value at each seed.
    pub values: Vec<f64>,
    /// The verdict, on the median or at every seed.
    pub verdict: Verdict,
    /// Its first metric that a run did not produce, such as the time of a transfer that did not complete.
    pub absent: Option<String>,
    /// Whether it was measured in real time, where machines differ by more than seeds.
    real_time: bool,
}

impl Checked {
    /// Smallest and largest value, if there are several seeds with one.
    #[must_use]
    pub fn spread(&self) -> Option<(f64, f64)> {
        let (low, high) = extent(&self.values);
        (self.values.len() > 1 && low <= high).then_some((low, high))
    }

    /// Number of seeds at which it holds, and number of seeds run.
    #[must_use]
    pub fn seeds(&self) -> (usize, usize) {
        (self.values.iter().filter(|v| in_band(&self.claim, **v)).count(), self.values.len())
    }

    /// The message for a failed claim: the missing metric, or what is wrong with its reason.
    #[must_use]
    pub fn misfit(&self) -> Option<String> {
        if let Some(metric) = self.absent.as_ref().filter(|_| self.verdict == Verdict::Fails) {
            return Some(format!("the run has no `{metric}`"));
        }
        let differs = self.claim.differs.as_ref().filter(|_| self.verdict == Verdict::Fails)?;
        let (holding, all) = self.seeds();
        Some(if holding == all {
            format!("is in its band ({}) now: take the reason away", band(&self.claim))
        } else {
            let (min, max) = (differs.min, differs.max);
            format!("has left the band of its reason ({min} to {max}): find out why, then renew either")
        })
    }
}

/// Number of seeds that must all be in the claim's own band before its reason is obsolete.
const ENOUGH_SEEDS: usize = 5;

/// Evaluates the claims of a scenario on the metrics of one or several seeds. A claim with a metric that a run did not produce
/// has no value there, and fails. That such names exist was checked before.
#[must_use]
pub fn evaluate(claims: &[Claim], backend: BackendName, seeds: &[BTreeMap<String, f64>]) -> Vec<Checked> {
    claims
        .iter()
        .filter(|c| c.backends.as_ref().is_none_or(|b| b.contains(&backend)))
        .map(|claim| evaluate_one(claim, backend == BackendName::Netns, seeds))
        .collect()
}

fn evaluate_one(claim: &Claim, real_time: bool, seeds: &[BTreeMap<String, f64>]) -> Checked {
    let (mut values, mut absent) = (Vec::with_capacity(seeds.len()), None);
    for metrics in seeds {
        // Parsed before the run; an invalid expression has no value.
        let Ok(expr) = Expr::parse(&claim.metric) else { continue };
        let value = expr.value(&|name| lookup(metrics, name));
        values.push(value.unwrap_or_else(|metric| {
            absent.get_or_insert(metric);
            f64::NAN
        }));
    }
    let measured = Some(median(&values)).filter(|m| m.is_finite() && absent.is_none());
    let verdict = match absent {
        None => verdict(claim, real_time, &values, measured.as_slice()),
        Some(_) => Verdict::Fails,
    };
    Checked { claim: claim.clone(), measured, values, verdict, absent, real_time }
}

/// Evaluates the claims again at every seed: a claim holds only if it holds at each seed, and one with a reason must be in its
/// band at each seed.
pub fn at_every_seed(claims: &mut [Checked]) {
    for checked in claims.iter_mut().filter(|checked| checked.absent.is_none()) {
        checked.verdict = verdict(&checked.claim, checked.real_time, &checked.values, &checked.values);
    }
}

/// The verdict from the values of all seeds, and from those (or their median) that must be in the band.
fn verdict(claim: &Claim, real_time: bool, seeds: &[f64], judged: &[f64]) -> Verdict {
    let all =
        |values: &[f64], fits: &dyn Fn(f64) -> bool| !values.is_empty() && values.iter().all(|v| fits(*v));
    let holds = |v: f64| in_band(claim, v);
    let Some(differs) = &claim.differs else {
        return if all(judged, &holds) { Verdict::Holds } else { Verdict::Fails };
    };
    // One seed may be in both bands by chance; five are not.
    let resolved = seeds.len() >= ENOUGH_SEEDS && all(seeds, &holds);
    let told = all(judged, &|v| (differs.min..=differs.max).contains(&v));
    match (told, resolved) {
        (true, false) => Verdict::Differs,
        // In real time, a few runs may match the paper on the present machine.
        (false, false) if real_time && all(judged, &holds) => Verdict::Holds,
        _ => Verdict::Fails,
    }
}

/// A band for the reason of a claim: the median of the seeds plus and minus their full spread, or 1 % of the value if that is more.
/// Rounded outwards to three digits.
#[must_use]
pub fn band_of_seeds(values: &[f64]) -> (f64, f64) {
    let middle = median(values);
    let (least, most) = extent(values);
    let reach = (most - least).max(middle.abs() / 100.0);
    (rounded(middle - reach, f64::floor), rounded(middle + reach, f64::ceil))
}

fn rounded(value: f64, round: fn(f64) -> f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = 2 - value.abs().log10().floor() as i32;
    let text = if digits >= 0 {
        let unit = 10f64.powi(digits);
        format!("{:.*}", digits as usize, round(value * unit) / unit)
    } else {
        let unit = 10f64.powi(-digits);
        format!("{}", round(value / unit) * unit)
    };
    text.parse().unwrap_or(value)
}

fn extent(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), v| (lo.min(*v), hi.max(*v)))
}

/// The metrics defined by a scenario, in an order in which each comes after those it refers to.
///
/// # Errors
/// The name of one that refers to itself, directly or by others.
fn in_order(derived: &BTreeMap<String, String>) -> Result<Vec<(&String, Expr)>, &String> {
    let mut rest: Vec<(&String, Expr)> =
        derived.iter().filter_map(|(name, text)| Some((name, Expr::parse(text).ok()?))).collect();
    let mut ordered = Vec::with_capacity(rest.len());
    while !rest.is_empty() {
        let waits = |expr: &Expr, rest: &[(&String, Expr)]| {
            let metrics = expr.metrics();
            let mut own = metrics.iter().filter_map(|metric| metric.strip_prefix("metric."));
            own.any(|of| rest.iter().any(|(name, _)| *name == of))
        };
        let Some(next) = rest.iter().position(|(_, expr)| !waits(expr, &rest)) else { return Err(rest[0].0) };
        ordered.push(rest.remove(next));
    }
    Ok(ordered)
}

/// Computes the metrics defined by the scenario from those of one run.
pub fn derive(case: &Case, outcome: &mut Outcome) {
    // Cycles were rejected before the run.
    for (name, expr) in in_order(&case.derived).unwrap_or_default() {
        let value = expr.value_with(&|metric| outcome.metrics.get(metric).copied(), &|series| {
            outcome.series.get(series).map(|s| s.points.as_slice())
        });
        // Values that do not exist in this variant are omitted.
        if let Ok(value) = value {
            outcome.metrics.insert(format!("metric.{name}"), value);
        }
    }
}

/// A metric by name. If there was only one run, every statistic over the runs is the value of that run.
#[must_use]
pub fn lookup(metrics: &BTreeMap<String, f64>, name: &str) -> Option<f64> {
    metrics.get(name).copied().or_else(|| {
        let base = metrics::STATISTICS.iter().find_map(|s| name.strip_suffix(s)?.strip_suffix('.'))?;
        metrics.get(base).copied()
    })
}

/// The median; for an even number the mean of the two middle values. NaN without values, and if one is NaN, since a missing value
/// is neither above nor below the others.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    if values.iter().any(|value| value.is_nan()) {
        return f64::NAN;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The value at rank `share` (0 to 1), by nearest rank. NaN without values.
#[must_use]
pub fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    percentile_sorted(&sorted, share)
}

/// [`percentile`] of sorted values.
fn percentile_sorted(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).or(sorted.last()).copied().unwrap_or(f64::NAN)
}

/// [`percentile`] for increasing shares; reorders the values.
#[must_use]
pub fn percentiles<const N: usize>(values: &mut [f64], shares: [f64; N]) -> [f64; N] {
    let len = values.len();
    // Values below a rank stay below it.
    let mut below = 0;
    shares.map(|share| {
        let index = ((share * len as f64).ceil() as usize).clamp(1, len.max(1)) - 1;
        let rest = values.get_mut(below..).unwrap_or_default();
        if index < below || index - below >= rest.len() {
            return percentile(values, share);
        }
        let (_, value, _) = rest.select_nth_unstable_by(index - below, f64::total_cmp);
        let value = *value;
        below = index;
        value
    })
}

fn in_band(claim: &Claim, value: f64) -> bool {
    let (low, high) = ends(claim);
    low.is_none_or(|low| value >= low) && high.is_none_or(|high| value <= high)
}

/// The ends of a claim's band, if present.
fn ends(claim: &Claim) -> (Option<f64>, Option<f64>) {
    let around = match (claim.within_percent, &claim.paper) {
        (Some(percent), Some(PaperValue::Number(paper))) => {
            let reach = paper.abs() * percent / 100.0;
            Some((paper - reach, paper + reach))
        }
        _ => None,
    };
    let (low, high) = (around.map(|a| a.0), around.map(|a| a.1));
    (claim.min.into_iter().chain(low).reduce(f64::max), claim.max.into_iter().chain(high).reduce(f64::min))
}

/// The band of a claim as text.
#[must_use]
pub fn band(claim: &Claim) -> String {
    let mut parts = Vec::new();
    match (claim.min, claim.max) {
        (Some(a), Some(b)) if a == b => parts.push(format!("= {a}")),
        (Some(a), Some(b)) => parts.push(format!("{a} to {b}")),
        (Some(a), None) => parts.push(format!("≥ {a}")),
        (None, Some(b)) => parts.push(format!("≤ {b}")),
        (None, None) => {}
    }
    parts.extend(claim.within_percent.map(|p| format!("±{p} % of the paper")));
    parts.join(", ")
}

/// Checks claims and plots before a run; without `cases`, the names of metrics and series are not checked.
#[must_use]
pub fn check(file: &File, cases: Option<&[Case]>) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut problem = |path: String, message: String| problems.push(Problem { line: None, path, message });
    let mut ids = BTreeSet::new();
    for claim in &file.claim {
        let path = format!("claim.{}", claim.id);
        if !valid_name(&claim.id) || !ids.insert(&claim.id) {
            problem(path.clone(), "needs an id of its own: letters, digits, `_` and `-`".into());
        }
        if claim.min.is_none() && claim.max.is_none() && claim.within_percent.is_none() {
            problem(path.clone(), "cannot fail: give min, max or within_percent".into());
        }
        if let (Some(low), Some(high)) = ends(claim)
            && low > high
        {
            problem(path.clone(), format!("can never hold: its band is from {low} to {high}"));
        }
        if claim.within_percent.is_some() && !matches!(claim.paper, Some(PaperValue::Number(_))) {
            problem(format!("{path}.within_percent"), "needs a number as `paper`".into());
        }
        if let Some(differs) = &claim.differs {
            if differs.why.trim().is_empty() {
                problem(format!("{path}.differs.why"), "is empty: say why ours differs".into());
            }
            if differs.min > differs.max {
                problem(format!("{path}.differs"), "holds nothing: min is above max".into());
            } else if in_band(claim, differs.min) && in_band(claim, differs.max) {
                let message = "is all in the claim's own band: nothing differs there";
                problem(format!("{path}.differs"), message.into());
            }
        }
        match Expr::parse(&claim.metric) {
            Err(wrong) => problem(format!("{path}.metric"), wrong.to_string()),
            Ok(expr) if !expr.series().is_empty() => {
                let message = "a claim is over metrics; put what is over series into [metric]";
                problem(format!("{path}.metric"), message.into());
            }
            Ok(expr) if file.matrix.is_some() => {
                let spec = file.matrix.iter();
                let mut names = spec.flat_map(|s| expr.metrics().into_iter().map(move |name| (s, name)));
                if let Err(wrong) = names.try_for_each(|(spec, name)| matrix::check_name(spec, name)) {
                    problem(format!("{path}.metric"), wrong);
                }
            }
            Ok(expr) => {
                let backends = claim.backends.as_ref().unwrap_or(&file.backends);
                let wrong = on_each(backends, cases, |cases| {
                    expr.metrics().into_iter().try_for_each(|n| metrics::check(n, metrics::METRICS, cases))
                });
                if let Err(wrong) = wrong {
                    problem(format!("{path}.metric"), wrong);
                }
            }
        }
    }
    // A metric is computed separately in each variant.
    let one_variant = |case: &Case| Case { variant: None, ..case.clone() };
    let of_metrics = cases.filter(|_| !file.metric.is_empty());
    let of_metrics: Option<Vec<Case>> = of_metrics.map(|cases| cases.iter().map(one_variant).collect());
    let of_metrics: Option<Vec<&Case>> = of_metrics.as_ref().map(|cases| cases.iter().collect());
    for (name, text) in &file.metric {
        let wrong = Expr::parse(text).map_err(|wrong| wrong.to_string()).and_then(|expr| {
            let Some(cases) = &of_metrics else { return Ok(()) };
            let series = expr.series();
            series.into_iter().try_for_each(|n| metrics::check(n, metrics::SERIES, cases))?;
            expr.metrics().into_iter().try_for_each(|n| metrics::check(n, metrics::METRICS, cases))
        });
        if let Err(wrong) = wrong {
            problem(format!("metric.{name}"), wrong);
        }
    }
    if let Err(name) = in_order(&file.metric) {
        problem(format!("metric.{name}"), "refers to itself, directly or by other metrics".into());
    }
    for (i, plot) in file.plot.iter().enumerate() {
        let path = format!("plot.{i}");
        problems_of_plot(plot, &mut |key, what| problem(format!("{path}.{key}"), what.into()));
        if plot.series.is_empty() {
            problem(format!("{path}.series"), "is empty: nothing would be drawn".into());
        }
        let backends = plot.backends.as_ref().unwrap_or(&file.backends);
        for series in plot.series.iter().chain(&plot.x) {
            if let Err(wrong) = on_each(backends, cases, |cases| check_series(plot.kind, series, cases)) {
                problem(format!("{path}.series"), wrong);
            }
        }
    }
    problems
}

/// Problems of a plot itself.
fn problems_of_plot(plot: &Plot, problem: &mut impl FnMut(&str, &str)) {
    let (points, group) = (plot.series.len(), plot.group.max(1) as usize);
    let scatter = plot.kind == PlotKind::Scatter;
    if scatter && (plot.x.len() != points || !points.is_multiple_of(group)) {
        problem("x", "give as many as there are series, in whole groups");
    }
    if !scatter && (!plot.x.is_empty() || group > 1) {
        problem("x", "`x` and `group` are for kind scatter");
    }
    let wanted = if scatter { points / group } else { points };
    if !plot.labels.is_empty() && plot.labels.len() != wanted {
        problem("labels", if group > 1 { "give one label per group" } else { "give one label per series" });
    }
    for (key, low, high) in [("x_min", plot.x_min, plot.x_max), ("y_min", plot.y_min, plot.y_max)] {
        if low.zip(high).is_some_and(|(low, high)| low >= high) {
            problem(key, "is not below the other end of its axis");
        }
        if low.into_iter().chain(high).any(|end| end.abs() > crate::report::FARTHEST) {
            problem(key, "and the other end of its axis: 1e15 at most");
        }
    }
    let bars = plot.kind == PlotKind::Bars;
    if (plot.y_log && bars) || (plot.x_log && (bars || plot.kind == PlotKind::Box)) {
        problem("kind", "has no such axis in powers of ten");
    }
}

/// Removes from each case the backends on which no claim evaluates its metrics.
pub fn retain_evaluated(file: &File, cases: &mut [Case]) {
    let claims: Vec<(&[BackendName], Expr)> = file
        .claim
        .iter()
        .filter_map(|c| Some((c.backends.as_deref().unwrap_or(&file.backends), Expr::parse(&c.metric).ok()?)))
        .collect();
    for case in cases {
        let mut backends = std::mem::take(&mut case.backends);
        backends.retain(|backend| {
            let mut here = claims.iter().filter(|(on, _)| on.contains(backend));
            here.any(|(_, expr)| expr.metrics().iter().any(|name| case.own_name(name).is_some()))
        });
        case.backends = backends;
    }
}

/// Calls `check` once per backend, with the cases that run on it, if there are any cases.
fn on_each(
    backends: &[BackendName],
    cases: Option<&[Case]>,
    check: impl Fn(&[&Case]) -> Result<(), String>,
) -> Result<(), String> {
    let Some(cases) = cases else { return Ok(()) };
    for backend in backends {
        let here: Vec<&Case> = cases.iter().filter(|c| c.backends.contains(backend)).collect();
        check(&here).map_err(|wrong| format!("on backend {backend} {wrong}"))?;
    }
    Ok(())
}

fn check_series(kind: PlotKind, series: &str, cases: &[&Case]) -> Result<(), String> {
    if matches!(kind, PlotKind::Bars | PlotKind::Scatter) {
        let expr = Expr::parse(series).map_err(|w| w.to_string())?;
        return expr.metrics().into_iter().try_for_each(|n| metrics::check(n, metrics::METRICS, cases));
    }
    let wrong = match metrics::check(series, metrics::SERIES, cases) {
        Ok(()) => return Ok(()),
        Err(wrong) => wrong,
    };
    // Distributions may also be drawn of a metric over the runs.
    match kind {
        PlotKind::Time => Err(wrong),
        _ => metrics::check(series, metrics::METRICS, cases).map_err(|_| wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::file::Differs;

    fn claim(metric: &str) -> Claim {
        Claim { id: "c".into(), metric: metric.into(), ..Claim::default() }
    }

    fn reason(min: f64, max: f64) -> Option<Differs> {
        Some(Differs { why: "another radio".into(), min, max })
    }

    fn seeds(values: &[f64]) -> Vec<BTreeMap<String, f64>> {
        values.iter().map(|v| BTreeMap::from([("x".to_owned(), *v)])).collect()
    }

    #[test]
    fn the_median_is_judged_and_the_spread_reported() {
        let mut c = claim("x * 2");
        c.max = Some(6.0);
        let checked = &evaluate(&[c.clone()], BackendName::Virtual, &seeds(&[9.0, 1.0, 3.0]))[0];
        assert_eq!(checked.measured, Some(6.0));
        assert_eq!((checked.spread(), checked.seeds()), (Some((2.0, 18.0)), (2, 3)));
        assert_eq!(checked.verdict, Verdict::Holds);
        c.differs = reason(17.0, 19.0);
        let checked = &evaluate(&[c], BackendName::Virtual, &seeds(&[9.0]))[0];
        assert_eq!((checked.verdict, checked.spread()), (Verdict::Differs, None));
    }

    #[test]
    fn claims_can_be_judged_at_every_seed() {
        let mut c = claim("x");
        c.max = Some(6.0);
        let judged = |c: &Claim, values: &[f64]| {
            let mut claims = evaluate(std::slice::from_ref(c), BackendName::Virtual, &seeds(values));
            at_every_seed(&mut claims);
            claims[0].verdict
        };
        assert_eq!(judged(&c, &[1.0, 2.0, 7.0]), Verdict::Fails);
        assert_eq!(judged(&c, &[1.0, 2.0, 3.0]), Verdict::Holds);
        c.differs = reason(1.0, 7.0);
        assert_eq!(judged(&c, &[1.0, 2.0, 7.0]), Verdict::Differs);
        assert_eq!(judged(&c, &[1.0, 2.0, 8.0]), Verdict::Fails);
    }

    #[test]
    fn a_reason_fails_on_either_side_of_its_band_and_once_it_is_not_needed() {
        let mut c = claim("x");
        (c.min, c.differs) = (Some(5.0), reason(2.0, 4.0));
        let judged = |values: &[f64]| {
            let checked = evaluate(std::slice::from_ref(&c), BackendName::Virtual, &seeds(values)).remove(0);
            (checked.verdict, checked.misfit().unwrap_or_default())
        };
        assert_eq!(judged(&[3.0]), (Verdict::Differs, String::new()));
        assert_eq!(judged(&[2.0, 3.0, 4.5, 6.0, 6.0]).0, Verdict::Fails);
        let (verdict, says) = judged(&[1.9]);
        assert_eq!(verdict, Verdict::Fails);
        assert!(says.starts_with("has left the band of its reason (2 to 4)"), "{says}");
        let (verdict, says) = judged(&[5.0]);
        assert_eq!(verdict, Verdict::Fails);
        assert!(says.ends_with("take the reason away"), "{says}");
        // In both bands: still reported while there are few seeds.
        c.differs = reason(2.0, 6.0);
        let judged = |values: &[f64]| {
            evaluate(std::slice::from_ref(&c), BackendName::Virtual, &seeds(values))[0].verdict
        };
        assert_eq!(judged(&[5.5]), Verdict::Differs);
        assert_eq!(judged(&[4.0, 5.0, 5.5, 5.6, 5.7]), Verdict::Differs);
        assert_eq!(judged(&[5.1, 5.0, 5.5, 5.6, 5.7]), Verdict::Fails);
    }

    #[test]
    fn in_real_time_a_few_runs_may_hold_despite_a_reason() {
        let mut c = claim("x");
        (c.min, c.differs) = (Some(5.0), reason(2.0, 5.0));
        let judged = |values: &[f64]| {
            evaluate(std::slice::from_ref(&c), BackendName::Netns, &seeds(values))[0].verdict
        };
        assert_eq!(judged(&[5.1]), Verdict::Holds);
        assert_eq!(judged(&[4.0, 5.1, 5.2]), Verdict::Holds);
        assert_eq!(judged(&[4.0, 4.1, 5.2]), Verdict::Differs);
        assert_eq!(judged(&[1.9]), Verdict::Fails);
        assert_eq!(judged(&[5.1, 5.0, 5.5, 5.6, 5.7]), Verdict::Fails);
    }

    #[test]
    fn the_band_of_seeds_is_their_median_and_their_spread() {
        assert_eq!(band_of_seeds(&[2.0, 3.0, 2.5]), (1.5, 3.5));
        assert_eq!(band_of_seeds(&[100.0]), (99.0, 101.0));
        assert_eq!(band_of_seeds(&[-0.012_34, -0.012_34]), (-0.0125, -0.0122));
        assert_eq!(band_of_seeds(&[12_345.0, 12_345.0]), (12_200.0, 12_500.0));
        assert_eq!(band_of_seeds(&[0.0, 0.0]), (0.0, 0.0));
    }

    #[test]
    fn nan_does_not_hold() {
        let mut c = claim("x / 0");
        c.min = Some(1.0);
        let checked = &evaluate(&[c], BackendName::Virtual, &seeds(&[1.0]))[0];
        assert_eq!((checked.measured, checked.verdict), (None, Verdict::Fails));
        // The same if the value is NaN of either sign at one of several seeds, with or without a reason.
        for nan in [f64::NAN, -f64::NAN] {
            for differs in [None, reason(1.0, 9.0)] {
                let mut c = claim("x");
                (c.min, c.max, c.differs) = (Some(4.0), Some(9.0), differs);
                let checked = &evaluate(&[c], BackendName::Virtual, &seeds(&[5.0, nan, 6.0]))[0];
                assert_eq!((checked.measured, checked.verdict), (None, Verdict::Fails), "{nan:?}");
            }
        }
    }

    #[test]
    fn a_claim_of_a_metric_that_a_run_did_not_produce_fails_and_says_so() {
        let mut c = claim("x - y");
        c.max = Some(9.0);
        let mut all = seeds(&[1.0, 1.0, 1.0]);
        for metrics in &mut all[1..] {
            metrics.insert("y".into(), 0.5);
        }
        let mut claims = evaluate(&[c], BackendName::Virtual, &all);
        at_every_seed(&mut claims);
        let checked = &claims[0];
        assert_eq!((checked.measured, checked.verdict), (None, Verdict::Fails));
        assert_eq!(checked.misfit().unwrap(), "the run has no `y`");
    }

    #[test]
    fn a_band_without_anything_in_it_is_refused() {
        let mut file = File { claim: vec![claim("x")], ..File::default() };
        (file.claim[0].min, file.claim[0].max) = (Some(3.0), Some(2.0));
        let says = check(&file, None).into_iter().map(|p| p.message).collect::<Vec<_>>().join("; ");
        assert!(says.contains("can never hold: its band is from 3 to 2"), "{says}");
    }

    #[test]
    fn values_without_any_number_have_no_spread() {
        let checked = &evaluate(&[claim("x / 0 - x / 0")], BackendName::Virtual, &seeds(&[1.0, 2.0]))[0];
        assert_eq!((checked.values.len(), checked.spread()), (2, None));
    }

    #[test]
    fn statistics() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(percentile(&(1..=100).map(f64::from).collect::<Vec<_>>(), 0.99), 99.0);
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
        assert!(percentile(&[], 0.5).is_nan());
        let m = BTreeMap::from([("x".to_owned(), 1.0)]);
        assert_eq!((lookup(&m, "x.p99"), lookup(&m, "y.p99")), (Some(1.0), None));
    }
}
