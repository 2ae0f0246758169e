//! Batches of delivered packets for the telemetry stream, collected while there is a listener.

use anabranch_element::time::{Duration, Instant};
use anabranch_ran::gnb::PacketTimes;
use std::sync::Arc;
use tokio::sync::broadcast;

/// Number of batches that a slow listener may lag behind before it misses some.
pub const MAX_BATCH_LAG: usize = 64;
/// Interval between batches.
const PERIOD: Duration = Duration::from_millis(100);
/// Maximum number of packets in a batch; a full batch is sent at once.
const MAX_PACKETS: usize = 4096;

/// Delivered packets, in the order of their delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Wall clock at time 0 of the cell: Unix time, nanoseconds.
    pub start_unix_ns: u64,
    /// Number of packets in all earlier batches.
    pub first: u64,
    /// Times of each packet.
    pub packets: Vec<PacketTimes>,
}

/// The batches of a cell: collects delivered packets, and publishes them.
pub struct Batches {
    publisher: broadcast::Sender<Arc<Batch>>,
    has_listener: bool,
    packets: Vec<PacketTimes>,
    /// Number of packets in all earlier batches.
    first: u64,
    /// Time at which the batch is published; `Instant::MAX`: no batch.
    due: Instant,
}

impl Batches {
    /// No batch, and no listener.
    pub fn new(publisher: broadcast::Sender<Arc<Batch>>) -> Self {
        Self { publisher, has_listener: false, packets: Vec::new(), first: 0, due: Instant::MAX }
    }

    /// Starts collecting, for a new listener.
    pub fn listen(&mut self) {
        self.has_listener = true;
    }

    /// Adds a delivered packet, if there is a listener.
    pub fn packet(&mut self, times: &PacketTimes, now: Instant) {
        if !self.has_listener {
            return;
        }
        if self.packets.is_empty() {
            self.due = now + PERIOD;
        }
        self.packets.push(*times);
        if self.packets.len() >= MAX_PACKETS {
            self.due = now;
        }
    }

    /// Time of the next call of [`Batches::send`].
    pub const fn due(&self) -> Instant {
        self.due
    }

    /// Publishes the batch if it is due; `start_unix_ns` returns the wall clock at time 0 of the cell.
    pub fn send(&mut self, now: Instant, start_unix_ns: impl FnOnce() -> u64) {
        if now < self.due {
            return;
        }
        self.due = Instant::MAX;
        let packets = std::mem::take(&mut self.packets);
        let batch = Batch { start_unix_ns: start_unix_ns(), first: self.first, packets };
        self.first += batch.packets.len() as u64;
        // An error means that there is no listener left.
        self.has_listener = self.publisher.send(Arc::new(batch)).is_ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_ran::amc::Direction;

    fn packet(ms: u64) -> PacketTimes {
        let at = |n| Instant::from_millis(ms + n);
        PacketTimes {
            direction: Direction::Downlink,
            ue: 3,
            drb: 1,
            qfi: 9,
            bytes: 1500,
            arrived: at(0),
            forwarded: at(1),
            first_pull: at(2),
            last_pull: at(3),
            first_received: at(4),
            delivered: at(5),
        }
    }

    #[test]
    fn packets_are_published_in_batches_while_there_is_a_listener() {
        let (publisher, mut heard) = broadcast::channel(4);
        let mut batch = Batches::new(publisher);
        let at = Instant::from_millis;
        batch.packet(&packet(0), at(5));
        assert_eq!(batch.due(), Instant::MAX);
        batch.listen();
        for ms in 0..3 {
            batch.packet(&packet(ms), at(ms));
        }
        assert_eq!(batch.due(), at(100));
        batch.send(at(99), || unreachable!());
        batch.send(at(100), || 7);
        batch.packet(&packet(200), at(200));
        batch.send(at(300), || 8);
        let [one, two] = [heard.try_recv().unwrap(), heard.try_recv().unwrap()];
        assert_eq!((one.packets.len(), one.first, one.start_unix_ns), (3, 0, 7));
        assert_eq!((two.packets.len(), two.first, two.start_unix_ns), (1, 3, 8));
        assert_eq!((two.packets[0].ue, two.packets[0].delivered), (3, at(205)));
        // A full batch is sent at once.
        (0..MAX_PACKETS).for_each(|_| batch.packet(&packet(400), at(400)));
        assert_eq!(batch.due(), at(400));
        drop(heard);
        batch.send(at(400), || 9);
        batch.packet(&packet(500), at(500));
        assert_eq!(batch.due(), Instant::MAX, "nobody listens");
    }
}
