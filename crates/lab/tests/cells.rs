//! Cells in the virtual network: alone, and as the 5G access of a session.

use anabranch_lab::backend::{Backend, Outcome, Quiet};
use anabranch_lab::scenario::{Scenario, parse};
use anabranch_lab::virtual_backend::VirtualBackend;
use std::path::Path;

fn run(text: &str, seed: u64) -> Outcome {
    let scenario: Scenario = parse(Path::new("cell.toml"), text, &[]).unwrap();
    VirtualBackend.run(&scenario.cases[0], seed, &Quiet).unwrap()
}

const CELL: &str = r#"
title = "a cell"
duration_s = 8
measure_from_s = 2
[gnb.cell]
queue = "e5g_bdp"
qos = [{ qfi = 1, priority = 20, filter = { protocol = "udp" } }, { qfi = 9 }]
"#;

#[test]
fn a_cell_alone_carries_tcp_and_its_answers() {
    let text = format!(
        "{CELL}{}",
        r#"
[ue.phone]
accesses = [{ name = "5g", link = "cell" }]
[flow.bulk]
kind = "bulk_tcp"
via = "direct:5g"
[flow.call]
kind = "cbr"
via = "direct:5g"
rate_mbps = 0.0687725
packet_bytes = 172
start_jitter_ms = 20
"#
    );
    let outcome = run(&text, 1);
    let of = |name: &str| outcome.metrics[name];
    assert!(of("flow.bulk.intact") == 1.0 && of("flow.call.lost_packets") == 0.0);
    // 25 RBs at MCS 28 are 18.3 Mbit/s of transport blocks.
    assert!((16.5..17.8).contains(&of("flow.bulk.goodput_mbps")), "{}", of("flow.bulk.goodput_mbps"));
    assert!(of("gnb.cell.rb_percent") > 98.0);
    assert!(of("gnb.cell.ue.phone.qfi1.wait_mean_ms") < 2.0);
    assert!(of("gnb.cell.ue.phone.qfi9.wait_mean_ms") > 5.0, "the bulk waits in SDAP instead");
    assert_eq!(run(&text, 1).metrics, outcome.metrics, "the same seed twice");
    let other = run(&text, 2).metrics["gnb.cell.ue.phone.qfi1.wait_mean_ms"];
    assert!(other != of("gnb.cell.ue.phone.qfi1.wait_mean_ms"), "another seed is another phase");
}

#[test]
fn a_cell_is_the_5g_access_of_a_session() {
    let text = format!(
        "{CELL}{}",
        r#"
[link.wifi]
down = { rate_mbps = 20 }
[ue.phone]
accesses = [{ name = "wifi", link = "wifi" }, { name = "5g", link = "cell", security = "plain" }]
rules = [{ name = "all", steering = { mode = "load-balance", autonomous = true } }]
[flow.film]
kind = "bulk_tcp"
[[event]]
kind = "link_down"
at_s = 6
link = "wifi"
"#
    );
    let outcome = run(&text, 1);
    let of = |name: &str| outcome.metrics[name];
    assert_eq!(of("flow.film.intact"), 1.0);
    assert!(of("ue.phone.path.5g.down_bytes") > 5e6, "{}", of("ue.phone.path.5g.down_bytes"));
    assert!(of("ue.phone.path.wifi.down_bytes") > 2e6);
    assert!(of("flow.film.outage_ms") < 1500.0, "the cell goes on when the Wi-Fi is lost");
}

#[test]
fn shares_change_while_it_runs() {
    let text = format!(
        "{CELL}{}",
        r#"
scheduler = "eqp_exact"
slices = [{ name = "a", share_percent = 25 }, { name = "b", share_percent = 75 }]
[gnb.cell.ue.two]
slice = "b"
[ue.one]
accesses = [{ name = "5g", link = "cell" }]
[ue.two]
accesses = [{ name = "5g", link = "cell" }]
[flow.one]
kind = "bulk_tcp"
ue = "one"
via = "direct:5g"
[flow.two]
kind = "bulk_tcp"
ue = "two"
via = "direct:5g"
[[event]]
kind = "share"
at_s = 5
slice = "b"
share_percent = 25
"#
    );
    let outcome = run(&text, 1);
    let mean = |flow: &str, from: f64, to: f64| {
        let points = &outcome.series[&format!("flow.{flow}.goodput_mbps")].points;
        let within: Vec<f64> =
            points.iter().filter(|(t, _)| (from..to).contains(t)).map(|(_, v)| *v).collect();
        within.iter().sum::<f64>() / within.len() as f64
    };
    let before = mean("one", 2.0, 5.0) / mean("two", 2.0, 5.0);
    let after = mean("one", 6.0, 8.0) / mean("two", 6.0, 8.0);
    assert!((0.2..0.5).contains(&before), "1 : 3, {before}");
    assert!((0.7..1.4).contains(&after), "1 : 1, {after}");
    assert!(!outcome.series["gnb.cell.slice.a.owed_rbs"].points.is_empty());
}

/// Device, tunnel, UPF, server's link; or, without tunnel, cell and server's link: who wrote into the traces of an upload.
#[test]
fn tunnel_ends_cells_and_links_write_into_traces() {
    let text = r#"
title = "traces"
duration_s = 4
[gnb.cell]
ioam_node = 3
[upf.edge]
ioam_node = 2
[server.one]
ioam_node = 4
[ue.phone]
accesses = [{ name = "5g", link = "cell" }]
ioam_node = 1
[flow.up]
kind = "bulk_tcp"
direction = "up"
ipv6 = true
congestion_control = "int_rate"
limit_mbps = 2
start_s = 1
telemetry = { every = 4, nodes = 4 }
"#;
    for (via, nodes) in [("atsss", 3.0), ("direct:5g", 2.0)] {
        for direction in ["up", "down"] {
            let text =
                text.replace("direction = \"up\"", &format!("direction = \"{direction}\"\nvia = \"{via}\""));
            let outcome = run(&text, 1);
            let of = |name: &str| outcome.metrics[&format!("flow.up.{name}")];
            assert_eq!(of("trace_nodes"), nodes, "{via} {direction}");
            assert!(of("traces") > 50.0 && of("reports") > 50.0, "{via} {direction}");
            assert!(of("goodput_mbps") > 1.4 && of("intact") == 1.0, "{via} {direction}");
        }
    }
}
