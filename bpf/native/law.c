/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The kernel's arithmetic, compiled natively: the tests in crates/kern compare it with crates/cc. */
#include <stddef.h>
#include "abi.h"
#include "lib/int_law.h"
#include "lib/siphash.h"

u64 abn_siphash(u64 k0, u64 k1, const u64 *words, u32 count) { return ab_siphash(k0, k1, words, count); }
void abn_init(struct ab_view *v) { ab_view_init(v); }
int abn_on_report(struct ab_view *v, const u8 *option, u64 now_us) { return ab_on_report(v, option, now_us); }
void abn_record_ack(struct ab_view *v, u64 now_us) { ab_record_ack(v, now_us); }
void abn_record_recovery_ack(struct ab_view *v, u64 delivered_us, u64 first_sent_us)
{
	ab_record_recovery_ack(v, delivered_us, first_sent_us);
}
int abn_is_fresh(const struct ab_view *v, u64 srtt_us, u32 stale) { return ab_is_fresh(v, srtt_us, stale); }
int abn_has_fresh_rates(const struct ab_view *v, u64 srtt_us, u32 stale) { return ab_has_fresh_rates(v, srtt_us, stale); }
int abn_classify_medium(struct ab_view *v, u64 now_us, u64 srtt_us, u32 stale) { return ab_classify_medium(v, now_us, srtt_us, stale); }
u64 abn_growth(const struct ab_view *v, u64 srtt_us, u32 increment, u32 cap)
{
	return ab_slow_start_growth(v, srtt_us, increment, cap);
}
u64 abn_fair_rate(const struct ab_view *v, u64 own_bps, u64 srtt_us, u64 mss, u64 ceiling_bps)
{
	return ab_fair_rate(v, own_bps, srtt_us, mss, ceiling_bps);
}
u64 abn_rate_window(u64 rate_bps, u64 srtt_us, u64 mss) { return ab_rate_window(rate_bps, srtt_us, mss); }
void abn_record_sample(struct ab_view *v, u64 now_us, u64 rtt_us, u64 srtt_us, u32 delivered, u32 lost)
{
	ab_record_sample(v, now_us, rtt_us, srtt_us, delivered, lost);
}
int abn_has_unreported_queue(const struct ab_view *v) { return ab_has_unreported_queue(v); }
u64 abn_window_with_reports(const struct ab_view *v, u64 segments) { return ab_window_with_reports(v, segments); }
u32 abn_delivered_per_rtt(const struct ab_view *v, u32 total) { return ab_delivered_per_rtt(v, total); }
int abn_may_be_unreported_drop(const struct ab_view *v, u64 now_us, u64 srtt_us) { return ab_may_be_unreported_drop(v, now_us, srtt_us); }
u64 abn_max_explained_rtt(const struct ab_view *v, u64 min_rtt_us) { return ab_max_explained_rtt(v, min_rtt_us); }
int abn_is_rtt_unexplained(const struct ab_view *v, u64 min_rtt_us, u64 srtt_us) { return ab_clamp_rtt(srtt_us) > ab_max_explained_rtt(v, min_rtt_us); }
int abn_window_sustains(u64 cwnd, u64 rate_bps, u64 srtt_us, u64 mss) { return ab_window_sustains(cwnd, rate_bps, srtt_us, mss); }
u64 abn_ceiling_window(u64 ceiling_bps, u64 srtt_us, u64 mss) { return ab_ceiling_window(ceiling_bps, srtt_us, mss); }
u32 abn_reduce_by_five_percent(u32 cwnd, u32 *owed) { return ab_reduce_by_five_percent(cwnd, owed); }
int abn_at_ceiling(u32 cwnd, u64 ceiling_bps, u64 srtt_us, u64 mss)
{
	return ab_at_ceiling_window(cwnd, ceiling_bps, srtt_us, mss);
}
int abn_reports_growth(const struct ab_view *v) { return ab_reports_growth(v); }
u16 abn_encode(u64 value) { return ab_encode(value); }
u64 abn_decode(u16 code) { return ab_decode(code); }
u8 abn_encode_flows(u32 flows) { return ab_encode_flows(flows); }

/* Sizes of the interface's structures. */
u64 abn_size(u32 which)
{
	static const u64 sizes[] = { sizeof(struct ab_config), sizeof(struct ab_view), sizeof(struct ab_socket),
				     sizeof(struct ab_source_config), sizeof(struct ab_event),
				     offsetof(struct ab_socket, answer), AB_COUNTERS,
				     sizeof(struct ab_shown), offsetof(struct ab_shown, name),
				     sizeof(struct ab_window_key), AB_WINDOWS, AB_WINDOW_COUNTERS,
				     sizeof(struct ab_path), offsetof(struct ab_path, nodes),
				     sizeof(struct ab_fast_slot), sizeof(struct ab_fast_config),
				     sizeof(struct ab_fast_key), sizeof(struct ab_fast_peer),
				     sizeof(struct ab_trace_config), sizeof(struct ab_feedback_config) };

	return which < sizeof(sizes) / sizeof(sizes[0]) ? sizes[which] : 0;
}
