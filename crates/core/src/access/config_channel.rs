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

/// Sending half.
#[derive(Debug, Default)]
pub struct ConfigSender {
    version: u32,
    document: Vec<u8>,
    unacked: Vec<u16>,
    queue: VecDeque<u16>,
    repeat_at: Option<Instant>,
    interval: Duration,
}

impl ConfigSender {
    /// Starts delivering `document`; the version counts up by itself.
    ///
    /// A document over [`MAX_DOCUMENT_BYTES`] is refused and `false` returned.
    pub fn push(&mut self, document: Vec<u8>, now: Instant) -> bool {
        if document.len() > MAX_DOCUMENT_BYTES {
            return false;
        }
        self.version = self.version.wrapping_add(1);
        self.document = document;
        self.unacked = (0..self.count()).collect();
        self.queue = self.unacked.iter().copied().collect();
        self.interval = REPEAT;
        self.repeat_at = Some(now + self.interval);
        true
    }

    /// Starts over with what is not acknowledged, as after a new handshake.
    pub fn restart(&mut self, now: Instant) {
        self.unacked = (0..if self.version == 0 { 0 } else { self.count() }).collect();
        self.queue = self.unacked.iter().copied().collect();
        self.interval = REPEAT;
        self.repeat_at = (!self.unacked.is_empty()).then(|| now + self.interval);
    }

    /// The next fragment to send now.
    pub fn poll(&mut self) -> Option<Fragment> {
        let index = self.queue.pop_front()?;
        let from = usize::from(index) * FRAGMENT_BYTES;
        let to = (from + FRAGMENT_BYTES).min(self.document.len());
        Some(Fragment {
            version: self.version,
            index,
            count: self.count(),
            bytes: self.document[from..to].to_vec(),
        })
    }

    /// An acknowledgement arrived.
    pub fn on_ack(&mut self, version: u32, index: u16) {
        if version == self.version {
            self.unacked.retain(|&i| i != index);
            self.queue.retain(|&i| i != index);
            if self.unacked.is_empty() {
                self.repeat_at = None;
            }
        }
    }

    /// Queues what is due again.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.repeat_at.is_some_and(|at| at <= now) {
            self.queue = self.unacked.iter().copied().collect();
            self.interval = (self.interval * 2).min(MAX_REPEAT);
            self.repeat_at = Some(now + self.interval);
        }
    }

    /// When to call [`ConfigSender::on_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.repeat_at
    }

    /// Whether everything was acknowledged.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.unacked.is_empty()
    }

    fn count(&self) -> u16 {
        u16::try_from(self.document.len().div_ceil(FRAGMENT_BYTES).max(1)).unwrap_or(u16::MAX)
    }
}

/// Receiving half.
#[derive(Debug, Default)]
pub struct ConfigReceiver {
    done: Option<u32>,
    version: u32,
    parts: Vec<Option<Vec<u8>>>,
}

impl ConfigReceiver {
    /// Takes a fragment. `Some` once per document, when it is complete.
    ///
    /// Fragments of an impossible document (no fragments, or more bytes than
    /// [`MAX_DOCUMENT_BYTES`]) are ignored. The caller acknowledges every fragment it hands in.
    pub fn on_fragment(&mut self, version: u32, index: u16, count: u16, bytes: &[u8]) -> Option<Vec<u8>> {
        let fits = usize::from(count) <= MAX_DOCUMENT_BYTES.div_ceil(FRAGMENT_BYTES);
        if count == 0 || !fits || index >= count || bytes.len() > FRAGMENT_BYTES {
            return None;
        }
        if self.done == Some(version) {
            return None;
        }
        if self.version != version || self.parts.len() != usize::from(count) {
            self.version = version;
            self.parts = vec![None; usize::from(count)];
        }
        self.parts[usize::from(index)].get_or_insert_with(|| bytes.to_vec());
        if self.parts.iter().any(Option::is_none) {
            return None;
        }
        self.done = Some(version);
        Some(core::mem::take(&mut self.parts).into_iter().flatten().flatten().collect())
    }

    /// Forgets everything, as after a new handshake with a restarted peer.
    pub fn reset(&mut self) {
        *self = Self::default();
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
            let (mut tx, mut rx) = (ConfigSender::default(), ConfigReceiver::default());
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
            prop_assert!(tx.is_idle());
            prop_assert_eq!(got, vec![document]);
        }

        #[test]
        fn any_fragment_is_harmless(version: u32, index: u16, count: u16, bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            ConfigReceiver::default().on_fragment(version, index, count, &bytes);
        }
    }

    #[test]
    fn a_newer_version_supersedes() {
        let mut tx = ConfigSender::default();
        tx.push(vec![1; 3000], Instant::ZERO);
        tx.poll();
        tx.push(b"new".to_vec(), Instant::ZERO);
        let f = tx.poll().unwrap();
        assert_eq!((f.version, f.count, f.bytes.as_slice()), (2, 1, &b"new"[..]));
        assert!(!tx.push(vec![0; MAX_DOCUMENT_BYTES + 1], Instant::ZERO));
    }
}
