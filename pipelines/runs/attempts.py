"""The attempts on a run: the first start, each resume, each restart after a lost worker.

Their numbers are fencing tokens. An attempt begins with the file of the next number in ``attempts``
of the run folder. Only one process can make this file, which lists the inherited checkpoints. From
then on only these checkpoints and the attempt's own count; the number is part of a checkpoint's
name. So a late worker or driver of an earlier attempt neither replaces nor adds a valid checkpoint.

Writers first look for a later attempt, and end if there is one. A mount's cache may delay that
look; nothing depends on it.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from pipelines.errors import PipelineError
from pipelines.files import owners as fencing
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder

logger = logging.getLogger(__name__)

FIRST = 1
"""A run's first attempt; its checkpoints have the plain names."""
_CHECKPOINT = re.compile(r"step-(\d+)(?:-attempt-(\d+))?")
_RECORD = re.compile(r"(\d{8})\.json")
# Each try may lose the next number to another process.
_TRIES = 100

_begun: dict[Location, int] = {}
"""This process's attempt, by run folder."""


class SupersededError(PipelineError):
    """A later attempt on the run has begun, perhaps on another host."""


@dataclass(frozen=True)
class Attempts:
    """The known attempts on a run.

    Attributes:
        newest: The highest number given; 0 before the first.
        basis: The newest attempt with a whole file; 0 if there is none. An attempt with a torn file
            ended before it had begun.
        inherited: Names of the basis's checkpoints from earlier attempts.
    """

    newest: int
    basis: int
    inherited: frozenset[str]

    def accept(self, name: str) -> bool:
        """Return whether a checkpoint counts, by its name."""
        return name in self.inherited or _parsed(name)[1] >= self.basis


def checkpoint_name(step: int, attempt: int) -> str:
    """Return the name of an attempt's checkpoint before a step."""
    plain = f"step-{step:08d}"
    return plain if attempt <= FIRST else f"{plain}-attempt-{attempt}"


def accepted_checkpoints(run_folder: Location) -> dict[int, Location]:
    """Return the accepted checkpoints, whole or torn, by step, oldest first."""
    known = read_attempts(run_folder)
    # Of two of one step, the later attempt's is the last.
    names = sorted(filter(known.accept, _names(run_folder)), key=_parsed)
    return {_parsed(name)[0]: RunFolder(run_folder).checkpoints / name for name in names}


def read_attempts(run_folder: Location) -> Attempts:
    """Return the known attempts on a run."""
    numbers = _numbers(run_folder)
    for number in reversed(numbers):
        try:
            record = storage.read_json(_record(run_folder, number))
            inherited = frozenset(map(str, record["checkpoints"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            continue  # Its process was killed while it wrote this.
        return Attempts(numbers[-1], number, inherited)
    return Attempts(numbers[-1] if numbers else 0, 0, frozenset())


def begin_attempt(run_folder: Location, first_step: int | None) -> int:
    """Begin the next attempt and return its number; earlier ones have lost the run.

    Runs on the driver, under the run's lock if the storage has locks. The attempt inherits the
    checkpoints up to ``first_step``; none if it is None.

    Raises:
        PipelineError: Another job has taken over the run folder or the checkpoint.
    """
    fencing.check_own(run_folder)
    RunFolder(run_folder).attempts.mkdir(parents=True, exist_ok=True)
    for _ in range(_TRIES):
        known, checkpoints = read_attempts(run_folder), accepted_checkpoints(run_folder)
        steps = [] if first_step is None else [step for step in checkpoints if step <= first_step]
        # Runs of earlier releases have checkpoints, and no attempts.
        number = 1 + max([known.newest, *(_parsed(name)[1] for name in _names(run_folder))])
        if first_step is not None and first_step not in checkpoints:
            raise SupersededError(
                f"{run_folder}: the checkpoint before step {first_step} is gone, because attempt"
                f" {known.newest} on the run has begun"
            )
        if _is_begun(run_folder, number, [checkpoints[step].name for step in steps]):
            break
    else:
        raise PipelineError(f"{run_folder}: other jobs keep beginning attempts on the run")
    _remove_superseded(run_folder)
    return number


def _is_begun(run_folder: Location, number: int, checkpoints: list[str]) -> bool:
    """Begin an attempt unless another process has, and return whether this call did.

    Sets the number before its file exists. Otherwise another thread of this process could mistake
    the new file for a later attempt of another process.
    """
    before = _begun.get(run_folder)
    _begun[run_folder] = number
    is_made = False
    try:
        is_made = _create_record(_record(run_folder, number), checkpoints)
    finally:
        if not is_made and before is not None:
            _begun[run_folder] = before
        elif not is_made:
            del _begun[run_folder]
    return is_made


@contextmanager
def fenced(run_folder: Location, attempt: int | None = None) -> Iterator[None]:
    """Let this process write to a run folder only while its attempt is the newest.

    Without a number, this process's attempt is the last begun here.
    """
    if attempt is not None:
        _begun[run_folder] = attempt

    def check() -> None:
        # In this order, since this process may begin an attempt in between.
        newest, current = max(_numbers(run_folder), default=0), _begun[run_folder]
        if newest > current:
            raise SupersededError(
                f"{run_folder}: attempt {newest} on the run has begun, so attempt {current} may no"
                " longer write there"
            )

    with fencing.fence(run_folder, check):
        yield


def _record(run_folder: Location, number: int) -> Location:
    return RunFolder(run_folder).attempts / f"{number:08d}.json"


def _numbers(run_folder: Location) -> list[int]:
    names = (path.name for path in RunFolder(run_folder).attempts.glob("*.json"))
    return sorted(int(found[1]) for name in names if (found := _RECORD.fullmatch(name)))


def _names(run_folder: Location) -> list[str]:
    """Return the names of all checkpoints, of any attempt."""
    names = (path.name for path in RunFolder(run_folder).checkpoints.glob("step-*"))
    return [name for name in names if _CHECKPOINT.fullmatch(name)]


def _parsed(name: str) -> tuple[int, int]:
    """Return step and attempt of a checkpoint."""
    found = _CHECKPOINT.fullmatch(name)
    assert found is not None, "the name of a checkpoint"
    return int(found[1]), int(found[2] or FIRST)


def _create_record(path: Location, checkpoints: list[str]) -> bool:
    """Make the file of an attempt, durably, and return whether this call did."""
    record = {
        "checkpoints": checkpoints,
        "host": socket.gethostname(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "key": uuid.uuid4().hex,
    }
    content = f"{json.dumps(record, indent=2)}\n".encode()
    if not storage.create_file(path, content):
        return False
    storage.flush(path)
    storage.flush(path.parent)
    # A server that follows no conditions has let another one replace it.
    return path.read_bytes() == content


def _remove_superseded(run_folder: Location) -> None:
    """Remove the checkpoints of superseded attempts."""
    known = read_attempts(run_folder)
    for name in _names(run_folder):
        if not known.accept(name):
            try:
                storage.remove_folder(RunFolder(run_folder).checkpoints / name)
            except OSError as error:
                # Its name excludes it, so it costs disk space only.
                logger.warning("could not remove the superseded checkpoint %s: %s", name, error)
