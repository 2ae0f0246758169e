//! What happens in a run, line by line, for whoever looks for a cause: faults, what the programs tell, what they drop.

use super::world::World;
use anabranch_atsss::drops::DropCounters;

impl World {
    /// Notes what was dropped since the last time.
    pub(super) fn note_drops(&mut self) {
        if !self.course.is_traced() {
            return;
        }
        let ues = self.ues.iter().enumerate().map(|(n, end)| (format!("UE {n}"), end.ue.drops().clone()));
        let upfs = self.upfs.iter().enumerate().map(|(n, end)| (format!("UPF {n}"), end.upf.drops().clone()));
        let now: Vec<_> = ues.chain(upfs).collect();
        self.dropped.resize_with(now.len(), DropCounters::default);
        for ((end, counts), before) in now.into_iter().zip(&mut self.dropped) {
            for ((reason, count), (_, old)) in counts.iter().zip(before.iter()) {
                // A program that was started again counts from zero.
                if count > old {
                    self.course.note(|| format!("{end} drops {}", reason.name()));
                }
            }
            *before = counts;
        }
    }
}
