"""Folders that are either whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def new_folder(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yields a folder beside ``path`` that takes its place when the block ends well.

    An error inside leaves what was at ``path`` before, and nothing else. What a process of this
    machine left when it was killed is removed by the next one.

    Args:
        path: Where the folder is to be.
        replace: Whether it may take the place of another. Otherwise, of two processes that want the
            same place one is given it, and the other an OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    aside = _aside(path, ".part")
    aside.mkdir()
    try:
        yield aside
        if replace and path.exists():
            replaced = aside.with_suffix(".old")
            path.rename(replaced)
            try:
                aside.rename(path)
            except OSError:
                replaced.rename(path)
                raise
            _remove_for_good(replaced, aside.with_suffix(".gone"))
        else:
            aside.rename(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Removes a folder that nobody ever sees half removed."""
    _remove_for_good(path, _aside(path, ".gone"))


def _remove_for_good(path: Path, gone: Path) -> None:
    """Under another name first, by which nobody takes what is left of it for a whole folder."""
    path.rename(gone)
    shutil.rmtree(gone)


def digest_folder(folder: Path) -> str:
    """A digest of the names and the bytes of all files in a folder, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()[:16]


def _aside(path: Path, suffix: str) -> Path:
    owner = f"{socket.gethostname()}-{os.getpid()}"
    return path.parent / f".{path.name}.{owner}-{uuid.uuid4().hex[:8]}{suffix}"


def _remove_abandoned(path: Path) -> None:
    place = re.escape(f".{path.name}.{socket.gethostname()}")
    ours = re.compile(rf"{place}-(\d+)-[0-9a-f]+\.(part|old|gone)")
    for folder in path.parent.iterdir():
        matched = ours.fullmatch(folder.name)
        if matched and not _is_alive(int(matched.group(1))):
            if matched.group(2) == "old" and not path.exists():
                # Its process was killed before the new folder was in the place of this one.
                folder.rename(path)
            else:
                shutil.rmtree(folder, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def write_text(path: Path, text: str) -> None:
    """Writes a file aside and renames it, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON with :func:`write_text`."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Reads a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))
