/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Initial congestion window derived from the guarantee of a slice, for the sockets of a cgroup.
 *
 *   a connection is established ─▶ (network namespace, mark) ─▶ ab_windows ─▶ TCP_BPF_IW
 *
 * Marks are local to a network namespace, so the namespace is part of the key. The kernel accepts a window until data has been
 * sent; both ends of the handshake are early enough. The kernel sets its own window before it calls the program: a window of one
 * segment means that the SYN was lost (RFC 5681, section 3.1), and is kept.
 */
#include "abi.h"
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "GPL";

#define SOL_TCP 6
#define TCP_BPF_IW 1001

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, AB_WINDOWS);
	__type(key, struct ab_window_key);
	__type(value, u32);
} ab_windows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, AB_WINDOW_COUNTERS);
	__type(key, u32);
	__type(value, u64);
} ab_window_counts SEC(".maps");

static __always_inline void count(u32 which)
{
	u64 *counter = bpf_map_lookup_elem(&ab_window_counts, &which);

	if (counter)
		__sync_fetch_and_add(counter, 1);
}

SEC("sockops")
int ab_initial_window(struct bpf_sock_ops *ops)
{
	struct ab_window_key key = {};
	struct bpf_sock *sk;
	u32 *segments;
	int window;

	if (ops->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && ops->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return 1;
	sk = ops->sk;
	if (!sk)
		return 1;
	key.mark = sk->mark;
	if (!key.mark)
		return 1;
	key.netns = bpf_get_netns_cookie(ops);
	segments = bpf_map_lookup_elem(&ab_windows, &key);
	if (!segments)
		return 1;
	if (ops->snd_cwnd <= 1) {
		count(AB_WINDOWS_LEFT);
		return 1;
	}
	window = *segments;
	if (bpf_setsockopt(ops, SOL_TCP, TCP_BPF_IW, &window, sizeof(window)))
		count(AB_WINDOWS_REFUSED);
	else
		count(AB_WINDOWS_SET);
	return 1;
}
