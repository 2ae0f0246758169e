/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Telemetry's way back, for the sockets of a cgroup.
 *
 *   receiver   data with an IOAM trace ─▶ sink (cgroup_skb, ingress) ─▶ socket storage ─▶ option 0x72 on its ACKs
 *   sender     option 0x72 ─▶ socket storage ─▶ congestion controller
 *
 * The same program does both; which one a socket is shows in what arrives. A middlebox that takes the option off
 * takes the reports with it, and the controller is CUBIC again.
 */
#include "abi.h"
#include "lib/int_law.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

char _license[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct ab_socket);
} ab_sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, AB_COUNTERS);
	__type(key, u32);
	__type(value, u64);
} ab_reports SEC(".maps");

/* The longest an answer is worth sending: what the age field can say. */
#define ANSWER_US 248000ULL
/* More nodes than this no IPv6 option can hold with our data. */
#define MOST_NODES 8

#define IPV6_LEN 40
#define NEXT_HEADER 6
#define HOP_LIMIT 7
#define IPPROTO_HOPOPTS 0
#define OPTION_IOAM 0x31
#define BIT(n) (1U << (31 - (n)))

AB_INLINE void count(u32 which)
{
	u64 *counter = bpf_map_lookup_elem(&ab_reports, &which);

	if (counter)
		++*counter;
}

AB_INLINE u64 now_us(void)
{
	return bpf_ktime_get_ns() / 1000;
}

AB_INLINE struct ab_socket *state_of(struct bpf_sock *sk)
{
	struct ab_socket *s;

	if (!sk)
		return 0;
	s = bpf_sk_storage_get(&ab_sockets, sk, 0, 0);
	if (s)
		return s;
	s = bpf_sk_storage_get(&ab_sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (s)
		ab_view_init(&s->view);
	return s;
}

/* ---- the way back ------------------------------------------------------------------------------------ */

/*
 * The kernel asks for the length of our option several times for each packet. A sender of data has nothing to tell, so it
 * has the kernel stop asking after so many packets, and is quiet. It looks again when the other end sends data with a report
 * or with a request for reports, and where it has to send something again.
 *
 * The request is on the first packets of an end that has received as much: then the other one may be quiet. Few paths have
 * seen such an option; should one drop it, the first retransmission ends it.
 */
#define QUIET_AFTER 64
#define ALWAYS (BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG | BPF_SOCK_OPS_RETRANS_CB_FLAG)
#define TELLING (ALWAYS | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG)

#define TCP_OFFSET 12

/* Leaves what others have asked for as it is. */
AB_INLINE void ask_for(struct bpf_sock_ops *ops, u32 flags)
{
	bpf_sock_ops_cb_flags_set(ops, (ops->bpf_sock_ops_cb_flags & ~TELLING) | flags);
}

AB_INLINE int is_quiet(const struct bpf_sock_ops *ops)
{
	return !(ops->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

AB_INLINE int carries_data(struct bpf_sock_ops *ops)
{
	const u8 *tcp = ops->skb_data;

	return (const void *)(tcp + TCP_OFFSET + 1) <= ops->skb_data_end && ops->skb_len > (u32)(tcp[TCP_OFFSET] >> 4) * 4;
}

AB_INLINE void parse_option(struct bpf_sock_ops *ops)
{
	u8 option[AB_OPTION_LEN] = { AB_OPTION_KIND };
	int len = bpf_load_hdr_opt(ops, option, sizeof(option), 0), late;
	struct ab_socket *s;

	if (len < AB_OPTION_ASK_LEN)
		return;
	s = state_of(ops->sk);
	if (!s)
		return;
	if (carries_data(ops)) {
		s->untold = 0;
		s->state &= ~AB_STATE_ASKED;
		if (is_quiet(ops))
			ask_for(ops, TELLING);
	}
	if (len < AB_OPTION_SHORT_LEN)
		return;
	late = ab_take(&s->view, option, now_us());
	count(late < 0 ? AB_REPORTS_BAD : AB_REPORTS_IN);
	if (late > 0)
		s->late = 1;
}

/* When the socket last looked at the clock, which is when its last packet came: to look again would cost as much as the rest. */
AB_INLINE u64 last_us(struct bpf_sock_ops *ops)
{
	const struct tcp_sock *tp = ops->sk ? bpf_skc_to_tcp_sock(ops->sk) : 0;

	return tp ? tp->tcp_mstamp : now_us();
}

/* Whether there is an answer worth sending. */
AB_INLINE int has_answer(const struct ab_socket *s, u64 now)
{
	return s->answer_len && ab_minus(now, s->answered_us) <= ANSWER_US;
}

/* Whether it is new, or its last repetition long enough ago. */
AB_INLINE int due(const struct ab_socket *s, u64 now)
{
	return s->told_us < s->answered_us || ab_minus(now, s->told_us) >= AB_INTERVAL_US;
}

/* How long our option will be: in the packet that is made now, or at most, for the length of a segment. */
AB_INLINE void reserve(struct bpf_sock_ops *ops)
{
	int packet = ops->args[0] != BPF_WRITE_HDR_TCP_CURRENT_MSS;
	struct ab_socket *s = state_of(ops->sk);

	if (!s)
		return;
	if (s->answer_len) {
		u64 now = last_us(ops);

		if (has_answer(s, now)) {
			if ((!packet || due(s, now)) && bpf_reserve_hdr_opt(ops, AB_OPTION_LEN, 0))
				bpf_reserve_hdr_opt(ops, AB_OPTION_SHORT_LEN, 0);
			return;
		}
		s->answer_len = 0;
	}
	/* An ACK without data asks for nothing. */
	if (packet && !ops->skb_len)
		return;
	if (s->untold >= QUIET_AFTER) {
		s->state |= AB_STATE_ASKED;
		ask_for(ops, ALWAYS);
		return;
	}
	if (packet)
		s->untold++;
	if (!(s->state & AB_STATE_ASKED) && ops->data_segs_in >= QUIET_AFTER)
		bpf_reserve_hdr_opt(ops, AB_OPTION_ASK_LEN, 0);
}

AB_INLINE void sent_again(struct bpf_sock_ops *ops)
{
	struct ab_socket *s = state_of(ops->sk);

	if (!s)
		return;
	s->state |= AB_STATE_ASKED;
	if (is_quiet(ops)) {
		s->untold = 0;
		ask_for(ops, TELLING);
	}
}

AB_INLINE void write_option(struct bpf_sock_ops *ops)
{
	u8 option[AB_OPTION_LEN] = { AB_OPTION_KIND, AB_OPTION_ASK_LEN };
	struct ab_socket *s = state_of(ops->sk);
	u64 now = now_us(), age;

	if (!s)
		return;
	if (!has_answer(s, now)) {
		bpf_store_hdr_opt(ops, option, AB_OPTION_ASK_LEN, 0);
		return;
	}
	__builtin_memcpy(option, s->answer, sizeof(option));
	age = (now - s->answered_us) / 8000;
	option[3] |= age > 31 ? 31 : age;
	if (bpf_store_hdr_opt(ops, option, AB_OPTION_LEN, 0)) {
		option[1] = AB_OPTION_SHORT_LEN;
		if (bpf_store_hdr_opt(ops, option, AB_OPTION_SHORT_LEN, 0))
			return;
	}
	s->told_us = now;
	s->untold = 0;
	count(AB_REPORTS_OUT);
}

SEC("sockops")
int ab_feedback(struct bpf_sock_ops *ops)
{
	switch (ops->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		ask_for(ops, TELLING);
		break;
	case BPF_SOCK_OPS_PARSE_HDR_OPT_CB:
		parse_option(ops);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		reserve(ops);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		write_option(ops);
		break;
	case BPF_SOCK_OPS_RETRANS_CB:
		sent_again(ops);
		break;
	}
	return 1;
}

/* ---- the sink ---------------------------------------------------------------------------------------- */

/* What a trace comes to. */
struct path {
	u64 link, arrival, depth, capacity, share;
	u32 flows;
	u16 drops, losses;
	u8 told, oldest, unbroken;
};

AB_INLINE u64 word(u32 be)
{
	return be == 0xffffffff ? AB_UNKNOWN : bpf_ntohl(be);
}

/* Adds the node at `at`; returns its length, 0 at the end. */
__attribute__((noinline)) u32 add_node(struct __sk_buff *skb, struct path *path, u32 at, u32 type, u32 fixed)
{
	u32 depth = 0xffffffff, hop = 0, head = 0;
	struct {
		u32 arrival, link, capacity;
		u16 flows;
		u8 mcs, reserved;
		u32 drops, losses;
	} ours;
	u64 link, share;
	u32 flows;
	u8 limit;

	if (!path || bpf_skb_load_bytes(skb, at, &hop, 4))
		return 0;
	limit = bpf_ntohl(hop) >> 24;
	/* Newest first: the same hop (a bridge), or one further from here. */
	if (limit != path->oldest && limit != (u8)(path->oldest + 1))
		path->unbroken = 0;
	path->oldest = limit;
	/* Bit 6 stands behind those of bits 0 to 5 that are there; bit 0 is. */
	if (type & BIT(6))
		bpf_skb_load_bytes(skb, at + 4 * __builtin_popcount(type & 0xfc000000), &depth, 4);
	if (!(type & BIT(22))) {
		path->told = 0;
		return fixed;
	}
	if (bpf_skb_load_bytes(skb, at + fixed, &head, 4))
		return 0;
	head = bpf_ntohl(head);
	if ((head & 0xffffff) != AB_SCHEMA || head >> 24 != AB_SCHEMA_LEN / 4 ||
	    bpf_skb_load_bytes(skb, at + fixed + 4, &ours, sizeof(ours))) {
		path->told = 0;
		return fixed + 4 + 4 * (head >> 24);
	}
	/* The end of a tunnel does not know what was dropped inside it. */
	if (ours.drops == 0xffffffff)
		path->told = 0;
	else
		path->drops += bpf_ntohl(ours.drops);
	if (ours.losses != 0xffffffff)
		path->losses += bpf_ntohl(ours.losses);
	link = word(ours.link);
	flows = ours.flows == 0xffff || !ours.flows ? 1 : bpf_ntohs(ours.flows);
	share = link == AB_UNKNOWN ? AB_UNKNOWN : link / flows;
	if (share < path->share) {
		path->share = share;
		path->link = link;
		path->flows = flows;
		path->arrival = word(ours.arrival);
		path->depth = word(depth);
		path->capacity = word(ours.capacity);
	}
	return fixed + 4 + AB_SCHEMA_LEN;
}

AB_INLINE void put16(u8 *b, u16 value)
{
	b[0] = value >> 8;
	b[1] = value;
}

AB_INLINE void answer(struct ab_socket *s, const struct path *path, int complete)
{
	u64 free = path->depth == AB_UNKNOWN || path->capacity == AB_UNKNOWN ? AB_UNKNOWN
									      : ab_minus(path->capacity, path->depth);

	s->answer[0] = AB_OPTION_KIND;
	s->answer[1] = AB_OPTION_LEN;
	s->answer[2] = ab_code_flows(path->flows);
	s->answer[3] = 0x40 | (complete ? 0x20 : 0);
	put16(s->answer + 4, path->drops);
	put16(s->answer + 6, path->losses);
	put16(s->answer + 8, ab_code(path->link));
	put16(s->answer + 10, ab_code(path->arrival));
	put16(s->answer + 12, ab_code(path->depth));
	put16(s->answer + 14, ab_code(free));
	s->answered_us = now_us();
	s->answer_len = AB_OPTION_LEN;
}

/* A packet with hop-by-hop options. Apart, for hardly any packet is one. */
__attribute__((noinline)) int take_trace(struct __sk_buff *skb)
{
	struct path path = { .share = AB_UNKNOWN, .link = AB_UNKNOWN, .arrival = AB_UNKNOWN, .depth = AB_UNKNOWN,
			     .capacity = AB_UNKNOWN, .told = 1, .unbroken = 1 };
	struct ab_socket *s;
	struct bpf_sock *sk = skb->sk;
	/* Next header, length, PadN 0, option, its length, reserved, IOAM type, trace. */
	u8 h[16], hop_limit;
	u32 type, at, end, fixed, nodes, len = 0;

	if (!sk || bpf_skb_load_bytes(skb, HOP_LIMIT, &hop_limit, 1) || bpf_skb_load_bytes(skb, IPV6_LEN, h, sizeof(h)))
		return 1;
	/* As ioam_source.bpf.c and wire::ioam write it: one option, behind an empty PadN. */
	if (h[2] != 1 || h[3] != 0 || h[4] != OPTION_IOAM || h[7] != 0)
		return 1;
	fixed = 4 * (h[10] >> 3);
	type = (u32)h[12] << 24 | (u32)h[13] << 16 | (u32)h[14] << 8;
	at = IPV6_LEN + 16 + 4 * (h[11] & 0x7f);
	end = IPV6_LEN + 6 + h[5];
	if (!(type & BIT(0)) || !fixed)
		return 1;
	count(AB_TRACES_IN);
	path.oldest = hop_limit - 1;
	for (nodes = 0; nodes < MOST_NODES && at < end; nodes++) {
		len = add_node(skb, &path, at, type, fixed);
		if (!len)
			return 1;
		at += len;
	}
	if (!nodes || at != end)
		return 1;
	sk = bpf_sk_fullsock(sk);
	s = state_of(sk);
	if (!s)
		return 1;
	/* The oldest node must be the first hop: what it left is a usual first hop limit, or one less. */
	answer(s, &path, path.told && path.unbroken && !(h[10] & 4) &&
			 (path.oldest == 64 || path.oldest == 63 || path.oldest == 128 || path.oldest == 127 ||
			  path.oldest == 255 || path.oldest == 254));
	return 1;
}

SEC("cgroup_skb/ingress")
int ab_sink(struct __sk_buff *skb)
{
	const u8 *ip = (void *)(long)skb->data;

	if (skb->protocol == bpf_htons(0x86dd) && (void *)(ip + IPV6_LEN) <= (void *)(long)skb->data_end &&
	    ip[NEXT_HEADER] == IPPROTO_HOPOPTS)
		take_trace(skb);
	return 1;
}
