//! Runs of many seeds on all cores, and their summary.

use super::check::{Tally, Violation};
use super::run::run;
use super::system::System;
use comfy_table::{CellAlignment, Table, presets};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Number of seeds after which a planned kind of fault without any effect is a defect of the simulator.
pub const ENOUGH: u64 = 200;

/// Results of several seeds.
#[derive(Debug)]
pub struct Summary<S> {
    /// Number of seeds run.
    pub seeds: u64,
    /// Sum over all runs.
    pub tally: Tally,
    /// Violations by seed.
    pub failed: BTreeMap<u64, Violation>,
    system: PhantomData<fn() -> S>,
}

/// Runs the plans of several seeds on this many threads; `done` is called after each.
#[must_use]
pub fn many<S: System>(
    seeds: Range<u64>,
    steps: u64,
    threads: usize,
    done: impl Fn(u64, Option<&Violation>) + Sync,
) -> Summary<S> {
    let next = AtomicU64::new(seeds.start);
    let summary = Mutex::new(Summary::new(0, Tally::default(), BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let mut outcome = run(&S::of(seed, steps));
                    // The sum does not depend on the order in which threads finish.
                    outcome.tally.digest = outcome.tally.digest.wrapping_mul(seed | 1);
                    done(seed, outcome.violation.as_ref());
                    let Ok(mut summary) = summary.lock() else { return };
                    let digest = summary.tally.digest ^ outcome.tally.digest;
                    summary.seeds += 1;
                    summary.tally.add(&outcome.tally);
                    summary.tally.digest = digest;
                    if let Some(violation) = outcome.violation {
                        summary.failed.insert(seed, violation);
                    }
                }
            });
        }
    });
    summary.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl<S: System> Summary<S> {
    /// A summary of several seeds.
    #[must_use]
    pub const fn new(seeds: u64, tally: Tally, failed: BTreeMap<u64, Violation>) -> Self {
        Self { seeds, tally, failed, system: PhantomData }
    }

    /// Kinds of faults without any effect, although they were planned or drawn often enough.
    #[must_use]
    pub fn without_effect(&self) -> Vec<&'static str> {
        if self.seeds < ENOUGH {
            return Vec::new();
        }
        let idle = |kind: &&str| self.tally.effects.get(*kind).copied().unwrap_or(0) == 0;
        S::KINDS.iter().chain(S::ACTORS).copied().filter(idle).collect()
    }

    /// Invariants that were never checked.
    #[must_use]
    pub fn unchecked(&self) -> Vec<&'static str> {
        if self.seeds < ENOUGH {
            return Vec::new();
        }
        let names = S::INVARIANTS.iter().map(|invariant| invariant.name());
        names.filter(|name| !self.tally.checked.contains_key(name)).collect()
    }

    /// Summary as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let of = |counts: &BTreeMap<&'static str, u64>, name: &str| counts.get(name).copied().unwrap_or(0);
        let mut faults = table(["fault", "planned", "took effect"]);
        for kind in S::KINDS.iter().chain(S::ACTORS).copied() {
            let planned = of(&self.tally.planned, kind);
            let planned = if S::KINDS.contains(&kind) { planned.to_string() } else { "-".into() };
            faults.add_row([kind.to_owned(), planned, of(&self.tally.effects, kind).to_string()]);
        }
        let mut invariants = table(["invariant", "checks", "seeds that fail"]);
        for &invariant in S::INVARIANTS {
            let failed = self.failed.values().filter(|violation| violation.invariant == invariant).count();
            let checks = of(&self.tally.checked, invariant.name());
            invariants.add_row([invariant.name().to_owned(), checks.to_string(), failed.to_string()]);
        }
        for table in [&mut faults, &mut invariants] {
            for column in [1, 2] {
                if let Some(column) = table.column_mut(column) {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
            let _ = writeln!(text, "{table}\n");
        }
        let Tally { steps, virtual_ms, digest, .. } = &self.tally;
        let _ = writeln!(
            text,
            "{}: {} seeds, {steps} steps, {} s of virtual time, {} fail; digest {digest:016x}",
            S::NAME,
            self.seeds,
            virtual_ms / 1_000,
            self.failed.len()
        );
        for kind in self.without_effect() {
            let _ = writeln!(text, "defect of the simulator: \"{kind}\" never took effect");
        }
        for name in self.unchecked() {
            let _ = writeln!(text, "defect of the simulator: \"{name}\" was never checked");
        }
        text
    }
}

fn table(header: [&str; 3]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    table
}
