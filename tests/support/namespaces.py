"""Processes in namespaces of their own, as in another container of the machine."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

UNSHARE = ("unshare", "--pid", "--fork")


def can_unshare() -> bool:
    """Whether this user may make a namespace of processes."""
    try:
        return subprocess.run([*UNSHARE, "true"], check=False, timeout=10).returncode == 0
    except OSError:
        return False


def read_only(folder: Path) -> tuple[str, ...]:
    """What a command is begun with that finds a folder read-only."""
    script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(folder))


def can_mount() -> bool:
    """Whether this user may mount in a namespace of its own."""
    with tempfile.TemporaryDirectory() as folder:
        writes = ("sh", "-c", 'test ! -w "$0"', folder)
        try:
            command = [*read_only(Path(folder)), *writes]
            return (
                subprocess.run(
                    command, check=False, timeout=10, stderr=subprocess.DEVNULL
                ).returncode
                == 0
            )
        except OSError:
            return False
