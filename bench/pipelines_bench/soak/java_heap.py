"""What is alive in the heap of a Java process of this user, as `jcmd` asks for it.

The protocol is that of HotSpot's attach listener (``attachListener_posix.cpp``), which every Java
has; `jcmd` itself comes with a JDK only, and would start a Java for each question.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

# HotSpot looks here, wherever `TMPDIR` leads.
_FOLDER = Path("/tmp")
_ANSWER_SECONDS = 20
_LISTENS_SECONDS = 5
_BETWEEN_SECONDS = 0.05
_SIZES = re.compile(r"total (\d+)K, used (\d+)K")


@dataclass(frozen=True)
class Heap:
    """A heap after a full collection.

    Attributes:
        used: Bytes of what is reachable.
        committed: Bytes that the heap has of the system.
    """

    used: int
    committed: int


def live_heap(pid: int) -> Heap:
    """Collects the garbage of a Java process, and tells what is left.

    Args:
        pid: Of a process that has been running for some seconds: one that starts would be ended by
            the signal that wakes its listener.

    Raises:
        OSError: It has ended, or does not answer.
    """
    _ask(pid, "GC.run")
    sizes = _SIZES.findall(_ask(pid, "GC.heap_info"))
    if not sizes:
        raise OSError(f"Java process {pid} does not tell the size of its heap")
    committed, used = (1024 * sum(map(int, column)) for column in zip(*sizes, strict=True))
    return Heap(used, committed)


def _ask(pid: int, command: str) -> str:
    """The answer to a diagnostic command."""
    path = _FOLDER / f".java_pid{pid}"
    if not path.exists():
        _wake(pid, path)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        connection.connect(str(path))
        # The version of the protocol, the operation, and its three arguments.
        connection.sendall("".join(f"{part}\0" for part in ("1", "jcmd", command, "", "")).encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    code, _, text = answer.decode(errors="replace").partition("\n")
    if code != "0":
        raise OSError(f"Java process {pid} refuses {command}: {text.strip()}")
    return text


def _wake(pid: int, path: Path) -> None:
    """Has a process listen, which it does on SIGQUIT if there is a certain file."""
    asked = _FOLDER / f".attach_pid{pid}"
    asked.touch()
    try:
        os.kill(pid, signal.SIGQUIT)
        deadline = time.monotonic() + _LISTENS_SECONDS
        while not path.exists():
            if time.monotonic() > deadline:
                raise OSError(f"Java process {pid} does not listen")
            time.sleep(_BETWEEN_SECONDS)
    finally:
        asked.unlink(missing_ok=True)
