"""The first process of a host that :mod:`hosts` makes; nothing on the host outlives it.

It runs in namespaces of its own, says `up` when the host is furnished, and collects the processes
that have lost their parents. Started as a script, with what it needs as JSON.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

TEMPORARY, MEMORY = Path("/tmp"), Path("/dev/shm")


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)


def mount_empty(folder: Path) -> None:
    """A file system in memory."""
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", folder)


def furnish(name: str, hosts_file: str, seen: list[str]) -> None:
    """Gives this host its name, `/etc/hosts`, `/tmp` and `/dev/shm`.

    Args:
        seen: Folders that are seen where they lie, though that may be below `/tmp`.
    """
    mount("--make-rprivate", "/")
    socket.sethostname(name)
    # What becomes `/tmp`; elsewhere as long as what lies in the machine's is to be seen.
    mount_empty(MEMORY)
    for folder in map(Path, seen):
        if folder.is_relative_to(TEMPORARY):
            place = MEMORY / folder.relative_to(TEMPORARY)
            place.mkdir(parents=True, exist_ok=True)
            mount("--rbind", folder, place)
    mount("--move", MEMORY, TEMPORARY)
    mount_empty(MEMORY)
    own = TEMPORARY / "etc-hosts"
    own.write_text(hosts_file)
    mount("--bind", own, "/etc/hosts")


def main() -> None:
    furnish(**json.loads(sys.argv[1]))
    # The kernel collects those that have ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("up", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
