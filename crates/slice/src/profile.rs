//! ServiceProfile: the properties of a slice, named as in TS 28.541 §6.3.3 and Table 6.4.1 (and its OpenAPI,
//! `TS28541_SliceNrm.yaml`). Rates are in kbit/s, latencies in milliseconds, and jitter in microseconds, as in the specification.

use super::nest::Nest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Rates of a slice or a UE in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thpt {
    /// Guaranteed rate, kbit/s.
    #[serde(rename = "guaThpt", default, skip_serializing_if = "Option::is_none")]
    pub gua: Option<f64>,
    /// Maximum rate, kbit/s.
    #[serde(rename = "maxThpt", default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}

/// S-NSSAI (TS 23.003 §28.4).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snssai {
    /// Slice/service type.
    pub sst: u8,
    /// Slice differentiator, six hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sd: Option<String>,
}

/// The properties of a slice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceProfile {
    /// Slice/service type.
    #[serde(default)]
    pub sst: u8,
    /// S-NSSAIs of one PLMN.
    #[serde(rename = "sNSSAIList", default, skip_serializing_if = "Vec::is_empty")]
    pub snssai_list: Vec<Snssai>,
    /// Data network; not in TS 28.541.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dnn: Option<String>,
    /// Maximum number of UEs.
    #[serde(rename = "maxNumberofUEs", default, skip_serializing_if = "Option::is_none")]
    pub max_ues: Option<u64>,
    /// Maximum number of PDU sessions.
    #[serde(rename = "maxNumberofPDUSessions", default, skip_serializing_if = "Option::is_none")]
    pub max_sessions: Option<u64>,
    /// Downlink latency through the RAN, core and transport, milliseconds.
    #[serde(rename = "dLLatency", default, skip_serializing_if = "Option::is_none")]
    pub dl_latency: Option<f64>,
    /// Uplink latency, milliseconds.
    #[serde(rename = "uLLatency", default, skip_serializing_if = "Option::is_none")]
    pub ul_latency: Option<f64>,
    /// Jitter, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
    /// Share of packets that arrive within the latency, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reliability: Option<f64>,
    /// `SUPPORTED` or `NOT SUPPORTED`.
    #[serde(rename = "delayTolerance", default, skip_serializing_if = "Option::is_none")]
    pub delay_tolerance: Option<String>,
    /// `SHARED` or `NON-SHARED`.
    #[serde(rename = "networkSliceSharingIndicator", default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<String>,
    /// Downlink rates of the whole slice.
    #[serde(rename = "dLThptPerSlice", default)]
    pub dl_slice: Thpt,
    /// Downlink rates of a UE.
    #[serde(rename = "dLThptPerUE", default)]
    pub dl_ue: Thpt,
    /// Uplink rates of the whole slice.
    #[serde(rename = "uLThptPerSlice", default)]
    pub ul_slice: Thpt,
    /// Uplink rates of a UE.
    #[serde(rename = "uLThptPerUE", default)]
    pub ul_ue: Thpt,
    /// Maximum packet size downlink, bytes.
    #[serde(rename = "dLMaxPktSize", default, skip_serializing_if = "Option::is_none")]
    pub dl_packet: Option<u16>,
    /// Maximum packet size uplink, bytes.
    #[serde(rename = "uLMaxPktSize", default, skip_serializing_if = "Option::is_none")]
    pub ul_packet: Option<u16>,
    /// Locations served.
    #[serde(rename = "coverageArea", default, skip_serializing_if = "Vec::is_empty")]
    pub coverage: Vec<String>,
    /// Attributes that are passed on unchanged.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl From<&Nest> for ServiceProfile {
    /// Converts all values of a NEST with an equivalent in TS 28.541; the NEST is kept with the rest.
    fn from(nest: &Nest) -> Self {
        let kbps = |bps: Option<u64>| bps.map(|bps| bps as f64 / 1e3);
        let thpt =
            |t: &super::nest::Throughput| Thpt { gua: kbps(t.guaranteed_bps), max: kbps(t.maximum_bps) };
        let support = |yes: bool| if yes { "SUPPORTED" } else { "NOT SUPPORTED" }.to_owned();
        let least = |of: &dyn Fn(&super::nest::Qos) -> Option<f64>| {
            nest.qos.iter().filter_map(of).min_by(f64::total_cmp)
        };
        let budget = least(&|q| q.packet_delay_budget_ms);
        let mut other = Map::new();
        for (theirs, ours) in [
            ("deterministic_communication", "dLDeterministicComm"),
            ("nb_iot", "nBIoT"),
            ("positional_support", "positioning"),
            ("radio_spectrum", "nROperatingBands"),
            ("terminal_density", "termDensity"),
            ("device_velocity", "uEMobilityLevel"),
            ("simultaneous_nsi", "simultaneousUse"),
            ("mission_critical_support", "missionCriticalSupport"),
            ("group_communication_support", "groupCommunicationSupport"),
            ("mmtel_support", "mMTelSupport"),
            ("nonIP_traffic", "nonIPSupport"),
        ] {
            if let Some(value) = nest.base.get(theirs).filter(|v| !v.is_null()) {
                other.insert(ours.to_owned(), value.clone());
            }
        }
        if let Some(kpis) = nest.document.get("test_descriptor").and_then(|t| t.get("performance_monitoring"))
        {
            other.insert("kPIMonitoring".to_owned(), kpis.clone());
        }
        if !nest.qos.is_empty() {
            other.insert("qosParameters".to_owned(), json!(nest.qos));
        }
        Self {
            sst: nest.sst,
            snssai_list: vec![Snssai { sst: nest.sst, sd: nest.sd.clone() }],
            dnn: nest.dnn.clone(),
            max_ues: nest.terminals,
            max_sessions: nest.connections,
            dl_latency: budget,
            ul_latency: budget,
            jitter: least(&|q| q.jitter_ms).map(|ms| ms * 1e3),
            reliability: least(&|q| q.packet_error_rate_percent).map(|loss| 100.0 - loss),
            delay_tolerance: Some(support(nest.delay_tolerance)),
            sharing: Some(if nest.isolation >= 2 { "NON-SHARED" } else { "SHARED" }.to_owned()),
            dl_slice: thpt(&nest.network_dl),
            dl_ue: thpt(&nest.ue_dl),
            ul_slice: thpt(&nest.network_ul),
            ul_ue: thpt(&nest.ue_ul),
            dl_packet: nest.mtu,
            ul_packet: nest.mtu,
            coverage: nest.coverage.clone(),
            other,
        }
    }
}

/// A value of a profile that is out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {what}")]
pub struct ProfileError {
    /// The attribute.
    pub key: &'static str,
    /// The fault, and the valid values.
    pub what: String,
}

/// Maximum rate, kbit/s.
const MAX_KBPS: f64 = 1e9;
/// Maximum length in bytes of texts sent to UEs or used to find locations; as in a NEST.
const MAX_TEXT: usize = 128;
/// Maximum number of QoS parameters, as in a NEST: the 5QI of each is sent to UEs.
const MAX_QOS: usize = 256;

impl ServiceProfile {
    /// Checks that the values are consistent.
    ///
    /// # Errors
    /// The first attribute that is out of range, or whose guarantee is above its maximum.
    pub fn check(&self) -> Result<(), ProfileError> {
        for (key, t) in [
            ("dLThptPerSlice", self.dl_slice),
            ("dLThptPerUE", self.dl_ue),
            ("uLThptPerSlice", self.ul_slice),
            ("uLThptPerUE", self.ul_ue),
        ] {
            for rate in [t.gua, t.max].into_iter().flatten() {
                if !(0.0..=MAX_KBPS).contains(&rate) {
                    let what = format!("is {rate}: must be 0 to {MAX_KBPS}, in kbit/s");
                    return Err(ProfileError { key, what });
                }
            }
            if let (Some(least), Some(most)) = (t.gua, t.max)
                && least > most
            {
                let what = format!("maxThpt {most} is below guaThpt {least}");
                return Err(ProfileError { key, what });
            }
        }
        for (key, value, max, unit) in [
            ("dLLatency", self.dl_latency, 10_000.0, "milliseconds"),
            ("uLLatency", self.ul_latency, 10_000.0, "milliseconds"),
            ("jitter", self.jitter, 1e7, "microseconds"),
            ("reliability", self.reliability, 100.0, "percent"),
        ] {
            if let Some(value) = value.filter(|v| !(0.0..=max).contains(v)) {
                return Err(ProfileError { key, what: format!("is {value}: must be 0 to {max}, in {unit}") });
            }
        }
        if let Some(sd) = self.snssai_list.iter().find_map(|s| {
            s.sd.as_ref().filter(|sd| sd.len() != 6 || !sd.bytes().all(|b| b.is_ascii_hexdigit()))
        }) {
            let what = format!("sd is \"{sd}\": must be six hexadecimal digits");
            return Err(ProfileError { key: "sNSSAIList", what });
        }
        if self.coverage.len() > 256 || self.snssai_list.len() > 16 {
            let what = "too long: at most 256 places and 16 S-NSSAIs".to_owned();
            return Err(ProfileError { key: "coverageArea", what });
        }
        let dnn = self.dnn.iter().map(|dnn| ("dnn", dnn));
        let texts = dnn.chain(self.coverage.iter().map(|place| ("coverageArea", place)));
        for (key, text) in texts {
            if text.len() > MAX_TEXT || text.chars().any(char::is_control) {
                let what = format!("must be a text of at most {MAX_TEXT} bytes without control characters");
                return Err(ProfileError { key, what });
            }
        }
        let qos = self.other.get("qosParameters").and_then(Value::as_array);
        if qos.is_some_and(|list| list.len() > MAX_QOS) {
            return Err(ProfileError { key: "qosParameters", what: format!("at most {MAX_QOS} of them") });
        }
        Ok(())
    }

    /// This profile with the differences between `old` and `new`: changing one attribute leaves the others at their current values.
    #[must_use]
    pub fn with_changes(&self, old: &Self, new: &Self) -> Self {
        fn patch(to: &mut Map<String, Value>, old: &Map<String, Value>, new: &Map<String, Value>) {
            for key in old.keys().chain(new.keys()) {
                match (old.get(key), new.get(key)) {
                    (a, b) if a == b => {}
                    (Some(Value::Object(old)), Some(Value::Object(new))) => {
                        if let Some(Value::Object(to)) = to.get_mut(key) {
                            patch(to, old, new);
                        } else {
                            to.insert(key.clone(), Value::Object(new.clone()));
                        }
                    }
                    (_, Some(new)) => drop(to.insert(key.clone(), new.clone())),
                    (_, None) => drop(to.remove(key)),
                }
            }
        }
        let [Ok(Value::Object(mut to)), Ok(Value::Object(old)), Ok(Value::Object(new))] =
            [self, old, new].map(serde_json::to_value)
        else {
            return new.clone();
        };
        patch(&mut to, &old, &new);
        serde_json::from_value(Value::Object(to)).unwrap_or_default()
    }

    /// Guaranteed rates of the whole slice: its guarantee, or that of one UE if it is larger or the only one.
    #[must_use]
    pub fn rates_bps(&self) -> (u64, u64) {
        let bps = |slice: Thpt, ue: Thpt| {
            let most = slice.gua.into_iter().chain(ue.gua).max_by(f64::total_cmp);
            (most.unwrap_or(0.0) * 1e3).round() as u64
        };
        (bps(self.dl_slice, self.dl_ue), bps(self.ul_slice, self.ul_ue))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Information for UEs stays short, whatever the origin of the profile.
    #[test]
    fn information_for_ues_is_bounded() {
        let fits = ServiceProfile { dnn: Some("a".repeat(MAX_TEXT)), ..ServiceProfile::default() };
        assert_eq!(fits.check(), Ok(()));
        let key = |profile: ServiceProfile| profile.check().unwrap_err().key;
        for text in ["a".repeat(MAX_TEXT + 1), "a\0".to_owned(), "a\nb".to_owned()] {
            assert_eq!(key(ServiceProfile { dnn: Some(text.clone()), ..fits.clone() }), "dnn", "{text:?}");
            assert_eq!(key(ServiceProfile { coverage: vec![text], ..fits.clone() }), "coverageArea");
        }
        let mut many = fits;
        many.other.insert("qosParameters".into(), json!(vec![json!({"qi": 9}); MAX_QOS]));
        assert_eq!(many.check(), Ok(()));
        many.other.insert("qosParameters".into(), json!(vec![json!({"qi": 9}); MAX_QOS + 1]));
        assert_eq!(key(many), "qosParameters");
    }
}
