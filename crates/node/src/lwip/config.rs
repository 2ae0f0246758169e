//! `lwip.toml`.

use crate::gnb::config::{PortDevice, gtpu_anywhere, netns_path};
use crate::runtime::config::api::{Api, Metrics};
use crate::runtime::config::load::Check;
use crate::runtime::config::types::check_ioam;
use anabranch_element::ioam::IoamConfig;
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
    /// `[backhaul]`: where servers are.
    #[serde(default)]
    pub backhaul: Option<PortDevice>,
    /// `[gtpu]`, instead of `[backhaul]`: towards a UPF, by GTP-U.
    #[serde(default)]
    pub gtpu: Option<GtpuBackhaul>,
    /// `[lte]`: the cell, and the way of everything that comes from UEs.
    pub lte: PortDevice,
    /// `[wifi]`: the access point; left out: behind the interface of `[lte]`, where routes part.
    #[serde(default)]
    pub wifi: Option<PortDevice>,
    /// `[node]`: steering, DIDA, UEs; the same as in scenarios.
    pub node: Node,
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

/// `[lwip]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LwipSection {
    /// Shown in logs and status.
    pub name: String,
    /// Whether the data path asks for real-time priority; refused, it runs all the same, less exactly.
    pub real_time: bool,
}

impl Default for LwipSection {
    fn default() -> Self {
        Self { name: "lwip".to_owned(), real_time: true }
    }
}

/// `[gtpu]`: the node is where a UPF's N3 tunnels end, in the place of the gNB.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GtpuBackhaul {
    /// Own address.
    #[serde(default = "gtpu_anywhere")]
    pub listen: SocketAddr,
    /// The UPF's; nothing else is listened to.
    pub peer: SocketAddr,
    /// The namespace the socket is in: a name as of `ip netns`, or a path.
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
    /// What the UPF sends this UE's packets with.
    pub teid_downlink: u32,
    /// What the UPF knows this UE's packets by.
    pub teid_uplink: u32,
    /// QoS flow of its uplink.
    #[serde(default = "first_flow")]
    pub qfi: u8,
}

const fn first_flow() -> u8 {
    1
}

impl GtpuBackhaul {
    /// Path of the namespace, if it is another one.
    pub fn netns(&self) -> Option<PathBuf> {
        self.netns.as_deref().map(netns_path)
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
                return Err(format!("{place} is there twice: a UE has one tunnel"));
            }
            if !teids.insert(*teid_downlink) {
                return Err(format!("{place}: teid_downlink = {teid_downlink} is another tunnel's, too"));
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
    /// MTU of interfaces that have none of their own: what N3 carries on links of 1500 bytes.
    pub const fn mtu(&self) -> u16 {
        if self.gtpu.is_some() { 1400 } else { 1500 }
    }

    /// Interfaces, with the sections they are in.
    pub fn ports(&self) -> impl Iterator<Item = (&'static str, &PortDevice)> {
        let all = [
            ("[backhaul]", self.backhaul.as_ref()),
            ("[lte]", Some(&self.lte)),
            ("[wifi]", self.wifi.as_ref()),
        ];
        all.into_iter().filter_map(|(section, port)| Some((section, port?)))
    }

    /// A UE by name.
    pub fn ue(&self, name: &str) -> Result<&UeConfig, String> {
        self.node.ues.iter().find(|ue| ue.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.node.ues.iter().map(|ue| ue.name.as_str()).collect();
            format!("there is no UE \"{name}\" in [[node.ues]]; there are: {}", names.join(", "))
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
                return Err(
                    "there is no way to servers: give [backhaul], an interface, or [gtpu], a UPF".to_owned()
                );
            }
            (Some(_), Some(_)) => {
                return Err("[backhaul] and [gtpu] are both there: give one of them".to_owned());
            }
        }
        check_ioam(self.ioam.as_ref())?;
        Metrics::check(self.metrics.as_ref())?;
        self.api.check()
    }
}

/// What a UE runs so that packets by way of Wi-Fi are the bearer's again: nftables, without connection tracking. Stateful
/// translation would take them for another connection. `interface` is where they come in; left out: anywhere.
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
        return Err(format!("ue \"{}\" has no wifi address of a family that it has addresses of", ue.name));
    }
    // "add" makes sure that there is something to delete: the set can be loaded again.
    Ok(format!(
        "# UE {}: packets by way of Wi-Fi are the bearer's again. Load: nft -f FILE. Remove: nft delete table inet {UE_TABLE}\n\
         add table inet {UE_TABLE}\ndelete table inet {UE_TABLE}\n\
         table inet {UE_TABLE} {{\n    chain turn_back {{\n        type filter hook prerouting priority raw; policy accept;\n\
         {rules}    }}\n}}\n",
        ue.name
    ))
}

/// The table of [`ue_rules`].
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
    fn what_is_right_is_taken() {
        let config: LwipConfig = parse("lwip.toml", SMALL).unwrap();
        assert_eq!((config.lwip.name.as_str(), config.ports().count()), ("lwip", 2));
        assert!(config.node.dida.is_some() && config.wifi.is_none());
        let with = format!("{SMALL}[wifi]\nname = \"wifi\"\nnetns = \"ap\"\n");
        assert_eq!(parse::<LwipConfig>("lwip.toml", &with).unwrap().ports().count(), 3);
    }

    /// Each mistake: one sentence with the place and what would be valid.
    #[test]
    fn mistakes_name_place_and_remedy() {
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
    fn a_upf_in_the_place_of_an_interface() {
        let gtpu = SMALL.replace(
            "[backhaul]\nname = \"n3\"\n",
            "[gtpu]\npeer = \"10.9.0.1:2152\"\n[[gtpu.tunnels]]\nue = \"phone\"\nteid_downlink = 7\nteid_uplink = 8\n",
        );
        let config: LwipConfig = parse("lwip.toml", &gtpu).unwrap();
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
        assert!(config.ue("tv").unwrap_err().contains("there are: phone"));
        let tunnel = Node { wifi_leg: WifiLeg::Tunnel, ..config.node.clone() };
        assert!(ue_rules(&tunnel, ue, None).unwrap_err().contains("tunnel"));
        let bare = UeConfig { wifi: Vec::new(), ..ue.clone() };
        assert!(ue_rules(&config.node, &bare, None).unwrap_err().contains("no wifi address"));
    }
}
