//! Slices set over REST.

use anabranch_element::time::{Duration, Instant};
use anabranch_selection::ursp::Snssai;
use anabranch_selection::{Isolation, Slice, SliceFacts};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A slice of this host: how packets enter it, and facts from the network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SliceSpec {
    /// Interface through which its packets leave.
    pub(super) interface: String,
    /// Packet mark that selects the slice; absent: the whole interface is the slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mark: Option<u32>,
    /// Routing table of the mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) table: Option<u32>,
    /// Slice/service type (SST).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) sst: Option<u8>,
    /// Slice differentiator (SD), six hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) sd: Option<String>,
    /// Data network (DNN).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) dnn: Option<String>,
    /// Time for which the facts are valid, seconds; default 60.
    #[serde(default = "minute")]
    pub(super) ttl_s: u32,
    /// Upper bound of the round-trip time, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) rtt_us: Option<u64>,
    /// Guaranteed uplink rate, bit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) uplink_guaranteed_bps: Option<u64>,
    /// Maximum uplink rate, bit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) uplink_max_bps: Option<u64>,
    /// Guaranteed downlink rate, bit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) downlink_guaranteed_bps: Option<u64>,
    /// Maximum downlink rate, bit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) downlink_max_bps: Option<u64>,
    /// 5G QoS identifiers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) five_qi: Vec<u8>,
    /// Isolation: `none`, `logical` or `physical`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(super) isolation: Option<Isolation>,
}

fn minute() -> u32 {
    60
}

impl SliceSpec {
    /// The slice in the form of the engine, with facts valid from `now`.
    pub fn slice(&self, now: Instant) -> Result<Slice, String> {
        if self.mark.is_some() != self.table.is_some() {
            return Err("a mark needs its routing table, and a table its mark".into());
        }
        if self.mark == Some(0) || self.table == Some(0) {
            return Err("mark and table must be 1 or more".into());
        }
        let hex = |s: &String| {
            (s.len() == 6 && s.bytes().all(|b| b.is_ascii_hexdigit()))
                .then(|| u32::from_str_radix(s, 16).ok())
                .flatten()
                .ok_or_else(|| format!("sd \"{s}\": write six hexadecimal digits, such as \"00000a\""))
        };
        let sd = self.sd.as_ref().map(hex).transpose()?;
        let snssai = match (self.sst, sd) {
            (Some(sst), sd) => Some(Snssai { sst, sd }),
            (None, Some(_)) => return Err("an sd needs its sst".into()),
            (None, None) => None,
        };
        for (least, most, way) in [
            (self.uplink_guaranteed_bps, self.uplink_max_bps, "uplink"),
            (self.downlink_guaranteed_bps, self.downlink_max_bps, "downlink"),
        ] {
            if least.zip(most).is_some_and(|(least, most)| least > most) {
                return Err(format!("{way}: the guaranteed rate exceeds the maximum rate"));
            }
        }
        Ok(Slice {
            interface: self.interface.clone(),
            mark: self.mark,
            table: self.table,
            snssai,
            dnn: self.dnn.clone(),
            facts: Some(SliceFacts {
                as_of: now,
                ttl: Duration::from_secs(u64::from(self.ttl_s)),
                rtt_us: self.rtt_us,
                uplink_guaranteed_bps: self.uplink_guaranteed_bps,
                uplink_max_bps: self.uplink_max_bps,
                downlink_guaranteed_bps: self.downlink_guaranteed_bps,
                downlink_max_bps: self.downlink_max_bps,
                five_qi: self.five_qi.clone(),
                isolation: self.isolation,
            }),
        })
    }
}
