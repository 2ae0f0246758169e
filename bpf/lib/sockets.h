/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * State of each socket: written by the feedback program, read by the controllers and `cc show`.
 */
#ifndef ANABRANCH_SOCKETS_H
#define ANABRANCH_SOCKETS_H

#include "abi.h"
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct ab_socket);
} ab_sockets SEC(".maps");

#endif
