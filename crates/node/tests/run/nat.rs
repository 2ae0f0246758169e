//! Both ends behind NAT: the UPF has another external port, and mappings of the UE's NAT expire.

use super::net::{Options, World};
use std::time::Duration;

/// The UE's endpoint on 5G, as the UPF sees it.
pub(super) fn endpoint(world: &World) -> String {
    let paths = world.get("upf", "/v1/paths");
    let paths = paths["paths"].as_array().cloned().unwrap_or_default();
    let of_5g = paths.iter().find(|path| path["access"] == "5g" && path["up"] == true);
    of_5g.and_then(|path| path["endpoint"].as_str()).unwrap_or_default().to_owned()
}

#[test]
fn a_session_is_established_and_lasts_behind_nat_at_both_ends() {
    for security_5g in ["secure", "plain"] {
        let Some(world) = World::new() else { return };
        world.configure(&Options { security_5g, ..Options::default() });
        let text = std::fs::read_to_string(world.file("ue.toml")).unwrap();
        std::fs::write(world.file("ue.toml"), text.replace("10.1.0.1:4500", "10.1.0.1:14500")).unwrap();
        world.ue.sh("nft 'table ip nat { chain post { type nat hook postrouting priority 100; oifname \"5g0\" masquerade random,fully-random; }; }
                          table ip cut { chain out { type filter hook output priority -300; }; }'
                     sysctl -qw net.netfilter.nf_conntrack_udp_timeout=2 net.netfilter.nf_conntrack_udp_timeout_stream=2");
        world.upf.sh("nft 'table ip nat { chain pre { type nat hook prerouting priority -100; iifname \"5g0\" udp dport 14500 redirect to :4500; }; }'");
        let upf = world.start_upf();
        let ue = world.start_ue();
        // Only 5G is left.
        world.ue.sh("ip link set wifi0 down");
        world.until("Wi-Fi is gone", || world.paths_up("upf") == 1);
        for round in 0..3 {
            let before = endpoint(&world);
            assert!(before.starts_with("10.1.0.2:"), "{before}\n{}", world.logs());
            world.ue.sh("nft add rule ip cut out oifname '\"5g0\"' udp dport 14500 drop; sleep 4; nft flush chain ip cut out");
            let took = world.until("5G is up, by another mapping", || {
                let now = endpoint(&world);
                !now.is_empty() && now != before && world.paths_up("ue") == 1
            });
            println!("{security_5g}, round {round}: {before} to {} in {took:?}", endpoint(&world));
            world.ue.sh("ping -q -i 0.05 -c 20 -w 3 192.0.2.2");
            // In the other direction, to a UE that has been idle for longer than its mapping would last
            // without probes.
            std::thread::sleep(Duration::from_secs(3));
            world.upf.sh("ping -q -i 0.05 -c 20 -w 3 10.45.0.2");
        }
        ue.stop();
        upf.stop();
        assert!(!world.logs().contains("panicked"), "{}", world.logs());
    }
}
