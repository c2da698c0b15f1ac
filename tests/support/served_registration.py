"""The registration of TensorFlowOnSpark's nodes, as it is served to strangers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from served_strangers import TOKEN, Served
from unauthenticated import answer

from pipelines.engines.tensorflowonspark.nodes import RegistrationServer

NODE = {"executor_id": 1, "host": "a", "port": 7, "addr": ("a", 8), "authkey": b"\x00\xff'\""}
LENGTH = struct.Struct("!I")


def message(kind: str, data: object = None) -> bytes:
    """As nodes send it: a length, and plain values."""
    text = repr((kind, data)).encode()
    return LENGTH.pack(len(text)) + text


@contextmanager
def registration() -> Iterator[Served]:
    """Serves it to as many nodes as never come."""
    with RegistrationServer(10**9, "127.0.0.1", "127.0.0.1", TOKEN) as server:
        address, token = server.start(), TOKEN.encode()

        def check() -> None:
            assert server.reservations.get() == []
            asked = token + message("REG", NODE) + message("QINFO")
            assert answer(address, asked).endswith(repr([NODE]).encode())

        yield Served(address, token, token + message("REG", NODE) + message("QINFO"), check)
