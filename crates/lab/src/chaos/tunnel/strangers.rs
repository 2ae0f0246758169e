//! Senders without keys: they observe, replay and modify datagrams, and create their own.

use super::draw::RandomStream;
use anabranch_atsss::crypto::{Initiator, PrivateKey, PublicKey, Suite};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::handshake::{Access, Hello};
use anabranch_wire::tunnel::{MessageType, classify};
use rand_core::RngCore;
use std::net::SocketAddr;

/// Number of datagrams recorded.
const RECORDED: usize = 64;
/// Minimum age of a replayed datagram. An attacker faster than the access could deliver a datagram from another source first
/// and so move a path until the next datagram; no tunnel with roaming can detect this.
const OLD: Duration = Duration::from_secs(1);
/// Length of the tag that proves an address under load, at the end of the first handshake message.
const SECOND_TAG: usize = 16;

/// A recorded datagram.
struct Recorded {
    at: Instant,
    up: bool,
    access: u8,
    from: SocketAddr,
    to: SocketAddr,
    payload: Vec<u8>,
}

/// A datagram sent by a stranger to a UPF or a UE.
pub struct Attack {
    /// Whether its destination is a UPF.
    pub up: bool,
    /// Index of the access.
    pub access: u8,
    /// Source address.
    pub from: SocketAddr,
    /// Destination address.
    pub to: SocketAddr,
    /// The datagram.
    pub payload: Vec<u8>,
    /// It must be ignored and counted.
    pub harmless: bool,
}

/// Senders without keys; see the module documentation.
pub struct Strangers {
    recorded: Vec<Recorded>,
    draw: RandomStream,
    inits: Vec<Vec<u8>>,
    streak: u16,
    seen: u64,
    /// Time of their next action.
    pub next: Instant,
}

impl Strangers {
    /// Strangers that have only the public key of a UPF.
    #[must_use]
    pub fn new(upf_key: &PublicKey, seed: u64) -> Self {
        let mut draw = RandomStream::new(seed, 400);
        let inits = (0..4).filter_map(|n| init(upf_key, n, &mut draw)).collect();
        Self { recorded: Vec::new(), draw, inits, streak: 0, seen: 0, next: Instant::from_millis(500) }
    }

    /// They observe a datagram.
    pub fn see(
        &mut self,
        up: bool,
        access: u8,
        from: SocketAddr,
        to: SocketAddr,
        payload: &[u8],
        at: Instant,
    ) {
        self.seen += 1;
        // Only a sample is recorded.
        if self.recorded.len() >= RECORDED && !self.draw.percent(10) {
            return;
        }
        let seen = Recorded { at, up, access, from, to, payload: payload.to_vec() };
        match self.recorded.len() {
            RECORDED => self.recorded[self.draw.below(RECORDED as u64) as usize] = seen,
            _ => self.recorded.push(seen),
        }
    }

    /// Their action now; `upf` is the address at which the UPF listens.
    pub fn turn(&mut self, upf: SocketAddr, now: Instant) -> Option<Attack> {
        self.streak = self.streak.saturating_sub(1);
        let pause_us = if self.streak > 0 { 100 } else { self.draw.between((500, 60_000)) };
        self.next = now + Duration::from_micros(pause_us);
        if self.streak == 0 && self.draw.percent(4) {
            self.streak = self.draw.between((10, 80)) as u16;
        }
        let anywhere = self.anywhere();
        if self.streak > 0 || self.draw.percent(25) {
            let which = self.draw.below(self.inits.len() as u64) as usize;
            let payload = self.inits.get(which)?.clone();
            return Some(Attack { up: true, access: 0, from: anywhere, to: upf, payload, harmless: true });
        }
        let noise = match self.recorded.len() {
            0 => None,
            n => self.recorded.get(self.draw.below(n as u64) as usize),
        };
        let noise = noise.filter(|seen| now >= seen.at + OLD);
        let Some(seen) = noise.filter(|_| self.draw.percent(70)) else {
            let len = self.draw.below(300) as usize;
            let mut payload = self.draw.bytes(len);
            if let Some(first) = payload.first_mut() {
                *first = (self.draw.below(16) << 4) as u8;
            }
            return Some(Attack { up: true, access: 0, from: anywhere, to: upf, payload, harmless: true });
        };
        let kind = classify(&seen.payload);
        let (up, access, to) = (seen.up, seen.access, seen.to);
        let spoofed = self.draw.percent(50);
        let from = if spoofed { seen.from } else { anywhere };
        let mut payload = seen.payload.clone();
        if self.draw.percent(50) {
            // A copy of plain data cannot be distinguished from the original if its source is the same.
            if spoofed && kind == Ok(MessageType::PlainData) {
                return None;
            }
            return Some(Attack { up, access, from, to, payload, harmless: false });
        }
        if kind == Ok(MessageType::PlainData) {
            // Modification in clear text cannot be detected.
            return None;
        }
        let len = payload.len();
        let at = self.draw.below(len as u64) as usize;
        if let Some(byte) = payload.get_mut(at) {
            *byte ^= 1 << self.draw.below(8);
        }
        if self.draw.percent(20) {
            payload.truncate(at);
        }
        // Without load, the second tag of the first handshake message, its last bytes, is not checked. With no other change, the
        // datagram is a copy of the original and valid if the UPF has not seen that or was instructed to forget it.
        let tag = kind == Ok(MessageType::Init) && payload.len() == len && at + SECOND_TAG >= len;
        // It may have become plain data, and is invalid as that.
        Some(Attack { up, access, from, to, payload, harmless: !tag })
    }

    fn anywhere(&mut self) -> SocketAddr {
        let ip = (self.draw.bits() as u32).to_be_bytes();
        SocketAddr::from(([11, ip[1], ip[2], ip[3]], 1_024 + self.draw.below(60_000) as u16))
    }
}

fn init(upf_key: &PublicKey, n: u64, draw: &mut RandomStream) -> Option<Vec<u8>> {
    let key = PrivateKey::generate(draw.rng());
    let hello = Hello {
        path: 0,
        accesses: vec![Access { path: 0, name: "5g".into() }],
        mtu: 1_400,
        resume: None,
        plain: 0,
        features: 0,
    };
    let (index, at) = (draw.rng().next_u32(), super::ends::epoch_ns(0) + n);
    Initiator::start(&key, upf_key, Suite::Aes256Gcm, index, at, &hello, None, draw.rng())
        .ok()
        .map(|(_, datagram)| datagram)
}
