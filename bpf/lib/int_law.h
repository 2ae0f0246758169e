/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Decisions based on telemetry: crates/cc/src/int/view.rs in C, function by function, for the kernel and (in the tests of
 * crates/kern) natively. Change both; the laws are documented there.
 */
#ifndef ANABRANCH_INT_LAW_H
#define ANABRANCH_INT_LAW_H

#include "abi.h"

#define AB_HAS_REPORT 1
#define AB_COMPLETE 2
#define AB_COUNTER_MOVED 4
#define AB_PROVISIONAL 8
#define AB_HAS_RATES 16

#define AB_UNKNOWN (~0ULL)
#define AB_MAX_KBPS 1000000000ULL
#define AB_MAX_BYTES 0xffffffffULL
#define AB_MAX_RTT_US 16000000ULL
#define AB_GROWTH_UNIT 1024ULL
#define AB_SLACK_US 10000ULL
#define AB_MIN_SLACK_US 2000ULL
#define AB_MIN_RTT_SPAN_US 10000000ULL
#define AB_INITIAL_WINDOW 10
#define AB_MIN_OVERFLOW_LOSSES 16
#define AB_SUPPRESSING_LOSSES 3
#define AB_SUPPRESSED_AGE_FACTOR 4ULL
#define AB_HEADER_BYTES 72
#define AB_EXCESS_PARTS 8
/* Maximum age of a report to send: the maximum of the age field. */
#define AB_MAX_REPORT_AGE_US 248000ULL
#define AB_AGE_UNIT_US 8000ULL
#define AB_HALF_DROP_RANGE 0x8000

AB_INLINE u64 ab_min(u64 value, u64 most)
{
	return value > most ? most : value;
}

AB_INLINE u64 ab_saturating_sub(u64 a, u64 b)
{
	return a > b ? a - b : 0;
}

AB_INLINE u64 ab_max(u64 a, u64 b)
{
	return a > b ? a : b;
}

/* The smaller of two values, of which 0 means none. */
AB_INLINE u32 ab_min_nonzero(u32 a, u32 b)
{
	return !a || (b && b < a) ? b : a;
}

AB_INLINE u64 ab_clamp_rtt(u64 srtt_us)
{
	return srtt_us ? ab_min(srtt_us, AB_MAX_RTT_US) : 1;
}

AB_INLINE void ab_view_init(struct ab_view *v)
{
	v->received_us = v->rates_us = v->acked_us = v->counter_moved_us = v->provisional_us = 0;
	v->dropped_us = v->counter_confirmed_us = v->newest_us = v->min_rtt_ends_us = v->round_ends_us = 0;
	v->link_kbps = v->arrival_kbps = v->depth_bytes = v->free_bytes = AB_UNKNOWN;
	v->flows = 1;
	v->drops = v->losses = v->flags = 0;
	v->min_rtt_us[0] = v->min_rtt_us[1] = v->round_min_rtt_us[0] = v->round_min_rtt_us[1] = 0;
	v->peak_bytes[0] = v->peak_bytes[1] = 0;
	v->round_start_totals[0] = v->round_start_totals[1] = v->round_totals[0] = v->round_totals[1] = 0;
}

AB_INLINE u64 ab_decode(u16 code)
{
	return code == 0xffff ? AB_UNKNOWN : (u64)(code & 0x7ff) << (code >> 11);
}

AB_INLINE u16 ab_encode(u64 value)
{
	u32 shift = 0;
	u64 v = value;

	if (value == AB_UNKNOWN)
		return 0xffff;
	if (value >> 42)
		return 0xfffe;
	/* Shift for the bits beyond 11, by bisection; without loops, because of the verifier. */
	if (v >> 27) { shift += 16; v >>= 16; }
	if (v >> 19) { shift += 8; v >>= 8; }
	if (v >> 15) { shift += 4; v >>= 4; }
	if (v >> 13) { shift += 2; v >>= 2; }
	if (v >> 12) { shift += 1; v >>= 1; }
	if (v >> 11) { shift += 1; v >>= 1; }
	value = (u64)shift << 11 | v;
	return value >= 0xffff ? 0xfffe : value;
}

AB_INLINE u8 ab_encode_flows(u32 flows)
{
	u32 shift = 0;

	if (flows > 0xffff)
		flows = 0xffff;
	if (flows >> 9) { shift += 4; flows >>= 4; }
	if (flows >> 7) { shift += 2; flows >>= 2; }
	if (flows >> 6) { shift += 1; flows >>= 1; }
	if (flows >> 5) { shift += 1; flows >>= 1; }
	return shift > 7 ? 0xff : shift << 5 | flows;
}

AB_INLINE u16 ab_be16(const u8 *b)
{
	return (u16)b[0] << 8 | b[1];
}

/* Processes a whole option of kind 0x72. Negative: another format. Positive: it revokes the classification of the last loss. */
AB_INLINE int ab_on_report(struct ab_view *v, const u8 *o, u64 now_us)
{
	u32 len = o[1], drops, moved, behind, late, overtaken;
	u64 received_us;

	if (o[0] != AB_OPTION_KIND || (len != AB_OPTION_LEN && len != AB_OPTION_SHORT_LEN) || (o[3] & AB_VERSION_MASK) != AB_VERSION)
		return -1;
	drops = ab_be16(o + 4);
	moved = (v->flags & AB_HAS_REPORT) && drops != v->drops;
	behind = moved && (u16)(drops - v->drops) >= AB_HALF_DROP_RANGE;
	late = moved && (v->flags & AB_PROVISIONAL) && now_us <= v->provisional_us;
	if (moved) {
		v->counter_moved_us = now_us;
		v->flags |= AB_COUNTER_MOVED;
	}
	if (moved && !behind)
		v->dropped_us = now_us;
	if (!behind || ab_saturating_sub(now_us, v->counter_confirmed_us) > AB_MAX_REPORT_AGE_US) {
		v->drops = drops;
		v->counter_confirmed_us = now_us;
	}
	if (late || now_us > v->provisional_us)
		v->flags &= ~AB_PROVISIONAL;
	received_us = ab_saturating_sub(now_us, AB_AGE_UNIT_US * (o[3] & 0x1f));
	overtaken = received_us + AB_AGE_UNIT_US <= v->newest_us;
	v->newest_us = ab_max(v->newest_us, received_us);
	v->received_us = overtaken ? ab_max(v->received_us, received_us) : received_us;
	v->losses = ab_be16(o + 6);
	v->flows = (u32)(o[2] & 0x1f) << (o[2] >> 5);
	if (!v->flows)
		v->flows = 1;
	v->flags = (v->flags & ~AB_COMPLETE) | AB_HAS_REPORT | (o[3] & 0x20 ? AB_COMPLETE : 0);
	if (len == AB_OPTION_LEN) {
		v->rates_us = overtaken ? ab_max(v->rates_us, received_us) : received_us;
		v->flags |= AB_HAS_RATES;
		v->link_kbps = ab_decode(ab_be16(o + 8));
		v->arrival_kbps = ab_decode(ab_be16(o + 10));
		v->depth_bytes = ab_decode(ab_be16(o + 12));
		v->free_bytes = ab_decode(ab_be16(o + 14));
		v->peak_bytes[0] = ab_max(v->peak_bytes[0], ab_min(v->depth_bytes, AB_MAX_BYTES));
	}
	return late;
}

AB_INLINE void ab_record_ack(struct ab_view *v, u64 now_us)
{
	v->acked_us = now_us;
}

/*
 * Time of the last ACK, for controllers that are not called for ACKs during recovery: TCP records the time of the last delivery
 * (tcp_rate.c). If nothing was in flight, it records there, and as the first transmission, the start of sending: not an ACK.
 */
AB_INLINE void ab_record_recovery_ack(struct ab_view *v, u64 delivered_us, u64 first_sent_us)
{
	if (delivered_us > v->acked_us && delivered_us != first_sent_us)
		v->acked_us = delivered_us;
}

/* The round trip for measuring the age of telemetry, at least the interval of telemetry. */
AB_INLINE u64 ab_freshness_rtt(u64 srtt_us)
{
	u64 rtt = ab_clamp_rtt(srtt_us);

	return rtt < AB_INTERVAL_US ? AB_INTERVAL_US : rtt;
}

/* Records an ACK with an RTT sample (0: none), and the total numbers of segments delivered and lost. */
AB_INLINE void ab_record_sample(struct ab_view *v, u64 now_us, u64 rtt_us, u64 srtt_us, u32 delivered, u32 lost)
{
	u32 sample = rtt_us ? ab_clamp_rtt(rtt_us) : 0;
	u64 peak;

	if (now_us >= v->min_rtt_ends_us) {
		v->min_rtt_ends_us = now_us + AB_MIN_RTT_SPAN_US;
		v->min_rtt_us[1] = ab_min_nonzero(v->min_rtt_us[0], sample);
		v->min_rtt_us[0] = 0;
	}
	if (now_us >= v->round_ends_us) {
		peak = v->depth_bytes;
		if (ab_saturating_sub(now_us, v->rates_us) > 2 * ab_freshness_rtt(srtt_us))
			peak = v->free_bytes > AB_UNKNOWN - peak ? AB_UNKNOWN : peak + v->free_bytes;
		v->round_ends_us = now_us + ab_freshness_rtt(srtt_us);
		v->round_min_rtt_us[1] = v->round_min_rtt_us[0];
		v->round_min_rtt_us[0] = 0;
		v->peak_bytes[1] = v->peak_bytes[0];
		v->peak_bytes[0] = ab_min(peak, AB_MAX_BYTES);
		v->round_totals[0] = delivered - v->round_start_totals[0];
		v->round_totals[1] = lost - v->round_start_totals[1];
		v->round_start_totals[0] = delivered;
		v->round_start_totals[1] = lost;
	}
	v->min_rtt_us[0] = ab_min_nonzero(v->min_rtt_us[0], sample);
	v->round_min_rtt_us[0] = ab_min_nonzero(v->round_min_rtt_us[0], sample);
}

/* Time to drain `bytes` at the bottleneck. */
AB_INLINE u64 ab_drain_time(const struct ab_view *v, u64 bytes)
{
	return v->link_kbps == AB_UNKNOWN || !v->link_kbps ? 0 : bytes * 8000 / v->link_kbps;
}

/* Whether SACK blocks suppress reports. */
AB_INLINE int ab_losses_suppress_reports(const struct ab_view *v)
{
	return v->round_totals[1] >= AB_SUPPRESSING_LOSSES && v->round_totals[0] >= 4ULL * v->round_totals[1];
}

/* Whether there is a queue without telemetry although every hop seems to report its drops. */
AB_INLINE int ab_has_unreported_queue(const struct ab_view *v)
{
	u64 low = ab_min_nonzero(v->round_min_rtt_us[0], v->round_min_rtt_us[1]);
	u64 base = ab_min_nonzero(v->min_rtt_us[0], v->min_rtt_us[1]);
	u64 slack = ab_min(ab_max(base / 4, AB_MIN_SLACK_US), AB_SLACK_US);
	/* Possible growth of the reported queue since the report. */
	u64 growth = ab_losses_suppress_reports(v) ?
			     ab_min(ab_saturating_sub(v->acked_us, v->rates_us), 2 * base) / AB_EXCESS_PARTS : 0;

	return low > base + slack + growth + ab_drain_time(v, ab_max(v->peak_bytes[0], v->peak_bytes[1])) ||
	       (v->round_totals[1] > v->round_totals[0] && v->round_totals[1] >= AB_MIN_OVERFLOW_LOSSES);
}

/* The window with which ACKs have room for reports, at most `segments`: two lost segments per round trip. */
AB_INLINE u64 ab_window_with_reports(const struct ab_view *v, u64 segments)
{
	if (v->round_totals[1] < AB_SUPPRESSING_LOSSES)
		return segments;
	return ab_min(segments, ab_max(2ULL * v->round_totals[0] / v->round_totals[1], AB_INITIAL_WINDOW));
}

/* Whether the rates are older than two round trips because SACK blocks suppress reports. */
AB_INLINE int ab_are_rates_suppressed(const struct ab_view *v, u64 srtt_us)
{
	return ab_losses_suppress_reports(v) && ab_saturating_sub(v->acked_us, v->rates_us) > 2 * ab_freshness_rtt(srtt_us);
}

/* The bottleneck's queue according to the RTT instead of reports. */
AB_INLINE u64 ab_queue_by_rtt(const struct ab_view *v, u64 link_bps)
{
	u64 low = ab_min_nonzero(v->round_min_rtt_us[0], v->round_min_rtt_us[1]);
	u64 base = ab_min_nonzero(v->min_rtt_us[0], v->min_rtt_us[1]);

	return ab_min(ab_saturating_sub(low, base) * (link_bps / 1000) / 8000, AB_MAX_BYTES);
}

/* Segments delivered per round trip, with a total of `total`. */
AB_INLINE u32 ab_delivered_per_rtt(const struct ab_view *v, u32 total)
{
	u32 now = total - v->round_start_totals[0];

	return ab_max(ab_max(now, v->round_totals[0]), AB_INITIAL_WINDOW);
}

AB_INLINE int ab_is_fresh(const struct ab_view *v, u64 srtt_us, u32 stale_rtts)
{
	u64 factor = ab_losses_suppress_reports(v) ? AB_SUPPRESSED_AGE_FACTOR : 1;

	return (v->flags & AB_HAS_REPORT) &&
	       ab_saturating_sub(v->acked_us, v->received_us) <= factor * ab_freshness_rtt(srtt_us) * stale_rtts;
}

AB_INLINE int ab_has_fresh_rates(const struct ab_view *v, u64 srtt_us, u32 stale_rtts)
{
	return (v->flags & AB_HAS_RATES) && ab_is_fresh(v, srtt_us, stale_rtts) &&
	       ab_saturating_sub(v->acked_us, v->rates_us) <= AB_SUPPRESSED_AGE_FACTOR * ab_freshness_rtt(srtt_us) * stale_rtts;
}

AB_INLINE int ab_classify_medium(struct ab_view *v, u64 now_us, u64 srtt_us, u32 stale_rtts)
{
	u64 near = 2 * ab_freshness_rtt(srtt_us);

	v->flags &= ~AB_PROVISIONAL;
	if (!ab_is_fresh(v, srtt_us, stale_rtts) || !(v->flags & AB_COMPLETE) || ab_has_unreported_queue(v) ||
	    ((v->flags & AB_COUNTER_MOVED) && ab_saturating_sub(now_us, v->counter_moved_us) <= near))
		return 0;
	v->flags |= AB_PROVISIONAL;
	v->provisional_us = now_us + near;
	return 1;
}

AB_INLINE int ab_is_complete(const struct ab_view *v)
{
	return !!(v->flags & AB_COMPLETE);
}

/* The longest round trip explained by the reports for a minimum of `min_rtt_us`. */
AB_INLINE u64 ab_max_explained_rtt(const struct ab_view *v, u64 min_rtt_us)
{
	u64 depth = v->depth_bytes == AB_UNKNOWN ? 0 : ab_min(v->depth_bytes, AB_MAX_BYTES);

	return 2 * ab_clamp_rtt(min_rtt_us) + AB_SLACK_US + ab_drain_time(v, depth);
}

/* Whether a loss or mark detected now may be due to a queue without telemetry. */
AB_INLINE int ab_may_be_unreported_drop(const struct ab_view *v, u64 now_us, u64 srtt_us)
{
	if (v->dropped_us && ab_saturating_sub(now_us, v->dropped_us) <= 2 * ab_freshness_rtt(srtt_us))
		return 0;
	return !ab_is_complete(v) || ab_has_unreported_queue(v);
}

/* Whether the path reports enough for Eq. 1. */
AB_INLINE int ab_reports_growth(const struct ab_view *v)
{
	return v->free_bytes != AB_UNKNOWN && v->arrival_kbps != AB_UNKNOWN;
}

/* Eq. 1; all ones: the path does not report enough. */
AB_INLINE u64 ab_slow_start_growth(const struct ab_view *v, u64 srtt_us, u32 increment, u32 growth_cap)
{
	u64 per_flow, cap = AB_GROWTH_UNIT * growth_cap;

	if (!ab_reports_growth(v))
		return AB_UNKNOWN;
	per_flow = ab_min(v->arrival_kbps, AB_MAX_KBPS) * ab_clamp_rtt(srtt_us) / 8000 * v->flows;
	if (!per_flow)
		return cap;
	return ab_min(ab_min(v->free_bytes, AB_MAX_BYTES) * increment * AB_GROWTH_UNIT / per_flow, cap);
}

/* The pacing rate; 0: the link rate is not reported. */
AB_INLINE u64 ab_fair_rate(const struct ab_view *v, u64 own_bps, u64 srtt_us, u64 mss_bytes, u64 ceiling_bps)
{
	u64 flows = v->flows ? v->flows : 1;
	u64 link, share, target, arrival, own, taken_up, queue, drain, least;
	int suppressed = ab_are_rates_suppressed(v, srtt_us);

	if (v->link_kbps == AB_UNKNOWN)
		return 0;
	link = ab_min(v->link_kbps, AB_MAX_KBPS) * 1000;
	if (suppressed)
		link = link / (mss_bytes + AB_HEADER_BYTES) * mss_bytes;
	share = target = link / flows;
	if (suppressed) {
		target = ab_max(target, ab_min(own_bps, link));
	} else if (v->arrival_kbps != AB_UNKNOWN) {
		arrival = ab_min(v->arrival_kbps, AB_MAX_KBPS) * 1000;
		own = ab_min(own_bps, link);
		if (arrival <= link)
			taken_up = ab_min(own + (link - arrival) / flows, link);
		else
			taken_up = ab_saturating_sub(own, (arrival - link) / flows);
		if (taken_up > target)
			target = taken_up;
	}
	if (v->depth_bytes != AB_UNKNOWN) {
		queue = suppressed ? ab_queue_by_rtt(v, link) : ab_min(v->depth_bytes, AB_MAX_BYTES);
		drain = queue * 4000000 / (flows * ab_clamp_rtt(srtt_us));
		least = suppressed ? share - share / AB_EXCESS_PARTS : target - target / 2;
		target -= ab_min(drain, target - least);
	}
	if (own_bps && !ab_is_complete(v))
		target = ab_min(target, 2 * ab_min(own_bps, AB_MAX_KBPS * 1000));
	least = 16000000 * ab_min(mss_bytes, 65536) / ab_clamp_rtt(srtt_us);
	return ab_min(target < least ? least : target, ceiling_bps);
}

AB_INLINE u64 ab_rate_window(u64 rate_bps, u64 srtt_us, u64 mss_bytes)
{
	return ab_min(rate_bps, AB_MAX_KBPS * 1000) / 4 * ab_clamp_rtt(srtt_us) / 1000000 / (mss_bytes ? mss_bytes : 1) + 4;
}

/* Whether this window sustains seven eighths of that rate. */
AB_INLINE int ab_window_sustains(u64 cwnd, u64 rate_bps, u64 srtt_us, u64 mss_bytes)
{
	return 8 * cwnd >= 7 * (ab_rate_window(rate_bps, srtt_us, mss_bytes) / 2);
}

AB_INLINE u64 ab_ceiling_window(u64 ceiling_bps, u64 srtt_us, u64 mss_bytes)
{
	u64 segments = ab_min(ceiling_bps, AB_MAX_KBPS * 1000) / 8 * ab_clamp_rtt(srtt_us) / 1000000 /
		       (mss_bytes ? mss_bytes : 1);

	return segments < 4 ? 4 : segments;
}

/*
 * Window after a medium loss with β = 0.95, in the units of the kernel's CUBIC (973 / 1024). Windows are whole segments: a
 * reduction of less than one segment is carried over in `owed`, in 1/1024 segments, until it amounts to a whole one.
 */
AB_INLINE u32 ab_reduce_by_five_percent(u32 cwnd, u32 *owed)
{
	u64 take = (*owed & 1023) + (u64)cwnd * (1024 - 973);

	*owed = take & 1023;
	return cwnd - (u32)(take >> 10);
}

/* Whether `cwnd` has reached ab_ceiling_window; without its divisions, for use at every ACK. */
AB_INLINE int ab_at_ceiling_window(u32 cwnd, u64 ceiling_bps, u64 srtt_us, u64 mss_bytes)
{
	u64 mss = mss_bytes ? mss_bytes : 1;

	if (cwnd < 4)
		return 0;
	if (cwnd >> 27 || mss > 65536)
		return cwnd >= ab_ceiling_window(ceiling_bps, srtt_us, mss);
	/* At most 2^27 segments of 2^16 bytes by 10^6, and 1.25 * 10^11 bytes/s by 16 * 10^6 us: both below 2^63. */
	return (cwnd + 1ULL) * mss * 1000000 > ab_min(ceiling_bps, AB_MAX_KBPS * 1000) / 8 * ab_clamp_rtt(srtt_us);
}

#endif
