//! Keys without effect: valid values that nothing in a cell uses, most likely mistakes.
//!
//! Only files are checked for them. A running cell accepts such keys, so that its scheduler and slices can be changed
//! one after the other.

use super::config::{GnbConfig, GnbError, UeError};
use crate::sched::{IntraKind, check_slice_keys};

impl GnbConfig {
    /// Checks that each key of slices and UEs that only some schedulers use has an effect, or its default.
    ///
    /// # Errors
    /// The first key without effect.
    pub fn check_effects(&self) -> Result<(), GnbError> {
        let up = self.uplink_scheduler.as_ref().unwrap_or(&self.scheduler);
        check_slice_keys(&self.slices, [self.scheduler.algorithm(), up.algorithm()])?;
        // A UE may move to another slice.
        if self.slices.iter().any(|slice| slice.intra == IntraKind::Priority) {
            return Ok(());
        }
        let Some(ue) = self.ues.iter().find(|ue| ue.priority != 0) else { return Ok(()) };
        let what = UeError::value("priority", ue.priority, "left out: no slice has intra = \"priority\"");
        Err(GnbError::Ue { ue: ue.name.clone(), what })
    }
}
