"""Looks for files on file systems and in object stores."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from pipelines.errors import InputError
from pipelines.files.locations import Location, RemotePath
from pipelines.files.stores import first_line


def exists(path: Location, key: str) -> bool:
    """Whether there is such a file or folder.

    Raises:
        InputError: Its store cannot be asked.
    """
    try:
        return path.exists()
    except OSError as error:
        if isinstance(path, Path):
            raise
        remedy = "mend the address or the credentials; see docs/storage.md"
        raise InputError(key, f"{path} cannot be reached ({first_line(error)})", remedy) from None


def matching(pattern: Location) -> list[Location]:
    """What a glob matches; ``**`` stands for any depth."""
    if isinstance(pattern, Path):
        found = glob.glob(str(pattern), recursive=True)  # noqa: PTH207 - of an absolute pattern
        return [Path(match) for match in found]
    parts = pattern.key.parts
    fixed = next(place for place, part in enumerate(parts) if glob.has_magic(part))
    folder = RemotePath(pattern.store, PurePosixPath(*parts[:fixed]))
    return list(folder.glob("/".join(parts[fixed:])))


def files_below(folder: Location, is_hidden: Callable[[str], bool]) -> Iterator[Location]:
    """The files at any depth, but for hidden ones and those in hidden folders."""
    if isinstance(folder, RemotePath):
        for name, status in folder.entries():
            if status is not None and not any(map(is_hidden, name.split("/"))):
                yield folder / name
        return
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        yield from (Path(parent, name) for name in sorted(names) if not is_hidden(name))


def sort_key(path: Location) -> tuple[bool, tuple[str, ...]]:
    """Orders files by the parts of their paths, those of file systems first."""
    return isinstance(path, RemotePath), path.parts
