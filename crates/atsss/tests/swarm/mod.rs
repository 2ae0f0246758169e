//! One UPF and many UEs, connected without delay or loss, for tests and benchmarks of a UPF with many
//! sessions. Nothing here allocates while packets pass, so only allocations of the tunnel ends are counted.

#![allow(dead_code, reason = "each user needs another part")]

use anabranch_atsss::crypto::{PrivateKey, PublicKey, Suite};
use anabranch_atsss::fast::FastFlow;
use anabranch_atsss::session::{Addresses, Security, SessionParams};
use anabranch_atsss::ue::{Ue, UeAccess, UeConfig};
use anabranch_atsss::upf::{UeEntry, Upf, UpfAccess, UpfCommand, UpfConfig};
use anabranch_atsss::{DatagramSink, PacketSink, PathId};
use anabranch_element::time::{Duration, Instant};
use anabranch_steer::Rule;
use anabranch_wire::ip::{self, FlowKey};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

pub const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);
pub const REMOTE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 4500);
pub const NAMES: [&str; 2] = ["5g", "wifi"];

/// Datagrams in flight, in memory of a fixed size.
pub struct Wire {
    bytes: Box<[u8]>,
    used: usize,
    frames: Vec<(PathId, SocketAddr, usize, usize)>,
    /// Longer datagrams are lost.
    pub carries: usize,
    /// Flows handed over and taken back, in order, with the number of datagrams in flight at that time.
    pub fast: Vec<(usize, Fast)>,
}

/// Calls of a session to the faster data path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fast {
    Given(FastFlow),
    TakenBack(Option<FlowKey>),
}

impl Wire {
    pub fn new(bytes: usize, frames: usize) -> Self {
        let (bytes, frames) = (vec![0; bytes].into(), Vec::with_capacity(frames));
        Self { bytes, used: 0, frames, carries: usize::MAX, fast: Vec::new() }
    }

    pub fn clear(&mut self) {
        self.used = 0;
        self.frames.clear();
    }

    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Passes every datagram to `take`, with its path and destination, and removes it.
    pub fn drain(&mut self, mut take: impl FnMut(PathId, SocketAddr, &mut [u8])) {
        for i in 0..self.frames.len() {
            let (path, to, at, len) = self.frames[i];
            if len > self.carries {
                continue;
            }
            take(path, to, &mut self.bytes[at..at + len]);
        }
        self.clear();
    }
}

impl DatagramSink for Wire {
    fn reserve(&mut self, path: PathId, to: SocketAddr, len: usize) -> Option<&mut [u8]> {
        if self.used + len > self.bytes.len() || self.frames.len() == self.frames.capacity() {
            return None;
        }
        self.frames.push((path, to, self.used, len));
        self.used += len;
        self.bytes.get_mut(self.used - len..self.used)
    }

    fn withdraw(&mut self, _: PathId) {
        self.used -= self.frames.pop().map_or(0, |(_, _, _, len)| len);
    }

    fn offload(&mut self, flow: &FastFlow, _: Instant) {
        self.fast.push((self.frames.len(), Fast::Given(*flow)));
    }

    fn revoke(&mut self, _: Addresses, flow: Option<&FlowKey>) {
        self.fast.push((self.frames.len(), Fast::TakenBack(flow.copied())));
    }
}

/// Counts packets and drops them.
#[derive(Default)]
pub struct Count(pub usize);

impl PacketSink for Count {
    fn deliver(&mut self, _packet: &mut [u8]) {
        self.0 += 1;
    }
}

/// See the top of this file.
pub struct Swarm {
    pub now: Instant,
    pub upf: Upf,
    pub ues: Vec<Option<Box<Ue>>>,
    pub keys: Vec<PublicKey>,
    /// Inner packets delivered at the UEs.
    pub at_ues: Count,
    pub at_upf: Count,
    pub to_upf: Wire,
    pub to_ue: Wire,
    /// Memory allocated by the UPF and not freed, as measured by `meter`.
    pub upf_bytes: isize,
    meter: fn() -> isize,
    upf_key: PublicKey,
    /// Parameters of UEs that connect from now on.
    pub params: SessionParams,
    rng: ChaCha20Rng,
}

pub fn virtual_ip(i: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a2d_0000 + i)
}

/// Source address of a UE's datagrams.
pub fn from(i: u32, path: PathId) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from(0x6440_0000 + i), 1000 + u16::from(path)))
}

impl Swarm {
    /// A UPF for up to `sessions`, with plain accesses if flows use a faster data path. `meter` returns the bytes
    /// allocated by the whole process.
    pub fn new(sessions: u32, rules: Vec<Rule>, params: SessionParams, meter: fn() -> isize) -> Self {
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let upf_key = PrivateKey::generate(&mut rng);
        let security = if params.fast_path { Security::Plain } else { Security::Secure };
        let access = |n: &&str| UpfAccess { name: (*n).into(), security, local: None };
        let config = UpfConfig {
            private_key: upf_key.clone(),
            accesses: NAMES.iter().map(access).collect(),
            rules,
            params: params.clone(),
            shard: 0,
            shards: 1,
            max_sessions: sessions,
            unix_epoch_ns: 1,
        };
        let before = meter();
        let upf = Upf::new(config, [3; 32], Instant::ZERO).expect("a valid configuration");
        Self {
            now: Instant::ZERO,
            upf,
            ues: Vec::new(),
            keys: Vec::new(),
            at_ues: Count::default(),
            at_upf: Count::default(),
            to_upf: Wire::new(1 << 20, 4096),
            to_ue: Wire::new(1 << 20, 4096),
            upf_bytes: meter() - before,
            meter,
            upf_key: upf_key.public(),
            params,
            rng,
        }
    }

    /// Adds one more UE to the UPF; the UE performs a handshake and measures both paths. Takes 1.7 ms, so that
    /// the limit on handshakes is kept.
    pub fn connect(&mut self) -> u32 {
        let i = self.ues.len() as u32;
        let key = PrivateKey::generate(&mut self.rng);
        let entry = UeEntry {
            name: format!("ue{i}"),
            key: key.public(),
            addresses: Addresses { v4: Some(virtual_ip(i)), v6: None },
            rules: Vec::new(),
            accept_rules: true,
        };
        self.keys.push(entry.key);
        let (before, now) = ((self.meter)(), self.now);
        self.upf.command(UpfCommand::AddUe(entry), now).expect("a free address");
        self.upf_bytes += (self.meter)() - before;
        let access = |n: &&str| UeAccess {
            name: (*n).into(),
            remote: REMOTE,
            local: None,
            security: if self.params.fast_path { Security::Plain } else { Security::Secure },
            max_payload: 1472,
        };
        let config = UeConfig {
            private_key: key,
            upf_key: self.upf_key,
            suite: Suite::Aes256Gcm,
            accesses: NAMES.iter().map(access).collect(),
            rules: Vec::new(),
            params: self.params.clone(),
            unix_epoch_ns: 1,
            last_timestamp_ns: 0,
        };
        let mut seed = [0; 32];
        seed[..4].copy_from_slice(&i.to_be_bytes());
        let ue = Ue::new(config, seed, self.now).expect("a valid configuration");
        self.ues.push(Some(Box::new(ue)));
        // Init, perhaps a cookie, response, probes and their answers, rules and path MTU.
        for _ in 0..10 {
            self.settle(i);
            self.now += Duration::from_micros(170);
        }
        let ue = self.ues[i as usize].as_ref().expect("just made");
        assert!(ue.is_connected(), "session {i}: {:?} {:?}", ue.drops(), self.upf.drops());
        assert_eq!(ue.paths().iter().filter(|p| p.up).count(), 2);
        i
    }

    /// Attributes the allocations of `call` to the UPF.
    pub fn upf<R>(&mut self, call: impl FnOnce(&mut Self) -> R) -> R {
        let before = (self.meter)();
        let result = call(self);
        self.upf_bytes += (self.meter)() - before;
        result
    }

    /// Exchanges the datagrams of one UE and the UPF until both are silent.
    pub fn settle(&mut self, i: u32) {
        for _ in 0..8 {
            let Some(ue) = self.ues[i as usize].as_mut() else { return };
            ue.poll(self.now, &mut self.to_upf, &mut self.at_ues);
            let quiet = self.to_upf.len() == 0;
            self.pump(i);
            if quiet {
                break;
            }
        }
    }

    /// Delivers the datagrams in flight to the UPF, and its answers to the UE.
    fn pump(&mut self, i: u32) {
        let before = (self.meter)();
        let (upf, now) = (&mut self.upf, self.now);
        let (to_ue, at_upf) = (&mut self.to_ue, &mut self.at_upf);
        self.to_upf.drain(|path, _, bytes| {
            upf.datagram(path, from(i, path), bytes, now, to_ue, at_upf);
        });
        upf.poll(now, to_ue, at_upf);
        while upf.poll_event().is_some() {}
        self.upf_bytes += (self.meter)() - before;
        self.deliver();
    }

    /// Delivers the datagrams in flight to the UEs.
    pub fn deliver(&mut self) {
        let (ues, at_ues, now) = (&mut self.ues, &mut self.at_ues, self.now);
        self.to_ue.drain(|path, to, bytes| {
            let IpAddr::V4(address) = to.ip() else { return };
            let i = address.to_bits() - 0x6440_0000;
            if let Some(ue) = ues.get_mut(i as usize).and_then(Option::as_mut) {
                ue.datagram(path, REMOTE, bytes, now, at_ues);
            }
        });
    }

    /// Sends one UDP packet in each direction in each of `flows` flows.
    pub fn talk(&mut self, i: u32, flows: u16) {
        for port in 0..flows {
            let (device, server) = (SocketAddr::from((virtual_ip(i), 5000 + port)), (SERVER, 9).into());
            let mut packet = ip::udp_datagram(device, server, &[0; 100]).expect("same family");
            if let Some(ue) = self.ues[i as usize].as_mut() {
                ue.uplink(&mut packet, self.now, &mut self.to_upf);
            }
            self.pump(i);
            let mut packet = ip::udp_datagram(server, device, &[0; 100]).expect("same family");
            let now = self.now;
            self.upf(|s| s.upf.downlink(&mut packet, now, &mut s.to_ue));
            self.pump(i);
        }
    }

    /// Lets time pass in steps, and serves all timers.
    pub fn pass(&mut self, time: Duration, step: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += step;
            for i in 0..self.ues.len() as u32 {
                let due = self.ues[i as usize].as_ref().and_then(|ue| ue.poll_timeout());
                if due.is_some_and(|(at, _)| at <= self.now) {
                    self.settle(i);
                }
            }
            let now = self.now;
            self.upf(|s| s.upf.poll(now, &mut s.to_ue, &mut s.at_upf));
            self.deliver();
            while self.upf.poll_event().is_some() {}
        }
    }
}
