"""Refuses what a writer would publish in a folder that is no longer its own.

A job that was suspended, or cut off from the others, may go on after another one has taken its
folder over. So whoever works in a folder says how it is known that the folder is still its own, and
all that makes something appear in a folder asks here first, as the last thing before a rename or a
put.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipelines.files.locations import Location

# Read and changed by several threads: each use is one call, which Python does not interrupt.
_checks: list[tuple[Location, Callable[[], None]]] = []
"""Of this process: a folder, and what raises when the folder is another's."""


@contextmanager
def fence(folder: Location, check: Callable[[], None]) -> Iterator[None]:
    """Has all threads of this process publish in a folder only as long as a check passes.

    Args:
        folder: As its writers name it.
        check: Raises a `PipelineError` when the folder is another's.
    """
    entry = (folder, check)
    _checks.append(entry)
    try:
        yield
    finally:
        _checks.remove(entry)


def check_own(path: Location) -> None:
    """To be called before something appears at a place, or goes from there.

    Raises:
        PipelineError: It is in a folder that another job has taken over.
    """
    for folder, check in tuple(_checks):
        if folder == path or folder in path.parents:
            check()


# A child is another writer; and a check may need a lock that a thread of its parent held.
os.register_at_fork(after_in_child=_checks.clear)
