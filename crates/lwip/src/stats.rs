//! Counters of a node.

use super::Leg;
use super::events::ReleaseReason;
use anabranch_element::time::{Duration, nanos};

/// Why a packet was forwarded without being steered or examined further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PassReason {
    /// Not an IP packet, or an inconsistent header.
    Malformed,
    /// A fragment: its flow is unknown.
    Fragment,
    /// IPv6 with extension headers.
    ExtensionHeaders,
    /// Another transport protocol than TCP.
    NotTcp,
    /// An inconsistent TCP header.
    BadTcp,
    /// Unreadable TCP options in an ACK that would otherwise have been held.
    BadOptions,
    /// A wrong TCP checksum. Checksums are verified only where DIDA depends on them.
    BadChecksum,
    /// The destination is not a configured UE.
    UnknownUe,
    /// The packet was to use Wi-Fi, but the UE has no address of that family there.
    NoWifiAddress,
    /// An ACK of a flow whose data has not been seen.
    UnknownFlow,
}

impl PassReason {
    /// All reasons, in the order of [`Self::index`].
    pub const ALL: [Self; 10] = [
        Self::Malformed,
        Self::Fragment,
        Self::ExtensionHeaders,
        Self::NotTcp,
        Self::BadTcp,
        Self::BadOptions,
        Self::BadChecksum,
        Self::UnknownUe,
        Self::NoWifiAddress,
        Self::UnknownFlow,
    ];

    /// Index in [`Self::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Fragment => "fragment",
            Self::ExtensionHeaders => "extension_headers",
            Self::NotTcp => "not_tcp",
            Self::BadTcp => "bad_tcp",
            Self::BadOptions => "bad_options",
            Self::BadChecksum => "bad_checksum",
            Self::UnknownUe => "unknown_ue",
            Self::NoWifiAddress => "no_wifi_address",
            Self::UnknownFlow => "unknown_flow",
        }
    }
}

/// Upper bounds of the holding-time histogram, microseconds; the last bucket has none.
pub const HOLD_BUCKETS_US: [u64; 13] = [
    1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 50_000, 75_000, 100_000, 150_000, 200_000, 400_000,
    1_000_000,
];

/// Downlink traffic of a leg.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LegStats {
    /// Downlink packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Counters since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Downlink by leg, in the order of [`Leg::ALL`].
    pub legs: [LegStats; 2],
    /// Of these, TCP packets with data, which are subject to steering.
    pub steered: [u64; 2],
    /// Uplink packets, without answers to probes.
    pub uplink_packets: u64,
    /// Packets not steered, by reason, in the order of [`PassReason::ALL`].
    pub passed: [u64; PassReason::ALL.len()],
    /// ACKs that advanced.
    pub advances: u64,
    /// Duplicate ACKs.
    pub dup_acks: u64,
    /// Of these, the ones forwarded at once.
    pub dup_acks_passed: u64,
    /// Third consecutive duplicate ACKs forwarded to the sender. They make a classic sender retransmit.
    pub triple_dup_acks: u64,
    /// Duplicate ACKs held.
    pub held: u64,
    /// ACKs that advanced and were forwarded without their SACK blocks, which were held.
    pub hidden_gaps: u64,
    /// Held ACKs that were sent in the end.
    pub released_acks: u64,
    /// Held ACKs that a later one superseded, and that were dropped.
    pub superseded_acks: u64,
    /// Holds by the reason of their end, in the order of [`ReleaseReason::ALL`].
    pub releases: [u64; ReleaseReason::ALL.len()],
    /// Holds by duration: up to each of [`HOLD_BUCKETS_US`], and longer.
    pub hold_histogram: [u64; HOLD_BUCKETS_US.len() + 1],
    /// Sum of the durations, nanoseconds.
    pub hold_sum_ns: u64,
    /// Gaps whose missing packet was late: not retransmitted, or retransmitted needlessly.
    pub late_gaps: u64,
    /// Gaps that ended with a retransmission.
    pub lost_gaps: u64,
    /// Flows evicted to make room for others.
    pub evicted_flows: u64,
    /// Flows created.
    pub new_flows: u64,
}

impl Stats {
    pub(super) const fn passed(&mut self, reason: PassReason) {
        self.passed[reason.index()] += 1;
    }

    pub(super) const fn left_by(&mut self, leg: Leg, bytes: usize) {
        let leg = &mut self.legs[leg as usize];
        leg.packets += 1;
        leg.bytes += bytes as u64;
    }

    pub(super) fn hold_ended(&mut self, reason: ReleaseReason, acks: u32, held: Duration) {
        self.releases[reason.index()] += 1;
        match reason {
            ReleaseReason::Filled => self.superseded_acks += u64::from(acks),
            _ => self.released_acks += u64::from(acks),
        }
        let ns = nanos(held);
        self.hold_sum_ns = self.hold_sum_ns.saturating_add(ns);
        let bucket = HOLD_BUCKETS_US.iter().position(|bound| ns <= bound * 1_000);
        self.hold_histogram[bucket.unwrap_or(HOLD_BUCKETS_US.len())] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_places() {
        for (i, reason) in PassReason::ALL.into_iter().enumerate() {
            assert_eq!((reason.index(), reason.name().is_empty()), (i, false));
        }
        for (i, reason) in ReleaseReason::ALL.into_iter().enumerate() {
            assert_eq!((reason.index(), reason.name().is_empty()), (i, false));
        }
    }

    #[test]
    fn the_histogram_counts_every_hold() {
        let mut stats = Stats::default();
        for us in [0, 1_000, 1_001, 1_000_000, 1_000_001] {
            stats.hold_ended(ReleaseReason::Timer, 2, Duration::from_micros(us));
        }
        assert_eq!(stats.hold_histogram.iter().sum::<u64>(), 5);
        assert_eq!((stats.hold_histogram[0], stats.hold_histogram[1], stats.hold_histogram[12]), (2, 1, 1));
        assert_eq!((stats.hold_histogram[13], stats.released_acks), (1, 10));
    }
}
