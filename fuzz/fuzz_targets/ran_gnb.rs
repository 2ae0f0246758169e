//! A cell as an element: packets and rubbish from N3 and from UEs, commands good and bad, time that passes and
//! time that leaps, on any carrier with any scheduler, limiter and mode of RLC.
//!
//! Whatever happens: no panic, no spinning; every slot's RBs are accounted for; what comes out went in, once;
//! what waits is within its limits; and when the channel is good again and nobody sends, the cell falls quiet.
#![no_main]

use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_element::{Element, Port, Sink, drive};
use anabranch_ran::amc::{Direction, LteConfig, NrConfig, RadioConfig, TddConfig};
use anabranch_ran::channel::{Channel, ChannelConfig, Quality};
use anabranch_ran::gnb::{
    BearerConfig, Gnb, GnbCommand, GnbConfig, GnbEvent, IoamConfig, N3, PacketEvents, QosRule,
    TelemetryConfig, UeConfig,
};
use anabranch_ran::mac::{ControlLoad, HarqConfig};
use anabranch_ran::queue::{Algorithm, BearerParams, BufferLimit};
use anabranch_ran::sched::{InterAlgorithm, InterConfig, SliceConfig};
use anabranch_ran::sdap::{DrbConfig, FlowConfig, SchedulerKind, SdapConfig};
use anabranch_wire::gtpu::{GtpuHeader, PduSession, message};
use anabranch_wire::ip::udp_datagram;
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

#[derive(Arbitrary, Debug)]
struct Input {
    carrier: Carrier,
    gtpu: bool,
    control: bool,
    bler: u8,
    scheduler: u8,
    uplink_scheduler: u8,
    shares: [u8; 3],
    ues: Vec<Shape>,
    ops: Vec<Op>,
}

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Carrier {
    Lte { rbs: u8 },
    Nr { rbs: u8, numerology: u8, tdd: bool },
}

#[derive(Arbitrary, Debug, Clone, Copy)]
struct Shape {
    slice: u8,
    queue: u8,
    uplink_queue: u8,
    acknowledged: bool,
    header: bool,
    two_bearers: bool,
    sdap: u8,
    mcs: u8,
}

#[derive(Arbitrary, Debug)]
enum Op {
    Down {
        ue: u8,
        voice: bool,
        size: u16,
        count: u8,
    },
    Up {
        ue: u8,
        voice: bool,
        size: u16,
        count: u8,
    },
    /// Bytes as they are.
    Raw {
        port: u8,
        bytes: Vec<u8>,
    },
    /// A GTP-U message about which something is odd.
    Message {
        kind: u8,
        teid: u32,
        qfi: Option<u8>,
        cut: u8,
        size: u16,
    },
    Pass {
        us: u16,
    },
    Wait {
        ms: u16,
    },
    /// The clock runs ahead and nobody has driven the cell.
    Leap {
        ms: u32,
    },
    Share {
        slice: u8,
        percent: f64,
    },
    Slices(Vec<(u8, u8)>),
    Scheduler {
        up: bool,
        which: u8,
        limit: u32,
    },
    Move {
        ue: u8,
        slice: u8,
    },
    Channel {
        ue: u8,
        up: bool,
        kind: u8,
        value: u8,
    },
    Queue {
        ue: u8,
        drb: u8,
        up: bool,
        which: u8,
        mtu: u16,
    },
    Telemetry(u8),
}

const VOICE: u16 = 4000;
const LIMIT_BYTES: u64 = 30_000;
const LIMIT_SDUS: usize = 200;
const OUTSIDE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)), 9);

fn address(ue: usize) -> IpAddr {
    Ipv4Addr::new(10, 45, 0, 1 + ue as u8).into()
}

fn ue_config(number: usize, shape: Shape) -> UeConfig {
    let queue = |which: u8| Algorithm::ALL[usize::from(which) % Algorithm::ALL.len()].into();
    let second = 1 + u8::from(shape.two_bearers);
    let limits = |flow: FlowConfig| FlowConfig { limit_bytes: LIMIT_BYTES, limit_sdus: LIMIT_SDUS, ..flow };
    let header = shape.header;
    let drbs = (1..=second).map(|id| DrbConfig { id, header }).collect();
    UeConfig {
        addresses: vec![address(number)],
        qos: serde_json::from_str::<Vec<QosRule>>(r#"[{"qfi": 1, "filter": {"local_port": 4000}}]"#)
            .expect("a rule"),
        sdap: SdapConfig {
            scheduler: [SchedulerKind::Priority, SchedulerKind::Drr, SchedulerKind::Edf]
                [usize::from(shape.sdap) % 3],
            drbs,
            flows: vec![
                limits(FlowConfig { priority: 20, ..FlowConfig::new(1, second) }),
                limits(FlowConfig { unmapped: true, ..FlowConfig::new(9, 1) }),
            ],
            ..SdapConfig::default()
        },
        bearer: BearerConfig {
            uplink_queue: Some(queue(shape.uplink_queue)),
            rlc: serde_json::from_str(if shape.acknowledged {
                r#"{"mode": "am"}"#
            } else {
                r#"{"mode": "um"}"#
            })
            .expect("a mode"),
            limit_bytes: LIMIT_BYTES,
            limit_sdus: LIMIT_SDUS,
            ..BearerConfig::with_queue(queue(shape.queue))
        },
        ..UeConfig::new(
            format!("ue{number}"),
            format!("s{}", shape.slice % 3),
            ChannelConfig::mcs(shape.mcs % 29),
        )
    }
}

fn scheduler(which: u8) -> InterConfig {
    InterAlgorithm::ALL[usize::from(which) % 7].into()
}

impl Input {
    fn config(&self) -> GnbConfig {
        let shares: Vec<f64> = self.shares.iter().map(|share| f64::from(*share) / 8.0).collect();
        GnbConfig {
            seed: 1,
            n3: if self.gtpu { N3::Gtpu } else { N3::Ip },
            radio: match self.carrier {
                Carrier::Lte { rbs } => {
                    RadioConfig::Lte(LteConfig { rbs: 6 + u16::from(rbs) % 105, ..LteConfig::default() })
                }
                Carrier::Nr { rbs, numerology, tdd } => RadioConfig::Nr(NrConfig {
                    rbs: 6 + u16::from(rbs),
                    numerology: numerology % 3,
                    tdd: tdd.then(|| TddConfig {
                        pattern: "DDSUU".into(),
                        downlink_symbols: 10,
                        uplink_symbols: 2,
                    }),
                    ..NrConfig::default()
                }),
            },
            mac: anabranch_ran::gnb::MacConfig {
                control: if self.control {
                    vec![ControlLoad { every_slots: 5, offset_slots: 1, rbs: 5 }]
                } else {
                    Vec::new()
                },
                ..Default::default()
            },
            harq: HarqConfig { bler: f64::from(self.bler % 128) / 256.0, ..HarqConfig::default() },
            scheduler: scheduler(self.scheduler),
            uplink_scheduler: Some(scheduler(self.uplink_scheduler)),
            slices: (0..3).map(|n: usize| SliceConfig::new(format!("s{n}"), shares[n])).collect(),
            ues: self.ues.iter().take(6).copied().enumerate().map(|(n, shape)| ue_config(n, shape)).collect(),
            telemetry: TelemetryConfig { packets: PacketEvents::All, slots: true, ues: true },
            ioam: self.gtpu.then_some(IoamConfig { node_id: 7, namespace: 123 }),
        }
    }
}

/// A packet without what a router or an AQM may change: ECN and the checksum of the IPv4 header.
fn fingerprint(packet: &[u8]) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    match bytes.first().map(|byte| byte >> 4) {
        Some(4) => [1, 10, 11].into_iter().for_each(|at| bytes.get_mut(at).into_iter().for_each(|b| *b = 0)),
        Some(6) => bytes.get_mut(1).into_iter().for_each(|b| *b &= 0xcf),
        _ => {}
    }
    bytes
}

/// What is on its way: by the port it may leave by, and what it is.
#[derive(Default)]
struct Books {
    offered: BTreeMap<(Port, Vec<u8>), u32>,
    out: [u64; 2],
    out_bytes: [u64; 2],
    gtpu: bool,
    events: u64,
    refused: u64,
}

impl Books {
    fn offer(&mut self, to: Port, packet: &[u8]) {
        *self.offered.entry((to, fingerprint(packet))).or_default() += 1;
    }
}

impl Sink<GnbEvent> for Books {
    fn transmit(&mut self, port: Port, packet: Packet) {
        let mut bytes = &packet[..];
        let direction = usize::from(port == Gnb::N3);
        if port == Gnb::N3 && self.gtpu {
            let (header, rest) = GtpuHeader::parse(bytes).expect("a message");
            if header.message == message::ECHO_RESPONSE {
                return;
            }
            assert!(header.session.is_some_and(|session| session.qfi < 64));
            bytes = rest;
        }
        self.out[direction] += 1;
        self.out_bytes[direction] += bytes.len() as u64;
        let left = self.offered.get_mut(&(port, fingerprint(bytes)));
        let left = left.filter(|left| **left > 0).expect("what comes out went in, and once");
        *left -= 1;
    }

    fn event(&mut self, event: GnbEvent) {
        self.events += 1;
        match event {
            GnbEvent::Slot(slot) => {
                let sum = u32::from(slot.used_rbs) + u32::from(slot.retx_rbs) + u32::from(slot.unused_rbs);
                assert_eq!(sum, u32::from(slot.rbs), "{slot:?}");
            }
            GnbEvent::Ue(slot) => assert!(slot.padding_bytes <= slot.tbs_bytes, "{slot:?}"),
            GnbEvent::Packet(times) => {
                let in_order =
                    [times.arrived, times.forwarded, times.first_pull, times.last_pull, times.delivered];
                assert!(in_order.is_sorted(), "{times:?}");
            }
            GnbEvent::Refused(why) => {
                self.refused += 1;
                assert!(!why.to_string().is_empty());
            }
        }
    }
}

struct Run {
    gnb: Gnb,
    books: Books,
    now: Instant,
    number: u32,
    ues: usize,
    slot: Duration,
}

impl Run {
    fn until(&mut self, end: Instant) {
        // A slot, a poll of SDAP every 200 us and a few timers for each UE and slot.
        let slots = (end - self.now).as_nanos() / self.slot.as_nanos() + 2;
        let most = slots * (40 + 40 * self.ues as u128) + 1000;
        for _ in 0..most {
            let Some((at, _)) = self.gnb.poll_timeout().filter(|(at, _)| *at <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(at);
            drive(&mut self.gnb, self.now, &mut self.books);
        }
        panic!("it spins before {end}");
    }

    fn give(&mut self, port: Port, bytes: Vec<u8>) {
        self.gnb.on_packet(port, Packet::new(self.now, bytes), self.now);
        drive(&mut self.gnb, self.now, &mut self.books);
    }

    fn datagram(&mut self, from: SocketAddr, to: SocketAddr, size: u16) -> Vec<u8> {
        let mut payload = vec![0; 4 + usize::from(size) % 2000];
        payload[..4].copy_from_slice(&self.number.to_be_bytes());
        self.number += 1;
        udp_datagram(from, to, &payload).expect("a datagram")
    }

    fn check(&mut self) {
        for direction in Direction::ALL {
            let stats = self.gnb.link_stats(direction, self.now);
            assert_eq!(stats.used_rbs + stats.retx_rbs + stats.unused_rbs, stats.rbs, "{stats:?}");
            assert!(
                stats.padding_bytes <= stats.block_bytes && stats.lost_blocks <= stats.nacks,
                "{stats:?}"
            );
            let side = usize::from(direction == Direction::Uplink);
            assert_eq!(stats.delivered_packets, self.books.out[side], "{direction:?} {stats:?}");
            assert_eq!(stats.delivered_bytes, self.books.out_bytes[side], "{direction:?} {stats:?}");
            for ue in 0..self.ues as u32 {
                for bearer in self.gnb.bearer_stats(ue, direction, self.now) {
                    assert!(bearer.buffer_bytes <= LIMIT_BYTES + 9010, "{bearer:?}");
                }
                for (qfi, flow) in self.gnb.flow_stats(ue, direction) {
                    assert!(flow.waiting_bytes <= LIMIT_BYTES + 9010, "QFI {qfi}: {flow:?}");
                }
            }
        }
    }

    fn command(&mut self, command: GnbCommand) {
        self.gnb.on_command(command, self.now);
        drive(&mut self.gnb, self.now, &mut self.books);
    }
}

const fn direction(up: bool) -> Direction {
    if up { Direction::Uplink } else { Direction::Downlink }
}

fuzz_target!(|input: Input| {
    let config = input.config();
    let Ok(gnb) = Gnb::new(&config, &mut |_| Err("no files".into())) else {
        assert!(config.ues.is_empty(), "a cell that can be");
        return;
    };
    let slot = gnb.amc().slot();
    let books = Books { gtpu: input.gtpu, ..Books::default() };
    let ues = config.ues.len();
    let mut run = Run { gnb, books, now: Instant::ZERO, number: 0, ues, slot };
    let name = |ue: u8| format!("ue{}", usize::from(ue) % (ues + 1));
    for op in input.ops.iter().take(200) {
        match op {
            Op::Down { ue, voice, size, count } => {
                let ue = usize::from(*ue) % ues;
                for _ in 0..=count % 32 {
                    let port = if *voice { VOICE } else { 5000 };
                    let inner = run.datagram(OUTSIDE, SocketAddr::new(address(ue), port), *size);
                    run.books.offer(Gnb::ue(ue as u16), &inner);
                    let session = (size % 3 > 0).then(|| PduSession::downlink(if *voice { 1 } else { 9 }));
                    let bytes = if input.gtpu {
                        let header = GtpuHeader::g_pdu(ue as u32 + 1, session);
                        let mut bytes = vec![0; header.header_len()];
                        header.emit(inner.len(), &mut bytes).expect("room");
                        bytes.extend(inner);
                        bytes
                    } else {
                        inner
                    };
                    run.give(Gnb::N3, bytes);
                }
            }
            Op::Up { ue, voice, size, count } => {
                let ue = usize::from(*ue) % ues;
                for _ in 0..=count % 32 {
                    let port = if *voice { VOICE } else { 5000 };
                    let inner = run.datagram(SocketAddr::new(address(ue), port), OUTSIDE, *size);
                    run.books.offer(Gnb::N3, &inner);
                    run.give(Gnb::ue(ue as u16), inner);
                }
            }
            Op::Raw { port, bytes } => {
                let port = Port(u16::from(*port) % (ues as u16 + 2));
                if port == Gnb::N3 {
                    // Should it be for a UE, it is the inner packet that arrives there.
                    let inner = match GtpuHeader::parse(bytes) {
                        Ok((_, rest)) if input.gtpu => rest,
                        _ => bytes,
                    };
                    (0..ues).for_each(|ue| run.books.offer(Gnb::ue(ue as u16), inner));
                } else {
                    run.books.offer(Gnb::N3, bytes);
                }
                run.give(port, bytes.clone());
            }
            Op::Message { kind, teid, qfi, cut, size } => {
                let kinds = [message::G_PDU, message::ECHO_REQUEST, message::ECHO_RESPONSE, *kind];
                let inner = vec![0x45; usize::from(*size) % 10_000];
                let header = GtpuHeader {
                    message: kinds[usize::from(*kind) % 4],
                    sequence: (kind % 3 == 0).then_some(*size),
                    ..GtpuHeader::g_pdu(
                        *teid % (ues as u32 + 2),
                        qfi.map(|qfi| PduSession::downlink(qfi % 64)),
                    )
                };
                let mut bytes = vec![0; header.header_len()];
                if header.emit(inner.len(), &mut bytes).is_ok() {
                    bytes.extend(&inner);
                    bytes.truncate(bytes.len().saturating_sub(usize::from(*cut)));
                    let arrives = match GtpuHeader::parse(&bytes) {
                        Ok((_, rest)) if input.gtpu => rest.to_vec(),
                        _ => bytes.clone(),
                    };
                    (0..ues).for_each(|ue| run.books.offer(Gnb::ue(ue as u16), &arrives));
                    run.give(Gnb::N3, bytes);
                }
            }
            Op::Pass { us } => run.until(run.now + Duration::from_micros((*us).into())),
            Op::Wait { ms } => run.until(run.now + Duration::from_millis(u64::from(*ms) % 2000)),
            Op::Leap { ms } => {
                run.now += Duration::from_millis((*ms).into());
                drive(&mut run.gnb, run.now, &mut run.books);
            }
            Op::Share { slice, percent } => {
                run.command(GnbCommand::Share { slice: format!("s{}", slice % 4), share_percent: *percent });
            }
            Op::Slices(slices) => {
                let slice =
                    |(name, share): &(u8, u8)| SliceConfig::new(format!("s{}", name % 5), f64::from(*share));
                run.command(GnbCommand::Slices(slices.iter().take(6).map(slice).collect()));
            }
            Op::Scheduler { up, which, limit } => {
                let mut scheduler = scheduler(*which);
                match &mut scheduler {
                    InterConfig::EqpExact(params) | InterConfig::EqpPaper(params) => {
                        params.quantum_limit_rbs = *limit;
                    }
                    InterConfig::GpsPacking(params) => params.lag_limit_rbs = *limit,
                    _ => {}
                }
                run.command(GnbCommand::Scheduler { direction: direction(*up), scheduler });
            }
            Op::Move { ue, slice } => {
                run.command(GnbCommand::Move { ue: name(*ue), slice: format!("s{}", slice % 4) });
            }
            Op::Channel { ue, up, kind, value } => {
                let quality = match kind % 3 {
                    0 => Quality::Mcs(*value),
                    1 => Quality::Cqi(*value),
                    _ => Quality::Outage,
                };
                let channel = Channel::constant(quality);
                run.command(GnbCommand::Channel { ue: name(*ue), direction: direction(*up), channel });
            }
            Op::Queue { ue, drb, up, which, mtu } => {
                let queue = Algorithm::ALL[usize::from(*which) % Algorithm::ALL.len()].into();
                let limit = BufferLimit { bytes: LIMIT_BYTES, sdus: LIMIT_SDUS };
                let mtu_bytes = u32::from(*mtu).clamp(1, 9000);
                let params = BearerParams {
                    pulls: anabranch_ran::amc::Pulls::every(slot),
                    mtu_bytes,
                    limit,
                    seed: 1,
                    ..BearerParams::default()
                };
                let (ue, drb, direction) = (name(*ue), 1 + drb % 3, direction(*up));
                run.command(GnbCommand::Queue { ue, drb, direction, queue, params });
            }
            Op::Telemetry(bits) => run.command(GnbCommand::Telemetry(TelemetryConfig {
                packets: match bits & 9 {
                    0 => PacketEvents::None,
                    8 => PacketEvents::Downlink,
                    _ => PacketEvents::All,
                },
                slots: bits & 2 > 0,
                ues: bits & 4 > 0,
            })),
        }
        run.check();
    }
    // A good channel for everybody, and a scheduler that lets nobody wait.
    for up in [false, true] {
        let direction = direction(up);
        let scheduler = InterAlgorithm::StaticPriority.into();
        run.command(GnbCommand::Scheduler { direction, scheduler });
        for ue in 0..ues {
            let (ue, channel) = (format!("ue{ue}"), Channel::constant(Quality::Cqi(12)));
            run.command(GnbCommand::Channel { ue, direction, channel });
        }
    }
    for _ in 0..30 {
        if run.gnb.poll_timeout().is_none() {
            break;
        }
        run.until(run.now + Duration::from_secs(1));
    }
    run.check();
    assert_eq!(run.gnb.poll_timeout(), None, "nobody sends, and the cell falls quiet");
});
