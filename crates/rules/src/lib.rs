//! Terms shared by several capabilities to describe traffic: filters, and names of accesses.
//!
//! ```
//! use anabranch_rules::{Filter, Protocol};
//!
//! let filter: Filter = serde_json::from_str(r#"{ "protocol": "udp", "remote_port": "3478-3481" }"#)?;
//! assert_eq!(filter.protocol, Some(Protocol::Udp));
//! # Ok::<(), serde_json::Error>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::fmt::Display;

/// The name of an access of a UE, such as `5g` or `wifi`.
pub type AccessName = String;

/// Maximum length of a name in bytes.
pub const MAX_NAME: usize = 128;

/// Whether a name of a rule or a UE, given in configuration or by a peer, can be shown in any log, table or metric: 1 to 128
/// bytes without control characters, quotes and backslashes.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let bad = |c: char| c.is_control() || c == '"' || c == '\\';
    (1..=MAX_NAME).contains(&name.len()) && !name.contains(bad)
}

/// Traffic selector from the UE's point of view: *local* is the UE, *remote* the far end.
///
/// All given fields must match. `domain`, `uid` and `cgroup` can be evaluated only at the UE; a rule with one of them matches
/// downlink packets of a flow because the UE has classified the flow before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    /// Transport protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Address or prefix of the UE side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<IpNet>,
    /// Address or prefix of the far side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<IpNet>,
    /// Port or port range of the UE side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_port: Option<PortRange>,
    /// Port or port range of the far side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_port: Option<PortRange>,
    /// Domain name; matches the name and all its subdomains, as learned from DNS answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Numeric user id of the sending process on the UE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// cgroup v2 path of the sending process on the UE, relative to the cgroup root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}

/// Transport protocol of a [`Filter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Transmission Control Protocol (6).
    Tcp,
    /// User Datagram Protocol (17).
    Udp,
    /// ICMP (1) or ICMPv6 (58).
    Icmp,
}

/// An inclusive range of ports, written `443` or `"5000-5100"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "PortSpec", into = "PortSpec")]
pub struct PortRange {
    /// First port.
    pub first: u16,
    /// Last port, not smaller than the first.
    pub last: u16,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PortSpec {
    One(i64),
    Range(String),
}

impl TryFrom<PortSpec> for PortRange {
    type Error = String;
    fn try_from(spec: PortSpec) -> Result<Self, String> {
        let wrong = |s: &dyn Display| {
            format!("port range \"{s}\": write a port (443) or \"first-last\" (\"5000-5100\")")
        };
        match spec {
            PortSpec::One(p) => {
                let port = p.try_into().map_err(|_| wrong(&p))?;
                Ok(Self { first: port, last: port })
            }
            PortSpec::Range(s) => {
                let wrong = || wrong(&s);
                let (first, last) = s.split_once('-').unwrap_or((&s, &s));
                let first = first.trim().parse().map_err(|_| wrong())?;
                let last = last.trim().parse().map_err(|_| wrong())?;
                if first > last { Err(wrong()) } else { Ok(Self { first, last }) }
            }
        }
    }
}

impl From<PortRange> for PortSpec {
    fn from(r: PortRange) -> Self {
        if r.first == r.last {
            Self::One(r.first.into())
        } else {
            Self::Range(format!("{}-{}", r.first, r.last))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_wrong_range_states_the_remedy() {
        let error = serde_json::from_str::<Filter>(r#"{"local_port":"9-1"}"#).unwrap_err().to_string();
        assert!(error.contains("\"9-1\"") && error.contains("first-last"), "{error}");
        for port in ["70000", "-1"] {
            let error = serde_json::from_str::<Filter>(&format!(r#"{{"remote_port":{port}}}"#))
                .unwrap_err()
                .to_string();
            assert!(error.contains(&format!("\"{port}\"")) && error.contains("first-last"), "{error}");
        }
    }
}
