//! Buffers of packets that have arrived, for packets to come.

use std::cell::RefCell;

/// Most buffers kept.
const KEPT: usize = 4096;
/// Room of a new one: a packet of any link of a scenario, with headers in front.
const BYTES: usize = 2048;
/// A larger one is not kept.
const MOST_BYTES: usize = 16_384;

thread_local! {
    /// A run is one thread; which buffer a packet is in changes nothing of it.
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer.
#[inline]
pub fn take() -> Vec<u8> {
    FREE.with_borrow_mut(Vec::pop).unwrap_or_else(|| Vec::with_capacity(BYTES))
}

/// A copy of `bytes`; of few, in memory of its own.
pub fn copy(bytes: &[u8]) -> Vec<u8> {
    if bytes.len() < BYTES / 4 {
        return bytes.to_vec();
    }
    let mut buffer = take();
    buffer.extend_from_slice(bytes);
    buffer
}

/// Takes a buffer back; what it holds is forgotten.
#[inline]
pub fn give(mut buffer: Vec<u8>) {
    FREE.with_borrow_mut(|free| {
        if free.len() < KEPT && (BYTES..=MOST_BYTES).contains(&buffer.capacity()) {
            buffer.clear();
            free.push(buffer);
        }
    });
}
