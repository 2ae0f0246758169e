//! Configuration of a channel.
//!
//! ```toml
//! channel = { model = "constant", mcs = 28 }          # or cqi = 15
//! channel = { model = "trace", file = "train.csv", start_s = 5 }
//! channel = { model = "mahimahi", file = "uplink.trace", window_ms = 100 }
//! channel = { model = "pedestrian", seed = 1 }        # or "train": generated
//! ```

use super::markov::Markov;
use super::{Channel, ChannelError, CqiTrace, Quality};
use crate::amc::Amc;
use anabranch_element::time::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A channel model and its parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "snake_case", deny_unknown_fields)]
pub enum ChannelConfig {
    /// A constant quality: an MCS or a CQI.
    Constant {
        /// Modulation and coding scheme.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mcs: Option<u8>,
        /// Channel quality indicator, 0 to 15.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cqi: Option<u8>,
    },
    /// CSV rows, see [`CqiTrace::csv`].
    Trace {
        /// Name of the trace, passed to the loader.
        file: String,
        /// Start time, seconds; the first value applies before it.
        #[serde(default)]
        start_s: f64,
    },
    /// Delivery opportunities, see [`CqiTrace::mahimahi`].
    Mahimahi {
        /// Name of the trace, passed to the loader.
        file: String,
        /// Interval over which the rate is averaged, milliseconds.
        #[serde(default = "default_window_ms")]
        window_ms: u32,
        /// Start time, seconds.
        #[serde(default)]
        start_s: f64,
    },
    /// Generated, see [`Markov::PEDESTRIAN`].
    Pedestrian {
        /// Seed of the trace; default: drawn by the cell, different for each UE.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seed: Option<u64>,
        /// Length of the trace until it repeats, seconds.
        #[serde(default = "default_length_s")]
        length_s: u32,
        /// Start time, seconds.
        #[serde(default)]
        start_s: f64,
    },
    /// Generated, see [`Markov::TRAIN`].
    Train {
        /// Seed of the trace; default: drawn by the cell, different for each UE.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seed: Option<u64>,
        /// Length of the trace until it repeats, seconds.
        #[serde(default = "default_length_s")]
        length_s: u32,
        /// Start time, seconds.
        #[serde(default)]
        start_s: f64,
    },
}

const fn default_window_ms() -> u32 {
    100
}
const fn default_length_s() -> u32 {
    60
}

impl ChannelConfig {
    /// A constant MCS.
    #[must_use]
    pub const fn mcs(mcs: u8) -> Self {
        Self::Constant { mcs: Some(mcs), cqi: None }
    }

    /// Builds the channel for a carrier. `load` returns the text of a trace by name, or the reason why it cannot be read.
    ///
    /// # Errors
    /// A trace that cannot be read or is malformed, or an MCS or CQI that is not in the carrier's table.
    pub fn build(
        &self,
        amc: &Amc,
        seed: u64,
        load: &mut dyn FnMut(&str) -> Result<String, String>,
    ) -> Result<Channel, ChannelError> {
        let mut read = |file: &str| {
            let remedy = "give a file that can be read";
            load(file).map_err(|what| ChannelError::Whole { file: file.to_owned(), what, remedy })
        };
        let (trace, start_s) = match self {
            Self::Constant { mcs: Some(mcs), cqi: None } => {
                return Ok(Channel::constant(Quality::Mcs(amc.check_mcs(*mcs)?)));
            }
            Self::Constant { mcs: None, cqi: Some(cqi) } => {
                amc.mcs_of_cqi(*cqi)?;
                return Ok(Channel::constant(Quality::Cqi(*cqi)));
            }
            Self::Constant { mcs, cqi } => {
                let value = match (mcs, cqi) {
                    (Some(mcs), Some(cqi)) => format!("{mcs} and {cqi}"),
                    _ => "nothing".to_owned(),
                };
                return Err(ChannelError::Value { key: "mcs and cqi", value, remedy: "one of the two" });
            }
            Self::Trace { file, start_s } => (CqiTrace::csv(file, &read(file)?)?, *start_s),
            Self::Mahimahi { file, window_ms, start_s } => {
                (CqiTrace::mahimahi(file, &read(file)?, amc, *window_ms)?, *start_s)
            }
            Self::Pedestrian { seed: own, length_s, start_s } => {
                (Markov::PEDESTRIAN.generate(*length_s, own.unwrap_or(seed))?, *start_s)
            }
            Self::Train { seed: own, length_s, start_s } => {
                (Markov::TRAIN.generate(*length_s, own.unwrap_or(seed))?, *start_s)
            }
        };
        if !(0.0..=1e6).contains(&start_s) {
            return Err(ChannelError::Value {
                key: "start_s",
                value: start_s.to_string(),
                remedy: "0 to 1000000",
            });
        }
        Ok(Channel::trace(Arc::new(trace), Instant::ZERO + Duration::from_secs_f64(start_s)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amc::RadioConfig;

    fn build(text: &str) -> Result<Channel, String> {
        let config: ChannelConfig = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let amc = Amc::new(&RadioConfig::default()).unwrap();
        let mut load = |file: &str| match file {
            "good.csv" => Ok("0,9\n1,3\n".to_owned()),
            other => Err(format!("no file {other}")),
        };
        config.build(&amc, 7, &mut load).map_err(|e| e.to_string())
    }

    #[test]
    fn each_model() {
        let quality = |text: &str, s: u64| build(text).unwrap().quality(Instant::from_secs(s));
        assert_eq!(quality(r#"{"model": "constant", "mcs": 28}"#, 9), Quality::Mcs(28));
        assert_eq!(quality(r#"{"model": "constant", "cqi": 15}"#, 9), Quality::Cqi(15));
        let trace = r#"{"model": "trace", "file": "good.csv", "start_s": 5}"#;
        assert_eq!([0, 5, 6, 7].map(|s| quality(trace, s)), [9, 9, 3, 9].map(Quality::Cqi));
        let seeded = r#"{"model": "train", "seed": 7}"#;
        let by_cell = r#"{"model": "train"}"#;
        assert!((0..60).all(|s| quality(seeded, s) == quality(by_cell, s)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let why = |text: &str| build(text).unwrap_err();
        assert_eq!(
            why(r#"{"model": "constant", "mcs": 29}"#),
            "channel: MCS 29 is out of range: TS 36.213 Table 7.1.7.2.1-1 has MCS 0 to 28"
        );
        assert_eq!(why(r#"{"model": "constant", "cqi": 16}"#), "channel: CQI 16 is out of range: 0 to 15");
        assert!(why(r#"{"model": "constant"}"#).contains("must be one of the two"));
        assert_eq!(
            why(r#"{"model": "trace", "file": "x.csv"}"#),
            "x.csv: no file x.csv; give a file that can be read"
        );
        assert!(why(r#"{"model": "trace", "file": "good.csv", "start_s": -1}"#).contains("start_s = -1"));
        assert!(why(r#"{"model": "pedestrian", "length_s": 0}"#).contains("length_s = 0"));
        assert!(why(r#"{"model": "bicycle"}"#).contains("unknown variant `bicycle`"));
        assert!(why(r#"{"model": "train", "sead": 3}"#).contains("sead"));
    }
}
