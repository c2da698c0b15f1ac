"""What listens on the hosts of :mod:`hosts`: the sockets of each process, and their addresses."""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from hosts import Host

PROC = Path("/proc")
_LISTENING = "0A"  # as the kernel writes it: TCP_LISTEN
_INODE = re.compile(r"socket:\[(\d+)\]")
EXECUTOR = "executor's JVM"
# By a part of their command lines; what a process starts has its role, unless it has its own.
ROLES = {
    "deploy.master.Master": "master",
    "deploy.worker.Worker": "worker",
    "CoarseGrainedExecutorBackend": EXECUTOR,
    "SparkSubmit": "driver's JVM",
    "spark.daemon": "executor's Python",
    "host_driver": "driver's Python",
    "pipelines.cli": "driver's Python",
}


@dataclass(frozen=True)
class Listener:
    """A listening socket.

    Attributes:
        host: Number of the host.
        role: Of the process that has it; one of :data:`ROLES`, or its command line.
        executor: The JVM of the executor that the process is a part of; 0 for any other process.
        address: Where it listens.
        port: The same.
        inode: Its number on this machine.
    """

    host: int
    role: str
    executor: int
    address: str
    port: int
    inode: int

    @property
    def reach(self) -> str:
        """Who may connect: `loopback`, `one address` or `every address` of the host."""
        address = ipaddress.ip_address(self.address)
        address = getattr(address, "ipv4_mapped", None) or address
        if address.is_unspecified:
            return "every address"
        return "loopback" if address.is_loopback else "one address"


@dataclass
class SocketWatch:
    """Collects what listens on hosts, each time that it looks.

    Attributes:
        hosts: Which.
        most: By role and reach, the most that an executor had at once, or else a host.
    """

    hosts: Iterable[Host]
    most: Counter[tuple[str, str]] = field(default_factory=Counter)

    def look(self) -> list[Listener]:
        """Everything that listens now."""
        found = [one for host in self.hosts for one in listeners(host)]
        counted = Counter((one.host, one.executor, one.role, one.reach) for one in found)
        for (_, _, role, reach), number in counted.items():
            self.most[role, reach] = max(self.most[role, reach], number)
        return found


def listeners(host: Host) -> Iterator[Listener]:
    """The sockets of a host that listen now; one that several processes have is the oldest's."""
    owners = _owners(host)
    for inode, (address, port) in _listening(host.init).items():
        # One whose process has ended since is not there either.
        if inode in owners:
            yield Listener(host.number, *owners[inode], address, port, inode)


def serves_other_hosts(host: Host, process: psutil.Process) -> bool:
    """Whether a process of a host listens where another host can connect."""
    open_ones = set()
    with suppress(psutil.Error, OSError):
        for handle in (PROC / str(process.pid) / "fd").iterdir():
            with suppress(OSError):
                if linked := _INODE.fullmatch(str(handle.readlink())):
                    open_ones.add(int(linked[1]))
    return any(
        inode in open_ones and not ipaddress.ip_address(address).is_loopback
        for inode, (address, _) in _listening(host.init).items()
    )


def _listening(process: int) -> dict[int, tuple[str, int]]:
    """Addresses and ports in the network namespace of a process, by the inodes of the sockets."""
    found = {}
    for table in ("tcp", "tcp6"):
        for line in (PROC / str(process) / "net" / table).read_text().splitlines()[1:]:
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            if state == _LISTENING:
                address, _, port = local.partition(":")
                found[int(inode)] = (_address(address), int(port, 16))
    return found


def _address(digits: str) -> str:
    """As the kernel writes it: words of the machine's byte order."""
    words = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed)


def _owners(host: Host) -> dict[int, tuple[str, int]]:
    """The processes that have sockets, as roles and executors, by the inodes of the sockets."""
    found: dict[int, tuple[str, int]] = {}
    known: dict[int, tuple[str, int]] = defaultdict(lambda: ("", 0))
    for process in sorted(host.processes(), key=lambda one: one.pid):
        with suppress(psutil.Error, OSError):
            inherited, executor = known[process.ppid()]
            role = _role(process) or inherited
            known[process.pid] = role, process.pid if role == EXECUTOR else executor
            owner = role or " ".join(process.cmdline()), known[process.pid][1]
            for handle in (PROC / str(process.pid) / "fd").iterdir():
                with suppress(OSError):
                    if linked := _INODE.fullmatch(str(handle.readlink())):
                        found.setdefault(int(linked[1]), owner)
    return found


def _role(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    return next((role for part, role in ROLES.items() if part in command), "")
