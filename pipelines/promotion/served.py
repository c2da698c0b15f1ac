"""The folder that models are served from.

    target/
      current              the model in service: a symbolic link to versions/00004
      versions/00004/      a model folder, and promotion.json: which run, when, by whom, figures
      history.jsonl        a line for each promotion and each way back

A version never changes once it is there, and ``current`` is replaced as a whole. A reader that
follows ``current`` once, and loads from the folder that it finds, has all files of one model.
"""

from __future__ import annotations

import errno
import getpass
import json
import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipelines import storage
from pipelines.errors import InputError, PipelineError

CURRENT = "current"
VERSIONS = "versions"
RECORD = "promotion.json"
HISTORY = "history.jsonl"
KEY = "promotion.target"

_WITHOUT_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)


def served_model(target: str | Path) -> Path | None:
    """The folder of the model in service, which stays as it is; None where there is none.

    Raises:
        InputError: ``current`` is not what a promotion has written, or leads nowhere.
    """
    pointer = Path(target).absolute() / CURRENT
    if pointer.is_symlink():
        found = pointer.parent / pointer.readlink()
    elif pointer.is_file():
        found = pointer.parent / pointer.read_text(encoding="utf-8").strip()
    elif pointer.exists():
        raise InputError(KEY, f"{pointer} is a folder, not a link", "name another folder")
    else:
        return None
    if not found.is_dir():
        raise InputError(KEY, f"{pointer} names {found}, which is not there", "see `rollback --to`")
    return found


def versions(target: str | Path) -> list[str]:
    """The versions that are kept, the oldest first."""
    folder = Path(target).absolute() / VERSIONS
    names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted((name for name in names if name.isdecimal()), key=int)


def read_record(version: Path) -> dict[str, Any]:
    """What ``promotion.json`` says of a version; nothing where others have put it there."""
    path = version / RECORD
    record: dict[str, Any] = storage.read_json(path) if path.is_file() else {}
    return record


def next_version(target: Path) -> str:
    """The name that the next version is given."""
    return f"{max(map(int, versions(target)), default=0) + 1:05d}"


def place(target: Path, version: str, model: Path, record: dict[str, Any]) -> Path:
    """Copies a model to its version folder, whole or not at all; it is not in service yet.

    Raises:
        PipelineError: Another promotion has taken the place, or the model changed meanwhile.
    """
    folder = target / VERSIONS / version
    try:
        with storage.new_folder(folder, replace=False) as aside:
            shutil.copytree(model, aside, dirs_exist_ok=True)
            if storage.digest_folder(aside) != record["model"]:
                raise PipelineError(f"{model} has changed while it was copied")
            storage.write_json(aside / RECORD, record)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise PipelineError(f"{folder} was taken by another promotion, run it again") from None
        raise
    return folder


def put_in_service(target: Path, version: str, why: str) -> None:
    """Makes a version the one in service, at once for every reader, and notes it."""
    before = served_name(target)
    pointer, content = target / CURRENT, f"{VERSIONS}/{version}"
    aside = target / f".{CURRENT}.{uuid.uuid4().hex[:8]}.part"
    try:
        aside.symlink_to(content)
        aside.replace(pointer)
    except OSError as error:
        if error.errno not in _WITHOUT_LINKS:
            raise
        storage.write_text(pointer, f"{content}\n")
    finally:
        aside.unlink(missing_ok=True)
    line = {"when": now(), "who": who(), "what": why, "version": version, "before": before}
    with (target / HISTORY).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def served_name(target: Path) -> str | None:
    """The name of the version that ``current`` leads to, be it there or not."""
    pointer = target / CURRENT
    if pointer.is_symlink():
        return pointer.readlink().name
    return Path(pointer.read_text(encoding="utf-8").strip()).name if pointer.is_file() else None


def predecessors(target: Path, version: str) -> Iterator[str]:
    """The versions that were in service before one, the latest first, as far as they are kept."""
    kept = set(versions(target))
    before = read_record(target / VERSIONS / version).get("replaces")
    while before in kept:
        yield before
        before = read_record(target / VERSIONS / before).get("replaces")


def prune(target: Path, version: str, keep: int) -> None:
    """Removes versions older than the one in service, but for so many that were so before it."""
    kept = {version, *list(predecessors(target, version))[:keep]}
    for name in versions(target):
        # A higher number may be a promotion that goes on at this moment.
        if name not in kept and int(name) < int(version):
            storage.remove_folder(target / VERSIONS / name)


def now() -> str:
    """The time, UTC, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def who() -> str:
    """User and host of this process."""
    try:
        user = getpass.getuser()
    except KeyError:  # A container's user may have a number and no name.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
