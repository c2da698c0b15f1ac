"""``restarts.json`` of a run: when it lost workers, why, and where it went on."""

from __future__ import annotations

from dataclasses import asdict

from pipelines.files import records, storage
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder
from pipelines.runs.run import Restart


def add_restart(run_folder: Location, restart: Restart) -> None:
    """Adds a restart, as the last one."""
    known = [*read_restarts(run_folder), restart]
    path = RunFolder(run_folder).restarts
    storage.write_json(path, [asdict(one) for one in known], durable=True)


def read_restarts(run_folder: Location) -> list[Restart]:
    """The restarts within all jobs of a run, the oldest first; none if there is no file.

    Raises:
        DamagedFileError: The file does not hold restarts.
    """
    path = RunFolder(run_folder).restarts
    known: list[Restart] = records.read(path, list[Restart]) if path.exists() else []
    return known
