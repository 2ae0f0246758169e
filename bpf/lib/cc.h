/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the congestion controllers share: the socket's view, the kernel's own CUBIC, counters.
 *
 * The kernel's CUBIC keeps its state in icsk_ca_priv; ours is in socket storage, which the feedback program
 * (feedback.bpf.c) writes and these read. AB_COUNTER_MAP is the name of the counters' map, by which `cc show` finds
 * it. Without that program, or without reports, each is the kernel's CUBIC.
 */
#ifndef ANABRANCH_CC_H
#define ANABRANCH_CC_H

#include "abi.h"
#include "lib/int_law.h"
#include "lib/sockets.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "GPL";

const volatile struct ab_config ab_config SEC(".rodata.config") = {
	.ceiling_bps = 1000000000,
	.increment = 2,
	.growth_cap = 2,
	.stale_rtts = 8,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, AB_COUNTERS);
	__type(key, u32);
	__type(value, u64);
} AB_COUNTER_MAP SEC(".maps");

/* Unprivileged sockets may choose it; and a namespace that makes it its default leaks no reference. */
#define TCP_CONG_NON_RESTRICTED 1

extern void cubictcp_init(struct sock *sk) __ksym;
extern u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym;
extern void cubictcp_cong_avoid(struct sock *sk, u32 ack, u32 acked) __ksym;
extern void cubictcp_state(struct sock *sk, u8 new_state) __ksym;
extern void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym;
extern void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) __ksym;
extern u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

AB_INLINE void ab_count(u32 which)
{
	u64 *counter = bpf_map_lookup_elem(&AB_COUNTER_MAP, &which);

	if (counter)
		++*counter;
}

AB_INLINE struct tcp_sock *ab_tcp(struct sock *sk)
{
	return (struct tcp_sock *)sk;
}

AB_INLINE struct bictcp *ab_cubic(struct sock *sk)
{
	return (struct bictcp *)((struct inet_connection_sock *)sk)->icsk_ca_priv;
}

/* The socket's state, if reports made one. */
AB_INLINE struct ab_socket *ab_socket(struct sock *sk)
{
	return bpf_sk_storage_get(&ab_sockets, sk, 0, 0);
}

AB_INLINE u64 ab_srtt(const struct tcp_sock *tp)
{
	return tp->srtt_us >> 3;
}

/* What the socket keeps; made with it, so that `cc show` knows the socket before the first report. */
AB_INLINE void ab_made(struct sock *sk)
{
	struct ab_socket *s = ab_socket(sk);

	if (s)
		return;
	s = bpf_sk_storage_get(&ab_sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (s)
		ab_view_init(&s->view);
}

AB_INLINE void ab_at_ceiling(struct ab_socket *s, int is)
{
	s->state = is ? s->state | AB_STATE_CEILING : s->state & ~AB_STATE_CEILING;
}

/* Counts a judgement; what was sent again since the one before goes to that one's account. */
AB_INLINE void ab_judged(struct ab_socket *s, const struct tcp_sock *tp, int medium)
{
	u32 resent = tp->total_retrans - s->resent_before;

	if (s->state & AB_STATE_MEDIUM)
		s->resent_medium += resent;
	else
		s->resent_congestion += resent;
	s->resent_before = tp->total_retrans;
	if (medium) {
		s->losses_medium++;
		s->state |= AB_STATE_MEDIUM;
	} else {
		s->losses_congestion++;
		s->state &= ~AB_STATE_MEDIUM;
	}
	ab_count(medium ? AB_LOSSES_MEDIUM : AB_LOSSES_CONGESTION);
}

/*
 * Whether ssthresh is asked for because of congestion that was told, and not of a loss: by an ECN mark, or by a queue of the
 * sender's own that drops. Before a reduction that it may take back, TCP notes ssthresh; before these it notes 0
 * (tcp_enter_cwr, tcp_enter_recovery). A tail loss that a probe mends (RFC 8985) leaves the note as it is: the first of a
 * connection counts as told.
 */
AB_INLINE int ab_told(const struct tcp_sock *tp)
{
	return !tp->prior_ssthresh;
}

/* What those need who ask for the cause of a loss: an ACK with this sample of the round trip, or none (0). */
AB_INLINE void ab_on_sample(struct ab_socket *s, const struct tcp_sock *tp, u64 rtt_us)
{
	if (s)
		ab_measured(&s->view, tp->tcp_mstamp, rtt_us, ab_srtt(tp), tp->delivered, tp->lost);
}

/* Whether the loss found now is the medium's, as the reports have it. */
AB_INLINE int ab_medium_now(struct ab_socket *s, const struct tcp_sock *tp)
{
	if (ab_told(tp)) {
		s->view.flags &= ~AB_PROVISIONAL;
		return 0;
	}
	ab_acked_unseen(&s->view, tp->delivered_mstamp, tp->first_tx_mstamp);
	return ab_medium(&s->view, tp->tcp_mstamp, ab_srtt(tp), ab_config.stale_rtts);
}

/* Whether the loss found now is the medium's, and `cwnd` may be kept. */
AB_INLINE int ab_medium_loss(struct ab_socket *s, const struct tcp_sock *tp, u32 cwnd)
{
	u64 srtt = ab_srtt(tp);
	int medium, over;

	if (!s)
		return 0;
	s->late = 0;
	medium = ab_medium_now(s, tp);
	over = cwnd > ab_ceiling_window(ab_config.ceiling_bps, srtt, tp->mss_cache);
	ab_at_ceiling(s, medium && over);
	medium = medium && !over;
	ab_judged(s, tp, medium);
	return medium;
}

#define TCP_CA_CWR 2
#define TCP_CA_RECOVERY 3
#define TCP_CA_LOSS 4

AB_INLINE u32 ca_state(struct sock *sk)
{
	return ((struct inet_connection_sock *)sk)->icsk_ca_state;
}

/*
 * What pkts_acked would tell CUBIC, from where the controller is called anyhow: every call costs more than what is done in it.
 *
 * pkts_acked has the round trip of the packet that was delivered last, or none. So has RACK (RFC 8985), and here it is
 * from this ACK, for `acked` are the segments that it delivered. It differs where a retransmission was delivered:
 * pkts_acked has the echoed time stamp's, or nothing; RACK has the round trip since it was sent last, unless that is shorter
 * than any. Without SACK there is no RACK, and the smoothed round trip is the next best. ACKs of recovery, and those that
 * only SACK, are not told: HyStart has no business there, and CUBIC's least round trip loses nothing that lasts.
 */
AB_INLINE void ab_cubic_acked(struct sock *sk, u32 acked)
{
	const struct tcp_sock *tp = ab_tcp(sk);
	u32 rtt_us = tp->rack.rtt_us;
	struct ack_sample sample = {
		.pkts_acked = acked,
		.rtt_us = rtt_us ? rtt_us : ab_srtt(tp),
	};

	if (acked && sample.rtt_us > 0)
		cubictcp_acked(sk, &sample);
}

/* An ACK outside of recovery; true if a late report asks for the reduction that was left out. */
AB_INLINE int ab_on_ack(struct ab_socket *s, const struct tcp_sock *tp)
{
	ab_count(AB_ACKS);
	if (!s)
		return 0;
	ab_acked(&s->view, tp->tcp_mstamp);
	if (ab_fresh(&s->view, ab_srtt(tp), ab_config.stale_rtts)) {
		s->state |= AB_STATE_FRESH;
	} else {
		s->state &= ~AB_STATE_FRESH;
		ab_count(AB_ACKS_STALE);
	}
	if (!s->late)
		return 0;
	s->late = 0;
	/* What has been sent again for this loss was for congestion after all. */
	s->state &= ~AB_STATE_MEDIUM;
	s->losses_taken_back++;
	ab_count(AB_LOSSES_TAKEN_BACK);
	return 1;
}

/* CUBIC's own reduction, now. */
AB_INLINE void ab_reduce(struct sock *sk)
{
	struct tcp_sock *tp = ab_tcp(sk);
	u32 ssthresh = cubictcp_recalc_ssthresh(sk);

	tp->snd_ssthresh = ssthresh;
	if (tp->snd_cwnd > ssthresh)
		tp->snd_cwnd = ssthresh;
}

#endif
