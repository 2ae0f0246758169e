//! The node in place of a gNB's N3 end: GTP-U from an independent UPF, LTE through `anabranch gnb`.
//!
//! ```text
//!   core                                    ran                                                   ue
//!   n6 10.8.0.1 ─ a small UPF ─ 10.9.0.1 ── 10.9.0.2 ═ GTP-U ═ anabranch lwip ┄ ran0
//!                                           cell (n3 of anabranch gnb) ┄┄┄┄┄ radio ┄┄┄┄┄┄┄┄┄┄┄ lte  10.45.0.2
//!                                           wifi 10.46.0.1 ────────────────────────────────── wifi 10.46.0.2
//! ```

use super::net::{ANABRANCH, Program};
use super::upf::Upf;
use super::{World, steered};
use serde_json::{Value, json};

const TEIDS: (u32, u32) = (102, 202);

fn gnb(world: &World) -> Program {
    let text = format!(
        "[n3]\nmode = \"ip\"\nname = \"cell\"\nroutes = [\"10.45.0.0/24\", \"fd45::/64\"]\n\
         [[device]]\nname = \"radio\"\nnetns = \"{}\"\naddresses = [\"10.45.0.2/24\", \"fd45::2/64\"]\n\
         routes = [\"0.0.0.0/0\", \"::/0\"]\n[api]\nlisten = \"unix:{}\"\n\
         [cell]\nradio = {{ rat = \"lte\", rbs = 25 }}\n[[cell.slices]]\nname = \"a\"\nshare_percent = 100\n\
         [[cell.ues]]\nname = \"phone\"\nslice = \"a\"\naddresses = [\"10.45.0.2\", \"fd45::2\"]\nbearer = {{}}\n\
         channel = {{ model = \"constant\", mcs = 28 }}\n",
        world.ue.path(),
        world.file("gnb.sock").display(),
    );
    std::fs::write(world.file("gnb.toml"), text).unwrap();
    let config = world.file("gnb.toml").display().to_string();
    let program = world.ran.spawn(ANABRANCH, &["gnb", "--config", &config], &world.file("gnb.log"));
    world.until("the gNB runs", || program.log().contains("gnb runs"));
    program
}

fn configure(world: &World) {
    let lwip = std::fs::read_to_string(world.file("lwip.toml")).unwrap();
    let from = lwip.find("[lte]").unwrap();
    let (down, up) = TEIDS;
    let gtpu = format!(
        "[gtpu]\npeer = \"10.9.0.1:2152\"\n[[gtpu.tunnels]]\nue = \"phone\"\nteid_downlink = {down}\n\
         teid_uplink = {up}\nqfi = 9\n"
    );
    let rest = lwip[from..].replace("\"10.9.0.0/24\", \"fd09::/64\"", "\"10.8.0.0/24\", \"fd08::/64\"");
    std::fs::write(world.file("lwip.toml"), gtpu + &rest).unwrap();
}

#[test]
fn packets_pass_from_a_upf_over_gtpu_through_a_cell() {
    let Some(world) = World::new("tun", 0) else { return };
    // The cell replaces the wire.
    world.ran.sh("ip link del lte");
    world.server.veth("n3", &world.ran, "n3");
    world.server.sh("ip addr add 10.9.0.1/24 dev n3");
    world.ran.sh("ip addr add 10.9.0.2/24 dev n3");
    world.ue.sh("ip route replace 10.46.0.0/24 dev wifi");
    configure(&world);
    let upf = Upf::start(&world.server, "10.9.0.2:2152", &[(2, TEIDS.0), (9, 999)]);
    let n6 = "ip addr add 10.8.0.1/24 dev n6; ip addr add fd08::1/64 dev n6 nodad; ip link set n6 up
              ip route add 10.45.0.0/24 dev n6; ip -6 route add fd45::/64 dev n6";
    world.server.sh(n6);
    let gnb = gnb(&world);
    let node = world.start(&[]);
    world.turn_back();
    assert!(upf.echo(), "an echo request is answered");
    for server in ["10.8.0.1", "fd08::1"] {
        let text = world.ue.sh(&format!("ping -q -i 0.02 -c 10 -W 2 {server}"));
        assert!(text.contains(" 0% packet loss"), "{text}\n{}", world.log());
        let [lte, wifi] = steered(&world.node());
        let bps = world.download(server, 2);
        let now = steered(&world.node());
        let (lte, wifi) = (now[0] - lte, now[1] - wifi);
        println!("{server}: {:.1} Mbit/s, {lte} and {wifi} packets", bps / 1e6);
        assert!(bps > 2e6, "{server}: {bps}\n{}", world.log());
        assert!((lte - wifi).abs() <= 8.0 && wifi > 100.0, "{server}: {lte} {wifi}");
    }
    assert_eq!(upf.uplink_teids(), [TEIDS.1]);
    // The LTE leg used the radio.
    let delivered = cell(&world)["bearers"][0]["downlink"]["delivered_bytes"].as_u64().unwrap();
    assert!(delivered > 500_000, "{delivered}");
    // Only the kernel's own packets on a new interface, such as MLD, were dropped.
    let dropped = drops(&world);
    assert!(dropped.as_object().unwrap().keys().all(|reason| reason == "unknown_source"), "{dropped}");
    // An unknown tunnel.
    world.server.try_sh("ping -q -c 1 -W 1 10.45.0.9");
    world.until("the other tunnel's packet is counted", || drops(&world)["unknown_tunnel"] == 1);
    world.until("its sender is told", || upf.unknown_teids() == [999]);
    let metrics = world.curl(&[], "/metrics");
    let line = "anabranch_lwip_dropped_packets_total{reason=\"unknown_tunnel\"} 1";
    assert!(metrics.contains(line), "{metrics}");
    // A new tunnel is in use from the next packet on.
    let text = std::fs::read_to_string(world.file("lwip.toml")).unwrap();
    std::fs::write(world.file("lwip.toml"), text.replace("teid_uplink = 202", "teid_uplink = 203")).unwrap();
    let done: Value = serde_json::from_str(&world.curl(&["-X", "POST"], "/v1/reload")).unwrap();
    assert_eq!((&done["changed"], &done["needs_restart"]), (&json!(["tunnels"]), &json!([])), "{done}");
    world.ue.sh("ping -q -i 0.02 -c 3 -W 2 10.8.0.1");
    assert_eq!(upf.uplink_teids(), [202, 203]);
    node.stop();
    gnb.stop();
    assert!(!world.log().contains("WARN") && !world.log().contains("ERROR"), "{}", world.log());
}

fn drops(world: &World) -> Value {
    let status: Value = serde_json::from_str(&world.curl(&[], "/v1/status")).unwrap_or_default();
    status["drops"].clone()
}

fn cell(world: &World) -> Value {
    let mut command = std::process::Command::new("curl");
    command.args(["-s", "--max-time", "5", "--unix-socket"]).arg(world.file("gnb.sock"));
    let output = command.arg("http://localhost/v1/ues/phone").output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}
