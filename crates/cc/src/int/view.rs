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
//!   above the highest is received for [`MAX_REPORT_AGE_US`], the counter continues from the lower value.
//!
//! Reports of one path that are up to D late, with D below [`MAX_REPORT_AGE_US`], therefore lead to the same counter as in order, and to
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
//! # Reports suppressed by SACK blocks
//!
//! With three lost segments per round trip, nearly every ACK has three SACK blocks and no room for a report. If this is the case
//! ([`View::losses_suppress_reports`]), reports are fresh for four times as long. Rates older than two round trips say nothing about the
//! present queue and arrivals: the rate then does not rise above the share or its former value, headers are subtracted, and the queue
//! is that of the RTT ([`View::queue_by_rtt`]). When reports become stale nevertheless, `int_rate` continues as CUBIC with a window
//! of two lost segments per round trip ([`View::window_with_reports`]), so that the next reports arrive soon. A shorter path with
//! a short queue that took over meanwhile loses more than a fifth of the segments, or delays them.
//!
//! # Hops without telemetry
//!
//! A path is *complete* if every hop reports its drops. On an incomplete path, there may be a slower hop without telemetry, which a
//! flow paced by the rates of the other hops would overrun. Therefore, on such a path:
//!
//! - A flow is paced only once its own window has carried seven eighths of the rate ([`View::window_sustains`]).
//! - The rate at most doubles per round trip.
//! - Pacing ends on a loss or mark while no reporting queue dropped ([`View::may_be_unreported_drop`]), and on a round trip that the reported
//!   queue does not explain ([`View::is_rtt_unexplained`]).
//!
//! A bridge without telemetry leaves no trace in hop limits, so its path looks complete. It is detected by its effects
//! ([`View::has_unreported_queue`]). While it is detected, no loss is classified as medium loss, pacing ends, and the window has to carry the
//! rate before the flow is paced again. The window that bounds the flow is computed for an explained round trip.
//!
//! Seven eighths leave room for headers, which the link carries but a window does not count.

use anabranch_wire::ioam::Feedback;

const HAS_REPORT: u32 = 1;
const COMPLETE: u32 = 2;
const COUNTER_MOVED: u32 = 4;
const PROVISIONAL: u32 = 8;
const HAS_RATES: u32 = 16;

/// An unknown value.
const UNKNOWN: u64 = u64::MAX;
/// 1 Tbit/s: higher reported rates are implausible, and products would overflow.
const MAX_KBPS: u64 = 1_000_000_000;
const MAX_BYTES: u64 = u32::MAX as u64;
const MAX_RTT_US: u64 = 16_000_000;
/// Minimum interval between traces of a flow, and between repetitions of the same report to its sender. A few reports per round
/// trip of the access suffice for every law here, and each has a cost. Where the age of telemetry is measured in round trips,
/// a shorter round trip counts as this interval.
pub const TELEMETRY_INTERVAL_US: u64 = 1000;
/// Tolerance for a round trip longer than the reported queues explain, for schedulers and air interfaces.
pub const SLACK_US: u64 = 10_000;
const MIN_SLACK_US: u64 = 2_000;
/// Initial window in segments (RFC 6928).
const INITIAL_WINDOW: u64 = 10;
/// Minimum number of lost segments that indicates an overflowing queue.
const MIN_OVERFLOW_LOSSES: u32 = 16;
/// Number of lost segments per round trip from which the SACK blocks of most ACKs leave no room for a report: three blocks and the
/// time stamps fill the options of a TCP header.
const SUPPRESSING_LOSSES: u32 = 3;
/// Reports suppressed by SACK blocks, and rates beside SACK blocks, may be older by this factor.
const SUPPRESSED_AGE_FACTOR: u64 = 4;
/// Headers of a segment that its payload does not count: IPv6, and TCP with time stamps.
const HEADER_BYTES: u64 = 72;
/// Part of the rate, one in this many, by which a paced flow may exceed the link because of headers and traces.
const EXCESS_PARTS: u64 = 8;
/// Span over which the minimum RTT is taken; the minimum of the previous span counts as well.
const MIN_RTT_SPAN_US: u64 = 10_000_000;
/// Time for which a receiver reports on a trace, the maximum of the age field. Later values were not overtaken.
pub const MAX_REPORT_AGE_US: u64 = 248_000;
/// Unit of a report's age.
const AGE_UNIT_US: u64 = 8_000;
/// A difference above this, modulo 2^16, is negative.
const HALF_DROP_RANGE: u16 = 1 << 15;
/// One segment in the unit of [`View::slow_start_growth`].
pub const GROWTH_UNIT: u64 = 1024;

/// A flow's knowledge of its path. Times are in microseconds of any clock that starts above 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct View {
    /// When the last report left its last node, as estimated from its age.
    pub received_us: u64,
    /// When the last report with the bottleneck's rates was received.
    pub rates_us: u64,
    /// When the last ACK was received.
    pub acked_us: u64,
    /// When the drop counter last moved, forward or back.
    pub counter_moved_us: u64,
    /// When it last moved forward; 0: never.
    pub dropped_us: u64,
    /// When its stored value was last confirmed.
    pub counter_confirmed_us: u64,
    /// Maximum of `received_us` so far.
    pub newest_us: u64,
    /// Until when the last classification as medium loss may be revoked.
    pub provisional_us: u64,
    /// End of the current span of `min_rtt_us`.
    pub min_rtt_ends_us: u64,
    /// End of the current round trip, for `round_min_rtt_us`, `peak_bytes` and the fields after them.
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
    /// Minimum RTT in the current span of [`MIN_RTT_SPAN_US`] and in the previous one, microseconds; 0: none.
    pub min_rtt_us: [u32; 2],
    /// Minimum RTT in the current round trip and in the previous one, microseconds; 0: none.
    pub round_min_rtt_us: [u32; 2],
    /// Upper bound of the bottleneck's queue during these round trips, as far as reported, bytes.
    pub peak_bytes: [u32; 2],
    /// Total segments delivered and lost at the start of the current round trip.
    pub round_start_totals: [u32; 2],
    /// Segments delivered and lost in the previous round trip.
    pub round_totals: [u32; 2],
}

impl Default for View {
    fn default() -> Self {
        Self {
            received_us: 0,
            rates_us: 0,
            acked_us: 0,
            counter_moved_us: 0,
            dropped_us: 0,
            counter_confirmed_us: 0,
            newest_us: 0,
            provisional_us: 0,
            min_rtt_ends_us: 0,
            round_ends_us: 0,
            link_kbps: UNKNOWN,
            arrival_kbps: UNKNOWN,
            depth_bytes: UNKNOWN,
            free_bytes: UNKNOWN,
            flows: 1,
            drops: 0,
            losses: 0,
            flags: 0,
            min_rtt_us: [0; 2],
            round_min_rtt_us: [0; 2],
            peak_bytes: [0; 2],
            round_start_totals: [0; 2],
            round_totals: [0; 2],
        }
    }
}

const fn clamp_rtt(srtt_us: u64) -> u64 {
    match srtt_us {
        0 => 1,
        us if us > MAX_RTT_US => MAX_RTT_US,
        us => us,
    }
}

/// The round trip for measuring the age of telemetry.
const fn freshness_rtt(srtt_us: u64) -> u64 {
    let rtt = clamp_rtt(srtt_us);
    if rtt < TELEMETRY_INTERVAL_US { TELEMETRY_INTERVAL_US } else { rtt }
}

const fn min(value: u64, most: u64) -> u64 {
    if value > most { most } else { value }
}

/// The smaller of two values, of which 0 means none.
const fn min_nonzero(one_us: u32, other_us: u32) -> u32 {
    if one_us == 0 || (other_us != 0 && other_us < one_us) { other_us } else { one_us }
}

const fn max(one: u64, other: u64) -> u64 {
    if one > other { one } else { other }
}

impl View {
    /// Processes a report. Returns true if it revokes the classification of the last loss as medium loss: the caller then reduces
    /// the window as for any loss.
    pub fn on_report(&mut self, report: &Feedback, now_us: u64) -> bool {
        let drops = u32::from(report.queue_drops);
        let moved = self.flags & HAS_REPORT != 0 && drops != self.drops;
        let behind = moved && report.queue_drops.wrapping_sub(self.drops as u16) >= HALF_DROP_RANGE;
        let late = moved && self.flags & PROVISIONAL != 0 && now_us <= self.provisional_us;
        if moved {
            self.counter_moved_us = now_us;
            self.flags |= COUNTER_MOVED;
        }
        if moved && !behind {
            self.dropped_us = now_us;
        }
        if !behind || now_us.saturating_sub(self.counter_confirmed_us) > MAX_REPORT_AGE_US {
            self.drops = drops;
            self.counter_confirmed_us = now_us;
        }
        if late || now_us > self.provisional_us {
            self.flags &= !PROVISIONAL;
        }
        let received_us = now_us.saturating_sub(AGE_UNIT_US * u64::from(report.age));
        let overtaken = received_us + AGE_UNIT_US <= self.newest_us;
        let newer = |known_us| if overtaken { max(known_us, received_us) } else { received_us };
        self.newest_us = max(self.newest_us, received_us);
        self.received_us = newer(self.received_us);
        self.losses = report.medium_losses.into();
        self.flows = u32::from(report.flows).max(1);
        self.flags = (self.flags & !COMPLETE) | HAS_REPORT | if report.complete { COMPLETE } else { 0 };
        if let Some(hop) = report.bottleneck {
            self.rates_us = newer(self.rates_us);
            self.flags |= HAS_RATES;
            self.link_kbps = hop.link_kbps.unwrap_or(UNKNOWN);
            self.arrival_kbps = hop.arrival_kbps.unwrap_or(UNKNOWN);
            self.depth_bytes = hop.depth_bytes.unwrap_or(UNKNOWN);
            self.free_bytes = hop.free_bytes.unwrap_or(UNKNOWN);
            self.peak_bytes[0] = max(self.peak_bytes[0].into(), min(self.depth_bytes, MAX_BYTES)) as u32;
        }
        late
    }

    /// Records an ACK, with or without a report.
    pub fn record_ack(&mut self, now_us: u64) {
        self.acked_us = now_us;
    }

    /// Records an ACK with an RTT sample (0: none), and the total numbers of segments delivered and lost, modulo 2^32.
    pub fn record_sample(&mut self, now_us: u64, rtt_us: u64, srtt_us: u64, delivered: u32, lost: u32) {
        let sample = if rtt_us == 0 { 0 } else { clamp_rtt(rtt_us) as u32 };
        if now_us >= self.min_rtt_ends_us {
            self.min_rtt_ends_us = now_us + MIN_RTT_SPAN_US;
            self.min_rtt_us = [0, min_nonzero(self.min_rtt_us[0], sample)];
        }
        if now_us >= self.round_ends_us {
            let recent = now_us.saturating_sub(self.rates_us) <= 2 * freshness_rtt(srtt_us);
            let peak =
                if recent { self.depth_bytes } else { self.depth_bytes.saturating_add(self.free_bytes) };
            self.round_ends_us = now_us + freshness_rtt(srtt_us);
            self.round_min_rtt_us = [0, self.round_min_rtt_us[0]];
            self.peak_bytes = [min(peak, MAX_BYTES) as u32, self.peak_bytes[0]];
            self.round_totals = [
                delivered.wrapping_sub(self.round_start_totals[0]),
                lost.wrapping_sub(self.round_start_totals[1]),
            ];
            self.round_start_totals = [delivered, lost];
        }
        self.min_rtt_us[0] = min_nonzero(self.min_rtt_us[0], sample);
        self.round_min_rtt_us[0] = min_nonzero(self.round_min_rtt_us[0], sample);
    }

    /// Whether there is a queue without telemetry (an unreported queue) although every hop seems to report its drops. A standing queue: the minimum RTT of the
    /// last one to two round trips exceeds the minimum of the last ten to twenty seconds by more than a quarter of the latter (at
    /// least 2 ms, at most [`SLACK_US`]) plus the time to drain the reported queue. An overflowing queue: in the last round trip more
    /// segments were lost than delivered, and at least 16.
    #[must_use]
    pub const fn has_unreported_queue(&self) -> bool {
        let low = min_nonzero(self.round_min_rtt_us[0], self.round_min_rtt_us[1]) as u64;
        let base = min_nonzero(self.min_rtt_us[0], self.min_rtt_us[1]) as u64;
        let slack = min(max(base / 4, MIN_SLACK_US), SLACK_US);
        // Possible growth of the reported queue since the report.
        let growth = if self.losses_suppress_reports() {
            min(self.acked_us.saturating_sub(self.rates_us), 2 * base) / EXCESS_PARTS
        } else {
            0
        };
        let drain_time = self.drain_time_us(max(self.peak_bytes[0] as u64, self.peak_bytes[1] as u64));
        let [delivered, lost] = self.round_totals;
        low > base + slack + growth + drain_time || (lost > delivered && lost >= MIN_OVERFLOW_LOSSES)
    }

    /// Whether SACK blocks suppress reports: in the previous round trip, at least [`SUPPRESSING_LOSSES`] segments were lost, and at least
    /// four times as many were delivered as lost.
    #[must_use]
    pub const fn losses_suppress_reports(&self) -> bool {
        let [delivered, lost] = self.round_totals;
        lost >= SUPPRESSING_LOSSES && delivered as u64 >= 4 * lost as u64
    }

    /// The window with which ACKs have room for reports, at most `segments`: two lost segments per round trip.
    #[must_use]
    pub const fn window_with_reports(&self, segments: u64) -> u64 {
        let [delivered, lost] = self.round_totals;
        if lost < SUPPRESSING_LOSSES {
            return segments;
        }
        min(segments, max(2 * delivered as u64 / lost as u64, INITIAL_WINDOW))
    }

    /// Whether the rates are older than two round trips because SACK blocks suppress reports.
    const fn are_rates_suppressed(&self, srtt_us: u64) -> bool {
        self.losses_suppress_reports()
            && self.acked_us.saturating_sub(self.rates_us) > 2 * freshness_rtt(srtt_us)
    }

    /// Makes [`has_dropped`](Self::has_dropped) return false until a drop is reported.
    pub fn forget_drops(&mut self) {
        self.dropped_us = 0;
    }

    /// Whether a reporting queue has dropped packets.
    #[must_use]
    pub const fn has_dropped(&self) -> bool {
        self.dropped_us != 0
    }

    /// The bottleneck's queue according to the RTT instead of reports: the minimum of the last one to two round trips less the minimum,
    /// at `link_bps`; bytes.
    const fn queue_by_rtt(&self, link_bps: u64) -> u64 {
        let low = min_nonzero(self.round_min_rtt_us[0], self.round_min_rtt_us[1]) as u64;
        let base = min_nonzero(self.min_rtt_us[0], self.min_rtt_us[1]) as u64;
        min(low.saturating_sub(base) * (link_bps / 1000) / 8000, MAX_BYTES)
    }

    /// Segments delivered per round trip: in the previous one, or so far in the current one with a total of `total`, whichever is
    /// larger; at least the initial window.
    #[must_use]
    pub const fn delivered_per_rtt(&self, total: u32) -> u32 {
        let now = total.wrapping_sub(self.round_start_totals[0]) as u64;
        max(max(now, self.round_totals[0] as u64), INITIAL_WINDOW) as u32
    }

    /// Time to drain `bytes` at the bottleneck, microseconds.
    const fn drain_time_us(&self, bytes: u64) -> u64 {
        if self.link_kbps == UNKNOWN || self.link_kbps == 0 { 0 } else { bytes * 8000 / self.link_kbps }
    }

    /// Whether reports are current: the last one is at most `stale_rtts` round trips (or telemetry intervals, if longer) older than the
    /// last ACK, or four times as much if SACK blocks suppress them. A pause alone does not make reports stale, because there are no
    /// ACKs either.
    #[must_use]
    pub const fn is_fresh(&self, srtt_us: u64, stale_rtts: u32) -> bool {
        let factor = if self.losses_suppress_reports() { SUPPRESSED_AGE_FACTOR } else { 1 };
        self.flags & HAS_REPORT != 0
            && self.acked_us.saturating_sub(self.received_us)
                <= factor * freshness_rtt(srtt_us) * stale_rtts as u64
    }

    /// Like [`is_fresh`](Self::is_fresh), for rates and queues: these do not fit beside SACK blocks, so they may be four times as old.
    #[must_use]
    pub const fn has_fresh_rates(&self, srtt_us: u64, stale_rtts: u32) -> bool {
        self.flags & HAS_RATES != 0
            && self.is_fresh(srtt_us, stale_rtts)
            && self.acked_us.saturating_sub(self.rates_us)
                <= SUPPRESSED_AGE_FACTOR * freshness_rtt(srtt_us) * stale_rtts as u64
    }

    /// Whether a loss detected now occurred on the medium; if so, a late report may revoke this.
    pub fn classify_medium(&mut self, now_us: u64, srtt_us: u64, stale_rtts: u32) -> bool {
        let margin = 2 * freshness_rtt(srtt_us);
        self.flags &= !PROVISIONAL;
        if !self.is_fresh(srtt_us, stale_rtts)
            || self.flags & COMPLETE == 0
            || self.has_unreported_queue()
            || (self.flags & COUNTER_MOVED != 0 && now_us.saturating_sub(self.counter_moved_us) <= margin)
        {
            return false;
        }
        self.flags |= PROVISIONAL;
        self.provisional_us = now_us + margin;
        true
    }

    /// Whether every hop reports its drops.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.flags & COMPLETE != 0
    }

    /// Whether a loss or mark detected now may be due to a queue without telemetry.
    #[must_use]
    pub const fn may_be_unreported_drop(&self, now_us: u64, srtt_us: u64) -> bool {
        let recent_drop =
            self.dropped_us != 0 && now_us.saturating_sub(self.dropped_us) <= 2 * freshness_rtt(srtt_us);
        !recent_drop && (!self.is_complete() || self.has_unreported_queue())
    }

    /// The longest round trip explained by the reports for a minimum of `min_rtt_us`: twice the minimum, plus [`SLACK_US`], plus the
    /// time to drain the reported queue.
    #[must_use]
    pub const fn max_explained_rtt_us(&self, min_rtt_us: u64) -> u64 {
        let depth = if self.depth_bytes == UNKNOWN { 0 } else { min(self.depth_bytes, MAX_BYTES) };
        2 * clamp_rtt(min_rtt_us) + SLACK_US + self.drain_time_us(depth)
    }

    /// Whether a round trip of `srtt_us`, with a minimum of `min_rtt_us`, indicates a queue without telemetry.
    #[must_use]
    pub const fn is_rtt_unexplained(&self, min_rtt_us: u64, srtt_us: u64) -> bool {
        clamp_rtt(srtt_us) > self.max_explained_rtt_us(min_rtt_us)
    }

    /// Whether this window sustains seven eighths of `rate_bps`.
    #[must_use]
    pub const fn window_sustains(cwnd_segments: u64, rate_bps: u64, srtt_us: u64, mss_bytes: u64) -> bool {
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
        let arrival = min(self.arrival_kbps, MAX_KBPS) * clamp_rtt(srtt_us) / 8000;
        let per_flow = arrival * self.flows as u64;
        let free = min(self.free_bytes, MAX_BYTES);
        let cap = GROWTH_UNIT * growth_cap as u64;
        // Nothing arrives: the flow may use the whole queue.
        Some(match (free * increment as u64 * GROWTH_UNIT).checked_div(per_flow) {
            Some(growth) => min(growth, cap),
            None => cap,
        })
    }

    /// The pacing rate, bit/s, given the current one; `None` if the link rate is not reported. Between two segments per round trip
    /// and `ceiling_bps`.
    #[must_use]
    pub const fn fair_rate(
        &self,
        own_bps: u64,
        srtt_us: u64,
        mss_bytes: u64,
        ceiling_bps: u64,
    ) -> Option<u64> {
        if self.link_kbps == UNKNOWN {
            return None;
        }
        let flows = self.flows as u64;
        let suppressed = self.are_rates_suppressed(srtt_us);
        let mut link = min(self.link_kbps, MAX_KBPS) * 1000;
        if suppressed {
            link = link / (mss_bytes + HEADER_BYTES) * mss_bytes;
        }
        let share = link / flows;
        let mut target = share;
        if suppressed {
            target = max(target, min(own_bps, link));
        } else if self.arrival_kbps != UNKNOWN {
            let arrival = min(self.arrival_kbps, MAX_KBPS) * 1000;
            let own = min(own_bps, link);
            let taken_up = if arrival <= link {
                min(own + (link - arrival) / flows, link)
            } else {
                own.saturating_sub((arrival - link) / flows)
            };
            if taken_up > target {
                target = taken_up;
            }
        }
        if self.depth_bytes != UNKNOWN {
            let queue = if suppressed { self.queue_by_rtt(link) } else { min(self.depth_bytes, MAX_BYTES) };
            let drain = queue * 4_000_000 / (flows * clamp_rtt(srtt_us));
            let least = if suppressed { share - share / EXCESS_PARTS } else { target - target / 2 };
            target -= min(drain, target - least);
        }
        if own_bps != 0 && !self.is_complete() {
            target = min(target, 2 * min(own_bps, MAX_KBPS * 1000));
        }
        let floor = 16_000_000 * min(mss_bytes, 65_536) / clamp_rtt(srtt_us);
        Some(min(if target < floor { floor } else { target }, ceiling_bps))
    }

    /// The bounding window of a flow paced at `rate_bps`: two bandwidth-delay products plus four segments.
    #[must_use]
    pub const fn rate_window(rate_bps: u64, srtt_us: u64, mss_bytes: u64) -> u64 {
        min(rate_bps, MAX_KBPS * 1000) / 4 * clamp_rtt(srtt_us) / 1_000_000 / mss_bytes + 4
    }

    /// Window after a medium loss with β = 0.95, in the units of the kernel's CUBIC (973 / 1024), and the remaining debt. Windows are
    /// whole segments: a reduction of less than one segment is carried over, in 1/1024 segments, until it amounts to a whole one.
    #[must_use]
    pub const fn reduce_by_five_percent(cwnd_segments: u32, owed: u32) -> (u32, u32) {
        let take = (owed & 1023) as u64 + cwnd_segments as u64 * (1024 - 973);
        (cwnd_segments - (take >> 10) as u32, (take & 1023) as u32)
    }

    /// The window of a flow at `ceiling_bps`, segments; at least 4.
    #[must_use]
    pub const fn ceiling_window(ceiling_bps: u64, srtt_us: u64, mss_bytes: u64) -> u64 {
        let segments = min(ceiling_bps, MAX_KBPS * 1000) / 8 * clamp_rtt(srtt_us) / 1_000_000 / mss_bytes;
        if segments < 4 { 4 } else { segments }
    }
}
