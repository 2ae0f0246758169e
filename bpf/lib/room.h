/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Whether a packet has room in front of it. If not, a program that makes room has the kernel move it to a larger buffer, and
 * the kernel does not book the size of one that a socket owns. On the wire that harms nobody. A TCP receiver on the same
 * machine gets this very packet; when it joins several, it reckons that they hold more than they occupy, and its ratio of
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
