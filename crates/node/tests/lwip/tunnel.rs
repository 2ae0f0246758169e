//! The Wi-Fi leg through an anabranch tunnel: packets keep the bearer's address, and the UE needs no
//! nftables.
//!
//! ```text
//!   server               ran                                                  ue
//!   n3 10.9.0.1 ┄┄┄┄┄┄┄ ran0 ─ lte 10.45.0.1 ──────────────────────────────── lte  10.45.0.2  default route
//!      (anabranch lwip)  far
//!               ┄┄┄┄┄┄┄ ran1 ─ anb0 (anabranch upf) ─ wlan 10.47.0.1 ──────── wlan 10.47.0.2 (anabranch ue) anb0 10.45.0.2
//! ```

use super::net::{ANABRANCH, Namespace};
use super::{World, steered};
use serde_json::Value;
use std::process::Command;

fn key(world: &World, name: &str) -> String {
    let made = Command::new(ANABRANCH).args(["keygen", "--out"]).arg(world.file(name)).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).unwrap().trim().to_owned()
}

fn get(world: &World, socket: &str, path: &str) -> Value {
    let mut command = Command::new("curl");
    command.args(["-s", "--max-time", "5", "--unix-socket"]).arg(world.file(socket));
    let output = command.arg(format!("http://localhost{path}")).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// Number of datagrams received by the UE's tunnel.
fn by_tunnel(world: &World) -> u64 {
    let status = get(world, "ue.sock", "/v1/status");
    status["workers"][0]["accesses"]["wifi"]["rx_datagrams"].as_u64().unwrap_or_else(|| panic!("{status}"))
}

fn configure(world: &World, far: &Namespace) {
    let folder = world.folder.path().display();
    let (upf_key, ue_key) = (key(world, "upf.key"), key(world, "ue.key"));
    let upf = format!(
        "[upf]\nprivate_key_file = \"{folder}/upf.key\"\nstate_file = \"{folder}/state.json\"\n[n6]\nmode = \"routed\"\nopen = [\"10.9.0.0/24\", \"fd09::/64\"]\n\
         [[access]]\nname = \"wifi\"\nlisten = \"10.47.0.1:4501\"\n[pool]\nv4 = \"10.45.0.0/24\"\nv6 = \"fd45::/64\"\n\
         [[ue]]\nname = \"phone\"\npublic_key = \"{ue_key}\"\naddress_v4 = \"10.45.0.2\"\naddress_v6 = \"fd45::2\"\n\
         [api]\nlisten = \"unix:{folder}/upf.sock\"\n"
    );
    let ue = format!(
        "[ue]\nname = \"phone\"\nprivate_key_file = \"{folder}/ue.key\"\n[upf]\npublic_key = \"{upf_key}\"\n\
         [[access]]\nname = \"wifi\"\ninterface = \"wlan\"\nremote = \"10.47.0.1:4501\"\n\
         [api]\nlisten = \"unix:{folder}/ue.sock\"\n"
    );
    let lwip = std::fs::read_to_string(world.file("lwip.toml")).unwrap();
    let wifi = format!(
        "[wifi]\nname = \"ran1\"\nnetns = \"{}\"\nroutes = [\"10.9.0.0/24\", \"fd09::/64\"]\n[node]\nwifi_leg = \"tunnel\"\n",
        far.path()
    );
    let lwip = lwip.replacen("[node]\n", &wifi, 1).replace("wifi = [\"10.46.0.2\", \"fd46::2\"]\n", "");
    for (file, text) in [("upf.toml", upf), ("ue.toml", ue), ("lwip.toml", lwip)] {
        std::fs::write(world.file(file), text).unwrap();
    }
}

#[test]
fn wifi_through_a_tunnel() {
    let Some(world) = World::new("tun", 5) else { return };
    let Some(far) = Namespace::new() else { return };
    far.sh("sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0
            sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0");
    far.veth("wlan", &world.ue, "wlan");
    far.sh("ip addr add 10.47.0.1/24 dev wlan");
    // The tunnel must carry packets as long as the bearer's.
    world.ue.sh("ip addr add 10.47.0.2/24 dev wlan; ip link set lte mtu 1400");
    configure(&world, &far);
    let before = [world.pictures(), vec![far.picture()]].concat();
    let config = |name: &str| world.file(name).display().to_string();
    let upf = far.spawn(ANABRANCH, &["upf", "--config", &config("upf.toml")], &world.file("upf.log"));
    world.until("the UPF runs", || upf.log().contains("upf runs"));
    let ue = world.ue.spawn(ANABRANCH, &["ue", "--config", &config("ue.toml")], &world.file("ue.log"));
    let up = |paths: &Value| paths["paths"].as_array().is_some_and(|p| p.iter().any(|p| p["up"] == true));
    world.until("the tunnel is up", || up(&get(&world, "ue.sock", "/v1/paths")));
    let node = world.start(&[]);
    for server in ["10.9.0.1", "fd09::1"] {
        world.ue.sh(&format!("ping -q -i 0.02 -c 5 -W 2 {server}"));
        let ([lte, wifi], tunnel) = (steered(&world.node()), by_tunnel(&world));
        let bps = world.download(server, 1);
        let (now, datagrams) = (steered(&world.node()), by_tunnel(&world) - tunnel);
        let (lte, wifi) = (now[0] - lte, now[1] - wifi);
        println!("{server}: {:.1} Mbit/s, {lte} and {wifi} packets, {datagrams} datagrams", bps / 1e6);
        assert!(bps > 2e6, "{server}: {bps}\n{}", world.log());
        assert!((lte - wifi).abs() <= 8.0 && wifi > 100.0, "{server}: {lte} {wifi}");
        // All of them, except for packets in flight or lost.
        assert!(datagrams as f64 > 0.9 * wifi, "{datagrams} of {wifi}");
    }
    // No translation is needed.
    assert!(!world.ue.sh("nft list ruleset").contains("anabranch_lwip"));
    node.stop();
    ue.stop();
    upf.stop();
    assert_eq!([world.pictures(), vec![far.picture()]].concat(), before);
}
