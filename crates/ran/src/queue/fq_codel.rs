//! `fq_codel`: flow queueing with CoDel in the RLC buffer, RFC 8290.
//!
//! ```text
//!            hash of the 5-tuple                    deficit round robin over
//!   ──▶ ┬▶ ▯▯▯▯▯▯▯  CoDel ─┐     new flows ─▶ ▢ ▢        first
//!       ├▶ ▯        CoDel ─┼─▶                           ──▶ MAC
//!       └▶ ▯▯▯      CoDel ─┘     old flows ─▶ ▢ ▢ ▢      then
//! ```
//!
//! A flow that was empty is served before the flows that always have packets: voice overtakes the bulk flow inside RLC. This
//! is possible only before an SDU has been segmented. PDCP numbers packets when they leave the buffer ([`crate::pdcp`]); if
//! it numbered them earlier, the UE's PDCP would have to deliver out of order (TS 38.323 §5.8).
//!
//! Differences from the source: none in the algorithm. When the buffer is full, the flow with the most bytes loses half of
//! them from its head, at most 64 packets (RFC 8290 §4.1.3). Packets that are not IP form one flow. All SDUs are in one slab,
//! which bounds memory by the total limit instead of a limit per flow.

use super::codel::{CoDel, CoDelParams, Controlled};
use super::{BearerParams, Buffer, BufferLimit, BufferStats, Discipline, OutOfRange, Sdu, at_least_1};
use crate::registry::in_range;
use anabranch_element::time::Instant;
use anabranch_wire::ip::{FlowKey, HashKey};
use serde::{Deserialize, Serialize};

/// Maximum number of packets dropped at once when the buffer is full.
const DROP_BATCH: usize = 64;
/// No index.
const NONE: u32 = u32::MAX;

/// Parameters; the defaults are those of RFC 8290.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FqCoDelParams {
    /// Number of queues, 1 to 65536.
    pub flows: u32,
    /// Bytes a flow may send per round; 0: one MTU.
    pub quantum_bytes: u32,
    /// Acceptable standing delay, microseconds.
    pub target_us: u32,
    /// Time a sender may take to react, microseconds.
    pub interval_us: u32,
    /// Whether ECN-capable packets are marked instead of dropped.
    pub ecn: bool,
}

impl Default for FqCoDelParams {
    fn default() -> Self {
        Self { flows: 1024, quantum_bytes: 0, target_us: 5_000, interval_us: 100_000, ecn: true }
    }
}

/// The buffer of one bearer.
#[derive(Debug, Clone)]
pub struct FqCoDel {
    codel: CoDelParams,
    quantum_bytes: u32,
    mtu_bytes: u32,
    limit: BufferLimit,
    key: HashKey,
    flows: Box<[Flow]>,
    new_flows: List,
    old_flows: List,
    slab: Slab,
    bytes: u64,
    stats: BufferStats,
}

#[derive(Debug, Clone, Copy)]
struct Flow {
    head: u32,
    tail: u32,
    bytes: u64,
    deficit: i64,
    codel: CoDel,
    /// Index of the next flow in the same list.
    next: u32,
    listed: bool,
}

/// A singly linked list through [`Flow::next`].
#[derive(Debug, Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
}

#[derive(Debug, Clone, Default)]
struct Slab {
    nodes: Vec<(Option<Sdu>, u32)>,
    free: Vec<u32>,
    len: usize,
}

impl Slab {
    fn insert(&mut self, sdu: Sdu) -> u32 {
        self.len += 1;
        if let Some(index) = self.free.pop() {
            self.nodes[index as usize] = (Some(sdu), NONE);
            return index;
        }
        self.nodes.push((Some(sdu), NONE));
        (self.nodes.len() - 1) as u32
    }

    fn remove(&mut self, index: u32) -> Option<(Sdu, u32)> {
        let node = self.nodes.get_mut(index as usize)?;
        let sdu = node.0.take()?;
        self.len -= 1;
        self.free.push(index);
        Some((sdu, node.1))
    }
}

impl List {
    const EMPTY: Self = Self { head: NONE, tail: NONE };

    fn push(&mut self, flows: &mut [Flow], flow: u32) {
        flows[flow as usize].next = NONE;
        match self.tail {
            NONE => self.head = flow,
            tail => flows[tail as usize].next = flow,
        }
        self.tail = flow;
    }

    fn pop(&mut self, flows: &[Flow]) -> Option<u32> {
        let flow = self.head;
        if flow == NONE {
            return None;
        }
        self.head = flows[flow as usize].next;
        if self.head == NONE {
            self.tail = NONE;
        }
        Some(flow)
    }
}

/// One flow of the buffer, as a queue for CoDel.
struct FlowQueue<'a> {
    flow: &'a mut Flow,
    slab: &'a mut Slab,
    bytes: &'a mut u64,
    stats: &'a mut BufferStats,
}

impl Controlled for FlowQueue<'_> {
    fn pop_front(&mut self, _: Instant) -> Option<Sdu> {
        let (sdu, next) = self.slab.remove(self.flow.head)?;
        self.flow.head = next;
        if next == NONE {
            self.flow.tail = NONE;
        }
        self.flow.bytes -= u64::from(sdu.bytes());
        *self.bytes -= u64::from(sdu.bytes());
        Some(sdu)
    }
    fn len_bytes(&self) -> u64 {
        self.flow.bytes
    }
    fn on_drop(&mut self, _: Sdu) {
        self.stats.aqm_drops += 1;
    }
    fn on_mark(&mut self) {
        self.stats.ce_marks += 1;
    }
}

impl FqCoDel {
    /// An empty buffer.
    #[must_use]
    pub fn new(params: FqCoDelParams, bearer: BearerParams) -> Self {
        let flow = Flow {
            head: NONE,
            tail: NONE,
            bytes: 0,
            deficit: 0,
            codel: CoDel::default(),
            next: NONE,
            listed: false,
        };
        let mtu_bytes = bearer.mtu_bytes.max(1);
        Self {
            codel: CoDelParams {
                target_us: bearer.target_us(params.target_us),
                interval_us: params.interval_us,
                ecn: params.ecn,
            },
            quantum_bytes: if params.quantum_bytes == 0 { mtu_bytes } else { params.quantum_bytes },
            mtu_bytes,
            limit: BufferLimit { sdus: bearer.limit.sdus.min(NONE as usize - 1), ..bearer.limit },
            key: (bearer.seed, !bearer.seed),
            flows: vec![flow; params.flows.clamp(1, 1 << 16) as usize].into_boxed_slice(),
            new_flows: List::EMPTY,
            old_flows: List::EMPTY,
            slab: Slab::default(),
            bytes: 0,
            stats: BufferStats::default(),
        }
    }

    fn flow_queue(&mut self, flow: u32) -> (&mut CoDelParams, u32, FlowQueue<'_>) {
        let one = FlowQueue {
            flow: &mut self.flows[flow as usize],
            slab: &mut self.slab,
            bytes: &mut self.bytes,
            stats: &mut self.stats,
        };
        (&mut self.codel, self.mtu_bytes, one)
    }

    /// RFC 8290 §4.1.3: drops half of the bytes of the largest flow, oldest first.
    fn drop_from_largest(&mut self, now: Instant) {
        let fattest = self.flows.iter().enumerate().max_by_key(|(_, f)| f.bytes).map_or(0, |(i, _)| i as u32);
        let (_, _, mut one) = self.flow_queue(fattest);
        let keep = one.flow.bytes / 2;
        let mut dropped = 0;
        while dropped < DROP_BATCH && (dropped == 0 || one.flow.bytes > keep) {
            if one.pop_front(now).is_none() {
                break;
            }
            dropped += 1;
        }
        self.stats.full_drops += dropped as u64;
    }

    fn is_over(&self) -> bool {
        self.bytes > self.limit.bytes || self.slab.len > self.limit.sdus
    }
}

impl Discipline for FqCoDel {
    type Params = FqCoDelParams;

    fn check(params: &FqCoDelParams) -> Result<(), OutOfRange> {
        in_range("flows", params.flows, (1..=1 << 16).contains(&params.flows), "1 to 65536")?;
        at_least_1("target_us", params.target_us)?;
        at_least_1("interval_us", params.interval_us)
    }

    fn build(params: &FqCoDelParams, bearer: BearerParams) -> Self {
        Self::new(*params, bearer)
    }
}

impl Buffer for FqCoDel {
    fn push(&mut self, sdu: Sdu, now: Instant) {
        self.stats.pushed_sdus += 1;
        let hash = FlowKey::parse(sdu.ip()).map_or(0, |key| key.hash64(self.key));
        let index = (hash % self.flows.len() as u64) as u32;
        let bytes = u64::from(sdu.bytes());
        let node = self.slab.insert(sdu);
        let flow = &mut self.flows[index as usize];
        match flow.tail {
            NONE => flow.head = node,
            tail => self.slab.nodes[tail as usize].1 = node,
        }
        flow.tail = node;
        flow.bytes += bytes;
        self.bytes += bytes;
        if !flow.listed {
            flow.listed = true;
            flow.deficit = i64::from(self.quantum_bytes);
            self.new_flows.push(&mut self.flows, index);
        }
        while self.is_over() {
            self.drop_from_largest(now);
        }
        self.stats.max_bytes = self.stats.max_bytes.max(self.bytes);
    }

    fn pop(&mut self, now: Instant) -> Option<Sdu> {
        loop {
            let from_new = self.new_flows.head != NONE;
            let index = if from_new { self.new_flows.head } else { self.old_flows.head };
            if index == NONE {
                return None;
            }
            let list = if from_new { &mut self.new_flows } else { &mut self.old_flows };
            if self.flows[index as usize].deficit <= 0 {
                self.flows[index as usize].deficit += i64::from(self.quantum_bytes);
                list.pop(&self.flows);
                self.old_flows.push(&mut self.flows, index);
                continue;
            }
            let mut codel = self.flows[index as usize].codel;
            let (params, mtu_bytes, mut one) = self.flow_queue(index);
            let sdu = codel.pop(&mut one, params, mtu_bytes, now);
            let flow = &mut self.flows[index as usize];
            flow.codel = codel;
            if let Some(sdu) = sdu {
                flow.deficit -= i64::from(sdu.bytes());
                self.stats.popped_sdus += 1;
                return Some(sdu);
            }
            // A new flow that ran dry moves to the end of the old flows; otherwise it could return at once and starve them (RFC 8290
            // §4.2).
            let list = if from_new { &mut self.new_flows } else { &mut self.old_flows };
            list.pop(&self.flows);
            if from_new && self.old_flows.head != NONE {
                self.old_flows.push(&mut self.flows, index);
            } else {
                self.flows[index as usize].listed = false;
            }
        }
    }

    fn len_sdus(&self) -> usize {
        self.slab.len
    }

    fn len_bytes(&self) -> u64 {
        self.bytes
    }

    /// Flow by flow in the order of the lists; rounds are not predicted.
    fn sizes(&self, max_sdus: usize, out: &mut Vec<u32>) {
        let mut left = max_sdus;
        for mut index in [self.new_flows.head, self.old_flows.head] {
            while let Some(flow) = self.flows.get(index as usize) {
                let mut node = flow.head;
                while let Some((Some(sdu), next)) = self.slab.nodes.get(node as usize) {
                    if left == 0 {
                        return;
                    }
                    left -= 1;
                    out.push(sdu.bytes());
                    node = *next;
                }
                index = flow.next;
            }
        }
    }

    fn stats(&self) -> BufferStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_element::packet::Packet;
    use anabranch_wire::ip::udp_datagram;

    fn sdu(port: u16, payload: usize, at: Instant) -> Sdu {
        let src = std::net::SocketAddr::from(([10, 0, 0, 1], port));
        let ip = udp_datagram(src, "10.0.0.2:2".parse().unwrap(), &vec![0; payload]).unwrap();
        Sdu::new(Packet::new(at, ip), 1)
    }

    fn port(sdu: &Sdu) -> u16 {
        FlowKey::parse(sdu.ip()).unwrap().src_port
    }

    fn balance(q: &FqCoDel) {
        let s = q.stats();
        assert_eq!(s.pushed_sdus, s.popped_sdus + s.full_drops + s.aqm_drops + q.len_sdus() as u64);
        assert_eq!(q.len_bytes(), q.flows.iter().map(|f| f.bytes).sum::<u64>());
    }

    #[test]
    fn a_sparse_flow_goes_first_and_bulk_flows_share() {
        let t = Instant::ZERO;
        let mut q = FqCoDel::new(FqCoDelParams::default(), BearerParams::default());
        for _ in 0..20 {
            q.push(sdu(1, 1472, t), t);
            q.push(sdu(2, 972, t), t);
        }
        // Each has been a new flow once.
        for _ in 0..4 {
            q.pop(t).unwrap();
        }
        q.push(sdu(3, 172, t), t);
        assert_eq!(port(&q.pop(t).unwrap()), 3);
        let mut bytes = [0u32; 3];
        for _ in 0..16 {
            let sdu = q.pop(t).unwrap();
            bytes[usize::from(port(&sdu))] += sdu.bytes();
        }
        assert!(bytes[1].abs_diff(bytes[2]) <= 3000, "{bytes:?}");
        balance(&q);
    }

    #[test]
    fn a_full_buffer_drops_from_the_largest_flow() {
        let t = Instant::ZERO;
        let limit = BufferLimit { bytes: 1 << 30, sdus: 100 };
        let mut q = FqCoDel::new(FqCoDelParams::default(), BearerParams { limit, ..BearerParams::default() });
        for _ in 0..10 {
            q.push(sdu(1, 100, t), t);
        }
        for _ in 0..1000 {
            q.push(sdu(2, 1000, t), t);
            assert!(q.len_sdus() <= 100);
        }
        balance(&q);
        let mut of_first = 0;
        while let Some(sdu) = q.pop(t) {
            of_first += u32::from(port(&sdu) == 1);
        }
        assert_eq!(of_first, 10);
        assert!(q.slab.nodes.len() <= 101, "the slab does not grow with the number of flows or packets");
        balance(&q);
    }

    #[test]
    fn codel_applies_to_each_flow_separately() {
        let mut q = FqCoDel::new(FqCoDelParams { ecn: false, ..Default::default() }, BearerParams::default());
        let mut voice = 0;
        for ms in 0..1000 {
            let now = Instant::from_millis(ms);
            q.push(sdu(1, 1472, now), now);
            q.push(sdu(1, 1472, now), now);
            if ms % 20 == 0 {
                q.push(sdu(2, 172, now), now);
            }
            for _ in 0..(1 + u32::from(ms % 20 == 0)) {
                voice += u32::from(q.pop(now).is_some_and(|s| port(&s) == 2));
            }
        }
        assert_eq!(voice, 50, "no voice packet is dropped or late");
        assert!(q.stats().aqm_drops > 10);
        balance(&q);
    }

    #[test]
    fn packets_that_are_not_ip_are_one_flow_in_order() {
        let t = Instant::ZERO;
        let mut q = FqCoDel::new(FqCoDelParams::default(), BearerParams::default());
        for n in 0..50u8 {
            q.push(Sdu::new(Packet::new(t, vec![n; usize::from(n)]), 0), t);
        }
        let mut sizes = Vec::new();
        q.sizes(3, &mut sizes);
        assert_eq!(sizes, [0, 1, 2]);
        for n in 0..50u32 {
            assert_eq!(q.pop(t).unwrap().bytes(), n);
        }
        assert!(q.pop(t).is_none());
        balance(&q);
    }
}
