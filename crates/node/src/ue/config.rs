//! `ue.toml`.

use crate::runtime::config::api::{Api, Metrics};
use crate::runtime::config::gateways::Gateways;
use crate::runtime::config::load::Check;
use crate::runtime::config::types::{Device, RemoteAddr, check_accesses, check_ioam, check_rules};
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

/// Most slices, and most mappings: so many rules of each fit in between those of others (`netctl::slices`).
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
    /// `[slices]`: who tells this UE about its slices.
    #[serde(default)]
    pub slices: Option<SlicesSection>,
    /// `[[slice]]`: how slices are reached from here.
    #[serde(default)]
    pub slice: Vec<SliceBinding>,
    /// `[[mapping]]`: flows of programs that know nothing of slices.
    #[serde(default)]
    pub mapping: Vec<Mapping>,
    /// `[tcp_lane]`
    #[serde(default)]
    pub tcp_lane: UeLane,
    /// `[ioam]`: as which node it fills traces that pass.
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
    /// Shown in logs and status.
    #[serde(default = "default_name")]
    pub name: String,
    /// File with the private key (`anabranch keygen`).
    pub private_key_file: PathBuf,
    /// Where the time stamp of the newest handshake is remembered.
    #[serde(default = "default_state")]
    pub state_file: PathBuf,
    /// How connections on slices get their initial window.
    #[serde(default)]
    pub initial_window: WindowBy,
    /// The cgroup whose connections get it, with `sockops`.
    #[serde(default = "all_processes")]
    pub initial_window_cgroup: PathBuf,
}

/// How connections on slices get their initial window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WindowBy {
    /// By `initcwnd` of a route, in steps of about 10 %.
    #[default]
    Route,
    /// By a kernel program, to the segment.
    Sockops,
}

/// `[upf]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpfPeer {
    /// The UPF's public key, base64.
    pub public_key: PublicKey,
    /// Cipher to propose: AES where the processor has instructions for it, else ChaCha20.
    #[serde(default)]
    pub cipher: Cipher,
}

/// Cipher of the secure form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cipher {
    /// By what the processor does fastest.
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
    /// Name, as rules use it.
    pub name: String,
    /// Interface the datagrams leave by (SO_BINDTODEVICE).
    #[serde(default)]
    pub interface: Option<String>,
    /// Source address of the datagrams.
    #[serde(default)]
    pub local: Option<IpAddr>,
    /// The UPF, as seen through this access.
    pub remote: RemoteAddr,
    /// Protection of user data.
    #[serde(default)]
    pub security: Security,
}

impl UeAccess {
    /// Whoever answers for a name could relay what is sealed, and read what is not. An address of one family reaches none of the other.
    fn check_remote(&self) -> Result<(), String> {
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
    /// The slice manager: `https://HOST:PORT`, `http://ADDRESS:PORT` or `unix:PATH`.
    pub manager: String,
    /// Certificate authorities of an https manager, PEM; left out: those of the system.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// File whose first line is this UE's token there.
    pub token_file: PathBuf,
    /// How it is followed.
    #[serde(default)]
    pub follow: Follow,
    /// Time between polls, milliseconds.
    #[serde(default = "five_seconds")]
    pub poll_interval_ms: u32,
    /// Whether it is asked for what programs need and no slice promises.
    #[serde(default = "yes")]
    pub ask_for_more: bool,
}

/// How the slice manager is followed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Follow {
    /// By a stream of events; by polls while it has too many.
    #[default]
    Stream,
    /// By polls with ETag.
    Poll,
}

/// `[[slice]]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceBinding {
    /// Its name or identifier at the slice manager.
    pub slice: String,
    /// The interface its packets leave by.
    pub interface: String,
    /// The packet mark that selects it; left out, the whole interface is the slice.
    #[serde(default)]
    pub mark: Option<u32>,
    /// The routing table of the mark.
    #[serde(default)]
    pub table: Option<u32>,
    /// The routers to send to, of each family at most one; of a family without one, every address is on the link.
    #[serde(default)]
    pub gateway: Gateways,
    /// α of the initial window: the share of the guaranteed uplink rate that a first flight may use.
    #[serde(default = "half")]
    pub alpha: f64,
}

/// `[[mapping]]`: flows of programs that know nothing of slices.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mapping {
    /// Shown in logs.
    pub name: String,
    /// `tcp` or `udp`.
    pub protocol: Protocol,
    /// Destinations.
    pub remote: IpNet,
    /// Destination ports.
    #[serde(default)]
    pub remote_port: Option<PortRange>,
    /// User id of the sending process.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Whether its connections are paced, so that a larger initial window is safe.
    #[serde(default)]
    pub paced: bool,
    /// What they need, by the names of RFC 9622 and `_slice.*`.
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

/// Tables below this are the kernel's, or look like it.
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
            return Err(format!("[[slice]] slice \"{name}\": names must differ, and have a letter at least"));
        }
        if !(1..=15).contains(&b.interface.len()) {
            let it = &b.interface;
            return Err(format!(
                "[[slice]] {name}: interface \"{it}\" is not an interface name (1 to 15 bytes)"
            ));
        }
        if !(0.01..=1.0).contains(&b.alpha) {
            return Err(format!("[[slice]] {name}: alpha is {}: must be 0.01 to 1", b.alpha));
        }
        match (b.mark, b.table) {
            (None, None) => {}
            (Some(mark), Some(table)) => {
                // Each uses the number after its own, too: for the routes with another initial window.
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
                            "[[slice]] {name}: mark {number} is taken: each slice, and [device], uses its mark and the one \
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
            if let Some(interface) = &access.interface
                && !(1..=15).contains(&interface.len())
            {
                return Err(format!(
                    "access {}: interface \"{interface}\" is not an interface name (1 to 15 bytes)",
                    access.name
                ));
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
                 which a kernel program would know them",
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
