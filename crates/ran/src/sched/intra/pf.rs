//! `pf`: proportional fair; ranks UEs by the ratio of channel rate to average throughput (Jalali et al. 2000).

use super::{IntraSlice, Rank, UeMetric};

/// The proportional fair ranking.
#[derive(Debug, Clone, Copy)]
pub struct ProportionalFair;

impl IntraSlice for ProportionalFair {
    fn rank(&self, ue: &UeMetric) -> Rank {
        // An average of 0 is replaced by about one byte per window.
        let average = ue.average_bytes.max(0.01);
        Rank { first: -(ue.rate_bytes as f32) / average, last_served: ue.last_served }
    }
}
