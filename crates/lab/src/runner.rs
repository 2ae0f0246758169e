//! Runs all variants, runs and seeds of a scenario and combines their metrics.

use crate::backend::{Backend, Outcome, Progress, Quiet, Series};
use crate::claims::{Checked, Verdict, derive, evaluate, median, percentile};
use crate::matrix;
use crate::scenario::file::{BackendName, Claim};
use crate::scenario::model::{Matrix, run_seed};
use crate::scenario::{Case, Scenario};
use anyhow::Context;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A scenario after all its runs.
#[derive(Debug)]
pub struct Finished {
    pub backend: BackendName,
    /// The first seed.
    pub seed: u64,
    /// Number of seeds that were run.
    pub seeds: usize,
    /// The claims with their measured values and verdicts.
    pub claims: Vec<Checked>,
    /// Its metrics: the median over the seeds.
    pub metrics: BTreeMap<String, f64>,
    /// Series of the first run of the first seed, and of each metric over the runs of the first seed.
    pub series: BTreeMap<String, Series>,
    /// Facts about the runs, in order, without repetition.
    pub facts: Vec<(String, String)>,
    /// Events of the first run, by variant prefix.
    pub events: Vec<(f64, String)>,
}

impl Finished {
    /// Whether a claim fails.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.claims.iter().any(|c| c.verdict == Verdict::Fails)
    }
}

/// Observer of the runs of a scenario.
pub trait Watch: Sync {
    /// `count` runs are about to start.
    fn begin(&self, count: usize);
    /// A run starts; the returned object receives its progress.
    fn run(&self, case: &Case, index: usize) -> Box<dyn Progress>;
    /// A run is complete.
    fn done(&self);
}

impl Watch for Quiet {
    fn begin(&self, _: usize) {}
    fn run(&self, _: &Case, _: usize) -> Box<dyn Progress> {
        Box::new(Self)
    }
    fn done(&self) {}
}

/// Runs `scenario` with `seeds` consecutive seeds, beginning with `seed`.
///
/// # Errors
/// The first run that failed.
pub fn run(
    scenario: &Scenario,
    backend: &dyn Backend,
    seed: u64,
    seeds: usize,
    watch: &dyn Watch,
) -> anyhow::Result<Finished> {
    let cases: Vec<&Case> = scenario.cases.iter().filter(|c| c.backends.contains(&backend.name())).collect();
    let jobs: Vec<Job<'_>> = (0..seeds)
        .flat_map(|s| cases.iter().map(move |case| (s, *case)))
        .flat_map(|(s, case)| {
            let seed = seed.wrapping_add(s as u64);
            (0..scenario.runs).map(move |run| Job { case, round: s, run, seed: run_seed(seed, run) })
        })
        .collect();
    let mut outcomes = run_all(&jobs, scenario.matrix.as_ref(), backend, watch)
        .with_context(|| format!("{} on {}", scenario.file.display(), backend.name()))?;

    let mut per_seed = vec![BTreeMap::new(); seeds];
    let mut series = BTreeMap::new();
    let (mut facts, mut events) = (Vec::new(), Vec::new());
    for (s, metrics) in per_seed.iter_mut().enumerate() {
        let mut kept = BTreeMap::new();
        for case in &cases {
            let mut runs: Vec<&mut Outcome> = jobs
                .iter()
                .zip(&mut outcomes)
                .filter(|(job, _)| job.round == s && std::ptr::eq(job.case, *case))
                .map(|(_, outcome)| outcome)
                .collect();
            let prefix = case.variant.as_ref().map_or(String::new(), |v| format!("{v}."));
            let over_runs = combine(&runs, &prefix, metrics);
            if let (Some(_), Some(first), Some(name)) = (&scenario.matrix, runs.first(), &case.variant) {
                kept.extend(first.series.get(matrix::BULK).map(|series| (name.clone(), series.clone())));
            }
            if s > 0 {
                continue;
            }
            series.extend(over_runs);
            for fact in runs.iter().flat_map(|r| &r.facts) {
                if !facts.contains(fact) {
                    facts.push(fact.clone());
                }
            }
            if let Some(first) = runs.first_mut() {
                // They may be large and are not used elsewhere.
                let named = std::mem::take(&mut first.series).into_iter();
                series.extend(named.map(|(n, s)| (format!("{prefix}{n}"), s)));
                for event in std::mem::take(&mut first.events) {
                    if !events.contains(&event) {
                        events.push(event);
                    }
                }
            }
        }
        if let Some(of) = &scenario.matrix {
            matrix::figures(of, &cases, &kept, metrics);
        }
    }
    let judged = |claim: &&Claim| {
        scenario.matrix.as_ref().is_none_or(|of| matrix::is_judged(claim, of, backend.name()))
    };
    let claims: Vec<Claim> = scenario.claims.iter().filter(judged).cloned().collect();
    let claims = evaluate(&claims, backend.name(), &per_seed);
    Ok(Finished {
        backend: backend.name(),
        seed,
        seeds,
        claims,
        metrics: medians(&per_seed),
        series,
        facts,
        events,
    })
}

struct Job<'s> {
    case: &'s Case,
    /// Index of the seed.
    round: usize,
    run: u32,
    seed: u64,
}

fn run_all(
    jobs: &[Job<'_>],
    of: Option<&Matrix>,
    backend: &dyn Backend,
    watch: &dyn Watch,
) -> anyhow::Result<Vec<Outcome>> {
    let workers = if backend.parallel() {
        std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len())
    } else {
        1
    };
    watch.begin(jobs.len());
    let next = AtomicUsize::new(0);
    let results = Mutex::new((0..jobs.len()).map(|_| None).collect::<Vec<_>>());
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(i) else { return };
            let progress = watch.run(job.case, i);
            let mut result = backend.run(job.case, job.seed, &*progress);
            if let Ok(outcome) = &mut result {
                derive(job.case, outcome);
                if let Some(of) = of {
                    matrix::keep(of, job.case, outcome);
                } else if job.run > 0 || job.round > 0 {
                    // Only the first run is plotted; the others are dropped to save memory.
                    outcome.series.clear();
                    outcome.events.clear();
                }
            }
            if result.is_err() {
                next.store(jobs.len(), Ordering::Relaxed);
            }
            watch.done();
            if let Ok(mut results) = results.lock() {
                results[i] = Some(result);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(work);
        }
        work();
    });
    let results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    // After an error, later jobs were not started; the error is among the results.
    let mut outcomes = Vec::with_capacity(jobs.len());
    for result in results.into_iter().flatten() {
        outcomes.push(result?);
    }
    Ok(outcomes)
}

/// Adds the metrics of the runs of one variant to `into` and returns them as series over the runs.
///
/// A metric that is missing in one run is omitted, because the median over the other runs would be biased.
fn combine(runs: &[&mut Outcome], prefix: &str, into: &mut BTreeMap<String, f64>) -> Vec<(String, Series)> {
    let mut series = Vec::new();
    let Some(first) = runs.first() else { return series };
    for name in first.metrics.keys() {
        let values: Vec<f64> = runs.iter().filter_map(|r| r.metrics.get(name).copied()).collect();
        if values.len() < runs.len() {
            continue;
        }
        let name = format!("{prefix}{name}");
        if values.len() > 1 {
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            into.insert(format!("{name}.mean"), mean);
            into.insert(format!("{name}.min"), percentile(&values, 0.0));
            into.insert(format!("{name}.max"), percentile(&values, 1.0));
            into.insert(format!("{name}.p99"), percentile(&values, 0.99));
            let points = values.iter().enumerate().map(|(i, v)| (i as f64 + 1.0, *v)).collect();
            series.push((name.clone(), Series { points }));
        }
        into.insert(name, median(&values));
    }
    series
}

fn medians(per_seed: &[BTreeMap<String, f64>]) -> BTreeMap<String, f64> {
    let Some(first) = per_seed.first() else { return BTreeMap::new() };
    first
        .keys()
        .filter_map(|name| {
            let values: Vec<f64> = per_seed.iter().filter_map(|m| m.get(name).copied()).collect();
            (values.len() == per_seed.len()).then(|| (name.clone(), median(&values)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Reports its seed as a metric.
    struct Fake;

    impl Backend for Fake {
        fn name(&self) -> BackendName {
            BackendName::Virtual
        }
        fn parallel(&self) -> bool {
            true
        }
        fn run(&self, case: &Case, seed: u64, _: &dyn Progress) -> anyhow::Result<Outcome> {
            anyhow::ensure!(seed != 13, "bad luck");
            let metrics = case.flows.keys().map(|f| (format!("flow.{f}.outage_ms"), seed as f64)).collect();
            Ok(Outcome { metrics, facts: vec![("kernel".into(), "none".into())], ..Outcome::default() })
        }
    }

    fn scenario(runs: u32) -> Scenario {
        let text = format!(
            "title = \"t\"\nruns = {runs}\n[link.w]\n[ue.u]\naccesses = [{{ name = \"w\", link = \"w\" }}]\n\
             [flow.f]\nkind = \"ping\"\n[[claim]]\nid = \"c\"\nwhat = \"w\"\nmetric = \"flow.f.outage_ms.max\"\nmin = 1\n"
        );
        crate::scenario::parse(Path::new("t.toml"), &text, &[]).unwrap()
    }

    #[test]
    fn runs_are_combined_and_seeds_are_medians() {
        let done = run(&scenario(5), &Fake, 1, 3, &Quiet).unwrap();
        let m = &done.metrics;
        assert!(m["flow.f.outage_ms.min"] <= m["flow.f.outage_ms"]);
        assert!(m["flow.f.outage_ms"] <= m["flow.f.outage_ms.max"]);
        assert_eq!(done.series["flow.f.outage_ms"].points.len(), 5);
        assert_eq!(done.claims[0].seeds(), (3, 3));
        assert_eq!(done.facts.len(), 1);
        let done = run(&scenario(1), &Fake, 7, 3, &Quiet).unwrap();
        assert_eq!(done.metrics["flow.f.outage_ms"], 8.0);
        assert_eq!(done.claims[0].spread(), Some((7.0, 9.0)));
    }

    #[test]
    fn an_error_ends_everything_and_is_told() {
        let error = run(&scenario(1), &Fake, 11, 5, &Quiet).unwrap_err();
        assert!(format!("{error:#}").contains("bad luck"), "{error:#}");
    }
}
