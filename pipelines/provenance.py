"""The provenance of a job: its command line, its host, and the commit of its working folder."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

GIT_SECONDS = 5.0
"""The longest wait for git, for folders on slow shares; then the commit is unknown."""
_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")
_DESCRIBE = ("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")

_arguments: ContextVar[tuple[str, ...] | None] = ContextVar("arguments", default=None)


@contextmanager
def given_on_command_line(arguments: Sequence[str]) -> Iterator[None]:
    """Note the command line of the jobs in a block: the command's name, and its arguments."""
    token = _arguments.set(tuple(arguments))
    try:
        yield
    finally:
        _arguments.reset(token)


def command_arguments() -> tuple[str, ...] | None:
    """Return the arguments of the command line; None for a job called from Python."""
    return _arguments.get()


def host_name() -> str:
    """Return the name of this machine."""
    return platform.node()


def commit_of(folder: Path) -> str | None:
    """Return the checked-out commit of a folder, with `-dirty` if files differ from it.

    None without git, outside of repositories, or if git does not answer in time.
    """
    try:
        answer = subprocess.run(
            [*_GIT, "-C", str(folder), *_DESCRIBE],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
