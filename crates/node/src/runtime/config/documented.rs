//! Comparison of docs/operations.md, and the pages of gNB, LWIP node, proxy and slice manager, with the
//! configuration: every key, default and range. serde provides the keys: its error about an unknown key lists
//! the valid ones.

use super::load::{Check, parse};
use super::{GnbConfig, LwipConfig, ProxyConfig, SliceManagerConfig, UeConfig, UpfConfig};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use toml::{Table, Value};

const PAGE: &str = include_str!("../../../../../docs/operations.md");
const RAN: &str = include_str!("../../../../../docs/ran.md");
const SLICES: &str = include_str!("../../../../../docs/slice-manager.md");
const LWIP_PAGE: &str = include_str!("../../../../../docs/lwip-operation.md");
const PROXY_PAGE: &str = include_str!("../../../../../docs/proxy.md");
const KEY: &str = "q2kPPoy5fKHpZsrvFhiOsNgjSJg9lx1FrFDx0OXHFS8=";

/// The smallest gnb.toml in which every section exists, with one of the variants that exclude each other.
fn smallest_gnb(variant: &str) -> Table {
    let n3 = match variant {
        "gtpu" => "[n3]\nmode = \"gtpu\"\npeer = \"192.0.2.1:2152\"\n",
        _ => "[n3]\nmode = \"ip\"\nname = \"n3\"\n",
    };
    // Required with plain IP only.
    let addresses = if variant == "gtpu" { "" } else { "addresses = [\"192.0.2.2\"]\n" };
    let unmapped = if variant == "flows" { "" } else { ", unmapped = true" };
    let radio = match variant {
        "nr" => "radio = { rat = \"nr\" }\n",
        _ => "radio = { rat = \"lte\" }\n",
    };
    let text = format!(
        "[gnb]\n{n3}[[device]]\nname = \"ue0\"\n[api]\nlisten = \"off\"\n[metrics]\nlisten = \"off\"\n\
         [cell]\n{radio}mac = {{}}\nharq = {{}}\nioam = {{ node_id = 1 }}\nslices = [{{ name = \"default\", share_percent = 100 }}]\n\
         [[cell.ues]]\nname = \"u\"\n{addresses}bearer = {{}}\n\
         channel = {{ model = \"constant\", mcs = 5 }}\n\
         sdap = {{ flows = [{{ qfi = 9, drb = 1{unmapped} }}] }}\n"
    );
    toml::from_str(&text).unwrap()
}

/// Sections of gnb.toml: path, heading and variant.
const GNB: [(&[&str], &str, &str); 18] = [
    (&["gnb"], "[gnb]", ""),
    (&["n3"], "[n3] mode = \"ip\"", ""),
    (&["n3"], "[n3] mode = \"gtpu\"", "gtpu"),
    (&["device"], "[[device]]", ""),
    (&["api"], "[api]", ""),
    (&["metrics"], "[metrics]", ""),
    (&["cell"], "[cell]", ""),
    (&["cell", "radio"], "[cell] radio = { rat = \"lte\" }", ""),
    (&["cell", "radio"], "[cell] radio = { rat = \"nr\" }", "nr"),
    (&["cell", "mac"], "[cell] mac", ""),
    (&["cell", "harq"], "[cell] harq", ""),
    (&["cell", "ioam"], "[cell] ioam", ""),
    (&["cell", "slices"], "[[cell.slices]]", ""),
    (&["cell", "ues"], "[[cell.ues]]", "gtpu"),
    (&["cell", "ues", "bearer"], "[[cell.ues]] bearer", ""),
    (&["cell", "ues", "sdap"], "[[cell.ues]] sdap", ""),
    (&["cell", "ues", "sdap", "flows"], "[[cell.ues]] sdap flows", "flows"),
    (&["cell", "ues", "channel"], "[[cell.ues]] channel = { model = \"constant\" }", ""),
];

/// The smallest slice-manager.toml in which every section exists.
fn smallest_slice_manager() -> Table {
    let text = "[manager]\n[upf]\nagent = \"unix:/u\"\n[mano]\ntarget = \"/m\"\n[limits]\n[callbacks]\n\
                [api]\nlisten = \"unix:/x\"\n[[access]]\nname = \"a\"\ndownlink_bps = 1\nuplink_bps = 1\n";
    toml::from_str(text).unwrap()
}

/// The smallest proxy.toml in which every section exists.
fn smallest_proxy() -> Table {
    let text = "[proxy]\n[intercept]\n[agent]\n[limits]\n[api]\nlisten = \"unix:/x\"\n[metrics]\nlisten = \"off\"\n\
                [[rule]]\nname = \"r\"\n";
    toml::from_str(text).unwrap()
}

/// The smallest lwip.toml in which every section exists, with one of the variants that exclude each other.
fn smallest_lwip(variant: &str) -> Table {
    let backhaul = match variant {
        "gtpu" => {
            "[gtpu]\npeer = \"192.0.2.1:2152\"\ntunnels = [{ ue = \"u\", teid_downlink = 1, teid_uplink = 1 }]"
        }
        _ => "[backhaul]\nname = \"n3\"",
    };
    let steering = match variant {
        "rtt_weighted" | "capacity_weighted" | "switched" => format!("{{ mode = \"{variant}\" }}"),
        _ => "{ mode = \"fixed_ratio\", lte_percent = 50 }".to_owned(),
    };
    let text = format!(
        "{backhaul}\n[lte]\nname = \"lte\"\n[wifi]\nname = \"wifi\"\n[lwip]\n[ioam]\nnode_id = 1\n[api]\nlisten = \"off\"\n[metrics]\nlisten = \"off\"\n\
         [node]\nsteering = {steering}\nprobe = {{ addresses = [\"192.0.2.1\"] }}\n\
         dida = {{ hold = {{ mode = \"fixed\", ms = 50 }} }}\n\
         [[node.ues]]\nname = \"u\"\naddresses = [\"192.0.2.2\"]\n"
    );
    toml::from_str(&text).unwrap()
}

/// Sections of lwip.toml: path, heading and variant.
const LWIP: [(&[&str], &str, &str); 18] = [
    (&["lwip"], "[lwip]", ""),
    (&["backhaul"], "[backhaul]", ""),
    // These have the same keys and share a table.
    (&["lte"], "[backhaul]", ""),
    (&["wifi"], "[backhaul]", ""),
    (&["gtpu"], "[gtpu]", "gtpu"),
    (&["gtpu", "tunnels"], "[[gtpu.tunnels]]", "gtpu"),
    (&["node"], "[node]", ""),
    (&["node", "steering"], "[node] steering = { mode = \"fixed_ratio\" }", ""),
    (&["node", "steering"], "[node] steering = { mode = \"rtt_weighted\" }", "rtt_weighted"),
    (&["node", "steering"], "[node] steering = { mode = \"capacity_weighted\" }", "capacity_weighted"),
    (&["node", "steering"], "[node] steering = { mode = \"switched\" }", "switched"),
    (&["node", "probe"], "[node] probe", ""),
    (&["node", "dida"], "[node] dida", ""),
    (&["node", "dida", "hold"], "[node] dida hold = { mode = \"fixed\" }", ""),
    (&["node", "ues"], "[[node.ues]]", ""),
    (&["ioam"], "[ioam]", ""),
    (&["api"], "[api]", ""),
    (&["metrics"], "[metrics]", ""),
];

/// The smallest configuration in which every section exists.
fn smallest(file: &str, steering: &str) -> Table {
    match file {
        "gnb.toml" => return smallest_gnb(steering),
        "lwip.toml" => return smallest_lwip(steering),
        "proxy.toml" => return smallest_proxy(),
        "slice-manager.toml" => return smallest_slice_manager(),
        _ => {}
    }
    let common = format!(
        "[device]\n[tcp_lane]\n[probe]\n[flap]\n[ioam]\nnode_id = 1\n[api]\nlisten = \"off\"\n[metrics]\nlisten = \"off\"\n\
                          [[rule]]\nname = \"r\"\nfilter = {{}}\nsteering = {{ {steering} }}\n"
    );
    let own = match file {
        "ue.toml" => format!(
            "[ue]\nprivate_key_file = \"k\"\n[upf]\npublic_key = \"{KEY}\"\n\
             [[access]]\nname = \"5g\"\nremote = \"192.0.2.1:4500\"\n\
             [slices]\nmanager = \"unix:/m\"\ntoken_file = \"t\"\n[[slice]]\nslice = \"s\"\ninterface = \"i\"\n\
             [[mapping]]\nname = \"m\"\nprotocol = \"tcp\"\nremote = \"192.0.2.0/24\"\n"
        ),
        _ => format!(
            "[upf]\nprivate_key_file = \"k\"\n[n6]\n[pool]\nv4 = \"10.45.0.0/16\"\n\
             [[ue]]\nname = \"u\"\npublic_key = \"{KEY}\"\n[[access]]\nname = \"5g\"\nlisten = \"0.0.0.0:4500\"\n"
        ),
    };
    toml::from_str(&format!("{own}{common}")).unwrap()
}

const MODES: [&str; 6] = [
    "mode = \"active-standby\", primary = \"5g\"",
    "mode = \"load-balance\"",
    "mode = \"smallest-delay\"",
    "mode = \"priority-based\", primary = \"5g\"",
    "mode = \"redundant\"",
    "mode = \"coded\"",
];

/// A section: path of its table, heading on the page, and required steering mode.
struct Section {
    file: &'static str,
    path: Vec<&'static str>,
    heading: String,
    steering: &'static str,
}

fn sections() -> Vec<Section> {
    let mut all = Vec::new();
    for file in ["ue.toml", "upf.toml"] {
        let table = smallest(file, MODES[1]);
        for name in table.keys() {
            let name: &'static str = name.clone().leak();
            let heading = if table[name].is_array() { format!("[[{name}]]") } else { format!("[{name}]") };
            all.push(Section { file, path: vec![name], heading, steering: MODES[1] });
        }
        all.push(Section {
            file,
            path: vec!["rule", "filter"],
            heading: "[[rule]] filter".to_owned(),
            steering: MODES[1],
        });
        for steering in MODES {
            let mode = steering.split('"').nth(1).unwrap();
            let heading = format!("[[rule]] steering = {{ mode = \"{mode}\" }}");
            all.push(Section { file, path: vec!["rule", "steering"], heading, steering });
        }
    }
    for (file, table) in [("slice-manager.toml", smallest_slice_manager()), ("proxy.toml", smallest_proxy())]
    {
        for (name, value) in table {
            let name: &'static str = name.leak();
            let heading = if value.is_array() { format!("[[{name}]]") } else { format!("[{name}]") };
            all.push(Section { file, path: vec![name], heading, steering: "" });
        }
    }
    for file in ["ue.toml", "upf.toml", "gnb.toml", "lwip.toml", "proxy.toml", "slice-manager.toml"] {
        for part in ["tokens", "oauth", "tls"] {
            let (path, heading) = (vec!["api", part], format!("[api] {part}"));
            all.push(Section { file, path, heading, steering: MODES[1] });
        }
    }
    for (file, sections) in [("gnb.toml", &GNB[..]), ("lwip.toml", &LWIP[..])] {
        all.extend(sections.iter().map(|(path, heading, variant)| Section {
            file,
            path: path.to_vec(),
            heading: (*heading).to_owned(),
            steering: variant,
        }));
    }
    all
}

impl Section {
    /// The smallest configuration with this section.
    fn smallest(&self) -> Table {
        let mut table = smallest(self.file, self.steering);
        if self.path.len() > 1 && self.path[0] == "api" {
            let more = "tokens = [{ file = \"t\", role = \"tenant\", tenant = \"a\" }]\n\
                        oauth = { issuer = \"i\", audience = \"a\", jwks = \"/j\" }\n\
                        tls = { certificate = \"c\", key = \"k\" }\n";
            table["api"].as_table_mut().unwrap().extend(toml::from_str::<Table>(more).unwrap());
        }
        table
    }

    /// The smallest configuration with `key` of this section set, or removed if the value is `None`.
    fn with(&self, key: &str, value: Option<Value>) -> Table {
        let mut table = self.smallest();
        let mut at = &mut table;
        for step in &self.path {
            at = match at.get_mut(*step).unwrap() {
                Value::Table(table) => table,
                Value::Array(array) => array[0].as_table_mut().unwrap(),
                other => panic!("{other}"),
            };
        }
        match value {
            Some(value) => drop(at.insert(key.to_owned(), value)),
            None => drop(at.remove(key)),
        }
        table
    }

    fn accepts(&self, table: &Table) -> Result<String, String> {
        let text = toml::to_string(table).unwrap();
        fn read<T: DeserializeOwned + Check + std::fmt::Debug>(text: &str) -> Result<String, String> {
            parse::<T>("x", text).map(|config| format!("{config:?}")).map_err(|e| e.message)
        }
        match self.file {
            "ue.toml" => read::<UeConfig>(&text),
            "upf.toml" => read::<UpfConfig>(&text),
            "proxy.toml" => read::<ProxyConfig>(&text),
            "slice-manager.toml" => read::<SliceManagerConfig>(&text),
            "lwip.toml" => read::<LwipConfig>(&text),
            _ => read::<GnbConfig>(&text),
        }
    }

    /// The valid keys of this section.
    fn keys(&self) -> BTreeSet<String> {
        let message = self.accepts(&self.with("zz_unknown", Some(Value::Integer(1)))).unwrap_err();
        let list =
            message.split("valid here: ").nth(1).unwrap_or_else(|| panic!("{}: {message}", self.heading));
        let keys = list.trim_end_matches(')').split(", ").map(str::to_owned);
        // The key in the heading.
        let tag = match self.path.last() {
            Some(&"steering" | &"n3" | &"hold") => "mode",
            Some(&"radio") => "rat",
            Some(&"channel") => "model",
            _ => "",
        };
        keys.filter(|key| key != tag).collect()
    }

    /// The rows of the section on the page.
    fn rows(&self) -> BTreeMap<String, Row> {
        let headings =
            [format!("### {}: `{}`", self.file, self.heading), format!("### both: `{}`", self.heading)];
        // Keys common to all files are described once.
        let shared = self.path.len() > 1 && self.path[0] == "api";
        let of_all = format!("### every file: `{}`", self.heading);
        let headings = if shared { [of_all.clone(), of_all] } else { headings };
        let page = match self.file {
            _ if shared => PAGE,
            "gnb.toml" => RAN,
            "proxy.toml" => PROXY_PAGE,
            "slice-manager.toml" => SLICES,
            "lwip.toml" => LWIP_PAGE,
            _ => PAGE,
        };
        let mut lines = page.lines().skip_while(|line| !headings.iter().any(|h| h == line));
        assert!(lines.next().is_some(), "the page lacks the heading {}", headings[0]);
        lines
            .take_while(|line| !line.starts_with('#'))
            .filter(|line| line.starts_with("| `"))
            .map(|line| {
                let cells: Vec<&str> = line.trim_matches('|').split(" |").map(str::trim).collect();
                let [key, _unit, default, range, what] = cells[..] else { panic!("{line}") };
                assert!(!range.is_empty() && !what.is_empty(), "{line}");
                (code(key).unwrap().to_owned(), Row { default: default.to_owned(), range: range.to_owned() })
            })
            .collect()
    }
}

struct Row {
    default: String,
    range: String,
}

/// The text between backquotes.
fn code(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`')
}

fn value(text: &str) -> Value {
    let table: Table = toml::from_str(&format!("v = {text}")).unwrap_or_else(|e| panic!("{text}: {e}"));
    table["v"].clone()
}

#[test]
fn every_key_is_documented_and_every_documented_key_exists() {
    let mut keys = 0;
    for section in sections() {
        let documented: BTreeSet<String> = section.rows().into_keys().collect();
        assert_eq!(documented, section.keys(), "{} {}", section.file, section.heading);
        keys += documented.len();
    }
    assert!(keys > 100, "{keys}");
}

#[test]
fn every_top_level_section_is_documented() {
    for file in ["ue.toml", "upf.toml", "gnb.toml", "lwip.toml", "proxy.toml", "slice-manager.toml"] {
        let section = Section { file, path: Vec::new(), heading: String::new(), steering: MODES[1] };
        // All of those that exclude each other.
        let variants = [MODES[1], if file == "lwip.toml" { "gtpu" } else { MODES[1] }];
        let known: BTreeSet<String> =
            variants.iter().flat_map(|v| smallest(file, v).keys().cloned().collect::<Vec<_>>()).collect();
        assert_eq!(section.keys(), known, "{file}");
    }
}

/// Setting a key to its default changes nothing, and a key without a default is required.
#[test]
fn every_default_is_the_documented_one() {
    for section in sections() {
        let implied = section.accepts(&section.smallest()).unwrap();
        for (key, row) in section.rows() {
            let place = format!("{} {} {key}", section.file, section.heading);
            let without = section.accepts(&section.with(&key, None));
            match (code(&row.default), row.default.as_str()) {
                (Some(default), _) => {
                    let written = section.accepts(&section.with(&key, Some(value(default))));
                    assert_eq!(written.as_ref(), Ok(&implied), "{place}");
                    assert_eq!(without, Ok(implied.clone()), "{place}");
                }
                // A pool and a constant channel require one of two keys.
                (None, "none") => {
                    // Likewise a fixed token's tenant depends on its role.
                    let one_of_two =
                        section.path == ["pool"] || section.path.ends_with(&["channel"]) || key == "tenant";
                    assert!(without.is_ok() || one_of_two, "{place}: {without:?}");
                }
                (None, "") => assert!(without.is_err(), "{place} can be left out"),
                (None, other) => panic!("{place}: default \"{other}\""),
            }
        }
    }
}

/// The bounds of "A to B" are accepted; values one step beyond are not.
#[test]
fn every_range_is_the_documented_one() {
    let mut ranges = 0;
    for section in sections() {
        let rows = section.rows();
        // A bound that is another key is written as that key.
        let bound = |text: &str| -> Option<f64> {
            match code(text) {
                Some(key) => rows.get(key).and_then(|row| code(&row.default)?.parse().ok()),
                None => text.parse().ok(),
            }
        };
        for (key, row) in &rows {
            let first = row.range.split(", or").next().unwrap();
            let Some((low, high)) = first.split_once(" to ").and_then(|(l, h)| Some((bound(l)?, bound(h)?)))
            else {
                continue;
            };
            ranges += 1;
            let whole = low.fract() == 0.0 && !matches!(key.as_str(), "loss_percent" | "above_loss_percent");
            let number = |n: f64| if whole { Value::Integer(n as i64) } else { Value::Float(n) };
            let step = if whole { 1.0 } else { 0.0005 };
            let accepts = |n: f64| section.accepts(&section.with(key, Some(number(n)))).is_ok();
            let place = format!("{} {} {key}", section.file, section.heading);
            assert!(!accepts(low - step), "{place}: {} is accepted", low - step);
            assert!(!accepts(high + step), "{place}: {} is accepted", high + step);
            // Bounds that depend on other keys are covered by the rows of those keys.
            let tied =
                ["interval_ms", "idle_ms", "idle_interval_ms", "active_interval_max_ms", "hold_max_ms"];
            let alone = !tied.contains(&key.as_str());
            assert!(!alone || accepts(low) && accepts(high), "{place}: a bound is refused");
        }
    }
    assert!(ranges > 40, "{ranges}");
}
