//! What a flow knows of its path, and what follows from it: integers only, so that the kernel can do the same.
//! **`bpf/lib/int_law.h` is this file in C: change both.**
//!
//! # Was a loss the medium's?
//!
//! ```text
//!    loss found at t;  the lost packet passed the queue between t − 2·RTT and t
//!    ├─ reports are stale, or a hop did not tell its drops ───────────▶ congestion: we do not know better
//!    ├─ there is a queue that nobody tells of ─────────────────────────▶ congestion
//!    ├─ the path's drop counter moved at t − 2·RTT or later ──────────▶ congestion
//!    └─ else ─────────────────────────────────────────────────────────▶ medium, provisionally:
//!         a report that moves the counter before t + 2·RTT takes it back (the report was late)
//! ```
//!
//! RTT is the smoothed round trip here, or [`TELEMETRY_INTERVAL_US`] if that is longer: a report is not earlier than that.
//!
//! The counter is of all flows' drops: somebody else's drop makes us careful, too. With telemetry in every n-th
//! packet only, a report may come after the loss was found; hence *provisionally*.
//!
//! # Reports that were overtaken
//!
//! Packets with traces overtake one another, and so do ACKs; a flow that is sprayed over several paths hears of each in turn. Nothing in a
//! report says when its trace was made, so what was told last is in force, but for what must not go back:
//!
//! - *When the last report left* is that of the newest one, by its age, within the 8 ms that an age is exact to.
//! - *The drop counter* counts on from the highest that was told. One behind it is of a trace that was overtaken, of another path, or of a
//!   node that started again: it moves the counter as far as the cause of a loss is asked for (we are careful), it is no drop that a queue
//!   told, and when it comes back nothing has been dropped either. Where nothing at or beyond the highest was told for
//!   [`ANSWER_US`], the counter counts on from there.
//!
//! So reports of one path that come up to D late, D below [`ANSWER_US`], leave the same counter as in order, and times up to D later (within
//! 8 ms, where they are by ages); of rates and queues those of a trace up to D older, until the next report.
//!
//! # Equation 1
//!
//! `cwnd += available_queue_capacity · increment / (arrival_rate · flow_count)` on every ACK, without units in
//! the paper. Ours: capacity in bytes, arrival rate in bytes per round trip; then the term is segments per
//! acknowledged segment, and over one round trip a flow adds `increment` times its share of the free queue. It is
//! capped per acknowledged segment ([`super::IntConfig::growth_cap`]).
//!
//! # Fair share
//!
//! `max(link / flows, own + (link − arrival) / flows) − queue / (flows · 2·RTT)`: the second term takes up what
//! others leave unused, the last drains the queue within two round trips (gain · delay = ½: damped). Headers
//! are not subtracted, so the target is a few per cent above what the link carries as payload; the queue
//! settles where the drain term balances that, near a tenth of the bandwidth-delay product.
//!
//! # A hop that tells nothing
//!
//! A path is *complete* if every hop tells its drops. On one that is not, a slower hop may be silent, and a flow that paces by
//! the others' rates would overrun it. So there
//!
//! - a flow paces only once its own window has carried seven eighths of the rate ([`View::carries`]);
//! - the rate at most doubles per round trip;
//! - a loss or a mark while none of the told queues dropped ([`View::unseen`]), and a round trip that the told queue does not explain
//!   ([`View::unexplained`]), end it.
//!
//! A silent bridge leaves no trace in hop limits, and a path with one looks complete. It shows by what it does ([`View::untold`]). While it
//! does, no loss is the medium's, pacing ends, and the window has to carry the rate before the flow paces again. The window that
//! bounds the flow is one for a round trip that is explained.
//!
//! The seven eighths leave room for headers, which the link carries and a window does not count.

use anabranch_wire::ioam::Feedback;

const KNOWN: u32 = 1;
const COMPLETE: u32 = 2;
const MOVED: u32 = 4;
const PROVISIONAL: u32 = 8;
const DETAILED: u32 = 16;

/// A hop that does not know.
const UNKNOWN: u64 = u64::MAX;
/// 1 Tbit/s: beyond that a report is nonsense, and products would not fit.
const MOST_KBPS: u64 = 1_000_000_000;
const MOST_BYTES: u64 = u32::MAX as u64;
const MOST_RTT_US: u64 = 16_000_000;
/// A flow gets a trace, and its sender the same report again, once in so long at most: telemetry that comes a few times in
/// a round trip of the access is enough for every law here, and each costs. A shorter round trip counts as this where
/// the age of telemetry is told by it.
pub const TELEMETRY_INTERVAL_US: u64 = 1000;
/// A round trip may be so much longer than told queues explain: schedulers and air interfaces take their time.
pub const SLACK_US: u64 = 10_000;
const LEAST_SLACK_US: u64 = 2_000;
/// Segments (RFC 6928).
const FIRST_WINDOW: u64 = 10;
/// So many segments lost are no accident.
const MOST_OF: u32 = 16;
/// For so long a least round trip counts, and for as long again until there is another.
const LEAST_US: u64 = 10_000_000;
/// For so long a receiver tells of a trace: what the age field can say. What comes later was not overtaken.
pub const ANSWER_US: u64 = 248_000;
/// Unit of a report's age.
const AGE_US: u64 = 8_000;
/// What is further ahead than this, modulo 2^16, is behind.
const HALF_OF_DROPS: u16 = 1 << 15;
/// One segment in the unit of [`View::slow_start_growth`].
pub const GROWTH_UNIT: u64 = 1024;

/// See the top of this file. Times are microseconds of any clock that starts above 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct View {
    /// When the last report left its last node, as far as is known.
    pub received_us: u64,
    /// When the last report with the bottleneck's rates came.
    pub detailed_us: u64,
    /// When the last ACK came.
    pub acked_us: u64,
    /// When the drop counter last moved, on or back.
    pub moved_us: u64,
    /// When it last moved on; 0: never.
    pub dropped_us: u64,
    /// When it was last told as it is kept here.
    pub counted_us: u64,
    /// The latest that `received_us` was.
    pub newest_us: u64,
    /// Until when the last judgement may be taken back.
    pub provisional_us: u64,
    /// When the span of `least_us` ends.
    pub least_ends_us: u64,
    /// When the round trip of `low_us`, `peak_bytes` and what follows ends.
    pub round_ends_us: u64,
    /// Link rate at the bottleneck, kbit/s; all ones here and below: unknown.
    pub link_kbps: u64,
    /// Arrival rate there, kbit/s.
    pub arrival_kbps: u64,
    /// Queue depth there, bytes.
    pub depth_bytes: u64,
    /// Free space of its queue, bytes.
    pub free_bytes: u64,
    /// Flows there, at least 1.
    pub flows: u32,
    /// Packets dropped by queues, modulo 2^16: the most that was told.
    pub drops: u32,
    /// Packets lost by media, modulo 2^16.
    pub losses: u32,
    flags: u32,
    /// Least round trip of this span of [`LEAST_US`] and of the one before, microseconds; 0: none.
    pub least_us: [u32; 2],
    /// The same of this round trip and of the one before.
    pub low_us: [u32; 2],
    /// Most that the bottleneck's queue may have had within them, as far as is told, bytes.
    pub peak_bytes: [u32; 2],
    /// Segments that had been delivered and lost in all when this round trip began.
    pub began: [u32; 2],
    /// Segments that were delivered and lost in the one before.
    pub passed: [u32; 2],
}

impl Default for View {
    fn default() -> Self {
        Self {
            received_us: 0,
            detailed_us: 0,
            acked_us: 0,
            moved_us: 0,
            dropped_us: 0,
            counted_us: 0,
            newest_us: 0,
            provisional_us: 0,
            least_ends_us: 0,
            round_ends_us: 0,
            link_kbps: UNKNOWN,
            arrival_kbps: UNKNOWN,
            depth_bytes: UNKNOWN,
            free_bytes: UNKNOWN,
            flows: 1,
            drops: 0,
            losses: 0,
            flags: 0,
            least_us: [0; 2],
            low_us: [0; 2],
            peak_bytes: [0; 2],
            began: [0; 2],
            passed: [0; 2],
        }
    }
}

const fn rtt(srtt_us: u64) -> u64 {
    match srtt_us {
        0 => 1,
        us if us > MOST_RTT_US => MOST_RTT_US,
        us => us,
    }
}

/// The round trip by which telemetry's age is told.
const fn span(srtt_us: u64) -> u64 {
    let rtt = rtt(srtt_us);
    if rtt < TELEMETRY_INTERVAL_US { TELEMETRY_INTERVAL_US } else { rtt }
}

const fn at_most(value: u64, most: u64) -> u64 {
    if value > most { most } else { value }
}

/// The lesser of two, of which 0 is none.
const fn lesser(one_us: u32, other_us: u32) -> u32 {
    if one_us == 0 || (other_us != 0 && other_us < one_us) { other_us } else { one_us }
}

const fn more(one: u64, other: u64) -> u64 {
    if one > other { one } else { other }
}

impl View {
    /// Takes a report. True if it takes back the judgement that the last loss was the medium's: the caller
    /// then reduces as on any loss.
    pub fn take(&mut self, report: &Feedback, now_us: u64) -> bool {
        let drops = u32::from(report.queue_drops);
        let moved = self.flags & KNOWN != 0 && drops != self.drops;
        let behind = moved && report.queue_drops.wrapping_sub(self.drops as u16) >= HALF_OF_DROPS;
        let late = moved && self.flags & PROVISIONAL != 0 && now_us <= self.provisional_us;
        if moved {
            self.moved_us = now_us;
            self.flags |= MOVED;
        }
        if moved && !behind {
            self.dropped_us = now_us;
        }
        if !behind || now_us.saturating_sub(self.counted_us) > ANSWER_US {
            self.drops = drops;
            self.counted_us = now_us;
        }
        if late || now_us > self.provisional_us {
            self.flags &= !PROVISIONAL;
        }
        let received_us = now_us.saturating_sub(AGE_US * u64::from(report.age));
        let overtaken = received_us + AGE_US <= self.newest_us;
        let newer = |known_us| if overtaken { more(known_us, received_us) } else { received_us };
        self.newest_us = more(self.newest_us, received_us);
        self.received_us = newer(self.received_us);
        self.losses = report.medium_losses.into();
        self.flows = u32::from(report.flows).max(1);
        self.flags = (self.flags & !COMPLETE) | KNOWN | if report.complete { COMPLETE } else { 0 };
        if let Some(hop) = report.bottleneck {
            self.detailed_us = newer(self.detailed_us);
            self.flags |= DETAILED;
            self.link_kbps = hop.link_kbps.unwrap_or(UNKNOWN);
            self.arrival_kbps = hop.arrival_kbps.unwrap_or(UNKNOWN);
            self.depth_bytes = hop.depth_bytes.unwrap_or(UNKNOWN);
            self.free_bytes = hop.free_bytes.unwrap_or(UNKNOWN);
            self.peak_bytes[0] =
                more(self.peak_bytes[0].into(), at_most(self.depth_bytes, MOST_BYTES)) as u32;
        }
        late
    }

    /// An ACK came, with a report or without.
    pub fn acked(&mut self, now_us: u64) {
        self.acked_us = now_us;
    }

    /// An ACK came, with this sample of the round trip (0: none). So many segments are delivered and lost by now, modulo 2^32.
    pub fn measured(&mut self, now_us: u64, rtt_us: u64, srtt_us: u64, delivered: u32, lost: u32) {
        let sample = if rtt_us == 0 { 0 } else { rtt(rtt_us) as u32 };
        if now_us >= self.least_ends_us {
            self.least_ends_us = now_us + LEAST_US;
            self.least_us = [0, lesser(self.least_us[0], sample)];
        }
        if now_us >= self.round_ends_us {
            let recent = now_us.saturating_sub(self.detailed_us) <= 2 * span(srtt_us);
            let peak =
                if recent { self.depth_bytes } else { self.depth_bytes.saturating_add(self.free_bytes) };
            self.round_ends_us = now_us + span(srtt_us);
            self.low_us = [0, self.low_us[0]];
            self.peak_bytes = [at_most(peak, MOST_BYTES) as u32, self.peak_bytes[0]];
            self.passed = [delivered.wrapping_sub(self.began[0]), lost.wrapping_sub(self.began[1])];
            self.began = [delivered, lost];
        }
        self.least_us[0] = lesser(self.least_us[0], sample);
        self.low_us[0] = lesser(self.low_us[0], sample);
    }

    /// Whether there is a queue that nobody tells of, where every hop seems to tell its drops. Either it stands: the least of the last one
    /// to two round trips is longer than the least of the last ten to twenty seconds by more than a quarter of that (2 ms at least,
    /// [`SLACK_US`] at most) and what the told queue took to leave. Or it overflows: in the last round trip more
    /// segments were lost than delivered, 16 at least.
    #[must_use]
    pub const fn untold(&self) -> bool {
        let low = lesser(self.low_us[0], self.low_us[1]) as u64;
        let base = lesser(self.least_us[0], self.least_us[1]) as u64;
        let slack = at_most(more(base / 4, LEAST_SLACK_US), SLACK_US);
        let told = self.drains_us(more(self.peak_bytes[0] as u64, self.peak_bytes[1] as u64));
        let [delivered, lost] = self.passed;
        low > base + slack + told || (lost > delivered && lost >= MOST_OF)
    }

    /// What the path delivers in a round trip, segments: in the last, or in this one until now, when `total` are delivered in all. A first
    /// window at least.
    #[must_use]
    pub const fn delivered(&self, total: u32) -> u32 {
        let now = total.wrapping_sub(self.began[0]) as u64;
        more(more(now, self.passed[0] as u64), FIRST_WINDOW) as u32
    }

    /// What so many bytes take to leave the bottleneck.
    const fn drains_us(&self, bytes: u64) -> u64 {
        if self.link_kbps == UNKNOWN || self.link_kbps == 0 { 0 } else { bytes * 8000 / self.link_kbps }
    }

    /// Whether reports still come: the last is at most `stale_rtts` round trips (or intervals of
    /// telemetry, if those are longer) older than the last ACK.
    /// Silence alone makes nothing stale, for then there are no ACKs either.
    #[must_use]
    pub const fn fresh(&self, srtt_us: u64, stale_rtts: u32) -> bool {
        self.flags & KNOWN != 0
            && self.acked_us.saturating_sub(self.received_us) <= span(srtt_us) * stale_rtts as u64
    }

    /// As [`fresh`](Self::fresh), for rates and queues: they do not fit beside SACK blocks, so they may be four
    /// times as old.
    #[must_use]
    pub const fn detailed(&self, srtt_us: u64, stale_rtts: u32) -> bool {
        self.flags & DETAILED != 0
            && self.fresh(srtt_us, stale_rtts)
            && self.acked_us.saturating_sub(self.detailed_us) <= 4 * span(srtt_us) * stale_rtts as u64
    }

    /// Whether a loss that was found now is the medium's. Remembers to take a late report into account.
    pub fn medium(&mut self, now_us: u64, srtt_us: u64, stale_rtts: u32) -> bool {
        let near = 2 * span(srtt_us);
        self.flags &= !PROVISIONAL;
        if !self.fresh(srtt_us, stale_rtts)
            || self.flags & COMPLETE == 0
            || self.untold()
            || (self.flags & MOVED != 0 && now_us.saturating_sub(self.moved_us) <= near)
        {
            return false;
        }
        self.flags |= PROVISIONAL;
        self.provisional_us = now_us + near;
        true
    }

    /// Whether every hop tells its drops, so that no queue on the path is unseen.
    #[must_use]
    pub const fn complete(&self) -> bool {
        self.flags & COMPLETE != 0
    }

    /// Whether a loss or mark that was found now may be of a queue that tells nothing.
    #[must_use]
    pub const fn unseen(&self, now_us: u64, srtt_us: u64) -> bool {
        let told = self.dropped_us != 0 && now_us.saturating_sub(self.dropped_us) <= 2 * span(srtt_us);
        !told && (!self.complete() || self.untold())
    }

    /// The longest round trip that what is told explains, where the least was `least_us`: that and as much again and [`SLACK_US`], and what
    /// the told queue takes to leave.
    #[must_use]
    pub const fn explained_us(&self, least_us: u64) -> u64 {
        let depth = if self.depth_bytes == UNKNOWN { 0 } else { at_most(self.depth_bytes, MOST_BYTES) };
        2 * rtt(least_us) + SLACK_US + self.drains_us(depth)
    }

    /// Whether a round trip of `srtt_us`, which was `least_us` at best, is a queue that tells nothing.
    #[must_use]
    pub const fn unexplained(&self, least_us: u64, srtt_us: u64) -> bool {
        rtt(srtt_us) > self.explained_us(least_us)
    }

    /// Whether this window is one for seven eighths of `rate_bps`.
    #[must_use]
    pub const fn carries(cwnd_segments: u64, rate_bps: u64, srtt_us: u64, mss_bytes: u64) -> bool {
        8 * cwnd_segments >= 7 * (Self::rate_window(rate_bps, srtt_us, mss_bytes) / 2)
    }

    /// Equation 1: what to add to cwnd per acknowledged segment, in 1/[`GROWTH_UNIT`] segments; `None` if the
    /// path does not tell enough.
    #[must_use]
    pub const fn slow_start_growth(&self, srtt_us: u64, increment: u32, growth_cap: u32) -> Option<u64> {
        if self.free_bytes == UNKNOWN || self.arrival_kbps == UNKNOWN {
            return None;
        }
        // Bytes per round trip: kbit/s · us / 8000.
        let arrival = at_most(self.arrival_kbps, MOST_KBPS) * rtt(srtt_us) / 8000;
        let per_flow = arrival * self.flows as u64;
        let free = at_most(self.free_bytes, MOST_BYTES);
        let cap = GROWTH_UNIT * growth_cap as u64;
        // Nothing arrives: the whole queue is ours.
        Some(match (free * increment as u64 * GROWTH_UNIT).checked_div(per_flow) {
            Some(growth) => at_most(growth, cap),
            None => cap,
        })
    }

    /// The rate to pace at, bit/s, given the one paced at now; `None` if the path does not tell its link
    /// rate. Between two segments per round trip and `ceiling_bps`.
    #[must_use]
    pub const fn rate(&self, own_bps: u64, srtt_us: u64, mss_bytes: u64, ceiling_bps: u64) -> Option<u64> {
        if self.link_kbps == UNKNOWN {
            return None;
        }
        let flows = self.flows as u64;
        let link = at_most(self.link_kbps, MOST_KBPS) * 1000;
        let share = link / flows;
        let mut target = share;
        if self.arrival_kbps != UNKNOWN {
            let arrival = at_most(self.arrival_kbps, MOST_KBPS) * 1000;
            let own = at_most(own_bps, link);
            let taken_up = if arrival <= link {
                at_most(own + (link - arrival) / flows, link)
            } else {
                own.saturating_sub((arrival - link) / flows)
            };
            if taken_up > target {
                target = taken_up;
            }
        }
        if self.depth_bytes != UNKNOWN {
            let queue = at_most(self.depth_bytes, MOST_BYTES);
            let drain = queue * 4_000_000 / (flows * rtt(srtt_us));
            target -= at_most(drain, target / 2);
        }
        if own_bps != 0 && !self.complete() {
            target = at_most(target, 2 * at_most(own_bps, MOST_KBPS * 1000));
        }
        let least = 16_000_000 * at_most(mss_bytes, 65_536) / rtt(srtt_us);
        Some(at_most(if target < least { least } else { target }, ceiling_bps))
    }

    /// The window that bounds a flow paced at `rate_bps`: two bandwidth-delay products and four segments.
    #[must_use]
    pub const fn rate_window(rate_bps: u64, srtt_us: u64, mss_bytes: u64) -> u64 {
        at_most(rate_bps, MOST_KBPS * 1000) / 4 * rtt(srtt_us) / 1_000_000 / mss_bytes + 4
    }

    /// What a window is after a loss of the medium by β = 0.95, in the units of the kernel's CUBIC (973 / 1024), and what
    /// is still owed. A window has whole segments: what is less than one is owed, in 1/1024 segments, until there is one
    /// to take.
    #[must_use]
    pub const fn give_way(cwnd_segments: u32, owed: u32) -> (u32, u32) {
        let take = (owed & 1023) as u64 + cwnd_segments as u64 * (1024 - 973);
        (cwnd_segments - (take >> 10) as u32, (take & 1023) as u32)
    }

    /// The window of a flow at `ceiling_bps`, segments; at least 4.
    #[must_use]
    pub const fn ceiling_window(ceiling_bps: u64, srtt_us: u64, mss_bytes: u64) -> u64 {
        let segments = at_most(ceiling_bps, MOST_KBPS * 1000) / 8 * rtt(srtt_us) / 1_000_000 / mss_bytes;
        if segments < 4 { 4 } else { segments }
    }
}
