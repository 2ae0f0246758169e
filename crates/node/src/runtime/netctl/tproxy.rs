//! Redirection of flows to a transparent proxy: one nftables table, which is removed at the end.
//!
//! ```text
//!  output      unmarked ─▶ classify ─ mark M ─▶ rule M: local by lo ─▶ prerouting ─ mark M ─▶ tproxy ─▶ 127.0.0.1:P, [::1]:P
//!  prerouting  from named interfaces, unmarked ─▶ forwarded ─ mark M ────────────────────────┘
//! ```
//!
//! A flow is intercepted at its first packet (a SYN, or a packet that starts a flow in connection tracking)
//! and marked in connection tracking, so existing connections are never interrupted, nor are answers of
//! servers on this machine. Packets with a mark have a chosen path and are not intercepted: those of the
//! proxy's own sockets, of the tunnel, and of programs that select a slice themselves.

use super::keeper::Keeper;
use super::port::port_of;
use anabranch_rules::{Filter, PortRange, Protocol};
use anyhow::Context;
use ipnet::IpNet;
use nftables::helper::{self, DEFAULT_ARGS, DEFAULT_NFT, NftablesError};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Link-local prefixes, which are never forwarded.
const LINK_LOCAL: [&str; 2] = ["169.254.0.0/16", "fe80::/10"];
/// After connection tracking, before address translation (priority "mangle").
const PRIORITY: i32 = -150;

/// Parameters of the redirection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tproxy {
    /// Name of the table.
    pub table: String,
    /// Mark of redirected packets.
    pub mark: u32,
    /// The proxy's port.
    pub port: u16,
    /// Whether it listens on ::1, too.
    pub v6: bool,
    /// Intercept packets of programs on this machine.
    pub local: bool,
    /// Intercept packets that arrive at these interfaces.
    pub interfaces: Vec<String>,
    /// Of both, only packets that would leave through this interface; `None`: all.
    pub only_by: Option<String>,
    /// Destinations that are exempt.
    pub except: Vec<IpNet>,
    /// Rules for packets of programs on this machine: the first match applies; packets without a match are
    /// not intercepted.
    pub flows: Vec<FlowRule>,
    /// Rules for packets that arrive at the interfaces.
    pub forwarded: Vec<FlowRule>,
    /// Whether some flows keep the client's address, so that answers to it must be delivered locally.
    pub keeps_source: bool,
}

/// A rule: flows, and whether they are intercepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowRule {
    /// The flows; a cgroup is ignored here.
    pub filter: Filter,
    /// Whether the flows are intercepted; otherwise they are exempt.
    pub take: bool,
}

impl Tproxy {
    /// Name of the table of the proxy with this name.
    pub fn table_name(name: &str) -> String {
        format!("anabranch_{}", name.replace('-', "_"))
    }

    /// The ruleset in nftables' JSON (libnftables-json(5)): one transaction that replaces the contents of the
    /// table.
    fn ruleset(&self, kept: bool) -> Value {
        let mut all = emptied(&self.table, kept);
        // Packets of local programs have already been routed; for arriving ones, the routing tables are
        // consulted.
        let classified =
            [("classify", &self.flows, None), ("forwarded", &self.forwarded, self.only_by.as_deref())];
        all.extend(classified.map(|(chain, ..)| self.chain(chain, None)));
        all.push(self.chain("prerouting", Some(("filter", "prerouting"))));
        let mut rule = |chain: &str, expr: Vec<Value>| {
            all.push(json!({"add": {"rule": {"family": "inet", "table": self.table, "chain": chain, "expr": expr}}}));
        };
        for (chain, flows, routed_by) in classified {
            self.classify(flows, routed_by).into_iter().for_each(|expr| rule(chain, expr));
        }
        let unmarked = || is(meta("mark"), json!(0));
        if !self.interfaces.is_empty() {
            let from = is(meta("iifname"), json!({"set": self.interfaces}));
            rule("prerouting", vec![from, unmarked(), json!({"jump": {"target": "forwarded"}})]);
        }
        for protocol in ["tcp", "udp"] {
            let taken = || [is(meta("mark"), json!(self.mark)), is(meta("l4proto"), json!(protocol))];
            let to = |family: &str, proxy: Value| {
                let [mark, l4] = taken();
                vec![is(meta("nfproto"), json!(family)), mark, l4, json!({"tproxy": proxy}), accept()]
            };
            let v4 = json!({"family": "ip", "addr": Ipv4Addr::LOCALHOST, "port": self.port});
            rule("prerouting", to("ipv4", v4));
            if self.v6 {
                let v6 = json!({"family": "ip6", "addr": Ipv6Addr::LOCALHOST, "port": self.port});
                rule("prerouting", to("ipv6", v6));
            }
        }
        if self.keeps_source {
            let ours = |key: &str, value: u32| is(json!({"socket": {"key": key}}), json!(value));
            let l4 = is(meta("l4proto"), json!({"set": ["tcp", "udp"]}));
            rule(
                "prerouting",
                vec![l4, ours("transparent", 1), ours("wildcard", 0), set(meta("mark"), self.mark)],
            );
        }
        if self.local {
            all.push(self.chain("output", Some(("route", "output"))));
            let mut jump = vec![unmarked(), json!({"jump": {"target": "classify"}})];
            if let Some(name) = &self.only_by {
                jump.insert(0, is(meta("oifname"), json!(name)));
            }
            let rule = json!({"family": "inet", "table": self.table, "chain": "output", "expr": jump});
            all.push(json!({"add": {"rule": rule}}));
        }
        json!({"nftables": all})
    }

    fn chain(&self, name: &str, hook: Option<(&str, &str)>) -> Value {
        let mut chain = json!({"family": "inet", "table": self.table, "name": name});
        if let Some((kind, hook)) = hook {
            chain["type"] = json!(kind);
            chain["hook"] = json!(hook);
            chain["prio"] = json!(PRIORITY);
            chain["policy"] = json!("accept");
        }
        json!({"add": {"chain": chain}})
    }

    /// Rules of a chain that marks intercepted flows; with `routed_by`, only those routed through that
    /// interface.
    fn classify(&self, flows: &[FlowRule], routed_by: Option<&str>) -> Vec<Vec<Value>> {
        let ct = |key: &str| json!({"ct": {"key": key}});
        let back = || json!({"return": null});
        let flags = json!({"&": [payload("tcp", "flags"), ["fin", "syn", "rst", "ack"]]});
        let mut rules = vec![
            vec![is(ct("direction"), json!("reply")), back()],
            vec![is(ct("mark"), json!(self.mark)), set(meta("mark"), self.mark), back()],
            // A connection marked by another program.
            vec![is_not(ct("mark"), json!(0)), back()],
            vec![is_not(ct("state"), json!("new")), back()],
            vec![is_not(flags, json!("syn")), back()],
            vec![is_not(json!({"fib": {"result": "type", "flags": ["daddr"]}}), json!("unicast")), back()],
        ];
        let link_local = LINK_LOCAL.iter().filter_map(|net| net.parse::<IpNet>().ok());
        for net in link_local.chain(self.except.iter().copied()) {
            rules.push(vec![address("daddr", net), back()]);
        }
        if !self.v6 {
            rules.push(vec![is(meta("nfproto"), json!("ipv6")), back()]);
        }
        // Later packets of an intercepted flow follow the first one.
        if let Some(name) = routed_by {
            let by = json!({"fib": {"result": "oifname", "flags": ["daddr", "mark"]}});
            rules.push(vec![is_not(by, json!(name)), back()]);
        }
        for flow in flows {
            let protocols = match flow.filter.protocol {
                Some(Protocol::Tcp) => &["tcp"][..],
                Some(Protocol::Udp) => &["udp"],
                Some(Protocol::Icmp) => &[],
                None => &["tcp", "udp"],
            };
            for protocol in protocols {
                let mut expr = vec![is(meta("l4proto"), json!(protocol))];
                expr.extend(matches(&flow.filter, protocol));
                if flow.take {
                    expr.extend([set(ct("mark"), self.mark), set(meta("mark"), self.mark)]);
                }
                expr.push(back());
                rules.push(expr);
            }
        }
        rules
    }
}

fn matches(filter: &Filter, protocol: &str) -> Vec<Value> {
    let mut all = Vec::new();
    all.extend(filter.local.map(|net| address("saddr", net)));
    all.extend(filter.remote.map(|net| address("daddr", net)));
    let port = |field: &str, PortRange { first, last }| {
        is(payload(protocol, field), json!({"range": [first, last]}))
    };
    all.extend(filter.local_port.map(|range| port("sport", range)));
    all.extend(filter.remote_port.map(|range| port("dport", range)));
    all.extend(filter.uid.map(|uid| is(meta("skuid"), json!(uid))));
    all
}

fn is(left: Value, right: Value) -> Value {
    json!({"match": {"op": "==", "left": left, "right": right}})
}

fn is_not(left: Value, right: Value) -> Value {
    json!({"match": {"op": "!=", "left": left, "right": right}})
}

fn set(key: Value, value: u32) -> Value {
    json!({"mangle": {"key": key, "value": value}})
}

fn accept() -> Value {
    json!({"accept": null})
}

fn meta(key: &str) -> Value {
    json!({"meta": {"key": key}})
}

fn payload(protocol: &str, field: &str) -> Value {
    json!({"payload": {"protocol": protocol, "field": field}})
}

fn address(field: &str, net: IpNet) -> Value {
    let protocol = if net.addr().is_ipv4() { "ip" } else { "ip6" };
    let prefix = json!({"prefix": {"addr": net.network(), "len": net.prefix_len()}});
    is(payload(protocol, field), prefix)
}

/// Required kernel modules.
const MODULES: &str = "nft_tproxy, nft_socket, nft_fib_inet and nft_ct";

/// Installs the redirection in an owned table if the kernel supports it; otherwise (`None`) in a table that
/// stays until it is removed. Such a table of an earlier run is replaced.
///
/// # Errors
/// nft or a kernel module is missing.
pub fn redirect(tproxy: &Tproxy) -> anyhow::Result<Option<Keeper>> {
    for name in &tproxy.interfaces {
        if let Some(of) = port_of(name) {
            tracing::warn!("interfaces: nothing comes in by \"{name}\": {of}");
        }
    }
    keep(&tproxy.table, |keeper| replace(tproxy, keeper))
}

/// Fills an owned table that only this process can change, if the kernel supports it; otherwise (`None`) a
/// table that stays until it is removed.
///
/// # Errors
/// The errors of `fill`.
pub fn keep(
    table: &str,
    fill: impl FnOnce(Option<&Keeper>) -> anyhow::Result<()>,
) -> anyhow::Result<Option<Keeper>> {
    match Keeper::new(table) {
        Ok(keeper) => fill(Some(&keeper)).map(|()| Some(keeper)),
        Err(error) => {
            tracing::info!("the nftables table stays if this program is killed: {error:#}");
            fill(None).map(|()| None)
        }
    }
}

/// Commands that create the table if necessary and empty it.
pub fn emptied(table: &str, kept: bool) -> Vec<Value> {
    let table = || json!({"table": {"family": "inet", "name": table}});
    if kept {
        // Chains stay, without rules.
        vec![json!({"flush": table()})]
    } else {
        // "add" ensures that "delete" succeeds.
        vec![json!({"add": table()}), json!({"delete": table()}), json!({"add": table()})]
    }
}

/// Replaces the redirection in one transaction.
///
/// # Errors
/// As with [`redirect`]; nothing has changed.
pub fn replace(tproxy: &Tproxy, keeper: Option<&Keeper>) -> anyhow::Result<()> {
    apply(&tproxy.ruleset(keeper.is_some()), keeper, MODULES)
}

/// Has nft execute a ruleset; `modules` are the required kernel modules, for error messages.
pub fn apply(ruleset: &Value, keeper: Option<&Keeper>, modules: &str) -> anyhow::Result<()> {
    if let Some(keeper) = keeper {
        return keeper.run(ruleset).with_context(|| format!("(the kernel needs {modules})"));
    }
    match helper::apply_ruleset_raw(&ruleset.to_string(), DEFAULT_NFT, DEFAULT_ARGS) {
        Ok(_) => Ok(()),
        Err(NftablesError::NftExecution { inner, .. }) => {
            anyhow::bail!("cannot run nft ({inner}): install nftables; what leads flows needs it")
        }
        Err(NftablesError::NftFailed { stderr, .. }) => {
            let said = stderr.lines().next().unwrap_or_default().trim();
            anyhow::bail!("nft: {said} (the kernel needs {modules})")
        }
        Err(other) => Err(other).context("nft"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{in_private_network, sh};

    fn tproxy() -> Tproxy {
        let filter = Filter {
            protocol: Some(Protocol::Tcp),
            local: Some("10.0.0.0/8".parse().unwrap()),
            remote: Some("192.0.2.7/32".parse().unwrap()),
            remote_port: Some(PortRange { first: 80, last: 90 }),
            local_port: Some(PortRange { first: 1024, last: 65535 }),
            uid: Some(7),
            ..Filter::default()
        };
        Tproxy {
            table: Tproxy::table_name("a-b"),
            mark: 0xab60,
            port: 15171,
            v6: true,
            local: true,
            interfaces: vec!["lan0".into()],
            only_by: Some("anb0".into()),
            except: vec!["2001:db8::/32".parse().unwrap()],
            flows: vec![
                FlowRule { filter: Filter { uid: Some(1), ..Filter::default() }, take: false },
                FlowRule { filter, take: true },
            ],
            forwarded: vec![FlowRule { filter: Filter::default(), take: true }],
            keeps_source: true,
        }
    }

    /// nft accepts the ruleset, also in place of itself, and lists the intended contents.
    #[test]
    fn nft_accepts_the_ruleset_and_there_is_one_table() {
        in_private_network(|| {
            replace(&tproxy(), None).unwrap();
            replace(&tproxy(), None).unwrap();
            let unkept = sh("nft list ruleset");
            sh("nft delete table inet anabranch_a_b");
            let kept = redirect(&tproxy()).unwrap().expect("a kernel with tables that go");
            replace(&tproxy(), Some(&kept)).unwrap();
            let all = sh("nft list ruleset");
            let rules = |text: &str| {
                text.lines().skip(1).filter(|l| *l != "\tflags owner" && !l.is_empty()).collect::<String>()
            };
            assert_eq!(rules(&all), rules(&unkept));
            assert_eq!(all.matches("table inet anabranch_a_b").count(), 1, "{all}");
            for line in [
                "ct direction reply return",
                "ip daddr 169.254.0.0/16 return",
                "ip6 daddr 2001:db8::/32 return",
                "meta l4proto tcp meta skuid 1 return",
                "ip saddr 10.0.0.0/8 ip daddr 192.0.2.7 tcp sport 1024-65535 tcp dport 80-90 meta skuid 7",
                "tproxy ip to 127.0.0.1:15171 accept",
                "tproxy ip6 to [::1]:15171 accept",
                "iifname \"lan0\" meta mark 0x00000000 jump forwarded",
                "fib daddr . mark oifname != \"anb0\" return",
                "oifname \"anb0\" meta mark 0x00000000 jump classify",
                "socket transparent 1 socket wildcard 0",
            ] {
                assert!(all.contains(line), "{line}\n{all}");
            }
            // Without IPv6, no IPv6 packet is intercepted.
            replace(&Tproxy { v6: false, local: false, ..tproxy() }, Some(&kept)).unwrap();
            let all = sh("nft list ruleset");
            assert!(!all.contains("[::1]") && !all.contains("oifname \"anb0\" meta mark"), "{all}");
            assert!(all.contains("meta nfproto ipv6 return"), "{all}");
        });
    }
}
