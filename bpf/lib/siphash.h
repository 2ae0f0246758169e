/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * SipHash-2-4 (Aumasson and Bernstein, 2012): a keyed hash for short messages, here of whole 64-bit words.
 */
#ifndef ANABRANCH_SIPHASH_H
#define ANABRANCH_SIPHASH_H

#include "abi.h"

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define AB_LE64(word) (word)
#else
#define AB_LE64(word) __builtin_bswap64(word)
#endif

AB_INLINE u64 ab_rotated(u64 v, u32 bits)
{
	return v << bits | v >> (64 - bits);
}

AB_INLINE void ab_sip_round(u64 *v)
{
	v[0] += v[1]; v[1] = ab_rotated(v[1], 13) ^ v[0]; v[0] = ab_rotated(v[0], 32);
	v[2] += v[3]; v[3] = ab_rotated(v[3], 16) ^ v[2];
	v[0] += v[3]; v[3] = ab_rotated(v[3], 21) ^ v[0];
	v[2] += v[1]; v[1] = ab_rotated(v[1], 17) ^ v[2]; v[2] = ab_rotated(v[2], 32);
}

/* Hash of `count` words, in memory in wire order; the words of the key are numbers. */
AB_INLINE u64 ab_siphash(u64 k0, u64 k1, const u64 *words, u32 count)
{
	u64 v[4] = { k0 ^ 0x736f6d6570736575ULL, k1 ^ 0x646f72616e646f6dULL, k0 ^ 0x6c7967656e657261ULL,
		     k1 ^ 0x7465646279746573ULL };
	u64 word;
	u32 i;

	for (i = 0; i <= count; i++) {
		word = i < count ? AB_LE64(words[i]) : (u64)(count * 8) << 56;
		v[3] ^= word;
		ab_sip_round(v);
		ab_sip_round(v);
		v[0] ^= word;
	}
	v[2] ^= 0xff;
	for (i = 0; i < 4; i++)
		ab_sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
