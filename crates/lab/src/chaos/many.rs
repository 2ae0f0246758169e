//! Many seeds, on all cores, and what they came to.

use super::check::{Invariant, Tally, Violation};
use super::plan::{KINDS, Plan};
use super::run::run;
use comfy_table::{CellAlignment, Table, presets};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds after which a kind of fault that was planned and did nothing is a defect of the simulator.
pub const ENOUGH: u64 = 200;

/// What seeds came to.
#[derive(Debug, Default)]
pub struct Summary {
    /// Seeds run.
    pub seeds: u64,
    /// Of all.
    pub tally: Tally,
    /// What does not hold, by seed.
    pub failed: BTreeMap<u64, Violation>,
}

/// Runs the plans of some seeds with so many threads; `done` is told after each.
#[must_use]
pub fn many(
    seeds: Range<u64>,
    steps: u64,
    threads: usize,
    done: impl Fn(u64, Option<&Violation>) + Sync,
) -> Summary {
    let next = AtomicU64::new(seeds.start);
    let summary = Mutex::new(Summary::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let mut outcome = run(&Plan::of(seed, steps));
                    // Sums do not depend on the order in which threads come.
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
    summary.into_inner().unwrap_or_default()
}

impl Summary {
    /// Kinds of faults that never did anything, although they were planned or drawn often enough.
    #[must_use]
    pub fn without_effect(&self) -> Vec<&'static str> {
        if self.seeds < ENOUGH {
            return Vec::new();
        }
        let attackers = ["hostile", "strangers"];
        let idle = |kind: &&str| self.tally.effects.get(*kind).copied().unwrap_or(0) == 0;
        KINDS.into_iter().chain(attackers).filter(idle).collect()
    }

    /// Invariants that were never looked at.
    #[must_use]
    pub fn unchecked(&self) -> Vec<&'static str> {
        if self.seeds < ENOUGH {
            return Vec::new();
        }
        let names = Invariant::ALL.into_iter().map(Invariant::name);
        names.filter(|name| !self.tally.checked.contains_key(name)).collect()
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let of = |counts: &BTreeMap<&'static str, u64>, name: &str| counts.get(name).copied().unwrap_or(0);
        let mut faults = table(["fault", "planned", "took effect"]);
        for kind in KINDS.into_iter().chain(["hostile", "strangers"]) {
            let planned = of(&self.tally.planned, kind);
            let planned = if KINDS.contains(&kind) { planned.to_string() } else { "-".into() };
            faults.add_row([kind.to_owned(), planned, of(&self.tally.effects, kind).to_string()]);
        }
        let mut invariants = table(["invariant", "checks", "seeds that fail"]);
        for invariant in Invariant::ALL {
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
            "{} seeds, {steps} steps, {} s of virtual time, {} fail; digest {digest:016x}",
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
