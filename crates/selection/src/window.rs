//! The initial congestion window from what a slice guarantees (the paper, §4.2, Eq. 1).
//!
//! `IW' = α · T · RTT / S`: T the uplink rate reserved for the UE, RTT the upper bound of the slice's round-trip
//! time, S the largest segment. The paper leaves open how to do this safely; here the result is clamped:
//! never below 10 segments (RFC 6928), never above what pacing sends in one RTT, nor above what the peer's
//! first receive window takes. Without pacing it stays at 10, since the whole window would leave as one burst.

use serde::{Deserialize, Serialize};

/// The smallest initial window, in segments (RFC 6928).
pub const MIN_SEGMENTS: u32 = 10;
/// The largest initial window, in segments: 64 MB of 1000-byte segments, beyond any first flight.
pub const MAX_SEGMENTS: u32 = 65_535;

/// What the window is computed from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowInput {
    /// α: the share of the guarantee to use at once; above 0, at most 1.
    pub alpha: f64,
    /// T: the guaranteed uplink rate of this UE, in bit/s.
    pub rate_bps: u64,
    /// RTT: upper bound of the round-trip time, in microseconds.
    pub rtt_us: u64,
    /// S: the largest segment's payload, in bytes.
    pub segment_bytes: u32,
    /// The rate at which pacing sends, in bit/s; none: no pacing.
    pub pacing_bps: Option<u64>,
    /// The receive window the peer is known to open with, in bytes.
    pub peer_window_bytes: Option<u64>,
}

/// What bounded a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WindowLimit {
    /// Nothing: it is α·T·RTT/S.
    Equation,
    /// The least there is.
    Floor,
    /// What pacing sends in one RTT, or that there is no pacing.
    Pacing,
    /// The peer's receive window.
    PeerWindow,
    /// The most there is.
    Ceiling,
}

/// An initial window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitialWindow {
    /// The window, in segments.
    pub segments: u32,
    /// What the equation alone says, in segments.
    pub equation_segments: u64,
    /// What bounded it.
    pub limit: WindowLimit,
}

/// The window for a slice, in segments.
///
/// An α outside (0, 1], or a segment of 0 bytes, gives the least window.
#[must_use]
pub fn initial_window(i: &WindowInput) -> InitialWindow {
    let in_one_rtt = |bps: u64| {
        let bytes = u128::from(bps) * u128::from(i.rtt_us) / 8_000_000;
        u64::try_from(bytes / u128::from(i.segment_bytes.max(1))).unwrap_or(u64::MAX)
    };
    let sound = i.alpha > 0.0 && i.alpha <= 1.0 && i.segment_bytes > 0;
    let exact =
        i.alpha * i.rate_bps as f64 / 8.0 * (i.rtt_us as f64 / 1e6) / f64::from(i.segment_bytes.max(1));
    // A whole number of segments, not more than the guarantee; a float's cast saturates.
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
        // Which of two bounds holds: the reason is the one that took the window down, if one did.
        (segments, WindowLimit::Equation) if segments < u64::from(MIN_SEGMENTS) => WindowLimit::Floor,
        (_, limit) => limit,
    };
    let segments = u32::try_from(window.0).unwrap_or(MAX_SEGMENTS).max(MIN_SEGMENTS);
    InitialWindow { segments, equation_segments, limit }
}

/// The steps of one decade of route buckets, about 10 % apart (the E24 series).
const STEPS: [u32; 24] =
    [10, 11, 12, 13, 15, 16, 18, 20, 22, 24, 27, 30, 33, 36, 39, 43, 47, 51, 56, 62, 68, 75, 82, 91];

/// The bucket a window falls into: the largest step that is not larger. Routes carry `initcwnd` per (slice,
/// bucket), so that there are few of them; at most 9 % of the window is lost.
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
    fn each_clamp_says_so() {
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
