"""Atomic files and folders, on a file system or in an object store: whole, or absent.

On a file system they are written aside and renamed. For stores see :mod:`pipelines.files.versions`.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import logging
import math
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

from pipelines.files import conditional, records, versions
from pipelines.files import owners as fencing
from pipelines.files.locations import Location, P, RemotePath
from pipelines.files.owners import Owner

logger = logging.getLogger(__name__)

ABANDONED_SECONDS = 24 * 3600.0
"""An aside of a process elsewhere counts as abandoned after so long without a change."""
FLUSH_SECONDS = 10.0
"""The shortest time between two writes of a :class:`LineLog` in a store."""
# The log must also grow by this share: each flush writes all of it, and so the sum stays linear.
_GROWTH = 0.02

_CANNOT_GROW = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EPERM)
# Errors of file systems that cannot flush a folder, or have no links.
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES)
_WITHOUT_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
# Of renameat2(2); the call is new in Linux 3.15, and few network file systems exchange names.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP)
_ASIDE = re.compile(r"\.(.+)\.([^.]+)-[0-9a-f]{8}\.(?:part|old|gone)")


@contextmanager
def new_folder(path: Location, *, replace: bool = True) -> Iterator[Location]:
    """Yield a folder beside ``path``, to take its place when the block ends well.

    Executors may write it too: they see it under the same name. An error inside leaves ``path`` as
    before, and nothing else. The next process removes the rest of a killed one: at once if it knows
    of that end. Otherwise (another container or machine) it waits for a day without a change.
    Without ``replace``, one of several processes gets the place; the others get an OSError.
    """
    if isinstance(path, RemotePath):
        with versions.new_version(path, replace=replace) as version:
            yield version
    else:
        with _new_folder(path, replace=replace) as part:
            yield part


@contextmanager
def built_folder(path: Location, *, replace: bool = True) -> Iterator[Path]:
    """Yield a folder of this machine for :func:`new_folder`, with this process as only writer."""
    if isinstance(path, RemotePath):
        with temporary_folder() as made:
            yield made
            with versions.new_version(path, replace=replace) as version:
                versions.put_folder(made, version)
    else:
        with _new_folder(path, replace=replace) as part:
            yield part


@contextmanager
def inner_folder(path: Location) -> Iterator[Path]:
    """Yield a folder of this machine; its files go into a subfolder of a new folder."""
    if isinstance(path, RemotePath):
        with temporary_folder() as made:
            yield made
            versions.put_folder(made, path)
    else:
        path.mkdir(parents=True)
        yield path


@contextmanager
def built_file(path: Location, aside_in: Location | None = None) -> Iterator[Path]:
    """Yield a file name on this machine; the file takes its place when the block ends well.

    On a file system it is written beside its place, or in ``aside_in``.
    """
    if isinstance(path, RemotePath):
        with temporary_folder() as made:
            yield made / path.name
            fencing.check_own(path)
            versions.put_file(made / path.name, path)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = aside_name(path, ".part")
    if isinstance(aside_in, Path):
        aside = aside_in / aside.name
    try:
        yield aside
        fencing.check_own(path)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder of this machine, removed at the end of the block."""
    with TemporaryDirectory(prefix="sentence-pipelines-") as made:
        yield Path(made)


@contextmanager
def _new_folder(path: Path, *, replace: bool) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = aside_name(path, ".part")
    part.mkdir()
    try:
        clear_abandoned(path, part)
        yield part
        # Right before the rename: another job may have taken the folder over during a suspension.
        fencing.check_own(path)
        move = take_place if replace else Path.rename
        move(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def take_place(new: Path, path: Path) -> None:
    """Rename a whole folder to ``path``, and replace the folder there.

    If the kernel and the file system can exchange two names, readers find one of the two at any
    moment. Otherwise there is none between two renames. A process killed there leaves both, and
    :func:`settle` puts the replaced one back.
    """
    if not path.exists():
        new.rename(path)
        return
    if _exchanged(new, path):
        _remove_for_good(new, aside_name(path, ".gone"))
        return
    replaced = aside_name(path, ".old")
    path.rename(replaced)
    try:
        new.rename(path)
    except OSError:
        replaced.rename(path)
        raise
    _remove_for_good(replaced, replaced.with_suffix(".gone"))


def _exchanged(new: Path, path: Path) -> bool:
    """Exchange the names of two folders; return False without support for it."""
    rename = _renameat2()
    if rename is None:
        return False
    names = (os.fsencode(new), os.fsencode(path))
    if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    error = ctypes.get_errno()
    if error in _NO_EXCHANGE:
        return False
    raise OSError(error, os.strerror(error), str(path))


@cache
def _renameat2() -> Callable[..., int] | None:
    """Return the system call; None if the C library lacks it."""
    try:
        found: Any = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return cast("Callable[..., int]", found)


def remove_folder(path: Location) -> None:
    """Remove a folder, at once for every reader."""
    fencing.check_own(path)
    if isinstance(path, RemotePath):
        versions.remove(path)
    else:
        _remove_for_good(path, aside_name(path, ".gone"))


def _remove_for_good(path: Path, gone: Path) -> None:
    """Remove a folder under another name: half of it must not look whole to readers."""
    path.rename(gone)
    # NFS keeps files that a process on this machine has open; they are swept later.
    shutil.rmtree(gone, ignore_errors=True)


def discard_folder(path: Location) -> None:
    """Remove a folder without readers, if it is there."""
    if isinstance(path, RemotePath):
        versions.clear(path)
    else:
        shutil.rmtree(path, ignore_errors=True)


def aside_name(path: P, suffix: str) -> P:
    """Return a name beside ``path`` for a temporary file or folder of this process.

    The suffix is `.part` (to become ``path``), `.old` (was ``path``) or `.gone` (to be removed).
    """
    # Beside it, since a rename cannot cross file systems.
    return path.with_name(f".{path.name}.{Owner.here()}-{uuid.uuid4().hex[:8]}{suffix}")


def is_aside(name: str) -> bool:
    """Return whether a name comes from :func:`aside_name`, and so not from a user."""
    matched = _ASIDE.fullmatch(name)
    return matched is not None and Owner.parse(matched[2]) is not None


class _Aside(NamedTuple):
    """A process's temporary file or folder, with its former or intended place."""

    path: Path
    place: Path
    owner: Owner

    def is_abandoned(self, now: float) -> bool:
        is_gone = self.owner.is_gone()
        return now - _last_change(self.path) > ABANDONED_SECONDS if is_gone is None else is_gone

    def clear(self) -> None:
        if self.path.suffix == ".old" and not self.place.exists():
            # Its process was killed before the new folder was in the place of this one.
            self.path.rename(self.place)
        else:
            self.remove()

    def remove(self) -> None:
        if self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self.path.unlink(missing_ok=True)


def _left_aside(folder: Path) -> list[_Aside]:
    """Return the entries with a name of :func:`aside_name`; all others are not ours."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        matched = _ASIDE.fullmatch(path.name)
        owner = Owner.parse(matched[2]) if matched else None
        if matched and owner:
            found.append(_Aside(path, path.with_name(matched[1]), owner))
    return found


def _last_change(path: Path) -> float:
    """Return the newest time of change in a folder, its own included."""
    times = []
    for found in (path, *path.rglob("*")):
        # A file that disappears meanwhile has a live writer.
        with suppress(FileNotFoundError):
            times.append(found.lstat().st_mtime)
    return max(times, default=math.inf)


def sweep(folder: Location) -> None:
    """Remove all asides in a folder, and put back folders whose replacement never came.

    The caller holds the folder's lock (:mod:`pipelines.files.locks`). The folder may be absent.
    """
    if isinstance(folder, RemotePath):
        versions.sweep(folder)
        return
    for aside in _left_aside(folder):
        aside.clear()


def settle(path: Location) -> None:
    """Do as :func:`sweep` for one place, locked by the caller.

    A store has nothing beside a folder: its versions are inside.
    """
    if isinstance(path, Path):
        for aside in _left_aside(path.parent):
            if aside.place == path:
                aside.clear()


def clear_abandoned(path: Path, new: Path) -> None:
    """Remove the abandoned asides of a place.

    ``new`` is this process's newest aside. Its time of change gives the clock of the file system,
    often that of another machine.
    """
    now = new.stat().st_mtime
    for aside in _left_aside(path.parent):
        if aside.place == path and aside.is_abandoned(now):
            aside.clear()


def remove_left_aside(folder: Location, places: Collection[Location]) -> None:
    """Remove the asides of killed processes for places in a folder, whatever their suffix.

    The caller's lock excludes other writers.
    """
    if isinstance(folder, RemotePath):
        versions.sweep(folder)
        return
    for aside in _left_aside(folder):
        if aside.place in places:
            aside.remove()


def remove_asides(path: Location) -> None:
    """Remove the asides of killed processes beside a file.

    The caller's lock excludes other writers of the file.
    """
    if isinstance(path, RemotePath):
        return
    earlier = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.part")
    for aside in path.parent.glob(f".{path.name}.*.part"):
        # Earlier releases gave them shorter names.
        if is_aside(aside.name) or earlier.fullmatch(aside.name):
            aside.unlink()


def copy_folder(source: Location, target: Location) -> None:
    """Copy all files below a folder to another one, in any pair of places."""
    if isinstance(source, Path) and isinstance(target, Path):
        try:
            shutil.copytree(source, target, dirs_exist_ok=True)
        except shutil.Error as error:
            raise _first_failure(error) from error
    elif isinstance(target, RemotePath):
        versions.put_folder(source, target)
    else:
        assert isinstance(source, RemotePath)
        versions.get_folder(source, target)


def _first_failure(error: shutil.Error) -> OSError:
    """Return the first failure of `shutil.copytree`; its error lists all failures as text."""
    _, target, reason = error.args[0][0]
    number = re.match(r"\[Errno (\d+)\]", str(reason))
    if number is None:
        return OSError(f"{target}: {reason}")
    return OSError(int(number[1]), os.strerror(int(number[1])), str(target))


def copy_file(file: Location, target: Location) -> None:
    """Copy a file in any pair of places; between stores by way of this machine."""
    if isinstance(target, RemotePath):
        versions.put_file(file, target)
    elif isinstance(file, RemotePath):
        versions.get_file(file, target)
    else:
        shutil.copy2(file, target)


def link(file: Location, target: Location) -> None:
    """Give a file a second name in its file system; a store makes a copy itself.

    Raises:
        OSError: There are no links, or the two places are of different kinds.
    """
    if isinstance(file, Path) and isinstance(target, Path):
        target.hardlink_to(file)
    elif isinstance(file, RemotePath) and isinstance(target, RemotePath):
        versions.put_file(file, target)
    else:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(target))


def link_or_copy(file: Location, target: Location) -> None:
    """Give a file a second name, or copy it without support for links."""
    if isinstance(file, Path) and isinstance(target, Path):
        with suppress(OSError):
            target.hardlink_to(file)
            return
    copy_file(file, target)


def move_folder(source: Location, target: Location) -> None:
    """Rename a folder; in a store file by file, so readers may see half of the target."""
    if isinstance(source, Path) and isinstance(target, Path):
        source.rename(target)
    else:
        copy_folder(source, target)
        discard_folder(source)


def point(pointer: Location, content: str) -> None:
    """Make a place name another: by a link, or else by a file with the name."""
    if isinstance(pointer, RemotePath):
        write_text(pointer, f"{content}\n")
        return
    aside = aside_name(pointer, ".part")
    try:
        aside.symlink_to(content)
        aside.replace(pointer)
        flush(pointer.parent)
    except OSError as error:
        if error.errno not in _WITHOUT_LINKS:
            raise
        write_text(pointer, f"{content}\n", durable=True)
    finally:
        aside.unlink(missing_ok=True)


def file_names(folder: Location) -> list[str]:
    """Return the relative paths of the files at any depth of a folder, sorted by their parts."""
    if isinstance(folder, RemotePath):
        paths = [PurePosixPath(name) for name, status in folder.entries() if status is not None]
    else:
        files = (path for path in folder.rglob("*") if path.is_file())
        paths = [PurePosixPath(file.relative_to(folder).as_posix()) for file in files]
    return [str(path) for path in sorted(paths)]


def digest_folder(folder: Location, *, without: Collection[str] = ()) -> str:
    """Return 16 hexadecimal digits of names and bytes of a folder's files, except ``without``."""
    digest = hashlib.sha256()
    for name in (name for name in file_names(folder) if name not in without):
        with (folder / name).open("rb") as file:
            content = hashlib.file_digest(cast(Any, file), "sha256").hexdigest()
        digest.update(f"{name}\0{content}\n".encode())
    return digest.hexdigest()[:16]


def can_grow(path: Location) -> bool:
    """Return whether readers see files there grow while they are written; a store's never do."""
    return isinstance(path, Path)


def signs_of_life(folder: Location) -> dict[str, object]:
    """Return values by file name that change while processes write files in a folder."""
    if isinstance(folder, RemotePath):
        return dict(folder.entries(recursive=False))
    states: dict[str, object] = {}
    for file in folder.iterdir():
        # Its writer may have finished and renamed a file meanwhile.
        with suppress(FileNotFoundError):
            states[file.name] = file.stat().st_size
    return states


def flush(path: Location) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk.

    An object store answers only afterwards.
    """
    if isinstance(path, RemotePath):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some mounts have nothing to write through for a folder, and say so.
        if not (path.is_dir() and error.errno in _NO_FOLDER_SYNC):
            raise
    finally:
        os.close(descriptor)


def flush_tree(folder: Location) -> None:
    """Wait until all files and names in a folder are on the disk."""
    if isinstance(folder, Path):
        for path in [*sorted(folder.rglob("*")), folder]:
            flush(path)


def create_file(path: Location, content: bytes) -> bool:
    """Write a file unless it exists, and return whether this call did.

    One of several processes succeeds. In a store without conditional writes, and so without locks,
    two simultaneous writers may both succeed.
    """
    if isinstance(path, RemotePath):
        if conditional.can_condition(path.store) is None:
            try:
                return conditional.create(path, content)
            except conditional.NoConditionalWritesError:
                logger.debug("%s has no conditional writes", path)
        if path.exists():
            return False
        versions.put_bytes(path, content)
        return True
    try:
        file = path.open("xb")
    except FileExistsError:
        return False
    try:
        with file:
            file.write(content)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return True


def write_text(path: Location, text: str, *, durable: bool = False) -> None:
    """Write a file aside and rename it: readers never see half of it.

    A ``durable`` file is on the disk when this returns, whole after a power cut too.
    """
    if isinstance(path, RemotePath):
        versions.put_bytes(path, text.encode())
        return
    with built_file(path) as aside:
        aside.write_text(text, encoding="utf-8")
        if durable:
            flush(aside)
    if durable:
        flush(path.parent)


def write_json(path: Location, value: Any, *, durable: bool = False) -> None:
    """Write indented JSON with :func:`write_text`."""
    write_text(path, records.to_text(value), durable=durable)


def read_json(path: Location) -> Any:
    """Read a JSON file; raises as :func:`pipelines.files.records.read`."""
    return records.read(path)


def add_line(path: Location, line: str) -> None:
    """Add a line to a file; rewrite the file in object stores, whose files cannot grow."""
    if isinstance(path, RemotePath):
        _write_with_line(path, line)
        return
    fencing.check_own(path)
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    except OSError as error:
        if error.errno not in _CANNOT_GROW:
            raise
        _write_with_line(path, line)


def _write_with_line(path: Location, line: str) -> None:
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    write_text(path, f"{before}{line}\n")


class LineLog:
    """The lines of a file with one writing process; it may be absent."""

    def __init__(self, path: Location) -> None:
        self._path = path
        self._held: list[str] | None = None
        self._flushed_lines = 0
        self._flushed = time.monotonic()

    def add(self, line: str) -> None:
        """Add a line; in a store readers see it some seconds later, or after :meth:`flush`."""
        if can_grow(self._path):
            add_line(self._path, line)
            return
        self._lines.append(line)
        waited = time.monotonic() - self._flushed > FLUSH_SECONDS
        if waited and len(self._lines) > self._flushed_lines * (1 + _GROWTH):
            self.flush()

    def keep(self, is_wanted: Callable[[str], bool]) -> None:
        """Drop the other lines."""
        if self._held is None and not self._path.exists():
            return
        self._held = [line for line in self._lines if is_wanted(line)]
        self._write()

    def flush(self) -> None:
        """Write the lines not yet in the store."""
        is_behind = self._held is not None and len(self._held) != self._flushed_lines
        if is_behind and not can_grow(self._path):
            self._write()

    @property
    def _lines(self) -> list[str]:
        if self._held is None or can_grow(self._path):
            # A process may have been killed between the bytes of one character.
            exists = self._path.exists()
            self._held = self._path.read_text("utf-8", "replace").splitlines() if exists else []
            self._flushed_lines = len(self._held)
        return self._held

    def _write(self) -> None:
        assert self._held is not None, "lines are read before they are written"
        write_text(self._path, "".join(f"{line}\n" for line in self._held))
        self._flushed, self._flushed_lines = time.monotonic(), len(self._held)
