/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The kernel types used by our programs, with only the members used. preserve_access_index makes the compiler record names instead
 * of offsets; the loader inserts the offsets of the running kernel (CO-RE). The programs therefore build on any machine, for any
 * kernel with BTF, without a vmlinux.h of the build machine.
 */
#ifndef ANABRANCH_KERNEL_H
#define ANABRANCH_KERNEL_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed int s32;
typedef _Bool bool;
/* Type names used by libbpf's headers. */
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;
typedef s32 __s32;
typedef signed long long __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u64 __be64;
typedef u32 __wsum;

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_LRU_HASH 9
#define BPF_MAP_TYPE_SK_STORAGE 24
#define BPF_MAP_TYPE_RINGBUF 27
#define BPF_F_NO_PREALLOC 1
#define BPF_F_MMAPABLE 1024
#define BPF_SK_STORAGE_GET_F_CREATE 1

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	u32 inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	u8 bytes[16];
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	u16 skc_num;
	__be16 skc_dport;
	u16 skc_family;
	u8 skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct sock {
	struct sock_common __sk_common;
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
	u32 sk_pacing_status;
};

struct inet_sock {
	struct sock sk;
};

struct tcp_congestion_ops;

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	const struct tcp_congestion_ops *icsk_ca_ops;
	u8 icsk_ca_state : 5;
	u64 icsk_ca_priv[13];
};

struct minmax_sample {
	u32 t;
	u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_rack {
	u32 rtt_us;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 mss_cache;
	u32 mtu_info;
	u32 snd_cwnd;
	u32 snd_cwnd_clamp;
	u32 snd_ssthresh;
	u32 prior_ssthresh;
	u32 srtt_us;
	u32 packets_out;
	u32 max_packets_out;
	u32 sacked_out;
	u32 lost_out;
	u32 retrans_out;
	u32 prr_out;
	u32 prior_cwnd;
	u32 total_retrans;
	u32 delivered;
	u32 lost;
	u64 tcp_mstamp;
	u64 delivered_mstamp;
	u64 first_tx_mstamp;
	struct tcp_rack rack;
	struct minmax rtt_min;
	u8 is_cwnd_limited : 1;
};

struct ack_sample {
	u32 pkts_acked;
	s32 rtt_us;
	u32 in_flight;
};

struct rate_sample {
	s32 delivered;
	long rtt_us;
	int losses;
	u32 acked_sacked;
};

/* State of the kernel's CUBIC, shared with our controllers. */
struct bictcp {
	u32 last_max_cwnd;
	u32 epoch_start;
};

enum tcp_ca_event { CA_EVENT_TX_START };

struct tcp_congestion_ops {
	u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, u32 ack, u32 acked);
	void (*set_state)(struct sock *sk, u8 new_state);
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event ev);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	void (*cong_control)(struct sock *sk, u32 ack, int flag, const struct rate_sample *rs);
	u32 (*undo_cwnd)(struct sock *sk);
	char name[16];
	u32 flags;
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
};

struct sk_buff {
	struct sock *sk;
	unsigned char *head;
	unsigned char *data;
	/* Offset from `head`. */
	u16 network_header;
	u16 transport_header;
};

struct bpf_sock_ops_kern {
	struct sk_buff *skb;
};

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct file;
struct task_struct;

struct socket {
	struct sock *sk;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	u32 fd;
	struct file *file;
};

#pragma clang attribute pop

/* The kernel's own type of a program's context. */
extern void *bpf_cast_to_kern_ctx(void *context) __attribute__((section(".ksyms")));

/* Wire formats of headers. */
#define IPV6_LEN 40
#define TCP_LEN 20
#define IPPROTO_TCP 6

/* Interfaces to user space, identical on every kernel. */
struct bpf_sock {
	u32 bound_dev_if;
	u32 family;
	u32 type;
	u32 protocol;
	u32 mark;
};

struct bpf_sock_ops {
	u32 op;
	u32 args[4];
	u32 family;
	u32 remote_ip4;
	u32 local_ip4;
	u32 remote_ip6[4];
	u32 local_ip6[4];
	u32 remote_port;
	u32 local_port;
	u32 is_fullsock;
	u32 snd_cwnd;
	u32 srtt_us;
	u32 bpf_sock_ops_cb_flags;
	u32 state;
	u32 rtt_min;
	u32 snd_ssthresh;
	u32 rcv_nxt;
	u32 snd_nxt;
	u32 snd_una;
	u32 mss_cache;
	u32 ecn_flags;
	u32 rate_delivered;
	u32 rate_interval_us;
	u32 packets_out;
	u32 retrans_out;
	u32 total_retrans;
	u32 segs_in;
	u32 data_segs_in;
	u32 segs_out;
	u32 data_segs_out;
	u32 lost_out;
	u32 sacked_out;
	u32 sk_txhash;
	u64 bytes_received;
	u64 bytes_acked;
	union {
		struct bpf_sock *sk;
		u64 sk_pad;
	};
	union {
		void *skb_data;
		u64 skb_data_pad;
	};
	union {
		void *skb_data_end;
		u64 skb_data_end_pad;
	};
	u32 skb_len;
	u32 skb_tcp_flags;
	u64 skb_hwtstamp;
};

enum {
	BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB = 4,
	BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB = 5,
	BPF_SOCK_OPS_PARSE_HDR_OPT_CB = 13,
	BPF_SOCK_OPS_HDR_OPT_LEN_CB = 14,
	BPF_SOCK_OPS_WRITE_HDR_OPT_CB = 15,
};

#define BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG 32
#define BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG 64

struct __sk_buff {
	u32 len;
	u32 pkt_type;
	u32 mark;
	u32 queue_mapping;
	u32 protocol;
	u32 vlan_present;
	u32 vlan_tci;
	u32 vlan_proto;
	u32 priority;
	u32 ingress_ifindex;
	u32 ifindex;
	u32 tc_index;
	u32 cb[5];
	u32 hash;
	u32 tc_classid;
	u32 data;
	u32 data_end;
	u32 napi_id;
	u32 family;
	u32 remote_ip4;
	u32 local_ip4;
	u32 remote_ip6[4];
	u32 local_ip6[4];
	u32 remote_port;
	u32 local_port;
	u32 data_meta;
	union {
		void *flow_keys;
		u64 flow_keys_pad;
	};
	u64 tstamp;
	u32 wire_len;
	u32 gso_segs;
	union {
		struct bpf_sock *sk;
		u64 sk_pad;
	};
	u32 gso_size;
};

#endif
