//! Configuration file `upf.toml`.

use crate::runtime::config::api::{Api, Metrics};
use crate::runtime::config::load::Check;
use crate::runtime::config::types::{
    Device, DeviceKind, NamedAccess, check_accesses, check_ioam, check_rules, check_stored_rules, differing,
};
use crate::tcp_lane::config::UpfLane;
use anabranch_atsss::crypto::PublicKey;
use anabranch_atsss::destinations::Destinations;
use anabranch_atsss::path::{FlapParams, ProbeParams};
use anabranch_atsss::session::{Addresses, Security};
use anabranch_element::ioam::IoamConfig;
use anabranch_rules::is_name;
use anabranch_steer::Rule;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

/// The UPF's configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpfConfig {
    /// `[upf]`
    pub upf: UpfSection,
    /// `[[access]]`
    #[serde(default)]
    pub access: Vec<UpfAccess>,
    /// `[device]`
    #[serde(default)]
    pub device: Device,
    /// `[n6]`
    #[serde(default)]
    pub n6: N6,
    /// `[pool]`
    pub pool: Pool,
    /// `[[ue]]`
    #[serde(default)]
    pub ue: Vec<UpfUe>,
    /// `[[rule]]`, first match wins.
    #[serde(default)]
    pub rule: Vec<Rule>,
    /// `[probe]`
    #[serde(default)]
    pub probe: ProbeParams,
    /// `[flap]`
    #[serde(default)]
    pub flap: FlapParams,
    /// `[tcp_lane]`: if present, UEs are offered a TCP lane.
    #[serde(default)]
    pub tcp_lane: Option<UpfLane>,
    /// `[ioam]`: identity of this node for filling the traces of passing packets.
    #[serde(default)]
    pub ioam: Option<IoamConfig>,
    /// `[api]`
    #[serde(default = "default_api")]
    pub api: Api,
    /// `[metrics]`
    #[serde(default)]
    pub metrics: Option<Metrics>,
}

/// `[upf]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpfSection {
    /// File with the private key (`anabranch keygen`).
    pub private_key_file: PathBuf,
    /// Number of data-path threads.
    #[serde(default)]
    pub workers: Workers,
    /// Maximum number of sessions.
    #[serde(default = "default_sessions")]
    pub max_sessions: u32,
    /// File with the addresses assigned from the pool and the UEs added over REST.
    #[serde(default = "default_state")]
    pub state_file: PathBuf,
}

/// A number of threads, or `"auto"`: one per processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "WorkersSpec")]
pub struct Workers(pub Option<u8>);

/// Maximum number of data-path threads.
pub const MAX_WORKERS: u8 = 64;

impl Default for Workers {
    fn default() -> Self {
        Self(Some(1))
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WorkersSpec {
    Count(i64),
    Word(String),
}

impl TryFrom<WorkersSpec> for Workers {
    type Error = String;
    fn try_from(spec: WorkersSpec) -> Result<Self, String> {
        let count = match spec {
            WorkersSpec::Count(count) => u8::try_from(count).ok().filter(|c| (1..=MAX_WORKERS).contains(c)),
            WorkersSpec::Word(word) if word == "auto" => return Ok(Self(None)),
            WorkersSpec::Word(_) => None,
        };
        count.map(|c| Self(Some(c))).ok_or_else(|| format!("workers: give 1 to {MAX_WORKERS}, or \"auto\""))
    }
}

impl Workers {
    /// The number of threads on this machine.
    pub fn count(self) -> usize {
        self.0.map_or_else(
            || std::thread::available_parallelism().map_or(1, |n| n.get().min(usize::from(MAX_WORKERS))),
            usize::from,
        )
    }
}

/// `[[access]]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpfAccess {
    /// Name of the access; UEs use the same name.
    pub name: String,
    /// Address and port the UEs send to.
    pub listen: SocketAddr,
    /// Interface to bind to (SO_BINDTODEVICE).
    #[serde(default)]
    pub interface: Option<String>,
    /// Protection of user data; plain only if the UE is configured so, too.
    #[serde(default)]
    pub security: Security,
}

/// `[n6]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct N6 {
    /// Treatment of inner packets towards the data network.
    pub mode: N6Mode,
    /// With `nat`: translate only packets that leave through this interface.
    pub interface: Option<String>,
    /// Destinations that UEs may reach although they are private, shared, link-local, loopback or multicast.
    pub open: Vec<IpNet>,
    /// Whether UEs may reach each other.
    pub ue_to_ue: bool,
}

/// How inner packets reach the data network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum N6Mode {
    /// Source addresses are translated to the UPF's own.
    #[default]
    Nat,
    /// Source addresses stay unchanged: the data network routes the pool to the UPF.
    Routed,
}

/// `[pool]`: prefixes of the virtual addresses. The first host address of each is the UPF's own.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// IPv4 prefix.
    #[serde(default)]
    pub v4: Option<Ipv4Net>,
    /// IPv6 prefix.
    #[serde(default)]
    pub v6: Option<Ipv6Net>,
}

/// `[[ue]]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpfUe {
    /// Unique name.
    pub name: String,
    /// The UE's public key, base64.
    #[schema(value_type = String)]
    pub public_key: PublicKey,
    /// Fixed virtual IPv4 address within the pool; default: assigned from the pool and kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address_v4: Option<Ipv4Addr>,
    /// Fixed virtual IPv6 address within the pool; default: assigned from the pool and kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address_v6: Option<Ipv6Addr>,
    /// Rules for this UE only; they precede the shared ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub rule: Vec<Rule>,
    /// Whether rules requested by the UE apply to its downlink.
    #[serde(default = "yes")]
    pub accept_rules: bool,
}

impl UpfUe {
    /// The configured fixed addresses.
    pub fn fixed(&self) -> Addresses {
        Addresses { v4: self.address_v4, v6: self.address_v6 }
    }
}

impl Check for UpfConfig {
    fn check(&self) -> Result<(), String> {
        let names: Vec<&str> = self.access.iter().map(|a| a.name.as_str()).collect();
        check_accesses(&names)?;
        for (i, access) in self.access.iter().enumerate() {
            if access.listen.port() == 0 {
                return Err(format!(
                    "access {}: listen \"{}\" needs a port other than 0",
                    access.name, access.listen
                ));
            }
            if let Some(other) =
                self.access[..i].iter().find(|a| a.listen == access.listen && a.interface == access.interface)
            {
                return Err(format!(
                    "accesses {} and {} both listen on \"{}\": give each its own port or interface",
                    other.name, access.name, access.listen
                ));
            }
            // With several workers, ports are shared, and the more specific address takes precedence.
            if self.workers() == 1
                && let Some(other) = self.access[..i].iter().find(|other| other.overlaps(access))
            {
                return Err(format!(
                    "accesses {} and {} listen on \"{}\" and \"{}\", which overlap: give each its own port, or addresses or \
                     interfaces of which neither includes the other (0.0.0.0 includes all of IPv4, [::] also IPv6)",
                    other.name, access.name, other.listen, access.listen
                ));
            }
        }
        check_rules(&self.rule, &names)?;
        if self.pool.v4.is_none() && self.pool.v6.is_none() {
            return Err(
                "[pool] is empty: give v4 = \"10.45.0.0/16\" or v6 = \"fd45::/64\", or both".to_owned()
            );
        }
        if self.pool.v4.is_some_and(|p| p.prefix_len() > 30)
            || self.pool.v6.is_some_and(|p| p.prefix_len() > 126)
        {
            return Err("[pool] has no room: a /30 or /126 is the smallest".to_owned());
        }
        let pools = [("v4", self.pool.v4.map(IpNet::V4)), ("v6", self.pool.v6.map(IpNet::V6))];
        for (key, pool) in pools {
            pool.map_or(Ok(()), check_pool).map_err(|error| format!("[pool] {key} {error}"))?;
        }
        self.check_ues()?;
        self.check_room()?;
        if self.device.kind == DeviceKind::Packet && self.upf.workers.0.is_some_and(|n| n > 1) {
            return Err("[device] kind = \"packet\" has one queue: set [upf] workers = 1".to_owned());
        }
        self.probe.validate().map_err(|e| format!("[probe] {e}"))?;
        self.flap.validate().map_err(|e| format!("[flap] {e}"))?;
        self.device.check()?;
        if let Some(lane) = &self.tcp_lane {
            lane.check()?;
            if self.pool.v4.is_none() {
                return Err("[tcp_lane] identifies sessions by IPv4 address: give [pool] v4".to_owned());
            }
            if self.device.kind == DeviceKind::Packet {
                return Err("[tcp_lane] needs [device] kind = \"tun\"".to_owned());
            }
        }
        check_ioam(self.ioam.as_ref())?;
        let plain = self.access.iter().any(|access| access.security == Security::Plain);
        self.device.check_fast_path(plain, self.ioam.is_some())?;
        Metrics::check(self.metrics.as_ref())?;
        self.api.check()
    }
}

impl UpfConfig {
    /// The prefixes of the virtual addresses.
    pub fn pools(&self) -> Vec<IpNet> {
        self.pool.v4.map(IpNet::V4).into_iter().chain(self.pool.v6.map(IpNet::V6)).collect()
    }

    /// The destinations that UEs may reach.
    pub fn destinations(&self) -> Destinations {
        let own = self.pool.v4.and_then(gateway_v4).map(IpAddr::V4);
        let own = own.into_iter().chain(self.pool.v6.and_then(gateway_v6).map(IpAddr::V6));
        Destinations::new(self.pools(), own, self.n6.open.iter().map(IpNet::trunc), self.n6.ue_to_ue)
    }

    /// Number of data-path threads: 1 with a veth pair, which has only one queue.
    pub fn workers(&self) -> usize {
        match self.device.kind {
            DeviceKind::Tun => self.upf.workers.count(),
            DeviceKind::Packet => 1,
        }
    }

    /// Checks all UEs, each by itself and against the others; the error describes the first problem.
    fn check_ues(&self) -> Result<(), String> {
        let (mut names, mut keys, mut addresses) = (HashMap::new(), HashMap::new(), HashMap::new());
        for ue in &self.ue {
            self.check_ue(ue)?;
            let same = |other: Option<&str>, what: &str, value: &dyn std::fmt::Display| match other {
                Some(other) => {
                    Err(format!("UEs {other} and {} share {what} \"{value}\": it must be unique", ue.name))
                }
                None => Ok(()),
            };
            let name = ue.name.as_str();
            same(names.insert(name, name), "the name", &name)?;
            same(keys.insert(ue.public_key, name), "public_key", &ue.public_key)?;
            for a in ue.fixed().iter() {
                same(addresses.insert(a, name), address_key(a), &a)?;
            }
        }
        Ok(())
    }

    /// Checks that the pools have an address for each UE of the file.
    fn check_room(&self) -> Result<(), String> {
        let pools = [("v4", self.pool.v4.map(IpNet::V4)), ("v6", self.pool.v6.map(IpNet::V6))];
        for (key, pool) in pools {
            let Some(pool) = pool else { continue };
            // The network's address, the UPF's own, and the last one are not assigned.
            let hosts = 1_u64.checked_shl(u32::from(pool.max_prefix_len() - pool.prefix_len()));
            let Some(hosts) = hosts else { continue };
            let fixed = |ue: &UpfUe| match pool {
                IpNet::V4(_) => ue.address_v4.map(IpAddr::V4),
                IpNet::V6(_) => ue.address_v6.map(IpAddr::V6),
            };
            let taken =
                self.ue.iter().filter_map(fixed).filter(|address| *address != pool.broadcast()).count();
            let free = (hosts - 3).saturating_sub(taken as u64);
            let wanted = self.ue.iter().filter(|ue| fixed(ue).is_none()).count();
            if wanted as u64 > free {
                return Err(format!(
                    "[pool] {key} \"{pool}\" has {free} addresses for the {wanted} [[ue]] without address_{key}: use a larger \
                     prefix, or remove UEs"
                ));
            }
        }
        Ok(())
    }

    /// Checks one UE by itself; also used by the REST interface.
    pub fn check_ue(&self, ue: &UpfUe) -> Result<(), String> {
        self.check_stored_ue(ue)?;
        let names: Vec<&str> = self.access.iter().map(|a| a.name.as_str()).collect();
        check_rules(&ue.rule, &names).map_err(|e| format!("ue {}: {e}", ue.name))
    }

    /// Checks a UE that was accepted before and fitted the configuration then.
    pub fn check_stored_ue(&self, ue: &UpfUe) -> Result<(), String> {
        // A path segment of dots alone is removed from URLs (RFC 3986 §5.2.4), so REST and `ctl` could not address the UE.
        if ue.name.len() > 64 || !is_name(&ue.name) || ue.name.bytes().all(|b| b == b'.') {
            let name = ue.name.escape_debug();
            return Err(format!(
                "ue name \"{name}\": use 1 to 64 bytes, not dots alone, without control characters, quotes and backslashes"
            ));
        }
        if let Some(a) = ue.address_v4
            && !self.pool.v4.is_some_and(|p| {
                p.contains(&a) && Some(a) != gateway_v4(p) && a != p.broadcast() && a != p.network()
            })
        {
            return Err(format!(
                "ue {}: address_v4 \"{a}\" is not a free host address of [pool] v4",
                ue.name
            ));
        }
        if let Some(a) = ue.address_v6
            && !self.pool.v6.is_some_and(|p| p.contains(&a) && Some(a) != gateway_v6(p) && a != p.network())
        {
            return Err(format!(
                "ue {}: address_v6 \"{a}\" is not a free host address of [pool] v6",
                ue.name
            ));
        }
        let names: Vec<&str> = self.access.iter().map(|a| a.name.as_str()).collect();
        check_stored_rules(&ue.rule, &names).map_err(|e| format!("ue {}: {e}", ue.name))
    }
}

impl NamedAccess for UpfAccess {
    fn name(&self) -> &str {
        &self.name
    }

    fn differing_keys(&self, other: &Self) -> Vec<String> {
        differing(&[
            ("listen", self.listen != other.listen),
            ("interface", self.interface != other.interface),
            ("security", self.security != other.security),
        ])
    }
}

impl UpfAccess {
    /// Whether the kernel refuses to bind both, because a datagram could belong to either.
    fn overlaps(&self, other: &Self) -> bool {
        let [one, two] = [self, other].map(|access| access.listen.ip().to_canonical());
        let includes =
            |all: IpAddr, ip: IpAddr| all == ip || all.is_unspecified() && (all.is_ipv6() || ip.is_ipv4());
        self.listen.port() == other.listen.port()
            && (self.interface == other.interface || self.interface.is_none() || other.interface.is_none())
            && (includes(one, two) || includes(two, one))
    }
}

/// Prefixes whose addresses cannot belong to a UE.
const NO_POOL: [(IpNet, &str); 9] = [
    (IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 8)), "this network"),
    (IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)), "loopback"),
    (IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16)), "link-local"),
    (IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4)), "multicast"),
    (IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(240, 0, 0, 0), 4)), "reserved"),
    (IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 8)), "reserved, loopback"),
    (IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10)), "link-local"),
    (
        IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10)),
        "site-local, deprecated",
    ),
    (IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8)), "multicast"),
];

/// Checks that the addresses of a pool can be those of hosts.
fn check_pool(pool: IpNet) -> Result<(), String> {
    let overlaps = |net: &IpNet| net.contains(&pool.addr()) || pool.contains(&net.addr());
    let Some((net, what)) = NO_POOL.iter().find(|(net, _)| overlaps(net)) else { return Ok(()) };
    let such = match pool {
        IpNet::V4(_) => "private or public addresses, such as \"10.45.0.0/16\"",
        IpNet::V6(_) => "unique local (fc00::/7) or global addresses, such as \"fd45::/64\"",
    };
    Err(format!(
        "\"{pool}\" overlaps {net} ({what}), whose addresses no UE can have: give a prefix of {such}"
    ))
}

/// The key of a fixed address in a `[[ue]]` section.
pub fn address_key(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "address_v4" } else { "address_v6" }
}

/// The UPF's own address in an IPv4 pool: the first host.
pub fn gateway_v4(pool: Ipv4Net) -> Option<Ipv4Addr> {
    pool.hosts().next()
}

/// The UPF's own address in an IPv6 pool: the first host after the subnet-router anycast address.
pub fn gateway_v6(pool: Ipv6Net) -> Option<Ipv6Addr> {
    pool.hosts().find(|a| *a != pool.network())
}

fn default_sessions() -> u32 {
    131_072
}

fn default_state() -> PathBuf {
    "/var/lib/anabranch/upf-state.json".into()
}

fn default_api() -> Api {
    Api::unix("/run/anabranch/upf.sock")
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::config::parse;

    fn error(accesses: &[(&str, &str)], more: &str) -> Option<String> {
        let access = |(number, (listen, more)): (usize, &(&str, &str))| {
            format!("[[access]]\nname = \"a{number}\"\nlisten = \"{listen}\"\n{more}\n")
        };
        let accesses: String = accesses.iter().enumerate().map(access).collect();
        let text = format!("[upf]\nprivate_key_file = \"k\"\n{accesses}{more}");
        let error = parse::<UpfConfig>("upf.toml", &text).err()?.to_string();
        assert!(error.starts_with("upf.toml") && error.lines().count() == 1, "{error}");
        Some(error)
    }

    const POOL: &str = "[pool]\nv4 = \"10.45.0.0/16\"\n";

    #[test]
    fn accesses_whose_addresses_overlap_are_refused() {
        let on = |interface: &'static str| match interface {
            "lo" => "interface = \"lo\"",
            _ => "interface = \"eth0\"",
        };
        for (one, other) in [
            (("0.0.0.0:4500", ""), ("[::]:4500", "")),
            (("[::]:4500", ""), ("0.0.0.0:4500", "")),
            (("0.0.0.0:4500", ""), ("10.91.3.1:4500", "")),
            (("10.91.3.1:4500", ""), ("[::]:4500", "")),
            (("[fd91::1]:4500", ""), ("[::]:4500", "")),
            (("[::ffff:10.91.3.1]:4500", ""), ("10.91.3.1:4500", "")),
            (("0.0.0.0:4500", on("lo")), ("0.0.0.0:4500", "")),
            (("0.0.0.0:4500", ""), ("10.91.3.1:4500", on("lo"))),
        ] {
            let error = error(&[one, other], POOL).unwrap();
            let [one, other] = [one, other].map(|(listen, _)| format!("\"{listen}\""));
            let names = ["accesses a0 and a1", &one, &other, "give each its own port"];
            assert!(names.iter().all(|part| error.contains(part)), "{error}");
        }
        for (one, other) in [
            (("0.0.0.0:4500", ""), ("[::]:4501", "")),
            (("0.0.0.0:4500", ""), ("[fd91::1]:4500", "")),
            (("10.91.3.1:4500", ""), ("10.91.3.2:4500", "")),
            (("0.0.0.0:4500", on("lo")), ("[::]:4500", on("eth0"))),
        ] {
            assert_eq!(error(&[one, other], POOL), None);
        }
    }

    #[test]
    fn prefixes_whose_addresses_no_ue_can_have_are_no_pools() {
        for (key, pool, what) in [
            ("v4", "224.0.0.0/4", "multicast"),
            ("v4", "239.1.0.0/16", "multicast"),
            ("v4", "0.0.0.0/8", "this network"),
            ("v4", "0.0.0.0/0", "this network"),
            ("v4", "127.0.0.0/8", "loopback"),
            ("v4", "127.45.0.0/16", "loopback"),
            ("v4", "169.254.0.0/16", "link-local"),
            ("v4", "240.0.0.0/4", "reserved"),
            ("v6", "ff00::/8", "multicast"),
            ("v6", "fe80::/10", "link-local"),
            ("v6", "::/8", "reserved"),
            ("v6", "::/64", "reserved"),
            ("v6", "fe80:1::/64", "link-local"),
        ] {
            let error = error(&[("0.0.0.0:4500", "")], &format!("[pool]\n{key} = \"{pool}\"\n")).unwrap();
            let parts = [&format!("[pool] {key} \"{pool}\""), what, "give a prefix of"];
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        for pool in [
            "v4 = \"10.0.0.0/8\"",
            "v4 = \"100.64.0.0/10\"",
            "v4 = \"192.0.2.0/24\"",
            "v6 = \"2001:db8::/64\"",
            "v6 = \"fd45::/64\"",
        ] {
            assert_eq!(error(&[("0.0.0.0:4500", "")], &format!("[pool]\n{pool}\n")), None);
        }
    }

    #[test]
    fn a_pool_has_an_address_for_each_ue_of_the_file() {
        let ue = |id: u8, more: &str| {
            format!("[[ue]]\nname = \"u{id}\"\npublic_key = \"{}\"\n{more}\n", PublicKey([id; 32]))
        };
        let of = |pool: &str, ues: &[String]| {
            error(&[("0.0.0.0:4500", "")], &format!("[pool]\n{pool}\n{}", ues.concat()))
        };
        let (v4, v6) = ("v4 = \"10.45.0.0/29\"", "v6 = \"fd45::/125\"");
        let mut ues: Vec<String> = (1..=5).map(|id| ue(id, "")).collect();
        assert_eq!(of(v4, &ues), None);
        assert_eq!(of(v6, &ues), None);
        ues.push(ue(6, ""));
        for (pool, key) in [(v4, "v4"), (v6, "v6")] {
            let error = of(pool, &ues).unwrap();
            let parts = [&format!("[pool] {key}"), "5 addresses for the 6 [[ue]]", "larger prefix"];
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        ues.truncate(4);
        ues.push(ue(7, "address_v4 = \"10.45.0.2\"\naddress_v6 = \"fd45::7\""));
        assert_eq!(of(&format!("{v4}\n{v6}"), &ues), None);
        ues.push(ue(8, "address_v6 = \"fd45::3\""));
        assert!(of(&format!("{v4}\n{v6}"), &ues).unwrap().contains("4 addresses for the 5"));
    }
}
