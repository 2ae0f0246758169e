/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* CUBIC that reduces its window by 5 % on medium loss: kernel version of crates/cc/src/int_cubic_l2.rs. */
#define AB_COUNTER_MAP ab_int_cubic_l2
#include "lib/cc.h"

SEC("struct_ops")
void BPF_PROG(l2_init, struct sock *sk)
{
	cubictcp_init(sk);
	ab_create_socket(sk);
}

SEC("struct_ops")
u32 BPF_PROG(l2_ssthresh, struct sock *sk)
{
	struct tcp_sock *tp = ab_tcp(sk);
	struct ab_socket *s = ab_socket(sk);
	u32 from = tp->snd_cwnd;

	if (s && s->kept_cwnd > from)
		from = s->kept_cwnd;
	if (s && ab_medium_loss(s, tp, from)) {
		u32 less = ab_reduce_by_five_percent(from, &s->carried);

		s->kept_cwnd = less;
		return less > 2 ? less : 2;
	}
	if (s)
		s->kept_cwnd = 0;
	return cubictcp_recalc_ssthresh(sk);
}

SEC("struct_ops")
void BPF_PROG(l2_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	struct tcp_sock *tp = ab_tcp(sk);
	struct ab_socket *s = ab_socket(sk);

	ab_cubic_acked(sk, acked);
	ab_on_sample(s, tp, acked ? tp->rack.rtt_us : 0);
	if (ab_on_ack(s, tp)) {
		s->kept_cwnd = 0;
		ab_reduce(sk);
		return;
	}
	cubictcp_cong_avoid(sk, ack, acked);
	/* The window has been reached again. */
	if (s && tp->snd_cwnd >= s->kept_cwnd)
		s->kept_cwnd = 0;
}

SEC("struct_ops")
void BPF_PROG(l2_state, struct sock *sk, u8 new_state)
{
	cubictcp_state(sk, new_state);
}

SEC("struct_ops")
void BPF_PROG(l2_event, struct sock *sk, enum tcp_ca_event event)
{
	cubictcp_cwnd_event(sk, event);
}

SEC("struct_ops")
u32 BPF_PROG(l2_undo, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops int_cubic_l2 = {
	.init = (void *)l2_init,
	.ssthresh = (void *)l2_ssthresh,
	.cong_avoid = (void *)l2_cong_avoid,
	.set_state = (void *)l2_state,
	.cwnd_event = (void *)l2_event,
	.undo_cwnd = (void *)l2_undo,
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "int_cubic_l2",
};
