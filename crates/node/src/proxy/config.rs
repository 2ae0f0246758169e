//! Configuration file `proxy.toml`.

use crate::runtime::config::api::{Api, Listen, Metrics};
use crate::runtime::config::load::Check;
use crate::runtime::config::types::{FIRST_MARK, check_interfaces};
use anabranch_rules::{Filter, Protocol};
use anabranch_selection::Properties;
use ipnet::IpNet;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// Maximum number of rules: each becomes one or two nftables rules and is checked for every new flow.
const MAX_RULES: usize = 250;
/// Maximum number of prefixes that are exempt from interception.
const MAX_LIST: usize = 64;

/// The proxy's configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxyConfig {
    /// `[proxy]`
    #[serde(default)]
    pub proxy: ProxySection,
    /// `[intercept]`: the flows to intercept.
    #[serde(default)]
    pub intercept: Intercept,
    /// `[agent]`: the policy agent.
    #[serde(default)]
    pub agent: AgentLink,
    /// `[limits]`
    #[serde(default)]
    pub limits: ProxyLimits,
    /// `[[rule]]`: flows and their requirements; the first match applies.
    #[serde(default)]
    pub rule: Vec<ProxyRule>,
    /// `[api]`
    #[serde(default = "default_api")]
    pub api: Api,
    /// `[metrics]`
    #[serde(default)]
    pub metrics: Option<Metrics>,
}

/// `[proxy]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProxySection {
    /// Name of the proxy in logs and status.
    pub name: String,
    /// Port on 127.0.0.1 and ::1 to which flows are redirected.
    pub port: u16,
    /// Firewall mark of redirected packets, and number of the routing table for them. `mark + 1` is the
    /// firewall mark of the proxy's own sockets.
    pub mark: u32,
    /// Number of threads; 0: one per core.
    pub workers: u16,
}

impl Default for ProxySection {
    fn default() -> Self {
        Self { name: "proxy".to_owned(), port: 15_171, mark: 0xab60, workers: 0 }
    }
}

impl ProxySection {
    /// Firewall mark of the proxy's own sockets.
    pub const fn own_mark(&self) -> u32 {
        self.mark + 1
    }
}

/// `[intercept]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Intercept {
    /// Intercept flows that programs on this machine start.
    pub local: bool,
    /// Intercept forwarded flows that arrive at these interfaces.
    pub interfaces: Vec<String>,
    /// Destinations that are never intercepted, whatever the rules.
    pub except: Vec<IpNet>,
}

impl Default for Intercept {
    fn default() -> Self {
        Self { local: true, interfaces: Vec::new(), except: Vec::new() }
    }
}

/// `[agent]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentLink {
    /// REST interface of `anabranch ue`: `unix:PATH`, a loopback address and port, or `off`.
    pub connect: Listen,
    /// File with the bearer token of that interface in its first line.
    pub token_file: Option<PathBuf>,
    /// Time for which an answer is reused without a new request, milliseconds.
    pub refresh_ms: u32,
    /// Time for which an answer remains valid if the agent does not answer, seconds.
    pub ttl_s: u32,
    /// Longest wait for an answer, milliseconds; after that the flow continues without one.
    pub timeout_ms: u32,
}

impl Default for AgentLink {
    fn default() -> Self {
        Self {
            connect: Listen::Unix("/run/anabranch/ue.sock".into()),
            token_file: None,
            refresh_ms: 1000,
            ttl_s: 60,
            timeout_ms: 500,
        }
    }
}

/// `[limits]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProxyLimits {
    /// Maximum number of simultaneous flows; further TCP flows are reset, UDP datagrams dropped.
    pub flows: u32,
    /// Maximum number of simultaneous UDP flows per client address; datagrams of further flows are dropped.
    pub udp_flows_per_client: u32,
    /// Time limit for connecting, over all candidates, seconds.
    pub connect_s: u32,
    /// Time after which an idle UDP flow is removed, seconds.
    pub udp_idle_s: u32,
    /// Idle time after which TCP keepalives are sent, on both sides, seconds.
    pub keepalive_s: u32,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self { flows: 4096, udp_flows_per_client: 1024, connect_s: 30, udp_idle_s: 120, keepalive_s: 120 }
    }
}

impl ProxyLimits {
    /// Time after which an idle UDP flow is removed.
    pub fn udp_idle(&self) -> Duration {
        Duration::from_secs(self.udp_idle_s.into())
    }
}

/// `[[rule]]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxyRule {
    /// Name of the rule in logs, flows and metrics.
    pub name: String,
    /// Flows to which the rule applies, as in `[[rule]]` of a UE; empty: all.
    #[serde(default)]
    pub filter: Filter,
    /// Exempt from interception: the packets bypass the proxy.
    #[serde(default)]
    pub direct: bool,
    /// Requirements of the flows, by the property names of RFC 9622 and `_slice.*`.
    #[serde(default)]
    pub properties: serde_json::Map<String, serde_json::Value>,
    /// Action if no candidate meets the requirements.
    #[serde(default)]
    pub unmet: Unmet,
    /// Source address that the server sees.
    #[serde(default)]
    pub source: Source,
}

/// Action for flows whose requirements no candidate meets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unmet {
    /// The flow follows the routes of the host.
    #[default]
    Forward,
    /// TCP is reset, UDP is dropped.
    Refuse,
}

/// Source address that the server sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Address of the slice, that is, of the egress interface.
    #[default]
    Slice,
    /// Address of the client. Answers must be routed back through this machine.
    Client,
}

impl ProxyRule {
    fn check(&self) -> Result<(), String> {
        let place = format!("[[rule]] name \"{}\"", self.name);
        if self.name.is_empty() || self.name.len() > 64 {
            return Err(format!("{place}: use 1 to 64 bytes"));
        }
        let filter = &self.filter;
        if filter.protocol == Some(Protocol::Icmp) {
            return Err(format!("{place}: filter.protocol must be tcp or udp"));
        }
        if filter.domain.is_some() {
            return Err(format!(
                "{place}: filter.domain: a proxy sees addresses, not names; give filter.remote"
            ));
        }
        if self.direct && filter.cgroup.is_some() {
            return Err(format!(
                "{place}: direct and filter.cgroup: nftables can exempt flows by uid only; give filter.uid"
            ));
        }
        if self.direct && (!self.properties.is_empty() || self.source != Source::Slice) {
            return Err(format!("{place}: direct leaves flows alone: leave out properties and source"));
        }
        filter.check().map_err(|error| format!("{place}: {error}"))?;
        let properties = serde_json::Value::Object(self.properties.clone());
        Properties::from_json(properties).map(drop).map_err(|e| format!("{place}: properties: {e}"))
    }
}

impl AgentLink {
    fn check(&self) -> Result<(), String> {
        if let Listen::Tcp(address) = &self.connect
            && !address.ip().is_loopback()
        {
            return Err(format!(
                "[agent] connect \"{address}\" is not on this machine: give \"unix:PATH\" or \"127.0.0.1:PORT\" of the UE's agent \
                 on this machine"
            ));
        }
        range("[agent] refresh_ms", self.refresh_ms, 100, 3_600_000)?;
        range("[agent] ttl_s", self.ttl_s, 1, 86_400)?;
        range("[agent] timeout_ms", self.timeout_ms, 10, 10_000)
    }
}

fn range(place: &str, value: u32, least: u32, most: u32) -> Result<(), String> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(format!("{place} = {value}: give {least} to {most}"))
    }
}

impl Check for ProxyConfig {
    fn check(&self) -> Result<(), String> {
        let ProxySection { name, port, mark, workers } = &self.proxy;
        let fits = (1..=32).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if !fits {
            return Err(format!("[proxy] name \"{name}\": use 1 to 32 letters, digits, - or _"));
        }
        range("[proxy] port", (*port).into(), 1, 65_535)?;
        range("[proxy] mark", *mark, FIRST_MARK, u32::MAX - 1)?;
        range("[proxy] workers", (*workers).into(), 0, 256)?;
        let Intercept { local, interfaces, except } = &self.intercept;
        if !local && interfaces.is_empty() {
            return Err(
                "[intercept] local = false and no interfaces: nothing is taken; name an interface".to_owned()
            );
        }
        check_interfaces("[intercept] interfaces", interfaces)?;
        if except.len() > MAX_LIST {
            return Err(format!("[intercept] except: {} entries; at most {MAX_LIST}", except.len()));
        }
        self.agent.check()?;
        let ProxyLimits { flows, udp_flows_per_client, connect_s, udp_idle_s, keepalive_s } = self.limits;
        range("[limits] flows", flows, 1, 1_000_000)?;
        range("[limits] udp_flows_per_client", udp_flows_per_client, 1, 1_000_000)?;
        range("[limits] connect_s", connect_s, 1, 300)?;
        range("[limits] udp_idle_s", udp_idle_s, 1, 86_400)?;
        range("[limits] keepalive_s", keepalive_s, 1, 32_767)?;
        if self.rule.is_empty() {
            return Err(
                "there is no [[rule]]: give the flows that the proxy takes; name = \"all\" alone takes every flow"
                    .to_owned(),
            );
        }
        if self.rule.len() > MAX_RULES {
            return Err(format!("{} [[rule]]: at most {MAX_RULES}", self.rule.len()));
        }
        let mut names = BTreeSet::new();
        for rule in &self.rule {
            rule.check()?;
            if !names.insert(&rule.name) {
                return Err(format!("[[rule]] name \"{}\" is there twice: names must differ", rule.name));
            }
        }
        Metrics::check(self.metrics.as_ref())?;
        self.api.check()
    }
}

fn default_api() -> Api {
    Api::unix("/run/anabranch/proxy.sock")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::config::load::parse;

    const SMALL: &str = "\
[intercept]
interfaces = [\"lan0\"]
[[rule]]
name = \"video\"
filter = { protocol = \"tcp\", remote = \"198.51.100.0/24\", remote_port = \"443-444\", uid = 1000 }
properties = { connCapacityProfile = \"capacitySeeking\" }
[[rule]]
name = \"rest\"
direct = true
";

    #[test]
    fn valid_files_are_accepted() {
        let config: ProxyConfig = parse("proxy.toml", SMALL).unwrap();
        assert_eq!((config.rule.len(), config.proxy.own_mark(), config.intercept.local), (2, 0xab61, true));
        assert_eq!(config.limits.udp_idle(), Duration::from_secs(120));
    }

    /// Each error is one sentence with the place and the valid values.
    #[test]
    fn errors_name_place_and_remedy() {
        for (from, to, parts) in [
            ("\"tcp\"", "\"icmp\"", &["video", "tcp or udp"][..]),
            ("uid = 1000", "domain = \"a.example\"", &["video", "filter.remote"]),
            ("capacitySeeking", "fast", &["video", "connCapacityProfile"]),
            ("\"rest\"", "\"video\"", &["there twice"]),
            (
                "direct = true",
                "direct = true\nproperties = { reliability = \"require\" }",
                &["rest", "leave out"],
            ),
            ("direct = true", "direct = true\nfilter = { cgroup = \"a\" }", &["rest", "filter.uid"]),
            ("uid = 1000", "local = \"fd00::/8\"", &["video", "different families"]),
            ("\"lan0\"", "\"lo\"", &["[intercept] interfaces", "this machine's own"]),
            ("[\"lan0\"]", "[]\nlocal = false", &["[intercept]", "name an interface"]),
            ("[intercept]", "[proxy]\nport = 0\n[intercept]", &["[proxy] port = 0", "1 to 65535"]),
            ("[intercept]", "[proxy]\nmark = 7\n[intercept]", &["[proxy] mark = 7", "256 to"]),
            (
                "[intercept]",
                "[agent]\nconnect = \"192.0.2.1:80\"\n[intercept]",
                &["[agent]", "on this machine"],
            ),
            ("[intercept]", "[limits]\nflow = 7\n[intercept]", &["did you mean \"flows\"?"]),
            ("[intercept]", "[api]\nlisten = \"0.0.0.0:80\"\n[intercept]", &["token_file"]),
        ] {
            let text = SMALL.replacen(from, to, 1);
            assert_ne!(text, SMALL, "{from}");
            let error = parse::<ProxyConfig>("proxy.toml", &text).unwrap_err().to_string();
            assert!(error.starts_with("proxy.toml"), "{error}");
            assert!(parts.iter().all(|part| error.contains(part)), "{to}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        let error = parse::<ProxyConfig>("proxy.toml", "").unwrap_err().to_string();
        assert!(error.contains("no [[rule]]"), "{error}");
    }
}
