//! `rr`: the UE that was served longest ago.

use super::{IntraSlice, Rank, UeMetric};

/// The round robin ranking.
#[derive(Debug, Clone, Copy)]
pub struct RoundRobin;

impl IntraSlice for RoundRobin {
    fn rank(&self, ue: &UeMetric) -> Rank {
        Rank { first: 0.0, last_served: ue.last_served }
    }
}
