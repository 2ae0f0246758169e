//! `lwip.toml`.

use super::gnb::PortDevice;
use super::load::Check;
use super::types::{Api, Metrics};
use anabranch_core::lwip::{Config as Node, UeConfig, WifiLeg};
use serde::Deserialize;
use std::collections::BTreeSet;

/// The LWIP node's configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LwipConfig {
    /// `[lwip]`
    #[serde(default)]
    pub lwip: LwipSection,
    /// `[backhaul]`: where servers are.
    pub backhaul: PortDevice,
    /// `[lte]`: the cell, and the way of everything that comes from UEs.
    pub lte: PortDevice,
    /// `[wifi]`: the access point; left out: behind the interface of `[lte]`, where routes part.
    #[serde(default)]
    pub wifi: Option<PortDevice>,
    /// `[node]`: steering, DIDA, UEs; the same as in scenarios.
    pub node: Node,
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

impl LwipConfig {
    /// Interfaces, with the sections they are in.
    pub fn ports(&self) -> impl Iterator<Item = (&'static str, &PortDevice)> {
        let two = [("[backhaul]", &self.backhaul), ("[lte]", &self.lte)];
        two.into_iter().chain(self.wifi.iter().map(|wifi| ("[wifi]", wifi)))
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
    use super::super::load::parse;
    use super::*;

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
