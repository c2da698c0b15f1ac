"""What somebody without the token of a run may send to its servers."""

import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

BODY = b"\x01" * 4096


def http(head: str, body: bytes = b"") -> bytes:
    return head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body


WRONG = "Authorization: Bearer " + "0" * 64

# The last of each is half a message, whose sender stays.
MESSAGES = {
    "http": [
        http("GET / HTTP/1.1\nHost: a"),
        http("GET /parameters HTTP/1.1\nHost: a"),
        http(f"POST /parameters HTTP/1.1\n{WRONG}\nContent-Length: 24", BODY[:24]),
        http(f"POST /update HTTP/1.1\n{WRONG}\nContent-Length: {len(BODY)}", BODY),
        http(f"POST /update HTTP/1.1\nContent-Length: {10**15}", BODY),
        http(f"POST /update HTTP/1.1\n{WRONG}\nTransfer-Encoding: chunked", b"1000\r\n" + BODY),
        http("POST /update HTTP/1.1\nExpect: 100-continue\nContent-Length: 24"),
        http("POST /update HTTP/1.1\nAuthorization: Bearer \xff\xe9"),
        b"\x00\xff\x00 what is this\r\n\r\n",
        b"A" * 100_000 + b"\r\n",
        b"POST /update HTTP/1.1\r\nContent-Le",
    ],
    "socket": [
        b"g",
        b"0" * 64 + b"g" + b"\x00" * 7 + b"\x18" + BODY[:24],
        b"0" * 64 + b"u" + b"\xff" * 8 + BODY,
        b"\xff" * 100_000,
        b"",
        b"0" * 63,
    ],
}


def approach(address: tuple[str, int], transport: str) -> tuple[list[bytes], socket.socket]:
    """Sends all messages.

    Returns:
        What came back, and the connection with half a message, which is still open.
    """
    *whole, half = MESSAGES[transport]
    answers = [answer(address, message) for message in whole]
    staying = socket.create_connection(address, timeout=5)
    staying.sendall(half)
    return answers, staying


def visit(addresses: Iterable[tuple[str, int]]) -> list[bytes]:
    """Sends all messages of every kind to each address; returns what came back.

    At all addresses at once: some wait for the rest of half a message, and workers make steps.
    """
    addresses = list(addresses)
    with ThreadPoolExecutor(max(len(addresses), 1)) as pool:
        return [answered for told in pool.map(visit_one, addresses) for answered in told]


def visit_one(address: tuple[str, int]) -> list[bytes]:
    """Sends all messages of every kind, one after the other; returns what came back."""
    told = []
    for transport in MESSAGES:
        answers, staying = approach(address, transport)
        told += answers
        staying.close()
    return told


def answer(address: tuple[str, int], message: bytes) -> bytes:
    """What comes back for a message until the other side closes."""
    received = b""
    with socket.create_connection(address, timeout=5) as connection, suppress(ConnectionError):
        connection.sendall(message)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        while data := connection.recv(1 << 16):
            received += data
    return received


def tells_nothing(received: bytes) -> bool:
    """Whether an answer is a bare refusal, or none at all."""
    head, _, rest = received.partition(b"\r\n")
    refused = head in (b"", *(b"HTTP/1.1 %d " % code for code in range(400, 418)))
    return refused and rest in (b"", b"Content-Length: 0\r\nConnection: close\r\n\r\n")
