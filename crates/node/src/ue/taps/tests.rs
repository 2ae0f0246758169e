//! The REST interface over HTTP, on a simulated host.

use super::Taps;
use crate::runtime::api::tests::start_with;
use anabranch_selection::{Host, Interface};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;

fn made_up() -> Host {
    let mut host = Host::with_all_protocols();
    for (i, name) in ["wwan0", "wwan1", "wlan0"].into_iter().enumerate() {
        let interface = Interface {
            kind: if name == "wlan0" { "wifi".into() } else { "cellular".into() },
            up: true,
            addresses: vec![format!("10.0.{i}.2").parse().unwrap()],
            ..Interface::default()
        };
        host.interfaces.insert(name.into(), interface);
    }
    host
}

struct Agent {
    client: Client,
    base: String,
}

impl Agent {
    async fn start() -> Self {
        let (base, _) = start_with(None, Some(Arc::new(Taps::on(made_up).with_own_mark(43866)))).await;
        Self { client: Client::new(), base }
    }

    async fn call(&self, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
        let request = self.client.request(method, format!("{}{path}", self.base)).json(&body);
        let response = request.send().await.unwrap();
        let status = response.status();
        (status, serde_json::from_str(&response.text().await.unwrap()).unwrap_or_default())
    }
}

fn slices() -> Value {
    json!({
        "A": {"interface": "wwan0", "rtt_us": 29_800, "downlink_guaranteed_bps": 100_000_000, "uplink_guaranteed_bps": 50_000_000},
        "B": {"interface": "wwan1", "mark": 512, "table": 102, "sst": 2, "sd": "00000b", "rtt_us": 12_000,
              "downlink_guaranteed_bps": 60_000_000, "uplink_guaranteed_bps": 20_000_000},
    })
}

#[tokio::test]
async fn a_request_gets_ranked_candidates_and_a_plan_or_the_property_at_fault() {
    let agent = Agent::start().await;
    let (status, told) = agent.call(Method::PUT, "/connections/slices", slices()).await;
    assert_eq!((status, &told["B"]["mark"]), (StatusCode::OK, &json!(512)), "{told}");

    let remote = json!([{"address": "198.51.100.7", "port": 443}]);
    let properties = json!({"connCapacityProfile": "lowLatencyInteractive", "multistreaming": "prohibit"});
    let (status, answer) = agent
        .call(Method::POST, "/connections/select", json!({"properties": properties, "remote": remote}))
        .await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(answer["candidates"][0]["paths"], json!([{"interface": "wwan1", "pvd": "B"}]));
    assert_eq!(answer["candidates"][0]["protocol"], "tcp");
    assert_eq!(answer["plan"][0], json!({"action": "mark", "mark": 512, "table": 102}));

    let too_much = json!({"_slice.latency": {"atMostUs": 100, "preference": "require"}});
    let (status, problem) = agent
        .call(Method::POST, "/connections/select", json!({"properties": too_much, "remote": remote}))
        .await;
    assert_eq!((status, &problem["field"]), (StatusCode::CONFLICT, &json!("_slice.latency")), "{problem}");
    let typo = json!({"properties": {"minSendRat": 5}, "remote": remote});
    let (status, problem) = agent.call(Method::POST, "/connections/select", typo).await;
    assert_eq!((status, &problem["field"]), (StatusCode::BAD_REQUEST, &json!("minSendRat")));
    assert!(problem["detail"].as_str().unwrap().contains("did you mean \"minSendRate\"?"), "{problem}");

    for (wrong, part) in [
        (json!({"A": {"interface": "wwan0", "mark": 1}}), "routing table"),
        (json!({"A": {"interface": "wwan0", "mark": 0, "table": 102}}), "1 or more"),
        (json!({"A": {"interface": "wwan0", "mark": 1, "table": 0}}), "1 or more"),
        (json!({"A": {"interface": "wwan0", "mark": 1, "table": 254}}), "one of the kernel's"),
        (json!({"A": {"interface": "wwan0", "mark": 43866, "table": 102}}), "tunnel's own packets"),
        (json!({"A": {"interface": ""}}), "not an interface name"),
        (json!({"A": {"interface": "a name of 17 byte"}}), "not an interface name"),
        (
            json!({"A": {"interface": "wwan0", "mark": 1, "table": 102}, "B": {"interface": "wwan0", "mark": 1, "table": 103}}),
            "mark 1 is already that of \"A\"",
        ),
        (json!({"A\n": {"interface": "wwan0"}}), "control characters"),
        (json!({("A".repeat(129)): {"interface": "wwan0"}}), "128 bytes"),
        (json!({"A": {"interface": "wwan0", "sst": 1, "sd": "b"}}), "six hexadecimal"),
        (json!({"A": {"interface": "wwan0", "sst": 1, "sd": "+0000b"}}), "six hexadecimal"),
        (
            json!({"A": {"interface": "wwan0", "uplink_guaranteed_bps": 2, "uplink_max_bps": 1}}),
            "the guaranteed rate exceeds",
        ),
    ] {
        let (status, problem) = agent.call(Method::PUT, "/connections/slices", wrong).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(problem["detail"].as_str().unwrap().contains(part), "{problem}");
    }
    let (_, kept) = agent.call(Method::GET, "/connections/slices", json!(null)).await;
    assert_eq!(kept, told, "what is wrong changes nothing");
}

#[tokio::test]
async fn a_flow_follows_the_route_selection_policy() {
    let agent = Agent::start().await;
    agent.call(Method::PUT, "/connections/slices", slices()).await;
    let policy = json!({"urspGuidance": [
        {"trafficDesc": {"domainDescs": ["control.example"]}, "routeSelParamSets": [{"snssai": {"sst": 2, "sd": "00000b"}}]},
    ]});
    let (status, written) = agent.call(Method::PUT, "/connections/ursp", policy.clone()).await;
    assert_eq!((status, &written), (StatusCode::OK, &policy));
    let ask = |domain: &str| {
        json!({"remote": [{"address": "198.51.100.7", "port": 443}], "flow": {"domain": domain},
               "properties": {"interface": {"wlan0": "prefer"}}})
    };
    let (_, control) = agent.call(Method::POST, "/connections/select", ask("control.example")).await;
    assert_eq!(control["ursp"], json!({"rule": 0, "route": 0, "slices": ["B"]}), "{control}");
    let all = control["candidates"].as_array().unwrap();
    assert!(all.iter().all(|c| c["paths"][0]["pvd"] == "B"), "{control}");
    let (_, other) = agent.call(Method::POST, "/connections/select", ask("other.example")).await;
    assert_eq!(other["candidates"][0]["paths"], json!([{"interface": "wlan0"}]), "{other}");

    let (status, problem) = agent.call(Method::PUT, "/connections/ursp", json!({"urspGuidance": []})).await;
    assert_eq!((status, &problem["field"]), (StatusCode::BAD_REQUEST, &json!("urspGuidance")));
}

#[tokio::test]
async fn neat_clients_find_their_paths_and_slices_are_true() {
    let agent = Agent::start().await;
    agent.call(Method::PUT, "/connections/slices", slices()).await;
    let profile = json!({"policy_type": "profile", "replace_matched": true, "match": {"transport": {"value": "dependable"}},
        "properties": [[{"transport": {"value": "TCP", "precedence": 2, "score": 2}}, {"transport": {"value": "SCTP", "precedence": 2}}]]});
    let (status, _) = agent.call(Method::PUT, "/pib/Dependable", profile).await;
    assert_eq!(status, StatusCode::OK);
    let (_, names) = agent.call(Method::GET, "/pib", json!(null)).await;
    assert_eq!(names, json!(["dependable"]));
    let node = json!({"expire": -1, "link": true, "match": [{"interface": {"value": "wwan1"}}],
        "properties": {"remote_ip": {"value": "198.51.100.7", "precedence": 2, "score": 3}}});
    let (status, _) = agent.call(Method::PUT, "/cib/far", node).await;
    assert_eq!(status, StatusCode::OK);

    let question = json!([{"transport": {"value": "dependable"}, "rtt": {"value": {"start": 0, "end": 20}, "precedence": 2}}]);
    let (status, answer) = agent.call(Method::POST, "/connections/select/neat", question).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let found = answer.as_array().unwrap().iter().find(|c| c["slice"]["value"] == "B").expect("slice B");
    assert_eq!((&found["rtt"]["value"], &found["rtt"]["precedence"]), (&json!(12), &json!(2)));
    assert_eq!(found["remote_ip"]["value"], "198.51.100.7");
    assert!(!answer.as_array().unwrap().iter().any(|c| c["slice"]["value"] == "A"), "29.8 ms are too many");

    let (status, problem) =
        agent.call(Method::PUT, "/cib/x", json!({"properties": {"x": {"precedence": 7}}})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(problem["detail"].as_str().unwrap().contains("write 0, 1 or 2"), "{problem}");
    for (path, status) in
        [("/pib/DEPENDABLE", 204), ("/pib/dependable", 404), ("/cib/far", 204), ("/cib/far", 404)]
    {
        let (got, _) = agent.call(Method::DELETE, path, json!(null)).await;
        assert_eq!(got.as_u16(), status, "{path}");
    }
}

#[tokio::test]
async fn other_programs_refuse_and_name_the_ue() {
    let (base, _) = start_with(None, None).await;
    let agent = Agent { client: Client::new(), base };
    for (method, path, body) in [
        (Method::POST, "/connections/select", json!({"remote": []})),
        (Method::GET, "/pib", json!(null)),
        (Method::GET, "/cib/rows", json!(null)),
    ] {
        let (status, problem) = agent.call(method, path, body).await;
        assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{path}");
        assert!(problem["remedy"].as_str().unwrap().contains("anabranch ue"), "{problem}");
    }
}

#[test]
fn kernel_configuration_follows_slices_and_mappings() {
    use super::actions::StepKey;
    use crate::runtime::netctl::{MAPPING_PRIORITY, Step};
    let text = "[ue]\nprivate_key_file = \"k\"\n[upf]\npublic_key = \"q2kPPoy5fKHpZsrvFhiOsNgjSJg9lx1FrFDx0OXHFS8=\"\n\
        [[access]]\nname = \"5g\"\nremote = \"192.0.2.1:4500\"\n\
        [[slice]]\nslice = \"A\"\ninterface = \"wwan0\"\nmark = 100\ntable = 1000\nalpha = 1.0\n\
        [[slice]]\nslice = \"B\"\ninterface = \"wwan1\"\nmark = 200\ntable = 2000\ngateway = \"10.0.1.1\"\n\
        [[mapping]]\nname = \"control\"\nprotocol = \"udp\"\nremote = \"198.51.100.0/24\"\nremote_port = \"14550-14559\"\n\
        properties = { connCapacityProfile = \"lowLatencyInteractive\" }\n\
        [[mapping]]\nname = \"upload\"\nprotocol = \"tcp\"\nremote = \"198.51.100.0/24\"\npaced = true\n\
        properties = { minSendRate = 40_000_000 }\n\
        [[mapping]]\nname = \"none\"\nprotocol = \"tcp\"\nremote = \"198.51.100.0/24\"\n\
        properties = { pvd = { C = \"require\" } }\n";
    let config: crate::runtime::config::UeConfig = crate::runtime::config::parse("ue.toml", text).unwrap();
    let taps = Taps { interfaces: made_up, ..Taps::new(config.slice, config.mapping) };
    let spec = |interface: &str, rtt_us: u64, bps: u64| json!({"interface": interface, "rtt_us": rtt_us, "uplink_guaranteed_bps": bps, "downlink_guaranteed_bps": bps});
    let told = json!({"A": spec("wwan0", 29_800, 50_000_000), "B": spec("wwan1", 12_000, 20_000_000)});
    taps.set_slices(serde_json::from_value(told).unwrap()).unwrap();
    let (wanted, problems) = taps.wanted();
    let window = |table: u32| match &wanted[&StepKey::Route { table, v6: false }] {
        Step::Slice(route) => (route.device.clone(), route.gateway.is_some(), route.initcwnd),
        other => panic!("{other}"),
    };
    // 50 Mbit/s * 29.8 ms / 8 / 1448 = 128.6; half of 20 Mbit/s * 12 ms: 10.4.
    assert_eq!(window(1000), ("wwan0".into(), false, None));
    assert_eq!(window(1001), ("wwan0".into(), false, Some(120)));
    assert_eq!(window(2001), ("wwan1".into(), true, Some(10)));
    let table = |i: u32| match wanted.get(&StepKey::Rule { priority: MAPPING_PRIORITY + i, v6: false }) {
        Some(Step::Select { table, by, .. }) => Some((*table, by.remote_port)),
        _ => None,
    };
    assert_eq!(table(0), Some((2000, Some((14550, 14559)))), "the least round trip; no window for UDP");
    assert_eq!(table(1), Some((1001, None)), "the rate; paced, so with a window");
    assert_eq!(table(2), None);
    assert!(
        problems.len() == 1 && problems[0].contains("[[mapping]] none") && problems[0].contains("pvd"),
        "{problems:?}"
    );
    assert!(
        !wanted.keys().any(|k| matches!(k, StepKey::Route { v6: true, .. })),
        "nothing for IPv6 without an address"
    );
    // If the slices are removed, routes without windows remain, and mappings that need no facts.
    taps.set_slices(std::collections::BTreeMap::new()).unwrap();
    let (wanted, problems) = taps.wanted();
    assert!(wanted.values().all(|s| !matches!(s, Step::Slice(r) if r.initcwnd.is_some())));
    assert!(!problems.is_empty());
}

/// A mapping that changes its slice has a rule at all times; if the kernel refuses the new rule, the old one
/// stays.
#[test]
fn a_mapping_that_changes_its_slice_always_has_a_rule() {
    use super::actions::Installed;
    use crate::runtime::netctl::Net;
    use crate::testing::{in_private_network, sh};
    let text = "[ue]\nprivate_key_file = \"k\"\n[upf]\npublic_key = \"q2kPPoy5fKHpZsrvFhiOsNgjSJg9lx1FrFDx0OXHFS8=\"\n\
        [[access]]\nname = \"5g\"\nremote = \"192.0.2.1:4500\"\n\
        [[slice]]\nslice = \"A\"\ninterface = \"wwan0\"\nmark = 100\ntable = 1000\n\
        [[slice]]\nslice = \"B\"\ninterface = \"wwan1\"\nmark = 200\ntable = 2000\n\
        [[mapping]]\nname = \"upload\"\nprotocol = \"tcp\"\nremote = \"198.51.100.0/24\"\n\
        properties = { minSendRate = 40_000_000 }\n";
    let config: crate::runtime::config::UeConfig = crate::runtime::config::parse("ue.toml", text).unwrap();
    let told = |a: u64, b: u64| {
        let spec = |interface: &str, bps: u64| json!({"interface": interface, "rtt_us": 20_000, "uplink_guaranteed_bps": bps, "downlink_guaranteed_bps": bps});
        serde_json::from_value(json!({"A": spec("wwan0", a), "B": spec("wwan1", b)})).unwrap()
    };
    in_private_network(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            sh("for i in wwan0 wwan1; do ip link add $i type veth peer name p$i; ip link set p$i up; ip link set $i up; done
                ip addr add 10.0.0.2/24 dev wwan0; ip addr add 10.0.1.2/24 dev wwan1");
            let taps = Taps { interfaces: made_up, ..Taps::new(config.slice.clone(), config.mapping) };
            let log = crate::runtime::api::EventLog::default();
            let way = || sh("ip rule list pref 20900");
            taps.set_slices(told(50_000_000, 1_000_000)).unwrap();
            let mut installed = Installed::start(Net::open().unwrap(), &config.slice, None, ("phone".into(), log.clone())).await.unwrap();
            installed.update(&taps, false).await;
            assert!(way().contains("lookup 1000"), "{}", way());
            for (a, b, table) in [(1_000_000, 50_000_000, "2000"), (50_000_000, 1_000_000, "1000")] {
                taps.set_slices(told(a, b)).unwrap();
                let mut monitor = std::process::Command::new("ip");
                monitor.args(["-o", "monitor", "rule"]).stdout(std::process::Stdio::piped());
                let mut monitor = monitor.spawn().unwrap();
                std::thread::sleep(std::time::Duration::from_millis(300));
                installed.update(&taps, false).await;
                std::thread::sleep(std::time::Duration::from_millis(300));
                monitor.kill().unwrap();
                let said = String::from_utf8(monitor.wait_with_output().unwrap().stdout).unwrap();
                let told: Vec<&str> = said.lines().filter(|line| line.contains("20900")).collect();
                assert_eq!(told.len(), 2, "{told:?}");
                assert!(told[0].contains(&format!("lookup {table}")) && !told[0].contains("Deleted"), "{told:?}");
                assert!(told[1].contains("Deleted"), "{told:?}");
                assert_eq!(way().lines().count(), 1, "{}", way());
            }
            // A foreign rule is in the way of the new one.
            let own = way().replace("20900:", "").replace("1000", "2000");
            sh(&format!("ip rule add pref 20900 {}", own.trim()));
            taps.set_slices(told(1_000_000, 50_000_000)).unwrap();
            installed.update(&taps, false).await;
            assert!(way().contains("lookup 1000"), "{}", way());
            sh(&format!("ip rule del pref 20900 {}", own.trim()));
            installed.update(&taps, false).await;
            assert!(way().contains("lookup 2000") && way().lines().count() == 1, "{}", way());
            // A rule that was removed by another program is restored, and an event is recorded
            // (docs/operations.md).
            sh("ip rule del pref 20900");
            installed.update(&taps, true).await;
            assert!(way().contains("lookup 2000") && way().lines().count() == 1, "{}", way());
            let (events, _) = log.since(0);
            let told: Vec<_> = events.iter().map(|event| (event.kind.as_str(), event.ue.as_deref())).collect();
            assert_eq!(told, [("restored", Some("phone"))], "{events:?}");
            assert!(events[0].message.contains("20900"), "{events:?}");
            installed.remove().await;
            assert_eq!(way(), "");
        });
    });
}

/// Two slices on one interface: subflows are directed by the choice of the plan, not by the order of the
/// slices.
#[test]
fn subflows_use_the_slice_of_their_plan_or_none() {
    use super::actions::StepKey;
    use crate::runtime::netctl::Step;
    use anabranch_selection::{Endpoint, Properties, Request};
    use std::net::IpAddr;
    let slice = |name: &str, interface: &str, mark: u32| {
        format!(
            "[[slice]]\nslice = \"{name}\"\ninterface = \"{interface}\"\nmark = {mark}\ntable = {}\n",
            mark * 10
        )
    };
    let slices = [("A", "wwan0", 100), ("B", "wwan1", 200), ("C", "wwan1", 300)];
    let text = format!(
        "[ue]\nprivate_key_file = \"k\"\n[upf]\npublic_key = \"q2kPPoy5fKHpZsrvFhiOsNgjSJg9lx1FrFDx0OXHFS8=\"\n\
         [[access]]\nname = \"5g\"\nremote = \"192.0.2.1:4500\"\n{}",
        slices.map(|(name, interface, mark)| slice(name, interface, mark)).concat()
    );
    let config: crate::runtime::config::UeConfig = crate::runtime::config::parse("ue.toml", &text).unwrap();
    let taps = Taps { interfaces: made_up, ..Taps::new(config.slice, config.mapping) };
    let told = slices.map(|(name, interface, _)| (name.to_owned(), json!({ "interface": interface })));
    let told: serde_json::Map<String, Value> = told.into_iter().collect();
    taps.set_slices(serde_json::from_value(told.into()).unwrap()).unwrap();
    let sources = || {
        let (wanted, problems) = taps.wanted();
        let table = |(key, step): (&StepKey, &Step)| match (key, step) {
            (StepKey::Source(address), Step::Select { table, by, .. }) => {
                assert_eq!(by.local, Some(*address));
                Some((address.to_string(), *table))
            }
            _ => None,
        };
        (wanted.iter().filter_map(table).collect::<Vec<_>>(), problems)
    };
    let ask = |pvd: &str| {
        let properties = json!({"multipath": "active", "pvd": {"A": "prefer", pvd: "prefer"}, "interface": {"wlan0": "prohibit"}});
        let properties = Properties::from_json(properties).unwrap();
        let remote = vec![Endpoint::new("198.51.100.7".parse::<IpAddr>().unwrap(), 443)];
        let answer = taps.select(Request { properties, remote, ..Request::default() }, None).unwrap();
        let several = answer.candidates.iter().find(|c| c.candidate.paths.len() > 1).expect("several paths");
        let mut pvds: Vec<_> = several.candidate.paths.iter().filter_map(|p| p.pvd.as_deref()).collect();
        pvds.sort_unstable();
        assert_eq!(pvds, ["A", pvd]);
    };
    // Without plans there are no rules: a program that binds itself to an address has not requested a slice.
    assert_eq!(sources(), (vec![], vec![]));
    ask("C");
    let by_c = vec![("10.0.0.2".to_owned(), 1000), ("10.0.1.2".to_owned(), 3000)];
    assert_eq!(sources(), (by_c, vec![]));
    ask("B");
    let (left, problems) = sources();
    assert_eq!(left, [("10.0.0.2".to_owned(), 1000)]);
    assert!(problems.len() == 1 && problems[0].contains("10.0.1.2"), "{problems:?}");
}

/// Each family uses its own router; a family without a router is on-link.
#[test]
fn a_slice_has_a_gateway_of_each_family() {
    use super::actions::StepKey;
    use crate::runtime::netctl::Step;
    fn both() -> Host {
        let mut host = made_up();
        host.interfaces.get_mut("wwan1").unwrap().addresses.push("2001:db8::2".parse().unwrap());
        host
    }
    for (gateway, v4, v6) in [
        ("", None, None),
        ("gateway = \"10.0.1.1\"", Some("10.0.1.1"), None),
        ("gateway = \"fe80::1\"", None, Some("fe80::1")),
        ("gateway = [\"10.0.1.1\", \"fe80::1\"]", Some("10.0.1.1"), Some("fe80::1")),
    ] {
        let text = format!(
            "[ue]\nprivate_key_file = \"k\"\n[upf]\npublic_key = \"q2kPPoy5fKHpZsrvFhiOsNgjSJg9lx1FrFDx0OXHFS8=\"\n\
             [[access]]\nname = \"5g\"\nremote = \"192.0.2.1:4500\"\n\
             [[slice]]\nslice = \"B\"\ninterface = \"wwan1\"\nmark = 200\ntable = 2000\n{gateway}\n"
        );
        let config: crate::runtime::config::UeConfig =
            crate::runtime::config::parse("ue.toml", &text).unwrap();
        let taps = Taps { interfaces: both, ..Taps::new(config.slice, config.mapping) };
        let (wanted, _) = taps.wanted();
        for (family, router) in [(false, v4), (true, v6)] {
            match &wanted[&StepKey::Route { table: 2000, v6: family }] {
                Step::Slice(route) => {
                    assert_eq!(route.gateway.map(|g| g.to_string()).as_deref(), router, "{gateway}");
                }
                other => panic!("{other}"),
            }
        }
    }
}
