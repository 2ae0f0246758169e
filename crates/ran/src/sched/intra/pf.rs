//! `pf`: proportional fair, the UE whose channel is best compared with what it got of late (Jalali et al. 2000).

use super::{IntraSlice, Rank, UeMetric};

/// See the top of this file.
#[derive(Debug, Clone, Copy)]
pub struct ProportionalFair;

impl IntraSlice for ProportionalFair {
    fn rank(&self, ue: &UeMetric) -> Rank {
        // A UE that got nothing counts as one that got a byte in the whole window.
        let average = ue.average_bytes.max(0.01);
        Rank { first: -(ue.rate_bytes as f32) / average, last_served: ue.last_served }
    }
}
