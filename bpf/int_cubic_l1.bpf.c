/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* CUBIC that keeps its window on medium loss: kernel version of crates/cc/src/int_cubic_l1.rs. */
#define AB_COUNTER_MAP ab_int_cubic_l1
#include "lib/cc.h"

SEC("struct_ops")
void BPF_PROG(l1_init, struct sock *sk)
{
	cubictcp_init(sk);
	ab_create_socket(sk);
}

SEC("struct_ops")
u32 BPF_PROG(l1_ssthresh, struct sock *sk)
{
	struct tcp_sock *tp = ab_tcp(sk);
	struct ab_socket *s = ab_socket(sk);
	u32 keep = tp->snd_cwnd;

	if (s && s->kept_cwnd > keep)
		keep = s->kept_cwnd;
	if (s && ab_medium_loss(s, tp, keep)) {
		s->kept_cwnd = keep;
		return keep > 2 ? keep : 2;
	}
	if (s)
		s->kept_cwnd = 0;
	return cubictcp_recalc_ssthresh(sk);
}

SEC("struct_ops")
void BPF_PROG(l1_cong_avoid, struct sock *sk, u32 ack, u32 acked)
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
void BPF_PROG(l1_state, struct sock *sk, u8 new_state)
{
	cubictcp_state(sk, new_state);
}

SEC("struct_ops")
void BPF_PROG(l1_event, struct sock *sk, enum tcp_ca_event event)
{
	cubictcp_cwnd_event(sk, event);
}

SEC("struct_ops")
u32 BPF_PROG(l1_undo, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops int_cubic_l1 = {
	.init = (void *)l1_init,
	.ssthresh = (void *)l1_ssthresh,
	.cong_avoid = (void *)l1_cong_avoid,
	.set_state = (void *)l1_state,
	.cwnd_event = (void *)l1_event,
	.undo_cwnd = (void *)l1_undo,
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "int_cubic_l1",
};
