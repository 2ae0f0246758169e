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

impl Filter {
    /// Checks that some traffic can match.
    ///
    /// # Errors
    /// Why no packet would match, with the keys concerned.
    pub fn check(&self) -> Result<(), String> {
        let ports = [("local_port", self.local_port), ("remote_port", self.remote_port)];
        if self.protocol == Some(Protocol::Icmp)
            && let Some((key, _)) = ports.iter().find(|(_, ports)| ports.is_some())
        {
            return Err(format!(
                "filter.{key}: packets of protocol \"icmp\" have no ports: remove one of the two"
            ));
        }
        if let (Some(local), Some(remote)) = (self.local, self.remote)
            && local.addr().is_ipv6() != remote.addr().is_ipv6()
        {
            return Err("filter.local and filter.remote are of different families: give two prefixes of IPv4, or two of IPv6".into());
        }
        if let Some(path) = &self.cgroup
            && (path.starts_with("/sys/fs/cgroup") || path.split('/').any(|part| part == ".." || part == "."))
        {
            return Err(format!(
                "filter.cgroup \"{}\": give the path below /sys/fs/cgroup, without \".\" and \"..\", such as \
                 \"system.slice/backup.service\"",
                path.escape_debug()
            ));
        }
        Ok(())
    }
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
    fn filters_that_match_nothing_are_refused_with_their_keys() {
        let check = |json: &str| serde_json::from_str::<Filter>(json).unwrap().check();
        for (json, parts) in [
            (r#"{"protocol":"icmp","remote_port":443}"#, &["filter.remote_port", "icmp"][..]),
            (r#"{"protocol":"icmp","local_port":"1-9"}"#, &["filter.local_port"]),
            (r#"{"local":"10.0.0.0/8","remote":"fd00::/8"}"#, &["filter.local and filter.remote"]),
            (r#"{"cgroup":"a/../b"}"#, &["filter.cgroup", "a/../b", "below /sys/fs/cgroup"]),
            (r#"{"cgroup":"/sys/fs/cgroup/system.slice"}"#, &["filter.cgroup"]),
        ] {
            let error = check(json).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{json}: {error}");
        }
        for json in [
            "{}",
            r#"{"protocol":"icmp","remote":"fd00::/8"}"#,
            r#"{"remote_port":443,"local":"10.0.0.0/8","remote":"192.0.2.0/24"}"#,
            r#"{"cgroup":"system.slice/a..b.service"}"#,
            r#"{"cgroup":"/system.slice"}"#,
        ] {
            assert_eq!(check(json), Ok(()), "{json}");
        }
    }

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
