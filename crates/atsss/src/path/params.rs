//! Parameters of probing and of failure detection.

use anabranch_element::time::Duration;
use serde::{Deserialize, Serialize};

/// When a path is probed, and when it counts as down (rules in [the module](super)).
///
/// Both ends should use the same values; the UPF's `idle_interval_ms` must not be shorter than the UE's.
/// Sixteen bytes, because every path of every session carries a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProbeParams {
    /// Time between probes of a path without traffic, in milliseconds. 100 to 60 000, default 1000.
    pub idle_interval_ms: u16,
    /// Shortest time between probes, however high the packet rate, in milliseconds. 1 to
    /// `active_interval_max_ms`, default 20.
    pub active_interval_min_ms: u16,
    /// Longest time between probes while the path carries traffic, in milliseconds. Up to `idle_interval_ms`,
    /// default 40. It adds to the detection time of a failure under traffic.
    pub active_interval_max_ms: u16,
    /// First time between probes of a path that is down, in milliseconds; doubles up to the idle
    /// interval. 10 to 60 000, default 200.
    pub down_interval_ms: u16,
    /// Shortest silence that counts as a failure, in milliseconds. 20 to 60 000, default 200.
    pub silence_ms: u16,
    /// Data packets (both directions together) per probe between the two active bounds. 1 to 65 535,
    /// default 50.
    pub packets_per_probe: u16,
    /// Silence that counts as a failure, in round-trip times. 1 to 20, default 3.
    pub silence_rtts: u8,
    /// Consecutive probes that must be missed before an idle path counts as down. 1 to 20, default 3.
    pub missed_probes: u8,
    /// Consecutive replies that bring a path back up. 1 to 100, default 3.
    pub replies_to_recover: u8,
    /// Datagrams that the UPF must have sent without any proof of arrival before it declares a path silent. 1
    /// to 255, default 8.
    pub silence_datagrams: u8,
}

impl Default for ProbeParams {
    fn default() -> Self {
        Self {
            idle_interval_ms: 1000,
            active_interval_min_ms: 20,
            active_interval_max_ms: 40,
            down_interval_ms: 200,
            silence_ms: 200,
            packets_per_probe: 50,
            silence_rtts: 3,
            missed_probes: 3,
            replies_to_recover: 3,
            silence_datagrams: 8,
        }
    }
}

/// A parameter of path measurement outside its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: write a value from {min} to {max}")]
pub struct PathParamsError {
    /// The key as written in configuration.
    pub key: &'static str,
    /// The given value.
    pub value: u32,
    /// Smallest valid value.
    pub min: u32,
    /// Largest valid value.
    pub max: u32,
}

impl ProbeParams {
    /// Key, value and valid range of every parameter, used by both checks below.
    fn ranges(&self) -> [(&'static str, u16, u16, u16); 10] {
        let s = self;
        [
            ("idle_interval_ms", s.idle_interval_ms, 100, 60_000),
            ("active_interval_max_ms", s.active_interval_max_ms, 1, s.idle_interval_ms.clamp(100, 60_000)),
            (
                "active_interval_min_ms",
                s.active_interval_min_ms,
                1,
                s.active_interval_max_ms.clamp(1, s.idle_interval_ms.clamp(100, 60_000)),
            ),
            ("down_interval_ms", s.down_interval_ms, 10, 60_000),
            ("silence_ms", s.silence_ms, 20, 60_000),
            ("packets_per_probe", s.packets_per_probe, 1, u16::MAX),
            ("silence_rtts", s.silence_rtts.into(), 1, 20),
            ("missed_probes", s.missed_probes.into(), 1, 20),
            ("replies_to_recover", s.replies_to_recover.into(), 1, 100),
            ("silence_datagrams", s.silence_datagrams.into(), 1, 255),
        ]
    }

    /// Checks every range.
    ///
    /// # Errors
    /// The first key out of range, with the range that is valid.
    pub fn validate(&self) -> Result<(), PathParamsError> {
        check(self.ranges().map(|(key, value, min, max)| (key, value.into(), min.into(), max.into())))
    }

    /// The same values, each clamped to its range. Monitors use these, so that no parameter, checked or not,
    /// can cause a busy loop.
    pub(super) fn clamped(&self) -> Self {
        let [idle, max, min, down, silence, packets, rtts, missed, replies, datagrams] =
            self.ranges().map(|(_, value, min, max)| value.clamp(min, max));
        let byte = |v: u16| u8::try_from(v).unwrap_or(u8::MAX);
        Self {
            idle_interval_ms: idle,
            active_interval_min_ms: min,
            active_interval_max_ms: max,
            down_interval_ms: down,
            silence_ms: silence,
            packets_per_probe: packets,
            silence_rtts: byte(rtts),
            missed_probes: byte(missed),
            replies_to_recover: byte(replies),
            silence_datagrams: byte(datagrams),
        }
    }

    pub(super) const fn idle_interval(&self) -> Duration {
        Duration::from_millis(self.idle_interval_ms as u64)
    }

    pub(super) const fn active_min(&self) -> Duration {
        Duration::from_millis(self.active_interval_min_ms as u64)
    }

    pub(super) const fn active_max(&self) -> Duration {
        Duration::from_millis(self.active_interval_max_ms as u64)
    }

    pub(super) const fn silence(&self) -> Duration {
        Duration::from_millis(self.silence_ms as u64)
    }

    /// Time between probes after `packets` data packets since the last one.
    pub(super) const fn interval_after(&self, packets: u32) -> Duration {
        if packets >= self.packets_per_probe as u32 {
            self.active_min()
        } else if packets > 0 {
            self.active_max()
        } else {
            self.idle_interval()
        }
    }

    /// Time between probes of a path that is down, after `probes` unanswered ones.
    pub(super) fn down_interval(&self, probes: u8) -> Duration {
        let doubled = u64::from(self.down_interval_ms) << (probes / 8).min(9);
        Duration::from_millis(doubled.min(u64::from(self.idle_interval_ms.max(self.down_interval_ms))))
    }
}

/// The first of (key, value, smallest, largest) that is out of range.
pub(super) fn check<const N: usize>(
    ranges: [(&'static str, u32, u32, u32); N],
) -> Result<(), PathParamsError> {
    match ranges.into_iter().find(|(_, value, min, max)| !(min..=max).contains(&value)) {
        Some((key, value, min, max)) => Err(PathParamsError { key, value, min, max }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_survive_clamping() {
        let p = ProbeParams::default();
        assert_eq!(p.validate(), Ok(()));
        assert_eq!(p.clamped(), p);
        assert_eq!(size_of::<ProbeParams>(), 16);
    }

    #[test]
    fn a_wrong_value_names_key_and_range() {
        let p: ProbeParams = serde_json::from_str(r#"{"active_interval_min_ms": 41}"#).unwrap();
        assert_eq!(
            p.validate().unwrap_err().to_string(),
            "active_interval_min_ms = 41: write a value from 1 to 40"
        );
        assert_eq!(p.clamped().validate(), Ok(()));
        assert!(serde_json::from_str::<ProbeParams>(r#"{"interval": 3}"#).is_err());
    }

    #[test]
    fn zeroes_are_clamped() {
        let p: ProbeParams = serde_json::from_str(
            r#"{"idle_interval_ms":0,"active_interval_max_ms":0,"active_interval_min_ms":0,"down_interval_ms":0,
                "silence_ms":0,"packets_per_probe":0,"silence_rtts":0,"missed_probes":0,"replies_to_recover":0,
                "silence_datagrams":0}"#,
        )
        .unwrap();
        assert!(p.validate().is_err());
        assert_eq!(p.clamped().validate(), Ok(()));
    }

    #[test]
    fn the_down_interval_backs_off_to_the_idle_interval() {
        let p = ProbeParams::default();
        assert_eq!(p.down_interval(0), Duration::from_millis(200));
        assert_eq!(p.down_interval(8), Duration::from_millis(400));
        assert_eq!(p.down_interval(255), Duration::from_secs(1));
    }
}
