/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* CUBIC whose slow start follows the state of the bottleneck's queue, Eq. 1: kernel version of crates/cc/src/int_cubic_ss.rs. */
#define AB_COUNTER_MAP ab_int_cubic_ss
#include "lib/cc.h"
#include <bpf/bpf_core_read.h>

SEC("struct_ops")
void BPF_PROG(ss_init, struct sock *sk)
{
	cubictcp_init(sk);
	ab_create_socket(sk);
}

SEC("struct_ops")
u32 BPF_PROG(ss_ssthresh, struct sock *sk)
{
	struct ab_socket *s = ab_socket(sk);
	struct tcp_sock *tp = ab_tcp(sk);

	/* Shown by `cc show`; the law itself does not use the classification. */
	if (s)
		ab_count_loss(s, tp, ab_medium_now(s, tp));
	return cubictcp_recalc_ssthresh(sk);
}

/* Whether Eq. 1 applies in slow start, instead of CUBIC's own growth. */
AB_INLINE int in_force(const struct ab_socket *s, const struct tcp_sock *tp)
{
	u64 srtt = ab_srtt(tp);

	return s && ab_reports_growth(&s->view) && ab_has_fresh_rates(&s->view, srtt, ab_config.stale_rtts) &&
	       !ab_at_ceiling_window(tp->snd_cwnd, ab_config.ceiling_bps, srtt, tp->mss_cache);
}

AB_INLINE int in_slow_start(const struct tcp_sock *tp)
{
	return tp->snd_cwnd < tp->snd_ssthresh;
}

SEC("struct_ops")
void BPF_PROG(ss_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	struct tcp_sock *tp = ab_tcp(sk);
	struct ab_socket *s = ab_socket(sk);
	u32 before = tp->snd_ssthresh;
	u64 per_segment, window, most;
	int ours;

	(void)ab_on_ack(s, tp);
	ours = in_slow_start(tp) && in_force(s, tp);
	ab_cubic_acked(sk, acked);
	if (!ours || !s) {
		cubictcp_cong_avoid(sk, ack, acked);
		return;
	}
	/* The queue is measured, not estimated: HyStart does not end this slow start. */
	tp->snd_ssthresh = before;
	/* As tcp_is_cwnd_limited in slow start. The position of the bit depends on the running kernel. */
	if (!BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited) && tp->snd_cwnd >= 2 * tp->max_packets_out)
		return;
	/* 1/1024 segments per acknowledged one. */
	per_segment = ab_slow_start_growth(&s->view, ab_srtt(tp), ab_config.increment, ab_config.growth_cap);
	per_segment = per_segment * acked + s->carried;
	s->carried = per_segment % AB_GROWTH_UNIT;
	window = tp->snd_cwnd + per_segment / AB_GROWTH_UNIT;
	most = ab_ceiling_window(ab_config.ceiling_bps, ab_srtt(tp), tp->mss_cache);
	ab_at_ceiling(s, window >= most);
	window = ab_min(ab_min(window, most), ab_min(tp->snd_ssthresh, tp->snd_cwnd_clamp));
	if (window > tp->snd_cwnd)
		tp->snd_cwnd = window;
}

SEC("struct_ops")
void BPF_PROG(ss_state, struct sock *sk, u8 new_state)
{
	cubictcp_state(sk, new_state);
}

SEC("struct_ops")
void BPF_PROG(ss_event, struct sock *sk, enum tcp_ca_event event)
{
	cubictcp_cwnd_event(sk, event);
}

SEC("struct_ops")
u32 BPF_PROG(ss_undo, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops int_cubic_ss = {
	.init = (void *)ss_init,
	.ssthresh = (void *)ss_ssthresh,
	.cong_avoid = (void *)ss_cong_avoid,
	.set_state = (void *)ss_state,
	.cwnd_event = (void *)ss_event,
	.undo_cwnd = (void *)ss_undo,
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "int_cubic_ss",
};
