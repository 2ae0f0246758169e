//! Rules of the proxy, and selection of the rule of a flow.

use crate::runtime::config::{ProxyRule, Source, Unmet};
use crate::runtime::netctl::FlowRule;
use anabranch_atsss::classify::{FlowFilter, FlowOwner};
use anabranch_selection::Protocol;
use anabranch_wire::ip::{FlowKey, protocol};
use anyhow::Context;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

/// Transport protocol of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    /// IP protocol number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => protocol::TCP,
            Self::Udp => protocol::UDP,
        }
    }

    /// Name, as in the REST interface.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    /// Protocols that may be used towards the server.
    pub const fn carriers(self) -> &'static [Protocol] {
        match self {
            Self::Tcp => &[Protocol::Tcp, Protocol::Mptcp],
            Self::Udp => &[Protocol::Udp],
        }
    }
}

/// A compiled rule.
#[derive(Debug)]
pub struct Rule {
    pub name: String,
    /// Requirements of its flows, in the form of the agent's request.
    pub properties: Value,
    /// Action if no candidate meets the requirements.
    pub unmet: Unmet,
    /// Source address that the server sees.
    pub source: Source,
    filter: FlowFilter,
    direct: bool,
}

/// The compiled rules of a configuration.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<Arc<Rule>>,
    need_owner: bool,
}

impl Rules {
    /// Compiles the rules.
    ///
    /// # Errors
    /// A filter is invalid.
    pub fn new(rules: &[ProxyRule]) -> anyhow::Result<Self> {
        let ready = |rule: &ProxyRule| {
            Ok(Arc::new(Rule {
                name: rule.name.clone(),
                properties: Value::Object(rule.properties.clone()),
                unmet: rule.unmet,
                source: rule.source,
                filter: FlowFilter::new(&rule.filter).with_context(|| format!("[[rule]] {}", rule.name))?,
                direct: rule.direct,
            }))
        };
        let rules = rules.iter().map(ready).collect::<anyhow::Result<Vec<_>>>()?;
        let need_owner = rules.iter().any(|rule| rule.filter.needs_owner());
        Ok(Self { rules, need_owner })
    }

    /// The rules in the form that the nftables table needs.
    pub fn intercepted(rules: &[ProxyRule]) -> Vec<FlowRule> {
        rules.iter().map(|rule| FlowRule { filter: rule.filter.clone(), take: !rule.direct }).collect()
    }

    /// Whether a rule matches on the owner of a flow (uid, cgroup).
    pub const fn need_owner(&self) -> bool {
        self.need_owner
    }

    /// The rules in the order of matching.
    #[cfg(test)]
    pub fn all(&self) -> &[Arc<Rule>] {
        &self.rules
    }

    /// The first matching rule; `None` also if that rule is `direct`, in which case the flow should not have
    /// been redirected.
    pub fn find(&self, flow: &FlowKey, owner: &FlowOwner) -> Option<Arc<Rule>> {
        self.rules.iter().find(|rule| rule.filter.matches(flow, owner)).filter(|rule| !rule.direct).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::config::{ProxyConfig, parse};

    #[test]
    fn the_first_match_applies() {
        let text = r#"
            [[rule]]
            name = "own"
            filter = { uid = 1 }
            direct = true
            [[rule]]
            name = "web"
            filter = { protocol = "tcp", remote = "192.0.2.0/24", remote_port = "80-90", cgroup = "apps" }
            [[rule]]
            name = "all"
        "#;
        let config: ProxyConfig = parse("proxy.toml", text).unwrap();
        let rules = Rules::new(&config.rule).unwrap();
        assert!(rules.need_owner());
        let flow = |port| FlowKey {
            src: "10.0.0.1".parse().unwrap(),
            dst: "192.0.2.1".parse().unwrap(),
            src_port: 4000,
            dst_port: port,
            protocol: 6,
        };
        let owner = |uid, cgroup: &str| FlowOwner { uid: Some(uid), cgroup: Some(cgroup.into()) };
        let name = |port, owner| rules.find(&flow(port), &owner).map(|rule| rule.name.clone());
        assert_eq!(name(80, owner(1, "apps")), None);
        assert_eq!(name(80, owner(2, "apps/browser")).as_deref(), Some("web"));
        assert_eq!(name(80, owner(2, "other")).as_deref(), Some("all"));
        assert_eq!(name(91, FlowOwner::default()).as_deref(), Some("all"));
        let told = Rules::intercepted(&config.rule);
        assert_eq!(told.iter().map(|rule| rule.take).collect::<Vec<_>>(), [false, true, true]);
    }
}
