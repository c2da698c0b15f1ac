"""Three hosts on one machine, out of Linux namespaces, and the network between them.

A host has a network, processes, mounts, a name and shared memory of its own, and its own `/tmp`,
`/dev/shm` and `/etc/hosts`; all other files are the machine's. The hosts are on a bridge that leads
nowhere else, so that their addresses are nobody else's, and other tests may have hosts with the
same ones at the same time. The namespaces have no names: they are there as long as their first
processes, which end with the process that made them, however that one ends. So nothing has to be
cleaned up, and nothing can be left behind.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

Style = Literal["good", "debian", "none", "two-cards"]
"""What a host takes its own name for, in `/etc/hosts`.

- `good`: its address, as every other host does.
- `debian`: 127.0.1.1, as Debian's installer writes it.
- `none`: nothing; it is unknown.
- `two-cards`: the address of a second network card, which leads to no other host.
"""

COUNT = 3
NETWORK = "10.81.0"
OTHER_NETWORK = "10.81.1"  # of the second cards
START_SECONDS = 60.0
END_SECONDS = 60.0
_TOOLS = ("ip", "unshare", "nsenter", "setpriv", "mount")
_INIT = Path(__file__).with_name("host_init.py")
# Ends with the process that starts it, even where that one is killed.
_BOUND = ("setpriv", "--pdeathsig", "KILL")
_NAMESPACES = ("net", "mount", "uts", "ipc", "pid")


def address_of(number: int) -> str:
    return f"{NETWORK}.{number + 1}"


def name_of(number: int) -> str:
    return f"node{number}"


@functools.cache
def why_not() -> str | None:
    """Why this user can make no hosts on this machine; None if they can be made."""
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"hosts of namespaces need {', '.join(missing)}"
    try:
        with tempfile.TemporaryDirectory() as folder, some_hosts(Path(folder), count=1):
            return None
    except (OSError, subprocess.SubprocessError) as error:
        return f"this user can make no hosts of namespaces ({error})"


@dataclass(frozen=True)
class Host:
    """A host.

    Attributes:
        number: From 0.
        init: The process that all of it ends with, as this machine numbers it.
        switch: A process in the network namespace of the bridge.
    """

    number: int
    init: int
    switch: int

    @property
    def name(self) -> str:
        return name_of(self.number)

    @property
    def address(self) -> str:
        return address_of(self.number)

    def command(self, arguments: Sequence[str | Path]) -> list[str]:
        """What runs a command on this host, as a child of whoever starts it."""
        inside = (f"--{one}" for one in _NAMESPACES)
        enter = ["nsenter", "--target", str(self.init), *inside, "--"]
        # nsenter stops with its child; the shell does not, and waits for its own.
        return [*enter, "sh", "-c", '"$@"; exit $?', "sh", *map(str, arguments)]

    def start(
        self, arguments: Sequence[str | Path], log: Path, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a command; what it says goes to the log. It ends with the host at the latest."""
        with log.open("ab") as out:
            return subprocess.Popen(
                self.command(arguments),
                env={**os.environ, **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the tests alone, which end what they have started in order.
                start_new_session=True,
            )

    def run(
        self,
        arguments: Sequence[str | Path],
        log: Path,
        seconds: float,
        variables: Mapping[str, str] | None = None,
    ) -> int:
        """Runs a command to its end; gives its exit code, or 128 and the signal that ended it.

        Raises:
            subprocess.TimeoutExpired: It takes longer; it and what it has started are killed.
        """
        process = self.start(arguments, log, variables)
        try:
            return process.wait(seconds)
        finally:
            end(process)

    def ask(self, arguments: Sequence[str | Path], seconds: float = START_SECONDS) -> str:
        """What a command that ends at once says."""
        asked = subprocess.run(
            self.command(arguments), check=True, capture_output=True, text=True, timeout=seconds
        )
        return asked.stdout

    def processes(self, part: str = "") -> list[psutil.Process]:
        """The processes of this host with that part in their command lines.

        Its first one, and the shells that wait for a command, are left out: their parents are not
        on the host.
        """
        own, found = _namespace(self.init, "pid"), []
        for number in psutil.pids():
            with suppress(psutil.Error, OSError):
                # Few of the machine's are: of all others nothing more is read.
                if _namespace(number, "pid") != own:
                    continue
                process = psutil.Process(number)
                inside = _namespace(process.ppid(), "pid") == own
                if inside and part in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def signal(self, part: str, number: int = signal.SIGKILL) -> list[int]:
        """Sends processes a signal: `SIGKILL`, `SIGSTOP`, ...; see :meth:`processes`."""
        reached = []
        for process in self.processes(part):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
                reached.append(process.pid)
        return reached

    def cut_off(self) -> None:
        """Takes the host from the network, silently: nobody is told that it is gone."""
        in_network(self.switch, f"link set {port_of(self.number)} down")

    def join(self) -> None:
        """Brings it back."""
        in_network(self.switch, f"link set {port_of(self.number)} up")


@contextmanager
def some_hosts(
    folder: Path, style: Style = "good", seen: Sequence[Path] = (), count: int = COUNT
) -> Iterator[tuple[Host, ...]]:
    """Hosts, as long as the block lasts, or the process that made them.

    Args:
        folder: Of the logs, and seen by all hosts.
        style: What a host takes its own name for.
        seen: Further folders that are seen by all hosts though they may be in `/tmp`; the project
            and its environment are.

    Raises:
        OSError, subprocess.SubprocessError: They cannot be made here.
    """
    mine = [Path(__file__).parents[2], Path(sys.prefix), Path(sys.base_prefix)]
    shared = [str(one.resolve()) for one in (folder, *mine, *seen)]
    with ExitStack() as running:
        says_up = ["sh", "-c", "echo up; exec sleep infinity"]
        switch = running.enter_context(_bound(["unshare", "--net", *says_up], folder / "switch"))
        in_network(switch.pid, "link add br0 type bridge", "link set br0 up", "link set lo up")
        hosts = []
        for number in range(count):
            furniture = {
                "name": name_of(number),
                "hosts_file": _hosts_file(number, style, count),
                "seen": shared,
            }
            alone = [f"--{one}" for one in _NAMESPACES]
            command = ["unshare", *alone, "--fork", "--kill-child", "--mount-proc"]
            command += [sys.executable, "-ISE", str(_INIT), json.dumps(furniture)]
            outer = running.enter_context(_bound(command, folder / name_of(number)))
            (init,) = psutil.Process(outer.pid).children()
            hosts.append(Host(number, init.pid, switch.pid))
            _connect(hosts[-1], style)
        yield tuple(hosts)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills a command and what it has started, and waits for its end."""
    with suppress(psutil.NoSuchProcess):
        for one in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                one.kill()
    process.kill()
    process.wait(END_SECONDS)


@contextmanager
def _bound(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has said `up`; it is killed in the end, or ends with this one.

    Raises:
        OSError: It ends instead, or does not say so in time.
    """
    with log.open("w") as out:
        process = subprocess.Popen(
            [*_BOUND, *command], stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while "up" not in (said := log.read_text()).splitlines():
            if process.poll() is not None or time.monotonic() > deadline:
                raise OSError(said.strip() or f"`{command[0]}` says nothing")
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait(END_SECONDS)


def _connect(host: Host, style: Style) -> None:
    """Plugs a host into the bridge, as `eth0`; with `two-cards` it has another card before it."""
    port = port_of(host.number)
    if style == "two-cards":
        other = "link add card0 type veth peer name card1"
        address = f"addr add {OTHER_NETWORK}.{host.number + 1}/24 dev card0"
        in_network(host.init, other, address, "link set card0 up", "link set card1 up")
    in_network(
        host.switch,
        f"link add {port} type veth peer name eth0 netns {host.init}",
        f"link set {port} master br0",
        f"link set {port} up",
    )
    in_network(
        host.init, f"addr add {host.address}/24 dev eth0", "link set eth0 up", "link set lo up"
    )


def _hosts_file(number: int, style: Style, count: int) -> str:
    own = {
        "good": [address_of(number)],
        "debian": ["127.0.1.1"],
        "none": [],
        "two-cards": [f"{OTHER_NETWORK}.{number + 1}"],
    }[style]
    lines = ["127.0.0.1 localhost", *(f"{address} {name_of(number)}" for address in own)]
    lines += [f"{address_of(one)} {name_of(one)}" for one in range(count) if one != number]
    return "".join(f"{line}\n" for line in lines)


def port_of(number: int) -> str:
    """The bridge's end of a host's cable."""
    return f"port{number}"


def in_network(process: int, *commands: str) -> None:
    """Runs `ip` in the network namespace of a process."""
    batch = "".join(f"{command}\n" for command in commands)
    enter = ["nsenter", "--target", str(process), "--net", "--", "ip", "-batch", "-"]
    subprocess.run(
        enter, input=batch, check=True, capture_output=True, text=True, timeout=START_SECONDS
    )


def _namespace(process: int, kind: str) -> str:
    return str(Path(f"/proc/{process}/ns/{kind}").readlink())
