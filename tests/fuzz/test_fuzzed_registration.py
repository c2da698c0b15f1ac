"""What the registration of TensorFlowOnSpark's nodes is sent, by anybody and by its nodes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from mutations import damaged, fuzzed
from served_strangers import (
    HELLO_SECONDS,
    TOKEN,
    Served,
    allocates_little,
    crowd,
    ends_waiting,
    learns_nothing,
)
from unauthenticated import answer

from pipelines.engines.tensorflowonspark.registration import RegistrationServer

NODE = {"executor_id": 1, "host": "a", "port": 7, "addr": ("a", 8), "authkey": b"\x00\xff'\""}
LENGTH = struct.Struct("!I")


def message(kind: str, data: object = None) -> bytes:
    """As nodes send it: a length, and plain values."""
    text = repr((kind, data)).encode()
    return LENGTH.pack(len(text)) + text


@pytest.fixture
def served() -> Iterator[Served]:
    with RegistrationServer(10**9, "127.0.0.1", "127.0.0.1", TOKEN) as server:
        address, token = server.start(), TOKEN.encode()

        def check() -> None:
            assert server.reservations.get() == []
            asked = token + message("REG", NODE) + message("QINFO")
            assert answer(address, asked).endswith(repr([NODE]).encode())

        yield Served(address, token, token + message("REG", NODE) + message("QINFO"), check)


def test_strangers_learn_and_change_nothing(served):
    learns_nothing(served)
    served.check()


def test_what_strangers_announce_is_given_no_memory(served):
    allocates_little(served)
    served.check()


def test_strangers_that_say_too_little_are_closed_in_time(served, monkeypatch):
    monkeypatch.setattr(
        "pipelines.training.control.authenticated_server.HELLO_SECONDS", HELLO_SECONDS
    )
    ends_waiting(served)
    served.check()


def test_a_crowd_of_silent_strangers_keeps_no_node_out(served):
    with crowd(served):
        served.check()


def test_damaged_messages_of_a_node_are_answered_or_refused(served):
    token = served.token

    @fuzzed
    @given(damaged(message("QUERY") + message("QINFO") + message("QUERY", [NODE] * 9)))
    def ask(content: bytes) -> None:
        said = answer(served.address, token + content)
        while said:
            (size,), said = LENGTH.unpack(said[: LENGTH.size]), said[LENGTH.size :]
            assert said[:size] in (b"False", b"[]")
            said = said[size:]

    ask()
    served.check()
