//! Classification of flows: the application part of the hierarchical lookup (JUNCTION §V-C1).
//!
//! ATSSS rules, TS 24.193 §6.1.3: an ordered list of rules, each with a traffic descriptor (the filter) and a
//! steering mode; the first match applies. A [`RuleSet`] is compiled once per list and set of accesses, and
//! shared by all users that have both in common. It ends with a rule of last resort that matches everything:
//! active-standby with path 0 as the primary.
//!
//! Classification runs once per flow. Domains, too, are looked up once per flow and not once per rule: the
//! names of the remote address, and all their parent domains, are searched in a sorted list of the domains in
//! the rules.

use crate::dns::DnsTable;
use crate::{MAX_PATHS, PathId};
use anabranch_element::time::Instant;
use anabranch_rules::{AccessName, Filter, PortRange, Protocol, is_name};
use anabranch_steer::{Functionality, Mode, PolicyError, Rule, Steer};
use anabranch_wire::ip::{FlowKey, protocol};
use ipnet::IpNet;
use std::net::IpAddr;

/// Position of a rule in a [`RuleSet`].
pub type RuleIndex = u16;

/// Most rules in a set, without the rule of last resort.
pub const MAX_RULES: usize = 248;

/// Name of the rule of last resort, and its name if another rule already has that name: counters and events
/// are identified by name.
pub const DEFAULT_RULE: &str = "default";
const OTHER_DEFAULT: &str = "default (built-in)";

/// A rule with all references resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct CompiledRule {
    /// The rule's name.
    pub name: String,
    /// How its packets are steered.
    pub mode: Mode,
    /// Whether the receiver restores order.
    pub reorder: bool,
    /// How its TCP flows are carried.
    pub functionality: Functionality,
    matcher: Matcher,
}

/// The process that owns a flow, known only at the UE.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowOwner {
    /// Numeric user id.
    pub uid: Option<u32>,
    /// cgroup v2 path relative to the cgroup root, such as `system.slice/backup.service`.
    pub cgroup: Option<String>,
}

/// The outcome of a classification at the UE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The rule that applies.
    pub rule: RuleIndex,
    /// The owner of the flow was not given, and an earlier rule might match with it.
    pub owner_wanted: bool,
}

/// A compiled, ordered list of rules.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleSet {
    /// The last one matches everything.
    rules: Box<[CompiledRule]>,
    /// Domains in the rules, sorted; matchers refer to them by index.
    domains: Box<[Box<str>]>,
    /// Some rule leaves the shares to the ends (`autonomous`).
    autonomous: bool,
}

impl RuleSet {
    /// Whether any rule is load-balance with `autonomous`, so that paths must be measured before they are
    /// used.
    #[must_use]
    pub const fn is_autonomous(&self) -> bool {
        self.autonomous
    }

    /// Compiles rules for users with these accesses. A path id is an index in `accesses`.
    ///
    /// # Errors
    /// [`PolicyError::Rule`] names the rule and the error. Two rules with the same name
    /// ([`anabranch_steer::joint`]), and more than [`MAX_RULES`] rules, are errors, too.
    pub fn compile(rules: &[Rule], accesses: &[AccessName]) -> Result<Self, PolicyError> {
        Self::compile_for(rules, accesses, &[])
    }

    /// As [`Self::compile`], for rules shared by users with different accesses: an access in `known` but not
    /// in `accesses` is treated as down.
    ///
    /// # Errors
    /// As [`Self::compile`], for accesses in neither list.
    pub fn compile_for(
        rules: &[Rule],
        accesses: &[AccessName],
        known: &[AccessName],
    ) -> Result<Self, PolicyError> {
        if rules.len() > MAX_RULES {
            return Err(PolicyError::TooManyRules { count: rules.len(), max: MAX_RULES });
        }
        let accesses: Vec<(PathId, AccessName)> = (0..=PathId::MAX).zip(accesses.iter().cloned()).collect();
        let mut domains = Vec::new();
        for rule in rules {
            if !is_name(&rule.name) {
                return Err(PolicyError::RuleName(rule.name.chars().take(128).collect()));
            }
            if let Some(domain) = &rule.filter.domain {
                domains.push(normalised(domain).map_err(|error| in_rule(rule, error))?);
            }
        }
        domains.sort_unstable();
        domains.dedup();
        let mut compiled = Vec::with_capacity(rules.len() + 1);
        for (i, rule) in rules.iter().enumerate() {
            if rules[..i].iter().any(|other| other.name == rule.name) {
                return Err(PolicyError::RuleTwice(rule.name.clone()));
            }
            let mode =
                Mode::compile_for(&rule.steering, &accesses, known).map_err(|error| in_rule(rule, error))?;
            let matcher = Matcher::new(&rule.filter, &domains).map_err(|error| in_rule(rule, error))?;
            let Rule { reorder, functionality, .. } = *rule;
            compiled.push(CompiledRule { name: rule.name.clone(), mode, reorder, functionality, matcher });
        }
        let taken = rules.iter().any(|rule| rule.name == DEFAULT_RULE);
        compiled.push(CompiledRule {
            name: if taken { OTHER_DEFAULT } else { DEFAULT_RULE }.to_owned(),
            mode: Mode::DEFAULT,
            reorder: true,
            functionality: Functionality::Ll,
            matcher: Matcher::default(),
        });
        let autonomous = compiled.iter().any(|rule| rule.mode.is_autonomous());
        Ok(Self { rules: compiled.into(), domains: domains.into(), autonomous })
    }

    /// The rule of a flow, as seen from the UE (source = the UE's side), by its 5-tuple only. Rules that
    /// require the domain or the owner do not match.
    #[must_use]
    pub fn classify(&self, flow: &FlowKey) -> RuleIndex {
        self.search(flow, None, &Matched::default()).rule
    }

    /// The rule of a flow at the UE, by all information available there.
    #[must_use]
    pub fn classify_at_ue(
        &self,
        flow: &FlowKey,
        owner: Option<&FlowOwner>,
        dns: &DnsTable,
        now: Instant,
    ) -> Verdict {
        self.search(flow, owner, &self.matched_domains(flow.dst, dns, now))
    }

    /// A rule; the rule of last resort if the index does not exist.
    #[must_use]
    #[inline]
    pub fn get(&self, rule: RuleIndex) -> &CompiledRule {
        // Never empty: compile() ends the list with the rule of last resort.
        self.rules.get(usize::from(rule)).unwrap_or(&self.rules[self.rules.len() - 1])
    }

    /// The index of the rule with this name.
    #[must_use]
    pub fn index_of(&self, name: &str) -> Option<RuleIndex> {
        self.rules.iter().position(|rule| rule.name == name).and_then(|i| RuleIndex::try_from(i).ok())
    }

    /// All rules in order, with the rule of last resort at the end.
    #[must_use]
    pub fn rules(&self) -> &[CompiledRule] {
        &self.rules
    }

    /// Whether any rule requires the domain.
    const fn uses_domains(&self) -> bool {
        !self.domains.is_empty()
    }

    /// Whether any rule requires the owner of a flow.
    #[must_use]
    pub fn uses_owner(&self) -> bool {
        self.rules.iter().any(|rule| rule.matcher.needs_owner())
    }

    fn search(&self, flow: &FlowKey, owner: Option<&FlowOwner>, domains: &Matched) -> Verdict {
        let mut owner_wanted = false;
        for (index, rule) in (0..).zip(self.rules.iter()) {
            if !rule.matcher.matches_flow(flow) || !rule.matcher.matches_domain(domains) {
                continue;
            }
            if !rule.matcher.needs_owner() || owner.is_some_and(|o| rule.matcher.matches_owner(o)) {
                return Verdict { rule: index, owner_wanted };
            }
            owner_wanted |= owner.is_none();
        }
        // Not reached: the rule of last resort matches everything.
        Verdict { rule: RuleIndex::try_from(self.rules.len() - 1).unwrap_or(0), owner_wanted }
    }

    fn matched_domains(&self, remote: IpAddr, dns: &DnsTable, now: Instant) -> Matched {
        let mut matched = Matched::default();
        if !self.uses_domains() {
            return matched;
        }
        for name in dns.names(remote, now) {
            let mut above = Some(name);
            while let Some(domain) = above {
                if let Ok(i) = self.domains.binary_search_by(|d| (**d).cmp(domain)) {
                    matched.0[i / 64] |= 1 << (i % 64);
                }
                above = domain.split_once('.').map(|(_, above)| above);
            }
        }
        matched
    }
}

fn in_rule(rule: &Rule, error: PolicyError) -> PolicyError {
    PolicyError::Rule { rule: rule.name.clone(), error: Box::new(error) }
}

/// The domains of a set that match a flow's remote address, by index.
#[derive(Default)]
struct Matched([u64; MAX_RULES.div_ceil(64)]);

/// A filter on its own, for other kinds of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowFilter(Matcher);

impl FlowFilter {
    /// Compiles a filter. `domain` is not part of the match, because addresses of a domain are learned
    /// elsewhere.
    ///
    /// # Errors
    /// The domain of the filter is invalid.
    pub fn new(filter: &Filter) -> Result<Self, PolicyError> {
        Matcher::new(filter, &[]).map(Self)
    }

    /// Whether a flow matches, by its addresses and its owner.
    #[must_use]
    pub fn matches(&self, flow: &FlowKey, owner: &FlowOwner) -> bool {
        self.0.matches_flow(flow) && self.0.matches_owner(owner)
    }

    /// Whether the filter requires the owner of a flow.
    #[must_use]
    pub const fn needs_owner(&self) -> bool {
        self.0.needs_owner()
    }
}

/// A compiled filter; `None` matches anything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Matcher {
    local: Option<IpNet>,
    remote: Option<IpNet>,
    local_port: Option<PortRange>,
    remote_port: Option<PortRange>,
    protocol: Option<Protocol>,
    uid: Option<u32>,
    domain: Option<u16>,
    cgroup: Option<Box<str>>,
}

impl Matcher {
    fn new(filter: &Filter, domains: &[Box<str>]) -> Result<Self, PolicyError> {
        let domain = match &filter.domain {
            None => None,
            Some(domain) => domains.binary_search(&normalised(domain)?).ok(),
        };
        Ok(Self {
            local: filter.local,
            remote: filter.remote,
            local_port: filter.local_port,
            remote_port: filter.remote_port,
            protocol: filter.protocol,
            uid: filter.uid,
            domain: domain.and_then(|i| u16::try_from(i).ok()),
            cgroup: filter.cgroup.as_deref().map(|path| path.trim_matches('/').into()),
        })
    }

    fn matches_flow(&self, flow: &FlowKey) -> bool {
        let port = |range: Option<PortRange>, port: u16| {
            range.is_none_or(|r| has_ports(flow.protocol) && (r.first..=r.last).contains(&port))
        };
        self.protocol.is_none_or(|p| is_protocol(p, flow.protocol))
            && port(self.remote_port, flow.dst_port)
            && port(self.local_port, flow.src_port)
            && self.remote.is_none_or(|net| net.contains(&flow.dst))
            && self.local.is_none_or(|net| net.contains(&flow.src))
    }

    fn matches_domain(&self, domains: &Matched) -> bool {
        self.domain.is_none_or(|i| domains.0[usize::from(i) / 64] >> (i % 64) & 1 == 1)
    }

    const fn needs_owner(&self) -> bool {
        self.uid.is_some() || self.cgroup.is_some()
    }

    fn matches_owner(&self, owner: &FlowOwner) -> bool {
        let in_cgroup = |wanted: &str| {
            let path = owner.cgroup.as_deref().map(|path| path.trim_matches('/'));
            let rest = path.and_then(|path| path.strip_prefix(wanted));
            rest.is_some_and(|rest| wanted.is_empty() || rest.is_empty() || rest.starts_with('/'))
        };
        self.uid.is_none_or(|uid| owner.uid == Some(uid)) && self.cgroup.as_deref().is_none_or(in_cgroup)
    }
}

const fn is_protocol(wanted: Protocol, number: u8) -> bool {
    match wanted {
        Protocol::Tcp => number == protocol::TCP,
        Protocol::Udp => number == protocol::UDP,
        Protocol::Icmp => number == protocol::ICMP || number == protocol::ICMPV6,
    }
}

const fn has_ports(number: u8) -> bool {
    // The identifier of an ICMP echo is at the place of the ports, but is not a port.
    !matches!(number, protocol::ICMP | protocol::ICMPV6)
}

/// Lower case, without a final dot.
fn normalised(domain: &str) -> Result<Box<str>, PolicyError> {
    let name = domain.strip_suffix('.').unwrap_or(domain).to_ascii_lowercase();
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    if name.len() <= 253 && name.split('.').all(label) {
        Ok(name.into())
    } else {
        Err(PolicyError::Domain(domain.to_owned()))
    }
}

const _: () = assert!(MAX_PATHS <= PathId::MAX as usize, "every access has a path id");

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_steer::{SteeringMode, active_standby};
    use proptest::prelude::*;

    fn rules(json: &str) -> Vec<Rule> {
        serde_json::from_str(json).unwrap()
    }

    fn rule(name: &str, filter: &str) -> Rule {
        let filter = serde_json::from_str(filter).unwrap();
        let steering = SteeringMode::ActiveStandby(active_standby::Params {
            primary: "5g".into(),
            rotate_packets: 0,
            leave_above_loss_percent: 5,
        });
        Rule { name: name.into(), filter, steering, reorder: true, functionality: Functionality::Ll }
    }

    fn accesses() -> [AccessName; 2] {
        ["5g".into(), "wifi".into()]
    }

    fn flow(protocol: u8, src: &str, src_port: u16, dst: &str, dst_port: u16) -> FlowKey {
        FlowKey { src: src.parse().unwrap(), dst: dst.parse().unwrap(), src_port, dst_port, protocol }
    }

    fn name_of<'a>(set: &'a RuleSet, flow: &FlowKey) -> &'a str {
        &set.get(set.classify(flow)).name
    }

    #[test]
    fn the_first_match_wins_and_the_default_is_last() {
        let list = [
            rule("ssh", r#"{"protocol":"tcp","remote_port":22}"#),
            rule("lan", r#"{"remote":"192.0.2.0/24"}"#),
            rule("game", r#"{"protocol":"udp","remote_port":"5000-5100","local":"10.0.0.0/8"}"#),
            rule("ping", r#"{"protocol":"icmp"}"#),
            rule("six", r#"{"remote":"2001:db8::/32","local_port":9}"#),
        ];
        let set = RuleSet::compile(&list, &accesses()).unwrap();
        let cases = [
            (flow(6, "10.0.0.1", 9, "192.0.2.1", 22), "ssh"),
            (flow(17, "10.0.0.1", 9, "192.0.2.1", 22), "lan"),
            (flow(17, "10.0.0.1", 9, "198.51.100.1", 5000), "game"),
            (flow(17, "10.0.0.1", 9, "198.51.100.1", 5101), "default"),
            (flow(17, "172.16.0.1", 9, "198.51.100.1", 5000), "default"),
            (flow(1, "10.0.0.1", 22, "198.51.100.1", 22), "ping"),
            (flow(58, "fd00::1", 0, "2001:db8::1", 0), "ping"),
            (flow(6, "fd00::1", 9, "2001:db8::1", 0), "six"),
            (flow(6, "fd00::1", 8, "2001:db8::1", 0), "default"),
        ];
        for (flow, wanted) in cases {
            assert_eq!(name_of(&set, &flow), wanted, "{flow:?}");
        }
        assert_eq!(set.get(u16::MAX).mode, Mode::DEFAULT);
        assert_eq!(
            (set.index_of("ping"), set.index_of("default"), set.index_of("x")),
            (Some(3), Some(5), None)
        );
        let longest = "a".repeat(128);
        for name in ["a b", "Vidéo 4", &longest] {
            assert!(RuleSet::compile(&[rule(name, "{}")], &accesses()).is_ok(), "{name}");
        }
        for name in ["", "a\nb", "x\"} 1", "a\\b", "\u{1b}[31m", &(longest.clone() + "a")] {
            let error = RuleSet::compile(&[rule(name, "{}")], &accesses()).unwrap_err().to_string();
            assert!(error.contains("give 1 to 128 bytes") && !error.contains(char::is_control), "{error}");
        }
        let set = RuleSet::compile(&[rule("default", r#"{"protocol":"icmp"}"#)], &accesses()).unwrap();
        assert_eq!(name_of(&set, &flow(1, "10.0.0.1", 0, "10.0.0.2", 0)), "default");
        assert_eq!(name_of(&set, &flow(6, "10.0.0.1", 1, "10.0.0.2", 2)), "default (built-in)");
        let echo = rule("port", r#"{"remote_port":22}"#);
        let set = RuleSet::compile(&[echo], &accesses()).unwrap();
        assert_eq!(
            name_of(&set, &flow(1, "10.0.0.1", 22, "10.0.0.2", 22)),
            "default",
            "an identifier is not a port"
        );
    }

    #[test]
    fn domains_and_owners_are_matched_at_the_ue_only() {
        let list = [
            rule("backup", r#"{"cgroup":"system.slice/backup.service"}"#),
            rule("video", r#"{"domain":"Video.Example.","protocol":"tcp"}"#),
            rule("root", r#"{"uid":0}"#),
        ];
        let set = RuleSet::compile(&list, &accesses()).unwrap();
        assert!(set.uses_domains() && set.uses_owner());
        let mut dns = DnsTable::default();
        let now = Instant::from_secs(1);
        dns.insert(
            "192.0.2.7".parse().unwrap(),
            "cdn.video.example",
            core::time::Duration::from_secs(60),
            now,
        );
        dns.insert(
            "192.0.2.8".parse().unwrap(),
            "notvideo.example",
            core::time::Duration::from_secs(60),
            now,
        );
        let at = |dst: &str, owner: Option<&FlowOwner>| {
            let verdict = set.classify_at_ue(&flow(6, "10.0.0.1", 1, dst, 443), owner, &dns, now);
            (set.get(verdict.rule).name.as_str(), verdict.owner_wanted)
        };
        let owner = |uid, cgroup: &str| FlowOwner { uid: Some(uid), cgroup: Some(cgroup.into()) };
        assert_eq!(at("192.0.2.7", None), ("video", true));
        assert_eq!(at("192.0.2.7", Some(&owner(0, "/user.slice"))), ("video", false));
        assert_eq!(at("192.0.2.8", Some(&owner(0, "/user.slice"))), ("root", false));
        assert_eq!(at("192.0.2.8", None), ("default", true));
        assert_eq!(at("192.0.2.7", Some(&owner(9, "/system.slice/backup.service/x"))), ("backup", false));
        assert_eq!(at("192.0.2.8", Some(&owner(9, "/system.slice/backup.service2"))), ("default", false));
        assert_eq!(at("192.0.2.8", Some(&FlowOwner::default())), ("default", false));
        assert_eq!(name_of(&set, &flow(6, "10.0.0.1", 1, "192.0.2.7", 443)), "default");
    }

    #[test]
    fn errors_name_the_rule() {
        let error = |list: &[Rule]| RuleSet::compile(list, &accesses()).unwrap_err().to_string();
        let lte = rules(r#"[{"name":"web","steering":{"mode":"active-standby","primary":"lte"}}]"#);
        let text = error(&lte);
        assert!(text.contains("\"web\"") && text.contains("\"lte\"") && text.contains("5g, wifi"), "{text}");
        assert!(RuleSet::compile_for(&lte, &accesses(), &["lte".to_owned()]).is_ok());
        for domain in ["", "*.example.org", "a..b", "ex ample", &"a".repeat(64)] {
            let mut bad = rule("web", "{}");
            bad.filter.domain = Some(domain.to_owned());
            assert!(error(&[bad]).contains("rule \"web\": domain"), "{domain}");
        }
        assert!(error(&[rule("a", "{}"), rule("a", "{}")]).contains("unique"));
        let many: Vec<_> = (0..=MAX_RULES).map(|i| rule(&i.to_string(), "{}")).collect();
        assert!(error(&many).contains("249 rules: at most 248"));
    }

    #[test]
    fn every_rule_of_a_full_set_can_be_hit_by_its_domain() {
        let list: Vec<_> = (0..MAX_RULES)
            .map(|i| rule(&i.to_string(), &format!(r#"{{"domain":"d{i}.example"}}"#)))
            .collect();
        let set = RuleSet::compile(&list, &accesses()).unwrap();
        let address = |i: usize| IpAddr::from([10, 1, (i / 256) as u8, (i % 256) as u8]);
        let mut dns = DnsTable::default();
        for i in 0..MAX_RULES {
            let name = format!("www.d{i}.example");
            dns.insert(address(i), &name, core::time::Duration::from_secs(60), Instant::ZERO);
        }
        for i in 0..MAX_RULES {
            let flow = FlowKey { dst: address(i), ..flow(6, "10.0.0.1", 1, "10.0.0.2", 2) };
            let verdict = set.classify_at_ue(&flow, None, &dns, Instant::ZERO);
            assert_eq!(usize::from(verdict.rule), i);
        }
    }

    fn any_rule() -> impl Strategy<Value = Filter> {
        let net = |base: u32| {
            (0u32..4, 28u8..=32).prop_map(move |(n, len)| {
                IpNet::new(std::net::Ipv4Addr::from_bits(base + n).into(), len).unwrap()
            })
        };
        let ports = (0u16..4, 0u16..4).prop_map(|(a, b)| PortRange { first: a.min(b), last: a.max(b) });
        let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Icmp)];
        (
            proptest::option::of(net(0x0a00_0000)),
            proptest::option::of(net(0xc000_0200)),
            proptest::option::of(ports.clone()),
            proptest::option::of(ports),
            proptest::option::of(protocol),
        )
            .prop_map(|(local, remote, local_port, remote_port, protocol)| Filter {
                local,
                remote,
                local_port,
                remote_port,
                protocol,
                ..Filter::default()
            })
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_reading_of_the_filters(
            filters in proptest::collection::vec(any_rule(), 0..12),
            flows in proptest::collection::vec((0u32..5, 0u32..5, 0u16..5, 0u16..5, 0usize..4), 20),
        ) {
            let list: Vec<_> = filters
                .iter()
                .enumerate()
                .map(|(i, filter)| Rule { filter: filter.clone(), ..rule(&i.to_string(), "{}") })
                .collect();
            let set = RuleSet::compile(&list, &accesses()).unwrap();
            for (src, dst, src_port, dst_port, proto) in flows {
                let protocol = [6, 17, 1, 132][proto];
                let (src, dst) = (0x0a00_0000 + src, 0xc000_0200 + dst);
                let flow = FlowKey {
                    src: std::net::Ipv4Addr::from_bits(src).into(),
                    dst: std::net::Ipv4Addr::from_bits(dst).into(),
                    src_port,
                    dst_port,
                    protocol,
                };
                let within = |net: Option<IpNet>, address: u32| match net {
                    Some(IpNet::V4(net)) => {
                        u32::from(net.network()) <= address && address <= u32::from(net.broadcast())
                    }
                    _ => true,
                };
                let port = |range: Option<PortRange>, port| match range {
                    Some(range) => protocol != 1 && range.first <= port && port <= range.last,
                    None => true,
                };
                let wanted = filters.iter().position(|f| {
                    within(f.local, src)
                        && within(f.remote, dst)
                        && port(f.local_port, src_port)
                        && port(f.remote_port, dst_port)
                        && f.protocol.is_none_or(|p| {
                            protocol == match p { Protocol::Tcp => 6, Protocol::Udp => 17, Protocol::Icmp => 1 }
                        })
                });
                prop_assert_eq!(usize::from(set.classify(&flow)), wanted.unwrap_or(filters.len()));
            }
        }
    }
}
