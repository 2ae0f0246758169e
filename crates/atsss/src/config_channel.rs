//! Reliable delivery of one document at a time over the tunnel's CONFIG message.
//!
//! The UPF sends its rules to the UE, and the UE sends its own rules and flow hints. A document is UTF-8
//! JSON, divided into fragments that fit any path. Each fragment is acknowledged, and repeated until it is. A
//! newer version supersedes an older one in progress.
//!
//! Incomplete documents are charged to the pool shared by all sessions, and [`Allowance`] limits the
//! documents accepted from a peer over time. A fragment that is not accepted is not acknowledged, so it is
//! repeated.
//!
//! ```text
//! sender                         receiver
//!   │ Config v=3 fragment 0/2 ──▶ │
//!   │ Config v=3 fragment 1/2 ─X  │          lost
//!   │ ◀── ConfigAck v=3 f=0       │
//!   │ Config v=3 fragment 1/2 ──▶ │ document complete, once
//!   │ ◀── ConfigAck v=3 f=1       │
//! ```

use crate::reorder::Pool;
use anabranch_element::time::{Duration, Instant};
use anabranch_steer::token_bucket::TokenBucket;
use core::num::NonZeroU32;
use std::collections::VecDeque;

/// Payload bytes per fragment; fits a 1280-byte path with all headers.
pub const FRAGMENT_BYTES: usize = 1024;
/// Largest document accepted, in bytes.
pub const MAX_DOCUMENT_BYTES: usize = 256 * 1024;
/// Bytes of fragments accepted at once, and per second after that: two of the largest documents, then one
/// every eight seconds, or 128 small ones per second.
const ALLOWED_AT_ONCE: u64 = 2 * MAX_DOCUMENT_BYTES as u64;
const ALLOWED_PER_S: u64 = 32 * 1024;
/// Least number of bytes for which a fragment counts.
const LEAST_COST: u64 = 256;
/// Memory of a fragment in addition to its bytes, until its document is complete.
const PART_BYTES: usize = size_of::<Option<Vec<u8>>>();
const REPEAT: Duration = Duration::from_millis(250);
const MAX_REPEAT: Duration = Duration::from_secs(5);

/// A fragment to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fragment {
    /// Version of the document; a newer one supersedes.
    pub version: u32,
    /// Index of this fragment.
    pub index: u16,
    /// Number of fragments of the document.
    pub count: u16,
    /// Contents of the fragment.
    pub bytes: Vec<u8>,
}

/// Limit of the bytes of documents that a peer may still send.
#[derive(Debug, Clone, Copy, Default)]
pub struct Allowance(TokenBucket<ALLOWED_AT_ONCE, ALLOWED_PER_S>);

impl Allowance {
    /// Accepts a fragment of `len` bytes; `false`: the limit is exceeded.
    pub fn take(&mut self, len: usize, now: Instant) -> bool {
        self.0.take((len as u64).max(LEAST_COST), now)
    }
}

/// A fragment was not accepted for lack of room; it must not be acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom;

/// Sender and receiver of one session's channel. 16 bytes while no document is in progress.
#[derive(Debug, Default)]
pub struct ConfigChannel {
    /// Version of the last document pushed.
    sent: u32,
    /// Version of the last document received. Versions begin at 1 and skip 0.
    done: Option<NonZeroU32>,
    work: Option<Box<Work>>,
}

#[derive(Debug, Default)]
struct Work {
    sender: Sender,
    receiver: Receiver,
}

impl ConfigChannel {
    /// Starts to deliver `document`, which supersedes one in progress. The version is assigned automatically.
    ///
    /// A document larger than [`MAX_DOCUMENT_BYTES`] is rejected with `false`.
    pub fn push(&mut self, document: Vec<u8>, now: Instant) -> bool {
        if document.len() > MAX_DOCUMENT_BYTES {
            return false;
        }
        self.sent = self.sent.checked_add(1).unwrap_or(1);
        self.work.get_or_insert_default().sender = Sender::new(self.sent, document, now);
        true
    }

    /// The next fragment to be sent now.
    pub fn poll(&mut self) -> Option<Fragment> {
        self.work.as_mut()?.sender.poll()
    }

    /// An acknowledgement has arrived.
    pub fn on_ack(&mut self, version: u32, index: u16) {
        if let Some(work) = &mut self.work {
            work.sender.on_ack(version, index);
        }
        self.tidy();
    }

    /// Accepts a fragment. Returns `Some` once per document, when it is complete.
    ///
    /// Fragments of an impossible document (no fragments, or more than [`MAX_DOCUMENT_BYTES`]), and of one
    /// older than the last, are ignored. The caller acknowledges every fragment that is accepted or ignored.
    ///
    /// # Errors
    /// [`NoRoom`] if `pool` has no memory for the document.
    pub fn on_fragment(
        &mut self,
        version: u32,
        index: u16,
        count: u16,
        bytes: &[u8],
        pool: &mut Pool,
    ) -> Result<Option<Vec<u8>>, NoRoom> {
        let Some(this) = NonZeroU32::new(version) else { return Ok(None) };
        if self.done.is_some_and(|done| !newer(version, done.get())) {
            return Ok(None);
        }
        let receiver = &mut self.work.get_or_insert_default().receiver;
        let document = receiver.on_fragment(version, index, count, bytes, pool);
        if let Ok(Some(_)) = &document {
            self.done = Some(this);
        }
        self.tidy();
        document
    }

    /// Drops an incomplete document, because the session ends or the peer has restarted.
    pub fn release(&mut self, pool: &mut Pool) {
        if let Some(work) = &mut self.work {
            work.receiver.clear(pool);
        }
        self.tidy();
    }

    /// The peer has restarted, and numbers its documents from the beginning. Deliveries in progress continue.
    pub fn peer_restarted(&mut self, pool: &mut Pool) {
        self.done = None;
        self.release(pool);
    }

    /// Queues fragments that must be repeated.
    pub fn on_timeout(&mut self, now: Instant) {
        if let Some(work) = &mut self.work {
            work.sender.on_timeout(now);
        }
    }

    /// When to call [`Self::on_timeout`]; [`Instant::ZERO`] while [`Self::poll`] has fragments.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let sender = &self.work.as_ref()?.sender;
        if sender.queue.is_empty() { sender.repeat_at } else { Some(Instant::ZERO) }
    }

    /// Whether everything was acknowledged and no document is incomplete.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.work.is_none()
    }

    /// Whether everything sent was acknowledged.
    #[must_use]
    pub fn is_delivered(&self) -> bool {
        self.work.as_ref().is_none_or(|work| work.sender.unacked.is_empty())
    }

    fn tidy(&mut self) {
        if self.work.as_ref().is_some_and(|w| w.sender.unacked.is_empty() && w.receiver.parts.is_empty()) {
            self.work = None;
        }
    }
}

/// Whether version `a` is later than `b`, in serial arithmetic (RFC 1982).
const fn newer(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

#[derive(Debug, Default)]
struct Sender {
    version: u32,
    document: Vec<u8>,
    unacked: Vec<u16>,
    queue: VecDeque<u16>,
    repeat_at: Option<Instant>,
    interval: Duration,
}

impl Sender {
    fn new(version: u32, document: Vec<u8>, now: Instant) -> Self {
        let unacked: Vec<u16> = (0..count(&document)).collect();
        Self {
            version,
            queue: unacked.iter().copied().collect(),
            unacked,
            document,
            repeat_at: Some(now + REPEAT),
            interval: REPEAT,
        }
    }

    fn poll(&mut self) -> Option<Fragment> {
        let index = self.queue.pop_front()?;
        let from = usize::from(index) * FRAGMENT_BYTES;
        let to = (from + FRAGMENT_BYTES).min(self.document.len());
        let bytes = self.document.get(from..to)?.to_vec();
        Some(Fragment { version: self.version, index, count: count(&self.document), bytes })
    }

    fn on_ack(&mut self, version: u32, index: u16) {
        if version == self.version {
            self.unacked.retain(|&i| i != index);
            self.queue.retain(|&i| i != index);
            if self.unacked.is_empty() {
                self.repeat_at = None;
            }
        }
    }

    fn on_timeout(&mut self, now: Instant) {
        if self.repeat_at.is_some_and(|at| at <= now) {
            self.queue = self.unacked.iter().copied().collect();
            self.interval = (self.interval * 2).min(MAX_REPEAT);
            self.repeat_at = Some(now + self.interval);
        }
    }
}

fn count(document: &[u8]) -> u16 {
    u16::try_from(document.len().div_ceil(FRAGMENT_BYTES).max(1)).unwrap_or(u16::MAX)
}

#[derive(Debug, Default)]
struct Receiver {
    version: u32,
    /// Charged to the pool at their largest possible size.
    parts: Vec<Option<Vec<u8>>>,
}

impl Receiver {
    fn on_fragment(
        &mut self,
        version: u32,
        index: u16,
        count: u16,
        bytes: &[u8],
        pool: &mut Pool,
    ) -> Result<Option<Vec<u8>>, NoRoom> {
        let fits = usize::from(count) <= MAX_DOCUMENT_BYTES.div_ceil(FRAGMENT_BYTES);
        if count == 0 || !fits || index >= count || bytes.len() > FRAGMENT_BYTES {
            return Ok(None);
        }
        let collecting = !self.parts.is_empty();
        if collecting && newer(self.version, version) {
            return Ok(None);
        }
        if !collecting || self.version != version || self.parts.len() != usize::from(count) {
            self.clear(pool);
            if !pool.charge(Self::cost(count.into())) {
                return Err(NoRoom);
            }
            self.version = version;
            self.parts = vec![None; usize::from(count)];
        }
        self.parts[usize::from(index)].get_or_insert_with(|| bytes.to_vec());
        if self.parts.iter().any(Option::is_none) {
            return Ok(None);
        }
        pool.refund(Self::cost(self.parts.len()));
        Ok(Some(core::mem::take(&mut self.parts).into_iter().flatten().flatten().collect()))
    }

    const fn cost(parts: usize) -> usize {
        parts * (FRAGMENT_BYTES + PART_BYTES)
    }

    fn clear(&mut self, pool: &mut Pool) {
        pool.refund(Self::cost(self.parts.len()));
        self.parts = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reorder::PoolConfig;
    use proptest::prelude::*;

    fn pool() -> Pool {
        Pool::new(PoolConfig::default())
    }

    proptest! {
        #[test]
        fn a_document_arrives_once_whatever_is_lost(len in 0usize..8000, losses in proptest::collection::vec(any::<bool>(), 64)) {
            let document: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let (mut tx, mut rx, mut pool) = (ConfigChannel::default(), ConfigChannel::default(), pool());
            let mut now = Instant::ZERO;
            prop_assert!(tx.push(document.clone(), now));
            let mut got = Vec::new();
            let mut losses = losses.into_iter().chain(core::iter::repeat(false));
            for _ in 0..100 {
                while let Some(f) = tx.poll() {
                    if losses.next() == Some(true) { continue; }
                    got.extend(rx.on_fragment(f.version, f.index, f.count, &f.bytes, &mut pool).unwrap());
                    if losses.next() == Some(true) { continue; }
                    tx.on_ack(f.version, f.index);
                }
                let Some(at) = tx.poll_timeout() else { break };
                now = at;
                tx.on_timeout(now);
            }
            prop_assert!(tx.is_idle() && rx.is_idle() && pool.used_bytes() == 0);
            prop_assert_eq!(got, vec![document]);
        }

        #[test]
        fn any_fragments_are_harmless_and_bounded(
            fragments in proptest::collection::vec((any::<u32>(), any::<u16>(), 0u16..300, 0usize..1100), 1..40),
            budget in 0usize..600_000,
        ) {
            let mut pool = Pool::new(PoolConfig { bytes: budget, ..PoolConfig::default() });
            let mut rx = ConfigChannel::default();
            for (version, index, count, len) in fragments {
                let (version, index) = (version % 8, index % count.max(1));
                let _ = rx.on_fragment(version, index, count, &vec![7; len], &mut pool);
                prop_assert!(pool.used_bytes() <= budget.min(Receiver::cost(256)));
            }
            rx.release(&mut pool);
            prop_assert!(rx.is_idle() && pool.used_bytes() == 0);
        }
    }

    #[test]
    fn incomplete_documents_are_charged_to_the_pool_and_bounded_by_it() {
        let mut pool = Pool::new(PoolConfig { bytes: 300_000, ..PoolConfig::default() });
        let (mut a, mut b) = (ConfigChannel::default(), ConfigChannel::default());
        assert_eq!(a.on_fragment(1, 0, 256, &[1; 1024], &mut pool), Ok(None));
        assert!(
            pool.used_bytes() >= MAX_DOCUMENT_BYTES,
            "the whole document is charged at its first fragment"
        );
        assert_eq!(b.on_fragment(1, 0, 256, &[1; 1024], &mut pool), Err(NoRoom));
        assert!(b.is_idle());
        a.release(&mut pool);
        assert_eq!(b.on_fragment(1, 0, 256, &[1; 1024], &mut pool), Ok(None));
    }

    #[test]
    fn the_rate_of_documents_is_bounded_without_effect_on_an_honest_peer() {
        let second = |s: u64| Instant::from_secs(s);
        // As fast as possible for a minute, with the largest fragments and the smallest.
        for len in [0, 1, 200, 1024] {
            let mut allowance = Allowance::default();
            let steps = (0..60_000).map(Instant::from_millis).flat_map(|at| [at; 20]);
            let taken: u64 = steps.filter(|at| allowance.take(len, *at)).map(|_| len as u64).sum();
            assert!(taken <= ALLOWED_AT_ONCE + 60 * ALLOWED_PER_S, "{len}: {taken}");
        }
        // One of the largest documents every ten seconds, and 100 flow hints per second.
        let mut allowance = Allowance::default();
        assert!((0..256).all(|_| allowance.take(1024, second(0))));
        assert!((1..60).all(|s| (0..100).all(|_| allowance.take(200, second(s)))));
        let mut large = Allowance::default();
        assert!((0..60).step_by(10).all(|s| (0..256).all(|_| large.take(1024, second(s)))));
    }

    #[test]
    fn a_newer_version_supersedes() {
        assert_eq!(size_of::<ConfigChannel>(), 16);
        let mut tx = ConfigChannel::default();
        tx.push(vec![1; 3000], Instant::ZERO);
        let old = tx.poll().unwrap();
        tx.push(b"new".to_vec(), Instant::ZERO);
        let f = tx.poll().unwrap();
        assert_eq!((f.version, f.count, f.bytes.as_slice()), (2, 1, &b"new"[..]));
        assert!(!tx.push(vec![0; MAX_DOCUMENT_BYTES + 1], Instant::ZERO));
        // An older version does not reappear, whether or not the newer one is complete.
        let (mut rx, mut pool) = (ConfigChannel::default(), pool());
        let mut take = |rx: &mut ConfigChannel, version, index, count, bytes: &[u8]| {
            rx.on_fragment(version, index, count, bytes, &mut pool).unwrap()
        };
        assert_eq!(take(&mut rx, 7, 0, 2, b"part"), None);
        assert_eq!(take(&mut rx, old.version, 0, 1, b"old"), None);
        assert_eq!(take(&mut rx, 7, 1, 2, b"s").as_deref(), Some(&b"parts"[..]));
        assert_eq!(take(&mut rx, old.version, 0, 1, b"old"), None);
        rx.peer_restarted(&mut Pool::new(PoolConfig::default()));
        assert!(rx.is_idle());
        assert_eq!(take(&mut rx, 1, 0, 1, b"new").as_deref(), Some(&b"new"[..]));
    }
}
