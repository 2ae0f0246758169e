//! What happens in a run, line by line, for whoever looks for a cause: faults, what the programs tell, what they drop.

use super::world::World;
use anabranch_atsss::drops::DropCounters;

/// Lines so far.
#[derive(Default)]
pub struct Trace {
    lines: Vec<String>,
    /// What each UE, then each UPF, had dropped.
    dropped: Vec<DropCounters>,
}

impl World {
    /// Notes what happens from now on.
    pub fn trace(&mut self) {
        self.trace = Some(Trace::default());
    }

    /// What was noted.
    #[must_use]
    pub fn traced(&mut self) -> Vec<String> {
        self.trace.take().map(|trace| trace.lines).unwrap_or_default()
    }

    /// Something happened.
    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        let (at, step) = (self.now, self.step);
        if let Some(trace) = &mut self.trace {
            trace.lines.push(format!("{at} step {step} {}", what()));
        }
    }

    /// Notes what was dropped since the last time.
    pub(super) fn note_drops(&mut self) {
        let Some(trace) = &mut self.trace else { return };
        let ues = self.ues.iter().enumerate().map(|(n, end)| (format!("UE {n}"), end.ue.drops().clone()));
        let upfs = self.upfs.iter().enumerate().map(|(n, end)| (format!("UPF {n}"), end.upf.drops().clone()));
        let now: Vec<_> = ues.chain(upfs).collect();
        trace.dropped.resize_with(now.len(), DropCounters::default);
        for ((end, counts), before) in now.into_iter().zip(&mut trace.dropped) {
            for ((reason, count), (_, old)) in counts.iter().zip(before.iter()) {
                // A program that was started again counts from zero.
                if count > old {
                    trace.lines.push(format!(
                        "{} step {} {end} drops {}",
                        self.now,
                        self.step,
                        reason.name()
                    ));
                }
            }
            *before = counts;
        }
    }
}
