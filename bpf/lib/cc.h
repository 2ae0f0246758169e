/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Common part of the congestion controllers: the socket's view, the kernel's own CUBIC, counters.
 *
 * The kernel's CUBIC keeps its state in icsk_ca_priv; ours is in socket storage, which the feedback program (feedback.bpf.c)
 * writes and the controllers read. AB_COUNTER_MAP is the name of the counters' map, by which `cc show` finds it. Without that
 * program, or without reports, each controller is the kernel's CUBIC.
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

/* Permitted for unprivileged sockets; and a namespace that uses it as default leaks no reference. */
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

/* The socket's state, if it was created by reports. */
AB_INLINE struct ab_socket *ab_socket(struct sock *sk)
{
	return bpf_sk_storage_get(&ab_sockets, sk, 0, 0);
}

AB_INLINE u64 ab_srtt(const struct tcp_sock *tp)
{
	return tp->srtt_us >> 3;
}

/* Creates the socket's state together with the socket, so that `cc show` lists it before the first report. */
AB_INLINE void ab_create_socket(struct sock *sk)
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

/* Counts a classified loss; retransmissions since the previous loss are attributed to that one. */
AB_INLINE void ab_count_loss(struct ab_socket *s, const struct tcp_sock *tp, int medium)
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
 * Whether ssthresh is requested because of reported congestion and not because of a loss: an ECN mark, or a drop in a local queue
 * of the sender. Before a reduction that can be undone, TCP saves ssthresh; before these, it saves 0 (tcp_enter_cwr,
 * tcp_enter_recovery). A tail loss repaired by a probe (RFC 8985) does not change the saved value: the first one of a connection
 * is treated as reported.
 */
AB_INLINE int ab_is_reported_congestion(const struct tcp_sock *tp)
{
	return !tp->prior_ssthresh;
}

/* Updates the measurements needed for classifying losses: an ACK with this RTT sample, or none (0). */
AB_INLINE void ab_on_sample(struct ab_socket *s, const struct tcp_sock *tp, u64 rtt_us)
{
	if (s)
		ab_record_sample(&s->view, tp->tcp_mstamp, rtt_us, ab_srtt(tp), tp->delivered, tp->lost);
}

/* Whether the loss detected now is a medium loss according to the reports. */
AB_INLINE int ab_medium_now(struct ab_socket *s, const struct tcp_sock *tp)
{
	if (ab_is_reported_congestion(tp)) {
		s->view.flags &= ~AB_PROVISIONAL;
		return 0;
	}
	ab_record_recovery_ack(&s->view, tp->delivered_mstamp, tp->first_tx_mstamp);
	return ab_classify_medium(&s->view, tp->tcp_mstamp, ab_srtt(tp), ab_config.stale_rtts);
}

/* Whether the loss detected now is a medium loss, and `cwnd` may be kept. */
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
	ab_count_loss(s, tp, medium);
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
 * Passes to CUBIC what pkts_acked would pass, from an existing call of the controller: a call costs more than the work done in it.
 *
 * pkts_acked gets the RTT of the packet delivered last, or none. RACK (RFC 8985) has the same value, and it is from this ACK, because
 * `acked` is the number of segments the ACK delivered. The values differ when a retransmission was delivered: pkts_acked gets the
 * RTT from the echoed time stamp, or none; RACK uses the time since the last transmission, unless that is shorter than the minimum
 * RTT. Without SACK there is no RACK, and the smoothed RTT is used instead. ACKs during recovery, and those with SACK only, are not
 * passed: HyStart must not act on them, and CUBIC's minimum RTT is hardly affected.
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

/* Processes an ACK outside of recovery; returns true if a late report requires the omitted reduction. */
AB_INLINE int ab_on_ack(struct ab_socket *s, const struct tcp_sock *tp)
{
	ab_count(AB_ACKS);
	if (!s)
		return 0;
	ab_record_ack(&s->view, tp->tcp_mstamp);
	if (ab_is_fresh(&s->view, ab_srtt(tp), ab_config.stale_rtts)) {
		s->state |= AB_STATE_FRESH;
	} else {
		s->state &= ~AB_STATE_FRESH;
		ab_count(AB_ACKS_STALE);
	}
	if (!s->late)
		return 0;
	s->late = 0;
	/* The retransmissions for this loss were due to congestion after all. */
	s->state &= ~AB_STATE_MEDIUM;
	s->losses_taken_back++;
	ab_count(AB_LOSSES_TAKEN_BACK);
	return 1;
}

/* Applies CUBIC's own reduction. */
AB_INLINE void ab_reduce(struct sock *sk)
{
	struct tcp_sock *tp = ab_tcp(sk);
	u32 ssthresh = cubictcp_recalc_ssthresh(sk);

	tp->snd_ssthresh = ssthresh;
	if (tp->snd_cwnd > ssthresh)
		tp->snd_cwnd = ssthresh;
}

#endif
