//! Shares in proportion to the rates of the legs, and what it takes to learn those.
//!
//! What is delivered over the legs tells their rates only as far as they are full: the share of LTE decides how much it gets, whatever it
//! could do. So any two estimates that are both too low keep each other up. Where one leg shows a queue and the other has capacity to
//! spare, the other one gets too little: its rate is taken to be more with every sample, by [`FIRST_STEP`] at first and up to
//! [`LAST_STEP`]. Nothing else moves the share away from what was measured: a sender that slows down leaves two legs without
//! queues, and their rates as they were.

use super::link::Link;

const FIRST_STEP: f64 = 0.01;
const LAST_STEP: f64 = 0.08;
/// Steps after which they are twice as large.
const TWICE_AFTER: u32 = 6;

/// What is remembered of a UE's legs together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Balance {
    /// Times in a row that the same leg had to be raised, and which.
    raised: [u32; 2],
}

impl Balance {
    /// Nothing.
    pub(super) const fn new() -> Self {
        Self { raised: [0; 2] }
    }

    /// A sample of one of the legs is complete.
    pub(super) fn learn(&mut self, links: &mut [Link; 2], assumed_bps: [f64; 2], least: f64) {
        for (a, b) in [(0, 1), (1, 0)] {
            if !links[a].is_spare() || !links[b].is_queued() {
                self.raised[a] = 0;
                continue;
            }
            let doubled = (self.raised[a] / TWICE_AFTER).min(8);
            self.raised[a] = self.raised[a].saturating_add(1);
            let step = (FIRST_STEP * f64::from(1 << doubled)).min(LAST_STEP);
            let most_bps = rate_bps(&links[b], assumed_bps[b]) * (1.0 - least) / least.max(0.01);
            let raised_bps = rate_bps(&links[a], assumed_bps[a]) * (1.0 + step);
            links[a].suppose_bps(raised_bps.min(most_bps));
        }
    }
}

/// The share of LTE, 0 to 1, between `least` and 1 - `least`.
pub(super) fn lte_share(links: &[Link; 2], assumed_bps: [f64; 2], least: f64) -> f64 {
    let [lte, wifi] = [0, 1].map(|leg| rate_bps(&links[leg], assumed_bps[leg]));
    (lte / (lte + wifi)).clamp(least, 1.0 - least)
}

/// The rate of a leg, as far as it is known: one that was never full counts as what it is assumed to be, or what went over it, if
/// that is more.
fn rate_bps(link: &Link, assumed_bps: f64) -> f64 {
    if link.is_rate_known() { link.rate_bps() } else { link.rate_bps().max(assumed_bps) }
}
