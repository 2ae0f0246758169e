/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Lists every socket with state in one map ab_sockets, which the loader substitutes for the one declared here, in all network
 * namespaces: the iterator used by `anabranch cc show`. It iterates over the open files of all processes, because not every kernel
 * lets a program iterate over the map itself (iter/bpf_sk_storage_map); a socket open in two processes is listed twice. It takes no
 * lock: the values of a socket may be from two successive ACKs.
 */
#include "abi.h"
#include "lib/int_law.h"
#include "lib/sockets.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_endian.h>

char _license[] SEC("license") = "GPL";

#define AF_INET6 10
#define TCP_CLOSE 7
#define TCP_LISTEN 10

AB_INLINE void address(u8 *to, const struct sock *sk, const struct in6_addr *six, const __be32 *four)
{
	if (sk->__sk_common.skc_family == AF_INET6) {
		bpf_probe_read_kernel(to, 16, six);
		return;
	}
	to[10] = to[11] = 0xff;
	bpf_probe_read_kernel(to + 12, 4, four);
}

SEC("iter/task_file")
int ab_sockets_iter(struct bpf_iter__task_file *ctx)
{
	struct file *file = ctx->file;
	struct ab_shown shown = {};
	struct socket *socket;
	struct ab_socket *s;
	struct tcp_sock *tp;
	struct sock *sk;

	socket = file ? bpf_sock_from_file(file) : NULL;
	sk = socket ? socket->sk : NULL;
	s = sk ? bpf_sk_storage_get(&ab_sockets, sk, 0, 0) : NULL;
	if (!s || sk->__sk_common.skc_state == TCP_LISTEN || sk->__sk_common.skc_state == TCP_CLOSE)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	shown.cookie = bpf_get_socket_cookie(sk);
	shown.now_us = bpf_ktime_get_ns() / 1000;
	shown.received_us = s->view.flags & AB_HAS_REPORT ? s->view.received_us : 0;
	shown.report_us = s->report_us;
	shown.pacing = sk->sk_pacing_rate;
	shown.rate_bps = s->rate_bps;
	shown.link_kbps = s->view.link_kbps;
	shown.depth_bytes = s->view.depth_bytes;
	address(shown.local, sk, &sk->__sk_common.skc_v6_rcv_saddr, &sk->__sk_common.skc_rcv_saddr);
	address(shown.remote, sk, &sk->__sk_common.skc_v6_daddr, &sk->__sk_common.skc_daddr);
	shown.local_port = sk->__sk_common.skc_num;
	shown.remote_port = bpf_ntohs(sk->__sk_common.skc_dport);
	shown.netns = sk->__sk_common.skc_net.net->ns.inum;
	shown.cwnd = tp->snd_cwnd;
	shown.ssthresh = tp->snd_ssthresh;
	shown.cwnd_clamp = tp->snd_cwnd_clamp;
	shown.srtt_us = tp->srtt_us >> 3;
	shown.in_flight = tp->packets_out - (tp->sacked_out + tp->lost_out) + tp->retrans_out;
	shown.resent = tp->total_retrans;
	shown.resent_congestion = s->resent_congestion;
	shown.resent_medium = s->resent_medium;
	if (s->state & AB_STATE_MEDIUM)
		shown.resent_medium += tp->total_retrans - s->resent_before;
	else
		shown.resent_congestion += tp->total_retrans - s->resent_before;
	shown.losses_congestion = s->losses_congestion;
	shown.losses_medium = s->losses_medium;
	shown.losses_taken_back = s->losses_taken_back;
	shown.state = s->state;
	shown.flows = s->view.flows;
	shown.flags = s->view.flags;
	bpf_probe_read_kernel(shown.name, sizeof(shown.name), tp->inet_conn.icsk_ca_ops->name);
	bpf_seq_write(ctx->meta->seq, &shown, sizeof(shown));
	return 0;
}
