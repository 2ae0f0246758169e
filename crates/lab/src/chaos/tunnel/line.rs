//! An access of a UE and its faults: a link per direction (the product's own, `link`), with duplication and corruption in
//! addition.

use super::check::Tally;
use super::draw::RandomStream;
use super::plan::Kind;
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_link::{Link, LinkChange, LinkConfig, LinkStats, LossModel, QueueLimit, Rate};
use anabranch_wire::ip;
use std::collections::VecDeque;

/// Queue limit of a bounded rate unless a fault sets another one, packets.
const QUEUE: usize = 1_000;
/// Number of packets whose order is tracked.
const WATCHED: usize = 256;

/// Present state of one direction.
#[derive(Debug, Clone, Copy, PartialEq)]
struct State {
    loss: LossModel,
    cut: bool,
    jitter_ms: u64,
    delay_ms: u64,
    kbps: Option<u32>,
    queue: usize,
    mtu: usize,
    duplicate: u64,
    corrupt: u64,
}

struct Direction {
    link: Link,
    base: State,
    state: State,
    seen: LinkStats,
    draw: RandomStream,
    /// Packets in transit by their last bytes, and whether each was overtaken.
    watched: VecDeque<(u64, bool)>,
    dropped: u64,
}

/// An access in both directions.
pub struct Line {
    towards_ue: Direction,
    towards_upf: Direction,
    /// The active faults.
    active: Vec<(u64, Kind)>,
    /// Time since which it has had no fault.
    clean_since: Option<Instant>,
}

impl Line {
    /// An access with this one-way delay and MTU.
    #[must_use]
    pub fn new(delay_ms: u64, mtu: usize, draw: &mut RandomStream) -> Self {
        let base = State {
            loss: LossModel::None,
            cut: false,
            jitter_ms: 0,
            delay_ms,
            kbps: None,
            queue: QUEUE,
            mtu,
            duplicate: 0,
            corrupt: 0,
        };
        let mut direction = || Direction {
            link: Link::new(
                LinkConfig {
                    delay: Duration::from_millis(delay_ms),
                    mtu_bytes: Some(mtu),
                    ..LinkConfig::default()
                },
                draw.bits(),
            ),
            base,
            state: base,
            seen: LinkStats::default(),
            draw: RandomStream::new(draw.bits(), 0),
            watched: VecDeque::new(),
            dropped: 0,
        };
        Self {
            towards_ue: direction(),
            towards_upf: direction(),
            active: Vec::new(),
            clean_since: Some(Instant::ZERO),
        }
    }

    fn direction(&mut self, up: bool) -> &mut Direction {
        if up { &mut self.towards_upf } else { &mut self.towards_ue }
    }

    /// Starts a fault, under a unique number.
    pub fn begin(&mut self, number: u64, kind: Kind, now: Instant, tally: &mut Tally) {
        self.active.push((number, kind));
        self.renew(now, tally);
    }

    /// Ends a fault. Nothing happens if it never began here.
    pub fn end(&mut self, number: u64, now: Instant, tally: &mut Tally) {
        self.active.retain(|(n, _)| *n != number);
        self.renew(now, tally);
    }

    fn renew(&mut self, now: Instant, tally: &mut Tally) {
        let harmless = |kind: &Kind| matches!(kind, Kind::Duplicate { .. } | Kind::Delay { .. });
        self.clean_since = match self.active.iter().all(|(_, kind)| harmless(kind)) {
            true => self.clean_since.or(Some(now)),
            false => None,
        };
        for up in [true, false] {
            let mut state = self.direction(up).base;
            for (_, kind) in &self.active {
                state.suffer(kind, up);
            }
            self.direction(up).change(state, now, tally);
        }
    }

    /// Time since which no fault loses packets; `None` while one does.
    #[must_use]
    pub const fn clean_since(&self) -> Option<Instant> {
        self.clean_since
    }

    /// Whether all packets are lost, or no active fault loses only some of them.
    #[must_use]
    pub fn is_dead_or_clean(&self) -> bool {
        self.clean_since.is_some()
            || self.active.iter().all(|(_, kind)| match kind {
                Kind::Partition { place } => place.way == super::plan::LinkDirection::Both,
                Kind::Duplicate { .. } | Kind::Delay { .. } | Kind::Carrier { .. } => true,
                _ => false,
            })
    }

    /// Sends a packet.
    pub fn offer(&mut self, up: bool, packet: Vec<u8>, now: Instant, tally: &mut Tally) {
        self.direction(up).offer(packet, now, tally);
    }

    /// The next packet that has arrived.
    pub fn take(&mut self, up: bool, now: Instant, tally: &mut Tally) -> Option<Vec<u8>> {
        let direction = self.direction(up);
        let packet = direction.link.take(now)?.into_bytes();
        direction.arrived(&packet, tally);
        Some(packet)
    }

    /// Time of the next arrival.
    #[must_use]
    pub fn next_at(&self, up: bool) -> Option<Instant> {
        if up { self.towards_upf.link.next_at() } else { self.towards_ue.link.next_at() }
    }

    /// Number of packets lost or corrupted so far.
    pub fn dropped(&mut self, now: Instant, tally: &mut Tally) -> u64 {
        [true, false]
            .map(|up| {
                let direction = self.direction(up);
                direction.account(now, tally);
                direction.dropped
            })
            .iter()
            .sum()
    }
}

impl State {
    fn suffer(&mut self, kind: &Kind, up: bool) {
        match *kind {
            Kind::Loss { place, percent, burst } if place.way.has(up) => {
                self.loss = LossModel::bursts(f64::from(percent) / 100.0, f64::from(burst));
            }
            Kind::Partition { place } if place.way.has(up) => self.cut = true,
            Kind::Carrier { .. } => self.cut = true,
            Kind::Reorder { place, jitter_ms } if place.way.has(up) => self.jitter_ms = jitter_ms.into(),
            Kind::Duplicate { place, percent } if place.way.has(up) => self.duplicate = percent.into(),
            Kind::Corrupt { place, percent } if place.way.has(up) => self.corrupt = percent.into(),
            Kind::Delay { place, delay_ms } if place.way.has(up) => self.delay_ms = delay_ms.into(),
            Kind::Rate { place, kbps, queue } if place.way.has(up) => {
                (self.kbps, self.queue) = (Some(kbps), queue.into());
            }
            Kind::Mtu { place, bytes } if place.way.has(up) => self.mtu = self.mtu.min(bytes.into()),
            _ => {}
        }
    }
}

impl Direction {
    fn change(&mut self, new: State, now: Instant, tally: &mut Tally) {
        self.account(now, tally);
        let old = std::mem::replace(&mut self.state, new);
        let ms = Duration::from_millis;
        if old.loss != new.loss {
            self.link.change(LinkChange::Loss(new.loss), now);
        }
        if old.cut != new.cut {
            self.link.change(LinkChange::BlackHole(new.cut), now);
        }
        if old.jitter_ms != new.jitter_ms {
            self.link.change(LinkChange::Reorder(new.jitter_ms > 0), now);
            self.link.change(LinkChange::Jitter(ms(new.jitter_ms)), now);
            self.watched.clear();
        }
        if old.delay_ms != new.delay_ms {
            self.link.change(LinkChange::Delay(ms(new.delay_ms)), now);
        }
        if old.queue != new.queue {
            self.link
                .change(LinkChange::Queue(QueueLimit { packets: new.queue, ..QueueLimit::default() }), now);
        }
        if old.kbps != new.kbps {
            let rate = new.kbps.map_or(Rate::Unlimited, |kbps| Rate::Fixed(u64::from(kbps) * 1_000));
            self.link.change(LinkChange::Rate(rate), now);
        }
        if old.mtu != new.mtu {
            self.link.change(LinkChange::Mtu(Some(new.mtu)), now);
        }
    }

    /// Attributes the counters of the link since the previous call to the faults that caused them.
    fn account(&mut self, now: Instant, tally: &mut Tally) {
        let (old, new) = (self.seen, self.link.stats(now));
        self.seen = new;
        self.dropped += new.drops() - old.drops();
        tally.effect("loss", new.random_drops - old.random_drops);
        tally.effect("partition", new.black_hole_drops - old.black_hole_drops);
        let packets = new.packets_in - old.packets_in;
        if self.state.mtu != self.base.mtu {
            tally.effect("mtu", new.oversize_drops - old.oversize_drops);
        }
        if self.state.kbps.is_some() {
            let waited = new.sojourn_total_ns > old.sojourn_total_ns;
            tally.effect("rate", (new.queue_drops - old.queue_drops).max(u64::from(waited)));
        }
        if self.state.delay_ms != self.base.delay_ms {
            tally.effect("delay", packets);
        }
    }

    fn offer(&mut self, mut packet: Vec<u8>, now: Instant, tally: &mut Tally) {
        let copy =
            (self.state.duplicate > 0 && self.draw.percent(self.state.duplicate)).then(|| packet.clone());
        if self.state.corrupt > 0 && self.draw.percent(self.state.corrupt) {
            packet = self.damage(packet);
            self.dropped += 1;
            tally.effect("corrupt", 1);
        }
        if self.state.jitter_ms > 0 {
            if self.watched.len() == WATCHED {
                self.watched.pop_front();
            }
            self.watched.push_back((mark(&packet), false));
        }
        self.link.offer(Packet::new(now, packet));
        if let Some(copy) = copy {
            tally.effect("duplicate", 1);
            self.link.offer(Packet::new(now, copy));
        }
    }

    /// Changes one byte of the UDP payload and the checksum accordingly, so that the outer checksum does not detect the damage.
    fn damage(&mut self, packet: Vec<u8>) -> Vec<u8> {
        let Ok((from, to, payload)) = ip::parse_udp(&packet) else { return packet };
        let mut payload = packet[payload].to_vec();
        let at = self.draw.below(payload.len() as u64) as usize;
        if let Some(byte) = payload.get_mut(at) {
            *byte ^= 1 << self.draw.below(8);
        }
        ip::udp_datagram(from, to, &payload).unwrap_or(packet)
    }

    fn arrived(&mut self, packet: &[u8], tally: &mut Tally) {
        if self.watched.is_empty() {
            return;
        }
        let mark = mark(packet);
        let Some(place) = self.watched.iter().position(|(other, _)| *other == mark) else { return };
        self.watched.iter_mut().take(place).for_each(|(_, overtaken)| *overtaken = true);
        let (_, overtaken) = self.watched.remove(place).unwrap_or_default();
        tally.effect("reorder", u64::from(overtaken));
    }
}

/// Identifies a packet: the end of the authentication tag.
fn mark(packet: &[u8]) -> u64 {
    packet.last_chunk().map_or(0, |last| u64::from_le_bytes(*last))
}
