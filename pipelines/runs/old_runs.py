"""The removal of old runs beside a run, except the newest and the needed ones."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from pipelines.files import locks, storage
from pipelines.files.locations import Location, listed
from pipelines.files.ownership import OUTCOMES, RUN, foreign, is_run, shown
from pipelines.files.run_folder import RunFolder
from pipelines.settings import Config

OUTCOMES_SUFFIX = ".outcomes"
"""Added to a run's name, names the folder of a scheduler's job outcomes."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cleaned:
    """The removed and the kept runs."""

    removed: tuple[str, ...]
    kept: tuple[str, ...]


def remove_old_runs(config: Config, needed: Iterable[Location]) -> Cleaned:
    """Remove the runs beside ``run.folder``, except the newest ``run.keep`` and those ``needed``.

    The run of the settings stays. So do folders without a run, links, runs in use by a job, and
    runs with foreign files.
    """
    run_folder = RunFolder.of(config).path
    # Remains of killed removals.
    for gone in listed(run_folder.parent, ".*.gone"):
        if storage.is_aside(gone.name):
            storage.discard_folder(gone)
    stay = {path.resolve() for path in (run_folder, *needed)}
    removable = sorted(
        (path for path in _runs(run_folder.parent) if path.resolve() not in stay), key=_last_change
    )
    old = removable[: max(len(removable) - config.run.keep, 0)]
    removed = [path.name for path in old if _is_removed(path)]
    kept = [path.name for path in sorted(_runs(run_folder.parent), key=_last_change)]
    logger.info("removed %d runs, kept %d in %s", len(removed), len(kept), run_folder.parent)
    return Cleaned(tuple(removed), tuple(kept))


def _runs(folder: Location) -> list[Location]:
    # Folders set aside or half removed have a dot before their name.
    found = (path for path in listed(folder, "*") if not path.name.startswith("."))
    return [path for path in found if not path.is_symlink() and is_run(RunFolder(path))]


def _last_change(run: Location) -> float:
    """Return the time of a run's last write, in seconds; a resuming job writes its marks."""
    paths = RunFolder(run)
    files = (path for path in (*paths.marks, paths.metrics) if path.is_file())
    return max(path.stat().st_mtime for path in files)


def _is_removed(run: Location) -> bool:
    """Remove a run and return True, unless a job works on it or it holds the user's files."""
    outcomes = run.with_name(f"{run.name}{OUTCOMES_SUFFIX}")
    found = [*foreign(run, RUN, whole=True), *foreign(outcomes, OUTCOMES, whole=True)]
    if found:
        logger.warning("%s is kept: it holds other files (%s)", run, shown(found))
        return False
    try:
        # Released before the removal: the holder of a lock misses its file.
        with locks.held(run / locks.LOCK_FILE, "clean"):
            pass
    except locks.LockedError as error:
        logger.warning("%s is kept: it is in use by %s", run, error.holder)
        return False
    storage.remove_folder(run)
    if outcomes.is_dir():
        storage.remove_folder(outcomes)
    return True
