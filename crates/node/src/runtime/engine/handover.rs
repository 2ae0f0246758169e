//! Between workers: a packet that reached the wrong one is given to the one that has its session.
//!
//! The kernel spreads datagrams by the receiver index or the shard hint (`kern::reuseport`) and inner
//! packets by the queue their flow last used, so this is the exception. Queues are bounded, packets travel
//! in buffers made at the start.
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

/// Parcels per worker.
const PARCELS: usize = 512;

/// What a parcel holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A packet from the inner interface.
    Inner,
    /// A datagram from an access.
    Outer {
        /// Which.
        access: PathId,
        /// Its sender.
        from: SocketAddr,
        /// The address of ours it came to, where that is known.
        local: Option<IpAddr>,
    },
}

struct Parcel {
    kind: Kind,
    len: usize,
    bytes: Box<[u8]>,
}

struct Lane {
    full: ArrayQueue<Parcel>,
    free: ArrayQueue<Parcel>,
    waker: Arc<Waker>,
}

/// One worker's view of all lanes.
pub struct Handover {
    lanes: Arc<[Lane]>,
    index: usize,
    /// Bit per worker that has something new since it was woken last.
    touched: u64,
}

impl Handover {
    /// Connects workers, given what wakes each. Packets over `max_bytes` cannot be handed over.
    pub fn mesh(wakers: Vec<Arc<Waker>>, max_bytes: usize) -> Vec<Self> {
        let lanes: Arc<[Lane]> = wakers
            .into_iter()
            .map(|waker| {
                let lane = Lane { full: ArrayQueue::new(PARCELS), free: ArrayQueue::new(PARCELS), waker };
                for _ in 0..PARCELS {
                    let bytes = vec![0; max_bytes].into_boxed_slice();
                    let _ = lane.free.push(Parcel { kind: Kind::Inner, len: 0, bytes });
                }
                lane
            })
            .collect();
        (0..lanes.len()).map(|index| Self { lanes: lanes.clone(), index, touched: 0 }).collect()
    }

    /// Which worker this is.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whether nothing waits for this worker.
    pub fn is_empty(&self) -> bool {
        self.lanes[self.index].full.is_empty()
    }

    /// Copies `bytes` into the queue of worker `to`; false if it has no room.
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

    /// Wakes every worker that was given something since the last call.
    pub fn wake_receivers(&mut self) {
        while self.touched != 0 {
            let to = self.touched.trailing_zeros() as usize;
            self.touched &= self.touched - 1;
            // A worker that is gone has nothing to wake.
            let _ = self.lanes[to].waker.wake();
        }
    }

    /// Hands what waits for this worker to `each`; how many there were.
    pub fn take(&mut self, mut each: impl FnMut(Kind, &mut [u8])) -> usize {
        let lane = &self.lanes[self.index];
        let mut taken = 0;
        while taken < PARCELS
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
        let given = (0..PARCELS + 10).filter(|i| a.give(1, Kind::Inner, &[*i as u8; 9])).count();
        assert_eq!(given, PARCELS);
        let mut seen = Vec::new();
        assert_eq!(b.take(|kind, bytes| seen.push((kind, bytes.to_vec()))), PARCELS);
        let want: Vec<_> = (0..PARCELS).map(|i| (Kind::Inner, vec![i as u8; 9])).collect();
        assert_eq!(seen, want);
        assert!(b.is_empty() && a.give(1, Kind::Inner, &[1]) && !b.is_empty());
        assert_eq!((a.index(), b.index()), (0, 1));
    }
}
