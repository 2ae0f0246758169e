//! A flow's knowledge of its path, and the decisions based on it; integers only, for identical results in the kernel.
//! **`bpf/lib/int_law.h` contains the same algorithm in C: change both.**
//!
//! # Classification of a loss
//!
//! ```text
//!    loss detected at t; the lost packet passed the queue between t − 2·RTT and t
//!    ├─ reports are stale, or a hop did not report its drops ─────────▶ congestion, for lack of information
//!    ├─ there is a queue without telemetry ────────────────────────────▶ congestion
//!    ├─ the path's drop counter moved at t − 2·RTT or later ──────────▶ congestion
//!    └─ else ─────────────────────────────────────────────────────────▶ medium, provisionally:
//!         revoked by a report that moves the counter before t + 2·RTT (the report was late)
//! ```
//!
//! RTT is the smoothed RTT here, or [`TELEMETRY_INTERVAL_US`] if that is longer, because reports are no more frequent than that.
//!
//! The counter covers the drops of all flows, so drops of other flows also lead to the congestion response. With telemetry only
//! in every n-th packet, a report may arrive after the loss was detected; hence *provisionally*.
//!
//! # Overtaken reports
//!
//! Packets with traces can overtake each other, and so can ACKs; a flow that is sprayed over several paths receives reports of each
//! in turn. A report does not contain the time of its trace, so the last one received applies, except for values that must not
//! go back:
//!
//! - The *time of the last report* is that of the newest one according to its age, which has a resolution of 8 ms.
//! - The *drop counter* continues from the highest value received. A lower value is of a trace that was overtaken, of another
//!   path, or of a node that restarted. For the classification of losses it counts as a movement of the counter (to be
//!   conservative), but not as a drop of a reporting queue, and neither does the return to the higher value. If no value at or
//!   above the highest is received for [`ANSWER_US`], the counter continues from the lower value.
//!
//! Reports of one path that are up to D late, with D below [`ANSWER_US`], therefore lead to the same counter as in order, and to
//! times up to D later (within 8 ms where they are derived from ages). Rates and queues are those of a trace up to D older, until
//! the next report.
//!
//! # Equation 1
//!
//! `cwnd += available_queue_capacity · increment / (arrival_rate · flow_count)` on every ACK, without units in the paper. Units
//! used here: capacity in bytes, arrival rate in bytes per round trip. The term is then in segments per acknowledged segment, and
//! over one round trip a flow adds `increment` times its share of the free queue. It is capped per acknowledged segment
//! ([`super::IntConfig::growth_cap`]).
//!
//! # Fair share
//!
//! `max(link / flows, own + (link − arrival) / flows) − queue / (flows · 2·RTT)`: the second term uses capacity left unused by
//! others, the last drains the queue within two round trips (gain · delay = ½: damped). Headers are not subtracted, so the
//! target is a few per cent above the payload capacity of the link; the queue settles where the drain term balances that, near a
//! tenth of the bandwidth-delay product.
//!
//! # Hops without telemetry
//!
//! A path is *complete* if every hop reports its drops. On an incomplete path, there may be a slower hop without telemetry, which a
//! flow paced by the rates of the other hops would overrun. Therefore, on such a path:
//!
//! - A flow is paced only once its own window has carried seven eighths of the rate ([`View::carries`]).
//! - The rate at most doubles per round trip.
//! - Pacing ends on a loss or mark while no reporting queue dropped ([`View::unseen`]), and on a round trip that the reported
//!   queue does not explain ([`View::unexplained`]).
//!
//! A bridge without telemetry leaves no trace in hop limits, so its path looks complete. It is detected by its effects
//! ([`View::untold`]). While it is detected, no loss is classified as medium loss, pacing ends, and the window has to carry the
//! rate before the flow is paced again. The window that bounds the flow is computed for an explained round trip.
//!
//! Seven eighths leave room for headers, which the link carries but a window does not count.

use anabranch_wire::ioam::Feedback;

const KNOWN: u32 = 1;
const COMPLETE: u32 = 2;
const MOVED: u32 = 4;
const PROVISIONAL: u32 = 8;
const DETAILED: u32 = 16;

/// An unknown value.
const UNKNOWN: u64 = u64::MAX;
/// 1 Tbit/s: higher reported rates are implausible, and products would overflow.
const MOST_KBPS: u64 = 1_000_000_000;
const MOST_BYTES: u64 = u32::MAX as u64;
const MOST_RTT_US: u64 = 16_000_000;
/// Minimum interval between traces of a flow, and between repetitions of the same report to its sender. A few reports per round
/// trip of the access suffice for every law here, and each has a cost. Where the age of telemetry is measured in round trips,
/// a shorter round trip counts as this interval.
pub const TELEMETRY_INTERVAL_US: u64 = 1000;
/// Tolerance for a round trip longer than the reported queues explain, for schedulers and air interfaces.
pub const SLACK_US: u64 = 10_000;
const LEAST_SLACK_US: u64 = 2_000;
/// Initial window in segments (RFC 6928).
const FIRST_WINDOW: u64 = 10;
/// Minimum number of lost segments that indicates an overflowing queue.
const MOST_OF: u32 = 16;
/// Span over which the minimum RTT is taken; the minimum of the previous span counts as well.
const LEAST_US: u64 = 10_000_000;
/// Time for which a receiver reports on a trace, the maximum of the age field. Later values were not overtaken.
pub const ANSWER_US: u64 = 248_000;
/// Unit of a report's age.
const AGE_US: u64 = 8_000;
/// A difference above this, modulo 2^16, is negative.
const HALF_OF_DROPS: u16 = 1 << 15;
/// One segment in the unit of [`View::slow_start_growth`].
pub const GROWTH_UNIT: u64 = 1024;

/// A flow's knowledge of its path. Times are in microseconds of any clock that starts above 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct View {
    /// When the last report left its last node, as estimated from its age.
    pub received_us: u64,
    /// When the last report with the bottleneck's rates was received.
    pub detailed_us: u64,
    /// When the last ACK was received.
    pub acked_us: u64,
    /// When the drop counter last moved, forward or back.
    pub moved_us: u64,
    /// When it last moved forward; 0: never.
    pub dropped_us: u64,
    /// When its stored value was last confirmed.
    pub counted_us: u64,
    /// Maximum of `received_us` so far.
    pub newest_us: u64,
    /// Until when the last classification as medium loss may be revoked.
    pub provisional_us: u64,
    /// End of the current span of `least_us`.
    pub least_ends_us: u64,
    /// End of the current round trip, for `low_us`, `peak_bytes` and the fields after them.
    pub round_ends_us: u64,
    /// Link rate at the bottleneck, kbit/s; here and below, all ones mean unknown.
    pub link_kbps: u64,
    /// Arrival rate at the bottleneck, kbit/s.
    pub arrival_kbps: u64,
    /// Queue depth at the bottleneck, bytes.
    pub depth_bytes: u64,
    /// Free space of the bottleneck's queue, bytes.
    pub free_bytes: u64,
    /// Number of flows at the bottleneck, at least 1.
    pub flows: u32,
    /// Packets dropped by queues, modulo 2^16: the highest value reported.
    pub drops: u32,
    /// Packets lost by media, modulo 2^16.
    pub losses: u32,
    flags: u32,
    /// Minimum RTT in the current span of [`LEAST_US`] and in the previous one, microseconds; 0: none.
    pub least_us: [u32; 2],
    /// Minimum RTT in the current round trip and in the previous one, microseconds; 0: none.
    pub low_us: [u32; 2],
    /// Upper bound of the bottleneck's queue during these round trips, as far as reported, bytes.
    pub peak_bytes: [u32; 2],
    /// Total segments delivered and lost at the start of the current round trip.
    pub began: [u32; 2],
    /// Segments delivered and lost in the previous round trip.
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

/// The round trip for measuring the age of telemetry.
const fn span(srtt_us: u64) -> u64 {
    let rtt = rtt(srtt_us);
    if rtt < TELEMETRY_INTERVAL_US { TELEMETRY_INTERVAL_US } else { rtt }
}

const fn at_most(value: u64, most: u64) -> u64 {
    if value > most { most } else { value }
}

/// The smaller of two values, of which 0 means none.
const fn lesser(one_us: u32, other_us: u32) -> u32 {
    if one_us == 0 || (other_us != 0 && other_us < one_us) { other_us } else { one_us }
}

const fn more(one: u64, other: u64) -> u64 {
    if one > other { one } else { other }
}

impl View {
    /// Processes a report. Returns true if it revokes the classification of the last loss as medium loss: the caller then reduces
    /// the window as for any loss.
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

    /// Records an ACK, with or without a report.
    pub fn acked(&mut self, now_us: u64) {
        self.acked_us = now_us;
    }

    /// Records an ACK with an RTT sample (0: none), and the total numbers of segments delivered and lost, modulo 2^32.
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

    /// Whether there is a queue without telemetry although every hop seems to report its drops. A standing queue: the minimum RTT of the
    /// last one to two round trips exceeds the minimum of the last ten to twenty seconds by more than a quarter of the latter (at
    /// least 2 ms, at most [`SLACK_US`]) plus the time to drain the reported queue. An overflowing queue: in the last round trip more
    /// segments were lost than delivered, and at least 16.
    #[must_use]
    pub const fn untold(&self) -> bool {
        let low = lesser(self.low_us[0], self.low_us[1]) as u64;
        let base = lesser(self.least_us[0], self.least_us[1]) as u64;
        let slack = at_most(more(base / 4, LEAST_SLACK_US), SLACK_US);
        let told = self.drains_us(more(self.peak_bytes[0] as u64, self.peak_bytes[1] as u64));
        let [delivered, lost] = self.passed;
        low > base + slack + told || (lost > delivered && lost >= MOST_OF)
    }

    /// Segments delivered per round trip: in the previous one, or so far in the current one with a total of `total`, whichever is
    /// larger; at least the initial window.
    #[must_use]
    pub const fn delivered(&self, total: u32) -> u32 {
        let now = total.wrapping_sub(self.began[0]) as u64;
        more(more(now, self.passed[0] as u64), FIRST_WINDOW) as u32
    }

    /// Time to drain `bytes` at the bottleneck, microseconds.
    const fn drains_us(&self, bytes: u64) -> u64 {
        if self.link_kbps == UNKNOWN || self.link_kbps == 0 { 0 } else { bytes * 8000 / self.link_kbps }
    }

    /// Whether reports are current: the last one is at most `stale_rtts` round trips (or telemetry intervals, if longer) older than the
    /// last ACK. A pause alone does not make reports stale, because there are no ACKs either.
    #[must_use]
    pub const fn fresh(&self, srtt_us: u64, stale_rtts: u32) -> bool {
        self.flags & KNOWN != 0
            && self.acked_us.saturating_sub(self.received_us) <= span(srtt_us) * stale_rtts as u64
    }

    /// Like [`fresh`](Self::fresh), for rates and queues: these do not fit beside SACK blocks, so they may be four times as old.
    #[must_use]
    pub const fn detailed(&self, srtt_us: u64, stale_rtts: u32) -> bool {
        self.flags & DETAILED != 0
            && self.fresh(srtt_us, stale_rtts)
            && self.acked_us.saturating_sub(self.detailed_us) <= 4 * span(srtt_us) * stale_rtts as u64
    }

    /// Whether a loss detected now occurred on the medium; if so, a late report may revoke this.
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

    /// Whether every hop reports its drops.
    #[must_use]
    pub const fn complete(&self) -> bool {
        self.flags & COMPLETE != 0
    }

    /// Whether a loss or mark detected now may be due to a queue without telemetry.
    #[must_use]
    pub const fn unseen(&self, now_us: u64, srtt_us: u64) -> bool {
        let told = self.dropped_us != 0 && now_us.saturating_sub(self.dropped_us) <= 2 * span(srtt_us);
        !told && (!self.complete() || self.untold())
    }

    /// The longest round trip explained by the reports for a minimum of `least_us`: twice the minimum, plus [`SLACK_US`], plus the
    /// time to drain the reported queue.
    #[must_use]
    pub const fn explained_us(&self, least_us: u64) -> u64 {
        let depth = if self.depth_bytes == UNKNOWN { 0 } else { at_most(self.depth_bytes, MOST_BYTES) };
        2 * rtt(least_us) + SLACK_US + self.drains_us(depth)
    }

    /// Whether a round trip of `srtt_us`, with a minimum of `least_us`, indicates a queue without telemetry.
    #[must_use]
    pub const fn unexplained(&self, least_us: u64, srtt_us: u64) -> bool {
        rtt(srtt_us) > self.explained_us(least_us)
    }

    /// Whether this window sustains seven eighths of `rate_bps`.
    #[must_use]
    pub const fn carries(cwnd_segments: u64, rate_bps: u64, srtt_us: u64, mss_bytes: u64) -> bool {
        8 * cwnd_segments >= 7 * (Self::rate_window(rate_bps, srtt_us, mss_bytes) / 2)
    }

    /// Equation 1: growth of cwnd per acknowledged segment, in 1/[`GROWTH_UNIT`] segments; `None` if the path does not report
    /// enough.
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
        // Nothing arrives: the flow may use the whole queue.
        Some(match (free * increment as u64 * GROWTH_UNIT).checked_div(per_flow) {
            Some(growth) => at_most(growth, cap),
            None => cap,
        })
    }

    /// The pacing rate, bit/s, given the current one; `None` if the link rate is not reported. Between two segments per round trip
    /// and `ceiling_bps`.
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

    /// The bounding window of a flow paced at `rate_bps`: two bandwidth-delay products plus four segments.
    #[must_use]
    pub const fn rate_window(rate_bps: u64, srtt_us: u64, mss_bytes: u64) -> u64 {
        at_most(rate_bps, MOST_KBPS * 1000) / 4 * rtt(srtt_us) / 1_000_000 / mss_bytes + 4
    }

    /// Window after a medium loss with β = 0.95, in the units of the kernel's CUBIC (973 / 1024), and the remaining debt. Windows are
    /// whole segments: a reduction of less than one segment is carried over, in 1/1024 segments, until it amounts to a whole one.
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
