//! Configuration of RLC.
//!
//! ```toml
//! rlc = { mode = "um", sn_bits = 12, t_reassembly_ms = 35 }
//! rlc = { mode = "am", sn_bits = 18, t_poll_retransmit_ms = 45, poll_pdu = 64 }
//! ```

use super::MAX_WINDOW;
use anabranch_element::time::Duration;
use anabranch_wire::rlc::{AmSn, UmSn};
use serde::{Deserialize, Serialize};

/// Mode and parameters; the names are those of TS 38.331 `RLC-Config`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase")]
pub enum RlcConfig {
    /// Unacknowledged mode: lost data is not retransmitted.
    Um(UmConfig),
    /// Acknowledged mode: lost data is retransmitted.
    Am(AmConfig),
}

impl Default for RlcConfig {
    /// The mode used in the paper: unacknowledged (RLC §V-A).
    fn default() -> Self {
        Self::Um(UmConfig::default())
    }
}

/// Length of the sequence number of a UM bearer, 6 or 12.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct UmSnBits(pub UmSn);

impl TryFrom<u8> for UmSnBits {
    type Error = String;
    fn try_from(bits: u8) -> Result<Self, String> {
        match bits {
            6 => Ok(Self(UmSn::Bits6)),
            12 => Ok(Self(UmSn::Bits12)),
            other => Err(format!("sn_bits = {other}: must be 6 or 12 in UM")),
        }
    }
}

impl From<UmSnBits> for u8 {
    fn from(bits: UmSnBits) -> Self {
        if bits.0 == UmSn::Bits6 { 6 } else { 12 }
    }
}

/// Length of the sequence number of an AM bearer, 12 or 18.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct AmSnBits(pub AmSn);

impl TryFrom<u8> for AmSnBits {
    type Error = String;
    fn try_from(bits: u8) -> Result<Self, String> {
        match bits {
            12 => Ok(Self(AmSn::Bits12)),
            18 => Ok(Self(AmSn::Bits18)),
            other => Err(format!("sn_bits = {other}: must be 12 or 18 in AM")),
        }
    }
}

impl From<AmSnBits> for u8 {
    fn from(bits: AmSnBits) -> Self {
        if bits.0 == AmSn::Bits12 { 12 } else { 18 }
    }
}

/// Unacknowledged mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UmConfig {
    /// Length of the sequence number.
    pub sn_bits: UmSnBits,
    /// How long to wait for a missing segment, 0 to 200 ms; it should cover HARQ retransmissions.
    pub t_reassembly_ms: u16,
}

impl Default for UmConfig {
    fn default() -> Self {
        Self { sn_bits: UmSnBits(UmSn::Bits12), t_reassembly_ms: 35 }
    }
}

/// Acknowledged mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AmConfig {
    /// Length of the sequence number.
    pub sn_bits: AmSnBits,
    /// How long to wait for a missing segment before it is reported, 0 to 200 ms.
    pub t_reassembly_ms: u16,
    /// Minimum time between two STATUS PDUs, 0 to 2400 ms.
    pub t_status_prohibit_ms: u16,
    /// How long to wait for the answer to a poll, 5 to 4000 ms.
    pub t_poll_retransmit_ms: u16,
    /// PDUs between two polls, at least 1.
    pub poll_pdu: u32,
    /// Bytes between two polls, at least 1.
    pub poll_bytes: u32,
    /// Retransmissions of an SDU that count as a link failure, 1 to 32.
    pub max_retx: u8,
}

impl Default for AmConfig {
    fn default() -> Self {
        Self {
            sn_bits: AmSnBits(AmSn::Bits18),
            t_reassembly_ms: 35,
            t_status_prohibit_ms: 15,
            t_poll_retransmit_ms: 45,
            poll_pdu: 64,
            poll_bytes: 125_000,
            max_retx: 32,
        }
    }
}

impl AmConfig {
    /// Maximum number of unacknowledged SDUs: half of the sequence numbers, at most [`MAX_WINDOW`].
    #[must_use]
    pub fn window(&self) -> u32 {
        (self.sn_bits.0.modulus() / 2).min(MAX_WINDOW)
    }
}

pub(super) fn ms(ms: u16) -> Duration {
    Duration::from_millis(ms.into())
}

/// A parameter is out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rlc: {key} = {value}: must be {remedy}")]
pub struct RlcError {
    /// The configuration key.
    pub key: &'static str,
    /// The configured value.
    pub value: u32,
    /// The valid values.
    pub remedy: &'static str,
}

impl RlcConfig {
    /// Checks that every parameter is in range.
    ///
    /// # Errors
    /// The first parameter that is not.
    pub fn check(&self) -> Result<(), RlcError> {
        let check = |key, value: u32, ok: bool, remedy| {
            if ok { Ok(()) } else { Err(RlcError { key, value, remedy }) }
        };
        let reassembly = |ms: u16| check("t_reassembly_ms", ms.into(), ms <= 200, "0 to 200");
        match self {
            Self::Um(c) => reassembly(c.t_reassembly_ms),
            Self::Am(c) => {
                reassembly(c.t_reassembly_ms)?;
                let prohibit = c.t_status_prohibit_ms;
                check("t_status_prohibit_ms", prohibit.into(), prohibit <= 2400, "0 to 2400")?;
                let retransmit = c.t_poll_retransmit_ms;
                let ok = (5..=4000).contains(&retransmit);
                check("t_poll_retransmit_ms", retransmit.into(), ok, "5 to 4000")?;
                check("poll_pdu", c.poll_pdu, c.poll_pdu > 0, "at least 1")?;
                check("poll_bytes", c.poll_bytes, c.poll_bytes > 0, "at least 1")?;
                check("max_retx", c.max_retx.into(), (1..=32).contains(&c.max_retx), "1 to 32")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_examples_in_the_documentation_parse() {
        let parse = |text: &str| serde_json::from_str::<RlcConfig>(text);
        assert_eq!(parse(r#"{"mode": "um"}"#).unwrap(), RlcConfig::default());
        let am = parse(r#"{"mode": "am", "sn_bits": 12, "poll_pdu": 4}"#).unwrap();
        assert!(matches!(am, RlcConfig::Am(c) if c.poll_pdu == 4 && c.window() == 2048));
        assert_eq!(AmConfig::default().window(), MAX_WINDOW);
        let why = |text: &str| parse(text).unwrap_err().to_string();
        assert!(why(r#"{"mode": "um", "sn_bits": 18}"#).contains("sn_bits = 18: must be 6 or 12 in UM"));
        assert!(why(r#"{"mode": "tm"}"#).contains("expected `um` or `am`"));
        assert!(why(r#"{"mode": "um", "poll_pdu": 3}"#).contains("poll_pdu"));
        let long = RlcConfig::Um(UmConfig { t_reassembly_ms: 201, ..UmConfig::default() });
        assert_eq!(long.check().unwrap_err().to_string(), "rlc: t_reassembly_ms = 201: must be 0 to 200");
        let never = RlcConfig::Am(AmConfig { poll_pdu: 0, ..AmConfig::default() });
        assert_eq!(never.check().unwrap_err().to_string(), "rlc: poll_pdu = 0: must be at least 1");
    }
}
