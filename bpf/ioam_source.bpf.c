/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * IOAM source at the egress of an interface: inserts an empty pre-allocated trace (RFC 9197) into TCP packets over IPv6, as a
 * hop-by-hop option (RFC 9486). In each flow one data segment in `every` carries a trace, at intervals of at least
 * AB_INTERVAL_US, to keep the cost low. Segments that open or close a connection carry none.
 *
 * The source also marks the TCP header, so that the receiver's kernel searches for the trace (feedback.bpf.c) only in that packet:
 * two NOPs in front of the time stamps are replaced by an option of two bytes. A header with other initial options, which includes
 * signed ones (TCP-AO, MD5), is not changed; its trace is for monitors only.
 *
 * A packet that would exceed the interface's MTU gets no trace: lower the MTU of the route by the length of the header. For a
 * large packet (GSO), every segment must fit. The same applies to the path MTU: the kernel considers a segment as fitting without
 * the trace, and would retransmit the longer packet endlessly. Reported packet sizes (RFC 8201) are remembered for the connection
 * and for its destination.
 *
 * Whether a path carries a longer packet is probed without risk: the first trace to a destination is sent in a copy of the packet,
 * and the packet itself is sent without one before it. The loss of the copy has no effect, whereas the loss of a segment together
 * with its trace would end TCP's slow start at a window of a few segments.
 */
#include "abi.h"
#include "lib/int_law.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "lib/room.h"

char _license[] SEC("license") = "GPL";

const volatile struct ab_source_config ab_source SEC(".rodata.config") = {
	.ioam_namespace = 123,
	.every = 8,
	.nodes = 4,
	.link_bytes = 14,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, AB_COUNTERS);
	__type(key, u32);
	__type(value, u64);
} ab_ioam_source SEC(".maps");

/* Room per node for hop, queue depth and our snapshot, 9 words; with detail also seconds, fraction and buffer occupancy, 12 words.
 * The length of an extension header is a multiple of 8 bytes. */
#define NODE_WORDS 2
#define NODE_WORDS_DETAIL 5
#define SNAPSHOT_WORDS 7
#define MOST_WORDS 36
#define HEADER_LEN(words) (16 + 4 * (words))
#define TRACE_TYPE 0x820002
#define TRACE_TYPE_DETAIL 0xb21002

#define TCP_OFFSET 12
#define TCP_FLAGS 13
#define TCP_CHECKSUM 16
/* FIN, SYN, RST. */
#define TCP_MAKES_OR_CLOSES 7
#define BPF_ADJ_ROOM_NET 0
/* The segments of a large packet keep the length that TCP has counted. */
#define BPF_F_ADJ_ROOM_FIXED_GSO 1
#define TC_ACT_UNSPEC -1

struct header {
	u8 next, len, padn, padn_len, option, option_len, reserved, ioam_type;
	__be16 ioam_namespace;
	u8 node_len, remaining;
	__be32 type;
	u32 room[MOST_WORDS];
};

_Static_assert(sizeof(struct header) == HEADER_LEN(MOST_WORDS), "the longest header");

AB_INLINE void count(u32 which)
{
	u64 *counter = bpf_map_lookup_elem(&ab_ioam_source, &which);

	if (counter)
		++*counter;
}

/* Flows with the same hash share an entry. Concurrent updates on several processors may be lost. */
#define FLOWS 4096
struct {
	/* Time of its last trace, nanoseconds of CLOCK_MONOTONIC. */
	u64 traced_ns;
	/* Number of segments without a trace since then. */
	u64 credit;
} flows[FLOWS] SEC(".bss");

/* Knowledge about the path to a destination: the reported maximum packet size; all ones: nothing was reported since a trace was
 * first sent. */
struct told {
	u64 at_ns;
	u32 mtu;
	u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct in6_addr);
	__type(value, struct told);
} ab_told SEC(".maps");

/* Lifetime of a reported size, as in the kernel (net.ipv6.route.mtu_expires). */
#define TOLD_NS 600000000000ULL
#define IPV6_DESTINATION 24
/* Minimum MTU of every IPv6 path (RFC 8200). */
#define IPV6_LEAST_MTU 1280
/* The answer to a first trace is expected within twice the RTT plus this allowance for queues that are building up. */
#define ANSWER_NS 10000000ULL
#define NO_RTT_NS 200000000ULL
/* Flag: send the packet without a trace in addition. */
#define FIRST (1ULL << 32)

/*
 * The known maximum packet size of this packet's path; all ones: nothing was reported; 0: the answer to the first trace is
 * pending. TCP also records a reported size that is not below its own segments, and therefore irrelevant to TCP. The destination is
 * looked up only once per trace.
 */
static __attribute__((noinline)) u64 path_mtu(struct __sk_buff *skb)
{
	struct told *before, told = { .at_ns = bpf_ktime_get_ns(), .mtu = ~0U };
	struct bpf_sock *sk = skb->sk;
	struct tcp_sock *tcp;
	struct in6_addr to;
	u64 age, answer = NO_RTT_NS;

	if (bpf_skb_load_bytes(skb, ab_source.link_bytes + IPV6_DESTINATION, &to, sizeof(to)))
		return ~0U;
	before = bpf_map_lookup_elem(&ab_told, &to);
	age = before ? told.at_ns - before->at_ns : ~0ULL;
	tcp = sk ? bpf_skc_to_tcp_sock(sk) : 0;
	if (tcp && tcp->mtu_info) {
		told.mtu = tcp->mtu_info;
		if (!before || before->mtu > told.mtu || age > TOLD_NS)
			bpf_map_update_elem(&ab_told, &to, &told, 0);
		return told.mtu;
	}
	if (age > TOLD_NS) {
		bpf_map_update_elem(&ab_told, &to, &told, 0);
		return FIRST | ~0U;
	}
	/* In eighths of a microsecond. */
	if (tcp && tcp->srtt_us)
		answer = (u64)tcp->srtt_us * 250 + ANSWER_NS;
	return before->mtu == ~0U && age < answer ? 0 : before->mtu;
}

/* Time stamp of the packet, or the present time if it has none. Packets of this host's TCP have both. */
AB_INLINE u64 time_of(struct __sk_buff *skb)
{
	return skb->tstamp ? skb->tstamp : bpf_ktime_get_ns();
}

AB_INLINE u32 flow_of(struct __sk_buff *skb)
{
	return (skb->hash ? skb->hash : bpf_get_hash_recalc(skb)) % FLOWS;
}

/* Position of the packet's IPv6 header, readable up to TCP's flags, or 0. */
AB_INLINE const u8 *headers(struct __sk_buff *skb)
{
	const u8 *at = (void *)(long)skb->data + ab_source.link_bytes;

	return (void *)(at + IPV6_LEN + TCP_FLAGS + 1) <= (void *)(long)skb->data_end ? at : 0;
}

/* Whether the TCP header's options begin with time stamps as written by the kernel: NOP, NOP, kind 8, length 10. */
AB_INLINE int has_time_stamps(struct __sk_buff *skb, const u8 *tcp)
{
	const u8 *option = tcp + TCP_LEN;

	return (void *)(option + 4) <= (void *)(long)skb->data_end && tcp[TCP_OFFSET] >> 4 >= 8 && option[0] == 1 &&
	       option[1] == 1 && option[2] == 8 && option[3] == 10;
}

/* A complete checksum is updated; one to be completed by the device (CHECKSUM_PARTIAL) is left unchanged by the kernel. */
AB_INLINE void mark(struct __sk_buff *skb, u32 tcp_at)
{
	__be16 nops = bpf_htons(0x0101), marked = bpf_htons(AB_MARK_KIND << 8 | AB_MARK_LEN);

	if (!bpf_l4_csum_replace(skb, tcp_at + TCP_CHECKSUM, nops, marked, sizeof(marked)))
		bpf_skb_store_bytes(skb, tcp_at + TCP_LEN, &marked, sizeof(marked), 0);
}

SEC("tcx/egress")
int ab_source_egress(struct __sk_buff *skb)
{
	u32 segments, mtu = 0, payload, tcp_len, fixed, words, len, longest, flow, ip_at = ab_source.link_bytes;
	u64 carried = ~0U;
	int markable;
	u8 hop_by_hop = 0;
	const u8 *ip;
	__be16 length;
	u64 now;

	if (skb->protocol != bpf_htons(0x86dd))
		return TC_ACT_UNSPEC;
	ip = headers(skb);
	if (!ip) {
		if (bpf_skb_pull_data(skb, ip_at + IPV6_LEN + TCP_FLAGS + 1))
			return TC_ACT_UNSPEC;
		ip = headers(skb);
	}
	if (!ip || ip[6] != IPPROTO_TCP)
		return TC_ACT_UNSPEC;
	payload = (u32)ip[4] << 8 | ip[5];
	tcp_len = (ip[IPV6_LEN + TCP_OFFSET] >> 4) * 4;
	if (payload <= tcp_len || (ip[IPV6_LEN + TCP_FLAGS] & TCP_MAKES_OR_CLOSES))
		return TC_ACT_UNSPEC;
	/* Every segment of a large packet will carry the trace. */
	segments = skb->gso_segs ? skb->gso_segs : 1;
	flow = flow_of(skb);
	flows[flow].credit += segments;
	if (flows[flow].credit < (u64)ab_source.every * segments)
		return TC_ACT_UNSPEC;
	now = time_of(skb);
	if (now - flows[flow].traced_ns < AB_INTERVAL_US * 1000)
		return TC_ACT_UNSPEC;
	fixed = ab_source.detail ? NODE_WORDS_DETAIL : NODE_WORDS;
	words = (ab_source.nodes * (fixed + SNAPSHOT_WORDS) + 1) / 2 * 2;
	len = HEADER_LEN(words);
	payload += len;
	markable = has_time_stamps(skb, ip + IPV6_LEN);
	struct header h = {
		.next = IPPROTO_TCP,
		.len = len / 8 - 1,
		.padn = 1,
		.option = 0x31,
		.option_len = 10 + 4 * words,
		.ioam_namespace = bpf_htons(ab_source.ioam_namespace),
		.node_len = fixed << 3,
		.remaining = words,
		.type = bpf_htonl((ab_source.detail ? TRACE_TYPE_DETAIL : TRACE_TYPE) << 8),
	};
	if (len > sizeof(h))
		return TC_ACT_UNSPEC;
	longest = IPV6_LEN + (skb->gso_size ? skb->gso_size + tcp_len + len : payload);
	if ((!ab_source.beyond_headroom && !ab_has_room(skb, len)) || payload > 65535 || bpf_check_mtu(skb, 0, &mtu, len, 0) ||
	    (skb->gso_size && longest > mtu)) {
		count(AB_TRACES_SKIPPED);
		return TC_ACT_UNSPEC;
	}
	if (longest > IPV6_LEAST_MTU)
		carried = path_mtu(skb);
	if (longest > (u32)carried) {
		count(AB_TRACES_SKIPPED);
		return TC_ACT_UNSPEC;
	}
	flows[flow].credit = 0;
	flows[flow].traced_ns = now;
	/* The copy passes this program again, and is then treated as awaiting the answer. */
	if ((carried & FIRST) && bpf_clone_redirect(skb, skb->ifindex, 0)) {
		count(AB_TRACES_SKIPPED);
		return TC_ACT_UNSPEC;
	}
	if (bpf_skb_adjust_room(skb, len, BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO)) {
		count(AB_TRACES_SKIPPED);
		return TC_ACT_UNSPEC;
	}
	length = bpf_htons(payload);
	bpf_skb_store_bytes(skb, ip_at + IPV6_LEN, &h, len, 0);
	bpf_skb_store_bytes(skb, ip_at + 6, &hop_by_hop, 1, 0);
	bpf_skb_store_bytes(skb, ip_at + 4, &length, 2, 0);
	if (markable)
		mark(skb, ip_at + IPV6_LEN + len);
	count(AB_TRACES_OUT);
	return TC_ACT_UNSPEC;
}
