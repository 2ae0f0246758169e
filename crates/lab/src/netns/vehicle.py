"""A vehicle and its ground station: MAVLink 2 over UDP, made and read by pymavlink.

usage: vehicle.py send|receive TASK    (TASK: JSON, see vehicle.rs)

Writes "ready" when its socket is bound, reads the beginning of the run from standard input (nanoseconds of the wall
clock), and leaves a report: the vehicle a line "time bytes" for each message, the station "number time" for each that
it read, in nanoseconds, and last "bad COUNT": what is no message, or has a wrong checksum.
"""

import json
import math
import random
import socket
import struct
import sys
import time

from pymavlink.dialects.v20 import common as mavlink

SO_TIMESTAMPNS = 35
NS = 1_000_000_000


def messages(rng):
    """The messages of a multicopter in flight: how often a second, and how one is made at a time (seconds)."""
    ms = lambda t: int(t * 1e3) % (1 << 32)
    small = lambda: rng.uniform(-0.2, 0.2)
    degrees = lambda around: int((around + rng.uniform(-1e-4, 1e-4)) * 1e7)
    return [
        (1, lambda t: mavlink.MAVLink_heartbeat_message(2, 3, 209, 4, 4, 3)),
        (2, lambda t: mavlink.MAVLink_sys_status_message(0x3F, 0x3F, 0x3F, 300, 22200, 1500, 80, 0, 0, 0, 0, 0, 0)),
        (10, lambda t: mavlink.MAVLink_vfr_hud_message(12.0, 11.5 + small(), int(t * 7) % 360, 45, 30.0, small())),
        (10, lambda t: mavlink.MAVLink_global_position_int_message(
            ms(t), degrees(37.99), degrees(23.73), 230_000, 30_000, 100, 80, 0, int(t * 700) % 36000)),
        (50, lambda t: mavlink.MAVLink_attitude_message(
            ms(t), 0.2 * math.sin(t), 0.1 * math.cos(t), small(), small(), small(), small())),
    ]


def schedule(rng, seconds, rate_bps):
    """Times (seconds) and messages, such that about `rate_bps` bits of them go each second."""
    kinds = messages(rng)
    packer = mavlink.MAVLink(None)
    natural_bps = sum(8 * hz * len(make(0.0).pack(packer)) for hz, make in kinds)
    faster = rate_bps / natural_bps
    due = []
    for hz, make in kinds:
        # Each kind has a place in its period of its own, as the streams of an autopilot have.
        period = 1 / (hz * faster)
        first = rng.uniform(0, period)
        due += [(first + k * period, make) for k in range(max(0, math.ceil((seconds - first) / period)))]
    return sorted(due, key=lambda one: one[0])


def open_socket(task):
    address = task["bind"]
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    own = socket.socket(family, socket.SOCK_DGRAM)
    if task.get("mark") is not None:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, task["mark"])
    if task.get("interface") is not None:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, task["interface"].encode() + b"\0")
    if task.get("dscp") is not None:
        level, option = (socket.IPPROTO_IPV6, socket.IPV6_TCLASS) if ":" in address[0] else (socket.IPPROTO_IP, socket.IP_TOS)
        own.setsockopt(level, option, task["dscp"] << 2)
    own.bind(tuple(address))
    return own


def begin(task):
    print("ready", flush=True)
    zero = int(sys.stdin.readline())
    return [zero + task[when] for when in ("start_ns", "stop_ns", "until_ns")]


def send(task):
    rng = random.Random(task["seed"])
    link = mavlink.MAVLink(None, srcSystem=1, srcComponent=1)
    due = schedule(rng, (task["stop_ns"] - task["start_ns"]) / NS, task["rate_bps"])
    own = open_socket(task)
    start, _, _ = begin(task)
    with open(task["report"], "w") as report:
        for at, make in due:
            data = make(at).pack(link)
            link.seq = (link.seq + 1) % 256
            wait = start + int(at * NS) - time.time_ns()
            if wait > 0:
                time.sleep(wait / NS)
            now = time.time_ns()
            try:
                own.sendto(data, tuple(task["to"]))
            except OSError:
                pass  # What the system does not take is lost.
            report.write(f"{now} {len(data)}\n")


def receive(task):
    own = open_socket(task)
    own.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    link = mavlink.MAVLink(None)
    link.robust_parsing = True
    _, _, until = begin(task)
    newest = -1
    bad = 0
    with open(task["report"], "w") as report:
        while (left := until - time.time_ns()) > 0:
            own.settimeout(max(left / NS, 0.001))
            try:
                data, control, _, _ = own.recvmsg(2048, 64)
            except TimeoutError:
                break
            seconds, nanos = struct.unpack("@qq", control[0][2][:16])
            read = link.parse_buffer(data) or []
            bad += sum(message.get_type() == "BAD_DATA" for message in read)
            for message in read:
                if message.get_type() == "BAD_DATA":
                    continue
                # The sequence number has 8 bits; none is 128 places from the newest.
                step = (message.get_seq() - newest + 128) % 256 - 128
                number = newest + step
                newest = max(newest, number)
                report.write(f"{number} {seconds * NS + nanos}\n")
        report.write(f"bad {bad}\n")


if __name__ == "__main__":
    {"send": send, "receive": receive}[sys.argv[1]](json.loads(sys.argv[2]))
