/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* CUBIC that gives way by 5 % when the medium loses: crates/core/src/cc/int/cubic_l2.rs in the kernel. */
#define AB_COUNTER_MAP ab_int_cubic_l2
#include "lib/cc.h"

SEC("struct_ops")
void BPF_PROG(l2_init, struct sock *sk)
{
	cubictcp_init(sk);
	ab_made(sk);
}

/* β = 0.95, in the units of the kernel's CUBIC, and fast convergence with it: (1 + β) / 2. */
#define BETA_SCALE 1024
#define BETA_MEDIUM 973

SEC("struct_ops")
u32 BPF_PROG(l2_ssthresh, struct sock *sk)
{
	struct tcp_sock *tp = ab_tcp(sk);
	struct ab_socket *s = ab_socket(sk);
	u32 cwnd = tp->snd_cwnd;

	if (s && ab_medium_loss(s, tp, cwnd)) {
		struct bictcp *cubic = ab_cubic(sk);
		u32 less = (u64)cwnd * BETA_MEDIUM / BETA_SCALE;

		cubic->epoch_start = 0;
		cubic->last_max_cwnd = cwnd < cubic->last_max_cwnd
					       ? (u64)cwnd * (BETA_SCALE + BETA_MEDIUM) / (2 * BETA_SCALE)
					       : cwnd;
		return less > 2 ? less : 2;
	}
	return cubictcp_recalc_ssthresh(sk);
}

SEC("struct_ops")
void BPF_PROG(l2_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	struct ab_socket *s = ab_socket(sk);

	ab_cubic_acked(sk, acked);
	if (ab_on_ack(s, ab_tcp(sk)))
		ab_reduce(sk);
	else
		cubictcp_cong_avoid(sk, ack, acked);
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
