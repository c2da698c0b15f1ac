"""Local copies of folders and files in object stores, for libraries that read only files.

All processes of a machine share a copy. No reader reports its end, so the next copy removes those
without recent use; processes with an open file keep it.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir

from pipelines.errors import InputError
from pipelines.files import storage, versions
from pipelines.files.locations import Location, RemotePath
from pipelines.settings.spark import StorageSettings

UNUSED_SECONDS = 3600.0
_WRITTEN_BY_OTHERS = 0o022
# Only names of :func:`_copied`: the user may name a folder with other content.
_COPY = re.compile(r"[0-9a-f]{24}")


def local_folder(folder: Location, check: Callable[[Path], None] = lambda copy: None) -> Path:
    """Return a local folder with a folder's content; in a store, its current version.

    A folder of a file system is returned itself. ``check`` inspects a new copy before its use; its
    errors reach the caller.

    Raises:
        InputError: Other users can write to the folder for copies.
        OSError: The store cannot be read.
    """
    if isinstance(folder, Path):
        return folder
    source = versions.current(folder)
    assert isinstance(source, RemotePath), "a version is where its folder is"

    def fetch(aside: Path) -> None:
        if not source.is_dir():
            raise FileNotFoundError(f"there is no folder {source}")
        versions.get_folder(source, aside)
        check(aside)

    # A version never changes; other folders may, so their sizes and times identify the content.
    content = "" if source.place is not None else str(source.entries())
    return _copied(source, content, fetch)


def local_file(file: Location, check: Callable[[Path], None] = lambda copy: None) -> Path:
    """Return a local file with the content of a file; see :func:`local_folder`."""
    if isinstance(file, Path):
        return file

    def fetch(aside: Path) -> None:
        versions.get_file(file, aside / file.name)
        check(aside / file.name)

    return _copied(file, str(file.stat()), fetch) / file.name


def cache_folder(options: StorageSettings) -> Path:
    """Return this machine's folder for copies from stores, and make it if it is absent.

    Raises:
        InputError: Other users could write to it.
    """
    named = options.cache_folder
    folder = Path(named) if named else Path(gettempdir(), f"sentence-pipelines-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # `lstat`: another user may have put a link there, to a folder of this user.
    owner, mode = folder.lstat().st_uid, folder.stat().st_mode
    if named is None and (owner != os.getuid() or mode & _WRITTEN_BY_OTHERS):
        raise InputError(
            "storage.cache_folder", f"other users can write to {folder}", "Name another folder"
        )
    return folder


def _copied(source: RemotePath, content: str, fetch: Callable[[Path], None]) -> Path:
    """Return the copy of a place, made by ``fetch`` if absent; ``content`` identifies its bytes."""
    copies = cache_folder(source.store.options) / "folders"
    target = copies / hashlib.sha256(f"{source}{content}".encode()).hexdigest()[:24]
    if not target.is_dir():
        _forget_unused(copies)
        try:
            with storage.built_folder(target, replace=False) as aside:
                fetch(aside)
        except OSError:
            # Another process may have been faster.
            if not target.is_dir():
                raise
    os.utime(target)
    return target


def _forget_unused(copies: Path) -> None:
    for folder in copies.iterdir() if copies.is_dir() else ():
        # Another process may have been faster.
        with suppress(FileNotFoundError):
            unused = time.time() - folder.stat().st_mtime
            if _COPY.fullmatch(folder.name) and unused > UNUSED_SECONDS:
                storage.remove_folder(folder)
