//! Statistics next to the data path: lateness of slots, and traffic and waiting times of slices.

use crate::clock::histogram;
use anabranch_element::time::{Duration, nanos};
use anabranch_ran::amc::Direction;
use anabranch_ran::gnb::{LinkStats, PacketTimes};
use anabranch_ran::sched::SliceConfig;
use hdrhistogram::Histogram;

/// Number of samples, median, 99th percentile and maximum, nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spread {
    /// Number of samples.
    pub count: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Maximum.
    pub max_ns: u64,
}

impl Spread {
    fn of(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        Self {
            count: histogram.len(),
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            max_ns: histogram.max(),
        }
    }
}

/// Time by which slots run later than their nominal time, in total and in the current second.
pub struct SlotLateness {
    total: Histogram<u64>,
    second: Histogram<u64>,
    /// Slots that were late by one slot or more.
    pub slots: u64,
}

impl Default for SlotLateness {
    fn default() -> Self {
        Self { total: histogram(), second: histogram(), slots: 0 }
    }
}

impl SlotLateness {
    /// Records a slot of length `slot` that ran `late` after its nominal time.
    pub fn record(&mut self, late: Duration, slot: Duration) {
        let ns = nanos(late);
        self.total.saturating_record(ns);
        self.second.saturating_record(ns);
        self.slots += u64::from(late >= slot);
    }

    /// Distribution since the start.
    pub fn total(&self) -> Spread {
        Spread::of(&self.total)
    }

    /// Returns the distribution of the second that ends, and starts the next one.
    pub fn end_second(&mut self) -> Spread {
        let spread = Spread::of(&self.second);
        self.second.reset();
        spread
    }
}

/// Traffic of a slice in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Carried {
    /// Packets delivered.
    pub packets: u64,
    /// Bytes of the delivered packets.
    pub bytes: u64,
    /// Waiting times in SDAP and RLC during the last complete second.
    pub wait: Spread,
    /// Balance of the slice in the scheduler's account, RBs; `None` if the scheduler keeps no account.
    pub balance_rbs: Option<i32>,
}

/// A slice and its traffic, downlink first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceSums {
    pub name: String,
    /// Downlink, uplink.
    pub carried: [Carried; 2],
}

/// Traffic of all slices.
pub struct Sums {
    slices: Vec<SliceSums>,
    waits: Vec<[Histogram<u64>; 2]>,
}

impl Sums {
    /// All counters at 0.
    pub fn new(slices: &[SliceConfig]) -> Self {
        let mut sums = Self { slices: Vec::new(), waits: Vec::new() };
        sums.set_slices(slices);
        sums
    }

    /// Replaces the slices; slices that remain keep their counters.
    pub fn set_slices(&mut self, slices: &[SliceConfig]) {
        let carried = |name: &str| {
            let old = self.slices.iter().find(|slice| slice.name == name);
            old.map_or_else(Default::default, |slice| slice.carried)
        };
        let new = slices.iter().map(|s| SliceSums { name: s.name.clone(), carried: carried(&s.name) });
        self.slices = new.collect();
        self.waits = slices.iter().map(|_| [histogram(), histogram()]).collect();
    }

    /// Like [`Sums::set_slices`], if the slices or their order differ.
    pub fn set_slices_if_other(&mut self, slices: &[SliceConfig]) {
        if !self.slices.iter().map(|slice| &slice.name).eq(slices.iter().map(|slice| &slice.name)) {
            self.set_slices(slices);
        }
    }

    /// Counts a delivered packet.
    pub fn packet(&mut self, slice: usize, times: &PacketTimes) {
        let direction = index(times.direction);
        if let (Some(sums), Some(waits)) = (self.slices.get_mut(slice), self.waits.get_mut(slice)) {
            sums.carried[direction].packets += 1;
            sums.carried[direction].bytes += u64::from(times.bytes);
            waits[direction].saturating_record(nanos(times.queue_wait()));
        }
    }

    /// Ends the second for the waiting times.
    pub fn end_second(&mut self) {
        for (slice, waits) in self.slices.iter_mut().zip(&mut self.waits) {
            for (carried, waits) in slice.carried.iter_mut().zip(waits) {
                carried.wait = Spread::of(waits);
                waits.reset();
            }
        }
    }

    /// The current traffic, with the given scheduler balances, downlink first.
    pub fn all(&self, balances: [&[i32]; 2]) -> Vec<SliceSums> {
        let mut all = self.slices.clone();
        for (at, slice) in all.iter_mut().enumerate() {
            for (carried, balances) in slice.carried.iter_mut().zip(balances) {
                carried.balance_rbs = balances.get(at).copied();
            }
        }
        all
    }
}

/// Array index of a direction: 0 downlink, 1 uplink.
pub const fn index(direction: Direction) -> usize {
    match direction {
        Direction::Downlink => 0,
        Direction::Uplink => 1,
    }
}

/// The report of each second to the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Counters since the start, downlink first.
    pub links: [LinkStats; 2],
    /// Lateness of the slots in this second.
    pub late: Spread,
    /// Processor time of the thread since its start.
    pub processor: Duration,
    /// Traffic of the slices since the start.
    pub slices: Vec<SliceSums>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_element::time::Instant;

    #[test]
    fn a_second_is_reported_once_and_the_total_remains() {
        let (mut late, slot) = (SlotLateness::default(), Duration::from_millis(1));
        for us in [10, 20, 30, 1000] {
            late.record(Duration::from_micros(us), slot);
        }
        let second = late.end_second();
        assert_eq!((second.count, late.slots), (4, 1));
        assert!((19_800..=20_300).contains(&second.p50_ns) && second.max_ns >= 1_000_000, "{second:?}");
        assert_eq!(late.end_second(), Spread::default());
        assert_eq!(late.total().count, 4);
    }

    #[test]
    fn slices_that_stay_keep_their_counters() {
        let slice = |name: &str| SliceConfig::new(name, 50.0);
        let mut sums = Sums::new(&[slice("a"), slice("b")]);
        let at = Instant::from_millis;
        let times = PacketTimes {
            direction: Direction::Uplink,
            ue: 0,
            drb: 1,
            qfi: 9,
            bytes: 1500,
            arrived: at(1),
            forwarded: at(2),
            first_pull: at(3),
            last_pull: at(4),
            first_received: at(5),
            delivered: at(6),
        };
        sums.packet(1, &times);
        sums.packet(7, &times);
        sums.end_second();
        let [_, b] = &sums.all([&[], &[4, -4]])[..] else { panic!() };
        assert_eq!((b.carried[1].packets, b.carried[1].bytes, b.carried[1].balance_rbs), (1, 1500, Some(-4)));
        assert!((2_970_000..=3_050_000).contains(&b.carried[1].wait.max_ns), "{b:?}");
        sums.set_slices(&[slice("b"), slice("c")]);
        assert_eq!(sums.all([&[], &[]])[0].carried[1].packets, 1);
        assert_eq!(sums.all([&[], &[]])[1].carried[1], Carried::default());
    }
}
