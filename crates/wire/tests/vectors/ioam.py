#!/usr/bin/env python3
"""Writes ioam.txt beside this file: IPv6 packets with IOAM options made by scapy, and what tshark reads in
them. tests/ioam_vectors.rs holds anabranch-wire to both. Needs scapy (2.5 or later) and tshark (4.0 or later):

    python3 crates/wire/tests/vectors/ioam.py

Ends with an error if tshark warns about any packet.
"""
import pathlib
import struct
import subprocess
import tempfile

from scapy.all import (IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop, HBHOptUnknown, PadN, Raw, TCP, wrpcap)

FIELDS = ["ns", "nodelen", "flag.o", "remlen", "type", "node.hlim", "node.id", "node.iif", "node.eif",
          "node.tss", "node.tsf", "node.trdelay", "node.nsdata", "node.qdepth", "node.csum", "node.id_wide",
          "node.iif_wide", "node.eif_wide", "node.nsdata_wide", "node.bufoccup", "node.oss.len",
          "node.oss.scid", "node.oss.data"]


def trace(ns, bits, nodes=b"", free=0, overflow=False):
    """Option data of a pre-allocated trace: `free` words, then the nodes, newest first."""
    wide = sum(1 for b in bits if b in (8, 9, 10))
    words = sum(1 for b in bits if b != 22) + wide
    kind = sum(1 << (31 - b) for b in bits)
    head = struct.pack("!HHI", ns, words << 11 | overflow << 10 | free, kind)
    return HBHOptUnknown(otype=0x31, optdata=struct.pack("!BB", 0, 0) + head + bytes(4 * free) + nodes)


def snapshot(arrival, link, capacity, flows, mcs, drops, losses):
    """The state snapshot of anabranch, see crates/wire/src/ioam/snapshot.rs."""
    data = struct.pack("!IIIHBBII", arrival, link, capacity, flows, mcs, 0, drops, losses)
    return struct.pack("!I", len(data) // 4 << 24 | 0x414201) + data


def edge(ns, kind, data):
    return HBHOptUnknown(otype=0x11, optdata=struct.pack("!BBHH", 0, 3, ns, kind) + data)


def tcp_state(cwnd, ssthresh, srtt_us):
    return HBHOptUnknown(otype=0x1E, optdata=struct.pack("!HIIII", 0x4142, 1 << 31, cwnd, ssthresh, srtt_us))


def packet(hop=None, dest=None):
    p = IPv6(src="fd00:1::1", dst="fd00:2::2", hlim=62)
    # An empty PadN brings the first option to a multiple of four; scapy pads the end.
    if hop:
        p /= IPv6ExtHdrHopByHop(options=[PadN(optdata=b"")] + hop)
    if dest:
        p /= IPv6ExtHdrDestOpt(options=[PadN(optdata=b"")] + dest)
    return p / TCP(sport=40000, dport=443, seq=1, ack=2, flags="A", window=512) / Raw(b"payload")


def hop(limit, node):
    return struct.pack("!I", limit << 24 | node)


def w(*values):
    return struct.pack("!%dI" % len(values), *values)


# Notes are fine: tshark 4.0 does not know option 0x11 and says so.
WARNING = "_ws.expert.severity >= 0x600000"
LINUX = (0, 1, 2, 3, 6)
VECTORS = {
    "empty": packet([trace(123, LINUX, free=15)]),
    "two-of-three": packet([trace(123, LINUX, hop(62, 2222) + w(201 << 16 | 202, 1700000000, 654321, 4096)
                                  + hop(63, 0xFFFFFF) + w(0xFFFF << 16 | 7, 1700000000, 600000, 0), free=5)]),
    "overflow": packet([trace(123, LINUX, hop(63, 1) + w(1 << 16 | 2, 3, 4, 5), free=2, overflow=True)]),
    "snapshots": packet([trace(0x4142, (0, 6, 22),
                               hop(61, 9) + w(70_000) + snapshot(19_500, 20_000, 150_000, 2, 0xFF, 17, 1234)
                               + hop(62, 8) + w(0xFFFFFFFF) + w(2 << 24 | 777) + b"schema-8"
                               + hop(63, 7) + w(12) + w(0x00FFFFFF), free=4)]),
    "everything": packet([trace(1, range(12),
                                hop(60, 0xABCDEF) + w(1 << 16 | 2, 3, 4, 0x80000005, 6, 7, 8)
                                + struct.pack("!QIIQI", 60 << 56 | 0x123456789ABCDE, 10, 11, 1 << 60, 12))]),
    "edge": packet(dest=[edge(123, 0x4000, w(77))]),
    "edge-with-tcp": packet(dest=[edge(123, 0xB000, struct.pack("!QII", 1 << 40, 1700000000, 5)),
                                  tcp_state(42, 0xFFFFFFFF, 20_500)]),
    "both": packet([trace(123, (0, 6, 22), free=20)],
                   [edge(123, 0x4000, w(1)), tcp_state(10, 7, 999)]),
}


def dissect(name, raw):
    """tshark's reading, in its own field names; fails on any warning."""
    with tempfile.NamedTemporaryFile(suffix=".pcap") as f:
        wrpcap(f.name, [raw], linktype=101)
        expert = subprocess.run(["tshark", "-r", f.name, "-Y", WARNING, "-V"], check=True,
                                capture_output=True, text=True).stdout
        args = [a for x in FIELDS for a in ("-e", "ipv6.opt.ioam.trace." + x)]
        values = subprocess.run(["tshark", "-r", f.name, "-T", "fields", "-E", "separator=;", *args], check=True,
                                capture_output=True, text=True).stdout.rstrip("\n").split(";")
    assert not expert, f"tshark warns about {name}:\n{expert}"
    return [(x, v) for x, v in zip(FIELDS, values) if v]


lines = ["# Written by ioam.py: packets by scapy, fields by tshark."]
for name, p in VECTORS.items():
    raw = bytes(p)
    lines.append(f"vector {name} {raw.hex()}")
    lines += [f"tshark {x} {v}" for x, v in dissect(name, raw)]
pathlib.Path(__file__).with_suffix(".txt").write_text("\n".join(lines) + "\n")
