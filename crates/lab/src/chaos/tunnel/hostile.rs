//! A UE with valid keys that violates the protocol: its sealed messages are opened and then processed.

use super::draw::RandomStream;
use super::ends::{SERVER, epoch_ns, inner};
use super::ledger::{self, FOREIGN, Kind, Label};
use anabranch_atsss::crypto::{Initiator, PrivateKey, PublicKey, Suite};
use anabranch_atsss::keyring::{Epoch, KeyRing};
use anabranch_atsss::session::Addresses;
use anabranch_atsss::upf::UeEntry;
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::control::{
    CapacityAck, CapacityProbe, Close, Config, Control, MtuProbe, Notify, PathCounters, Probe, ProbeKind,
};
use anabranch_wire::handshake::{Access, Hello};
use anabranch_wire::tunnel::{
    DeliveryOrder, Fragment, InnerHeader, SECURE_OVERHEAD, SecureHeader, StreamWord, TAG_LEN,
};
use rand_core::RngCore;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Its index for addresses.
const NUMBER: usize = 40;
/// Number of its own datagrams that it records.
const RECORDED: usize = 64;
/// Number of streams for which it makes the UPF wait at once; a worker has 127 queues.
const RAID: u8 = 160;

/// A hostile UE; see the module documentation.
pub struct Hostile {
    key: PrivateKey,
    upf_key: PublicKey,
    ring: KeyRing,
    waiting: Option<(Initiator, u32)>,
    recorded: Vec<Vec<u8>>,
    draw: RandomStream,
    raids: RandomStream,
    number: u64,
    last_ns: u64,
    streak: u8,
    /// Time of its next action.
    pub next: Instant,
}

/// A datagram it sends: access, source, payload.
pub type Attack = (u8, SocketAddr, Vec<u8>);

impl Hostile {
    /// A hostile UE that is configured at the UPF with this key.
    #[must_use]
    pub fn new(upf_key: PublicKey, seed: u64) -> Self {
        let mut draw = RandomStream::new(seed, 300);
        Self {
            key: PrivateKey::generate(draw.rng()),
            upf_key,
            ring: KeyRing::default(),
            waiting: None,
            recorded: Vec::new(),
            number: FOREIGN,
            last_ns: 0,
            streak: 0,
            next: Instant::from_secs(1),
            raids: RandomStream::new(seed, 301),
            draw,
        }
    }

    /// Its entry at the UPF.
    #[must_use]
    pub fn entry(&self) -> UeEntry {
        let addresses = inner(NUMBER);
        UeEntry {
            name: "hostile".into(),
            key: self.key.public(),
            addresses,
            rules: Vec::new(),
            accept_rules: true,
        }
    }

    /// Its virtual addresses.
    #[must_use]
    pub fn own() -> [IpAddr; 2] {
        let addresses = inner(NUMBER);
        [
            addresses.v4.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V4),
            addresses.v6.map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V6),
        ]
    }

    /// Its address on an access.
    #[must_use]
    pub fn home(access: u8) -> SocketAddr {
        SocketAddr::from(([10, 130, access, 66], 6_666))
    }

    /// It receives a datagram from the UPF.
    pub fn datagram(&mut self, payload: &[u8], now: Instant) {
        let Some((initiator, local)) = &mut self.waiting else { return };
        if let Ok(established) = initiator.finish(payload) {
            let epoch = Epoch::new(*local, established.peer_index, established.keys, now);
            self.ring.install_now(epoch, now);
            self.waiting = None;
        }
    }

    /// Its action now: some datagrams. `victims` are the addresses of others.
    pub fn turn(&mut self, victims: &[Addresses], now: Instant) -> Vec<Attack> {
        // In bursts, back to back.
        self.streak = self.streak.saturating_sub(1);
        self.next =
            now + Duration::from_micros(if self.streak > 0 { 20 } else { self.draw.between((200, 40_000)) });
        if self.streak == 0 && self.draw.percent(10) {
            self.streak = self.draw.between((5, 60)) as u8;
        }
        let access = self.draw.below(2) as u8;
        let from = match self.draw.below(12) {
            0 => SocketAddr::from(([10, 130, access, 67], self.draw.below(60_000) as u16)),
            _ => Self::home(access),
        };
        if !self.ring.can_seal(now) || self.draw.percent(1) {
            return vec![(access, from, self.init(access, now))];
        }
        if self.raids.percent(1) {
            return self.raid(access, now);
        }
        let payload = match self.draw.below(12) {
            0..=3 => self.data(access, victims, now),
            4 => self.hoard(access, now),
            5 | 6 => self.probe(access, now),
            7 => self.control(access, now),
            8 => self.piece(access, now),
            9 => self.raw(access, now),
            10 => self.recorded.get(self.draw.below(RECORDED as u64) as usize).cloned(),
            _ => self.forge(victims),
        };
        let Some(payload) = payload else { return Vec::new() };
        let place = self.draw.below(RECORDED as u64) as usize;
        match self.recorded.get_mut(place) {
            Some(old) => old.clone_from(&payload),
            None => self.recorded.push(payload.clone()),
        }
        vec![(access, from, payload)]
    }

    fn init(&mut self, path: u8, now: Instant) -> Vec<u8> {
        let resume = self.ring.peer_index().filter(|_| self.draw.percent(70));
        let hello = Hello {
            path,
            accesses: (0..2)
                .map(|path| Access { path, name: super::ends::NAMES[usize::from(path)].into() })
                .collect(),
            mtu: self.draw.between((1_280, 9_000)) as u16,
            resume,
            plain: self.draw.of(&[0, 0, 0, 1, 3]),
            features: u8::MAX,
        };
        let local = self.draw.rng().next_u32();
        let clock = epoch_ns(0) + now.as_nanos();
        self.last_ns = clock.max(self.last_ns + 1);
        let (key, upf, at) = (&self.key, &self.upf_key, self.last_ns);
        let started = Initiator::start(key, upf, Suite::Aes256Gcm, local, at, &hello, None, self.draw.rng());
        let Ok((initiator, datagram)) = started else { return Vec::new() };
        self.waiting = Some((initiator, local));
        datagram
    }

    fn seal(&mut self, path: u8, message: &[u8], now: Instant) -> Option<Vec<u8>> {
        let mut datagram = vec![0; SECURE_OVERHEAD - InnerHeader::LEN + message.len()];
        let end = datagram.len() - TAG_LEN;
        datagram.get_mut(SecureHeader::LEN..end)?.copy_from_slice(message);
        self.ring.seal(path, &mut datagram, now).ok()?;
        Some(datagram)
    }

    fn sealed_data(
        &mut self,
        path: u8,
        order: DeliveryOrder,
        packet: &[u8],
        now: Instant,
    ) -> Option<Vec<u8>> {
        let header = InnerHeader::data(packet, order)?;
        let mut message = vec![0; InnerHeader::LEN];
        header.emit(&mut message).ok()?;
        message.extend_from_slice(packet);
        self.seal(path, &message, now)
    }

    /// A packet with its own source address or that of a victim.
    fn packet(&mut self, victims: &[Addresses], bytes: usize) -> Vec<u8> {
        self.number += 1;
        let own = inner(NUMBER);
        let addresses = match self.draw.percent(30) && !victims.is_empty() {
            true => self.draw.of(victims),
            false => own,
        };
        let v6 = self.draw.percent(30);
        let port = 5_000 + self.draw.below(4_000) as u16;
        let source = match (addresses.v4, addresses.v6) {
            (_, Some(v6_address)) if v6 => SocketAddr::new(v6_address.into(), port),
            (Some(v4), _) => SocketAddr::new(v4.into(), port),
            _ => return Vec::new(),
        };
        let to = SocketAddr::new(SERVER[usize::from(source.is_ipv6())], 9);
        let label =
            Label { number: self.number, kind: Kind::Udp, ue: 0, flow: 0, offset: 0, bytes: bytes & !7 };
        ledger::emit(source, to, &label)
    }

    fn data(&mut self, path: u8, victims: &[Addresses], now: Instant) -> Option<Vec<u8>> {
        let bytes = self.draw.between((40, 1_300)) as usize;
        let packet = self.packet(victims, bytes);
        let bits = self.draw.bits();
        let (sequence, start) = (bits as u32, bits >> 32 & 1 == 1);
        let word = StreamWord::from_u32(sequence);
        let order = match self.draw.below(7) {
            0 => DeliveryOrder::None,
            1 => DeliveryOrder::Flow { sequence, start, sole: bits >> 33 & 1 == 1 },
            2 => DeliveryOrder::Dedup { sequence, start },
            3 => DeliveryOrder::Stream(word),
            4 => return self.sealed_data(path, DeliveryOrder::Mark(word), &[], now),
            5 => DeliveryOrder::Flow { sequence: self.number as u32, start: false, sole: false },
            _ => return self.coded(path, sequence, &packet, now),
        };
        self.sealed_data(path, order, &packet, now)
    }

    fn coded(&mut self, path: u8, sequence: u32, packet: &[u8], now: Instant) -> Option<Vec<u8>> {
        use anabranch_wire::tunnel::flag;
        let bits = self.draw.bits();
        let mut body = (bits as u32).to_be_bytes().to_vec();
        body.extend_from_slice(packet);
        let repair = bits >> 40 & 1 == 1;
        let flags = if repair { flag::CODED } else { flag::SEQ | flag::CODED };
        let mut message = vec![0x80 | flags, if repair { 59 } else { 4 }];
        message.extend_from_slice(&(body.len() as u16).to_be_bytes());
        message.extend_from_slice(&sequence.to_be_bytes());
        message.extend_from_slice(&body);
        self.seal(path, &message, now)
    }

    /// Makes the UPF wait in more streams than there are queues, all at once.
    fn raid(&mut self, path: u8, now: Instant) -> Vec<Attack> {
        let epoch = self.raids.between((1, 100)) as u8;
        let datagrams = (0..RAID).filter_map(|stream| self.held(path, stream, epoch, now));
        datagrams.map(|datagram| (path, Self::home(path), datagram)).collect()
    }

    /// Makes the UPF wait, in as many streams and epochs as possible.
    fn hoard(&mut self, path: u8, now: Instant) -> Option<Vec<u8>> {
        self.streak = self.streak.max(20);
        let (stream, epoch) = (self.draw.below(256) as u8, self.draw.between((1, 100)) as u8);
        self.held(path, stream, epoch, now)
    }

    /// A packet of a stream that waits for another path.
    fn held(&mut self, path: u8, stream: u8, epoch: u8, now: Instant) -> Option<Vec<u8>> {
        let packet = self.packet(&[], 1_200);
        let word = StreamWord { stream, epoch, timeout_100us: u16::MAX };
        self.sealed_data(path, DeliveryOrder::Stream(word), &packet, now)
    }

    fn control_message(&mut self, path: u8, control: &Control<'_>, now: Instant) -> Option<Vec<u8>> {
        let mut message = vec![0; control.encoded_len()];
        control.emit(&mut message).ok()?;
        self.seal(path, &message, now)
    }

    /// A probe with false values.
    fn probe(&mut self, path: u8, now: Instant) -> Option<Vec<u8>> {
        let mut lie = || match self.draw.below(4) {
            0 => 0,
            1 => u64::MAX,
            2 => self.draw.below(1_000),
            _ => self.draw.bits(),
        };
        let counters =
            PathCounters { tx_packets: lie(), tx_bytes: lie(), rx_packets: lie(), rx_bytes: lie() };
        let (timestamp_ns, echo_ns, rtt_us) = (lie(), lie(), lie() as u32);
        let (id, reorder_available) = (lie() as u32, lie() as u16);
        let kind = self.draw.of(&[ProbeKind::Request, ProbeKind::Reply, ProbeKind::Ack]);
        let lasting_loss = reorder_available % 10_001;
        let probe =
            Probe { kind, id, timestamp_ns, echo_ns, rtt_us, counters, reorder_available, lasting_loss };
        self.control_message(path, &Control::Probe(probe), now)
    }

    fn control(&mut self, path: u8, now: Instant) -> Option<Vec<u8>> {
        let bits = self.draw.bits();
        match self.draw.below(5) {
            0 => {
                let notify = Notify {
                    path: (bits & 7) as u8,
                    up: bits >> 8 & 1 == 1,
                    reason: (bits >> 16) as u8,
                    sequence: (bits >> 32) as u32,
                };
                self.control_message(path, &Control::Notify(notify), now)
            }
            1 | 2 => {
                let bytes = match self.draw.percent(50) {
                    true => br#"{"rules":[{"name":"x","steering":{"mode":"redundant"}}]}"#.to_vec(),
                    false => self.draw.bytes(1_000),
                };
                let fragments = self.draw.of(&[1, 1, 2, 256]);
                let config = Config {
                    version: (bits >> 32) as u32,
                    fragment: (bits as u16) % fragments,
                    fragments,
                    bytes: &bytes,
                };
                self.control_message(path, &Control::Config(config), now)
            }
            3 => {
                let size = self.draw.between((u64::from(MtuProbe::MIN), 1_472)) as u16;
                self.control_message(path, &Control::MtuProbe(MtuProbe { size }), now)
            }
            _ if self.draw.percent(20) => {
                let (train, index) = (bits as u16 & 7, (bits >> 16) as u16 & 63);
                let size = self.draw.between((u64::from(CapacityProbe::MIN), 1_472)) as u16;
                let message = match self.draw.percent(50) {
                    true => Control::CapacityProbe(CapacityProbe { size, train, index }),
                    false => {
                        Control::CapacityAck(CapacityAck { train, index, timestamp_ns: self.draw.bits() })
                    }
                };
                self.control_message(path, &message, now)
            }
            _ if self.draw.percent(10) => {
                self.control_message(path, &Control::Close(Close { reason: bits as u8 }), now)
            }
            _ => None,
        }
    }

    /// A fragment of a message whose other fragments are never sent.
    fn piece(&mut self, path: u8, now: Instant) -> Option<Vec<u8>> {
        let bits = self.draw.bits();
        let bytes = self.draw.bytes(64);
        let piece = Fragment {
            number: bits as u32,
            total: self.draw.between((128, 65_000)) as u16,
            offset: (self.draw.below(8) * 8) as u16,
            bytes: &bytes,
        };
        let mut message = vec![0; Fragment::HEADER + bytes.len()];
        piece.emit(&mut message).ok()?;
        self.seal(path, &message, now)
    }

    /// Arbitrary bytes, sealed.
    fn raw(&mut self, path: u8, now: Instant) -> Option<Vec<u8>> {
        let len = self.draw.between((InnerHeader::LEN as u64, 200)) as usize;
        let mut message = self.draw.bytes(len);
        if let Some(first) = message.first_mut()
            && self.draw.percent(70)
        {
            *first |= 0x80;
        }
        let path = self.draw.of(&[path, path, 2, 7]);
        self.seal(path, &message, now)
    }

    /// Plain data with the source of a victim.
    fn forge(&mut self, victims: &[Addresses]) -> Option<Vec<u8>> {
        let packet = self.packet(victims, 200);
        let header = InnerHeader::data(&packet, DeliveryOrder::None)?;
        let mut datagram = vec![0; InnerHeader::LEN];
        header.emit(&mut datagram).ok()?;
        datagram.extend_from_slice(&packet);
        Some(datagram)
    }
}
