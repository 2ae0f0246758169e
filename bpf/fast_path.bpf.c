/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Kernel fast path for the plain form of the tunnel (docs/wire-formats.md, "Plain form"): packets of flows on a decided path go
 * from the inner interface to the access and back without waking user space.
 *
 *   inner interface (TUN), egress ──▶ ab_fast_out: flow ─▶ slot ─▶ IPv4, UDP, inner header ──▶ access
 *   access, ingress ──▶ ab_fast_in: peer ─▶ slot ─▶ remove headers ──▶ inner interface
 *
 * All packets that user space has not prepared exactly go to user space: other flows, SYNs (their MSS is lowered there),
 * fragments, IP options, packets that are too large, and everything of a slot without a valid lease. User space therefore makes
 * all decisions, and regains control as soon as it lets a lease expire or increments the generation of a slot.
 *
 * Large packets (GSO) are not split. For this reason the inner header has length 0, "up to the end of the datagram": segmentation
 * copies it into every datagram.
 */
#include "abi.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "lib/room.h"

char _license[] SEC("license") = "GPL";

const volatile struct ab_fast_config ab_fast SEC(".rodata.config") = {};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 8);
	__type(key, u32);
	__type(value, struct ab_fast_slot);
} ab_fast_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct ab_fast_key);
	__type(value, struct ab_fast_flow);
} ab_fast_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8);
	__type(key, struct ab_fast_peer);
	__type(value, u32);
} ab_fast_peers SEC(".maps");

#define ETH_LEN 14
#define IPV4_LEN 20
#define UDP_LEN 8
#define INNER_LEN 8
#define OUTER_LEN (IPV4_LEN + UDP_LEN + INNER_LEN)
#define IPPROTO_UDP 17
#define NEXT_IPV4 4
#define NEXT_IPV6 41
#define TYPE_DATA 0x80
#define DNS_PORT 53
#define TCP_SYN 0x02

#define PACKET_HOST 0
#define TC_ACT_UNSPEC -1
#define TC_ACT_SHOT 2
#define BPF_ADJ_ROOM_MAC 1
#define BPF_F_ADJ_ROOM_FIXED_GSO 1
#define BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 2
#define BPF_F_ADJ_ROOM_ENCAP_L4_UDP 16
#define BPF_F_ADJ_ROOM_DECAP_L3_IPV4 128
#define BPF_F_ADJ_ROOM_DECAP_L3_IPV6 256
/* The inner header takes the place of the inner Ethernet header of tunnels such as VXLAN. */
#define ENCAP_INNER_HEADER ((u64)INNER_LEN << 56)
#define BPF_F_INGRESS 1

AB_INLINE bool leased(const struct ab_fast_slot *slot)
{
	return slot->until_ns > bpf_ktime_get_ns();
}

/* Compares bytes; memcmp is not available. */
AB_INLINE bool same(const u8 *a, const u8 *b, u32 len)
{
	u8 other = 0;

#pragma unroll
	for (u32 i = 0; i < len; i++)
		other |= a[i] ^ b[i];
	return !other;
}

/* An inner packet that can be carried: one whole IP packet without options, TCP or UDP. */
struct inner {
	struct ab_fast_key key;
	/* Size of its headers, and its length according to the IP header. */
	u32 headers;
	u32 len;
	u8 tcp_flags;
};

/* Parses the inner packet at `at`; returns whether it can be carried. */
AB_INLINE bool read_inner(struct __sk_buff *skb, u32 at, u8 version, struct inner *inner)
{
	struct ab_fast_key *key = &inner->key;
	u8 ip[IPV6_LEN], tcp[2];

	key->version = version;
	if (version == 4) {
		if (bpf_skb_load_bytes(skb, at, ip, IPV4_LEN) || ip[0] != 0x45 || (ip[6] & 0x3f) || ip[7])
			return 0;
		key->protocol = ip[9];
		__builtin_memcpy(key->src, ip + 12, 4);
		__builtin_memcpy(key->dst, ip + 16, 4);
		inner->headers = IPV4_LEN;
		inner->len = (u32)ip[2] << 8 | ip[3];
	} else {
		if (bpf_skb_load_bytes(skb, at, ip, IPV6_LEN) || ip[0] >> 4 != 6)
			return 0;
		key->protocol = ip[6];
		__builtin_memcpy(key->src, ip + 8, 16);
		__builtin_memcpy(key->dst, ip + 24, 16);
		inner->headers = IPV6_LEN;
		inner->len = ((u32)ip[4] << 8 | ip[5]) + IPV6_LEN;
	}
	at += inner->headers;
	if (bpf_skb_load_bytes(skb, at, &key->src_port_be, 4))
		return 0;
	if (key->protocol == IPPROTO_UDP) {
		inner->headers += UDP_LEN;
		return 1;
	}
	if (key->protocol != IPPROTO_TCP || bpf_skb_load_bytes(skb, at + 12, tcp, 2))
		return 0;
	inner->headers += (tcp[0] >> 4) * 4;
	inner->tcp_flags = tcp[1];
	return 1;
}

AB_INLINE u32 segments(const struct __sk_buff *skb, u32 payload)
{
	u32 size = skb->gso_size;

	return size ? (payload + size - 1) / size : 1;
}

SEC("tcx/egress")
int ab_fast_out(struct __sk_buff *skb)
{
	struct inner inner = {};
	struct ab_fast_flow *flow;
	struct ab_fast_slot *slot;
	u8 outer[OUTER_LEN], ethernet[ETH_LEN] = { [12] = 0x08 };
	u32 headers, count, sum, len = skb->len;
	bool ipv4 = skb->protocol == bpf_htons(0x0800);
	__be16 be;

	if (!ipv4 && skb->protocol != bpf_htons(0x86dd))
		return TC_ACT_UNSPEC;
	if (!read_inner(skb, 0, ipv4 ? 4 : 6, &inner) || (inner.tcp_flags & TCP_SYN))
		return TC_ACT_UNSPEC;
	headers = inner.headers;
	if (len < headers)
		return TC_ACT_UNSPEC;
	flow = bpf_map_lookup_elem(&ab_fast_flows, &inner.key);
	if (!flow)
		return TC_ACT_UNSPEC;
	slot = bpf_map_lookup_elem(&ab_fast_slots, &flow->slot);
	if (!slot || slot->generation != flow->generation || !leased(slot))
		return TC_ACT_UNSPEC;
	if ((skb->gso_size ? skb->gso_size + headers : len) > slot->mtu || len > 65535 - OUTER_LEN)
		return TC_ACT_UNSPEC;
	if (inner.key.protocol == IPPROTO_TCP && !ab_has_room(skb, OUTER_LEN + ETH_LEN))
		return TC_ACT_UNSPEC;
	count = segments(skb, len - headers);

	__builtin_memcpy(outer, slot->outer, IPV4_LEN + UDP_LEN);
	be = bpf_htons(len + OUTER_LEN);
	__builtin_memcpy(outer + 2, &be, 2);
	/* Sum of the header plus its length; the complement of the folded sum is the checksum. */
	sum = slot->outer_sum + len + OUTER_LEN;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	be = bpf_htons(~sum & 0xffff);
	__builtin_memcpy(outer + 10, &be, 2);
	be = bpf_htons(len + UDP_LEN + INNER_LEN);
	__builtin_memcpy(outer + IPV4_LEN + 4, &be, 2);
	__builtin_memset(outer + IPV4_LEN + UDP_LEN, 0, INNER_LEN);
	outer[IPV4_LEN + UDP_LEN] = TYPE_DATA;
	outer[IPV4_LEN + UDP_LEN + 1] = ipv4 ? NEXT_IPV4 : NEXT_IPV6;

	if (bpf_skb_adjust_room(skb, OUTER_LEN, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 |
					BPF_F_ADJ_ROOM_ENCAP_L4_UDP | ENCAP_INNER_HEADER))
		return TC_ACT_UNSPEC;
	/* From here on the packet is modified, and is lost on failure. The kernel needs an Ethernet header, into which it writes the
	 * neighbour's address. */
	if (bpf_skb_store_bytes(skb, 0, outer, OUTER_LEN, 0) || bpf_skb_change_head(skb, ETH_LEN, 0) ||
	    bpf_skb_store_bytes(skb, 0, ethernet, ETH_LEN, 0)) {
		__sync_fetch_and_add(&slot->tx_failed, count);
		return TC_ACT_SHOT;
	}
	skb->mark = slot->mark;
	__sync_fetch_and_add(&slot->tx_packets, count);
	/* Counted as in user space: the UDP payload of every datagram. */
	__sync_fetch_and_add(&slot->tx_bytes, len + count * INNER_LEN + (count - 1) * headers);
	return bpf_redirect_neigh(slot->ifindex, 0, 0, 0);
}

SEC("tcx/ingress")
int ab_fast_in(struct __sk_buff *skb)
{
	u8 h[ETH_LEN + OUTER_LEN];
	const u8 *outer = h + ETH_LEN, *header = outer + IPV4_LEN + UDP_LEN;
	struct ab_fast_peer peer = {};
	struct inner inner = {};
	struct ab_fast_slot *slot;
	u32 *number, count;
	bool ipv4, own;

	if (skb->pkt_type != PACKET_HOST || skb->protocol != bpf_htons(0x0800) ||
	    bpf_skb_load_bytes(skb, 0, h, sizeof(h)))
		return TC_ACT_UNSPEC;
	if (outer[0] != 0x45 || (outer[6] & 0x3f) || outer[7] || outer[9] != IPPROTO_UDP)
		return TC_ACT_UNSPEC;
	__builtin_memcpy(&peer.remote_be, outer + 12, 4);
	__builtin_memcpy(&peer.local_be, outer + 16, 4);
	__builtin_memcpy(&peer.remote_port_be, outer + IPV4_LEN, 4);
	number = bpf_map_lookup_elem(&ab_fast_peers, &peer);
	if (!number)
		return TC_ACT_UNSPEC;
	slot = bpf_map_lookup_elem(&ab_fast_slots, number);
	/* On another interface the source could be forged by anyone there; user space decides. */
	if (!slot || slot->ifindex != skb->ifindex || !leased(slot))
		return TC_ACT_UNSPEC;
	/* A datagram without checksum, with unordered data up to its end; otherwise possibly a probe. */
	if (outer[IPV4_LEN + 6] || outer[IPV4_LEN + 7] || header[0] != TYPE_DATA || header[2] || header[3]) {
		slot->rx_packets_then = slot->rx_packets;
		slot->rx_bytes_then = slot->rx_bytes;
		return TC_ACT_UNSPEC;
	}

	ipv4 = header[1] == NEXT_IPV4;
	if ((!ipv4 && header[1] != NEXT_IPV6) || !read_inner(skb, sizeof(h), ipv4 ? 4 : 6, &inner))
		return TC_ACT_UNSPEC;
	own = ipv4 ? same(slot->inner_v4, inner.key.src, 4) : same(slot->inner_v6, inner.key.src, 16);
	/* The UE accepts any source, and learns names from DNS answers. */
	if (ab_fast.ue ? inner.key.protocol == IPPROTO_UDP && inner.key.src_port_be == bpf_htons(DNS_PORT) : !own)
		return TC_ACT_UNSPEC;
	/* A single packet, large or not; several datagrams merged by the kernel (GRO) go to user space. */
	if (inner.len + sizeof(h) != skb->len || inner.len < inner.headers)
		return TC_ACT_UNSPEC;
	count = segments(skb, inner.len - inner.headers);
	if (bpf_skb_adjust_room(skb, -OUTER_LEN, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO | (ipv4 ? BPF_F_ADJ_ROOM_DECAP_L3_IPV4 : BPF_F_ADJ_ROOM_DECAP_L3_IPV6)))
		return TC_ACT_UNSPEC;
	__sync_fetch_and_add(&slot->rx_packets, count);
	__sync_fetch_and_add(&slot->rx_bytes, inner.len + count * INNER_LEN + (count - 1) * inner.headers);
	return bpf_redirect(ab_fast.inner_ifindex, BPF_F_INGRESS);
}
