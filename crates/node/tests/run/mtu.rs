//! A path with a smaller MTU than its interfaces have, and packets larger than the tunnel's MTU, with the
//! kernel at both ends.

use crate::iperf;
use crate::net::{Options, World};

const ALL_ON_5G: &str =
    "[[rule]]\nname = \"all\"\nsteering = { mode = \"active-standby\", primary = \"5g\" }\n";

/// Drops packets of more than 1200 bytes on 5G in both directions from now on.
fn make_hole(world: &World) {
    for ns in [&world.ue, &world.upf] {
        // Without offload, so that the rule sees the packets of the link.
        ns.sh("ethtool -K 5g0 gro off gso off tso off tx-udp-segmentation off >/dev/null
               nft add table inet hole
               nft add chain inet hole in '{ type filter hook prerouting priority -300; }'
               nft add rule inet hole in iifname '\"5g0\"' meta length gt 1200 drop");
    }
}

/// A counter of path 0, 5G.
fn counter(world: &World, part: &str, name: &str) -> u64 {
    world.get(part, "/v1/paths")["paths"][0][name].as_u64().unwrap()
}

#[test]
fn packets_larger_than_the_path_mtu_are_fragmented_and_arrive() {
    for security_5g in ["secure", "plain"] {
        let Some(world) = World::new() else { return };
        world.configure(&Options { security_5g, ue_rules: ALL_ON_5G, ..Options::default() });
        make_hole(&world);
        let upf = world.start_upf();
        let ue = world.start_ue();
        for part in ["ue", "upf"] {
            world.until("the MTU is found", || (1164..=1172).contains(&counter(&world, part, "mtu_bytes")));
        }
        // The tunnel's MTU is unchanged: packets of 1400 bytes (IPv6: 1280) pass without inner fragmentation.
        let text = world.ue.sh("ip link show anb0; ping -q -M do -i 0.01 -c 50 -W 2 -s 1372 192.0.2.2
                                ping -q -M do -i 0.01 -c 50 -W 2 -s 1232 2001:db8:6::2
                                ping -q -M do -i 0.01 -c 50 -W 2 -s 1352 2001:db8:6::2");
        assert!(text.contains("mtu 1400"), "{text}");
        assert_eq!(text.matches(" 0% packet loss").count(), 3, "{text}\n{}", world.logs());
        for part in ["ue", "upf"] {
            assert!(counter(&world, part, "tx_fragments") >= 300, "{}", world.get(part, "/v1/paths"));
        }
        // TCP gets the segment size of the wider path, so segments are fragmented on the other.
        for to in ["-c 192.0.2.2", "-c 192.0.2.2 -R", "-c 2001:db8:6::2"] {
            let bps = iperf(&world, &format!("{to} -t 1"));
            println!("{security_5g} {to}: {:.0} Mbit/s", bps / 1e6);
            assert!(bps > 10e6, "{to}: {bps}\n{}", world.logs());
        }
        ue.stop();
        upf.stop();
    }
}

#[test]
fn senders_of_too_large_packets_get_an_error() {
    let Some(world) = World::new() else { return };
    world.configure(&Options { ue_rules: ALL_ON_5G, ..Options::default() });
    let upf = world.start_upf();
    let ue = world.start_ue();
    world.ue.sh("ping -q -c 2 -i 0.05 192.0.2.2; ping -q -c 2 -i 0.05 2001:db8:6::2");
    // The kernels assume a larger MTU and use strict reverse-path filters.
    for ns in [&world.ue, &world.upf] {
        ns.sh("ip link set anb0 mtu 1500; sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.anb0.rp_filter=1
               sysctl -qw net.ipv4.conf.all.log_martians=1");
    }
    for (to, bytes, says) in [
        ("192.0.2.2", 1450, "mtu = 1400"),
        ("2001:db8:6::2", 1430, "mtu=1400"),
        ("2001:db8:6::2", 1400, "mtu=1400"),
    ] {
        let (text, arrived) = world.ue.try_sh(&format!("ping -M do -c 2 -i 0.2 -W 1 -s {bytes} {to}"));
        assert!(!arrived && (text.contains(says) || text.contains("mtu: 1400")), "{text}\n{}", world.logs());
    }
    let text = world.ue.sh("ip route get 192.0.2.2; ip -6 route get 2001:db8:6::2");
    assert_eq!(text.matches("mtu 1400").count(), 2, "{text}");
    // The same in the downlink: an application at the server gets the error through the UPF's address
    // translation.
    let server = "import socket,sys,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(('192.0.2.2',9000)); s.settimeout(10)
s.setsockopt(socket.IPPROTO_IP,10,2)
_,peer=s.recvfrom(2048)
s.connect(peer); s.send(bytes(1450)); time.sleep(0.5)
try: s.send(bytes(1450)); print('sent')
except OSError as e: print('errno',e.errno,'mtu',s.getsockopt(socket.IPPROTO_IP,14))";
    let mut server = world.server.spawn("python3", &["-c", server], &world.file("server.log"));
    std::thread::sleep(std::time::Duration::from_millis(500));
    world.ue.sh("python3 -c \"import socket; socket.socket(2,2).sendto(b'x',('192.0.2.2',9000))\"");
    assert_eq!(server.wait(std::time::Duration::from_secs(15)), 0);
    assert!(server.log().contains("errno 90 mtu 1400"), "{}\n{}", server.log(), world.logs());
    ue.stop();
    upf.stop();
}
