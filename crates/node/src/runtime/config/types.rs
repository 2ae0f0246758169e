//! Types shared by several configuration files.

use anabranch_atsss::classify::RuleSet;
use anabranch_element::ioam::IoamConfig;
use anabranch_steer::Rule;
use serde::{Deserialize, Serialize};

/// Checks `[ioam]`; the error describes the first problem.
pub fn check_ioam(ioam: Option<&IoamConfig>) -> Result<(), String> {
    ioam.map_or(Ok(()), IoamConfig::check).map_err(|e| format!("[ioam] {e}"))
}

/// The interface for inner packets.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Device {
    /// Kind of interface: TUN, or a veth pair where /dev/net/tun is not available.
    pub kind: DeviceKind,
    /// Interface name, at most 13 bytes.
    pub name: String,
    /// MTU for inner packets, bytes.
    pub mtu: Mtu,
    /// UE: destinations that are routed through the tunnel.
    pub routes: Vec<ipnet::IpNet>,
    /// UE: treatment of `routes` of an address family in which the UE has no address.
    pub without_address: WithoutAddress,
    /// Time for which the data path polls for further packets before it sleeps, microseconds.
    pub busy_poll_us: u32,
    /// UE: firewall mark of the tunnel's own datagrams; also the number of the routing tables.
    pub mark: u32,
    /// Whether the kernel forwards flows of plain accesses itself once their path has been decided.
    pub fast_path: bool,
}

impl Default for Device {
    fn default() -> Self {
        Self {
            kind: DeviceKind::default(),
            name: "anb0".to_owned(),
            mtu: Mtu::Auto,
            routes: Vec::new(),
            without_address: WithoutAddress::default(),
            busy_poll_us: 0,
            mark: 0xab5a,
            fast_path: false,
        }
    }
}

/// Maximum of `busy_poll_us`: traffic with intervals of up to a second then occupies the core permanently.
const MAX_BUSY_POLL_US: u32 = 1_000_000;

/// Lower marks are likely to be used by other programs, and lower table numbers by the kernel.
pub const FIRST_MARK: u32 = 256;

impl Device {
    /// Time for which the data path polls.
    pub fn busy_poll(&self) -> std::time::Duration {
        std::time::Duration::from_micros(self.busy_poll_us.into())
    }

    /// Checks the requirements of the kernel's fast path, if it is enabled: without them it would never carry
    /// a packet.
    pub fn check_fast_path(&self, plain: bool, ioam: bool) -> Result<(), String> {
        let needs = |what: &str| Err(format!("[device] fast_path = true needs {what}; or remove it"));
        match self.fast_path {
            true if self.kind != DeviceKind::Tun => needs("kind = \"tun\""),
            true if !plain => needs("an access with security = \"plain\": the kernel does not encrypt"),
            true if ioam => needs("no section [ioam]: traces are filled in packets that pass user space"),
            _ => Ok(()),
        }
    }

    /// Checks the values; the error describes the first problem.
    pub fn check(&self) -> Result<(), String> {
        let fits = (1..=13).contains(&self.name.len())
            && self.name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if !fits {
            return Err(format!("[device] name \"{}\": use 1 to 13 letters, digits, - or _", self.name));
        }
        // The mark and the next number also number routing tables; lower ones belong to the kernel.
        if !(FIRST_MARK..u32::MAX).contains(&self.mark) {
            return Err(format!("[device] mark = {}: give {FIRST_MARK} to {}", self.mark, u32::MAX - 1));
        }
        if self.busy_poll_us > MAX_BUSY_POLL_US {
            return Err(format!(
                "[device] busy_poll_us = {}: give 0 to {MAX_BUSY_POLL_US}",
                self.busy_poll_us
            ));
        }
        match self.mtu {
            Mtu::Bytes(bytes) if !(1280..=9000).contains(&bytes) => {
                Err(format!("[device] mtu = {bytes}: give 1280 to 9000 (IPv6 needs 1280), or \"auto\""))
            }
            _ => Ok(()),
        }
    }
}

/// Kind of [`Device`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A TUN interface with offload.
    #[default]
    Tun,
    /// A veth pair and an AF_PACKET socket: slower, but independent of /dev/net/tun.
    Packet,
}

/// Treatment of destinations that should use the tunnel but cannot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WithoutAddress {
    /// Packets to them are dropped.
    #[default]
    Block,
    /// They follow the other routes of the host, and an event is recorded.
    Warn,
}

/// A size in bytes, or `"auto"`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "MtuSpec")]
pub enum Mtu {
    /// The MTU of the accesses minus the largest overhead.
    #[default]
    Auto,
    /// Fixed.
    Bytes(u16),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum MtuSpec {
    Bytes(u16),
    Word(String),
}

impl TryFrom<MtuSpec> for Mtu {
    type Error = String;
    fn try_from(spec: MtuSpec) -> Result<Self, String> {
        match spec {
            MtuSpec::Bytes(bytes) => Ok(Self::Bytes(bytes)),
            MtuSpec::Word(word) if word == "auto" => Ok(Self::Auto),
            MtuSpec::Word(word) => Err(format!("mtu \"{word}\": write a number of bytes or \"auto\"")),
        }
    }
}

/// `host:port`, `address:port` or `[v6]:port`, unresolved.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct RemoteAddr {
    /// Host name or address.
    pub host: String,
    /// UDP port.
    pub port: u16,
}

impl TryFrom<String> for RemoteAddr {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || {
            format!("remote \"{text}\": write \"host:port\", \"192.0.2.1:port\" or \"[2001:db8::1]:port\"")
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().ok().filter(|p| *p != 0).ok_or_else(wrong)?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        if bare.is_none() && host.contains(':') {
            return Err(wrong());
        }
        let host = bare.unwrap_or(host);
        if host.is_empty() { Err(wrong()) } else { Ok(Self { host: host.to_owned(), port }) }
    }
}

impl std::fmt::Display for RemoteAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Checks that the rules refer to existing accesses, and that each can match some traffic.
pub fn check_rules(rules: &[Rule], accesses: &[&str]) -> Result<(), String> {
    for rule in rules {
        rule.filter.check().map_err(|error| format!("rule \"{}\": {error}", rule.name))?;
    }
    check_stored_rules(rules, accesses)
}

/// Checks that the rules refer to existing accesses. Rules that were accepted by an earlier version and can
/// never match do no harm.
pub fn check_stored_rules(rules: &[Rule], accesses: &[&str]) -> Result<(), String> {
    let accesses: Vec<String> = accesses.iter().map(|&name| name.to_owned()).collect();
    RuleSet::compile(rules, &accesses).map(drop).map_err(|error| error.to_string())
}

/// Checks that names are unique and that there are at most [`anabranch_atsss::MAX_PATHS`].
pub fn check_accesses(names: &[&str]) -> Result<(), String> {
    let most = anabranch_atsss::MAX_PATHS;
    if names.is_empty() || names.len() > most {
        return Err(format!("{} [[access]] sections: give 1 to {most}", names.len()));
    }
    for (i, name) in names.iter().enumerate() {
        // The characters that the handshake can carry.
        let fits = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        if name.is_empty() || name.len() > 32 || !fits {
            let name = name.escape_debug();
            return Err(format!(
                "access name \"{name}\": use 1 to 32 letters, digits, \"-\", \"_\" and \".\""
            ));
        }
        if names[..i].contains(name) {
            return Err(format!("two accesses are named \"{name}\": names must be unique"));
        }
    }
    Ok(())
}

/// The names of the sections that differ in a comparison of two configurations.
pub fn differing(sections: &[(&str, bool)]) -> Vec<String> {
    sections.iter().filter(|(_, differs)| *differs).map(|(name, _)| (*name).to_owned()).collect()
}

/// An access of a configuration file.
pub trait NamedAccess {
    /// Its name.
    fn name(&self) -> &str;
    /// The keys, other than the name, whose values differ from those of `other`.
    fn differing_keys(&self, other: &Self) -> Vec<String>;
}

/// The differences between the accesses of two configurations, each with the name of the access and the key.
pub fn differing_accesses<A: NamedAccess>(new: &[A], running: &[A]) -> Vec<String> {
    let find = |accesses: &[A], name: &str| accesses.iter().position(|access| access.name() == name);
    let (mut waits, mut renamed) = (Vec::new(), Vec::new());
    for (place, old) in running.iter().enumerate().filter(|(_, old)| find(new, old.name()).is_none()) {
        let other = new.get(place).map(A::name).filter(|name| find(running, name).is_none());
        waits.push(match other {
            Some(name) => format!("access {} name (now {name})", old.name()),
            None => format!("access {} (removed)", old.name()),
        });
        renamed.extend(other);
    }
    for access in new {
        match find(running, access.name()) {
            Some(place) => {
                let keys = access.differing_keys(&running[place]);
                waits.extend(keys.into_iter().map(|key| format!("access {} {key}", access.name())));
            }
            None if renamed.contains(&access.name()) => {}
            None => waits.push(format!("access {} (added)", access.name())),
        }
    }
    if waits.is_empty() && !new.iter().map(A::name).eq(running.iter().map(A::name)) {
        waits.push("access (order)".to_owned());
    }
    waits
}

/// Maximum number of interfaces whose traffic is redirected to a proxy or a lane.
const MOST_INTERFACES: usize = 64;

/// Checks the name of an interface, which may not exist yet.
pub fn check_interface_name(name: &str) -> Result<(), String> {
    if (1..=15).contains(&name.len()) && !name.contains(['/', ' ']) {
        return Ok(());
    }
    Err(format!("\"{name}\" is not an interface name (1 to 15 bytes, without spaces and slashes)"))
}

/// Checks `key`, a list of interfaces at which packets of others arrive.
pub fn check_interfaces(key: &str, names: &[String]) -> Result<(), String> {
    if names.len() > MOST_INTERFACES {
        return Err(format!("{key}: {} entries; at most {MOST_INTERFACES}", names.len()));
    }
    for name in names {
        check_interface_name(name).map_err(|wrong| format!("{key}: {wrong}"))?;
        if name == "lo" {
            return Err(format!("{key}: \"lo\" is this machine's own: name those by which others send"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::config::{UeAccess, UpfAccess};

    #[test]
    fn rules_that_match_nothing_are_refused_unless_they_are_stored() {
        let text = "name = \"x\"\nfilter = { protocol = \"icmp\", remote_port = 7 }\nsteering = { mode = \"redundant\" }";
        let rules: [Rule; 1] = [toml::from_str(text).unwrap()];
        let error = check_rules(&rules, &["5g"]).unwrap_err();
        assert!(error.contains("rule \"x\": filter.remote_port"), "{error}");
        assert_eq!(check_stored_rules(&rules, &["5g"]), Ok(()));
    }

    #[test]
    fn accesses_that_need_a_restart_are_named_with_their_keys() {
        let access = |name: &str, more: &str| -> UeAccess {
            toml::from_str(&format!("name = \"{name}\"\nremote = \"192.0.2.1:4500\"\n{more}")).unwrap()
        };
        let running = [access("5g", ""), access("wifi", "")];
        let plain = access("wifi", "security = \"plain\"\ninterface = \"wlan0\"");
        let waits = |new: &[UeAccess]| differing_accesses(new, &running);
        assert!(waits(&running).is_empty());
        assert_eq!(waits(&[access("5g", ""), plain]), ["access wifi interface", "access wifi security"]);
        let moved = access("5g", "local = \"192.0.2.9\"");
        assert_eq!(waits(&[moved]), ["access wifi (removed)", "access 5g local"]);
        assert_eq!(waits(&[access("wifi", ""), access("5g", "")]), ["access (order)"]);
        assert_eq!(waits(&[access("5g", ""), access("lan", "")]), ["access wifi name (now lan)"]);
        let more = [access("5g", ""), access("wifi", ""), access("lan", "")];
        assert_eq!(waits(&more), ["access lan (added)"]);
        assert_eq!(waits(&more[1..]), ["access 5g (removed)", "access lan (added)"]);

        let access = |name: &str, more: &str| -> UpfAccess {
            toml::from_str(&format!("name = \"{name}\"\n{more}")).unwrap()
        };
        let [here, there] = [0, 1].map(|port| access("5g", &format!("listen = \"0.0.0.0:450{port}\"")));
        assert_eq!(differing_accesses(&[there], &[here]), ["access 5g listen"]);
    }
}
