"""Locks between processes and machines: one promotion at a time, and copies that go on.

A lock is the kernel's, on a file that stays. It ends with the process that holds it, however that
ends, so that there is never one to remove by hand on a local disk. Where the file system knows no
locks, as mounts of object stores, one goes on without, and says so.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.errors import PipelineError

logger = logging.getLogger(__name__)

SECONDS = 10.0
"""How long one waits for a lock."""

_PAUSE = 0.05
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)


@contextmanager
def held(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Holds the lock of a file, which is made if need be.

    Args:
        path: The file.
        shared: Whether others may hold it too, if they share it as well.

    Raises:
        PipelineError: Others hold it for longer than :data:`SECONDS`.
    """
    with _lock(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, SECONDS) as ours:
        if ours is None and not shared:
            logger.warning("%s knows no locks: let one job at a time change it", path.parent)
        if ours is False:
            raise PipelineError(f"another promotion goes on in {path.parent}, run it again later")
        yield


@contextmanager
def held_if_free(path: Path) -> Iterator[bool]:
    """Holds the lock of a file unless somebody has it; yields whether it is held."""
    with _lock(path, fcntl.LOCK_EX, 0.0) as ours:
        yield ours is True


@contextmanager
def _lock(path: Path, kind: int, seconds: float) -> Iterator[bool | None]:
    # NFS gives an exclusive lock to those alone who may write the file.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield _taken(descriptor, kind, time.monotonic() + seconds)
    finally:
        os.close(descriptor)


def _taken(descriptor: int, kind: int, deadline: float) -> bool | None:
    """Whether the lock could be had in time; None where there are no locks."""
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
            return None
        else:
            return True
        time.sleep(_PAUSE)
