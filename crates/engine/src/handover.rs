//! Hand-over between workers: a packet that reached the wrong worker is given to the one that serves its
//! session.
//!
//! The kernel distributes datagrams by receiver index or shard hint (`kern::reuseport`) and inner packets by
//! the queue that their flow used last, so a hand-over is the exception. Queues are bounded; packets are
//! copied into buffers allocated at the start.
//!
//! ```text
//!  worker 0 ── take an empty parcel from 1's free list, fill, push to 1's queue ──▶ worker 1
//!              (none free: the packet is dropped and counted)      wake once per round
//! ```

use anabranch_atsss::PathId;
use crossbeam_queue::ArrayQueue;
use mio::Waker;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Number of parcels per worker.
const QUEUE_CAPACITY: usize = 512;

/// Contents of a parcel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A packet from the inner interface.
    Inner,
    /// A datagram from an access.
    Outer {
        /// Access of its arrival.
        access: PathId,
        /// Source address.
        from: SocketAddr,
        /// Local destination address, if known.
        local: Option<IpAddr>,
    },
}

struct QueuedMessage {
    kind: Kind,
    len: usize,
    bytes: Box<[u8]>,
}

struct HandoverQueue {
    full: ArrayQueue<QueuedMessage>,
    free: ArrayQueue<QueuedMessage>,
    waker: Arc<Waker>,
}

/// One worker's view of all lanes.
pub struct Handover {
    lanes: Arc<[HandoverQueue]>,
    index: usize,
    /// Bit mask of the workers with new parcels since they were last woken.
    touched: u64,
}

impl Handover {
    /// Connects workers, given their wakers. Packets longer than `max_bytes` cannot be handed over.
    pub fn mesh(wakers: Vec<Arc<Waker>>, max_bytes: usize) -> Vec<Self> {
        let lanes: Arc<[HandoverQueue]> = wakers
            .into_iter()
            .map(|waker| {
                let lane = HandoverQueue {
                    full: ArrayQueue::new(QUEUE_CAPACITY),
                    free: ArrayQueue::new(QUEUE_CAPACITY),
                    waker,
                };
                for _ in 0..QUEUE_CAPACITY {
                    let bytes = vec![0; max_bytes].into_boxed_slice();
                    let _ = lane.free.push(QueuedMessage { kind: Kind::Inner, len: 0, bytes });
                }
                lane
            })
            .collect();
        (0..lanes.len()).map(|index| Self { lanes: lanes.clone(), index, touched: 0 }).collect()
    }

    /// Index of this worker.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whether no parcel waits for this worker.
    pub fn is_empty(&self) -> bool {
        self.lanes[self.index].full.is_empty()
    }

    /// Copies `bytes` into the queue of worker `to`; false if it is full.
    pub fn give(&mut self, to: usize, kind: Kind, bytes: &[u8]) -> bool {
        let Some(lane) = self.lanes.get(to) else { return false };
        let Some(mut parcel) = lane.free.pop() else { return false };
        let Some(room) = parcel.bytes.get_mut(..bytes.len()) else {
            let _ = lane.free.push(parcel);
            return false;
        };
        room.copy_from_slice(bytes);
        parcel.kind = kind;
        parcel.len = bytes.len();
        self.touched |= 1 << to;
        lane.full.push(parcel).is_ok()
    }

    /// Wakes every worker that has received parcels since the last call.
    pub fn wake_receivers(&mut self) {
        while self.touched != 0 {
            let to = self.touched.trailing_zeros() as usize;
            self.touched &= self.touched - 1;
            // A worker that has ended need not be woken.
            let _ = self.lanes[to].waker.wake();
        }
    }

    /// Passes the parcels for this worker to `each`; returns their number.
    pub fn take(&mut self, mut each: impl FnMut(Kind, &mut [u8])) -> usize {
        let lane = &self.lanes[self.index];
        let mut taken = 0;
        while taken < QUEUE_CAPACITY
            && let Some(mut parcel) = lane.full.pop()
        {
            let len = parcel.len;
            each(parcel.kind, &mut parcel.bytes[..len]);
            let _ = lane.free.push(parcel);
            taken += 1;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parcels_arrive_in_order_and_their_number_is_bounded() {
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), mio::Token(0)).unwrap());
        let mut ends = Handover::mesh(vec![waker.clone(), waker], 100);
        let (mut b, mut a) = (ends.pop().unwrap(), ends.pop().unwrap());
        assert!(!a.give(1, Kind::Inner, &[0; 101]) && !a.give(7, Kind::Inner, &[0]));
        let given = (0..QUEUE_CAPACITY + 10).filter(|i| a.give(1, Kind::Inner, &[*i as u8; 9])).count();
        assert_eq!(given, QUEUE_CAPACITY);
        let mut seen = Vec::new();
        assert_eq!(b.take(|kind, bytes| seen.push((kind, bytes.to_vec()))), QUEUE_CAPACITY);
        let want: Vec<_> = (0..QUEUE_CAPACITY).map(|i| (Kind::Inner, vec![i as u8; 9])).collect();
        assert_eq!(seen, want);
        assert!(b.is_empty() && a.give(1, Kind::Inner, &[1]) && !b.is_empty());
        assert_eq!((a.index(), b.index()), (0, 1));
    }
}
