//! Information for a UE: its own slices only, in few bytes (the paper's §5 leaves the overhead open: "up to several kB" per
//! message).

use super::lifecycle::State;
use super::manager::Manager;
use super::profile::Thpt;
use super::record::{Slice, Ue};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::hash::Hasher;

/// Information about one slice for a UE. Unknown values are omitted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SliceFacts {
    /// Identifier of the slice at the slice manager.
    pub id: String,
    /// Name given by the operator, not necessarily unique.
    pub name: String,
    /// State, as [`State::name`]; during a change, the state of the profile in force.
    pub state: String,
    /// Reason, if degraded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Slice/service type.
    pub sst: u8,
    /// Slice differentiator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sd: Option<String>,
    /// Data network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dnn: Option<String>,
    /// Guaranteed downlink rate of this UE, bit/s: the guarantee per UE, otherwise that of the slice; at most the UE's maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dl_guaranteed_bps: Option<u64>,
    /// Maximum downlink rate, bit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dl_max_bps: Option<u64>,
    /// Guaranteed uplink rate of this UE, bit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ul_guaranteed_bps: Option<u64>,
    /// Maximum uplink rate, bit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ul_max_bps: Option<u64>,
    /// Packet delay budget between UE and UPF, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<f64>,
    /// Jitter, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_ms: Option<f64>,
    /// Packets lost or late, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_percent: Option<f64>,
    /// 5QIs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub qi: Vec<u8>,
    /// Maximum packet size, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu_bytes: Option<u16>,
    /// True if the slice does not share the RAN with other slices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolated: Option<bool>,
    /// Names of the accesses that provide the slice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accesses: Vec<String>,
}

impl From<&Slice> for SliceFacts {
    fn from(slice: &Slice) -> Self {
        let p = &slice.profile;
        let bps = |kbps: Option<f64>| kbps.map(|kbps| (kbps * 1e3).round() as u64);
        // Neither the UE's nor the slice's maximum may be exceeded.
        let most = |ue: Thpt, slice: Thpt| bps(ue.max.into_iter().chain(slice.max).min_by(f64::total_cmp));
        let (dl_max_bps, ul_max_bps) = (most(p.dl_ue, p.dl_slice), most(p.ul_ue, p.ul_slice));
        // The guarantee of a slice is for all of its UEs, and may exceed what one UE can have.
        let promised = |ue: Thpt, slice: Thpt, most: Option<u64>| {
            bps(ue.gua.or(slice.gua)).map(|bps| bps.min(most.unwrap_or(u64::MAX)))
        };
        let qos = p.other.get("qosParameters").and_then(Value::as_array);
        let qi = qos.into_iter().flatten().filter_map(|q| u8::try_from(q.get("qi")?.as_u64()?).ok());
        Self {
            id: slice.id.clone(),
            name: slice.name.clone(),
            state: state(slice).to_owned(),
            reason: slice.state.reason().map(str::to_owned),
            sst: p.sst,
            sd: p.snssai_list.first().and_then(|s| s.sd.clone()),
            dnn: p.dnn.clone(),
            dl_guaranteed_bps: promised(p.dl_ue, p.dl_slice, dl_max_bps),
            dl_max_bps,
            ul_guaranteed_bps: promised(p.ul_ue, p.ul_slice, ul_max_bps),
            ul_max_bps,
            latency_ms: p.dl_latency.into_iter().chain(p.ul_latency).max_by(f64::total_cmp),
            jitter_ms: p.jitter.map(|us| us / 1e3),
            loss_percent: p.reliability.map(|percent| 100.0 - percent),
            qi: qi.collect(),
            mtu_bytes: p.dl_packet.into_iter().chain(p.ul_packet).min(),
            isolated: p.sharing.as_deref().filter(|s| *s == "NON-SHARED").map(|_| true),
            accesses: slice.applied.keys().cloned().collect(),
        }
    }
}

/// During a change the old profile applies: a UE need not see the intermediate steps.
fn state(slice: &Slice) -> &'static str {
    match (&slice.pending, slice.problems.is_empty()) {
        (None, _) => slice.state.name(),
        (Some(_), true) => State::Running.name(),
        (Some(_), false) => State::Degraded(String::new()).name(),
    }
}

/// Information for a UE.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UeView {
    /// Lifetime in seconds: without a newer answer, the UE then discards the information.
    pub ttl_s: u32,
    /// Its slices.
    pub slices: Vec<SliceFacts>,
    /// Policies pushed to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<Value>,
}

/// The information for a UE; removed slices are omitted.
#[must_use]
pub fn view(manager: &Manager, ue: &Ue, ttl_s: u32) -> UeView {
    let slices = ue.slices.iter().filter_map(|a| manager.slices().get(&a.slice));
    let told = slices.filter(|s| !matches!(s.state, State::Init | State::Placement) || !s.applied.is_empty());
    UeView { ttl_s, slices: told.map(SliceFacts::from).collect(), policies: ue.policies.clone() }
}

/// A short hash of a text for ETags, kept small because every poll contains it twice: 36 bits as six characters. A change is missed
/// once in 69 thousand million.
#[must_use]
pub fn tag(text: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut hasher = siphasher::sip::SipHasher24::new_with_keys(0x616e_6162_7261_6e63, 0x6874_6167);
    hasher.write(text);
    let hash = hasher.finish();
    (0..6).map(|i| char::from(LETTERS[(hash >> (6 * i)) as usize & 63])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_short_and_differ() {
        let tags: std::collections::BTreeSet<String> =
            (0..10_000_u32).map(|i| tag(&i.to_le_bytes())).collect();
        assert_eq!(tags.len(), 10_000);
        assert!(tags.iter().all(|t| t.len() == 6));
        assert_eq!(tag(b"x"), tag(b"x"));
    }
}
