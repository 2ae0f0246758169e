use super::*;
use std::path::Path;

fn plan(text: &str) -> Plan {
    let scenario = crate::scenario::parse(Path::new("t.toml"), text, &[]).unwrap();
    lay_out(&scenario.cases[0]).unwrap()
}

const TWO: &str = r#"
title = "t"
[link.wifi]
[link.nr]
[ue.one]
accesses = [{ name = "wifi", link = "wifi" }, { name = "5g", link = "nr" }]
[ue.wifi]
accesses = [{ name = "wifi", link = "wifi" }]
[flow.a]
kind = "bulk_tcp"
ue = "one"
[flow.b]
kind = "bulk_tcp"
ue = "wifi"
congestion_control = "reno"
"#;

#[test]
fn every_end_has_its_own_name_and_address() {
    let plan = plan(TWO);
    let ends: Vec<&End> = plan.veths.iter().flatten().collect();
    let places: BTreeSet<_> = ends.iter().map(|e| (&e.space, &e.interface)).collect();
    let macs: BTreeSet<_> = ends.iter().map(|e| &e.mac).collect();
    assert_eq!((places.len(), macs.len()), (ends.len(), ends.len()));
    assert!(ends.iter().all(|e| plan.spaces.contains_key(&e.space) && e.interface.len() <= 15));
    // A UE with the name of a link does not share its namespace.
    assert_eq!(plan.ues["wifi"].space, "ue-wifi");
    assert_eq!(plan.ues["one"].space, "one");
    assert!(plan.spaces.contains_key("link-wifi"));
}

#[test]
fn a_shared_link_has_both_ues_on_side_a() {
    let plan = plan(TWO);
    let wifi = plan.links.iter().find(|l| l.name.as_deref() == Some("wifi")).unwrap();
    assert_eq!(wifi.sides, [vec!["a0".to_owned(), "a1".into()], vec!["b0".into()]]);
    let one = &plan.ues["one"];
    assert_eq!(one.accesses.iter().map(|a| &*a.name).collect::<Vec<_>>(), ["wifi", "5g"]);
    assert_eq!(one.accesses[0].address.to_string(), "10.1.1.10");
    assert_eq!(plan.ues["wifi"].accesses[0].address.to_string(), "10.1.1.11");
    // Both use the same port of the UPF, since it is the same access name.
    assert_eq!(one.accesses[0].port, plan.ues["wifi"].accesses[0].port);
    assert_ne!(one.accesses[0].port, one.accesses[1].port);
}

#[test]
fn congestion_control_goes_by_the_servers_address() {
    let plan = plan(TWO);
    let server = &plan.servers["server"];
    assert_eq!(server.address(CongestionControl::Reno).to_string(), "10.3.0.2");
    let at_server = &plan.setup["server"];
    assert!(at_server.contains("rule add from 10.3.0.2 table 202"));
    assert!(at_server.contains("table 202 congctl lock reno"));
    assert!(!at_server.contains("bbr"));
    assert!(plan.ues["one"].tunnel_routes.contains("10.3.0.2/32 dev anb0  congctl lock reno"));
}

#[test]
fn a_cell_takes_the_place_of_a_link() {
    let plan = plan(
        r#"
title = "t"
[link.wifi]
[gnb.wide]
[ue.one]
accesses = [{ name = "wifi", link = "wifi" }, { name = "a-name-of-14-x", link = "wide" }]
[ue.two]
accesses = [{ name = "5g", link = "wide" }]
[flow.a]
kind = "bulk_tcp"
ue = "two"
via = "direct:5g"
"#,
    );
    let [cell] = &plan.cells[..] else { panic!("{:?}", plan.cells) };
    assert_eq!((cell.space.as_str(), cell.n3.clone()), ("gnb-wide", ("upf".into(), "l1".into())));
    let ues: Vec<_> = cell.ues.iter().map(|ue| (ue.space.as_str(), ue.interface.as_str())).collect();
    assert_eq!(ues, [("one", "acc1"), ("two", "5g")]);
    let addresses: Vec<String> = cell.ues[1].addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.1.1.11", "fd00:1:1::b"]);
    assert_eq!(plan.ues["two"].accesses[0].address.to_string(), "10.1.1.11");
    assert!(plan.ues["two"].accesses[0].cell && !plan.ues["one"].accesses[0].cell);
    // Only interfaces created by the cell are configured later.
    let later = &plan.radio_setup["two"];
    assert!(later.contains("addr add 10.1.1.11/24 dev 5g") && later.contains("dev 5g table 101 congctl"));
    assert!(plan.radio_setup["upf"].contains("addr add fd00:1:1::1/64 dev l1 nodad"));
    assert!(!plan.setup["two"].contains("5g") && plan.setup["one"].contains("dev wifi"));
    assert!(plan.setup["server"].contains("route add 10.1.1.11/32 via"));
}

#[test]
fn a_slow_server_link_is_emulated() {
    let slow = plan(&format!("{TWO}\n[server.far]\ndelay_ms = 20\n"));
    let n6 = slow.links.iter().find(|l| l.name.is_none()).unwrap();
    assert_eq!((n6.space.as_str(), n6.link.up.delay_ms), ("n6-0-0", 20.0));
    assert!(slow.veths.iter().flatten().filter(|e| e.space == "far").all(|e| e.plain));
    let plain = plan(TWO);
    assert!(plain.links.iter().all(|l| l.name.is_some()));
    assert!(plain.veths.iter().flatten().filter(|e| e.space == "server").all(|e| !e.plain));
}

const INT: &str = r#"
title = "t"
[link.wifi]
down = { ioam_node = 2 }
[server.server]
ioam_node = 1
[ue.one]
accesses = [{ name = "wifi", link = "wifi" }]
[flow.a]
kind = "bulk_tcp"
via = "direct:wifi"
ipv6 = true
congestion_control = "int_rate"
telemetry = { every = 16, nodes = 2 }
[flow.b]
kind = "bulk_tcp"
via = "direct:wifi"
ipv6 = true
"#;

#[test]
fn telemetry_gets_its_controllers_routes_and_sources() {
    let plan = plan(INT);
    let (one, server) = (&plan.ues["one"], &plan.servers["server"]);
    assert_eq!(one.accesses[0].address6.to_string(), "fd00:1::a");
    assert_eq!(server.address6(CongestionControl::IntRate).to_string(), "fd00:3::7");
    let at_server = &plan.setup["server"];
    for line in [
        "addr add fd00:3:0::7/128 dev lo",
        "-6 rule add from fd00:3:0::7 table 207",
        // Room for a trace of 88 bytes; flows without telemetry have full-sized packets.
        "route add fd00:1:0::a/128 via fd00:2:0::1 dev u0 table 207 congctl lock int_rate mtu 1412",
        "route add fd00:1:0::a/128 via fd00:2:0::1 dev u0 table main congctl lock cubic\n",
    ] {
        assert!(at_server.contains(line), "{line}\n{at_server}");
    }
    let at_ue = &plan.setup["one"];
    let line = "route add fd00:3:0::7/128 via fd00:1:0::1 dev wifi table 101 congctl lock int_rate mtu 1412";
    assert!(at_ue.contains(line), "{at_ue}");
    let of = &plan.telemetry;
    assert_eq!(of.controllers.iter().collect::<Vec<_>>(), [&CongestionControl::IntRate]);
    assert_eq!(of.flows.iter().collect::<Vec<_>>(), ["a"]);
    let place = ("server".to_owned(), "u0".to_owned());
    assert_eq!(of.sources, [(place, SourcePlan { every: 16, nodes: 2 })].into());
    // The server's link fills traces, so it is emulated at any rate.
    let n6 = plan.links.iter().find(|l| l.name.is_none()).unwrap();
    assert_eq!((n6.link.down.ioam_node, n6.space.as_str()), (Some(1), "n6-0-0"));
}

#[test]
fn settings_global_to_the_kernel_must_agree() {
    let wrong = |text: &str| {
        let scenario = crate::scenario::parse(Path::new("t.toml"), text, &[]).unwrap();
        lay_out(&scenario.cases[0]).unwrap_err().to_string()
    };
    let second = |telemetry: &str| INT.replace("[flow.b]", &format!("[flow.b]\n{telemetry}"));
    let rate = "congestion_control = \"int_rate\"\n";
    assert!(wrong(&second(rate)).contains("the same traces"));
    assert!(wrong(&second(&format!("{rate}telemetry = {{ nodes = 2 }}"))).contains("the same `every`"));
    let ceiling = "telemetry = { every = 16, nodes = 2, ceiling_mbps = 5 }";
    assert!(wrong(&second(&format!("{rate}{ceiling}"))).contains("the same increment"));
    assert!(wrong(&INT.replace("nodes = 2", "nodes = 5")).contains("room for 4"));
}

/// A trace fits in the tunnel in both directions, and the source is attached where the data leaves.
#[test]
fn telemetry_goes_through_the_tunnel() {
    let text = INT.replace("via = \"direct:wifi\"", "via = \"atsss\"");
    let down = plan(&text);
    let one = &down.ues["one"];
    assert_eq!(one.inner6, "fd45:0::2");
    let at_server = &down.setup["server"];
    let pool = "route add fd45:0::/64 via fd00:2:0::1 dev u0 table";
    for line in [
        format!("{pool} 207 congctl lock int_rate mtu 1312"),
        format!("{pool} main congctl lock cubic mtu 1400"),
    ] {
        assert!(at_server.contains(&line), "{line}\n{at_server}");
    }
    let line = "route add fd00:3:0::7/128 dev anb0  congctl lock int_rate mtu 1312";
    assert!(one.tunnel_routes.contains(line), "{}", one.tunnel_routes);
    let place = |space: &str, interface: &str| (space.to_owned(), interface.to_owned());
    assert!(down.telemetry.sources.contains_key(&place("server", "u0")));
    let up = plan(&text.replacen("kind = \"bulk_tcp\"", "kind = \"bulk_tcp\"\ndirection = \"up\"", 1));
    assert!(up.telemetry.sources.contains_key(&place("one", "anb0")));

    let wide =
        crate::scenario::parse(Path::new("t.toml"), &text.replace("nodes = 2", "nodes = 3"), &[]).unwrap();
    let why = lay_out(&wide.cases[0]).unwrap_err().to_string();
    assert!(why.contains("the tunnel carries 1400 bytes") && why.contains("needs 1408; 2 fit"), "{why}");
}

#[test]
fn without_ipv6_there_are_no_routes_for_it() {
    let plan = plan(TWO);
    assert!(!plan.setup.values().any(|lines| lines.contains("-6 rule add from fd00:3")));
    assert!(plan.telemetry.controllers.is_empty() && plan.telemetry.sources.is_empty());
}
