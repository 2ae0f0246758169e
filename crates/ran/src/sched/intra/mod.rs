//! Intra-slice schedulers: they rank the UEs of a slice, but do not allocate RBs.

use std::cmp::Ordering;

/// Inputs of a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UeMetric {
    /// The TTI in which the UE was last served; 0 if never.
    pub last_served: u64,
    /// Bytes of a block on all RBs at the UE's MCS.
    pub rate_bytes: u32,
    /// Moving average of the bytes it got per TTI.
    pub average_bytes: f32,
    /// Priority of the UE: a lower number goes first.
    pub priority: u8,
}

/// A rank: smaller is better. On ties, the UE that waits longest goes first.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rank {
    /// The criterion of the discipline.
    pub first: f32,
    /// The TTI in which the UE was last served.
    pub last_served: u64,
}

impl Rank {
    /// The order of ranks.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Ordering {
        self.first.total_cmp(&other.first).then(self.last_served.cmp(&other.last_served))
    }
}

/// A discipline that ranks UEs.
pub trait IntraSlice {
    /// The rank of a UE.
    fn rank(&self, ue: &UeMetric) -> Rank;
}

/// Declares the intra-slice schedulers: their files, names and ranking functions.
macro_rules! registry {
    ($( $module:ident $name:literal $Variant:ident($Scheduler:expr) $about:literal; )+) => {
        $( mod $module; )+

        anabranch_element::names! {
            /// The intra-slice schedulers by name.
            pub enum IntraKind("intra-slice scheduler") { $( $Variant = $name, $about; )+ }
        }

        impl IntraSlice for IntraKind {
            fn rank(&self, ue: &UeMetric) -> Rank {
                match self { $( Self::$Variant => $Scheduler.rank(ue), )+ }
            }
        }
    };
}

// One line per scheduler: file, name, variant, value, description. The first is the default.
registry! {
    rr "rr" Rr(rr::RoundRobin) "Round robin.";
    pf "pf" Pf(pf::ProportionalFair) "Proportional fair.";
    priority "priority" Priority(priority::Priority) "By the priority of the UE.";
}

/// Moving average of the bytes a UE got: exponential over about [`Average::TTIS`] TTIs. It is updated only when read, so that
/// idle UEs cost nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Average {
    bytes: f32,
    at: u64,
}

impl Average {
    /// Length of the window in TTIs.
    pub const TTIS: f32 = 100.0;

    /// Bytes per TTI at TTI `now`.
    #[must_use]
    pub fn at(&self, now: u64) -> f32 {
        let kept = 1.0 - 1.0 / Self::TTIS;
        match i32::try_from(now.saturating_sub(self.at)).unwrap_or(i32::MAX) {
            // Shortcut for a UE that is served in every TTI: avoids a function call.
            1 => self.bytes * kept,
            passed => self.bytes * kept.powi(passed),
        }
    }

    /// Records that `bytes` were served in TTI `now`.
    pub fn served(&mut self, bytes: u32, now: u64) {
        self.bytes = self.at(now) + bytes as f32 / Self::TTIS;
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UE: UeMetric = UeMetric { last_served: 5, rate_bytes: 2000, average_bytes: 100.0, priority: 3 };

    fn better(kind: IntraKind, a: UeMetric, b: UeMetric) -> bool {
        kind.rank(&a).compare(&kind.rank(&b)) == Ordering::Less
    }

    #[test]
    fn each_scheduler_ranks_by_its_own_criterion() {
        let longer = UeMetric { last_served: 4, ..UE };
        let faster = UeMetric { rate_bytes: 2500, ..UE };
        let richer = UeMetric { average_bytes: 150.0, ..faster };
        let first = UeMetric { priority: 1, ..UE };
        for kind in [IntraKind::Rr, IntraKind::Pf, IntraKind::Priority] {
            assert!(better(kind, longer, UE), "{kind:?}: all else equal, who waits longest");
        }
        assert!(!better(IntraKind::Rr, faster, UE) && !better(IntraKind::Rr, first, longer));
        assert!(better(IntraKind::Pf, faster, longer) && !better(IntraKind::Pf, richer, UE));
        assert!(better(IntraKind::Priority, first, longer));
        let never = UeMetric { average_bytes: 0.0, ..UE };
        assert!(better(IntraKind::Pf, never, faster), "no division by 0");
    }

    #[test]
    fn an_average_fades() {
        let mut average = Average::default();
        for tti in 0..2000 {
            average.served(700, tti);
        }
        assert!((average.at(1999) - 700.0).abs() < 1.0);
        assert!((average.at(2099) / 700.0 - 0.366).abs() < 0.01);
        assert_eq!(average.at(1 << 40), 0.0);
    }
}
