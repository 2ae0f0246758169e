//! A hundred simultaneous downloads through the node, with the kernel's CUBIC and BBR.

use super::{World, steered};
use serde_json::Value;

/// Rate of each leg.
const LEG_MBPS: f64 = 30.0;
const SECONDS: f64 = 2.0;
const FLOWS: usize = 100;

/// Jain's fairness index, (Σx)² / nΣx²: 1 if all values are equal.
fn jain(x: &[f64]) -> f64 {
    let (sum, squares) = (x.iter().sum::<f64>(), x.iter().map(|x| x * x).sum::<f64>());
    sum * sum / (x.len() as f64 * squares).max(f64::MIN_POSITIVE)
}

/// Bytes received by each download.
fn downloads(world: &World, control: &str) -> Vec<f64> {
    let _server = world.server.spawn("iperf3", &["-s"], &world.file("iperf3.log"));
    world.until("iperf3 listens", || !world.server.sh("ss -Hltn 'sport = :5201'").is_empty());
    let ask = format!("timeout 60 iperf3 -J -R -P {FLOWS} -C {control} -c 10.9.0.1 -t {SECONDS}");
    let text = world.ue.sh(&ask);
    let report: Value = serde_json::from_str(&text).unwrap();
    let streams = report["end"]["streams"].as_array().unwrap_or_else(|| panic!("{text}"));
    streams.iter().map(|s| s["receiver"]["bytes"].as_f64().unwrap_or(0.0)).collect()
}

#[test]
fn a_hundred_flows_are_all_served() {
    let Some(world) = World::new("tun", 5) else { return };
    for leg in ["lte", "wifi"] {
        world.ran.sh(&format!(
            "ethtool -K {leg} tso off gso off gro off tx off >/dev/null
             tc qdisc add dev {leg} root tbf rate {LEG_MBPS}mbit burst 30k limit 1m"
        ));
    }
    let node = world.start(&[]);
    world.turn_back();
    for (control, dida) in [("cubic", false), ("cubic", true), ("bbr", false), ("bbr", true)] {
        world.put(&serde_json::json!({ "dida": dida }));
        let before = world.node();
        let bytes = downloads(&world, control);
        assert_eq!(bytes.len(), FLOWS);
        let now = world.node();
        let least = bytes.iter().copied().fold(f64::INFINITY, f64::min);
        let mbps = bytes.iter().sum::<f64>() * 8e-6 / SECONDS;
        let number =
            |node: &Value, what: &str| node[what].as_u64().unwrap_or_else(|| panic!("{what}: {node}"));
        let memory = number(&now, "memory_bytes");
        println!(
            "{control}, DIDA {dida}: {mbps:.1} Mbit/s, Jain's index {:.3}, least {:.0} kB, {} below 10 kB, \
             {} flows in {} kB, {} held",
            jain(&bytes),
            least / 1e3,
            bytes.iter().filter(|bytes| **bytes < 10e3).count(),
            number(&now, "flows"),
            memory / 1000,
            number(&now["acks"], "held") - number(&before["acks"], "held"),
        );
        // In two seconds an even share is 150 kB. A few flows may lose their first packets and wait for a
        // timer.
        assert!(bytes.iter().filter(|bytes| **bytes > 10e3).count() > FLOWS * 4 / 5, "{control}: {bytes:?}");
        assert!(jain(&bytes) > 0.3, "{control}: {bytes:?}");
        assert!(mbps > 0.3 * 2.0 * LEG_MBPS, "{control}: {mbps}");
        assert!(number(&now, "flows") >= FLOWS as u64, "{now}");
        assert!(memory < 4_000_000, "{now}");
        let [lte, wifi] = steered(&now);
        assert!((lte - wifi).abs() < 0.1 * wifi, "{lte} {wifi}");
    }
    world.until("nothing is left behind", || world.acks("holding") == 0);
    node.stop();
}
