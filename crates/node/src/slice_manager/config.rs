//! Configuration file `slice-manager.toml`.

use crate::runtime::config::api::{Api, Listen};
use crate::runtime::config::load::Check;
use anabranch_slice::{Access, GrowthLimits, Inventory};
use ipnet::IpNet;
use serde::Deserialize;
use std::path::PathBuf;

/// The slice manager's configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceManagerConfig {
    /// `[manager]`
    #[serde(default)]
    pub manager: ManagerSection,
    /// `[[access]]`: accesses and their capacity.
    #[serde(default)]
    pub access: Vec<ManagedAccess>,
    /// `[upf]`: the UPF that serves the UEs' sessions.
    #[serde(default)]
    pub upf: Option<AgentSection>,
    /// `[mano]`: the orchestrator of network services.
    #[serde(default)]
    pub mano: Option<ManoSection>,
    /// `[limits]`
    #[serde(default)]
    pub limits: Limits,
    /// `[callbacks]`
    #[serde(default)]
    pub callbacks: Callbacks,
    /// `[api]`
    #[serde(default = "default_api")]
    pub api: Api,
}

/// `[manager]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ManagerSection {
    /// Name of this instance; unique among the instances on one machine that share a database.
    pub name: String,
    /// Database: `sqlite:PATH` or `postgres://…`.
    pub database: String,
    /// Time for which information sent to a UE is valid, seconds.
    pub ttl_s: u32,
    /// Interval of the health checks of cells and UPF, milliseconds.
    pub health_interval_ms: u32,
}

impl Default for ManagerSection {
    fn default() -> Self {
        Self {
            name: "slice-manager".to_owned(),
            database: "sqlite:/var/lib/anabranch/slices.db".to_owned(),
            ttl_s: 60,
            health_interval_ms: 2000,
        }
    }
}

/// `[[access]]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManagedAccess {
    /// Unique name.
    pub name: String,
    /// Location name, as in `coverage`; empty: serves everywhere.
    #[serde(default)]
    pub location: String,
    /// Downlink capacity that can be guaranteed, bit/s.
    pub downlink_bps: u64,
    /// Uplink capacity that can be guaranteed, bit/s.
    pub uplink_bps: u64,
    /// Share of the RBs that can be guaranteed, percent.
    #[serde(default = "ninety_five")]
    pub max_share_percent: f64,
    /// Minimum one-way delay of the access, milliseconds.
    #[serde(default)]
    pub delay_ms: f64,
    /// Latitude, WGS 84; without latitude and longitude, the access is in no CAMARA area.
    #[serde(default)]
    pub latitude: Option<f64>,
    /// Longitude, WGS 84.
    #[serde(default)]
    pub longitude: Option<f64>,
    /// Range of the access around this position, metres.
    #[serde(default)]
    pub range_m: f64,
    /// Agent of the gNB: `unix:PATH`, `https://HOST:PORT` or `http://ADDRESS:PORT`; default: none, the cell
    /// is not configured.
    #[serde(default)]
    pub gnb: Option<String>,
    /// PEM file with certificate authorities for an https gNB; default: those of the system.
    #[serde(default)]
    pub gnb_ca_file: Option<PathBuf>,
    /// File with the gNB's bearer token in its first line.
    #[serde(default)]
    pub gnb_token_file: Option<PathBuf>,
    /// The gNB's slice for other traffic; it receives the remaining share.
    #[serde(default = "rest")]
    pub rest_slice: String,
}

/// `[upf]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentSection {
    /// Address of the agent: `unix:PATH`, `https://HOST:PORT` or `http://ADDRESS:PORT`.
    pub agent: String,
    /// PEM file with certificate authorities for an https agent; default: those of the system.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// File with the agent's bearer token in its first line.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
}

/// `[mano]`: a stub of an orchestrator. Orders are written to files, or sent to a URL.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManoSection {
    /// A directory, or an `https://…` or `http://…` URL.
    pub target: String,
}

/// `[limits]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Requests per second of one UE.
    pub ue_requests_per_s: u32,
    /// Burst of requests of one UE.
    pub ue_burst: u32,
    /// Requests per second, and burst, of one tenant.
    pub tenant_requests_per_s: u32,
    /// Maximum number of slices of one tenant, including those of bookings.
    pub tenant_slices: u32,
    /// Maximum number of QoS sessions of one tenant.
    pub tenant_sessions: u32,
    /// Requests per second with an invalid token, from all clients.
    pub refused_per_s: u32,
    /// Maximum number of open streams.
    pub streams: u32,
    /// Maximum number of open streams of one UE.
    pub streams_per_ue: u32,
    /// Maximum growth of slices at the request of one UE, percent of the rates of each access.
    pub ue_growth_percent: u32,
    /// Time after which a UE's request for growth expires unless it is repeated, seconds.
    pub ue_growth_s: u32,
}

impl Limits {
    /// Limits of the growth of slices at the request of UEs.
    pub fn growth(&self) -> GrowthLimits {
        GrowthLimits { percent: self.ue_growth_percent, seconds: self.ue_growth_s }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let GrowthLimits { percent, seconds } = GrowthLimits::default();
        Self {
            ue_requests_per_s: 5,
            ue_burst: 20,
            tenant_requests_per_s: 50,
            tenant_slices: 100,
            tenant_sessions: 1000,
            refused_per_s: 100,
            streams: 20_000,
            streams_per_ue: 4,
            ue_growth_percent: percent,
            ue_growth_s: seconds,
        }
    }
}

/// `[callbacks]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Callbacks {
    /// Permitted targets of events: URL prefixes such as `https://app.example/events/`.
    pub allow: Vec<String>,
    /// Whether every https URL is permitted as well.
    pub any_https: bool,
    /// Prefixes of non-public addresses that sinks may have; an address that `allow` contains literally needs
    /// none.
    pub private: Vec<IpNet>,
    /// PEM file with certificate authorities for https sinks; default: those of the system.
    pub ca_file: Option<PathBuf>,
}

fn default_api() -> Api {
    Api::unix("/run/anabranch/slice-manager.sock")
}

fn ninety_five() -> f64 {
    95.0
}

fn rest() -> String {
    "default".to_owned()
}

impl SliceManagerConfig {
    /// The accesses with their capacity, in the form of crate `slice`.
    pub fn inventory(&self) -> Result<Inventory, String> {
        let accesses = self.access.iter().map(|a| Access {
            name: a.name.clone(),
            location: a.location.clone(),
            downlink_bps: a.downlink_bps,
            uplink_bps: a.uplink_bps,
            max_share_ppm: (a.max_share_percent * 1e4).round() as u32,
            delay_ms: a.delay_ms,
            rest_slice: a.rest_slice.clone(),
        });
        Inventory::new(accesses).map_err(|e| e.to_string())
    }
}

/// Host with port, and path, of an http or https URL. The rest of the URL is validated when it is used.
fn http(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let plain = |c: char| c.is_ascii_graphic() && !"@?#\\".contains(c);
    (!host.is_empty() && rest.chars().all(plain)).then_some((host, path))
}

fn check_agent(what: &str, at: &str) -> Result<(), String> {
    let fits = at.strip_prefix("unix:").is_some_and(|path| !path.is_empty()) || http(at).is_some();
    if fits {
        Ok(())
    } else {
        Err(format!("{what} \"{at}\": write \"unix:PATH\", \"https://HOST:PORT\" or \"http://ADDRESS:PORT\""))
    }
}

impl Check for SliceManagerConfig {
    fn check(&self) -> Result<(), String> {
        for a in &self.access {
            if !(0.0..=100.0).contains(&a.max_share_percent) {
                let value = a.max_share_percent;
                return Err(format!("access \"{}\": max_share_percent = {value}: give 0 to 100", a.name));
            }
            for (key, value, most) in [
                ("latitude", a.latitude.map(f64::abs), 90.0),
                ("longitude", a.longitude.map(f64::abs), 180.0),
            ] {
                if value.is_some_and(|value| !(0.0..=most).contains(&value)) {
                    return Err(format!("access \"{}\": {key}: give -{most} to {most}", a.name));
                }
            }
            if !(0.0..=1e6).contains(&a.range_m) {
                return Err(format!("access \"{}\": range_m = {}: give 0 to 1000000", a.name, a.range_m));
            }
            if let Some(gnb) = &a.gnb {
                check_agent("gnb", gnb)?;
            }
        }
        self.inventory()?;
        if let Some(upf) = &self.upf {
            check_agent("[upf] agent", &upf.agent)?;
        }
        let m = &self.manager;
        let file = m.database.strip_prefix("sqlite:").map(|path| path.trim_start_matches("//"));
        if file.is_some_and(|path| path.is_empty() || path.starts_with('?'))
            || file.is_none() && !m.database.starts_with("postgres")
        {
            return Err(format!(
                "[manager] database \"{}\": write \"sqlite:PATH\" or \"postgres://USER@HOST/NAME\"",
                m.database
            ));
        }
        if !(1..=86_400).contains(&m.ttl_s) {
            return Err(format!("[manager] ttl_s = {}: give 1 to 86400", m.ttl_s));
        }
        if !(100..=60_000).contains(&m.health_interval_ms) {
            return Err(format!(
                "[manager] health_interval_ms = {}: give 100 to 60000",
                m.health_interval_ms
            ));
        }
        let l = &self.limits;
        for (key, value) in [
            ("ue_requests_per_s", l.ue_requests_per_s),
            ("ue_burst", l.ue_burst),
            ("tenant_requests_per_s", l.tenant_requests_per_s),
            ("tenant_slices", l.tenant_slices),
            ("tenant_sessions", l.tenant_sessions),
            ("refused_per_s", l.refused_per_s),
            ("streams", l.streams),
            ("streams_per_ue", l.streams_per_ue),
            ("ue_growth_s", l.ue_growth_s),
        ] {
            if !(1..=1_000_000).contains(&value) {
                return Err(format!("[limits] {key} = {value}: give 1 to 1000000"));
            }
        }
        if l.ue_growth_percent > 100 {
            return Err(format!("[limits] ue_growth_percent = {}: give 0 to 100", l.ue_growth_percent));
        }
        for allowed in &self.callbacks.allow {
            if http(allowed).is_none_or(|(_, path)| !path.ends_with('/')) {
                return Err(format!(
                    "[callbacks] allow \"{allowed}\": write the beginning of a URL, such as \"https://app.example/\", \
                     ending in /"
                ));
            }
        }
        if matches!(self.api.listen, Listen::Off) {
            return Err("[api] listen = \"off\": a slice manager without its interface is useless".to_owned());
        }
        self.api.check()
    }
}
