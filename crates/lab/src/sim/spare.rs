//! Reuse of packet buffers: buffers of packets that have arrived serve for later packets.

use std::cell::RefCell;

/// Maximum number of buffers kept.
const KEPT: usize = 4096;
/// Capacity of a new buffer, bytes: a packet of any link of a scenario, with headroom.
const BYTES: usize = 2048;
/// Larger buffers are not kept, bytes.
const MOST_BYTES: usize = 16_384;

thread_local! {
    /// A run is one thread, and its result does not depend on which buffer holds a packet.
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer.
#[inline]
pub fn take() -> Vec<u8> {
    FREE.with_borrow_mut(Vec::pop).unwrap_or_else(|| Vec::with_capacity(BYTES))
}

/// A copy of `bytes`. Small ones are allocated at their own size.
pub fn copy(bytes: &[u8]) -> Vec<u8> {
    if bytes.len() < BYTES / 4 {
        return bytes.to_vec();
    }
    let mut buffer = take();
    buffer.extend_from_slice(bytes);
    buffer
}

/// Returns a buffer for reuse; its contents are discarded.
#[inline]
pub fn give(mut buffer: Vec<u8>) {
    FREE.with_borrow_mut(|free| {
        if free.len() < KEPT && (BYTES..=MOST_BYTES).contains(&buffer.capacity()) {
            buffer.clear();
            free.push(buffer);
        }
    });
}
