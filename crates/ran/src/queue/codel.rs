//! `codel`: controlled delay (CoDel) in the RLC buffer, RFC 8289; `fq_codel` uses the same state machine.
//!
//! ```text
//!            sojourn > target for a whole interval
//!   waiting ───────────────────────────────────────▶ dropping: now, then after interval/√1,
//!      ▲                                                │       interval/√2, interval/√3 …
//!      └──── sojourn < target, or less than an MTU ─────┘
//! ```
//!
//! In the uplink, a packet waits some slots for its grant even with an empty queue. This time is added to the target: with
//! ten slots of 1 ms, a target of 5 ms would leave more than half of the carrier unused.
//!
//! RLC §V-D: target 5 ms, interval 100 ms, drops. With `ecn`, ECN-capable packets are marked instead (RFC 8289 §3, as in
//! Linux). The sojourn time is from SDAP passing the packet to RLC until the MAC's pull.

use super::vanilla::Fifo;
use super::{BearerParams, Buffer, BufferStats, Discipline, OutOfRange, Sdu, at_least_1};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ip::set_ce;
use serde::{Deserialize, Serialize};

/// Parameters; the defaults are those of RFC 8289 and RLC §V-D.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CoDelParams {
    /// Acceptable standing delay, microseconds.
    pub target_us: u32,
    /// Time a sender may take to react, microseconds.
    pub interval_us: u32,
    /// Whether ECN-capable packets are marked instead of dropped.
    pub ecn: bool,
}

impl Default for CoDelParams {
    fn default() -> Self {
        Self { target_us: 5_000, interval_us: 100_000, ecn: false }
    }
}

/// The CoDel state of one queue.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CoDel {
    first_above: Option<Instant>,
    drop_next: Instant,
    count: u32,
    last_count: u32,
    dropping: bool,
}

/// A queue controlled by CoDel: removal of packets, remaining bytes, counters.
pub(super) trait Controlled {
    fn pop_front(&mut self, now: Instant) -> Option<Sdu>;
    fn len_bytes(&self) -> u64;
    fn on_drop(&mut self, sdu: Sdu);
    fn on_mark(&mut self);
}

impl CoDel {
    /// The next SDU of `queue`; drops or marks others on the way according to RFC 8289 §5.5.
    pub(super) fn pop(
        &mut self,
        queue: &mut impl Controlled,
        params: &CoDelParams,
        mtu_bytes: u32,
        now: Instant,
    ) -> Option<Sdu> {
        let (mut sdu, late) = self.take(queue, params, mtu_bytes, now)?;
        if self.dropping {
            if !late {
                self.dropping = false;
            }
            while self.dropping && now >= self.drop_next {
                self.count = self.count.saturating_add(1);
                if params.ecn && set_ce(sdu.ip_mut()) {
                    queue.on_mark();
                    self.drop_next = self.control_law(self.drop_next, params);
                    break;
                }
                queue.on_drop(sdu);
                let Some(next) = self.take(queue, params, mtu_bytes, now) else {
                    self.dropping = false;
                    return None;
                };
                (sdu, self.dropping) = next;
                if self.dropping {
                    self.drop_next = self.control_law(self.drop_next, params);
                }
            }
        } else if late {
            if params.ecn && set_ce(sdu.ip_mut()) {
                queue.on_mark();
            } else {
                queue.on_drop(sdu);
                sdu = self.take(queue, params, mtu_bytes, now)?.0;
            }
            self.dropping = true;
            let interval = Duration::from_micros(params.interval_us.into());
            let delta = self.count.saturating_sub(self.last_count);
            // The dropping state ended recently: resume near the drop rate that controlled the queue.
            let recent = now.saturating_since(self.drop_next) < interval.saturating_mul(16);
            self.count = if delta > 1 && recent { delta } else { 1 };
            self.drop_next = self.control_law(now, params);
            self.last_count = self.count;
        }
        Some(sdu)
    }

    /// Removes an SDU, and returns whether the sojourn time has exceeded the target for an interval.
    fn take(
        &mut self,
        queue: &mut impl Controlled,
        params: &CoDelParams,
        mtu_bytes: u32,
        now: Instant,
    ) -> Option<(Sdu, bool)> {
        let Some(sdu) = queue.pop_front(now) else {
            self.first_above = None;
            return None;
        };
        let sojourn = now.saturating_since(sdu.forwarded);
        let low = sojourn < Duration::from_micros(params.target_us.into());
        if low || queue.len_bytes() <= u64::from(mtu_bytes) {
            self.first_above = None;
            return Some((sdu, false));
        }
        let due =
            *self.first_above.get_or_insert_with(|| now + Duration::from_micros(params.interval_us.into()));
        Some((sdu, now >= due))
    }

    fn control_law(&self, from: Instant, params: &CoDelParams) -> Instant {
        let interval_ns = f64::from(params.interval_us) * 1000.0;
        from + Duration::from_nanos((interval_ns / f64::from(self.count.max(1)).sqrt()) as u64)
    }
}

/// A FIFO under CoDel.
#[derive(Debug, Clone)]
pub struct CoDelQueue {
    params: CoDelParams,
    mtu_bytes: u32,
    codel: CoDel,
    queue: CountingFifo,
}

#[derive(Debug, Clone)]
struct CountingFifo {
    fifo: Fifo,
    drops: u64,
    marks: u64,
}

impl Controlled for CountingFifo {
    fn pop_front(&mut self, now: Instant) -> Option<Sdu> {
        self.fifo.pop(now)
    }
    fn len_bytes(&self) -> u64 {
        self.fifo.len_bytes()
    }
    fn on_drop(&mut self, _: Sdu) {
        self.drops += 1;
    }
    fn on_mark(&mut self) {
        self.marks += 1;
    }
}

impl CoDelQueue {
    /// An empty queue.
    #[must_use]
    pub fn new(params: CoDelParams, bearer: BearerParams) -> Self {
        Self {
            params: CoDelParams { target_us: bearer.target_us(params.target_us), ..params },
            mtu_bytes: bearer.mtu_bytes,
            codel: CoDel::default(),
            queue: CountingFifo { fifo: Fifo::new(bearer.limit), drops: 0, marks: 0 },
        }
    }
}

impl Discipline for CoDelQueue {
    type Params = CoDelParams;

    fn check(params: &CoDelParams) -> Result<(), OutOfRange> {
        at_least_1("target_us", params.target_us)?;
        at_least_1("interval_us", params.interval_us)
    }

    fn build(params: &CoDelParams, bearer: BearerParams) -> Self {
        Self::new(*params, bearer)
    }
}

impl Buffer for CoDelQueue {
    fn push(&mut self, sdu: Sdu, now: Instant) {
        self.queue.fifo.push(sdu, now);
    }

    fn pop(&mut self, now: Instant) -> Option<Sdu> {
        self.codel.pop(&mut self.queue, &self.params, self.mtu_bytes, now)
    }

    fn len_sdus(&self) -> usize {
        self.queue.fifo.len_sdus()
    }

    fn len_bytes(&self) -> u64 {
        self.queue.fifo.len_bytes()
    }

    fn sizes(&self, max_sdus: usize, out: &mut Vec<u32>) {
        self.queue.fifo.sizes(max_sdus, out);
    }

    fn stats(&self) -> BufferStats {
        let inner = self.queue.fifo.stats();
        BufferStats {
            popped_sdus: inner.popped_sdus - self.queue.drops,
            aqm_drops: self.queue.drops,
            ce_marks: self.queue.marks,
            ..inner
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_element::packet::Packet;
    use anabranch_wire::ip::{Ecn, ecn, internet_checksum, udp_datagram};

    fn sdu(at: Instant, ecn_bits: u8) -> Sdu {
        let (src, dst) = ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
        let mut ip = udp_datagram(src, dst, &[0; 1472]).unwrap();
        ip[1] |= ecn_bits;
        ip[10..12].fill(0);
        let sum = internet_checksum(&ip[..20]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        Sdu::new(Packet::new(at, ip), 9)
    }

    /// A sender that never slows down: 2 packets in, 1 out per millisecond. Returns the times of drops.
    fn overload(params: CoDelParams, ecn_bits: u8, ms: u64) -> (Vec<u64>, CoDelQueue) {
        let mut q = CoDelQueue::new(params, BearerParams::default());
        let (mut drops, mut at) = (0, Vec::new());
        for now in 0..ms {
            let now_at = Instant::from_millis(now);
            q.push(sdu(now_at, ecn_bits), now_at);
            q.push(sdu(now_at, ecn_bits), now_at);
            q.pop(now_at).unwrap();
            let s = q.stats();
            let acted = s.aqm_drops + s.ce_marks;
            at.extend((drops..acted).map(|_| now));
            drops = acted;
        }
        (at, q)
    }

    #[test]
    fn drops_come_faster_by_the_square_root() {
        let (at, q) = overload(CoDelParams::default(), 0, 500);
        // A standing queue of 5 ms exists from 10 ms on; then one interval passes.
        let first = at[0];
        assert!((109..=112).contains(&first), "{first}");
        // Later by interval/√1, /√2, /√3 …, rounded to the millisecond.
        let mut expected = vec![first as f64];
        for n in 1..at.len() {
            expected.push(expected[n - 1] + 100.0 / (n as f64).sqrt());
        }
        for (got, want) in at.iter().zip(&expected) {
            assert!((*got as f64 - want).abs() <= 1.0, "{at:?}\n{expected:?}");
        }
        let s = q.stats();
        assert_eq!(s.pushed_sdus, s.popped_sdus + s.full_drops + s.aqm_drops + q.len_sdus() as u64);
        assert_eq!(s.ce_marks, 0);
    }

    #[test]
    fn ecn_marks_in_place_of_drops() {
        let (at, q) = overload(CoDelParams { ecn: true, ..CoDelParams::default() }, 2, 500);
        assert_eq!(q.stats().aqm_drops, 0);
        assert_eq!(q.stats().ce_marks, at.len() as u64);
        assert!(at.len() > 5);
        let (at, q) = overload(CoDelParams { ecn: true, ..CoDelParams::default() }, 0, 500);
        assert_eq!((q.stats().aqm_drops, q.stats().ce_marks), (at.len() as u64, 0), "not ECN-capable");
    }

    #[test]
    fn a_marked_packet_carries_ce() {
        let params = CoDelParams { target_us: 1, interval_us: 1, ecn: true };
        let mut q = CoDelQueue::new(params, BearerParams::default());
        for _ in 0..10 {
            q.push(sdu(Instant::ZERO, 1), Instant::ZERO);
        }
        q.pop(Instant::from_millis(1)).unwrap();
        assert_eq!(ecn(q.pop(Instant::from_millis(2)).unwrap().ip()), Ecn::Ce);
    }

    #[test]
    fn short_bursts_and_small_queues_are_left_alone() {
        let mut q = CoDelQueue::new(CoDelParams::default(), BearerParams::default());
        for burst in 0..20 {
            let start = Instant::from_millis(burst * 100);
            for _ in 0..50 {
                q.push(sdu(start, 0), start);
            }
            for ms in 0..50 {
                q.pop(start + Duration::from_millis(ms)).unwrap();
            }
        }
        // A single packet that waits forever is not dropped: less than an MTU is queued behind it.
        q.push(sdu(Instant::ZERO, 0), Instant::ZERO);
        assert!(q.pop(Instant::from_secs(60)).is_some());
        assert_eq!(q.stats().aqm_drops, 0);
    }
}
