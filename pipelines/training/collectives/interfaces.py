"""A worker's address and network interface for connections from other workers.

The worker uses its address on the route to the driver. A host's own name is less reliable: Debian's
installer writes it as 127.0.1.1, some hosts do not know theirs, and with two network cards it may
be on the wrong one. Runs on executors.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path

from pipelines.errors import PipelineError

SOCKETS_ONLY = "SENTENCE_PIPELINES_SOCKETS_ONLY"
"""If set, workers of one host exchange through sockets too, as those of several hosts do."""
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
"""Names the interface for PyTorch's Gloo, which otherwise resolves the host's own name."""
_SIOCGIFCONF = 0x8912  # of netdevice(7), Linux
_ENTRY = struct.Struct("16sHH4s16x")  # of an interface's name, and of its address
_MOST_ADDRESSES = 1024
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")


def own_address(server: tuple[str, int]) -> str:
    """Return this host's address on the route to a server; send nothing to it.

    Raises:
        OSError: There is no route to it.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(*server, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # A datagram socket only chooses its route: it sends no packet to connect.
        probe.connect(address)
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """Return the network interface with an address of this host.

    Raises:
        PipelineError: No interface has it.
    """
    wanted = ipaddress.ip_address(address.partition("%")[0])
    addresses = _ipv4_addresses() if wanted.version == 4 else _ipv6_addresses()
    for name, known in addresses:
        # The loopback interface answers at all of 127.0.0.0/8, and lists one address.
        if known == wanted or (wanted.is_loopback and known.is_loopback):
            return name
    raise PipelineError(f"no network interface has the address {address}")


def prefer_interface_to(server: tuple[str, int]) -> None:
    """Have this process's Gloo groups listen on the interface on the route to the driver.

    An interface set for PyTorch by the cluster's administrator stays.

    Raises:
        OSError: There is no route to the driver's server.
        PipelineError: No interface has the address of that route.
    """
    if GLOO_INTERFACE not in os.environ:
        os.environ[GLOO_INTERFACE] = interface_of(own_address(server))


def _ipv4_addresses() -> Iterator[tuple[str, ipaddress.IPv4Address]]:
    room = array("B", bytes(_MOST_ADDRESSES * _ENTRY.size))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("iL", len(room), room.buffer_info()[0])
        used, _ = struct.unpack("iL", fcntl.ioctl(any_socket, _SIOCGIFCONF, asked))
    for name, _, _, packed in _ENTRY.iter_unpack(room.tobytes()[:used]):
        yield name.partition(b"\0")[0].decode(), ipaddress.IPv4Address(packed)


def _ipv6_addresses() -> Iterator[tuple[str, ipaddress.IPv6Address]]:
    for line in _IPV6_ADDRESSES.read_text().splitlines():
        digits, *_, name = line.split()
        yield name, ipaddress.IPv6Address(bytes.fromhex(digits))
