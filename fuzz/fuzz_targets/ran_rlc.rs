//! Both ends of a bearer, RLC and PDCP, and an adversary on the air between: grants of any size, PDUs lost,
//! doubled, late, damaged, forged; STATUS PDUs cut short, too; and a buffer that drops what waits.
//!
//! Whatever happens: no panic, no spinning, memory bounded, and in AM a timer whenever something is in flight
//! and nothing can be sent. As long as nothing but STATUS PDUs is cut, and nothing damaged or forged, every
//! packet that comes out is one that went in, whole, in order and once; AM takes nothing for acknowledged that
//! the receiver does not have, and delivers all in the end.
#![no_main]

use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_ran::pdcp::{PdcpRx, PdcpSn, PdcpTx};
use anabranch_ran::queue::{Algorithm, AnyBuffer, BearerParams, BufferLimit, QueueConfig, Sdu};
use anabranch_ran::rlc::{BufferPool, Entity, RlcConfig, TxQueue};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::collections::VecDeque;

#[derive(Arbitrary, Debug)]
struct Input {
    acknowledged: bool,
    short_sn: bool,
    codel: bool,
    limit_bytes: u16,
    ops: Vec<Op>,
}

#[derive(Arbitrary, Debug)]
enum Op {
    Push {
        size: u16,
        count: u8,
    },
    /// A grant to one of the ends.
    Grant {
        up: bool,
        bytes: u16,
    },
    /// One that cuts STATUS PDUs to what fits.
    SmallGrant {
        up: bool,
        bytes: u8,
    },
    Pass {
        ms: u8,
    },
    /// The oldest PDU that is under way to an end arrives, twice perhaps.
    Arrive {
        up: bool,
        twice: bool,
    },
    /// All that is under way arrives.
    ArriveAll {
        up: bool,
    },
    Drop {
        up: bool,
    },
    /// The oldest becomes the newest.
    Delay {
        up: bool,
    },
    /// The oldest will arrive once more, after all others.
    Again {
        up: bool,
    },
    /// Of a STATUS PDU only the front arrives.
    Cut {
        up: bool,
        at: u8,
    },
    Damage {
        up: bool,
        at: u16,
        bits: u8,
    },
    Forge {
        up: bool,
        bytes: Vec<u8>,
    },
    /// Another buffer, in which perhaps less has room.
    Buffer {
        codel: bool,
        limit_bytes: u16,
    },
}

const LIMIT_SDUS: usize = 300;
/// So many packets later a PDU's number may mean another packet: less than half of 12 bits.
const MOST_LATE: usize = 1024;

/// The bytes of packet `number`.
fn content(number: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| (number as usize * 31 + at * 7 + at / 251) as u8).collect();
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn number_of(bytes: &[u8]) -> Option<usize> {
    Some(u32::from_be_bytes(*bytes.first_chunk()?) as usize)
}

fn limit(bytes: u16) -> BufferLimit {
    BufferLimit { bytes: u64::from(bytes) + 2000, sdus: LIMIT_SDUS }
}

fn buffer(codel: bool, limit_bytes: u16) -> AnyBuffer {
    let params = BearerParams { limit: limit(limit_bytes), ..BearerParams::default() };
    let algorithm = if codel { Algorithm::CoDel } else { Algorithm::Vanilla };
    QueueConfig::from(algorithm).build(params).expect("a queue").1
}

/// A PDU under way, and how many packets had gone in when it was made.
#[derive(Clone)]
struct Pdu {
    bytes: Vec<u8>,
    born: usize,
}

struct Bearer {
    ends: [Entity; 2],
    pdcp: PdcpRx,
    sn: PdcpSn,
    pool: BufferPool,
    /// Towards the receiver of packets, and back.
    air: [VecDeque<Pdu>; 2],
    /// Lengths of the packets that went in.
    lens: Vec<usize>,
    /// COUNTs wholly pulled and not yet acknowledged, and by COUNT whether RLC handed it up at the other end.
    sent: Vec<u32>,
    received: Vec<bool>,
    delivered: Vec<Vec<u8>>,
    now: Instant,
    acknowledged: bool,
    /// Nobody has touched the bytes, and nobody has reordered or lost so much that numbers come round.
    in_sight: bool,
}

impl Bearer {
    fn new(config: RlcConfig, sn: PdcpSn, input: &Input) -> Self {
        let entity = || {
            let buffer = buffer(input.codel, input.limit_bytes);
            Entity::new(&config, TxQueue::new(buffer, PdcpTx::new(sn))).expect("an entity")
        };
        Self {
            ends: [entity(), entity()],
            pdcp: PdcpRx::new(sn, Duration::from_millis(200)),
            sn,
            pool: BufferPool::default(),
            air: [VecDeque::new(), VecDeque::new()],
            lens: Vec::new(),
            sent: Vec::new(),
            received: Vec::new(),
            delivered: Vec::new(),
            now: Instant::ZERO,
            acknowledged: input.acknowledged,
            in_sight: true,
        }
    }

    fn push(&mut self, size: usize) {
        let number = self.lens.len() as u32;
        self.ends[0].push(Sdu::new(Packet::new(self.now, content(number, size)), 1), self.now);
        self.lens.push(size);
    }

    fn grant(&mut self, end: usize, mut room: usize) {
        for _ in 0..4096 {
            let mut bytes = Vec::new();
            let len = self.ends[end].pull(room, self.now, &mut bytes, &mut self.pool);
            assert!(len == bytes.len() && len <= room);
            while let Some(sent) = self.ends[end].poll_sent() {
                self.sent.push(sent.count);
                self.received.push(false);
            }
            if len == 0 {
                return;
            }
            room -= len;
            self.air[end].push_back(Pdu { bytes, born: self.lens.len() });
        }
        panic!("it sends for ever");
    }

    fn arrive(&mut self, from: usize, pdu: &Pdu) {
        self.in_sight &= self.lens.len() - pdu.born < MOST_LATE;
        let Self { ends, pdcp, pool, delivered, received, now, .. } = self;
        let sn = self.sn;
        ends[1 - from].receive(&pdu.bytes, *now, pool, &mut |sdu, pool| {
            if from == 0 {
                // The last COUNT that was pulled and has this number.
                let count = sn.parse(&sdu).ok().and_then(|(number, _)| {
                    let back =
                        (received.len() as u32).wrapping_sub(1).wrapping_sub(number) & (sn.modulus() - 1);
                    received.len().checked_sub(1 + back as usize)
                });
                if let Some(count) = count {
                    received[count] = true;
                }
                pdcp.receive(sdu, *now, pool, |_, packet| delivered.push(packet.to_vec()));
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
            pdcp.on_timeout(*now, |_, packet| delivered.push(packet.to_vec()));
        }
        panic!("it spins at {}", self.now);
    }

    /// Whether a PDU under way is a STATUS PDU.
    fn is_status(&self, pdu: &Pdu) -> bool {
        self.acknowledged && pdu.bytes.first().is_some_and(|first| first & 0x80 == 0)
    }

    /// Whoever waits for a STATUS has a timer.
    fn check_timers(&self) {
        for end in &self.ends {
            let status = end.status(self.now);
            let rests = status.retx_bytes == 0 && (status.sdus == 0 || status.stalled);
            if rests && end.unacknowledged().next().is_some() {
                assert!(end.poll_timeout().is_some(), "it waits, and for nothing: {status:?}");
            }
        }
    }

    /// What is not in flight any more is there.
    fn check_acknowledged(&mut self) {
        let mut waiting = self.ends[0].unacknowledged().peekable();
        let received = &self.received;
        self.sent.retain(|count| {
            while waiting.next_if(|other| other < count).is_some() {}
            let waits = waiting.peek() == Some(count);
            assert!(waits || received[*count as usize], "COUNT {count} acknowledged, and not there");
            waits
        });
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
    let sn = if input.short_sn { PdcpSn::Bits12 } else { PdcpSn::Bits18 };
    let mut bearer = Bearer::new(rlc, sn, &input);
    let (mut honest, mut dropped, mut most_bytes) = (true, 0, limit(input.limit_bytes).bytes);
    for op in input.ops.iter().take(512) {
        match op {
            Op::Push { size, count } => {
                (0..*count % 32).for_each(|_| bearer.push(4 + usize::from(*size) % 8996));
            }
            Op::Grant { up, bytes } => bearer.grant(usize::from(*up), usize::from(*bytes) % 20_000),
            Op::SmallGrant { up, bytes } => bearer.grant(usize::from(*up), usize::from(*bytes)),
            Op::Pass { ms } => bearer.pass(u64::from(*ms)),
            Op::Arrive { up, twice } => {
                if let Some(pdu) = bearer.air[usize::from(*up)].pop_front() {
                    bearer.arrive(usize::from(*up), &pdu);
                    if *twice {
                        bearer.arrive(usize::from(*up), &pdu);
                    }
                }
            }
            Op::ArriveAll { up } => {
                while let Some(pdu) = bearer.air[usize::from(*up)].pop_front() {
                    bearer.arrive(usize::from(*up), &pdu);
                }
            }
            Op::Drop { up } => {
                dropped += u32::from(bearer.air[usize::from(*up)].pop_front().is_some());
                bearer.in_sight &= input.acknowledged || !input.short_sn || dropped < 16;
            }
            Op::Delay { up } | Op::Again { up } => {
                // A PDU of UM that is overtaken by half of its numbers is another one: HARQ has 8 processes.
                let air = &mut bearer.air[usize::from(*up)];
                bearer.in_sight &= input.acknowledged || air.len() < 16;
                if !air.is_empty() {
                    air.rotate_left(1);
                }
                if let (Op::Again { .. }, Some(last)) = (op, air.back().cloned()) {
                    air.push_front(last);
                }
            }
            Op::Cut { up, at } => {
                if bearer.air[usize::from(*up)].front().is_some_and(|pdu| bearer.is_status(pdu))
                    && let Some(pdu) = bearer.air[usize::from(*up)].front_mut()
                {
                    pdu.bytes.truncate(usize::from(*at) % pdu.bytes.len().max(1));
                }
            }
            Op::Damage { up, at, bits } => {
                if let Some(pdu) = bearer.air[usize::from(*up)].front_mut()
                    && let Some(byte) = pdu.bytes.get_mut(usize::from(*at))
                {
                    *byte ^= *bits;
                    honest &= *bits == 0;
                }
            }
            Op::Forge { up, bytes } => {
                honest = false;
                bearer.arrive(usize::from(*up), &Pdu { bytes: bytes.clone(), born: bearer.lens.len() });
            }
            Op::Buffer { codel, limit_bytes } => {
                most_bytes = most_bytes.max(limit(*limit_bytes).bytes);
                bearer.ends[0].set_buffer(buffer(*codel, *limit_bytes), bearer.now);
            }
        }
        // What is on the air is no memory of the bearer's.
        for air in &mut bearer.air {
            bearer.in_sight &= air.len() <= 20_000;
            air.truncate(20_000);
        }
        let status = bearer.ends[0].status(bearer.now);
        assert!(status.sdu_bytes <= most_bytes + 9010, "{status:?}");
        assert!(status.sdus <= LIMIT_SDUS as u64 + 1, "{status:?}");
        bearer.check_timers();
        if honest && bearer.in_sight && input.acknowledged {
            bearer.check_acknowledged();
        }
    }
    if !honest || !bearer.in_sight {
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
        bearer.check_timers();
        if input.acknowledged {
            bearer.check_acknowledged();
        }
        let quiet =
            |end: &Entity| end.poll_timeout().is_none() && end.status(bearer.now) == Default::default();
        if bearer.ends.iter().all(quiet) && bearer.pdcp.poll_timeout().is_none() {
            break;
        }
    }
    let mut next = 0;
    for bytes in &bearer.delivered {
        let number = number_of(bytes).expect("a number");
        assert!(number >= next, "in order, and once");
        next = number + 1;
        assert_eq!(*bytes, content(number as u32, bearer.lens[number]), "packet {number}");
    }
    if input.acknowledged {
        assert!(
            bearer.sent.is_empty() && bearer.ends[0].unacknowledged().next().is_none(),
            "AM delivers all"
        );
    }
    assert_eq!(bearer.ends[0].status(bearer.now), Default::default(), "nothing is left");
});
