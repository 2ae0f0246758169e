/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The one contract between the programs in this directory and user space (crates/kern/src/bpf/abi.rs is the same in
 * Rust, and a test compares sizes and offsets).
 *
 * Every number is in the machine's byte order unless its name ends in _be. Times are microseconds of
 * CLOCK_MONOTONIC, which is what the kernel's tcp_mstamp counts.
 */
#ifndef ANABRANCH_ABI_H
#define ANABRANCH_ABI_H

#ifdef __BPF__
#include "lib/kernel.h"
#else
#include <stdint.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
#endif

#define AB_INLINE static inline __attribute__((always_inline))

/* TCP option of the receiver's reports: crates/wire/src/ioam/feedback.rs draws it. */
#define AB_OPTION_KIND 0x72
#define AB_OPTION_LEN 16
#define AB_OPTION_SHORT_LEN 8
/* Where a key is configured the option ends with a tag of so many bytes, and its version is another one. */
#define AB_TAG_LEN 8
#define AB_VERSION 0x40
#define AB_VERSION_TAGGED 0x80
#define AB_VERSION_MASK 0xc0

/* "A trace is in front of me": on packets that the source gave one, in the place of two of the kernel's NOPs.
 * crates/wire/src/ioam/feedback.rs has it as TCP_MARK_KIND. */
#define AB_MARK_KIND 0x73
#define AB_MARK_LEN 2

/* Traces of a flow are so far apart at least: no law gains by more, and each costs.
 * crates/cc/src/int/view.rs has it as TELEMETRY_INTERVAL_US. */
#define AB_INTERVAL_US 1000ULL

/* Our opaque state snapshot: crates/wire/src/ioam/snapshot.rs. */
#define AB_SCHEMA 0x414201
#define AB_SCHEMA_LEN 24

/* What a loader sets before a program is loaded; crates/cc/src/int/mod.rs explains each. */
struct ab_config {
	u64 ceiling_bps;
	u32 increment;
	u32 growth_cap;
	u32 stale_rtts;
	u32 reserved;
};

/* What the feedback program is told before it is loaded. */
struct ab_feedback_config {
	/* The key of reports; all zero: they have no tag. */
	u64 k0;
	u64 k1;
	/* Routers on the way that are known to have no queue that drops. */
	u32 known_routers;
	u32 reserved;
};

/* What a flow knows of its path; crates/cc/src/int/view.rs. All ones: unknown. */
struct ab_view {
	u64 received_us;
	u64 detailed_us;
	u64 acked_us;
	u64 moved_us;
	u64 dropped_us;
	u64 counted_us;
	u64 newest_us;
	u64 provisional_us;
	u64 least_ends_us;
	u64 round_ends_us;
	u64 link_kbps;
	u64 arrival_kbps;
	u64 depth_bytes;
	u64 free_bytes;
	u32 flows;
	u32 drops;
	u32 losses;
	u32 flags;
	u32 least_us[2];
	u32 low_us[2];
	u32 peak_bytes[2];
	u32 began[2];
	u32 passed[2];
};

/* One socket: value of the map `ab_sockets` (BPF_MAP_TYPE_SK_STORAGE). A version that replaces another one uses its
 * sockets' state if the size is the same: who changes the meaning of a field changes the size, too. */
struct ab_socket {
	struct ab_view view;
	/* Our answer to the sender of data: the option as it goes out next. */
	u8 answer[AB_OPTION_LEN];
	u64 answered_us;
	/* How often it is still to go out; 0: nothing to tell. */
	u32 left;
	/* A late report took the judgement on the last loss back. */
	u32 late;
	/* int_cubic_l1, int_cubic_l2: window that medium losses leave. */
	u32 kept_cwnd;
	/* int_rate: segments delivered in this recovery; int_cubic_ss, _l2: 1/1024 segments still to add, to take. */
	u32 carried;
	/* int_rate: rate paced at (0: CUBIC is in force), and when it is set anew. */
	u64 rate_bps;
	u64 next_us;
	/* int_rate: the window that bounds it at that rate, segments. */
	u64 window;
	/* int_rate: least smoothed round trip since it began to pace; 0: none. */
	u64 least_us;
	/* Segments sent again after losses taken for congestion and for the medium's; counted up to the last loss. */
	u32 resent_congestion;
	u32 resent_medium;
	/* The socket's total_retrans when the last loss was judged. */
	u32 resent_before;
	/* Judgements. */
	u32 losses_congestion;
	u32 losses_medium;
	u32 losses_taken_back;
	/* AB_STATE_*. */
	u32 state;
	/* int_rate: a queue that tells nothing dropped; the window has to carry the rate before the flow is paced. */
	u32 doubt;
};

/* The last loss was taken for the medium's. */
#define AB_STATE_MEDIUM 1
/* The last ACK found reports fresh. */
#define AB_STATE_FRESH 2
/* The ceiling is in force. */
#define AB_STATE_CEILING 4

/* One socket as sockets.bpf.c tells it. */
struct ab_shown {
	u64 cookie;
	u64 now_us;
	/* When the newest report, or trace (a receiver), left the path; 0: none. */
	u64 received_us;
	u64 answered_us;
	/* What the socket is paced at, bytes per second; all ones: not paced. */
	u64 pacing;
	u64 rate_bps;
	u64 link_kbps;
	u64 depth_bytes;
	u8 local[16];
	u8 remote[16];
	u16 local_port;
	u16 remote_port;
	u32 netns;
	u32 cwnd;
	u32 ssthresh;
	u32 cwnd_clamp;
	u32 srtt_us;
	u32 in_flight;
	u32 resent;
	u32 resent_congestion;
	u32 resent_medium;
	u32 losses_congestion;
	u32 losses_medium;
	u32 losses_taken_back;
	u32 state;
	u32 flows;
	u32 flags;
	char name[16];
};

/* What ioam_source.bpf.c puts in front of TCP. */
struct ab_source_config {
	u16 ioam_namespace;
	/* It has room for so many, 1 to 4; with detail, 1 to 3. */
	u8 nodes;
	/* Nodes are asked for time stamps and buffer occupancy, too. */
	u8 detail;
	/* One segment in so many carries a trace. */
	u32 every;
	/* Bytes in front of the IP header where packets leave: 14 with Ethernet, 0 at a tunnel (TUN). */
	u32 link_bytes;
	/* Also where the kernel has to move the packet to a larger buffer. */
	u32 beyond_headroom;
};

/* One path of a monitor, in the array `ab_paths`, which is mapped into memory (crates/kern/src/bpf/paths.rs). A writer makes
 * `sequence` odd, writes, and makes it even: who reads an odd one, or another one after than before, reads again. 0:
 * nothing yet. All ones: unknown. */
struct ab_path {
	u64 sequence;
	/* When the last trace came. */
	u64 seen_us;
	u64 traces;
	/* All hops together, since the path was first seen. */
	u64 drops;
	u64 losses;
	/* Of the bottleneck, the hop with the least link rate per flow. */
	u64 link_kbps;
	u64 arrival_kbps;
	u64 depth_bytes;
	u64 free_bytes;
	u32 flows;
	u16 ioam_namespace;
	/* 0: no path. */
	u8 hops;
	/* AB_PATH_COMPLETE. */
	u8 flags;
	/* First hop first. */
	u32 nodes[16];
};

/* Every hop told its drops, and none was silent. */
#define AB_PATH_COMPLETE 1

/* What fast_path.bpf.c is told before it is loaded. */
struct ab_fast_config {
	/* The inner interface. */
	u32 inner_ifindex;
	/* At the UE: any inner source is taken, and DNS answers are user space's. */
	u32 ue;
};

/* One path of one session in the kernel's fast path, in the array `ab_fast_slots`, which is mapped into memory
 * (crates/kern/src/bpf/fast_path.rs). User space writes the upper part while the lease is 0; programs count below. */
struct ab_fast_slot {
	/* The programs use it until then, nanoseconds of CLOCK_MONOTONIC. */
	u64 until_ns;
	/* That of the flows it carries; others are user space's. */
	u32 generation;
	/* Datagrams leave by this interface. */
	u32 ifindex;
	/* Their firewall mark. */
	u32 mark;
	/* Sum of the outer IPv4 header's 16-bit words, length and checksum 0. */
	u32 outer_sum;
	/* IPv4 and UDP header, lengths and checksums 0. */
	u8 outer[28];
	/* Largest inner packet, bytes. */
	u32 mtu;
	/* UPF: the session's addresses, the only sources taken. */
	u8 inner_v4[4];
	u8 inner_v6[16];
	/* Datagrams that were lost while they were made. */
	u32 tx_failed;
	/* Datagrams and the bytes of their payload. */
	u64 tx_packets;
	u64 tx_bytes;
	u64 rx_packets;
	u64 rx_bytes;
	/* What had come when the last datagram passed that is user space's: a probe is compared with that. */
	u64 rx_packets_then;
	u64 rx_bytes_then;
};

/* An inner packet's flow, as the packet has it. IPv4 addresses come first, zeros behind. */
struct ab_fast_key {
	u8 src[16];
	u8 dst[16];
	u16 src_port_be;
	u16 dst_port_be;
	u8 protocol;
	u8 version;
	u16 zero;
};

/* What is done with it. */
struct ab_fast_flow {
	u32 slot;
	u32 generation;
};

/* The far end of a slot; the ports as the far end's datagrams have them. */
struct ab_fast_peer {
	u32 remote_be;
	u32 local_be;
	u16 remote_port_be;
	u16 local_port_be;
};

/* What tcp_trace.bpf.c is told before it is loaded; 0: all. */
struct ab_trace_config {
	/* Inode of a network namespace. */
	u32 netns;
	/* Either port of a socket. */
	u32 port;
};

/* One event of tcp_trace.bpf.c, in the ring buffer `ab_events`. */
struct ab_event {
	u64 at_us;
	u64 cookie;
	u32 cwnd;
	u32 ssthresh;
	u32 srtt_us;
	u32 in_flight;
	u32 retransmitted;
	u32 lost;
	u16 local_port;
	u16 remote_port;
	/* enum ab_event_kind; for a change of state, the new state is in `state`. */
	u8 kind;
	u8 state;
	u16 reserved;
};

enum ab_event_kind {
	AB_EVENT_ACK,
	AB_EVENT_RETRANSMIT,
	AB_EVENT_STATE,
};

/* Counters, one array per object and processor, indexed by enum ab_counter. */
enum ab_counter {
	AB_ACKS,
	AB_LOSSES_MEDIUM,
	AB_LOSSES_CONGESTION,
	AB_LOSSES_TAKEN_BACK,
	AB_ACKS_STALE,
	AB_REPORTS_IN,
	AB_REPORTS_OUT,
	AB_REPORTS_BAD,
	AB_TRACES_IN,
	AB_TRACES_OUT,
	AB_TRACES_SKIPPED,
	AB_COUNTERS,
};

/* Initial windows: key of the map `ab_windows`, whose values are segments (u32). */
#define AB_WINDOWS 1024
struct ab_window_key {
	u64 netns; /* SO_NETNS_COOKIE */
	u32 mark;
	u32 reserved;
};

/* What became of connections whose mark has a window: indices of `ab_window_counts`. */
enum ab_window_counter {
	AB_WINDOWS_SET,
	AB_WINDOWS_REFUSED,
	AB_WINDOWS_LEFT,
	AB_WINDOW_COUNTERS,
};

#endif
