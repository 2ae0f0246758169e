//! Senders without keys: they see datagrams, send them again, change them, and make their own.

use super::draw::Draw;
use anabranch_atsss::crypto::{Initiator, PrivateKey, PublicKey, Suite};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::handshake::{Access, Hello};
use anabranch_wire::tunnel::{MessageType, classify};
use rand_core::RngCore;
use std::net::SocketAddr;

/// Datagrams they have recorded.
const RECORDED: usize = 64;
/// Before that what they have recorded is not sent again. Who is faster than the access itself can have a datagram arrive
/// from elsewhere first, and so move a path until the next one comes: no tunnel that roams can tell.
const OLD: Duration = Duration::from_secs(1);
/// Bytes of the tag that an address under load must show, at the end of a handshake's first message.
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

/// What they send: towards a UPF, or a UE; from where, to where.
pub struct Attack {
    /// Whether it is for a UPF.
    pub up: bool,
    /// By which access.
    pub access: u8,
    /// The source that it shows.
    pub from: SocketAddr,
    /// Where it goes.
    pub to: SocketAddr,
    /// The datagram.
    pub payload: Vec<u8>,
    /// Nobody may take notice of it, and somebody has to count it.
    pub harmless: bool,
}

/// See the top of this file.
pub struct Strangers {
    recorded: Vec<Recorded>,
    draw: Draw,
    inits: Vec<Vec<u8>>,
    streak: u16,
    seen: u64,
    /// When they do something next.
    pub next: Instant,
}

impl Strangers {
    /// They know the public key of a UPF, and nothing else.
    #[must_use]
    pub fn new(upf_key: &PublicKey, seed: u64) -> Self {
        let mut draw = Draw::new(seed, 400);
        let inits = (0..4).filter_map(|n| init(upf_key, n, &mut draw)).collect();
        Self { recorded: Vec::new(), draw, inits, streak: 0, seen: 0, next: Instant::from_millis(500) }
    }

    /// They see a datagram go by.
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
        // Some of all.
        if self.recorded.len() >= RECORDED && !self.draw.percent(10) {
            return;
        }
        let seen = Recorded { at, up, access, from, to, payload: payload.to_vec() };
        match self.recorded.len() {
            RECORDED => self.recorded[self.draw.below(RECORDED as u64) as usize] = seen,
            _ => self.recorded.push(seen),
        }
    }

    /// What they do now; `upf` is where it listens.
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
            // A copy of plain data is not to be told from it where it seems to come from the same place.
            if spoofed && kind == Ok(MessageType::PlainData) {
                return None;
            }
            return Some(Attack { up, access, from, to, payload, harmless: false });
        }
        if kind == Ok(MessageType::PlainData) {
            // Nobody can tell what was changed in the clear.
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
        // Without load nobody looks at the second tag of a handshake's beginning, its last bytes: where nothing else was changed,
        // it is a copy of the true one, and counts where the UPF has not seen that or was told to forget it.
        let tag = kind == Ok(MessageType::Init) && payload.len() == len && at + SECOND_TAG >= len;
        // It may have become plain data, and means nothing as that.
        Some(Attack { up, access, from, to, payload, harmless: !tag })
    }

    fn anywhere(&mut self) -> SocketAddr {
        let ip = (self.draw.bits() as u32).to_be_bytes();
        SocketAddr::from(([11, ip[1], ip[2], ip[3]], 1_024 + self.draw.below(60_000) as u16))
    }
}

fn init(upf_key: &PublicKey, n: u64, draw: &mut Draw) -> Option<Vec<u8>> {
    let key = PrivateKey::generate(draw.rng());
    let hello = Hello {
        path: 0,
        accesses: vec![Access { path: 0, name: "5g".into() }],
        mtu: 1_400,
        resume: None,
        plain: 0,
    };
    let (index, at) = (draw.rng().next_u32(), super::ends::epoch_ns(0) + n);
    Initiator::start(&key, upf_key, Suite::Aes256Gcm, index, at, &hello, None, draw.rng())
        .ok()
        .map(|(_, datagram)| datagram)
}
