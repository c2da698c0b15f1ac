"""Networks that work badly, between a host of :mod:`hosts` and the bridge."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from hosts import Host, in_network, port_of

LOSS, DELAY_SECONDS = 0.05, 0.1
RATE = "rate 1mbit burst 16kb latency 2s"
WIRE = Path(__file__).with_name("wire.py")
SECONDS = 60.0


def lossy(host: Host) -> AbstractContextManager[None]:
    """5 % of the frames are lost, each way."""
    return _bad_wire(host, LOSS, 0.0)


def delayed(host: Host) -> AbstractContextManager[None]:
    """What is sent arrives after 100 ms, each way."""
    return _bad_wire(host, 0.0, DELAY_SECONDS)


def slow(host: Host) -> AbstractContextManager[None]:
    """1 Mbit/s, each way."""
    return limited(host, RATE)


@contextmanager
def limited(host: Host, rate: str) -> Iterator[None]:
    """A token bucket, each way.

    Args:
        host: Whose link it is.
        rate: The arguments of `tc-tbf`.
    """
    ends = ((host.switch, port_of(host.number)), (host.init, "eth0"))
    for process, card in ends:
        _enter(process, ["tc", "qdisc", "add", "dev", card, "root", "tbf", *rate.split()])
    try:
        yield
    finally:
        for process, card in ends:
            _enter(process, ["tc", "qdisc", "del", "dev", card, "root"])


@contextmanager
def _bad_wire(host: Host, loss: float, delay: float) -> Iterator[None]:
    port, outer, inner = port_of(host.number), f"bridge{host.number}", f"wire{host.number}"
    in_network(
        host.switch,
        f"link add {outer} type veth peer name {inner}",
        f"link set {outer} up",
        f"link set {inner} up",
    )
    for process, card in ((host.init, "eth0"), (host.switch, outer)):
        _enter(process, [sys.executable, "-ISE", WIRE, card])
    command = [sys.executable, "-ISE", str(WIRE), port, inner, str(loss), str(delay)]
    relay = subprocess.Popen(_inside(host.switch, command), stdout=subprocess.PIPE, text=True)
    try:
        assert relay.stdout is not None
        assert relay.stdout.readline() == "up\n"
        in_network(host.switch, f"link set {port} nomaster", f"link set {outer} master br0")
        yield
    finally:
        relay.kill()
        relay.wait(SECONDS)
        in_network(host.switch, f"link set {port} master br0", f"link del {outer}")


def _inside(process: int, command: list) -> list[str]:
    return ["nsenter", "--target", str(process), "--net", "--", *map(str, command)]


def _enter(process: int, command: list) -> None:
    subprocess.run(_inside(process, command), check=True, capture_output=True, timeout=SECONDS)
