/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Decisions based on telemetry: crates/cc/src/int/view.rs in C, function by function, for the kernel and (in the tests of
 * crates/kern) natively. Change both; the laws are documented there.
 */
#ifndef ANABRANCH_INT_LAW_H
#define ANABRANCH_INT_LAW_H

#include "abi.h"

#define AB_KNOWN 1
#define AB_COMPLETE 2
#define AB_MOVED 4
#define AB_PROVISIONAL 8
#define AB_DETAILED 16

#define AB_UNKNOWN (~0ULL)
#define AB_MOST_KBPS 1000000000ULL
#define AB_MOST_BYTES 0xffffffffULL
#define AB_MOST_RTT_US 16000000ULL
#define AB_GROWTH_UNIT 1024ULL
#define AB_SLACK_US 10000ULL
#define AB_LEAST_SLACK_US 2000ULL
#define AB_LEAST_US 10000000ULL
#define AB_FIRST_WINDOW 10
#define AB_MOST_OF 16
/* Maximum age of a report to send: the maximum of the age field. */
#define AB_ANSWER_US 248000ULL
#define AB_AGE_US 8000ULL
#define AB_HALF_OF_DROPS 0x8000

AB_INLINE u64 ab_at_most(u64 value, u64 most)
{
	return value > most ? most : value;
}

AB_INLINE u64 ab_minus(u64 a, u64 b)
{
	return a > b ? a - b : 0;
}

AB_INLINE u64 ab_more(u64 a, u64 b)
{
	return a > b ? a : b;
}

/* The smaller of two values, of which 0 means none. */
AB_INLINE u32 ab_lesser(u32 a, u32 b)
{
	return !a || (b && b < a) ? b : a;
}

AB_INLINE u64 ab_rtt(u64 srtt_us)
{
	return srtt_us ? ab_at_most(srtt_us, AB_MOST_RTT_US) : 1;
}

AB_INLINE void ab_view_init(struct ab_view *v)
{
	v->received_us = v->detailed_us = v->acked_us = v->moved_us = v->provisional_us = 0;
	v->dropped_us = v->counted_us = v->newest_us = v->least_ends_us = v->round_ends_us = 0;
	v->link_kbps = v->arrival_kbps = v->depth_bytes = v->free_bytes = AB_UNKNOWN;
	v->flows = 1;
	v->drops = v->losses = v->flags = 0;
	v->least_us[0] = v->least_us[1] = v->low_us[0] = v->low_us[1] = 0;
	v->peak_bytes[0] = v->peak_bytes[1] = 0;
	v->began[0] = v->began[1] = v->passed[0] = v->passed[1] = 0;
}

AB_INLINE u64 ab_decode(u16 code)
{
	return code == 0xffff ? AB_UNKNOWN : (u64)(code & 0x7ff) << (code >> 11);
}

AB_INLINE u16 ab_code(u64 value)
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

AB_INLINE u8 ab_code_flows(u32 flows)
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
AB_INLINE int ab_take(struct ab_view *v, const u8 *o, u64 now_us)
{
	u32 len = o[1], drops, moved, behind, late, overtaken;
	u64 received_us;

	if (o[0] != AB_OPTION_KIND || (len != AB_OPTION_LEN && len != AB_OPTION_SHORT_LEN) || (o[3] & AB_VERSION_MASK) != AB_VERSION)
		return -1;
	drops = ab_be16(o + 4);
	moved = (v->flags & AB_KNOWN) && drops != v->drops;
	behind = moved && (u16)(drops - v->drops) >= AB_HALF_OF_DROPS;
	late = moved && (v->flags & AB_PROVISIONAL) && now_us <= v->provisional_us;
	if (moved) {
		v->moved_us = now_us;
		v->flags |= AB_MOVED;
	}
	if (moved && !behind)
		v->dropped_us = now_us;
	if (!behind || ab_minus(now_us, v->counted_us) > AB_ANSWER_US) {
		v->drops = drops;
		v->counted_us = now_us;
	}
	if (late || now_us > v->provisional_us)
		v->flags &= ~AB_PROVISIONAL;
	received_us = ab_minus(now_us, AB_AGE_US * (o[3] & 0x1f));
	overtaken = received_us + AB_AGE_US <= v->newest_us;
	v->newest_us = ab_more(v->newest_us, received_us);
	v->received_us = overtaken ? ab_more(v->received_us, received_us) : received_us;
	v->losses = ab_be16(o + 6);
	v->flows = (u32)(o[2] & 0x1f) << (o[2] >> 5);
	if (!v->flows)
		v->flows = 1;
	v->flags = (v->flags & ~AB_COMPLETE) | AB_KNOWN | (o[3] & 0x20 ? AB_COMPLETE : 0);
	if (len == AB_OPTION_LEN) {
		v->detailed_us = overtaken ? ab_more(v->detailed_us, received_us) : received_us;
		v->flags |= AB_DETAILED;
		v->link_kbps = ab_decode(ab_be16(o + 8));
		v->arrival_kbps = ab_decode(ab_be16(o + 10));
		v->depth_bytes = ab_decode(ab_be16(o + 12));
		v->free_bytes = ab_decode(ab_be16(o + 14));
		v->peak_bytes[0] = ab_more(v->peak_bytes[0], ab_at_most(v->depth_bytes, AB_MOST_BYTES));
	}
	return late;
}

AB_INLINE void ab_acked(struct ab_view *v, u64 now_us)
{
	v->acked_us = now_us;
}

/*
 * Time of the last ACK, for controllers that are not called for ACKs during recovery: TCP records the time of the last delivery
 * (tcp_rate.c). If nothing was in flight, it records there, and as the first transmission, the start of sending: not an ACK.
 */
AB_INLINE void ab_acked_unseen(struct ab_view *v, u64 delivered_us, u64 first_sent_us)
{
	if (delivered_us > v->acked_us && delivered_us != first_sent_us)
		v->acked_us = delivered_us;
}

/* The round trip for measuring the age of telemetry, at least the interval of telemetry. */
AB_INLINE u64 ab_span(u64 srtt_us)
{
	u64 rtt = ab_rtt(srtt_us);

	return rtt < AB_INTERVAL_US ? AB_INTERVAL_US : rtt;
}

/* Records an ACK with an RTT sample (0: none), and the total numbers of segments delivered and lost. */
AB_INLINE void ab_measured(struct ab_view *v, u64 now_us, u64 rtt_us, u64 srtt_us, u32 delivered, u32 lost)
{
	u32 sample = rtt_us ? ab_rtt(rtt_us) : 0;
	u64 peak;

	if (now_us >= v->least_ends_us) {
		v->least_ends_us = now_us + AB_LEAST_US;
		v->least_us[1] = ab_lesser(v->least_us[0], sample);
		v->least_us[0] = 0;
	}
	if (now_us >= v->round_ends_us) {
		peak = v->depth_bytes;
		if (ab_minus(now_us, v->detailed_us) > 2 * ab_span(srtt_us))
			peak = v->free_bytes > AB_UNKNOWN - peak ? AB_UNKNOWN : peak + v->free_bytes;
		v->round_ends_us = now_us + ab_span(srtt_us);
		v->low_us[1] = v->low_us[0];
		v->low_us[0] = 0;
		v->peak_bytes[1] = v->peak_bytes[0];
		v->peak_bytes[0] = ab_at_most(peak, AB_MOST_BYTES);
		v->passed[0] = delivered - v->began[0];
		v->passed[1] = lost - v->began[1];
		v->began[0] = delivered;
		v->began[1] = lost;
	}
	v->least_us[0] = ab_lesser(v->least_us[0], sample);
	v->low_us[0] = ab_lesser(v->low_us[0], sample);
}

/* Time to drain `bytes` at the bottleneck. */
AB_INLINE u64 ab_drains(const struct ab_view *v, u64 bytes)
{
	return v->link_kbps == AB_UNKNOWN || !v->link_kbps ? 0 : bytes * 8000 / v->link_kbps;
}

/* Whether there is a queue without telemetry although every hop seems to report its drops. */
AB_INLINE int ab_untold(const struct ab_view *v)
{
	u64 low = ab_lesser(v->low_us[0], v->low_us[1]), base = ab_lesser(v->least_us[0], v->least_us[1]);
	u64 slack = ab_at_most(ab_more(base / 4, AB_LEAST_SLACK_US), AB_SLACK_US);

	return low > base + slack + ab_drains(v, ab_more(v->peak_bytes[0], v->peak_bytes[1])) ||
	       (v->passed[1] > v->passed[0] && v->passed[1] >= AB_MOST_OF);
}

/* Segments delivered per round trip, with a total of `total`. */
AB_INLINE u32 ab_delivered(const struct ab_view *v, u32 total)
{
	u32 now = total - v->began[0];

	return ab_more(ab_more(now, v->passed[0]), AB_FIRST_WINDOW);
}

AB_INLINE int ab_fresh(const struct ab_view *v, u64 srtt_us, u32 stale_rtts)
{
	return (v->flags & AB_KNOWN) && ab_minus(v->acked_us, v->received_us) <= ab_span(srtt_us) * stale_rtts;
}

AB_INLINE int ab_detailed(const struct ab_view *v, u64 srtt_us, u32 stale_rtts)
{
	return (v->flags & AB_DETAILED) && ab_fresh(v, srtt_us, stale_rtts) &&
	       ab_minus(v->acked_us, v->detailed_us) <= 4 * ab_span(srtt_us) * stale_rtts;
}

AB_INLINE int ab_medium(struct ab_view *v, u64 now_us, u64 srtt_us, u32 stale_rtts)
{
	u64 near = 2 * ab_span(srtt_us);

	v->flags &= ~AB_PROVISIONAL;
	if (!ab_fresh(v, srtt_us, stale_rtts) || !(v->flags & AB_COMPLETE) || ab_untold(v) ||
	    ((v->flags & AB_MOVED) && ab_minus(now_us, v->moved_us) <= near))
		return 0;
	v->flags |= AB_PROVISIONAL;
	v->provisional_us = now_us + near;
	return 1;
}

AB_INLINE int ab_complete(const struct ab_view *v)
{
	return !!(v->flags & AB_COMPLETE);
}

/* The longest round trip explained by the reports for a minimum of `least_us`. */
AB_INLINE u64 ab_explained(const struct ab_view *v, u64 least_us)
{
	u64 depth = v->depth_bytes == AB_UNKNOWN ? 0 : ab_at_most(v->depth_bytes, AB_MOST_BYTES);

	return 2 * ab_rtt(least_us) + AB_SLACK_US + ab_drains(v, depth);
}

/* Whether a loss or mark detected now may be due to a queue without telemetry. */
AB_INLINE int ab_unseen(const struct ab_view *v, u64 now_us, u64 srtt_us)
{
	if (v->dropped_us && ab_minus(now_us, v->dropped_us) <= 2 * ab_span(srtt_us))
		return 0;
	return !ab_complete(v) || ab_untold(v);
}

/* Whether the path reports enough for Eq. 1. */
AB_INLINE int ab_tells_growth(const struct ab_view *v)
{
	return v->free_bytes != AB_UNKNOWN && v->arrival_kbps != AB_UNKNOWN;
}

/* Eq. 1; all ones: the path does not report enough. */
AB_INLINE u64 ab_slow_start_growth(const struct ab_view *v, u64 srtt_us, u32 increment, u32 growth_cap)
{
	u64 per_flow, cap = AB_GROWTH_UNIT * growth_cap;

	if (!ab_tells_growth(v))
		return AB_UNKNOWN;
	per_flow = ab_at_most(v->arrival_kbps, AB_MOST_KBPS) * ab_rtt(srtt_us) / 8000 * v->flows;
	if (!per_flow)
		return cap;
	return ab_at_most(ab_at_most(v->free_bytes, AB_MOST_BYTES) * increment * AB_GROWTH_UNIT / per_flow, cap);
}

/* The pacing rate; 0: the link rate is not reported. */
AB_INLINE u64 ab_rate(const struct ab_view *v, u64 own_bps, u64 srtt_us, u64 mss_bytes, u64 ceiling_bps)
{
	u64 flows = v->flows ? v->flows : 1;
	u64 link, target, arrival, own, taken_up, drain, least;

	if (v->link_kbps == AB_UNKNOWN)
		return 0;
	link = ab_at_most(v->link_kbps, AB_MOST_KBPS) * 1000;
	target = link / flows;
	if (v->arrival_kbps != AB_UNKNOWN) {
		arrival = ab_at_most(v->arrival_kbps, AB_MOST_KBPS) * 1000;
		own = ab_at_most(own_bps, link);
		if (arrival <= link)
			taken_up = ab_at_most(own + (link - arrival) / flows, link);
		else
			taken_up = ab_minus(own, (arrival - link) / flows);
		if (taken_up > target)
			target = taken_up;
	}
	if (v->depth_bytes != AB_UNKNOWN) {
		drain = ab_at_most(v->depth_bytes, AB_MOST_BYTES) * 4000000 / (flows * ab_rtt(srtt_us));
		target -= ab_at_most(drain, target / 2);
	}
	if (own_bps && !ab_complete(v))
		target = ab_at_most(target, 2 * ab_at_most(own_bps, AB_MOST_KBPS * 1000));
	least = 16000000 * ab_at_most(mss_bytes, 65536) / ab_rtt(srtt_us);
	return ab_at_most(target < least ? least : target, ceiling_bps);
}

AB_INLINE u64 ab_rate_window(u64 rate_bps, u64 srtt_us, u64 mss_bytes)
{
	return ab_at_most(rate_bps, AB_MOST_KBPS * 1000) / 4 * ab_rtt(srtt_us) / 1000000 / (mss_bytes ? mss_bytes : 1) + 4;
}

/* Whether this window sustains seven eighths of that rate. */
AB_INLINE int ab_carries(u64 cwnd, u64 rate_bps, u64 srtt_us, u64 mss_bytes)
{
	return 8 * cwnd >= 7 * (ab_rate_window(rate_bps, srtt_us, mss_bytes) / 2);
}

AB_INLINE u64 ab_ceiling_window(u64 ceiling_bps, u64 srtt_us, u64 mss_bytes)
{
	u64 segments = ab_at_most(ceiling_bps, AB_MOST_KBPS * 1000) / 8 * ab_rtt(srtt_us) / 1000000 /
		       (mss_bytes ? mss_bytes : 1);

	return segments < 4 ? 4 : segments;
}

/*
 * Window after a medium loss with β = 0.95, in the units of the kernel's CUBIC (973 / 1024). Windows are whole segments: a
 * reduction of less than one segment is carried over in `owed`, in 1/1024 segments, until it amounts to a whole one.
 */
AB_INLINE u32 ab_give_way(u32 cwnd, u32 *owed)
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
	return (cwnd + 1ULL) * mss * 1000000 > ab_at_most(ceiling_bps, AB_MOST_KBPS * 1000) / 8 * ab_rtt(srtt_us);
}

#endif
