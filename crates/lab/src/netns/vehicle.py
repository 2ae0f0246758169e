"""A vehicle and its ground station: MAVLink 2 over UDP or TCP, made and read by pymavlink.

usage: vehicle.py send|receive TASK    (TASK: JSON, see vehicle.rs)

Writes "ready" when its socket is bound, reads the beginning of the run from standard input (nanoseconds of the wall
clock), and leaves a report: the vehicle a line "time bytes" for each message, over TCP "time bytes acked" with the time at which
the kernel had the ACK of its last byte (0: none came), the station "number time" for each that it read, in nanoseconds, and last
"bad COUNT": what is no message, or has a wrong checksum.
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
SO_TIMESTAMPING = 37
# Software stamps when a byte is acknowledged, named by its place in the stream, without the packet.
STAMP_ACKS = 1 << 9 | 1 << 4 | 1 << 7 | 1 << 11
STAMPED_ACK = 2
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
    own = socket.socket(family, socket.SOCK_STREAM if task["tcp"] else socket.SOCK_DGRAM)
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


def connect(task, own):
    """The station listens, but what is between may still be starting."""
    own.settimeout(10)
    own.connect(tuple(task["to"]))
    own.settimeout(None)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, STAMP_ACKS)


def read_acks(own, acks):
    """Appends what the kernel stamped: one past the last byte acknowledged, and when."""
    while True:
        try:
            _, control, _, _ = own.recvmsg(1, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return
        stamp = place = None
        for level, kind, data in control:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPING:
                seconds, nanos = struct.unpack("@qq", data[:16])
                stamp = seconds * NS + nanos
            elif level in (socket.IPPROTO_IP, socket.IPPROTO_IPV6):
                info, offset = struct.unpack("@II", data[8:16])
                place = offset + 1 if info == STAMPED_ACK else None
        if stamp is not None and place is not None:
            acks.append((place, stamp))


def acked_at(sent, acks):
    """When the last byte of each of these messages (time, bytes) was acknowledged; 0: never."""
    acks = sorted(acks)
    end, at = 0, 0
    for _, size in sent:
        end += size
        while at < len(acks) and acks[at][0] < end:
            at += 1
        yield acks[at][1] if at < len(acks) else 0


def send(task):
    rng = random.Random(task["seed"])
    link = mavlink.MAVLink(None, srcSystem=1, srcComponent=1)
    due = schedule(rng, (task["stop_ns"] - task["start_ns"]) / NS, task["rate_bps"])
    own = open_socket(task)
    if task["tcp"]:
        connect(task, own)
    start, _, until = begin(task)
    sent, acks = [], []
    for at, make in due:
        data = make(at).pack(link)
        link.seq = (link.seq + 1) % 256
        wait = start + int(at * NS) - time.time_ns()
        if wait > 0:
            time.sleep(wait / NS)
        sent.append((time.time_ns(), len(data)))
        if task["tcp"]:
            own.sendall(data)
            read_acks(own, acks)
            continue
        try:
            own.sendto(data, tuple(task["to"]))
        except OSError:
            pass  # What the system does not take is lost.
    if task["tcp"]:
        while time.time_ns() < until and (not acks or max(acks)[0] < sum(size for _, size in sent)):
            time.sleep(0.01)
            read_acks(own, acks)
    with open(task["report"], "w") as report:
        for (at, size), acked in zip(sent, acked_at(sent, acks)):
            report.write(f"{at} {size} {acked}\n" if task["tcp"] else f"{at} {size}\n")


def arrivals(task, own, until):
    """What arrives until then, and when."""
    if task["tcp"]:
        own.settimeout(max((until - time.time_ns()) / NS, 0.001))
        own, _ = own.accept()
    while (left := until - time.time_ns()) > 0:
        own.settimeout(max(left / NS, 0.001))
        try:
            data, control, _, _ = own.recvmsg(2048, 64)
        except TimeoutError:
            return
        if not data:
            return
        now = time.time_ns()
        if control:
            seconds, nanos = struct.unpack("@qq", control[0][2][:16])
            now = seconds * NS + nanos
        yield data, now


def receive(task):
    own = open_socket(task)
    if task["tcp"]:
        own.listen(1)
    else:
        own.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    link = mavlink.MAVLink(None)
    link.robust_parsing = True
    _, _, until = begin(task)
    newest = -1
    bad = 0
    with open(task["report"], "w") as report:
        for data, now in arrivals(task, own, until):
            read = link.parse_buffer(data) or []
            bad += sum(message.get_type() == "BAD_DATA" for message in read)
            for message in read:
                if message.get_type() == "BAD_DATA":
                    continue
                # The sequence number has 8 bits; none is 128 places from the newest.
                step = (message.get_seq() - newest + 128) % 256 - 128
                number = newest + step
                newest = max(newest, number)
                report.write(f"{number} {now}\n")
        report.write(f"bad {bad}\n")


if __name__ == "__main__":
    {"send": send, "receive": receive}[sys.argv[1]](json.loads(sys.argv[2]))
