"""What the registration of TensorFlowOnSpark's nodes is sent by its nodes, damaged on the way."""

from __future__ import annotations

from hypothesis import given
from mutations import damaged, fuzzed
from served_registration import LENGTH, NODE, message, registration
from unauthenticated import answer


def test_damaged_messages_of_a_node_are_answered_or_refused():
    with registration() as served:
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
