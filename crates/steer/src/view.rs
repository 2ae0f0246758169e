//! Inputs of steering in addition to path states: the path model, the reason why a path is down (both
//! determined by `path`), and the state of a flow (stored in `table`).

use anabranch_element::time::{Duration, Instant};

/// Period in which the autonomous law counts bytes, milliseconds.
pub(super) const PERIOD_MS: u64 = 250;
/// Bytes per period from which on a flow is a bulk flow: 0.5 Mbit/s.
pub(super) const BULK_BYTES: u32 = 16_000;
/// Most bytes of a call per period: 4 Mbit/s.
const CALL_BYTES: u32 = 125_000;
/// An acknowledged flow of datagrams is not a call if it sends at least its home's capacity divided by this.
const CALL_FILLS_PART: u64 = 4;

/// A flow carries acknowledgements if the bytes that arrive are at least this multiple of those sent.
const ACKNOWLEDGED_PARTS: u32 = 8;
/// Longest packet that counts as an acknowledgement, bytes.
pub const ACKNOWLEDGEMENT_BYTES: usize = 200;

/// Why a path is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DownReason {
    /// The access has no carrier or no route.
    Carrier,
    /// Probes of an idle path were not answered.
    Probes,
    /// Nothing was received while the path carried traffic.
    Silence,
    /// The far end reported it.
    Notified,
    /// Switched off by configuration.
    Admin,
    /// The path is configured plain at one end only.
    Security,
}

impl DownReason {
    /// All reasons.
    pub const ALL: [Self; 6] =
        [Self::Carrier, Self::Probes, Self::Silence, Self::Notified, Self::Admin, Self::Security];

    /// The code of the reason in a notification, from 1; 0 means none (the path is up).
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// The reason of a code; `None` for 0 and for codes of later versions.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// The reason in lower case, for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Carrier => "carrier",
            Self::Probes => "probes",
            Self::Silence => "silence",
            Self::Notified => "notified",
            Self::Admin => "admin",
            Self::Security => "security is plain at one end and secure at the other",
        }
    }
}

/// The path model as used by steering. Times are in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadView {
    /// Base delay: forward delay without a queue, clock offset included; `None` before the first probe.
    pub base_us: Option<i64>,
    /// Least round trip; 0: unknown.
    pub rtt_us: u32,
    /// Queueing delay of a packet sent now.
    pub queue_us: u32,
    /// The same, but with a cautious drain rate if the capacity is unknown: the estimate, or twice the highest
    /// rate seen if there is none.
    pub modelled_us: u32,
    /// Drop level: the queue at which the path is known to drop; `u32::MAX` if no drop was seen.
    pub drop_us: u32,
    /// Capacity, in bit/s; 0 until the path has been full.
    pub capacity_bps: u64,
    /// Estimate: the newer of `capacity_bps` and the result of a train, in bit/s; 0: neither is known.
    pub estimate_bps: u64,
    /// `capacity_bps`, or else the highest rate seen.
    pub seen_bps: u64,
    /// A train has had a result, now or before: the far end supports trains, and the queue of the path holds
    /// some packets.
    pub is_measured: bool,
    /// Wild loss: loss without congestion, in parts per million.
    pub wild_ppm: u32,
    /// Loss without congestion that the far end restores, in parts per million. It is not part of `wild_ppm`.
    pub restored_ppm: u32,
}

impl LoadView {
    /// The model of a path that has not been probed yet.
    pub const UNKNOWN: Self = Self {
        base_us: None,
        rtt_us: 0,
        queue_us: 0,
        modelled_us: 0,
        drop_us: u32::MAX,
        capacity_bps: 0,
        estimate_bps: 0,
        seen_bps: 0,
        is_measured: false,
        wild_ppm: 0,
        restored_ppm: 0,
    };
}

/// What arrived of a flow since the last report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Bytes, duplicates included.
    pub bytes: u32,
    /// One bit for each path by which packets arrived: `1 << path`.
    pub paths: u8,
}

/// The state of one flow for steering.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowSteer {
    /// Time in milliseconds (wrapping) at which the flow last left a path.
    away_ms: u32,
    /// Time in milliseconds (wrapping) at which its home last changed.
    moved_ms: u32,
    pub(super) period: u32,
    /// Bytes sent in the current period and in the previous one. Where a round trip is longer than a period,
    /// the previous one is the flow's last period within a round trip.
    pub(super) bytes: [u32; 2],
    /// What arrived of the flow in these periods, as far as it was reported.
    pub(super) arrived: [Arrived; 2],
    /// Consecutive periods in which the loss of its home held it back: it sent no more than a sender that takes
    /// loss for congestion, or is not acknowledged at all.
    pub(super) held_back: u8,
    /// Path of its last packet, plus one; 0: none yet.
    path: u8,
    /// Its home, plus one; 0: none yet.
    home: u8,
    /// Flags [`SPLIT`], [`WAS_BULK`], [`ENDED`]; in the bits above, the number of consecutive periods in which
    /// it was not bulk.
    marks: u8,
}

/// The flow recently used more than one path.
const SPLIT: u8 = 1;
/// The flow was bulk at some time.
const WAS_BULK: u8 = 2;
/// The connection has ended in this direction.
const ENDED: u8 = 4;
/// Position of the number of periods in `marks`, and its maximum.
const QUIET_SHIFT: u8 = 3;
const MOST_QUIET: u32 = (u8::MAX >> QUIET_SHIFT) as u32;

impl FlowSteer {
    /// The flow's packet takes `path`. Returns whether no earlier packet can be in flight on another path, if
    /// no packet is in flight for longer than `longest`.
    pub fn takes(&mut self, path: u8, longest: Duration, now: Instant) -> bool {
        let (now_ms, next) = (wrapping_ms(now), path + 1);
        if self.path != next {
            if self.path != 0 {
                self.away_ms = now_ms;
                self.marks |= SPLIT;
            }
            self.path = next;
        }
        let longest_ms = u32::try_from(longest.as_millis()).unwrap_or(u32::MAX);
        if now_ms.wrapping_sub(self.away_ms) > longest_ms {
            self.marks &= !SPLIT;
        }
        self.marks & SPLIT == 0
    }

    /// The flow is bulk now.
    pub(super) const fn note_bulk(&mut self) {
        self.marks |= WAS_BULK;
    }

    /// Whether the flow has ever been bulk.
    pub(super) const fn was_bulk(&self) -> bool {
        self.marks & WAS_BULK > 0
    }

    /// The connection ends in this direction. Returns whether this is new.
    pub(super) const fn ends(&mut self) -> bool {
        let first = self.marks & ENDED == 0;
        self.marks |= ENDED;
        first
    }

    /// Its home in a mode in which individual packets leave it; `None` before its first packet.
    #[must_use]
    pub fn home(&self) -> Option<u8> {
        self.home.checked_sub(1)
    }

    pub(super) fn set_home(&mut self, path: u8, now: Instant) {
        if self.home != path + 1 {
            (self.home, self.moved_ms, self.held_back) = (path + 1, wrapping_ms(now), 0);
        }
    }

    /// Whether it sends enough to be bulk or a call.
    pub(super) fn is_large(&self) -> bool {
        self.bytes.iter().any(|bytes| *bytes >= BULK_BYTES)
    }

    /// Whether a flow of datagrams is a call, whose quality depends on delay: at most [`CALL_BYTES`], and
    /// either not acknowledged, or sending less than a quarter of `home_bps`, the capacity of its home. (A flow
    /// that carries acknowledgements is not a call.)
    pub(super) fn is_call(&self, home_bps: u64) -> bool {
        let [arrived, sent] = self.both();
        let acknowledges = arrived > sent.saturating_mul(ACKNOWLEDGED_PARTS);
        let acknowledged = arrived > 0 && arrived.saturating_mul(ACKNOWLEDGED_PARTS) < sent;
        self.bytes.iter().all(|bytes| *bytes <= CALL_BYTES)
            && !acknowledges
            && !(acknowledged && self.fills(home_bps / CALL_FILLS_PART))
    }

    /// Bytes that arrived and bytes that were sent, in the current and the previous period together.
    fn both(&self) -> [u32; 2] {
        let [this, before] = self.arrived;
        [this.bytes.saturating_add(before.bytes), self.bytes[0].saturating_add(self.bytes[1])]
    }

    /// Bits sent in the current and the previous period together.
    pub(super) fn sent_bits(&self) -> u64 {
        let [_, sent] = self.both();
        u64::from(sent) * 8
    }

    /// Packets of the flow arrived from the far end.
    pub fn arrives(&mut self, arrived: Arrived) {
        let [this, _] = &mut self.arrived;
        this.bytes = this.bytes.saturating_add(arrived.bytes);
        this.paths |= arrived.paths;
    }

    /// Whether the flow has not had a packet in the law's current period.
    pub fn is_due(&self, now: Instant) -> bool {
        self.period != (now.as_millis() / PERIOD_MS) as u32
    }

    /// Consecutive periods in which it was not bulk, up to the last completed one.
    pub(super) fn quiet_periods(&self) -> u32 {
        u32::from(self.marks >> QUIET_SHIFT)
    }

    /// A period of the law begins; `next`: it directly follows the flow's last one, or is within a round trip.
    pub(super) fn begin(&mut self, period: u32, next: bool) {
        let elapsed = period.wrapping_sub(self.period);
        let quiet = if self.bytes[0] >= BULK_BYTES {
            elapsed.saturating_sub(1)
        } else {
            elapsed.saturating_add(self.quiet_periods())
        };
        let marks = self.marks & ((1 << QUIET_SHIFT) - 1);
        self.marks = marks | (quiet.min(MOST_QUIET) as u8) << QUIET_SHIFT;
        self.bytes = [0, if next { self.bytes[0] } else { 0 }];
        self.arrived = [Arrived::default(), if next { self.arrived[0] } else { Arrived::default() }];
        self.period = period;
    }

    /// Whether it is a flow of acknowledgements, for bulk in the other direction.
    pub(super) fn carries_acknowledgements(&self) -> bool {
        let [arrived, sent] = self.both();
        arrived >= BULK_BYTES.max(sent.saturating_mul(ACKNOWLEDGED_PARTS))
    }

    /// Whether it acknowledges bulk that arrives by `path`.
    pub(super) fn acknowledges(&self, path: u8) -> bool {
        let [this, before] = self.arrived;
        self.carries_acknowledgements() && (this.paths | before.paths) >> path & 1 == 1
    }

    /// Whether it sends at least at this rate, by the bytes of the current or the previous period.
    pub(super) fn fills(&self, bps: u64) -> bool {
        u64::from(self.bytes[0].max(self.bytes[1])) * 8 * 1000 >= bps * PERIOD_MS
    }

    pub(super) fn since_moved_ms(&self, now: Instant) -> u32 {
        wrapping_ms(now).wrapping_sub(self.moved_ms)
    }
}

/// Milliseconds, modulo 49 days.
pub(super) const fn wrapping_ms(now: Instant) -> u32 {
    now.as_millis() as u32
}
