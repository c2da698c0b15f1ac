"""A bad cable between a host and the bridge: it loses frames, or takes its time with them.

The kernel's own way (`netem`) is a module that many lack. So a process passes the frames on, in the
network namespace of the bridge. It is started as a script.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import random
import select
import socket
import struct
import sys
import time

ALL_PROTOCOLS = 0x0003
OUTGOING = 4
SIOCETHTOOL = 0x8946
SEND_CHECKSUMS, SEGMENTATION = 0x17, 0x1F
"""`ETHTOOL_STXCSUM` and `ETHTOOL_STSO`: a card that can do neither is given whole frames alone."""


def have_whole_frames(card: str) -> None:
    """Has the kernel cut what it sends at a card into frames, with checksums in them."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for what in (SEND_CHECKSUMS, SEGMENTATION):
            value = ctypes.create_string_buffer(struct.pack("II", what, 0))
            request = struct.pack("16sP", card.encode(), ctypes.addressof(value))
            fcntl.ioctl(any_socket, SIOCETHTOOL, request)


def relay(cards: tuple[str, str], loss: float, delay: float) -> None:
    """Passes frames on between two cards, for ever.

    Args:
        loss: Share of the frames that are not.
        delay: Seconds that each one takes.
    """
    ends = tuple(map(_opened, cards))
    ways = dict(zip(ends, reversed(ends), strict=True))
    due: list[tuple[float, int, socket.socket, bytes]] = []
    count, drawn = 0, random.Random(0)
    while True:
        wait = max(due[0][0] - time.monotonic(), 0) if due else None
        readable, _, _ = select.select(ends, [], [], wait)
        for end in readable:
            frame, (*_, kind, _, _) = end.recvfrom(1 << 16)
            if kind != OUTGOING and drawn.random() >= loss:
                count += 1
                heapq.heappush(due, (time.monotonic() + delay, count, ways[end], frame))
        while due and due[0][0] <= time.monotonic():
            *_, end, frame = heapq.heappop(due)
            end.send(frame)


def _opened(card: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    made.bind((card, 0))
    return made


def main() -> None:
    """Arguments: a card; or two, the share of frames that is lost, and the seconds of each."""
    if len(sys.argv) == 2:
        have_whole_frames(sys.argv[1])
        return
    first, second, loss, delay = sys.argv[1:]
    print("up", flush=True)
    relay((first, second), float(loss), float(delay))


if __name__ == "__main__":
    main()
