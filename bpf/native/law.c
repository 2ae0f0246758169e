/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The kernel's arithmetic, compiled natively: the tests in crates/kern compare it with crates/cc. */
#include <stddef.h>
#include "abi.h"
#include "lib/int_law.h"
#include "lib/siphash.h"

u64 abn_siphash(u64 k0, u64 k1, const u64 *words, u32 count) { return ab_siphash(k0, k1, words, count); }
void abn_init(struct ab_view *v) { ab_view_init(v); }
int abn_take(struct ab_view *v, const u8 *option, u64 now_us) { return ab_take(v, option, now_us); }
void abn_acked(struct ab_view *v, u64 now_us) { ab_acked(v, now_us); }
void abn_acked_unseen(struct ab_view *v, u64 delivered_us, u64 first_sent_us)
{
	ab_acked_unseen(v, delivered_us, first_sent_us);
}
int abn_fresh(const struct ab_view *v, u64 srtt_us, u32 stale) { return ab_fresh(v, srtt_us, stale); }
int abn_detailed(const struct ab_view *v, u64 srtt_us, u32 stale) { return ab_detailed(v, srtt_us, stale); }
int abn_medium(struct ab_view *v, u64 now_us, u64 srtt_us, u32 stale) { return ab_medium(v, now_us, srtt_us, stale); }
u64 abn_growth(const struct ab_view *v, u64 srtt_us, u32 increment, u32 cap)
{
	return ab_slow_start_growth(v, srtt_us, increment, cap);
}
u64 abn_rate(const struct ab_view *v, u64 own_bps, u64 srtt_us, u64 mss, u64 ceiling_bps)
{
	return ab_rate(v, own_bps, srtt_us, mss, ceiling_bps);
}
u64 abn_rate_window(u64 rate_bps, u64 srtt_us, u64 mss) { return ab_rate_window(rate_bps, srtt_us, mss); }
void abn_measured(struct ab_view *v, u64 now_us, u64 rtt_us, u64 srtt_us, u32 delivered, u32 lost)
{
	ab_measured(v, now_us, rtt_us, srtt_us, delivered, lost);
}
int abn_untold(const struct ab_view *v) { return ab_untold(v); }
u32 abn_delivered(const struct ab_view *v, u32 total) { return ab_delivered(v, total); }
int abn_unseen(const struct ab_view *v, u64 now_us, u64 srtt_us) { return ab_unseen(v, now_us, srtt_us); }
u64 abn_explained(const struct ab_view *v, u64 least_us) { return ab_explained(v, least_us); }
int abn_unexplained(const struct ab_view *v, u64 least_us, u64 srtt_us) { return ab_rtt(srtt_us) > ab_explained(v, least_us); }
int abn_carries(u64 cwnd, u64 rate_bps, u64 srtt_us, u64 mss) { return ab_carries(cwnd, rate_bps, srtt_us, mss); }
u64 abn_ceiling_window(u64 ceiling_bps, u64 srtt_us, u64 mss) { return ab_ceiling_window(ceiling_bps, srtt_us, mss); }
u32 abn_give_way(u32 cwnd, u32 *owed) { return ab_give_way(cwnd, owed); }
int abn_at_ceiling(u32 cwnd, u64 ceiling_bps, u64 srtt_us, u64 mss)
{
	return ab_at_ceiling_window(cwnd, ceiling_bps, srtt_us, mss);
}
int abn_tells_growth(const struct ab_view *v) { return ab_tells_growth(v); }
u16 abn_code(u64 value) { return ab_code(value); }
u64 abn_decode(u16 code) { return ab_decode(code); }
u8 abn_code_flows(u32 flows) { return ab_code_flows(flows); }

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
