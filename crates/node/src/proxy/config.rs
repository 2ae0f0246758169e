//! `proxy.toml`.

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

/// Most rules: each is a rule or two of nftables, and is looked at for every new flow.
const MAX_RULES: usize = 250;
/// Most prefixes that are left alone.
const MAX_LIST: usize = 64;

/// The proxy's configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxyConfig {
    /// `[proxy]`
    #[serde(default)]
    pub proxy: ProxySection,
    /// `[intercept]`: whose flows.
    #[serde(default)]
    pub intercept: Intercept,
    /// `[agent]`: who knows the slices.
    #[serde(default)]
    pub agent: AgentLink,
    /// `[limits]`
    #[serde(default)]
    pub limits: ProxyLimits,
    /// `[[rule]]`: which flows, and what they need; the first that matches counts.
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
    /// Shown in logs and status.
    pub name: String,
    /// Where flows are led to, on 127.0.0.1 and ::1.
    pub port: u16,
    /// Firewall mark of what is led there, and the number of the routing table for it; the number after it marks the
    /// proxy's own sockets.
    pub mark: u32,
    /// Threads; 0: as many as there are cores.
    pub workers: u16,
}

impl Default for ProxySection {
    fn default() -> Self {
        Self { name: "proxy".to_owned(), port: 15_171, mark: 0xab60, workers: 0 }
    }
}

impl ProxySection {
    /// The mark of the proxy's own sockets.
    pub const fn own_mark(&self) -> u32 {
        self.mark + 1
    }
}

/// `[intercept]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Intercept {
    /// Flows that programs of this machine start.
    pub local: bool,
    /// Flows that come in by these interfaces, to go on elsewhere.
    pub interfaces: Vec<String>,
    /// Destinations that are left alone whatever the rules say.
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
    /// The REST interface of `anabranch ue`: `unix:PATH`, a loopback address and port, or `off`.
    pub connect: Listen,
    /// File whose first line is the token of that interface.
    pub token_file: Option<PathBuf>,
    /// How long an answer is not asked for again, in milliseconds.
    pub refresh_ms: u32,
    /// How long an answer counts when the agent is gone, in seconds.
    pub ttl_s: u32,
    /// Longest wait for an answer, in milliseconds; then the flow goes on without.
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
    /// Most flows at a time; TCP beyond is reset, UDP is dropped.
    pub flows: u32,
    /// Most UDP flows of one client address at a time; datagrams of others are dropped.
    pub udp_flows_per_client: u32,
    /// Time to connect, over all candidates, in seconds.
    pub connect_s: u32,
    /// How long a silent UDP flow is kept, in seconds.
    pub udp_idle_s: u32,
    /// Silence after which TCP asks whether the far end is there, on both sides, in seconds.
    pub keepalive_s: u32,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self { flows: 4096, udp_flows_per_client: 1024, connect_s: 30, udp_idle_s: 120, keepalive_s: 120 }
    }
}

impl ProxyLimits {
    /// How long a silent UDP flow is kept.
    pub fn udp_idle(&self) -> Duration {
        Duration::from_secs(self.udp_idle_s.into())
    }
}

/// `[[rule]]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxyRule {
    /// Shown in logs, flows and metrics.
    pub name: String,
    /// Which flows, as in `[[rule]]` of a UE; empty: all.
    #[serde(default)]
    pub filter: Filter,
    /// Left alone: its packets do not pass the proxy.
    #[serde(default)]
    pub direct: bool,
    /// What they need, by the names of RFC 9622 and `_slice.*`.
    #[serde(default)]
    pub properties: serde_json::Map<String, serde_json::Value>,
    /// What becomes of a flow whose needs nothing meets.
    #[serde(default)]
    pub unmet: Unmet,
    /// Which source address the server sees.
    #[serde(default)]
    pub source: Source,
}

/// What becomes of a flow whose needs nothing meets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unmet {
    /// It goes on as the host's routes have it.
    #[default]
    Forward,
    /// TCP is reset, UDP dropped.
    Refuse,
}

/// Which source address the server sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The slice's: that of the interface the flow leaves by.
    #[default]
    Slice,
    /// The client's. Answers must come back to this machine.
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
                "{place}: direct and filter.cgroup: nftables leaves flows alone by uid; give filter.uid"
            ));
        }
        if self.direct && (!self.properties.is_empty() || self.source != Source::Slice) {
            return Err(format!("{place}: direct leaves flows alone: leave out properties and source"));
        }
        let families = [filter.local, filter.remote].map(|net| net.map(|n| n.addr().is_ipv6()));
        if let [Some(local), Some(remote)] = families
            && local != remote
        {
            return Err(format!("{place}: filter.local and filter.remote are of different families"));
        }
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
                "[agent] connect \"{address}\" is elsewhere: give \"unix:PATH\" or \"127.0.0.1:PORT\" of the UE's agent \
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
                "there is no [[rule]]: say which flows the proxy takes; name = \"all\" takes every one"
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
    fn what_is_right_is_taken() {
        let config: ProxyConfig = parse("proxy.toml", SMALL).unwrap();
        assert_eq!((config.rule.len(), config.proxy.own_mark(), config.intercept.local), (2, 0xab61, true));
        assert_eq!(config.limits.udp_idle(), Duration::from_secs(120));
    }

    /// Each mistake: one sentence with the place and what would be valid.
    #[test]
    fn mistakes_name_place_and_remedy() {
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
