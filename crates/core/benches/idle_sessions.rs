//! Memory per idle session: 100,000 UEs shake hands with one UPF over two accesses, probe both, and
//! fall silent; then the process is asked how much it has grown.
//!
//! `cargo bench -p anabranch-core --bench idle_sessions [-- SESSIONS]`

use anabranch_core::access::crypto::{PrivateKey, Suite};
use anabranch_core::access::session::{Addresses, Security, Session, SessionParams};
use anabranch_core::access::{DatagramSink, PacketSink, PathId};
use anabranch_core::time::{Duration, Instant};
use anabranch_core::ue::{Ue, UeAccess, UeConfig};
use anabranch_core::upf::{UeEntry, Upf, UpfAccess, UpfCommand, UpfConfig};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use std::net::{Ipv4Addr, SocketAddr};

#[derive(Default)]
struct Out(Vec<(PathId, Vec<u8>)>);

impl DatagramSink for Out {
    fn reserve(&mut self, path: PathId, _to: SocketAddr, len: usize) -> Option<&mut [u8]> {
        self.0.push((path, vec![0; len]));
        self.0.last_mut().map(|(_, bytes)| bytes.as_mut_slice())
    }
}

struct Nowhere;

impl PacketSink for Nowhere {
    fn deliver(&mut self, _packet: &mut [u8]) {}
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<usize>().ok()).unwrap_or(0) * 1024
}

fn main() {
    let sessions: u32 = std::env::args().filter_map(|a| a.parse().ok()).next().unwrap_or(100_000);
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let upf_key = PrivateKey::generate(&mut rng);
    let names = ["5g", "wifi"];
    let params = SessionParams::default();
    let mut upf = Upf::new(
        UpfConfig {
            private_key: upf_key.clone(),
            accesses: names
                .iter()
                .map(|n| UpfAccess { name: (*n).into(), security: Security::Secure, local: None })
                .collect(),
            rules: Vec::new(),
            params: params.clone(),
            shard: 0,
            shards: 1,
            max_sessions: sessions,
        },
        [3; 32],
        Instant::ZERO,
    )
    .expect("a valid configuration");
    let remote = SocketAddr::from(([192, 0, 2, 1], 4500));
    let mut now = Instant::ZERO;
    let (mut to_ue, mut to_upf) = (Out::default(), Out::default());
    let before = resident_bytes();
    for i in 0..sessions {
        now = Instant::from_millis(u64::from(i) * 5);
        let key = PrivateKey::generate(&mut rng);
        let entry = UeEntry {
            name: format!("ue{i}"),
            key: key.public(),
            addresses: Addresses { v4: Some(Ipv4Addr::from(0x0a2d_0000 + i)), v6: None },
            rules: Vec::new(),
            accept_rules: true,
        };
        upf.command(UpfCommand::AddUe(entry), now).expect("a free address");
        let access = |n: &&str| UeAccess {
            name: (*n).into(),
            remote,
            local: None,
            security: Security::Secure,
            max_payload: 1472,
        };
        let config = UeConfig {
            private_key: key,
            upf_key: upf_key.public(),
            suite: Suite::Aes256Gcm,
            accesses: names.iter().map(access).collect(),
            rules: Vec::new(),
            params: params.clone(),
            unix_epoch_ns: 1,
        };
        let mut seed = [0; 32];
        seed[..4].copy_from_slice(&i.to_be_bytes());
        let mut ue = Ue::new(config, seed, now).expect("a valid configuration");
        let from = |path: PathId| SocketAddr::from((Ipv4Addr::from(0x6440_0000 + i), 1000 + u16::from(path)));
        // Init, response, probes and their answers, configuration: a few turns settle it all.
        for turn in 0..6u64 {
            let now = now + Duration::from_micros(turn * 400);
            ue.poll(now, &mut to_upf, &mut Nowhere);
            for (path, mut bytes) in to_upf.0.drain(..) {
                upf.datagram(path, from(path), &mut bytes, now, &mut to_ue, &mut Nowhere);
            }
            upf.poll(now, &mut to_ue, &mut Nowhere);
            for (path, mut bytes) in to_ue.0.drain(..) {
                ue.datagram(path, remote, &mut bytes, now, &mut Nowhere);
            }
        }
        assert!(ue.is_connected(), "session {i}: {:?} {:?}", ue.drops(), upf.drops());
        while upf.poll_event().is_some() {}
        if i % 20_000 == 19_999 {
            eprintln!("  {} sessions", i + 1);
        }
    }
    let grown = resident_bytes().saturating_sub(before);
    println!("sessions          {}", upf.session_count());
    println!("resident growth   {} KiB", grown / 1024);
    println!("per idle session  {} bytes (limit 1024)", grown / upf.session_count().max(1));
    println!("of which Session  {} bytes", size_of::<Session>());
    println!("last now          {now}");
}
