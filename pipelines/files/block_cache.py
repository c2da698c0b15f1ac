"""A local cache for blocks of files in object stores, shared by the processes of a machine.

Each block is a file. A process locks a ``.part`` file, fetches the content into it, and renames it
to the block. Other readers of the block wait, so one process fetches it once. A count file holds
the bytes in use: beyond the bound, a process first removes the least recently used blocks. The
locks are the system's (``flock``) and end with their process, so the folder is on a local disk.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pipelines.files.stores import first_line

logger = logging.getLogger(__name__)

COUNT_FILE = "bytes"
"""Holds the bytes of all blocks, including those that are being written."""
CLAIM_SUFFIX = ".part"
_ATTEMPTS = 3
_POLL_SECONDS = 0.005
# Share of the bound to keep on eviction: each eviction reads the time of every block.
_KEPT_SHARE = 0.9
# Share of the blocks to keep when other files fill the disk.
_KEPT_SHARE_OF_FULL_DISK = 0.5
_FULL = (errno.ENOSPC, errno.EDQUOT)
_OWNER_ONLY = 0o600
_COUNT_DIGITS = 20


class _Claim(NamedTuple):
    """The right to write a block."""

    part: Path
    descriptor: int


@dataclass(frozen=True)
class BlockCache:
    """Blocks on a local disk; without room, a block is fetched and not kept.

    Attributes:
        folder: On this machine; may be absent.
        most_bytes: The bound of all blocks together, of all processes.
        wait_seconds: How long another process may take with a block before this one fetches it.
    """

    folder: Path
    most_bytes: int
    wait_seconds: float = 600.0

    def read(
        self, name: str, fetch: Callable[[], bytes], start: int = 0, stop: int | None = None
    ) -> bytes:
        """Return bytes of a block, and fetch the whole block if it is absent.

        Fewer bytes come back if the block ends before ``stop`` (exclusive; by default the block's
        end). Errors of ``fetch`` reach the caller.
        """
        path = self.folder / name
        # With little room, another process's block may be gone before it can be read.
        for _ in range(_ATTEMPTS):
            try:
                found = _read(path, start, stop)
                claim = self._claim(path) if found is None else None
            except OSError as error:
                _tell_unkept(self.folder, first_line(error))
                break
            if found is not None:
                return found
            if claim is not None:
                return self._fetched(claim, path, fetch)[start:stop]
        return fetch()[start:stop]

    def discard(self, name: str) -> None:
        """Remove a damaged block, if it is there."""
        # The count stays too large until the next eviction counts the files again.
        (self.folder / name).unlink(missing_ok=True)

    def _claim(self, path: Path) -> _Claim | None:
        """Wait for the right to write a block; None if another process has written it meanwhile."""
        deadline = time.monotonic() + self.wait_seconds
        part = path.with_name(path.name + CLAIM_SUFFIX)
        while True:
            descriptor = _opened(part)
            try:
                _lock(descriptor, part, deadline)
                if not path.exists() and _is_file_of(descriptor, part):
                    return _Claim(part, descriptor)
                written = path.exists()
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            if written:
                _remove_abandoned(part)
                return None

    def _fetched(self, claim: _Claim, path: Path, fetch: Callable[[], bytes]) -> bytes:
        """Fetch a block, and keep it if possible."""
        kept = False
        try:
            content = fetch()
            try:
                kept = self._keep(claim, path, content)
            except OSError as error:
                _tell_unkept(self.folder, first_line(error))
            return content
        finally:
            if not kept:
                with suppress(OSError):
                    claim.part.unlink(missing_ok=True)
            os.close(claim.descriptor)

    def _keep(self, claim: _Claim, path: Path, content: bytes) -> bool:
        """Write a block if there is room, and return whether it was written."""
        if len(content) > self.most_bytes or not self._reserve(claim, len(content)):
            return False
        try:
            _write(claim.descriptor, content)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            with self._count_locked() as count:
                share = int(self._counted(count) * _KEPT_SHARE_OF_FULL_DISK)
                _write_count(count, self._remove_oldest(share))
            _write(claim.descriptor, content)
        claim.part.rename(path)
        return True

    def _reserve(self, claim: _Claim, size: int) -> bool:
        """Count a new block, and remove others for it; return whether it fits."""
        with self._count_locked() as count:
            before = self._counted(count)
            if before + size > self.most_bytes:
                share = int(self.most_bytes * _KEPT_SHARE)
                before = self._remove_oldest(min(share, self.most_bytes - size))
            fits = before + size <= self.most_bytes
            _write_count(count, before + size * fits)
            if fits:
                # Another process may count the files before this one writes the content.
                os.truncate(claim.descriptor, size)
            return fits

    @contextmanager
    def _count_locked(self) -> Iterator[int]:
        """Yield the open count file, locked against other processes."""
        path = self.folder / COUNT_FILE
        descriptor = _opened(path)
        try:
            _lock(descriptor, path, time.monotonic() + self.wait_seconds)
            yield descriptor
        finally:
            os.close(descriptor)

    def _counted(self, descriptor: int) -> int:
        """Return the bytes of all blocks by the count file, or else by the blocks."""
        written = os.pread(descriptor, _COUNT_DIGITS, 0)
        if len(written) == _COUNT_DIGITS and written.isdigit():
            return int(written)
        return self._remove_oldest(self.most_bytes)

    def _remove_oldest(self, most_bytes: int) -> int:
        """Remove the least recently used blocks down to ``most_bytes``; return the bytes left."""
        blocks, total = [], 0
        for path in self._files():
            # Other processes remove damaged blocks at any time.
            with suppress(FileNotFoundError):
                status = path.stat()
                if path.suffix == CLAIM_SUFFIX and _remove_abandoned(path):
                    continue
                total += status.st_size
                if path.suffix != CLAIM_SUFFIX:
                    blocks.append((status.st_mtime_ns, status.st_size, path))
        for _, size, path in sorted(blocks):
            if total <= most_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size
        return total

    def _files(self) -> Iterator[Path]:
        for folder, _, names in os.walk(self.folder, topdown=False):
            if not names and Path(folder) != self.folder:
                # `rmdir` fails for a folder that another process has filled meanwhile.
                with suppress(OSError):
                    Path(folder).rmdir()
            for name in names:
                if name != COUNT_FILE:
                    yield Path(folder, name)


def _write_count(descriptor: int, number: int) -> None:
    os.pwrite(descriptor, f"{number:0{_COUNT_DIGITS}d}".encode(), 0)


def _read(path: Path, start: int, stop: int | None) -> bytes | None:
    """Read from a block, and mark it as used now; None if it is absent."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        end = os.fstat(descriptor).st_size if stop is None else stop
        # Marks the use: mounts with `noatime` keep no time of access.
        os.utime(descriptor)
        return os.pread(descriptor, end - start, start)
    finally:
        os.close(descriptor)


def _write(descriptor: int, content: bytes) -> None:
    # A system call may write fewer bytes than given.
    rest, offset = memoryview(content), 0
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def _opened(path: Path) -> int:
    """Open a file to lock and write; make it and its folder if they are absent."""
    for _ in range(_ATTEMPTS):
        # Another process may remove the folder while it is empty.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_CREAT, _OWNER_ONLY)
    return os.open(path, os.O_RDWR | os.O_CREAT, _OWNER_ONLY)


def _lock(descriptor: int, path: Path, deadline: float) -> None:
    while not _locked_at_once(descriptor):
        if time.monotonic() > deadline:
            raise TimeoutError(f"another process holds {path}")
        time.sleep(_POLL_SECONDS)


def _locked_at_once(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_file_of(descriptor: int, path: Path) -> bool:
    # The previous holder of the lock may have renamed or removed the file meanwhile.
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _remove_abandoned(part: Path) -> bool:
    """Remove an unfinished block without a writer; return whether it is gone."""
    try:
        descriptor = os.open(part, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        if not _locked_at_once(descriptor):
            return False
        if _is_file_of(descriptor, part):
            part.unlink()
        return True
    finally:
        os.close(descriptor)


@functools.lru_cache(maxsize=16)
def _tell_unkept(folder: Path, why: str) -> None:
    logger.warning("%s cannot keep more blocks (%s); readers fetch them when needed", folder, why)
