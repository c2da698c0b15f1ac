"""The folder of the models for servers.

    target/
      current              the model in service: a symbolic link to versions/00004
      versions/00004/      a model folder, promotion.json: which run, when, by whom, figures, and
                           observations.parquet: the figures query by query
      history.jsonl        a line for each promotion and each rollback
      .lock, .copying.*    while a promotion, a rollback, or copying goes on

A version never changes, and a promotion replaces ``current`` atomically. A reader follows
``current`` once and loads from that folder: it gets all files of one model. All changes happen
inside :func:`exclusive`, except the copying of a model.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ConfigDict
from typing_extensions import TypedDict

from pipelines.errors import InputError, PipelineError
from pipelines.evaluation.intervals import Observations, write_observations
from pipelines.files import locks, records, storage
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location, as_local, listed, location
from pipelines.files.ownership import VERSION, foreign, is_ours, shown
from pipelines.files.run_folder import OBSERVATIONS
from pipelines.models.identity import (
    FIELD,
    PROMOTION_FILE,
    is_digest_of,
    is_hidden,
    model_digest,
    recorded_digest,
)
from pipelines.settings.spark import DEFAULT_STORES, StorageSettings

CURRENT = "current"
VERSIONS = "versions"
HISTORY = "history.jsonl"
RECORD = PROMOTION_FILE
KEY = "promotion.target"

WAIT_SECONDS = 10.0
"""How long a promotion waits for another one to end."""

ELSEWHERE = "Move it elsewhere, or name another folder"
_LONGEST_NAME = 256
_COPYING = ".copying"
_COPY = re.compile(r"\.[0-9a-f]{8}\.part")
# Both of earlier releases; the second form lacks the name of a process.
_LEFT_EARLIER = re.compile(r"\.\d+\.[^.]+-\d+-[0-9a-f]{8}\.(?:part|old)")
_HALF_REMOVED = re.compile(r"\.\d+\.old")

logger = logging.getLogger(__name__)


class _Record(TypedDict, total=False):
    """The fields of a record for later promotions, among others."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc] # as pydantic has it

    run: str
    model_digest: str
    identity: str | None
    when: str
    who: str
    replaces: str | None
    figures: dict[str, dict[str, int | float]]
    sets: dict[str, str]


def current(target: str | Location, stores: StorageSettings = DEFAULT_STORES) -> Path:
    """Return the local folder of the model in service (``promotion.target``), for servers.

    From a store, this copies the model once, and compares it with the digest of its promotion. The
    copy does not follow later promotions: call again to get a newer model.

    Raises:
        InputError: Nothing is in service, or the copy differs from the promoted model.
    """
    folder = served_model(location(target, stores))
    if folder is None:
        raise nothing_in_service(target)
    wanted = recorded_digest(read_record(folder))

    def check(copy: Path) -> None:
        if wanted is not None and not is_digest_of(wanted, copy):
            raise InputError(
                KEY,
                f"{folder} differs from the promoted model",
                "Put a version in service with `rollback --to`, or promote again",
            )

    return local_folder(folder, check)


def nothing_in_service(target: str | Location) -> InputError:
    """Return the error for a target without a model in service."""
    return InputError(KEY, f"nothing is in service in {target}", "Promote a model first")


def served_model(target: str | Location) -> Location | None:
    """Return the version folder of the model in service, if any; it never changes.

    Raises:
        InputError: No promotion wrote ``current``, or it leads nowhere.
    """
    folder = location(target).absolute()
    found = _pointed(folder)
    if found is not None and not found.is_dir():
        pointer = folder / CURRENT
        remedy = "Put a version in service with `rollback --to`"
        raise InputError(KEY, f"{pointer} names {found}, which does not exist", remedy)
    return found


def served_name(target: Location) -> str | None:
    """Return the version name in ``current``, even if the version does not exist.

    Raises:
        InputError: No promotion wrote ``current``.
    """
    found = _pointed(target)
    return None if found is None else found.name


def _pointed(target: Location) -> Location | None:
    pointer = target / CURRENT
    local = as_local(pointer)
    if local is not None and local.is_symlink():
        found: Location = target / str(local.readlink())
    elif pointer.is_file():
        text = pointer.read_text("utf-8", "replace").strip()
        named = text.split("/")
        # An address in a store does not go up, and a name from elsewhere may be anything.
        is_name = text.isprintable() and len(text.encode()) < _LONGEST_NAME
        is_inside = is_name and ".." not in named and all(named)
        found = target.joinpath(*named) if is_inside else pointer
    elif pointer.exists():
        raise InputError(KEY, f"{pointer} is a folder, not a link", "Name another folder")
    else:
        return None
    if found.parent.resolve() != (target / VERSIONS).resolve():
        problem = f"{pointer} names {found}, which is no version of this folder"
        raise InputError(KEY, problem, ELSEWHERE)
    return found


def versions(target: str | Location) -> list[str]:
    """Return the kept versions, the oldest first."""
    folder = location(target).absolute() / VERSIONS
    found = (path for path in listed(folder, "*") if path.name.isdecimal())
    # In a store, `place` writes the record last, so a version without one is incomplete.
    complete = (path for path in found if as_local(path) or (path / RECORD).is_file())
    return sorted((path.name for path in complete), key=int)


def read_record(version: Location) -> dict[str, Any]:
    """Return the ``promotion.json`` of a version; empty for a version put there by hand.

    Raises:
        DamagedFileError: The file is no record.
    """
    path = version / RECORD
    record: dict[str, Any] = records.read(path, _Record) if path.is_file() else {}
    return record


def read_history(target: Location) -> list[dict[str, Any]]:
    """Return the lines, the oldest first, without torn ones of killed processes."""
    return [line for line in map(_parsed, _lines(target)) if line is not None]


def add_to_history(target: Location, line: Mapping[str, Any]) -> None:
    """Append a line atomically; it replaces a torn one at the end."""
    lines = _lines(target)
    if lines and _parsed(lines[-1]) is None and _is_torn(lines[-1]):
        lines.pop()
    text = "".join(f"{kept}\n" for kept in [*lines, json.dumps(line)])
    storage.write_text(target / HISTORY, text, durable=True)


def _is_torn(line: str) -> bool:
    """Return whether a line is the beginning of an entry; lines of other tools are not."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return line.startswith("{")
    return False


def _lines(target: Location) -> list[str]:
    path = target / HISTORY
    # A process may have been killed between the bytes of one character.
    return path.read_text("utf-8", "replace").splitlines() if path.is_file() else []


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("version"), str):
        return None
    return found if isinstance(found.get("before"), str | None) else None


def check_target(target: Location) -> None:
    """Refuse a target in which a promotion would replace foreign files.

    Raises:
        InputError: A file was not written by a promotion.
    """
    served_name(target)
    folder, history = target / VERSIONS, target / HISTORY
    if folder.exists() and not folder.is_dir():
        raise InputError(KEY, f"{folder} is a file", ELSEWHERE)
    lines = [line for line in _lines(target) if line.strip()]
    # A torn line of ours is no sign of a foreign file.
    is_foreign = lines and all(_parsed(line) is None and not _is_torn(line) for line in lines)
    if history.exists() and (history.is_dir() or is_foreign):
        raise InputError(KEY, f"{history} is no history of promotions", ELSEWHERE)


@contextmanager
def exclusive(target: Location) -> Iterator[None]:
    """Lock the folder against other changes, and clear up after killed processes.

    Raises:
        PipelineError: Another promotion goes on, and does not end within seconds.
    """
    target.mkdir(parents=True, exist_ok=True)
    with _lock(target, locks.LOCK_FILE):
        for name in (CURRENT, HISTORY):
            storage.remove_asides(target / name)
        # Versions whose removal was killed.
        for folder in (target / VERSIONS).glob(".*"):
            is_half = _HALF_REMOVED.fullmatch(folder.name) and is_ours(folder, VERSION)
            if storage.is_aside(folder.name) or _LEFT_EARLIER.fullmatch(folder.name) or is_half:
                _remove(folder)
        _remove_abandoned_copies(target)
        _add_missing_line(target)
        yield


@contextmanager
def _lock(target: Location, name: str, *, shared: bool = False) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            held = locks.held(target / name, "promote", shared=shared, wait_seconds=WAIT_SECONDS)
            stack.enter_context(held)
        except locks.ForeignLockError as error:
            problem = f"{error.file} has the name of a lock, and no job wrote it"
            raise InputError(KEY, problem, ELSEWHERE) from None
        except locks.LockedError as error:
            problem = f"another promotion is running in {target} ({error.holder})"
            raise PipelineError(f"{problem}. Run it again later.") from None
        yield


def _remove_abandoned_copies(target: Location) -> None:
    # A copy in progress holds the lock, and stays. A store without locks cannot show which copies
    # are in progress, so all stay.
    with suppress(locks.LockedError), locks.held(target / _COPYING, "promote") as lock:
        for folder in (target / VERSIONS).glob(".*.part") if lock is not None else ():
            if _COPY.fullmatch(folder.name):
                _remove(folder)


def _add_missing_line(target: Location) -> None:
    """Add the history line of a process killed after it had replaced ``current``."""
    entries = read_history(target)
    current, noted = served_name(target), entries[-1]["version"] if entries else None
    if current is None or current == noted:
        return
    record = read_record(target / VERSIONS / current)
    is_recorded = {"who", "when", "replaces"} <= record.keys()
    if is_recorded and all(entry["version"] != current for entry in entries):
        line = _entry(record["when"], record["who"], "promoted", current, record["replaces"])
    else:
        # The link's time is that of the change; its author is unknown.
        # `lstat` reads the link itself, not the version.
        changed = datetime.fromtimestamp((target / CURRENT).lstat().st_mtime, UTC)
        line = _entry(_formatted(changed), None, "rolled back", current, noted)
    add_to_history(target, line)


@contextmanager
def copied(
    target: Location,
    model: Location,
    record: dict[str, Any],
    observations: Mapping[str, Observations],
) -> Iterator[Location]:
    """Yield a copy of a model beside the versions; it is removed after the block unless placed.

    Copying takes no lock: others may promote meanwhile. ``record`` is stored beside the model, as
    are the ``observations`` behind its figures, for the next comparison.

    Raises:
        PipelineError: The model has changed meanwhile.
    """
    folder = target / VERSIONS
    folder.mkdir(parents=True, exist_ok=True)
    _remove_abandoned_copies(target)
    with _lock(target, _COPYING, shared=True):
        aside = folder / f".{uuid.uuid4().hex[:8]}.part"
        try:
            _copy(model, aside)
            if model_digest(aside) != record[FIELD]:
                raise PipelineError(f"{model} changed during its copy. Promote it again.")
            if observations:
                write_observations(aside / OBSERVATIONS, observations)
            storage.write_json(aside / RECORD, record)
            storage.flush_tree(aside)
            yield aside
        finally:
            storage.discard_folder(aside)


def _copy(model: Location, copy: Location) -> None:
    """Copy the files of a model, without those outside of its digest, such as a `.git`."""
    for name in storage.file_names(model):
        if not is_hidden(name):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            storage.copy_file(model / name, copy / name)


def place(target: Location, copy: Location) -> str:
    """Make a copy the next version, not yet in service, and return its name."""
    # Incomplete versions, and the user's folders, have numbers too.
    folders = (path.name for path in listed(target / VERSIONS, "*"))
    numbers = [*folders, *(line["version"] for line in read_history(target))]
    name = f"{max(map(_number, numbers), default=0) + 1:05d}"
    version = target / VERSIONS / name
    if as_local(copy):
        storage.move_folder(copy, version)
    else:
        record = read_record(copy)
        (copy / RECORD).unlink()
        storage.move_folder(copy, version)
        storage.write_json(version / RECORD, record)
    # On the disk before `current` can name it.
    storage.flush(target / VERSIONS)
    storage.flush(target)
    return name


def put_in_service(target: Location, version: str, why: str) -> None:
    """Put a version in service, atomically for every reader, and note it.

    Raises:
        PipelineError: Another promotion has taken over the lock of this one.
    """
    locks.check_held()
    before = served_name(target)
    storage.point(target / CURRENT, f"{VERSIONS}/{version}")
    add_to_history(target, _entry(now(), who(), why, version, before))


def predecessors(target: Location, version: str) -> Iterator[str]:
    """Yield the kept predecessors of a version in service, the latest first."""
    # Each one once, so that records naming each other cannot loop.
    kept = set(versions(target)) - {version}
    before = read_record(target / VERSIONS / version).get("replaces")
    while before in kept:
        kept.remove(before)
        yield before
        before = read_record(target / VERSIONS / before).get("replaces")


def rolled_back_version(target: Location, model: Location) -> str | None:
    """Return the newest kept and rolled back version of a model, if any.

    Such a version was in service once and has a higher number than the one in service. Versions
    left by killed promotions were never in service.
    """
    entries = read_history(target)
    served = {entry["version"] for entry in entries} | {entry.get("before") for entry in entries}
    current = _number(served_name(target))
    for name in reversed(versions(target)):
        newer = int(name) > current and name in served
        known = recorded_digest(read_record(target / VERSIONS / name)) if newer else None
        if is_digest_of(known, model):
            return name
    return None


def prune(target: Location, keep: int) -> None:
    """Remove versions older than the one in service, except its last ``keep`` predecessors."""
    current = served_name(target)
    if current is None:
        return
    kept = {current, *list(predecessors(target, current))[:keep]}
    for name in versions(target):
        # A rolled back version has a higher number, and may be wanted again.
        if name in kept or int(name) >= _number(current):
            continue
        version = target / VERSIONS / name
        if not is_ours(version, VERSION):
            logger.info("%s is kept: no promotion wrote it", version)
        elif found := _foreign(version):
            logger.warning("%s is kept: it holds other files (%s)", version, shown(found))
        else:
            _remove(version)


def _foreign(version: Location) -> list[str]:
    """Return the user's files in a version, without the extra files of a hub model."""
    found = foreign(version, VERSION, whole=True)
    known = recorded_digest(read_record(version)) if found else None
    if not is_digest_of(known, version):
        return found
    # The digest leaves hidden files out, and so do promotions; those of earlier releases did not.
    return [name for name in found if is_hidden(name)] if known == model_digest(version) else []


def _remove(folder: Location) -> None:
    """Remove a folder, or leave it to the next promotion: NFS keeps files open on this machine."""
    local = as_local(folder)
    if local is None:
        (folder / RECORD).unlink(missing_ok=True)
        storage.discard_folder(folder)
        return
    try:
        if not local.name.startswith("."):
            # Under another name, half a removed folder is no version.
            local = local.rename(storage.aside_name(local, ".gone"))
        shutil.rmtree(local)
    except OSError as error:
        logger.warning("the next promotion will remove %s: %s", local, error)


def now() -> str:
    """Return the time, UTC, in ISO 8601."""
    return _formatted(datetime.now(UTC))


def who() -> str:
    """Return user and host of this process."""
    try:
        user = getpass.getuser()
    except KeyError:  # A container's user may have a number and no name.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _number(version: str | None) -> int:
    """Return the number of a version; 0 for a folder put there by hand."""
    return int(version) if version is not None and version.isdecimal() else 0


def _entry(
    when: str, by: str | None, why: str, version: str, before: str | None
) -> dict[str, str | None]:
    return {"when": when, "who": by, "what": why, "version": version, "before": before}


def _formatted(time: datetime) -> str:
    return time.isoformat(timespec="seconds")
