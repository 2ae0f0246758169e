//! The contents of CONFIG documents between tunnel ends: rules, and how the UE classified a flow.

use anabranch_steer::Rule;
use anabranch_wire::ip::FlowKey;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// One CONFIG document; UTF-8 JSON on the wire. Unknown fields are ignored, so that ends of different
/// versions interoperate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Document {
    /// From the UPF: its rules. From the UE: its own rules, which precede them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<Rule>>,
    /// From the UPF: it terminates TCP flows that the UE sends by the TCP lane ([`crate::tcp_lane`]).
    #[serde(skip_serializing_if = "is_false")]
    pub tcp_lane: bool,
    /// From the UE: flows that only the UE could classify (by user, cgroup or domain name).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<FlowHint>,
}

/// A flow, as seen from the UE, and its rule (UE assistance, TS 29.244 §8.2.147).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowHint {
    /// Address of the UE side.
    pub local: IpAddr,
    /// Address of the far side.
    pub remote: IpAddr,
    /// Port of the UE side.
    pub local_port: u16,
    /// Port of the far side.
    pub remote_port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// Name of the rule.
    pub rule: String,
}

impl FlowHint {
    /// The hint for a flow as seen from the UE.
    #[must_use]
    pub fn new(key: &FlowKey, rule: &str) -> Self {
        Self {
            local: key.src,
            remote: key.dst,
            local_port: key.src_port,
            remote_port: key.dst_port,
            protocol: key.protocol,
            rule: rule.to_owned(),
        }
    }

    /// The flow as seen from the UE.
    #[must_use]
    pub const fn key(&self) -> FlowKey {
        FlowKey {
            src: self.local,
            dst: self.remote,
            src_port: self.local_port,
            dst_port: self.remote_port,
            protocol: self.protocol,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl Document {
    /// The encoded document.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a document.
    ///
    /// # Errors
    /// The error, in one line.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|e| format!("CONFIG document from the peer: {e}"))
    }
}
