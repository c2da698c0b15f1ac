"""Which task reads what: files are cut into splits, and splits dealt to tasks, by size alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipelines.catalog import FORMATS
from pipelines.files.compression import is_compressed
from pipelines.files.locations import Location

_SPLIT_BYTES = 64 << 20
_TASK_BYTES = 48 << 20
_MIN_TASK_BYTES = 4 << 20
_TASKS_PER_CORE = 3
_UNPACKED = 4
"""Bytes of text in a packed byte, about."""
_FILE_BYTES = 64 << 10
"""What opening a file costs, in bytes that could be read in that time, about."""


@dataclass(frozen=True)
class Split:
    """The records of a file that begin in a range of bytes.

    Attributes:
        file: Absolute path.
        start: First byte.
        stop: Byte after the last one; None for the end of the file.
        size: Bytes of text in it, about.
    """

    file: str
    start: int
    stop: int | None
    size: int


def split_file(file: Location, kind: str, *, multiline: bool = True) -> Iterator[Split]:
    """The splits of a file, which need not be there any more.

    Args:
        file: Absolute.
        kind: The format of it.
        multiline: Whether a quoted field of a CSV file may hold line ends.
    """
    try:
        size = file.stat().st_size
    except OSError:
        # Whoever reads it says so.
        size = 0
    if is_compressed(file):
        size *= _UNPACKED
    splits = not is_compressed(file) and FORMATS.load(kind).splits(file, multiline)
    if not splits or size <= _SPLIT_BYTES:
        yield Split(str(file), 0, None, size)
        return
    for start in range(0, size, _SPLIT_BYTES):
        stop = start + _SPLIT_BYTES if start + _SPLIT_BYTES < size else None
        yield Split(str(file), start, stop, min(_SPLIT_BYTES, size - start))


def pack(splits: Sequence[Split], cores: int) -> list[list[Split]]:
    """Deals splits to tasks, in their order, so that a task has enough to do and none too much.

    There are as many tasks as cores at least, where there are so many splits.
    """
    sizes = [split.size + _FILE_BYTES for split in splits]
    total = sum(sizes)
    share = max(total // (_TASKS_PER_CORE * cores), _MIN_TASK_BYTES)
    most = min(_TASK_BYTES, share, math.ceil(total / cores))
    tasks: list[list[Split]] = []
    held = math.inf
    for number, (split, size) in enumerate(zip(splits, sizes, strict=True)):
        is_scarce = len(tasks) + len(splits) - number <= cores
        if held + size > most or is_scarce:
            tasks.append([])
            held = 0
        tasks[-1].append(split)
        held += size
    return tasks
