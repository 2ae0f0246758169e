//! Traffic that shares the legs of a UE with the steered flows: UDP and other downlink traffic, and everything that
//! the UE sends.
//!
//! ```text
//!   downlink   A leg offers a flow its capacity less the rate of other traffic. Other traffic that uses nearly all of a
//!              leg may be a bulk transfer; it is expected to yield half of the leg.
//!   uplink     A round trip includes the queues of both directions. If the UE sends more than it receives, and receives
//!              less than half of the capacity of the leg, the queue is attributed to the uplink.
//! ```

use anabranch_element::time::{Duration, Instant};

/// Rates are averaged over this time.
const WINDOW: Duration = Duration::from_millis(500);
/// Other traffic that uses at least this percentage of a leg may be a bulk transfer, which yields to a flow.
const TRANSFER_PERCENT: u64 = 85;

/// The rate of other traffic on a leg.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OtherTrafficRate {
    /// Bytes in the current period and in the previous one.
    bytes: [u64; 2],
    /// Begin of the current period.
    since: Instant,
}

impl OtherTrafficRate {
    /// `bytes` of other traffic are sent.
    pub(super) fn sent(&mut self, bytes: usize, now: Instant) {
        let windows = now.saturating_since(self.since).as_micros() / WINDOW.as_micros();
        match windows {
            0 => {}
            1 => (self.bytes, self.since) = ([0, self.bytes[0]], self.since + WINDOW),
            _ => (self.bytes, self.since) = ([0; 2], now),
        }
        self.bytes[0] += bytes as u64;
    }

    /// Mean rate of the last [`WINDOW`], bit/s. The previous period counts for its part in that time.
    fn bps(&self, now: Instant) -> u64 {
        let (window, elapsed) =
            (WINDOW.as_micros() as u64, now.saturating_since(self.since).as_micros() as u64);
        let [this, before] = self.bytes;
        let part = |bytes: u64, of: u64| bytes.saturating_mul(8) * of.min(window) / window;
        let bits = match elapsed {
            _ if elapsed < window => part(this, window) + part(before, window - elapsed),
            _ => part(this, (2 * window).saturating_sub(elapsed)),
        };
        bits * 1_000_000 / window
    }

    /// The part of a capacity of `bps` that other traffic leaves to a flow, bit/s. An unknown capacity (0) remains
    /// 0.
    pub(super) fn available_bps(&self, bps: u64, now: Instant) -> u64 {
        let others = self.bps(now);
        if others.saturating_mul(100) >= bps.saturating_mul(TRANSFER_PERCENT) {
            bps.div_ceil(2)
        } else {
            bps - others
        }
    }
}

/// The UE's uplink traffic, compared with the downlink traffic of the leg that carries both.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Uplink {
    /// Bytes received from the UE so far.
    bytes: u64,
    /// At the last answered probe: uplink bytes until the answer, downlink bytes until the probe left, and the time
    /// of the answer.
    last: Option<(u64, u64, Instant)>,
}

impl Uplink {
    /// A packet of the UE.
    pub(super) fn on_received(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// A probe was answered, before which `sent` bytes had been sent by a leg with an estimated capacity of
    /// `estimate_bps` (0: unknown). Returns whether its delay is attributed to the uplink queue.
    pub(super) fn is_uplink_queue(&mut self, sent: u64, estimate_bps: u64, now: Instant) -> bool {
        let Some((up, down, at)) = self.last.replace((self.bytes, sent, now)) else { return false };
        let (up, down) = (self.bytes - up, sent.saturating_sub(down));
        let down_bps =
            u64::try_from(u128::from(down) * 8_000_000 / now.saturating_since(at).as_micros().max(1));
        up > down && (estimate_bps == 0 || down_bps.unwrap_or(u64::MAX) < estimate_bps / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sends packets of `bytes` every `gap` for `time`, beginning at `from`; returns the end.
    fn steady(
        others: &mut OtherTrafficRate,
        bytes: usize,
        gap: Duration,
        time: Duration,
        from: Instant,
    ) -> Instant {
        let mut now = from;
        while now < from + time {
            others.sent(bytes, now);
            now += gap;
        }
        now
    }

    proptest! {
        #[test]
        fn the_rate_is_that_of_the_last_window(
            bytes in 40_usize..1_500,
            gap_us in 10_u64..20_000,
            time_ms in 1_000_u64..3_000,
            ago_ms in 0_u64..1_500,
        ) {
            let mut others = OtherTrafficRate::default();
            let gap = Duration::from_micros(gap_us);
            let time = Duration::from_millis(time_ms);
            let end = steady(&mut others, bytes, gap, time, Instant::from_secs(1));
            let now = end + Duration::from_millis(ago_ms);
            let whole = bytes as f64 * 8e6 / gap_us as f64;
            let packet = bytes as f64 * 8.0 / WINDOW.as_secs_f64();
            let got = others.bps(now) as f64;
            prop_assert!(got <= whole * 1.01 + 2.0 * packet, "{got} of {whole}");
            if ago_ms == 0 {
                prop_assert!(got >= whole * 0.99 - 3.0 * packet, "{got} of {whole}");
            }
            if ago_ms >= 1_000 {
                prop_assert_eq!(others.bps(now), 0);
            }
        }

        #[test]
        fn a_leg_leaves_a_part_of_what_it_carries(bps: u64, sent in prop::collection::vec(0_usize..100_000_000, 0..9)) {
            let (mut others, now) = (OtherTrafficRate::default(), Instant::from_secs(1));
            sent.iter().for_each(|bytes| others.sent(*bytes, now));
            let left = others.available_bps(bps, now);
            prop_assert!(left <= bps && (left > 0 || bps == 0) && left >= bps / 100 * 14, "{left} of {bps}");
            if sent.is_empty() {
                prop_assert_eq!(left, bps);
            }
        }
    }

    #[test]
    fn a_queue_is_the_uplinks_only_if_the_ue_sends_more_than_it_receives() {
        let mut now = Instant::from_secs(1);
        // Bytes in 100 ms, uplink and downlink, and the capacity of the leg in Mbit/s.
        for (up, down, mbps, expected) in [
            (100_000, 2_000, 10, true),
            (100_000, 70_000, 10, false),
            (100_000, 70_000, 100, true),
            (2_000, 60_000, 10, false),
            (2_000, 60_000, 100, false),
            (100_000, 70_000, 0, true),
            (2_000, 60_000, 0, false),
            (0, 0, 10, false),
        ] {
            let mut uplink = Uplink::default();
            assert!(!uplink.is_uplink_queue(5_000, mbps * 1_000_000, now), "no time has passed");
            uplink.on_received(up);
            now += Duration::from_millis(100);
            assert_eq!(
                uplink.is_uplink_queue(5_000 + down, mbps * 1_000_000, now),
                expected,
                "{up} {down} {mbps}"
            );
            now += Duration::from_millis(100);
            assert!(
                !uplink.is_uplink_queue(5_000 + down, mbps * 1_000_000, now),
                "earlier traffic does not count"
            );
        }
    }
}
