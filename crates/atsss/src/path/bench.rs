//! Two monitors at the ends of a virtual channel with loss, delay ramps, black holes and flaps. Measures how
//! fast, and how often, they declare a path down.

use super::{DownReason, PathEvent, PathMonitor, ProbeParams, Role};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::control::Probe;
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

pub(super) const UE: usize = 0;
pub(super) const UPF: usize = 1;
/// UDP payload of a probe in the secure form, plus UDP and IPv4.
pub(super) const PROBE_BYTES: u64 = 40 + 60 + 28;

/// One direction of the channel. Packets keep their order unless `jitter` is set.
pub(super) struct Direction {
    pub delay: Box<dyn Fn(Instant) -> Duration>,
    pub jitter: Duration,
    pub loss: f64,
    pub dead: Vec<(Instant, Instant)>,
    last_arrival: Instant,
}

impl Direction {
    fn new(delay: Duration) -> Self {
        Self {
            delay: Box::new(move |_| delay),
            jitter: Duration::ZERO,
            loss: 0.0,
            dead: Vec::new(),
            last_arrival: Instant::ZERO,
        }
    }
}

/// Packets of `bytes`, one every `gap`, from `from` until `until`.
#[derive(Clone, Copy)]
pub(super) struct Traffic {
    pub from: Instant,
    pub until: Instant,
    pub gap: Duration,
    pub bytes: usize,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Data(usize),
    Probe(u32),
    Notify(bool),
    Generate(usize),
    Carrier(bool),
    Wake,
}

pub(super) struct Bench {
    pub ends: [PathMonitor; 2],
    /// Index 0: UE to UPF; 1: back.
    pub directions: [Direction; 2],
    pub traffic: [Option<Traffic>; 2],
    /// One-way delay of the other access, on which an end notifies the other of its result.
    pub notify: Option<Duration>,
    pub events: Vec<(Instant, usize, PathEvent)>,
    /// When answers became overdue at the UE.
    pub overdue: Vec<Instant>,
    pub probes_sent: [u64; 2],
    /// Data packets sent and data packets lost, per sender.
    pub data: [(u64, u64); 2],
    probes: Vec<Probe>,
    heap: BinaryHeap<Reverse<(Instant, u64, usize, What)>>,
    rng: ChaCha12Rng,
    order: u64,
    wake_at: [Instant; 2],
    pub now: Instant,
}

impl Bench {
    /// A loss-free path of round-trip time `rtt`, both ends up, nothing sent yet.
    pub fn new(rtt: Duration, seed: u64) -> Self {
        Self::with(&ProbeParams::default(), rtt, seed)
    }

    pub fn with(params: &ProbeParams, rtt: Duration, seed: u64) -> Self {
        let params = Arc::new(*params);
        let mut ends = [Role::Ue, Role::Upf].map(|role| PathMonitor::new(role, &params, Instant::ZERO));
        for end in &mut ends {
            assert_eq!(end.confirm(Some(rtt), Instant::ZERO), Some(PathEvent::Up));
        }
        Self {
            ends,
            directions: [Direction::new(rtt / 2), Direction::new(rtt / 2)],
            traffic: [None, None],
            notify: None,
            events: Vec::new(),
            overdue: Vec::new(),
            probes_sent: [0; 2],
            data: [(0, 0); 2],
            probes: Vec::new(),
            heap: BinaryHeap::new(),
            rng: ChaCha12Rng::seed_from_u64(seed),
            order: 0,
            wake_at: [Instant::MAX; 2],
            now: Instant::ZERO,
        }
    }

    pub fn loss(mut self, both_ways: f64) -> Self {
        for d in &mut self.directions {
            d.loss = both_ways;
        }
        self
    }

    pub fn traffic(mut self, from: usize, traffic: Traffic) -> Self {
        self.schedule(traffic.from, from, What::Generate(traffic.bytes));
        self.traffic[from] = Some(traffic);
        self
    }

    pub fn dead(mut self, direction: usize, from: Instant, until: Instant) -> Self {
        self.directions[direction].dead.push((from, until));
        self
    }

    pub fn carrier(mut self, up: bool, at: Instant) -> Self {
        self.schedule(at, UE, What::Carrier(up));
        self
    }

    fn schedule(&mut self, at: Instant, end: usize, what: What) {
        self.order += 1;
        self.heap.push(Reverse((at, self.order, end, what)));
    }

    fn wake(&mut self, end: usize, at: Instant) {
        if at < self.wake_at[end] {
            self.wake_at[end] = at;
            self.schedule(at, end, What::Wake);
        }
    }

    fn chance(&mut self) -> f64 {
        f64::from(self.rng.next_u32()) / 4_294_967_296.0
    }

    /// Puts a packet on the channel. Returns whether it will arrive.
    fn transmit(&mut self, from: usize, what: What) -> bool {
        let draw = self.chance();
        let spread = self.chance();
        let now = self.now;
        let d = &mut self.directions[from];
        let dead = d.dead.iter().any(|(a, b)| (*a..*b).contains(&now));
        if dead || draw < d.loss {
            return false;
        }
        let mut at = now + (d.delay)(now);
        if d.jitter.is_zero() {
            at = at.max(d.last_arrival);
            d.last_arrival = at;
        } else {
            at += d.jitter.mul_f64(spread);
        }
        self.schedule(at, 1 - from, what);
        true
    }

    fn send_probe(&mut self, from: usize, probe: Probe) {
        self.probes_sent[from] += 1;
        let index = self.probes.len() as u32;
        self.probes.push(probe);
        self.transmit(from, What::Probe(index));
    }

    fn note(&mut self, end: usize, event: Option<PathEvent>) {
        let Some(event) = event else { return };
        self.events.push((self.now, end, event));
        if let (PathEvent::Up | PathEvent::Down(_), Some(delay)) = (event, self.notify) {
            self.schedule(self.now + delay, 1 - end, What::Notify(event == PathEvent::Up));
        }
    }

    fn take(&mut self, end: usize, what: What) {
        let now = self.now;
        match what {
            What::Data(bytes) => self.ends[end].on_data_received(bytes, now),
            What::Probe(index) => {
                let probe = self.probes[index as usize];
                let (answer, event) = self.ends[end].on_probe(&probe, 16, now);
                if let Some(answer) = answer {
                    self.send_probe(end, answer);
                }
                self.note(end, event);
            }
            What::Notify(up) => {
                let event = self.ends[end].on_notify(up, DownReason::Silence.code(), now);
                // A result that was received as a notification is not sent back.
                self.events.extend(event.map(|e| (now, end, e)));
            }
            What::Generate(bytes) => {
                let Some(traffic) = self.traffic[end] else { return };
                self.ends[end].on_data_sent(bytes, now);
                let arrives = self.transmit(end, What::Data(bytes));
                self.data[end].0 += 1;
                self.data[end].1 += u64::from(!arrives);
                if now + traffic.gap < traffic.until {
                    self.schedule(now + traffic.gap, end, What::Generate(bytes));
                }
            }
            What::Carrier(up) => {
                let event = self.ends[end].set_carrier(up, now);
                self.note(end, event);
            }
            What::Wake => {}
        }
    }

    /// Runs all events before `until`.
    pub fn run(&mut self, until: Instant) -> &mut Self {
        self.wake(UE, self.now);
        self.wake(UPF, self.now);
        while self.heap.peek().is_some_and(|Reverse((at, ..))| *at < until) {
            let Some(Reverse((at, _, end, what))) = self.heap.pop() else { break };
            self.now = at;
            if what == What::Wake {
                if self.wake_at[end] != at {
                    continue; // superseded by an earlier one
                }
                self.wake_at[end] = Instant::MAX;
            }
            self.take(end, what);
            // All arrivals at this instant are processed before timers.
            if self.heap.peek().is_some_and(|Reverse((t, _, e, w))| (*t, *e) == (at, end) && *w != What::Wake)
            {
                continue;
            }
            let event = self.ends[end].on_timeout(at);
            self.note(end, event);
            let overdue = self.ends[end].is_overdue(at);
            if self.ends[end].set_overdue(overdue, false) == Some(true) {
                self.overdue.push(at);
            }
            if let Some(request) = self.ends[end].poll_probe(16, at) {
                self.send_probe(end, request);
            }
            assert_eq!(self.ends[end].poll_probe(16, at), None, "one request at a time");
            if let Some((next, why)) = self.ends[end].poll_timeout() {
                assert!(next > at, "{why} at {next} would spin at {at}");
                self.wake(end, next);
            }
        }
        self.now = until;
        self
    }

    /// When `end` first declared the path down at or after `from`.
    pub fn down_at(&self, end: usize, from: Instant) -> Option<Instant> {
        let down =
            |e: &&(Instant, usize, PathEvent)| e.0 >= from && e.1 == end && matches!(e.2, PathEvent::Down(_));
        self.events.iter().find(down).map(|e| e.0)
    }

    pub fn up_at(&self, end: usize, from: Instant) -> Option<Instant> {
        self.events.iter().find(|e| e.0 >= from && e.1 == end && e.2 == PathEvent::Up).map(|e| e.0)
    }

    pub fn downs(&self) -> usize {
        self.events.iter().filter(|e| matches!(e.2, PathEvent::Down(_))).count()
    }
}
