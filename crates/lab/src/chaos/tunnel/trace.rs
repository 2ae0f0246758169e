//! A log of a run for debugging: faults, events of the programs, dropped packets.

use super::world::World;
use anabranch_atsss::drops::DropCounters;

impl World {
    /// Logs drops since the previous call.
    pub(super) fn note_drops(&mut self) {
        if !self.run_state.is_traced() {
            return;
        }
        let ues = self.ues.iter().enumerate().map(|(n, end)| (format!("UE {n}"), end.ue.drops().clone()));
        let upfs = self.upfs.iter().enumerate().map(|(n, end)| (format!("UPF {n}"), end.upf.drops().clone()));
        let now: Vec<_> = ues.chain(upfs).collect();
        self.dropped.resize_with(now.len(), DropCounters::default);
        for ((end, counts), before) in now.into_iter().zip(&mut self.dropped) {
            for ((reason, count), (_, old)) in counts.iter().zip(before.iter()) {
                // The counters of a restarted program begin at zero.
                if count > old {
                    self.run_state.note(|| format!("{end} drops {}", reason.name()));
                }
            }
            *before = counts;
        }
    }
}
