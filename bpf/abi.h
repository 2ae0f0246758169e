/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The interface between the programs in this directory and user space (the modules in crates/kern/src/bpf write and read the
 * same structures, and a test compares their sizes).
 *
 * Numbers are in host byte order unless the name ends in _be. Times are microseconds of CLOCK_MONOTONIC, the clock of the
 * kernel's tcp_mstamp.
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

/* TCP option of the receiver's reports; layout in crates/wire/src/ioam/feedback.rs. */
#define AB_OPTION_KIND 0x72
#define AB_OPTION_LEN 16
#define AB_OPTION_SHORT_LEN 8
/* With a configured key, the option ends with a tag of this many bytes, and has another version. */
#define AB_TAG_LEN 8
#define AB_VERSION 0x40
#define AB_VERSION_TAGGED 0x80
#define AB_VERSION_MASK 0xc0

/* Option that indicates a trace in the packet; inserted by the source in place of two NOPs of the kernel.
 * TCP_MARK_KIND in crates/wire/src/ioam/feedback.rs. */
#define AB_MARK_KIND 0x73
#define AB_MARK_LEN 2

/* Minimum interval between traces of a flow: no law benefits from more, and each has a cost.
 * TELEMETRY_INTERVAL_US in crates/cc/src/int/view.rs. */
#define AB_INTERVAL_US 1000ULL

/* Our opaque state snapshot: crates/wire/src/ioam/snapshot.rs. */
#define AB_SCHEMA 0x414201
#define AB_SCHEMA_LEN 24

/* Constants set before a controller is loaded; documented in crates/cc/src/int/mod.rs. */
struct ab_config {
	u64 ceiling_bps;
	u32 increment;
	u32 growth_cap;
	u32 stale_rtts;
	u32 reserved;
};

/* Constants of the feedback program, set before it is loaded. */
struct ab_feedback_config {
	/* Key of reports; all zero: no tag. */
	u64 k0;
	u64 k1;
	/* Number of routers on the path that are known to have no dropping queue. */
	u32 known_routers;
	u32 reserved;
};

/* A flow's knowledge of its path; documented in crates/cc/src/int/view.rs. All ones: unknown. */
struct ab_view {
	u64 received_us;
	u64 rates_us;
	u64 acked_us;
	u64 counter_moved_us;
	u64 dropped_us;
	u64 counter_confirmed_us;
	u64 newest_us;
	u64 provisional_us;
	u64 min_rtt_ends_us;
	u64 round_ends_us;
	u64 link_kbps;
	u64 arrival_kbps;
	u64 depth_bytes;
	u64 free_bytes;
	u32 flows;
	u32 drops;
	u32 losses;
	u32 flags;
	u32 min_rtt_us[2];
	u32 round_min_rtt_us[2];
	u32 peak_bytes[2];
	u32 round_start_totals[2];
	u32 round_totals[2];
};

/* State of one socket: value of the map `ab_sockets` (BPF_MAP_TYPE_SK_STORAGE). A version that replaces another one shares the
 * sockets' state if the size is the same: a change of the meaning of a field must also change the size. */
struct ab_socket {
	struct ab_view view;
	/* Report to the sender of data: the option to send next. */
	u8 answer[AB_OPTION_LEN];
	u64 report_us;
	/* Number of packets on which it remains to be sent; 0: no pending report. */
	u32 left;
	/* A late report has revoked the classification of the last loss. */
	u32 late;
	/* int_cubic_l1, int_cubic_l2: window kept after medium losses. */
	u32 kept_cwnd;
	/* int_rate: segments delivered in this recovery; int_cubic_ss, _l2: carry-over in 1/1024 segments to add or to remove. */
	u32 carried;
	/* int_rate: pacing rate (0: CUBIC is active), and time of its next update. */
	u64 rate_bps;
	u64 next_us;
	/* int_rate: bounding window at that rate, segments. */
	u64 window;
	/* int_rate: minimum smoothed RTT since pacing began; 0: none. */
	u64 min_srtt_us;
	/* Segments retransmitted after losses classified as congestion and as medium losses, up to the last loss. */
	u32 resent_congestion;
	u32 resent_medium;
	/* The socket's total_retrans at the classification of the last loss. */
	u32 resent_before;
	/* Numbers of classified losses. */
	u32 losses_congestion;
	u32 losses_medium;
	u32 losses_taken_back;
	/* AB_STATE_*. */
	u32 state;
	/* int_rate: a queue without telemetry dropped; the window has to carry the rate before the flow is paced. */
	u32 window_must_sustain_rate;
};

/* The last loss was classified as a medium loss. */
#define AB_STATE_MEDIUM 1
/* Reports were fresh at the last ACK. */
#define AB_STATE_FRESH 2
/* The ceiling is in force. */
#define AB_STATE_CEILING 4

/* One socket as reported by sockets.bpf.c. */
struct ab_shown {
	u64 cookie;
	u64 now_us;
	/* When the newest report (at a receiver: trace) left the path; 0: none. */
	u64 received_us;
	u64 report_us;
	/* Pacing rate of the socket, bytes per second; all ones: not paced. */
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

/* Constants of ioam_source.bpf.c. */
struct ab_source_config {
	u16 ioam_namespace;
	/* Number of nodes for which a trace has room, 1 to 4; with detail, 1 to 3. */
	u8 nodes;
	/* Also requests time stamps and buffer occupancy. */
	u8 detail;
	/* One segment in this number carries a trace. */
	u32 every;
	/* Size of the header in front of the IP header at egress: 14 with Ethernet, 0 on a tunnel (TUN). */
	u32 link_bytes;
	/* Inserts traces even if the kernel must move the packet to a larger buffer. */
	u32 beyond_headroom;
};

/* One path of a monitor, in the array `ab_paths`, which is mapped into memory (crates/kern/src/bpf/paths.rs). A writer makes
 * `sequence` odd, writes, and makes it even. A reader that finds an odd value, or different values before and after, retries.
 * 0: unused. All ones in a field: unknown. */
struct ab_path {
	u64 sequence;
	/* Time of the last trace. */
	u64 seen_us;
	u64 traces;
	/* Sums over all hops since the path was first seen. */
	u64 drops;
	u64 losses;
	/* State of the bottleneck, the hop with the smallest link rate per flow. */
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

/* Every hop reported its drops, and no hop is without telemetry. */
#define AB_PATH_COMPLETE 1

/* Constants of fast_path.bpf.c, set before it is loaded. */
struct ab_fast_config {
	/* The inner interface. */
	u32 inner_ifindex;
	/* At the UE: any inner source is accepted, and DNS answers go to user space. */
	u32 ue;
};

/* One path of one session in the kernel fast path, in the array `ab_fast_slots`, which is mapped into memory
 * (crates/kern/src/bpf/fast_path.rs). User space writes the upper part while the lease is 0; programs count in the lower part. */
struct ab_fast_slot {
	/* End of the lease, nanoseconds of CLOCK_MONOTONIC. */
	u64 until_ns;
	/* Generation of the flows it carries; flows of other generations go to user space. */
	u32 generation;
	/* Interface for its datagrams. */
	u32 ifindex;
	/* Firewall mark of its datagrams. */
	u32 mark;
	/* Sum of the 16-bit words of the outer IPv4 header with length and checksum 0. */
	u32 outer_sum;
	/* IPv4 and UDP header with lengths and checksums 0. */
	u8 outer[28];
	/* Maximum size of an inner packet, bytes. */
	u32 mtu;
	/* UPF: the session's addresses, the only accepted sources. */
	u8 inner_v4[4];
	u8 inner_v6[16];
	/* Datagrams lost during encapsulation. */
	u32 tx_failed;
	/* Datagrams, and the bytes of their payload. */
	u64 tx_packets;
	u64 tx_bytes;
	u64 rx_packets;
	u64 rx_bytes;
	/* Received datagrams and bytes when the last datagram for user space passed; compared with the counters of a probe. */
	u64 rx_packets_then;
	u64 rx_bytes_then;
};

/* Flow of an inner packet, in the direction of the packet. IPv4 addresses are padded with zeros at the end. */
struct ab_fast_key {
	u8 src[16];
	u8 dst[16];
	u16 src_port_be;
	u16 dst_port_be;
	u8 protocol;
	u8 version;
	u16 zero;
};

/* Slot of a flow. */
struct ab_fast_flow {
	u32 slot;
	u32 generation;
};

/* Far end of a slot; ports in the direction of the far end's datagrams. */
struct ab_fast_peer {
	u32 remote_be;
	u32 local_be;
	u16 remote_port_be;
	u16 local_port_be;
};

/* Constants of tcp_trace.bpf.c, set before it is loaded; 0: all. */
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
	/* enum ab_event_kind; for AB_EVENT_STATE, the new state is in `state`. */
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

/* Results for connections whose mark has a window: indices of `ab_window_counts`. */
enum ab_window_counter {
	AB_WINDOWS_SET,
	AB_WINDOWS_REFUSED,
	AB_WINDOWS_LEFT,
	AB_WINDOW_COUNTERS,
};

#endif
