//! `priority`: the UE with the lowest priority number; on ties, the UE that was served longest ago.

use super::{IntraSlice, Rank, UeMetric};

/// The ranking by priority.
#[derive(Debug, Clone, Copy)]
pub struct Priority;

impl IntraSlice for Priority {
    fn rank(&self, ue: &UeMetric) -> Rank {
        Rank { first: f32::from(ue.priority), last_served: ue.last_served }
    }
}
