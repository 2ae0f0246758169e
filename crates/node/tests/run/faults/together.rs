//! Effects of others on a tunnel: unknown peers that flood the UPF, and a second UPF on the same machine.

use super::{Day, SERVER, new_connections};
use crate::Options;
use crate::live::{Flow, Live};
use crate::net::{ANABRANCH, Program, World};
use anabranch_atsss::crypto::{PrivateKey, PublicKey, Suite};
use anabranch_atsss::session::{Security, SessionParams};
use anabranch_atsss::ue::{Ue, UeAccess, UeConfig};
use anabranch_atsss::{DatagramSink, PacketSink, PathId};
use nix::sys::signal::Signal;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

#[derive(Default)]
struct Sent(Vec<Vec<u8>>);

impl DatagramSink for Sent {
    fn reserve(&mut self, _: PathId, _: SocketAddr, len: usize) -> Option<&mut [u8]> {
        self.0.push(vec![0; len]);
        self.0.last_mut().map(Vec::as_mut_slice)
    }

    fn withdraw(&mut self, _: PathId) {
        self.0.pop();
    }
}

struct Nowhere;

impl PacketSink for Nowhere {
    fn deliver(&mut self, _: &mut [u8]) {}
}

/// The UPF's address on Wi-Fi.
const UPF: &str = "[fd02::1]:4501";

/// First handshake messages with keys that are not configured.
fn first_words(upf: PublicKey, count: u8) -> Vec<Vec<u8>> {
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let mut sent = Sent::default();
    for number in 1..=count {
        let config = UeConfig {
            private_key: PrivateKey::from_bytes([number; 32]),
            upf_key: upf,
            suite: Suite::Aes256Gcm,
            accesses: vec![UeAccess {
                name: "wifi".into(),
                remote: UPF.parse().unwrap(),
                local: None,
                security: Security::Secure,
                max_payload: 1452,
            }],
            rules: Vec::new(),
            params: SessionParams::default(),
            unix_epoch_ns: unix.as_nanos() as u64,
            last_timestamp_ns: 0,
        };
        let now = anabranch_element::time::Instant::from_nanos(0);
        Ue::new(config, [number; 32], now).unwrap().poll(now, &mut sent, &mut Nowhere);
    }
    sent.0
}

/// Handshakes from a thousand networks, as many as one thread can send.
struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
}

impl Flood {
    fn start(world: &World) -> Self {
        world.upf.sh("ip -6 route add 2001:db8:f000::/36 via 2001:db8:6::2");
        world
            .server
            .sh("ip -6 route add local 2001:db8:f000::/36 dev lo; sysctl -qw net.ipv6.ip_nonlocal_bind=1");
        let words = first_words(world.upf_key(), 200);
        assert!(words.len() >= 200);
        let from =
            |number: u16| SocketAddr::from((Ipv6Addr::new(0x2001, 0xdb8, 0xf000, number, 0, 0, 0, 1), 0));
        let sockets: Vec<UdpSocket> = world
            .server
            .run(move || (0..1000).map(|number| UdpSocket::bind(from(number)).unwrap()).collect());
        let flood = Self { stop: Arc::default(), sent: Arc::default() };
        let (stop, sent) = (flood.stop.clone(), flood.sent.clone());
        let to: SocketAddr = UPF.parse().unwrap();
        std::thread::spawn(move || {
            for (socket, word) in sockets.iter().cycle().zip(words.iter().cycle()) {
                if stop.load(Relaxed) {
                    return;
                }
                sent.fetch_add(u64::from(socket.send_to(word, to).is_ok()), Relaxed);
                // Ten thousand per second, more than can be processed.
                if sent.load(Relaxed) % 50 == 0 {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
        flood
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// Sessions continue, a restarted UE gets a session within seconds, and no unknown peer gets one.
#[test]
fn a_flood_of_handshakes_from_many_networks_harms_no_session() {
    let Some(mut day) = Day::at_work() else { return };
    let traffic = Live::start(&day.world.ue, SERVER[0].parse().unwrap());
    let flood = Flood::start(&day.world);
    std::thread::sleep(Duration::from_secs(2));
    let flows = traffic.end();
    let name = "handshakes from 1,000 /64, 10,000 a second";
    Flow::judge(&flows, name, [500.0, 500.0], || day.world.logs());
    assert!(flows[1].lost * 100 <= flows[1].sent, "{flows:?}");
    let traffic = Live::start(&day.world.ue, SERVER[0].parse().unwrap());
    day.kill("ue");
    day.start("ue");
    day.is_back();
    new_connections(&day.world.ue, "in a flood");
    Flow::judge(&traffic.end(), "the same, UE killed", [6_000.0, 4_000.0], || day.world.logs());
    assert!(flood.sent.load(Relaxed) > 10_000, "{:?}", flood.sent);
    let sessions = day.world.get("upf", "/v1/status");
    assert_eq!(sessions["connected"], 1, "{sessions}");
    day.end();
}

/// Starts a second UPF on the machine, with its own configuration.
fn start_second(world: &World) -> Program {
    let text = std::fs::read_to_string(world.file("upf.toml")).unwrap();
    let text = text
        .replace("state.json", "second.json")
        .replace(":4500", ":4510")
        .replace(":4501", ":4511")
        .replace("[device]\n", "[device]\nname = \"anb1\"\nmark = 43900\n")
        .replace("10.45.", "10.46.")
        .replace("fd45:", "fd46:")
        .replace("upf.sock", "second.sock");
    std::fs::write(world.file("second.toml"), text).unwrap();
    let file = world.file("second.toml").display().to_string();
    let log = world.file("second.log");
    let _ = std::fs::remove_file(&log);
    let program = world.upf.spawn(ANABRANCH, &["upf", "--config", &file], &log);
    world.until("the second UPF runs", || program.log().contains("upf runs"));
    program
}

/// Both need forwarding, which was off before. A kill, restart or stop of one never takes it away from the
/// other, and the last one to stop restores the original value.
#[test]
fn two_upfs_on_a_machine_keep_forwarding_for_each_other() {
    let Some(mut day) = Day::new(&Options::default()) else { return };
    day.world.upf.sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0");
    let before = day.world.upf.picture();
    for first_ends_first in [true, false] {
        day.start("upf");
        day.start("ue");
        let mut second = start_second(&day.world);
        let traffic = Live::start(&day.world.ue, SERVER[0].parse().unwrap());
        second.signal(Signal::SIGKILL);
        second.wait_killed();
        new_connections(&day.world.ue, "the second one killed");
        start_second(&day.world).stop();
        new_connections(&day.world.ue, "the second one stopped");
        let name = "a second UPF on the machine killed, started, stopped";
        Flow::judge(&traffic.end(), name, [500.0, 500.0], || day.world.logs());
        day.ue.take().into_iter().for_each(Program::stop);
        let upf = day.upf.take().unwrap();
        if first_ends_first {
            let second = start_second(&day.world);
            upf.stop();
            assert_ne!(day.world.upf.picture(), before);
            second.stop();
        } else {
            start_second(&day.world).stop();
            upf.stop();
        }
        assert_eq!(day.world.upf.picture(), before);
    }
}
