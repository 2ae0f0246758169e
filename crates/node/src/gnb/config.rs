//! Configuration file `gnb.toml`.

use crate::runtime::config::api::{Api, Metrics};
use crate::runtime::config::load::{Check, read_trace};
use crate::runtime::config::types::{Device, DeviceKind};
use anabranch_ran::gnb::{Gnb, GnbConfig as Cell, N3, PacketEvents, TelemetryConfig};
use ipnet::IpNet;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;

/// The gNB's configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GnbConfig {
    /// `[gnb]`
    #[serde(default)]
    pub gnb: GnbSection,
    /// `[cell]`: carrier, slices and UEs, in the same form as in scenarios.
    pub cell: Cell,
    /// `[n3]`
    pub n3: N3Section,
    /// `[[device]]`: interfaces to which UEs are attached.
    #[serde(default)]
    pub device: Vec<UeDevice>,
    /// `[api]`
    #[serde(default = "default_api")]
    pub api: Api,
    /// `[metrics]`
    #[serde(default)]
    pub metrics: Option<Metrics>,
}

/// `[gnb]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GnbSection {
    /// Name of the gNB in logs and status.
    pub name: String,
    /// Whether the data path requests real-time priority. If the request is refused, it runs with less exact
    /// timing.
    pub real_time: bool,
}

impl Default for GnbSection {
    fn default() -> Self {
        Self { name: "gnb".to_owned(), real_time: true }
    }
}

/// `[n3]`: the interface towards the UPF.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase")]
pub enum N3Section {
    /// Plain IP packets on an interface.
    Ip(PortDevice),
    /// GTP-U over UDP.
    Gtpu(GtpuSection),
}

/// `[n3] mode = "gtpu"`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GtpuSection {
    /// Local address.
    #[serde(default = "gtpu_anywhere")]
    pub listen: SocketAddr,
    /// Address of the UPF; datagrams from other addresses are dropped.
    pub peer: SocketAddr,
}

/// A network interface that is created at start-up and removed at shutdown.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortDevice {
    /// Kind of interface: TUN or veth pair.
    #[serde(default)]
    pub kind: DeviceKind,
    /// Interface name.
    pub name: String,
    /// MTU, bytes; default: 1500, or 1400 if N3 is GTP-U.
    #[serde(default)]
    pub mtu: Option<u16>,
    /// Network namespace: a name as of `ip netns`, or a path; default: the namespace of this program.
    #[serde(default)]
    pub netns: Option<String>,
    /// Addresses of the interface.
    #[serde(default)]
    pub addresses: Vec<IpNet>,
    /// Prefixes routed through the interface, in the main table.
    #[serde(default)]
    pub routes: Vec<IpNet>,
}

/// `[[device]]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UeDevice {
    /// Names of the UEs attached to it; default: all UEs that no other device lists.
    #[serde(default)]
    pub ues: Vec<String>,
    /// Kind of interface: TUN or veth pair.
    #[serde(default)]
    pub kind: DeviceKind,
    /// Interface name.
    pub name: String,
    /// MTU, bytes; default: 1500, or 1400 if N3 is GTP-U.
    #[serde(default)]
    pub mtu: Option<u16>,
    /// Network namespace: a name as of `ip netns`, or a path; default: the namespace of this program.
    #[serde(default)]
    pub netns: Option<String>,
    /// Addresses of the interface.
    #[serde(default)]
    pub addresses: Vec<IpNet>,
    /// Prefixes routed through the interface, in the main table.
    #[serde(default)]
    pub routes: Vec<IpNet>,
}

impl UeDevice {
    /// The interface, without the list of UEs.
    pub fn port(&self) -> PortDevice {
        let Self { kind, name, mtu, netns, addresses, routes, .. } = self.clone();
        PortDevice { kind, name, mtu, netns, addresses, routes }
    }
}

impl PortDevice {
    /// The device, in the form in which the data path opens it.
    pub fn device(&self) -> Device {
        Device { kind: self.kind, name: self.name.clone(), ..Device::default() }
    }

    /// Path of the network namespace; `None`: the namespace of this program.
    pub fn netns(&self) -> Option<PathBuf> {
        self.netns.as_deref().map(netns_path)
    }

    /// Checks the values; the error is one sentence on the first invalid one.
    pub(crate) fn check(&self, section: &str) -> Result<(), String> {
        self.device().check().map_err(|e| e.replace("[device]", section))?;
        if let Some(mtu) = self.mtu.filter(|mtu| !(1280..=9000).contains(mtu)) {
            return Err(format!("{section} mtu = {mtu}: give 1280 to 9000 (IPv6 needs 1280)"));
        }
        if self.netns.as_deref() == Some("") {
            return Err(format!("{section} netns \"\": give the name of a namespace, or a path"));
        }
        Ok(())
    }
}

impl GnbConfig {
    /// The cell in the form that crate `ran` builds.
    pub fn core(&self) -> Cell {
        let n3 = match self.n3 {
            N3Section::Ip(_) => N3::Ip,
            N3Section::Gtpu(_) => N3::Gtpu,
        };
        let telemetry = TelemetryConfig { packets: PacketEvents::All, ..TelemetryConfig::default() };
        Cell { n3, telemetry, ..self.cell.clone() }
    }

    /// Default MTU of devices: the packet size that N3 carries over links of 1500 bytes.
    pub fn mtu(&self) -> u16 {
        if matches!(self.n3, N3Section::Ip(_)) { 1500 } else { 1400 }
    }

    /// Index of the device of each UE, in the order of the UEs.
    pub fn device_of_ues(&self) -> Result<Vec<usize>, String> {
        let number: BTreeMap<&str, usize> =
            self.cell.ues.iter().enumerate().map(|(number, ue)| (ue.name.as_str(), number)).collect();
        let mut of = vec![None; self.cell.ues.len()];
        let mut rest = None;
        for (at, device) in self.device.iter().enumerate() {
            if device.ues.is_empty() && rest.replace(at).is_some() {
                let name = &device.name;
                return Err(format!(
                    "device \"{name}\": only one device can serve all remaining UEs: list the ues of this one"
                ));
            }
            for name in &device.ues {
                let Some(ue) = number.get(name.as_str()).copied() else {
                    let device = &device.name;
                    return Err(format!("device {device}: there is no UE \"{name}\" in [[cell.ues]]"));
                };
                if of[ue].replace(at).is_some() {
                    return Err(format!("ue \"{name}\" is listed by two devices: list it once"));
                }
            }
        }
        of.into_iter()
            .zip(&self.cell.ues)
            .map(|(at, ue)| {
                let nowhere = || {
                    format!(
                        "ue \"{}\" is behind no [[device]]: name it there, or leave ues out once",
                        ue.name
                    )
                };
                at.or(rest).ok_or_else(nowhere)
            })
            .collect()
    }

    fn check_devices(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        let n3 = match &self.n3 {
            N3Section::Ip(port) => Some(("[n3]", port.clone())),
            N3Section::Gtpu(gtpu) => {
                if gtpu.listen.is_ipv4() != gtpu.peer.is_ipv4() {
                    return Err(format!(
                        "[n3] peer = \"{}\" cannot be reached from listen = \"{}\": use one family",
                        gtpu.peer, gtpu.listen
                    ));
                }
                if gtpu.peer.ip().is_unspecified() || gtpu.peer.port() == 0 {
                    return Err(format!("[n3] peer \"{}\": give the UPF's address and port", gtpu.peer));
                }
                None
            }
        };
        let ports = self.device.iter().map(|d| ("[[device]]", d.port()));
        for (section, port) in n3.into_iter().chain(ports) {
            port.check(section)?;
            if !names.insert((port.netns.clone(), port.name.clone())) {
                return Err(format!("two devices are named \"{}\": names must be unique", port.name));
            }
        }
        let of = self.device_of_ues()?;
        let mut behind = vec![0; self.device.len()];
        of.iter().for_each(|at| behind[*at] += 1);
        for (ue, at) in self.cell.ues.iter().zip(&of) {
            let why = match self.n3 {
                N3Section::Ip(_) => "they select the UE for downlink packets",
                N3Section::Gtpu(_) if behind[*at] > 1 => {
                    "UEs that share a device are told apart by source address"
                }
                N3Section::Gtpu(_) => continue,
            };
            if ue.addresses.is_empty() {
                return Err(format!("ue \"{}\" lacks addresses: {why}", ue.name));
            }
        }
        Ok(())
    }
}

impl Check for GnbConfig {
    fn check(&self) -> Result<(), String> {
        let gtpu = matches!(self.n3, N3Section::Gtpu(_));
        if self.cell.n3 == N3::Gtpu && !gtpu {
            return Err("[cell] n3 = \"gtpu\", but [n3] mode is another: leave n3 out of [cell]".to_owned());
        }
        Gnb::new(&self.core(), &mut read_trace).map_err(|e| format!("[cell] {e}"))?;
        self.check_devices()?;
        Metrics::check(self.metrics.as_ref())?;
        self.api.check()
    }
}

/// Path of a network namespace, given by name (as of `ip netns`) or by path.
pub(crate) fn netns_path(name: &str) -> PathBuf {
    if name.starts_with('/') { name.into() } else { PathBuf::from("/run/netns").join(name) }
}

pub(crate) fn gtpu_anywhere() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], anabranch_wire::gtpu::GTPU_PORT))
}

fn default_api() -> Api {
    Api::unix("/run/anabranch/gnb.sock")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::config::load::parse;

    const SMALL: &str = "\
[n3]
mode = \"ip\"
name = \"n3\"
[[device]]
name = \"ue0\"
[cell]
radio = { rat = \"lte\", rbs = 25 }
[[cell.slices]]
name = \"voice\"
share_percent = 40
[[cell.ues]]
name = \"phone\"
slice = \"voice\"
addresses = [\"10.45.0.2\"]
channel = { model = \"constant\", mcs = 28 }
bearer = { queue = \"e5g_bdp\" }
";

    fn why(from: &str, to: &str) -> String {
        let text = SMALL.replacen(from, to, 1);
        assert_ne!(text, SMALL, "{from}");
        parse::<GnbConfig>("gnb.toml", &text).unwrap_err().to_string()
    }

    #[test]
    fn valid_files_are_accepted() {
        let config: GnbConfig = parse("gnb.toml", SMALL).unwrap();
        assert_eq!((config.gnb.name.as_str(), config.device_of_ues()), ("gnb", Ok(vec![0])));
        assert_eq!(config.core().n3, N3::Ip);
        let gtpu =
            SMALL.replacen("mode = \"ip\"\nname = \"n3\"", "mode = \"gtpu\"\npeer = \"10.0.0.1:2152\"", 1);
        let config: GnbConfig =
            parse("gnb.toml", &gtpu.replacen("addresses = [\"10.45.0.2\"]\n", "", 1)).unwrap();
        assert_eq!(config.core().n3, N3::Gtpu);
        let device = UeDevice { netns: Some("ue".to_owned()), ..config.device[0].clone() };
        assert_eq!(device.port().netns(), Some("/run/netns/ue".into()));
    }

    /// Each error is one sentence with the place and the valid values.
    #[test]
    fn errors_name_place_and_remedy() {
        for (from, to, parts) in [
            ("rbs = 25", "rbs = 0", &["0 RBs", "1 to 110"][..]),
            ("rbs = 25", "rbs = 111", &["111 RBs are not in the table"]),
            ("mcs = 28", "mcs = 29", &["gnb.toml:12", "phone", "29", "28"]),
            ("mcs = 28", "mcs = -1", &["gnb.toml:15"]),
            ("share_percent = 40", "share_percent = 140", &["gnb.toml:9", "share_percent = 140", "0 to 100"]),
            ("share_percent = 40", "share_percent = nan", &["share_percent = NaN", "0 to 100"]),
            ("slice = \"voice\"", "slice = \"video\"", &["phone", "video", "name of a slice"]),
            ("\"e5g_bdp\"", "\"e5gbdp\"", &["e5gbdp", "did you mean \"e5g_bdp\"?"]),
            (
                "model = \"constant\", mcs = 28",
                "model = \"trace\", file = \"/nowhere\"",
                &["/nowhere", "phone"],
            ),
            ("share_percent", "share_percen", &["gnb.toml:10", "did you mean \"share_percent\"?"]),
            ("name = \"ue0\"", "name = \"ue0\"\nues = [\"tv\"]", &["no UE \"tv\"", "[[cell.ues]]"]),
            ("name = \"ue0\"", "name = \"n3\"", &["two devices are named \"n3\""]),
            ("name = \"ue0\"", "name = \"ue0\"\nmtu = 100", &["[[device]] mtu = 100", "1280 to 9000"]),
            ("[[device]]\nname = \"ue0\"\n", "", &["phone", "behind no [[device]]"]),
            ("addresses = [\"10.45.0.2\"]\n", "", &["phone", "lacks addresses"]),
            ("mode = \"ip\"", "mode = \"gtpu\"", &["name"]),
            ("mode = \"ip\"", "mode = \"l2\"", &["l2", "ip, gtpu"]),
            ("[cell]\n", "[cell]\nn3 = \"gtpu\"\n", &["leave n3 out of [cell]"]),
            ("[cell]\n", "[cell]\nscheduler = \"eqp\"\n", &["no scheduler \"eqp\"", "eqp_exact"]),
        ] {
            let error = why(from, to);
            assert!(error.starts_with("gnb.toml"), "{error}");
            assert!(parts.iter().all(|part| error.contains(part)), "{to}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        let twice = format!(
            "{SMALL}[[cell.ues]]\nname = \"tv\"\nslice = \"voice\"\naddresses = [\"10.45.0.2\"]\nchannel = {{ model = \"constant\", mcs = 1 }}\n"
        );
        assert!(
            parse::<GnbConfig>("x", &twice).unwrap_err().to_string().contains("listed only once, at one UE")
        );
    }
}
