//! Coded: source packets on the best access, repair packets on another (`atsss::coding`, docs/atsss-coded.md).
//!
//! Not a mode of TS 24.193. The *source access* is the one with the smallest delay, with loss counted as delay:
//!
//! ```text
//!   delay(p) = rtt / 2 + LOSS_WEIGHT · loss · longest wait          smallest wins; hysteresis and dwell of smallest-delay
//! ```
//!
//! A lost source is restored after the longest wait at worst, or not at all. The quality of a call depends on
//! its worst packets and not on the mean, so this wait counts [`LOSS_WEIGHT`] times. With a wait of 100 ms, an
//! access with 5 % loss must therefore be 20 ms faster than one without loss.
//!
//! Repairs take the best of the other accesses, by the same measure, because a loss burst rarely affects both.
//! They also use an access held back by flap control, since a repair moves no flow. An access on which repairs
//! would arrive after half the wait is useless. In that case, and with a single access, repairs follow the
//! sources and help only against single losses.

use crate::smallest_delay::{DEFAULT_DWELL_MS, DEFAULT_HYSTERESIS_PERCENT, SmallestDelay};
use crate::{
    Compile, Exclusion, Input, ModeState, Names, PathId, PathSet, PathState, PathStates, Pick, PolicyError,
    Steer, Treatment,
};

crate::params! {
    /// Parameters of coded.
    pub struct Params {
        /// Maximum bytes of repair packets, in percent of the bytes of the source packets.
        overhead_percent: u8 = 30, range(10.0, 100.0, "%");
        /// Maximum number of packets that one repair packet covers.
        window_packets: u8 = 64, range(1.0, 128.0, "packets");
        /// Longest wait for a lost packet, in milliseconds; packets after a gap are held for up to the same time to keep their order.
        longest_wait_ms: u16 = 100, range(10.0, 1000.0, "ms");
    }
}

/// Weight of the longest wait for a lost packet.
const LOSS_WEIGHT: u64 = 4;

/// Compiled coded mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coded {
    overhead_percent: u8,
    window: u8,
    wait_ms: u16,
}

impl Coded {
    const BEST: SmallestDelay =
        SmallestDelay::new(DEFAULT_HYSTERESIS_PERCENT, DEFAULT_DWELL_MS).leaving_above(100);

    /// Repairs of at most `overhead_percent` of the sources' bytes, each over at most `window` packets that are
    /// not older than `wait_ms`.
    #[must_use]
    pub const fn new(overhead_percent: u8, window: u8, wait_ms: u16) -> Self {
        Self { overhead_percent, window, wait_ms }
    }

    /// Bytes of repairs in percent of the bytes of sources.
    #[must_use]
    pub const fn overhead_percent(&self) -> u8 {
        self.overhead_percent
    }

    /// Most packets covered by a repair.
    #[must_use]
    pub const fn window(&self) -> u8 {
        self.window
    }

    /// The time for which a packet is worth waiting, in milliseconds.
    #[must_use]
    pub const fn wait_ms(&self) -> u16 {
        self.wait_ms
    }

    /// The path of a repair for sources sent by `source`.
    #[must_use]
    pub fn repair_path(&self, source: PathId, live: &PathStates) -> PathId {
        let latest_us = live.get(source).rtt_us / 2 + u32::from(self.wait_ms) * 500;
        let others = live.up().without(PathSet::single(source));
        let in_time: PathSet = others.iter().filter(|&p| live.get(p).rtt_us / 2 <= latest_us).collect();
        let weighted = self.weighted(live);
        let same = live.is_up(source).then_some(source);
        weighted.fastest(in_time).or(same).or_else(|| weighted.fastest(others)).unwrap_or(source)
    }

    /// The paths with their loss added to the round-trip time.
    fn weighted(&self, paths: &PathStates) -> PathStates {
        let mut weighted = PathStates::default();
        for path in paths.up().iter() {
            let PathState { rtt_us, loss_ppm, .. } = paths.get(path);
            // ppm · ms = ns; twice the delay, because it is added to a round trip.
            let lost_us = u64::from(loss_ppm) * u64::from(self.wait_ms) * LOSS_WEIGHT * 2 / 1000;
            let rtt_us = u32::try_from(u64::from(rtt_us) + lost_us).unwrap_or(u32::MAX);
            weighted.set(path, PathState { rtt_us, ..paths.get(path) });
        }
        weighted
    }
}

impl Compile for Coded {
    type Params = Params;

    fn compile(params: &Params, _: &Names<'_>) -> Result<Self, PolicyError> {
        Ok(Self::new(params.overhead_percent, params.window_packets, params.longest_wait_ms))
    }
}

impl Steer for Coded {
    fn splits(&self) -> bool {
        true
    }

    fn coded(&self) -> Option<&Self> {
        Some(self)
    }

    fn pick(&self, state: &mut ModeState, input: &mut Input<'_>) -> Pick {
        let paths = self.weighted(input.paths);
        Self::BEST.choose(state, input.up, &paths, input.now).into()
    }
    fn treatment(&self, state: &ModeState, input: &Input<'_>) -> Treatment {
        let Some(source) = state.current() else { return Treatment::NoPath };
        Treatment::Coded { source, repair: self.repair_path(source, input.live) }
    }

    fn excludes(&self, state: &ModeState, input: &Input<'_>, path: PathId) -> Option<Exclusion> {
        let Treatment::Coded { source, repair } = self.treatment(state, input) else { return None };
        if path == repair {
            return None;
        }
        Self::BEST.refuses(state, input.up, &self.weighted(input.paths), path).filter(|_| path != source)
    }
}
