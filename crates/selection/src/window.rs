//! The initial congestion window from the guarantee of a slice (the paper, §4.2, Eq. 1).
//!
//! `IW' = α · T · RTT / S`: T is the uplink rate reserved for the UE, RTT the upper bound of the slice's round-trip time, S the
//! maximum segment size. The paper leaves open how to do this safely. Here the result is clamped: at least 10 segments (RFC 6928),
//! at most what pacing sends in one RTT, and at most the peer's initial receive window. Without pacing it stays at 10, because the
//! whole window would be sent as one burst.

use serde::{Deserialize, Serialize};

/// Minimum initial window, in segments (RFC 6928).
pub const MIN_SEGMENTS: u32 = 10;
/// Maximum initial window, in segments: 64 MB with segments of 1000 bytes, more than any first flight.
pub const MAX_SEGMENTS: u32 = 65_535;

/// Inputs of the computation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowInput {
    /// α: the share of the guarantee to use at once; above 0, at most 1.
    pub alpha: f64,
    /// T: the guaranteed uplink rate of this UE, in bit/s.
    pub rate_bps: u64,
    /// RTT: upper bound of the round-trip time, in microseconds.
    pub rtt_us: u64,
    /// S: the maximum payload of a segment, in bytes.
    pub segment_bytes: u32,
    /// Pacing rate, in bit/s; `None`: no pacing.
    pub pacing_bps: Option<u64>,
    /// The initial receive window of the peer, if known, in bytes.
    pub peer_window_bytes: Option<u64>,
}

/// The limit that determined a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WindowLimit {
    /// None: the window is α·T·RTT/S.
    Equation,
    /// The minimum.
    Floor,
    /// Pacing in one RTT, or the absence of pacing.
    Pacing,
    /// The peer's receive window.
    PeerWindow,
    /// The maximum.
    Ceiling,
}

/// An initial window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitialWindow {
    /// The window, in segments.
    pub segments: u32,
    /// The result of the equation without limits, in segments.
    pub equation_segments: u64,
    /// The limit that determined the window.
    pub limit: WindowLimit,
}

/// The window for a slice, in segments.
///
/// An α outside (0, 1], or a segment size of 0, yields the minimum window.
#[must_use]
pub fn initial_window(i: &WindowInput) -> InitialWindow {
    let in_one_rtt = |bps: u64| {
        let bytes = u128::from(bps) * u128::from(i.rtt_us) / 8_000_000;
        u64::try_from(bytes / u128::from(i.segment_bytes.max(1))).unwrap_or(u64::MAX)
    };
    let sound = i.alpha > 0.0 && i.alpha <= 1.0 && i.segment_bytes > 0;
    let exact =
        i.alpha * i.rate_bps as f64 / 8.0 * (i.rtt_us as f64 / 1e6) / f64::from(i.segment_bytes.max(1));
    // A whole number of segments within the guarantee; a float cast saturates.
    let equation_segments = if sound { (exact + 1e-9).floor() as u64 } else { 0 };
    let mut window = (equation_segments, WindowLimit::Equation);
    let caps = [
        (i.pacing_bps.map_or(0, in_one_rtt), WindowLimit::Pacing),
        (
            i.peer_window_bytes.map_or(u64::MAX, |b| b / u64::from(i.segment_bytes.max(1))),
            WindowLimit::PeerWindow,
        ),
        (u64::from(MAX_SEGMENTS), WindowLimit::Ceiling),
    ];
    for cap in caps {
        if cap.0 < window.0 {
            window = cap;
        }
    }
    let limit = match window {
        // If two limits apply, report the one that lowered the window, if any.
        (segments, WindowLimit::Equation) if segments < u64::from(MIN_SEGMENTS) => WindowLimit::Floor,
        (_, limit) => limit,
    };
    let segments = u32::try_from(window.0).unwrap_or(MAX_SEGMENTS).max(MIN_SEGMENTS);
    InitialWindow { segments, equation_segments, limit }
}

/// The values of one decade of route buckets, about 10 % apart (the E24 series).
const STEPS: [u32; 24] =
    [10, 11, 12, 13, 15, 16, 18, 20, 22, 24, 27, 30, 33, 36, 39, 43, 47, 51, 56, 62, 68, 75, 82, 91];

/// The bucket of a window: the largest value that does not exceed it. Routes have `initcwnd` per (slice, bucket), which keeps
/// their number small; at most 9 % of the window is lost.
#[must_use]
pub fn bucket(segments: u32) -> u32 {
    let decades = [1, 10, 100, 1000];
    let steps = decades.iter().flat_map(|d| STEPS.map(|s| s * d));
    steps.take_while(|s| *s <= segments).last().unwrap_or(MIN_SEGMENTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn input() -> WindowInput {
        // Slice A of the paper, with half of the radio's 362 Mbit/s reserved.
        WindowInput {
            alpha: 1.0,
            rate_bps: 180_000_000,
            rtt_us: 29_800,
            segment_bytes: 1448,
            pacing_bps: Some(362_000_000),
            peer_window_bytes: None,
        }
    }

    #[test]
    fn the_equation_by_hand() {
        // 180e6 / 8 * 0.0298 / 1448 = 463.05
        let w = initial_window(&input());
        assert_eq!((w.segments, w.limit), (463, WindowLimit::Equation));
        let quarter = initial_window(&WindowInput { alpha: 0.25, ..input() });
        assert_eq!(quarter.segments, 115);
    }

    #[test]
    fn each_clamp_reports_its_limit() {
        let clamp = |i: WindowInput| {
            let w = initial_window(&i);
            (w.segments, w.limit)
        };
        assert_eq!(clamp(WindowInput { rate_bps: 1_000_000, ..input() }), (10, WindowLimit::Floor));
        assert_eq!(clamp(WindowInput { pacing_bps: None, ..input() }), (10, WindowLimit::Pacing));
        assert_eq!(
            clamp(WindowInput { pacing_bps: Some(90_000_000), ..input() }),
            (231, WindowLimit::Pacing)
        );
        let peer = WindowInput { peer_window_bytes: Some(65_535), ..input() };
        assert_eq!(clamp(peer), (45, WindowLimit::PeerWindow));
        let huge = WindowInput { rate_bps: u64::MAX, pacing_bps: Some(u64::MAX), ..input() };
        assert_eq!(clamp(huge), (MAX_SEGMENTS, WindowLimit::Ceiling));
        for alpha in [0.0, -1.0, 1.01, f64::NAN, f64::INFINITY] {
            assert_eq!(clamp(WindowInput { alpha, ..input() }), (10, WindowLimit::Floor), "{alpha}");
        }
    }

    #[test]
    fn buckets_are_steps() {
        let of = [0, 10, 11, 14, 115, 463, 9_999, u32::MAX].map(bucket);
        assert_eq!(of, [10, 10, 11, 13, 110, 430, 9_100, 91_000]);
    }

    proptest! {
        #[test]
        fn the_window_is_bounded_and_grows_with_alpha(
            rate_bps: u64, rtt_us: u64, segment_bytes: u32,
            pacing_bps: Option<u64>, peer_window_bytes: Option<u64>, alpha in 0.01f64..=1.0,
        ) {
            let i = WindowInput { alpha, rate_bps, rtt_us, segment_bytes, pacing_bps, peer_window_bytes };
            let w = initial_window(&i);
            prop_assert!((MIN_SEGMENTS..=MAX_SEGMENTS).contains(&w.segments));
            prop_assert!(w.segments <= MIN_SEGMENTS || u64::from(w.segments) <= w.equation_segments);
            let whole = initial_window(&WindowInput { alpha: 1.0, ..i });
            prop_assert!(whole.segments >= w.segments);
            let b = bucket(w.segments);
            prop_assert!(b <= w.segments && u64::from(w.segments) * 10 < u64::from(b) * 12);
        }
    }
}
