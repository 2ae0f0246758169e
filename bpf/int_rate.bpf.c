/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Pacing at the bottleneck's fair share: kernel version of crates/cc/src/int_rate.rs.
 *
 * A controller with cong_control also controls cwnd during recovery. While CUBIC is active, this program does what the kernel
 * would do: proportional rate reduction (RFC 6937), and setting cwnd to ssthresh at its end. There is no pkts_acked: CUBIC gets
 * its RTT sample from cong_control, so that a paced flow costs one call per ACK.
 */
#define AB_COUNTER_MAP ab_int_rate
#include "lib/cc.h"

#define SK_PACING_NONE 0
#define SK_PACING_NEEDED 1
#define FLAG_FORWARD 0x404 /* FLAG_DATA_ACKED | FLAG_SND_UNA_ADVANCED, as tcp_input.c has them */

/* Separate functions, so that the verifier checks each once and not on every path to it. */
__attribute__((noinline)) u64 current_rate(const struct ab_view *v, u64 own_bps, u64 srtt_us, u64 mss_bytes)
{
	if (!v || !ab_has_fresh_rates(v, srtt_us, ab_config.stale_rtts))
		return 0;
	return ab_fair_rate(v, own_bps, srtt_us, mss_bytes, ab_config.ceiling_bps);
}

__attribute__((noinline)) u64 max_explained_rtt(const struct ab_view *v, u64 min_srtt_us)
{
	return v ? ab_max_explained_rtt(v, min_srtt_us) : 0;
}

AB_INLINE u32 in_flight(const struct tcp_sock *tp)
{
	return tp->packets_out - (tp->sacked_out + tp->lost_out) + tp->retrans_out;
}

/* Returns to CUBIC with the window of the present rate and a round trip of `rtt_us`. */
AB_INLINE void back_to_cubic(struct sock *sk, struct ab_socket *s, u64 rtt_us)
{
	struct tcp_sock *tp = ab_tcp(sk);
	u64 bdp = ab_rate_window(s->rate_bps, rtt_us, tp->mss_cache) / 2;

	s->rate_bps = 0;
	s->next_us = 0;
	s->min_srtt_us = 0;
	ab_at_ceiling(s, 0);
	cubictcp_init(sk);
	tp->snd_cwnd = ab_min(bdp < 2 ? 2 : bdp, tp->snd_cwnd_clamp);
	tp->snd_ssthresh = tp->snd_cwnd;
	/* The maximum permitted by the socket; otherwise the last rate would remain in force. */
	sk->sk_pacing_rate = ~0UL;
	/* CUBIC is not paced, unless the socket asked for a rate of its own (SO_MAX_PACING_RATE). */
	if (sk->sk_pacing_status == SK_PACING_NEEDED && sk->sk_max_pacing_rate == ~0UL)
		sk->sk_pacing_status = SK_PACING_NONE;
}

AB_INLINE int may_be_unreported_drop(const struct ab_socket *s, const struct tcp_sock *tp)
{
	return ab_may_be_unreported_drop(&s->view, tp->tcp_mstamp, ab_srtt(tp));
}

/* Returns to CUBIC with the window of the rate, or the segments delivered per round trip if less. */
AB_INLINE void leave_pacing(struct sock *sk, struct ab_socket *s)
{
	struct tcp_sock *tp = ab_tcp(sk);

	s->window_must_sustain_rate = 1;
	s->view.dropped_us = 0;
	back_to_cubic(sk, s, s->min_srtt_us);
	if (ab_is_complete(&s->view)) {
		tp->snd_cwnd = ab_min(tp->snd_cwnd, ab_delivered_per_rtt(&s->view, tp->delivered));
		tp->snd_ssthresh = tp->snd_cwnd;
	}
}

/* Updates the rate and the bounding window once per round trip, so that no division is needed per ACK. */
AB_INLINE void update_rate(struct sock *sk, struct ab_socket *s)
{
	struct tcp_sock *tp = ab_tcp(sk);
	u64 now = tp->tcp_mstamp, srtt = ab_srtt(tp), rate, most;

	if (now < s->next_us)
		return;
	rate = current_rate(&s->view, s->rate_bps, srtt, tp->mss_cache);
	/* A report delayed by SACK blocks: the queue that dropped was a reporting one. */
	if (rate && s->window_must_sustain_rate && s->view.dropped_us)
		s->window_must_sustain_rate = 0;
	if (rate && !s->rate_bps && (s->window_must_sustain_rate || !ab_is_complete(&s->view))) {
		/* In slow start, the path has carried half of the window. */
		if (!ab_window_sustains(tp->snd_cwnd >> (tp->snd_cwnd < tp->snd_ssthresh), rate, srtt, tp->mss_cache)) {
			s->next_us = now + srtt / 8;
			return;
		}
		s->window_must_sustain_rate = 0;
	}
	if (rate && (!s->min_srtt_us || srtt < s->min_srtt_us))
		s->min_srtt_us = srtt;
	most = max_explained_rtt(&s->view, s->min_srtt_us);
	if (rate && s->rate_bps && !ab_is_complete(&s->view) && ab_clamp_rtt(srtt) > most) {
		back_to_cubic(sk, s, s->min_srtt_us);
	} else if (rate && s->rate_bps && ab_is_complete(&s->view) && s->view.round_totals[1] && may_be_unreported_drop(s, tp)) {
		/* A recovery may last long, and only its start is checked for losses in unreported queues. */
		leave_pacing(sk, s);
	} else if (rate) {
		if (sk->sk_pacing_status == SK_PACING_NONE)
			sk->sk_pacing_status = SK_PACING_NEEDED;
		s->rate_bps = rate;
		s->next_us = now + srtt;
		s->window = ab_rate_window(rate, ab_min(srtt, most), tp->mss_cache);
		ab_at_ceiling(s, rate >= ab_config.ceiling_bps);
	} else if (s->rate_bps) {
		back_to_cubic(sk, s, srtt);
		tp->snd_cwnd = ab_window_with_reports(&s->view, tp->snd_cwnd);
		tp->snd_ssthresh = tp->snd_cwnd;
	}
}

/* RFC 6937, with the bound that keeps one segment per ACK while data moves (SSRB). */
AB_INLINE void reduce_in_proportion(struct sock *sk, struct ab_socket *s, const struct rate_sample *rs)
{
	struct tcp_sock *tp = ab_tcp(sk);
	u32 flight = in_flight(tp), delivered = rs->acked_sacked, send;

	if (!s || !tp->prior_cwnd || !delivered)
		return;
	s->carried += delivered;
	if (flight > tp->snd_ssthresh) {
		u64 due = ((u64)tp->snd_ssthresh * s->carried + tp->prior_cwnd - 1) / tp->prior_cwnd;

		send = ab_saturating_sub(due, tp->prr_out);
	} else {
		u32 room = tp->snd_ssthresh - flight;

		send = s->carried > tp->prr_out ? s->carried - tp->prr_out : 0;
		send = send > delivered ? send : delivered;
		send = send + 1 < room ? send + 1 : room;
	}
	/* The first retransmission of a recovery is always sent. */
	if (!send && !tp->prr_out)
		send = 1;
	tp->snd_cwnd = flight + send;
}

SEC("struct_ops")
void BPF_PROG(rate_init, struct sock *sk)
{
	cubictcp_init(sk);
	ab_create_socket(sk);
}

SEC("struct_ops")
void BPF_PROG(rate_cong_control, struct sock *sk, u32 ack, int flag, const struct rate_sample *rs)
{
	struct tcp_sock *tp = ab_tcp(sk);
	struct ab_socket *s = ab_socket(sk);
	u32 state = ca_state(sk);

	(void)ab_on_ack(s, tp);
	ab_on_sample(s, tp, rs->rtt_us > 0 ? rs->rtt_us : 0);
	if (s)
		update_rate(sk, s);
	if (s && s->rate_bps) {
		sk->sk_pacing_rate = ab_min(s->rate_bps / 8, sk->sk_max_pacing_rate);
		tp->snd_cwnd = ab_min(s->window, tp->snd_cwnd_clamp);
		return;
	}
	if (rs->rtt_us >= 0) {
		struct ack_sample sample = {
			.pkts_acked = rs->acked_sacked,
			.rtt_us = rs->rtt_us,
			.in_flight = in_flight(tp),
		};

		cubictcp_acked(sk, &sample);
	}
	if (state == TCP_CA_CWR || state == TCP_CA_RECOVERY) {
		reduce_in_proportion(sk, s, rs);
	} else {
		if (s)
			s->carried = 0;
		if ((flag & FLAG_FORWARD) && rs->acked_sacked)
			cubictcp_cong_avoid(sk, ack, rs->acked_sacked);
	}
	/* The kernel derives the size of large packets from this rate (tcp_update_pacing_rate): twice the window per RTT in slow start,
	 * otherwise 1.2 times. */
	if (tp->srtt_us) {
		u64 rate = (u64)tp->mss_cache * tp->snd_cwnd * 8000000 / tp->srtt_us;

		rate = tp->snd_cwnd < tp->snd_ssthresh / 2 ? 2 * rate : rate + rate / 5;
		sk->sk_pacing_rate = ab_min(rate, sk->sk_max_pacing_rate);
	}
}

SEC("struct_ops")
u32 BPF_PROG(rate_ssthresh, struct sock *sk)
{
	struct ab_socket *s = ab_socket(sk);

	if (s) {
		s->carried = 0;
		/* Shown by `cc show`; the law itself does not use the classification. */
		ab_count_loss(s, ab_tcp(sk), ab_medium_now(s, ab_tcp(sk)));
	}
	if (s && s->rate_bps) {
		if (!may_be_unreported_drop(s, ab_tcp(sk)))
			return ab_tcp(sk)->snd_cwnd;
		leave_pacing(sk, s);
	}
	return cubictcp_recalc_ssthresh(sk);
}

SEC("struct_ops")
void BPF_PROG(rate_state, struct sock *sk, u8 new_state)
{
	struct ab_socket *s = ab_socket(sk);
	struct tcp_sock *tp = ab_tcp(sk);

	if (new_state == TCP_CA_LOSS && s && s->rate_bps) {
		/* After a long time without ACKs, the knowledge of the path may be outdated. */
		s->window_must_sustain_rate = may_be_unreported_drop(s, tp);
		if (s->window_must_sustain_rate)
			s->view.dropped_us = 0;
		back_to_cubic(sk, s, s->window_must_sustain_rate ? s->min_srtt_us : ab_srtt(tp));
		tp->snd_ssthresh = cubictcp_recalc_ssthresh(sk);
		tp->snd_cwnd = 1;
	} else if (new_state < TCP_CA_CWR && ca_state(sk) >= TCP_CA_CWR && ca_state(sk) <= TCP_CA_RECOVERY &&
		   !(s && s->rate_bps) && tp->snd_ssthresh < 0x7fffffff) {
		/* The end of a recovery, as tcp_end_cwnd_reduction. */
		tp->snd_cwnd = tp->snd_ssthresh;
	}
	cubictcp_state(sk, new_state);
}

SEC("struct_ops")
void BPF_PROG(rate_event, struct sock *sk, enum tcp_ca_event event)
{
	cubictcp_cwnd_event(sk, event);
}

SEC("struct_ops")
u32 BPF_PROG(rate_undo, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops int_rate = {
	.init = (void *)rate_init,
	.ssthresh = (void *)rate_ssthresh,
	.cong_control = (void *)rate_cong_control,
	.set_state = (void *)rate_state,
	.cwnd_event = (void *)rate_event,
	.undo_cwnd = (void *)rate_undo,
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "int_rate",
};
