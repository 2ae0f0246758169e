/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Return path of telemetry, for the sockets of a cgroup.
 *
 *   receiver   data with a trace and option 0x73 ─▶ socket storage ─▶ option 0x72 on its next ACKs
 *   sender     option 0x72 ─▶ socket storage ─▶ congestion controller
 *
 * One program implements both roles; the role of a socket follows from the packets it receives. The kernel calls the program for
 * packets with an unknown option, one in several dozen, and for outgoing packets while a report is pending: all others have no
 * cost. If a middlebox removes the options, reports are lost with them, and the controller becomes CUBIC.
 */
#include "abi.h"
#include "lib/int_law.h"
#include "lib/sockets.h"
#include "lib/siphash.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

char _license[] SEC("license") = "GPL";

const volatile struct ab_feedback_config ab_config SEC(".rodata.config") = {};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, AB_COUNTERS);
	__type(key, u32);
	__type(value, u64);
} ab_reports SEC(".maps");

/* Maximum number of nodes with our data in an IPv6 option. */
#define MAX_NODES 8

/* Number of packets on which a report is sent, because ACKs can be lost. */
#define REPORT_REPEATS 3

#define NEXT_HEADER 6
#define HOP_LIMIT 7
#define TCP_ACK 8
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

/* ---- received traces ------------------------------------------------------------------------------------ */

/* Result of a trace. */
struct path {
	u64 link, arrival, depth, capacity, share;
	u32 flows;
	u16 drops, losses;
	/* Hop limit written by the last node processed; initially that of the received packet. */
	u8 oldest;
	u8 drops_known, contiguous, nodes;
};

AB_INLINE u64 word(u32 be)
{
	return be == 0xffffffff ? AB_UNKNOWN : bpf_ntohl(be);
}

AB_INLINE int copy(void *to, u32 len, u64 from)
{
	return bpf_probe_read_kernel(to, len, (const void *)from);
}

/* Adds the node at the address `at`; returns its length, 0 at the end. */
__attribute__((noinline)) u32 add_node(struct path *path, u64 at, u32 type, u32 fixed)
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

	if (!path || copy(&hop, 4, at))
		return 0;
	limit = bpf_ntohl(hop) >> 24;
	/* Newest first. The newest node must have the hop limit of the arrival; each older one the same as its successor, or one more. */
	if (limit != path->oldest && (!path->nodes || limit != path->oldest + 1))
		path->contiguous = 0;
	path->oldest = limit;
	path->nodes = 1;
	/* The field of bit 6 follows those of bits 0 to 5 that are present; bit 0 is. */
	if (type & BIT(6))
		copy(&depth, 4, at + 4 * __builtin_popcount(type & 0xfc000000));
	if (!(type & BIT(22))) {
		path->drops_known = 0;
		return fixed;
	}
	if (copy(&head, 4, at + fixed))
		return 0;
	head = bpf_ntohl(head);
	if ((head & 0xffffff) != AB_SCHEMA || head >> 24 != AB_SCHEMA_LEN / 4 ||
	    copy(&ours, sizeof(ours), at + fixed + 4)) {
		path->drops_known = 0;
		return fixed + 4 + 4 * (head >> 24);
	}
	/* The end of a tunnel does not know the drops inside it. */
	if (ours.drops == 0xffffffff)
		path->drops_known = 0;
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
									      : ab_saturating_sub(path->capacity, path->depth);

	s->answer[0] = AB_OPTION_KIND;
	s->answer[1] = AB_OPTION_LEN;
	s->answer[2] = ab_encode_flows(path->flows);
	s->answer[3] = AB_VERSION | (complete ? 0x20 : 0);
	put16(s->answer + 4, path->drops);
	put16(s->answer + 6, path->losses);
	put16(s->answer + 8, ab_encode(path->link));
	put16(s->answer + 10, ab_encode(path->arrival));
	put16(s->answer + 12, ab_encode(path->depth));
	put16(s->answer + 14, ab_encode(free));
	s->report_us = now_us();
	s->left = REPORT_REPEATS;
}

/*
 * Processes a packet with a trace in front of its TCP header. The position of the headers is available only from the kernel's own
 * types; they are contiguous, because the kernel has parsed them.
 */
__attribute__((noinline)) int on_trace(struct bpf_sock_ops *ops)
{
	struct path path = { .share = AB_UNKNOWN, .link = AB_UNKNOWN, .arrival = AB_UNKNOWN, .depth = AB_UNKNOWN,
			     .capacity = AB_UNKNOWN, .drops_known = 1, .contiguous = 1 };
	const struct bpf_sock_ops_kern *kernel = bpf_cast_to_kern_ctx(ops);
	const struct sk_buff *packet = kernel->skb;
	struct ab_socket *s;
	u8 ip[8];
	/* Next header, length, PadN 0, option, its length, reserved, IOAM type, trace. */
	u8 h[16];
	u32 type, at, end, fixed, nodes, first, len = 0;
	u64 start;

	if (!packet)
		return 0;
	start = (u64)packet->head + packet->network_header;
	if (copy(ip, sizeof(ip), start) || ip[0] >> 4 != 6 || ip[NEXT_HEADER] != IPPROTO_HOPOPTS ||
	    copy(h, sizeof(h), start + IPV6_LEN))
		return 0;
	/* The format of ioam_source.bpf.c and wire::ioam: one option, after an empty PadN. */
	if (h[2] != 1 || h[3] != 0 || h[4] != OPTION_IOAM || h[7] != 0)
		return 0;
	fixed = 4 * (h[10] >> 3);
	type = (u32)h[12] << 24 | (u32)h[13] << 16 | (u32)h[14] << 8;
	at = IPV6_LEN + 16 + 4 * (h[11] & 0x7f);
	end = IPV6_LEN + 6 + h[5];
	/* NodeLen must match the type (RFC 9197 §4.4.1): two words for each of bits 8 to 10, none for 22 and 23. */
	if (!(type & BIT(0)) ||
	    fixed != 4 * (__builtin_popcount(type & 0xfffffc00) + __builtin_popcount(type & (BIT(8) | BIT(9) | BIT(10)))) ||
	    end > (u32)packet->transport_header - packet->network_header)
		return 0;
	count(AB_TRACES_IN);
	path.oldest = ip[HOP_LIMIT];
	for (nodes = 0; nodes < MAX_NODES && at < end; nodes++) {
		len = add_node(&path, start + at, type, fixed);
		if (!len)
			return 0;
		at += len;
	}
	if (!nodes || at != end)
		return 0;
	s = state_of(ops->sk);
	if (!s)
		return 0;
	/* The bottleneck may be a node that found no room. */
	if (h[10] & 4) {
		path.link = path.arrival = path.depth = path.capacity = AB_UNKNOWN;
		path.flows = 0;
	}
	/* Routers decrement a common initial hop limit; nodes that report drops are bridges and do not. */
	first = path.oldest <= 64 ? 64 : path.oldest <= 128 ? 128 : 255;
	answer(s, &path, path.drops_known && path.contiguous && !(h[10] & 4) && first - ip[HOP_LIMIT] <= ab_config.known_routers);
	return 1;
}

/* ---- keys ---------------------------------------------------------------------------------------------- */

/* Data covered by a tag: the connection in the direction from the receiver to the sender of data, the ACK that carries the report,
 * and the report. This prevents its use on other connections and replays. A short report is padded with zeros. */
struct signed_report {
	u32 from[4];
	u32 to[4];
	u8 ports[4];
	u8 ack[4];
	u8 option[AB_OPTION_LEN];
};

AB_INLINE int is_keyed(void)
{
	return ab_config.k0 || ab_config.k1;
}

/* The tag of the option in this packet, whose first `len` bytes are the report; `out`: the packet is outgoing. */
static __attribute__((noinline)) u64 tag_of(struct bpf_sock_ops *ops, const u8 *option, u32 len, int out)
{
	u32 local[4] = { ops->local_ip6[0], ops->local_ip6[1], ops->local_ip6[2], ops->local_ip6[3] };
	u32 remote[4] = { ops->remote_ip6[0], ops->remote_ip6[1], ops->remote_ip6[2], ops->remote_ip6[3] };
	struct signed_report report = {};
	const u8 *tcp = ops->skb_data;

	if ((const void *)(tcp + TCP_LEN) > ops->skb_data_end)
		return 0;
	__builtin_memcpy(report.from, out ? local : remote, sizeof(report.from));
	__builtin_memcpy(report.to, out ? remote : local, sizeof(report.to));
	__builtin_memcpy(report.ports, tcp, sizeof(report.ports));
	__builtin_memcpy(report.ack, tcp + TCP_ACK, sizeof(report.ack));
	__builtin_memcpy(report.option, option, AB_OPTION_SHORT_LEN);
	if (len == AB_OPTION_LEN)
		__builtin_memcpy(report.option + AB_OPTION_SHORT_LEN, option + AB_OPTION_SHORT_LEN,
				 AB_OPTION_LEN - AB_OPTION_SHORT_LEN);
	return AB_LE64(ab_siphash(ab_config.k0, ab_config.k1, (const u64 *)&report, sizeof(report) / 8));
}

/* Whether the option has a valid tag; if so, converts it to one without. */
AB_INLINE int take_tag(struct bpf_sock_ops *ops, u8 *option)
{
	u32 len = option[1] == AB_OPTION_LEN + AB_TAG_LEN ? AB_OPTION_LEN : AB_OPTION_SHORT_LEN;
	u64 tag;

	if (option[1] != len + AB_TAG_LEN || (option[3] & AB_VERSION_MASK) != AB_VERSION_TAGGED)
		return 0;
	__builtin_memcpy(&tag, len == AB_OPTION_LEN ? option + AB_OPTION_LEN : option + AB_OPTION_SHORT_LEN, sizeof(tag));
	if (tag != tag_of(ops, option, len, 0))
		return 0;
	option[1] = len;
	option[3] = (option[3] & ~AB_VERSION_MASK) | AB_VERSION;
	return 1;
}

/* Writes the first `len` bytes of a report, with a tag if there is a key; non-zero: no room. */
AB_INLINE int store(struct bpf_sock_ops *ops, u8 *option, u32 len)
{
	u64 tag;

	option[1] = len;
	if (!is_keyed())
		return bpf_store_hdr_opt(ops, option, len, 0);
	option[1] = len + AB_TAG_LEN;
	option[3] = (option[3] & ~AB_VERSION_MASK) | AB_VERSION_TAGGED;
	tag = tag_of(ops, option, len, 1);
	__builtin_memcpy(option + len, &tag, sizeof(tag));
	return bpf_store_hdr_opt(ops, option, len + AB_TAG_LEN, 0);
}

/* ---- options received and sent -------------------------------------------------------------------------- */

/* Requests callbacks for outgoing packets only while a report is pending, because the kernel calls several times per packet for the
 * length of the option. Flags requested by others are kept. */
AB_INLINE void tell(struct bpf_sock_ops *ops, u32 flag)
{
	bpf_sock_ops_cb_flags_set(ops, (ops->bpf_sock_ops_cb_flags & ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG) |
					       BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG | flag);
}

/* As written by the source: in front of the time stamps, which are the first option. */
AB_INLINE int is_marked(struct bpf_sock_ops *ops)
{
	const u8 *option = ops->skb_data + TCP_LEN;

	return (const void *)(option + AB_MARK_LEN) <= ops->skb_data_end && option[0] == AB_MARK_KIND &&
	       option[1] == AB_MARK_LEN;
}

AB_INLINE void parse_options(struct bpf_sock_ops *ops)
{
	u8 option[AB_OPTION_LEN + AB_TAG_LEN] = { AB_OPTION_KIND };
	struct ab_socket *s;
	int late;

	if (is_marked(ops) && on_trace(ops))
		tell(ops, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
	if (bpf_load_hdr_opt(ops, option, sizeof(option), 0) < AB_OPTION_SHORT_LEN)
		return;
	s = state_of(ops->sk);
	if (!s)
		return;
	late = is_keyed() && !take_tag(ops, option) ? -1 : ab_on_report(&s->view, option, now_us());
	count(late < 0 ? AB_REPORTS_BAD : AB_REPORTS_IN);
	if (late > 0)
		s->late = 1;
}

/* Whether there is a report that is recent enough to send. */
AB_INLINE int has_answer(const struct ab_socket *s, u64 now)
{
	return s->left && ab_saturating_sub(now, s->report_us) <= AB_MAX_REPORT_AGE_US;
}

/* Reserves room for the option, in the packet being built or for the computation of the segment size. */
AB_INLINE void reserve(struct bpf_sock_ops *ops)
{
	struct ab_socket *s = state_of(ops->sk);
	u32 tag = is_keyed() ? AB_TAG_LEN : 0;

	if (!s || !has_answer(s, now_us()))
		tell(ops, 0);
	else if (bpf_reserve_hdr_opt(ops, AB_OPTION_LEN + tag, 0))
		bpf_reserve_hdr_opt(ops, AB_OPTION_SHORT_LEN + tag, 0);
}

/* The kernel has reserved room, so an option is always written. The short form does not count as sent, because the rates remain to
 * be reported. */
AB_INLINE void write_option(struct bpf_sock_ops *ops)
{
	struct ab_socket *s = state_of(ops->sk);
	u8 option[AB_OPTION_LEN + AB_TAG_LEN] = {};
	u64 age;

	if (!s)
		return;
	__builtin_memcpy(option, s->answer, sizeof(s->answer));
	age = ab_saturating_sub(now_us(), s->report_us) / 8000;
	option[3] |= age > 31 ? 31 : age;
	if (!store(ops, option, AB_OPTION_LEN)) {
		if (s->left)
			s->left--;
		if (!s->left)
			tell(ops, 0);
	} else if (store(ops, option, AB_OPTION_SHORT_LEN)) {
		return;
	}
	count(AB_REPORTS_OUT);
}

SEC("sockops")
int ab_feedback(struct bpf_sock_ops *ops)
{
	switch (ops->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		tell(ops, 0);
		break;
	case BPF_SOCK_OPS_PARSE_HDR_OPT_CB:
		parse_options(ops);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		reserve(ops);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		write_option(ops);
		break;
	}
	return 1;
}
