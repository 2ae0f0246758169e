//! What steering decides from beside the state of the paths: the load of a path and why it is down, which `path` finds
//! out, and what is remembered of a flow, which `table` keeps.

use anabranch_element::time::{Duration, Instant};

/// The period in which the autonomous law counts bytes.
pub(super) const PERIOD_MS: u64 = 250;
/// Bytes of a flow in a period that make it a bulk flow: 0.5 Mbit/s.
pub(super) const BULK_BYTES: u32 = 16_000;
/// Bytes of a call in a period at most: 4 Mbit/s.
const CALL_BYTES: u32 = 125_000;
/// A flow of datagrams that is acknowledged and sends a part of so much of what its home carries is no call.
const CALL_FILLS_PART: u64 = 4;

/// A flow of which so many times as many bytes arrive as leave carries acknowledgements.
const ACKNOWLEDGED_PARTS: u32 = 8;
/// Longest packet, in bytes, that is taken for an acknowledgement.
pub const ACKNOWLEDGEMENT_BYTES: usize = 200;

/// Why a path is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DownReason {
    /// The access has no carrier or no route.
    Carrier,
    /// Probes of an idle path went unanswered.
    Probes,
    /// Nothing came back while the path carried traffic.
    Silence,
    /// The far end said so.
    Notified,
    /// Switched off by configuration.
    Admin,
    /// One end would have user data in the clear on it and the other would not.
    Security,
}

impl DownReason {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Carrier, Self::Probes, Self::Silence, Self::Notified, Self::Admin, Self::Security];

    /// The reason as carried in a notification, from 1; 0 there means none (the path is up).
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// The reason of a code; `None` for 0 and for codes of a later version.
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

/// What steering may know of a path's load. Times in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadView {
    /// Forward delay without a queue, clock offset included; `None` before the first probe.
    pub base_us: Option<i64>,
    /// Least round trip; 0: not known.
    pub rtt_us: u32,
    /// How long a packet sent now waits in the queue.
    pub queue_us: u32,
    /// The same, but cautious where the capacity is not known: what is sent beyond the estimate, or where there is none twice the
    /// highest rate seen, waits.
    pub modelled_us: u32,
    /// The queue at which the path is known to drop; `u32::MAX` if it was not seen to.
    pub drop_us: u32,
    /// What the path carries, in bit/s; 0 while it was never full.
    pub capacity_bps: u64,
    /// What it is taken to carry: the newer of `capacity_bps` and what a measurement of the idle path told; 0: neither.
    pub estimate_bps: u64,
    /// `capacity_bps`, or else the highest rate seen.
    pub seen_bps: u64,
    /// A measurement of it while it was idle told something, now or before: its far end takes part, and its queue holds some packets.
    pub is_measured: bool,
    /// Loss without congestion, in parts per million.
    pub wild_ppm: u32,
}

impl LoadView {
    /// Of a path that was not probed yet.
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
    };
}

/// What arrived of a flow since it was asked last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Bytes, duplicates included.
    pub bytes: u32,
    /// A bit for each path by which something came: `1 << path`.
    pub paths: u8,
}

/// What steering remembers of one flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowSteer {
    /// Milliseconds (wrapping) when the flow last left a path.
    away_ms: u32,
    /// Milliseconds (wrapping) when its home last changed.
    moved_ms: u32,
    pub(super) period: u32,
    /// Bytes in this period, and in the one before; where a round trip is longer, in the flow's last period within one.
    pub(super) bytes: [u32; 2],
    /// What arrived of the flow in these periods, as far as it was asked for.
    pub(super) arrived: [Arrived; 2],
    /// Periods in a row in which its home's loss harmed it: it sent as little as a sender does that takes loss for
    /// congestion, or nothing acknowledges what it sends.
    pub(super) held_back: u8,
    /// Path of its last packet, plus one; 0: none yet.
    path: u8,
    /// Plus one; 0: none yet.
    home: u8,
    /// [`SPLIT`], [`WAS_BULK`], [`ENDED`]; above them the periods in a row in which it was not bulk.
    marks: u8,
}

/// It was on more than one path not long ago.
const SPLIT: u8 = 1;
/// It was bulk.
const WAS_BULK: u8 = 2;
/// Its connection has ended in this direction.
const ENDED: u8 = 4;
/// Where the periods in a row are, and the most that are counted.
const QUIET_SHIFT: u8 = 3;
const MOST_QUIET: u32 = (u8::MAX >> QUIET_SHIFT) as u32;

impl FlowSteer {
    /// The flow's packet takes `path`. Whether no earlier packet can be under way on another one, given that no
    /// packet is under way for longer than `longest`.
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

    /// It is bulk now.
    pub(super) const fn note_bulk(&mut self) {
        self.marks |= WAS_BULK;
    }

    /// Whether it ever was.
    pub(super) const fn was_bulk(&self) -> bool {
        self.marks & WAS_BULK > 0
    }

    /// Its connection ends in this direction; whether it had not before.
    pub(super) const fn ends(&mut self) -> bool {
        let first = self.marks & ENDED == 0;
        self.marks |= ENDED;
        first
    }

    /// The path it keeps to, where packets leave it one by one; `None` before its first packet.
    #[must_use]
    pub fn home(&self) -> Option<u8> {
        self.home.checked_sub(1)
    }

    pub(super) fn set_home(&mut self, path: u8, now: Instant) {
        if self.home != path + 1 {
            (self.home, self.moved_ms, self.held_back) = (path + 1, wrapping_ms(now), 0);
        }
    }

    /// Whether so much is sent that it is bulk, or a call.
    pub(super) fn is_large(&self) -> bool {
        self.bytes.iter().any(|bytes| *bytes >= BULK_BYTES)
    }

    /// Whether a flow of datagrams whose home carries `home_bps` sends at its own rate, so that delay is what counts: little,
    /// and with no acknowledgements or such that its home would carry much more of it.
    pub(super) fn is_call(&self, home_bps: u64) -> bool {
        let [arrived, sent] = self.both();
        let acknowledges = arrived > sent.saturating_mul(ACKNOWLEDGED_PARTS);
        let acknowledged = arrived > 0 && arrived.saturating_mul(ACKNOWLEDGED_PARTS) < sent;
        self.bytes.iter().all(|bytes| *bytes <= CALL_BYTES)
            && !acknowledges
            && !(acknowledged && self.fills(home_bps / CALL_FILLS_PART))
    }

    /// Bytes that arrived and were sent in this period and the one before.
    fn both(&self) -> [u32; 2] {
        let [this, before] = self.arrived;
        [this.bytes.saturating_add(before.bytes), self.bytes[0].saturating_add(self.bytes[1])]
    }

    /// What was sent in this period and the one before, in bits.
    pub(super) fn sent_bits(&self) -> u64 {
        let [_, sent] = self.both();
        u64::from(sent) * 8
    }

    /// Something of the flow arrived from the far end.
    pub fn arrives(&mut self, arrived: Arrived) {
        let [this, _] = &mut self.arrived;
        this.bytes = this.bytes.saturating_add(arrived.bytes);
        this.paths |= arrived.paths;
    }

    /// Whether the flow had no packet in this period of the law yet.
    pub fn is_due(&self, now: Instant) -> bool {
        self.period != (now.as_millis() / PERIOD_MS) as u32
    }

    /// Periods in a row in which it was not bulk, up to the last one that ended.
    pub(super) fn quiet_periods(&self) -> u32 {
        u32::from(self.marks >> QUIET_SHIFT)
    }

    /// A period of the law begins; `next`: right after the flow's last one, or within a round trip.
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

    /// Whether the flow's packets acknowledge bulk that arrives.
    pub(super) fn carries_acknowledgements(&self) -> bool {
        let [arrived, sent] = self.both();
        arrived >= BULK_BYTES.max(sent.saturating_mul(ACKNOWLEDGED_PARTS))
    }

    /// Whether they acknowledge bulk that arrives by `path`.
    pub(super) fn acknowledges(&self, path: u8) -> bool {
        let [this, before] = self.arrived;
        self.carries_acknowledgements() && (this.paths | before.paths) >> path & 1 == 1
    }

    /// Whether the flow sends at this rate at least, by what it sent in this period or the one before.
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
