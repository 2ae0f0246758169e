/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Checks whether a packet has headroom. If it has not, a program that needs some makes the kernel move the packet to a larger
 * buffer, and the kernel does not account for the size of a buffer owned by a socket. This is harmless on the wire. But a TCP
 * receiver on the same machine gets this very packet; when it merges several, it calculates more data than memory, and its ratio of
 * the two overflows to 0 (docs/int-cc.md, Limits).
 */
#ifndef ANABRANCH_ROOM_H
#define ANABRANCH_ROOM_H

#include "abi.h"

AB_INLINE bool ab_has_room(struct __sk_buff *skb, u32 len)
{
	const struct sk_buff *packet = bpf_cast_to_kern_ctx(skb);

	return !packet->sk || (u64)packet->data - (u64)packet->head >= len;
}

#endif
