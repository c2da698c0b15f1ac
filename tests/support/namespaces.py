"""Processes in a namespace of their own, as in another container of the machine."""

from __future__ import annotations

import subprocess

UNSHARE = ("unshare", "--pid", "--fork")


def can_unshare() -> bool:
    """Whether this user may make a namespace of processes."""
    try:
        return subprocess.run([*UNSHARE, "true"], check=False, timeout=10).returncode == 0
    except OSError:
        return False
