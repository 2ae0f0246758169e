/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Changes of cwnd and ssthresh, and losses, of TCP sockets (the paper's Figs. 4, 5 and 7), at the kernel's own trace points: used
 * by `anabranch cc trace`. Events that do not fit into the ring buffer are lost, and counted as AB_TRACES_SKIPPED.
 */
#include "abi.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_endian.h>

char _license[] SEC("license") = "GPL";

const volatile struct ab_trace_config ab_trace SEC(".rodata.config") = {};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} ab_events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, AB_COUNTERS);
	__type(key, u32);
	__type(value, u64);
} ab_tcp_trace SEC(".maps");

struct sk_buff;

AB_INLINE int tell(const void *sk, u8 kind, u8 state)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock((void *)sk);
	const struct sock_common *common;
	struct ab_event *e;

	if (!tp)
		return 0;
	common = &tp->inet_conn.icsk_inet.sk.__sk_common;
	if (ab_trace.netns && common->skc_net.net->ns.inum != ab_trace.netns)
		return 0;
	if (ab_trace.port && common->skc_num != ab_trace.port && bpf_ntohs(common->skc_dport) != ab_trace.port)
		return 0;
	e = bpf_ringbuf_reserve(&ab_events, sizeof(*e), 0);
	if (!e) {
		u32 which = AB_TRACES_SKIPPED;
		u64 *counter = bpf_map_lookup_elem(&ab_tcp_trace, &which);

		if (counter)
			__sync_fetch_and_add(counter, 1);
		return 0;
	}
	e->at_us = bpf_ktime_get_ns() / 1000;
	e->cookie = bpf_get_socket_cookie((void *)tp);
	e->cwnd = tp->snd_cwnd;
	e->ssthresh = tp->snd_ssthresh;
	e->srtt_us = tp->srtt_us >> 3;
	e->in_flight = tp->packets_out - (tp->sacked_out + tp->lost_out) + tp->retrans_out;
	e->retransmitted = tp->total_retrans;
	e->lost = tp->lost_out;
	e->local_port = common->skc_num;
	e->remote_port = bpf_ntohs(common->skc_dport);
	e->kind = kind;
	e->state = state;
	e->reserved = 0;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

SEC("tp_btf/tcp_probe")
int BPF_PROG(ab_trace_ack, struct sock *sk, struct sk_buff *skb)
{
	return tell(sk, AB_EVENT_ACK, 0);
}

SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(ab_trace_retransmit, struct sock *sk, struct sk_buff *skb)
{
	return tell(sk, AB_EVENT_RETRANSMIT, 0);
}

SEC("tp_btf/tcp_cong_state_set")
int BPF_PROG(ab_trace_state, struct sock *sk, u8 state)
{
	return tell(sk, AB_EVENT_STATE, state);
}
