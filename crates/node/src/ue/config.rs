//! Configuration file `ue.toml`.

use crate::runtime::config::api::{Api, Metrics};
use crate::runtime::config::gateways::Gateways;
use crate::runtime::config::load::Check;
use crate::runtime::config::types::{
    Device, NamedAccess, RemoteAddr, check_accesses, check_interface_name, check_ioam, check_rules, differing,
};
use crate::tcp_lane::config::UeLane;
use anabranch_atsss::crypto::PublicKey;
use anabranch_atsss::path::{FlapParams, ProbeParams};
use anabranch_atsss::session::Security;
use anabranch_element::ioam::IoamConfig;
use anabranch_rules::{PortRange, Protocol, is_name};
use anabranch_steer::Rule;
use ipnet::IpNet;
use serde::Deserialize;
use std::net::IpAddr;
use std::path::PathBuf;

/// Maximum number of slices, and of mappings: the range of rule priorities that is reserved for each
/// (`netctl::slices`).
pub const MOST_SLICES: usize = 64;

/// The UE's configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UeConfig {
    /// `[ue]`
    pub ue: UeSection,
    /// `[upf]`
    pub upf: UpfPeer,
    /// `[[access]]`, in the order of their path ids.
    #[serde(default)]
    pub access: Vec<UeAccess>,
    /// `[device]`
    #[serde(default)]
    pub device: Device,
    /// `[[rule]]`, first match wins.
    #[serde(default)]
    pub rule: Vec<Rule>,
    /// `[probe]`
    #[serde(default)]
    pub probe: ProbeParams,
    /// `[flap]`
    #[serde(default)]
    pub flap: FlapParams,
    /// `[slices]`: the slice manager of this UE.
    #[serde(default)]
    pub slices: Option<SlicesSection>,
    /// `[[slice]]`: how packets reach a slice.
    #[serde(default)]
    pub slice: Vec<SliceBinding>,
    /// `[[mapping]]`: assignment of flows of programs that do not select slices themselves.
    #[serde(default)]
    pub mapping: Vec<Mapping>,
    /// `[tcp_lane]`
    #[serde(default)]
    pub tcp_lane: UeLane,
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

/// `[ue]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UeSection {
    /// Name of the UE in logs and status.
    #[serde(default = "default_name")]
    pub name: String,
    /// File with the private key (`anabranch keygen`).
    pub private_key_file: PathBuf,
    /// File with the timestamp of the newest handshake.
    #[serde(default = "default_state")]
    pub state_file: PathBuf,
    /// Method of setting the initial window of connections on slices.
    #[serde(default)]
    pub initial_window: WindowBy,
    /// With `sockops`: the cgroup whose connections get the window.
    #[serde(default = "all_processes")]
    pub initial_window_cgroup: PathBuf,
}

/// Method of setting the initial window of connections on slices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WindowBy {
    /// `initcwnd` of a route, in steps of about 10 %.
    #[default]
    Route,
    /// A kernel program (sockops), with a resolution of one segment.
    Sockops,
}

/// `[upf]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpfPeer {
    /// The UPF's public key, base64.
    pub public_key: PublicKey,
    /// Cipher to propose.
    #[serde(default)]
    pub cipher: Cipher,
}

/// Cipher of the encrypted form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cipher {
    /// The faster one: AES if the processor has instructions for it, else ChaCha20.
    #[default]
    Auto,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    Chacha20Poly1305,
}

/// `[[access]]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UeAccess {
    /// Name of the access; rules refer to it.
    pub name: String,
    /// Interface through which the datagrams leave (SO_BINDTODEVICE).
    #[serde(default)]
    pub interface: Option<String>,
    /// Source address of the datagrams.
    #[serde(default)]
    pub local: Option<IpAddr>,
    /// Address of the UPF over this access.
    pub remote: RemoteAddr,
    /// Protection of user data.
    #[serde(default)]
    pub security: Security,
}

impl NamedAccess for UeAccess {
    fn name(&self) -> &str {
        &self.name
    }

    fn differing_keys(&self, other: &Self) -> Vec<String> {
        differing(&[
            ("interface", self.interface != other.interface),
            ("local", self.local != other.local),
            ("remote", self.remote != other.remote),
            ("security", self.security != other.security),
        ])
    }
}

impl UeAccess {
    /// Checks the combination of addresses. A name is refused for a plain access: a forged name resolution
    /// could redirect its unencrypted data, while sealed data could only be relayed. Both addresses must be
    /// of the same family.
    pub fn check_remote(&self) -> Result<(), String> {
        if let (Some(local), Ok(remote)) = (self.local, self.remote.host.parse::<IpAddr>())
            && local.is_ipv6() != remote.is_ipv6()
        {
            return Err(format!(
                "access {}: remote \"{}\" cannot be reached from local = \"{local}\": give two addresses of IPv4, or two of IPv6",
                self.name, self.remote
            ));
        }
        if self.security == Security::Plain && self.remote.host.parse::<IpAddr>().is_err() {
            return Err(format!(
                "access {}: remote \"{}\" is a name, and user data of a plain access is not encrypted: give the \
                 UPF's address, or security = \"secure\"",
                self.name, self.remote
            ));
        }
        Ok(())
    }
}

/// `[slices]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlicesSection {
    /// Address of the slice manager: `https://HOST:PORT`, `http://ADDRESS:PORT` or `unix:PATH`.
    pub manager: String,
    /// PEM file with certificate authorities for https; default: those of the system.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// File with this UE's bearer token in its first line.
    pub token_file: PathBuf,
    /// Method of receiving updates.
    #[serde(default)]
    pub follow: Follow,
    /// Interval between polls, milliseconds.
    #[serde(default = "five_seconds")]
    pub poll_interval_ms: u32,
    /// Whether to request guarantees that programs need and no slice has.
    #[serde(default = "yes")]
    pub ask_for_more: bool,
}

/// Method of receiving updates from the slice manager.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Follow {
    /// A stream of events; polling while the manager has too many streams.
    #[default]
    Stream,
    /// Polling with ETag.
    Poll,
}

/// `[[slice]]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceBinding {
    /// Name or identifier of the slice at the slice manager.
    pub slice: String,
    /// Interface through which its packets leave.
    pub interface: String,
    /// Packet mark that selects the slice; default: the whole interface is the slice.
    #[serde(default)]
    pub mark: Option<u32>,
    /// Routing table of the mark.
    #[serde(default)]
    pub table: Option<u32>,
    /// Routers, at most one per address family; without a router, all addresses of the family are on-link.
    #[serde(default)]
    pub gateway: Gateways,
    /// α of the initial window: the share of the guaranteed uplink rate that the first flight may use, 0.01
    /// to 1.
    #[serde(default = "half")]
    pub alpha: f64,
}

/// `[[mapping]]`: assignment of flows of programs that do not select slices themselves.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mapping {
    /// Name of the mapping in logs.
    pub name: String,
    /// Transport protocol: `tcp` or `udp`.
    pub protocol: Protocol,
    /// Destination prefix.
    pub remote: IpNet,
    /// Destination ports.
    #[serde(default)]
    pub remote_port: Option<PortRange>,
    /// User id of the sending process.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Whether the connections are paced, which makes a larger initial window safe.
    #[serde(default)]
    pub paced: bool,
    /// Requirements of the flows, by the property names of RFC 9622 and `_slice.*`.
    #[serde(default)]
    pub properties: serde_json::Map<String, serde_json::Value>,
}

impl Mapping {
    fn check(&self) -> Result<(), String> {
        if self.protocol == Protocol::Icmp {
            return Err(format!("[[mapping]] {}: protocol must be tcp or udp", self.name));
        }
        let properties = serde_json::Value::Object(self.properties.clone());
        match anabranch_selection::Properties::from_json(properties) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("[[mapping]] {}: properties: {error}", self.name)),
        }
    }
}

impl SlicesSection {
    fn check(&self) -> Result<(), String> {
        let sound = match self.manager.strip_prefix("unix:") {
            Some(path) => !path.is_empty(),
            None => url::Url::parse(&self.manager)
                .is_ok_and(|u| ["http", "https"].contains(&u.scheme()) && u.has_host()),
        };
        if !sound {
            return Err(format!(
                "[slices] manager \"{}\": write https://HOST:PORT, http://ADDRESS:PORT or unix:PATH",
                self.manager
            ));
        }
        if !(100..=3_600_000).contains(&self.poll_interval_ms) {
            return Err(format!(
                "[slices] poll_interval_ms is {}: must be 100 to 3600000",
                self.poll_interval_ms
            ));
        }
        Ok(())
    }
}

/// Lower table numbers include those reserved by the kernel (253 to 255).
const FIRST_TABLE: u32 = 256;

fn check_bindings(bindings: &[SliceBinding], device: &Device) -> Result<(), String> {
    if bindings.len() > MOST_SLICES {
        return Err(format!("{} [[slice]]: at most {MOST_SLICES}", bindings.len()));
    }
    let mut seen = std::collections::BTreeSet::new();
    let mut numbers = std::collections::BTreeSet::from([device.mark, device.mark.saturating_add(1)]);
    for b in bindings {
        let name = &b.slice;
        if name.is_empty() || !seen.insert(name) {
            return Err(format!("[[slice]] slice \"{name}\": names must be unique and not empty"));
        }
        check_interface_name(&b.interface).map_err(|wrong| format!("[[slice]] {name}: interface {wrong}"))?;
        if !(0.01..=1.0).contains(&b.alpha) {
            return Err(format!("[[slice]] {name}: alpha is {}: must be 0.01 to 1", b.alpha));
        }
        match (b.mark, b.table) {
            (None, None) => {}
            (Some(mark), Some(table)) => {
                // Each slice also uses the next number, for the routes with another initial window.
                if mark == 0 || mark == u32::MAX {
                    return Err(format!("[[slice]] {name}: mark is {mark}: must be 1 to {}", u32::MAX - 1));
                }
                if !(FIRST_TABLE..u32::MAX).contains(&table) {
                    let most = u32::MAX - 1;
                    return Err(format!(
                        "[[slice]] {name}: table is {table}: must be {FIRST_TABLE} to {most}"
                    ));
                }
                for number in [mark, mark + 1] {
                    if !numbers.insert(number) {
                        return Err(format!(
                            "[[slice]] {name}: mark {number} is in use: each slice, and [device], uses its mark and the one \
                             after it"
                        ));
                    }
                }
            }
            _ => return Err(format!("[[slice]] {name}: a mark needs its table, and a table its mark")),
        }
    }
    let mut tables: Vec<u32> = bindings.iter().filter_map(|b| b.table).collect();
    tables.push(device.mark);
    tables.sort_unstable();
    match tables.windows(2).find(|t| t[1] - t[0] < 2) {
        Some(t) => Err(format!(
            "[[slice]] table {}: each slice, and [device], uses its table and the one after it",
            t[1]
        )),
        None => Ok(()),
    }
}

impl Check for UeConfig {
    fn check(&self) -> Result<(), String> {
        if !is_name(&self.ue.name) {
            return Err(format!(
                "[ue] name \"{}\": use 1 to 128 bytes without control characters, quotes and backslashes",
                self.ue.name.escape_debug()
            ));
        }
        let names: Vec<&str> = self.access.iter().map(|a| a.name.as_str()).collect();
        check_accesses(&names)?;
        for access in &self.access {
            if let Some(interface) = &access.interface {
                check_interface_name(interface)
                    .map_err(|wrong| format!("access {}: interface {wrong}", access.name))?;
            }
        }
        self.access.iter().try_for_each(UeAccess::check_remote)?;
        check_rules(&self.rule, &names)?;
        self.probe.validate().map_err(|e| format!("[probe] {e}"))?;
        self.flap.validate().map_err(|e| format!("[flap] {e}"))?;
        self.device.check()?;
        if let Some(slices) = &self.slices {
            slices.check()?;
        }
        check_bindings(&self.slice, &self.device)?;
        self.tcp_lane.check(&self.device.name, self.device.mark)?;
        if self.mapping.len() > MOST_SLICES {
            return Err(format!("{} [[mapping]]: at most {MOST_SLICES}", self.mapping.len()));
        }
        self.mapping.iter().try_for_each(Mapping::check)?;
        if self.ue.initial_window == WindowBy::Sockops
            && let Some(mapping) = self.mapping.iter().find(|mapping| mapping.paced)
        {
            return Err(format!(
                "[[mapping]] name \"{}\": paced = true needs [ue] initial_window = \"route\": its flows have no mark by \
                 which a kernel program could identify them",
                mapping.name
            ));
        }
        check_ioam(self.ioam.as_ref())?;
        let plain = self.access.iter().any(|access| access.security == Security::Plain);
        self.device.check_fast_path(plain, self.ioam.is_some())?;
        Metrics::check(self.metrics.as_ref())?;
        self.api.check()
    }
}

fn half() -> f64 {
    0.5
}

fn yes() -> bool {
    true
}

fn five_seconds() -> u32 {
    5000
}

fn all_processes() -> PathBuf {
    PathBuf::from("/sys/fs/cgroup")
}

fn default_name() -> String {
    "ue".to_owned()
}

fn default_state() -> PathBuf {
    PathBuf::from("/var/lib/anabranch/ue-state.json")
}

fn default_api() -> Api {
    Api::unix("/run/anabranch/ue.sock")
}
