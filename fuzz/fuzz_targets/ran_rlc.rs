//! Both ends of a bearer, RLC and PDCP, and an adversary on the air between: grants of any size, PDUs lost,
//! doubled, late, damaged, forged.
//!
//! Whatever happens: no panic, no spinning, memory bounded; and as long as nothing is damaged or forged, every
//! packet that comes out is one that went in, whole, in order and once. AM delivers all in the end.
#![no_main]

use anabranch_core::packet::Packet;
use anabranch_core::ran::pdcp::{PdcpRx, PdcpSn, PdcpTx};
use anabranch_core::ran::queue::{Algorithm, BearerParams, BufferLimit, QueueConfig, Sdu};
use anabranch_core::ran::rlc::{BufferPool, Entity, RlcConfig, TxQueue};
use anabranch_core::time::{Duration, Instant};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::collections::VecDeque;

#[derive(Arbitrary, Debug)]
struct Input {
    acknowledged: bool,
    short_sn: bool,
    limit_bytes: u16,
    ops: Vec<Op>,
}

#[derive(Arbitrary, Debug)]
enum Op {
    Push { size: u16, count: u8 },
    /// A grant to one of the ends.
    Grant { up: bool, bytes: u16 },
    Pass { ms: u8 },
    /// The oldest PDU that is under way to an end arrives, twice perhaps.
    Arrive { up: bool, twice: bool },
    Drop { up: bool },
    /// The oldest becomes the newest.
    Delay { up: bool },
    Damage { up: bool, at: u16, bits: u8 },
    Forge { up: bool, bytes: Vec<u8> },
}

const LIMIT_SDUS: usize = 300;

/// The bytes of packet `number`.
fn content(number: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| (number as usize * 31 + at * 7 + at / 251) as u8).collect();
    let n = len.min(4);
    bytes[..n].copy_from_slice(&number.to_be_bytes()[..n]);
    bytes
}

struct Bearer {
    ends: [Entity; 2],
    pdcp: PdcpRx,
    pool: BufferPool,
    /// Towards the receiver of packets, and back.
    air: [VecDeque<Vec<u8>>; 2],
    /// Lengths of the packets that went in.
    lens: Vec<usize>,
    delivered: Vec<(u32, Vec<u8>)>,
    now: Instant,
}

impl Bearer {
    fn new(config: RlcConfig, sn: PdcpSn, limit: BufferLimit) -> Self {
        let entity = || {
            let params = BearerParams { limit, ..BearerParams::default() };
            let (_, buffer) = QueueConfig::from(Algorithm::Vanilla).build(params).expect("a queue");
            Entity::new(&config, TxQueue::new(buffer, PdcpTx::new(sn))).expect("an entity")
        };
        Self {
            ends: [entity(), entity()],
            pdcp: PdcpRx::new(sn, Duration::from_millis(200)),
            pool: BufferPool::default(),
            air: [VecDeque::new(), VecDeque::new()],
            lens: Vec::new(),
            delivered: Vec::new(),
            now: Instant::ZERO,
        }
    }

    fn push(&mut self, size: usize) {
        let drops = self.ends[0].buffer_stats().full_drops;
        let number = self.lens.len() as u32;
        self.ends[0].push(Sdu::new(Packet::new(self.now, content(number, size)), 1), self.now);
        // What the buffer refuses was never sent.
        if self.ends[0].buffer_stats().full_drops == drops {
            self.lens.push(size);
        }
    }

    fn grant(&mut self, end: usize, mut room: usize) {
        for _ in 0..4096 {
            let mut pdu = Vec::new();
            let len = self.ends[end].pull(room, self.now, &mut pdu, &mut self.pool);
            assert!(len == pdu.len() && len <= room);
            if len == 0 {
                while self.ends[end].poll_sent().is_some() {}
                return;
            }
            room -= len;
            self.air[end].push_back(pdu);
        }
        panic!("it sends for ever");
    }

    fn arrive(&mut self, from: usize, pdu: &[u8]) {
        let Self { ends, pdcp, pool, delivered, now, .. } = self;
        ends[1 - from].receive(pdu, *now, pool, &mut |sdu, pool| {
            if from == 0 {
                pdcp.receive(sdu, *now, pool, |count, packet| delivered.push((count, packet.to_vec())));
            }
        });
    }

    fn pass(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        for _ in 0..10_000 {
            let timers = [self.ends[0].poll_timeout(), self.ends[1].poll_timeout(), self.pdcp.poll_timeout()];
            let Some(at) = timers.into_iter().flatten().min().filter(|at| *at <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(at);
            let Self { ends, pdcp, pool, delivered, now, .. } = self;
            ends.iter_mut().for_each(|entity| entity.on_timeout(*now, pool));
            pdcp.on_timeout(*now, |count, packet| delivered.push((count, packet.to_vec())));
        }
        panic!("it spins at {}", self.now);
    }
}

fuzz_target!(|input: Input| {
    let rlc = match (input.acknowledged, input.short_sn) {
        (true, true) => r#"{"mode": "am", "sn_bits": 12}"#,
        (true, false) => r#"{"mode": "am", "sn_bits": 18}"#,
        (false, true) => r#"{"mode": "um", "sn_bits": 6}"#,
        (false, false) => r#"{"mode": "um", "sn_bits": 12}"#,
    };
    let rlc: RlcConfig = serde_json::from_str(rlc).expect("a mode");
    let limit = BufferLimit { bytes: u64::from(input.limit_bytes) + 2000, sdus: LIMIT_SDUS };
    let sn = if input.short_sn { PdcpSn::Bits12 } else { PdcpSn::Bits18 };
    let mut bearer = Bearer::new(rlc, sn, limit);
    // Nobody has touched the bytes, and nobody has lost or reordered so much that numbers come round.
    let (mut honest, mut in_sight, mut dropped) = (true, true, 0);
    for op in input.ops.iter().take(512) {
        match op {
            Op::Push { size, count } => {
                (0..*count % 32).for_each(|_| bearer.push(4 + usize::from(*size) % 8996));
            }
            Op::Grant { up, bytes } => bearer.grant(usize::from(*up), usize::from(*bytes) % 20_000),
            Op::Pass { ms } => bearer.pass(u64::from(*ms)),
            Op::Arrive { up, twice } => {
                if let Some(pdu) = bearer.air[usize::from(*up)].pop_front() {
                    bearer.arrive(usize::from(*up), &pdu);
                    if *twice {
                        bearer.arrive(usize::from(*up), &pdu);
                    }
                }
            }
            Op::Drop { up } => {
                dropped += u32::from(bearer.air[usize::from(*up)].pop_front().is_some());
                in_sight &= input.acknowledged || !input.short_sn || dropped < 16;
            }
            Op::Delay { up } => {
                // A PDU that is overtaken by half of its numbers is another one: HARQ has 8 processes.
                let air = &mut bearer.air[usize::from(*up)];
                in_sight &= air.len() < 16;
                if !air.is_empty() {
                    air.rotate_left(1);
                }
            }
            Op::Damage { up, at, bits } => {
                if let Some(pdu) = bearer.air[usize::from(*up)].front_mut() {
                    let at = usize::from(*at) % pdu.len();
                    pdu[at] ^= *bits;
                    honest &= *bits == 0;
                }
            }
            Op::Forge { up, bytes } => {
                honest = false;
                bearer.arrive(usize::from(*up), bytes);
            }
        }
        // What is on the air is no memory of the bearer's.
        for air in &mut bearer.air {
            in_sight &= air.len() <= 20_000;
            air.truncate(20_000);
        }
        let status = bearer.ends[0].status(bearer.now);
        assert!(status.sdu_bytes <= limit.bytes + 9010, "{status:?}");
        assert!(status.sdus <= LIMIT_SDUS as u64 + 1, "{status:?}");
    }
    if !honest || !in_sight {
        return;
    }
    // The adversary is gone.
    for _ in 0..20_000 {
        for end in [0, 1] {
            bearer.grant(end, 10_000);
            while let Some(pdu) = bearer.air[end].pop_front() {
                bearer.arrive(end, &pdu);
            }
        }
        bearer.pass(5);
        let quiet = |end: &Entity| end.poll_timeout().is_none() && end.status(bearer.now) == Default::default();
        if bearer.ends.iter().all(quiet) && bearer.pdcp.poll_timeout().is_none() {
            break;
        }
    }
    let mut next = 0;
    for (count, bytes) in &bearer.delivered {
        assert!(*count >= next, "in order, and once");
        next = count + 1;
        assert_eq!(*bytes, content(*count, bearer.lens[*count as usize]), "packet {count}");
    }
    let sent = bearer.lens.len() as u32;
    if input.acknowledged {
        assert_eq!(bearer.delivered.len() as u32, sent, "AM delivers all");
    }
    assert_eq!(bearer.ends[0].status(bearer.now), Default::default(), "nothing is left");
});
