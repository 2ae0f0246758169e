//! Configuration file `lwip.toml`.

use crate::gnb::config::{PortDevice, gtpu_anywhere, netns_path};
use crate::runtime::config::api::{Api, Metrics};
use crate::runtime::config::load::Check;
use crate::runtime::config::types::check_ioam;
use anabranch_element::ioam::IoamConfig;
use anabranch_engine::lwip::backhaul::{self, Tunnels};
use anabranch_lwip::{Config as Node, UeConfig, WifiLeg};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The LWIP node's configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LwipConfig {
    /// `[lwip]`
    #[serde(default)]
    pub lwip: LwipSection,
    /// `[backhaul]`: the interface towards servers.
    #[serde(default)]
    pub backhaul: Option<PortDevice>,
    /// `[gtpu]`, an alternative to `[backhaul]`: GTP-U towards a UPF.
    #[serde(default)]
    pub gtpu: Option<GtpuBackhaul>,
    /// `[lte]`: the interface of the cell; all uplink packets use it.
    pub lte: PortDevice,
    /// `[wifi]`: the interface of the access point. Default: the interface of `[lte]`, behind which routes
    /// separate the legs.
    #[serde(default)]
    pub wifi: Option<PortDevice>,
    /// `[node]`: steering, DIDA and UEs, in the same form as in scenarios.
    pub node: Node,
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

/// `[lwip]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LwipSection {
    /// Name of the node in logs and status.
    pub name: String,
    /// Whether the data path requests real-time priority. If the request is refused, it runs with less exact
    /// timing.
    pub real_time: bool,
}

impl Default for LwipSection {
    fn default() -> Self {
        Self { name: "lwip".to_owned(), real_time: true }
    }
}

/// `[gtpu]`: the node terminates the N3 tunnels of a UPF, in place of the gNB.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GtpuBackhaul {
    /// Local address.
    #[serde(default = "gtpu_anywhere")]
    pub listen: SocketAddr,
    /// Address of the UPF; datagrams from other addresses are dropped.
    pub peer: SocketAddr,
    /// Network namespace of the socket: a name as of `ip netns`, or a path; default: the namespace of this
    /// program.
    #[serde(default)]
    pub netns: Option<String>,
    /// `[[gtpu.tunnels]]`: one per UE.
    #[serde(default)]
    pub tunnels: Vec<Tunnel>,
}

/// `[[gtpu.tunnels]]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tunnel {
    /// Name of the UE, as in `[[node.ues]]`.
    pub ue: String,
    /// TEID with which the UPF sends packets to this UE.
    pub teid_downlink: u32,
    /// TEID with which this node sends packets of the UE to the UPF.
    pub teid_uplink: u32,
    /// QoS flow identifier of the uplink, 0 to 63.
    #[serde(default = "first_flow")]
    pub qfi: u8,
}

const fn first_flow() -> u8 {
    1
}

impl GtpuBackhaul {
    /// Path of the network namespace; `None`: the namespace of this program.
    pub fn netns(&self) -> Option<PathBuf> {
        self.netns.as_deref().map(netns_path)
    }

    /// The tunnels of these UEs.
    pub fn tunnels(&self, ues: &[UeConfig]) -> Tunnels {
        let of = |tunnel: &Tunnel| {
            let addresses = ues.iter().filter(|ue| ue.name == tunnel.ue).flat_map(|ue| &ue.addresses);
            backhaul::Tunnel {
                addresses: addresses.copied().collect(),
                teid_downlink: tunnel.teid_downlink,
                teid_uplink: tunnel.teid_uplink,
                qfi: tunnel.qfi,
            }
        };
        self.tunnels.iter().map(of).collect()
    }

    fn check(&self, ues: &[UeConfig]) -> Result<(), String> {
        let Self { listen, peer, netns, tunnels } = self;
        if listen.is_ipv4() != peer.is_ipv4() {
            return Err(format!(
                "[gtpu] peer = \"{peer}\" cannot be reached from listen = \"{listen}\": use one family"
            ));
        }
        if peer.ip().is_unspecified() || peer.port() == 0 {
            return Err(format!("[gtpu] peer \"{peer}\": give the UPF's address and port"));
        }
        if netns.as_deref() == Some("") {
            return Err("[gtpu] netns \"\": give the name of a namespace, or a path".to_owned());
        }
        let (mut names, mut teids) = (BTreeSet::new(), BTreeSet::new());
        for Tunnel { ue, teid_downlink, teid_uplink, qfi } in tunnels {
            let place = format!("[[gtpu.tunnels]] ue \"{ue}\"");
            if !ues.iter().any(|known| known.name == *ue) {
                return Err(format!("{place}: no UE in [[node.ues]] has that name"));
            }
            if !names.insert(ue) {
                return Err(format!("{place} is given twice: a UE has one tunnel"));
            }
            if !teids.insert(*teid_downlink) {
                return Err(format!(
                    "{place}: teid_downlink = {teid_downlink} is also used by another tunnel"
                ));
            }
            for (key, teid) in [("teid_downlink", teid_downlink), ("teid_uplink", teid_uplink)] {
                if *teid == 0 {
                    return Err(format!("{place}: {key} = 0: give 1 to 4294967295"));
                }
            }
            if *qfi > 63 {
                return Err(format!("{place}: qfi = {qfi}: give 0 to 63"));
            }
        }
        Ok(())
    }
}

impl LwipConfig {
    /// Default MTU of interfaces: 1500, or with GTP-U the packet size that N3 carries over links of 1500
    /// bytes.
    pub const fn mtu(&self) -> u16 {
        if self.gtpu.is_some() { 1400 } else { 1500 }
    }

    /// The interfaces, each with the name of its section.
    pub fn ports(&self) -> impl Iterator<Item = (&'static str, &PortDevice)> {
        let all = [
            ("[backhaul]", self.backhaul.as_ref()),
            ("[lte]", Some(&self.lte)),
            ("[wifi]", self.wifi.as_ref()),
        ];
        all.into_iter().filter_map(|(section, port)| Some((section, port?)))
    }

    /// The UE of this name; the error lists all names.
    pub fn ue(&self, name: &str) -> Result<&UeConfig, String> {
        self.node.ues.iter().find(|ue| ue.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.node.ues.iter().map(|ue| ue.name.as_str()).collect();
            format!("there is no UE \"{name}\" in [[node.ues]]; the UEs are: {}", names.join(", "))
        })
    }
}

impl Check for LwipConfig {
    fn check(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        for (section, port) in self.ports() {
            port.check(section)?;
            if !names.insert((port.netns.clone(), port.name.clone())) {
                return Err(format!("two devices are named \"{}\": names must be unique", port.name));
            }
        }
        self.node.check().map_err(|e| format!("[node] {e}"))?;
        match (&self.backhaul, &self.gtpu) {
            (Some(_), None) => {}
            (None, Some(gtpu)) => gtpu.check(&self.node.ues)?,
            (None, None) => {
                return Err("there is no path to servers: give [backhaul] (an interface) or [gtpu] (a UPF)"
                    .to_owned());
            }
            (Some(_), Some(_)) => {
                return Err("[backhaul] and [gtpu] exclude each other: give one of them".to_owned());
            }
        }
        check_ioam(self.ioam.as_ref())?;
        Metrics::check(self.metrics.as_ref())?;
        self.api.check()
    }
}

/// The nftables rules with which a UE translates the destination of packets from the Wi-Fi leg back to the
/// bearer's address. They do not use connection tracking, because stateful translation would take the packets
/// for another connection. `interface` is the Wi-Fi interface of the UE; `None`: any.
pub fn ue_rules(node: &Node, ue: &UeConfig, interface: Option<&str>) -> Result<String, String> {
    if node.wifi_leg == WifiLeg::Tunnel {
        return Err(
            "[node] wifi_leg = \"tunnel\": packets keep their address, and UEs need no rules".to_owned()
        );
    }
    let mut rules = String::new();
    for wifi in &ue.wifi {
        let Some(bearer) = ue.addresses.iter().find(|address| address.is_ipv4() == wifi.is_ipv4()) else {
            continue;
        };
        let family = if wifi.is_ipv4() { "ip" } else { "ip6" };
        let by = interface.map_or_else(String::new, |name| format!("iifname \"{name}\" "));
        rules.push_str(&format!(
            "        {by}{family} daddr {wifi} meta l4proto {{ tcp, udp }} notrack {family} daddr set {bearer} counter\n"
        ));
    }
    if rules.is_empty() {
        return Err(format!("ue \"{}\" has no wifi address in any family of its addresses", ue.name));
    }
    // "add" ensures that "delete" succeeds, so the set can be loaded repeatedly.
    Ok(format!(
        "# UE {}: packets by way of Wi-Fi are the bearer's again. Load: nft -f FILE. Remove: nft delete table inet {UE_TABLE}\n\
         add table inet {UE_TABLE}\ndelete table inet {UE_TABLE}\n\
         table inet {UE_TABLE} {{\n    chain turn_back {{\n        type filter hook prerouting priority raw; policy accept;\n\
         {rules}    }}\n}}\n",
        ue.name
    ))
}

/// Name of the nftables table of [`ue_rules`].
const UE_TABLE: &str = "anabranch_lwip";

fn default_api() -> Api {
    Api::unix("/run/anabranch/lwip.sock")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::config::load::parse;

    const SMALL: &str = "\
[backhaul]
name = \"n3\"
[lte]
name = \"lte\"
[node]
steering = { mode = \"fixed_ratio\", lte_percent = 20 }
dida = { let_through = 2, hold = { mode = \"fixed\", ms = 50 } }
[[node.ues]]
name = \"phone\"
addresses = [\"10.45.0.2\", \"fd45::2\"]
wifi = [\"10.46.0.2\", \"fd46::2\"]
";

    #[test]
    fn valid_files_are_accepted() {
        let config: LwipConfig = parse("lwip.toml", SMALL).unwrap();
        assert_eq!((config.lwip.name.as_str(), config.ports().count()), ("lwip", 2));
        assert!(config.node.dida.is_some() && config.wifi.is_none());
        let with = format!("{SMALL}[wifi]\nname = \"wifi\"\nnetns = \"ap\"\n");
        assert_eq!(parse::<LwipConfig>("lwip.toml", &with).unwrap().ports().count(), 3);
    }

    /// Each error is one sentence with the place and the valid values.
    #[test]
    fn errors_name_place_and_remedy() {
        for (from, to, parts) in [
            ("lte_percent = 20", "lte_percent = 120", &["[node]", "lte_percent = 120", "0 to 100"][..]),
            ("ms = 50", "ms = -1", &["dida.hold.ms", "0 to 10000"]),
            ("\"fixed_ratio\"", "\"fixed_rato\"", &["lwip.toml:6", "did you mean \"fixed_ratio\"?"]),
            ("let_through", "let_trough", &["did you mean \"let_through\"?"]),
            ("name = \"lte\"", "name = \"n3\"", &["two devices are named \"n3\""]),
            ("name = \"lte\"", "name = \"lte\"\nmtu = 100", &["[lte] mtu = 100", "1280 to 9000"]),
            ("\"fd45::2\"", "\"10.45.0.3\"", &["phone", "one address per family"]),
            ("[lte]\nname = \"lte\"\n", "", &["lte"]),
            ("[node]", "[nod]", &["did you mean \"node\"?"]),
        ] {
            let text = SMALL.replacen(from, to, 1);
            assert_ne!(text, SMALL, "{from}");
            let error = parse::<LwipConfig>("lwip.toml", &text).unwrap_err().to_string();
            assert!(error.starts_with("lwip.toml"), "{error}");
            assert!(parts.iter().all(|part| error.contains(part)), "{to}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn a_upf_replaces_an_interface() {
        let gtpu = SMALL.replace(
            "[backhaul]\nname = \"n3\"\n",
            "[gtpu]\npeer = \"10.9.0.1:2152\"\n[[gtpu.tunnels]]\nue = \"phone\"\nteid_downlink = 7\nteid_uplink = 8\n",
        );
        let config: LwipConfig = parse("lwip.toml", &gtpu).unwrap();
        let of_phone = backhaul::Tunnel {
            addresses: vec!["10.45.0.2".parse().unwrap(), "fd45::2".parse().unwrap()],
            teid_downlink: 7,
            teid_uplink: 8,
            qfi: 1,
        };
        let tunnels = config.gtpu.as_ref().unwrap().tunnels(&config.node.ues);
        assert_eq!(tunnels, [of_phone].into_iter().collect());
        let section = config.gtpu.as_ref().unwrap();
        assert_eq!((section.listen.port(), section.tunnels[0].qfi, config.mtu()), (2152, 1, 1400));
        assert_eq!(config.ports().count(), 1);
        for (from, to, part) in [
            ("ue = \"phone\"", "ue = \"tv\"", "no UE in [[node.ues]]"),
            ("teid_uplink = 8", "teid_uplink = 0", "give 1 to 4294967295"),
            ("teid_uplink = 8", "teid_uplink = 8\nqfi = 64", "give 0 to 63"),
            ("teid_uplink", "teid_up", "did you mean \"teid_uplink\"?"),
            ("10.9.0.1:2152", "[fd09::1]:2152", "use one family"),
            ("10.9.0.1:2152", "0.0.0.0:2152", "the UPF's address"),
            ("[lte]", "[backhaul]\nname = \"n3\"\n[lte]", "give one of them"),
            ("[lte]", "[[gtpu.tunnels]]\nue = \"phone\"\nteid_downlink = 9\nteid_uplink = 9\n[lte]", "twice"),
        ] {
            let text = gtpu.replacen(from, to, 1);
            assert_ne!(text, gtpu, "{from}");
            let error = parse::<LwipConfig>("lwip.toml", &text).unwrap_err().to_string();
            assert!(error.contains(part) && error.lines().count() == 1, "{to}: {error}");
        }
        let neither = SMALL.replace("[backhaul]\nname = \"n3\"\n", "");
        let error = parse::<LwipConfig>("lwip.toml", &neither).unwrap_err().to_string();
        assert!(error.contains("give [backhaul]"), "{error}");
    }

    #[test]
    fn a_ues_rules_turn_both_families_back() {
        let config: LwipConfig = parse("lwip.toml", SMALL).unwrap();
        let ue = config.ue("phone").unwrap();
        let rules = ue_rules(&config.node, ue, Some("wlan0")).unwrap();
        let v4 = "iifname \"wlan0\" ip daddr 10.46.0.2 meta l4proto { tcp, udp } notrack ip daddr set 10.45.0.2 counter";
        assert!(rules.contains(v4) && rules.contains("ip6 daddr fd46::2"), "{rules}");
        assert!(!ue_rules(&config.node, ue, None).unwrap().contains("iifname"));
        assert!(config.ue("tv").unwrap_err().contains("the UEs are: phone"));
        let tunnel = Node { wifi_leg: WifiLeg::Tunnel, ..config.node.clone() };
        assert!(ue_rules(&tunnel, ue, None).unwrap_err().contains("tunnel"));
        let bare = UeConfig { wifi: Vec::new(), ..ue.clone() };
        assert!(ue_rules(&config.node, &bare, None).unwrap_err().contains("no wifi address"));
    }
}
