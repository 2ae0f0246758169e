//! Reliable delivery of one document at a time over the tunnel's CONFIG message.
//!
//! Rules are pushed by the UPF to the UE, and the UE's own rules and flow hints the other way. A
//! document is UTF-8 JSON, cut into fragments that fit any path; each is acknowledged and repeated
//! until it is. A newer version supersedes one still under way.
//!
//! ```text
//! sender                         receiver
//!   │ Config v=3 fragment 0/2 ──▶ │
//!   │ Config v=3 fragment 1/2 ─X  │          lost
//!   │ ◀── ConfigAck v=3 f=0       │
//!   │ Config v=3 fragment 1/2 ──▶ │ document complete, once
//!   │ ◀── ConfigAck v=3 f=1       │
//! ```

use crate::time::{Duration, Instant};
use core::num::NonZeroU32;
use std::collections::VecDeque;

/// Payload bytes per fragment; fits a 1280-byte path with every header.
pub const FRAGMENT_BYTES: usize = 1024;
/// Largest document accepted, in bytes.
pub const MAX_DOCUMENT_BYTES: usize = 256 * 1024;
const REPEAT: Duration = Duration::from_millis(250);
const MAX_REPEAT: Duration = Duration::from_secs(5);

/// One fragment to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fragment {
    /// Version of the document; a newer one supersedes.
    pub version: u32,
    /// Index of this fragment.
    pub index: u16,
    /// Number of fragments of the document.
    pub count: u16,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Both halves of one session's channel. While nothing is under way it is 16 bytes.
#[derive(Debug, Default)]
pub struct ConfigChannel {
    /// Version of the last document pushed.
    sent: u32,
    /// Version of the last document received. Versions count from 1, and skip 0.
    done: Option<NonZeroU32>,
    work: Option<Box<Work>>,
}

#[derive(Debug, Default)]
struct Work {
    sender: Sender,
    receiver: Receiver,
}

impl ConfigChannel {
    /// Starts delivering `document`; it supersedes one still under way. The version counts up by itself.
    ///
    /// A document over [`MAX_DOCUMENT_BYTES`] is refused and `false` returned.
    pub fn push(&mut self, document: Vec<u8>, now: Instant) -> bool {
        if document.len() > MAX_DOCUMENT_BYTES {
            return false;
        }
        self.sent = self.sent.checked_add(1).unwrap_or(1);
        self.work.get_or_insert_default().sender = Sender::new(self.sent, document, now);
        true
    }

    /// The next fragment to send now.
    pub fn poll(&mut self) -> Option<Fragment> {
        self.work.as_mut()?.sender.poll()
    }

    /// An acknowledgement arrived.
    pub fn on_ack(&mut self, version: u32, index: u16) {
        if let Some(work) = &mut self.work {
            work.sender.on_ack(version, index);
        }
        self.tidy();
    }

    /// Takes a fragment. `Some` once per document, when it is complete.
    ///
    /// Fragments of an impossible document (no fragments, or more bytes than [`MAX_DOCUMENT_BYTES`]) and
    /// of one older than the last are ignored. The caller acknowledges every fragment it hands in.
    pub fn on_fragment(&mut self, version: u32, index: u16, count: u16, bytes: &[u8]) -> Option<Vec<u8>> {
        let this = NonZeroU32::new(version)?;
        if self.done.is_some_and(|done| !newer(version, done.get())) {
            return None;
        }
        let document = self.work.get_or_insert_default().receiver.on_fragment(version, index, count, bytes);
        if document.is_some() {
            self.done = Some(this);
        }
        self.tidy();
        document
    }

    /// The peer has started again: it counts its documents from the beginning. What is still to be
    /// delivered stays so.
    pub fn peer_restarted(&mut self) {
        self.done = None;
        if let Some(work) = &mut self.work {
            work.receiver = Receiver::default();
        }
        self.tidy();
    }

    /// Queues what is due again.
    pub fn on_timeout(&mut self, now: Instant) {
        if let Some(work) = &mut self.work {
            work.sender.on_timeout(now);
        }
    }

    /// When to call [`Self::on_timeout`]; [`Instant::ZERO`] while there is something to [`Self::poll`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let sender = &self.work.as_ref()?.sender;
        if sender.queue.is_empty() { sender.repeat_at } else { Some(Instant::ZERO) }
    }

    /// Whether everything was acknowledged and nothing is half received.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.work.is_none()
    }

    /// Whether everything that was sent was acknowledged.
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
    parts: Vec<Option<Vec<u8>>>,
}

impl Receiver {
    fn on_fragment(&mut self, version: u32, index: u16, count: u16, bytes: &[u8]) -> Option<Vec<u8>> {
        let fits = usize::from(count) <= MAX_DOCUMENT_BYTES.div_ceil(FRAGMENT_BYTES);
        if count == 0 || !fits || index >= count || bytes.len() > FRAGMENT_BYTES {
            return None;
        }
        let collecting = !self.parts.is_empty();
        if collecting && newer(self.version, version) {
            return None;
        }
        if !collecting || self.version != version || self.parts.len() != usize::from(count) {
            self.version = version;
            self.parts = vec![None; usize::from(count)];
        }
        self.parts[usize::from(index)].get_or_insert_with(|| bytes.to_vec());
        if self.parts.iter().any(Option::is_none) {
            return None;
        }
        Some(core::mem::take(&mut self.parts).into_iter().flatten().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_document_arrives_once_whatever_is_lost(len in 0usize..8000, losses in proptest::collection::vec(any::<bool>(), 64)) {
            let document: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let (mut tx, mut rx) = (ConfigChannel::default(), ConfigChannel::default());
            let mut now = Instant::ZERO;
            prop_assert!(tx.push(document.clone(), now));
            let mut got = Vec::new();
            let mut losses = losses.into_iter().chain(core::iter::repeat(false));
            for _ in 0..100 {
                while let Some(f) = tx.poll() {
                    if losses.next() == Some(true) { continue; }
                    got.extend(rx.on_fragment(f.version, f.index, f.count, &f.bytes));
                    if losses.next() == Some(true) { continue; }
                    tx.on_ack(f.version, f.index);
                }
                let Some(at) = tx.poll_timeout() else { break };
                now = at;
                tx.on_timeout(now);
            }
            prop_assert!(tx.is_idle() && rx.is_idle());
            prop_assert_eq!(got, vec![document]);
        }

        #[test]
        fn any_fragment_is_harmless(version: u32, index: u16, count: u16, bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            ConfigChannel::default().on_fragment(version, index, count, &bytes);
        }
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
        // And what is older does not come back, whether or not the newer one is complete.
        let mut rx = ConfigChannel::default();
        rx.on_fragment(7, 0, 2, b"part");
        assert_eq!(rx.on_fragment(old.version, 0, 1, b"old"), None);
        assert_eq!(rx.on_fragment(7, 1, 2, b"s").as_deref(), Some(&b"parts"[..]));
        assert_eq!(rx.on_fragment(old.version, 0, 1, b"old"), None);
        rx.peer_restarted();
        assert!(rx.is_idle());
        assert_eq!(rx.on_fragment(1, 0, 1, b"new").as_deref(), Some(&b"new"[..]));
    }
}
