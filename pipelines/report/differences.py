"""In which settings, and on which machines and versions, runs differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.report.tables import NOT_MEASURED
from pipelines.report.text import shown

_OF_THE_FOLDER = ("run.folder", "run.overwrite", "training.resume")
"""Where a run is, and whether it was begun or continued, says nothing of what it is."""


@dataclass(frozen=True)
class Row:
    """A line of a table that has a column for each run.

    Attributes:
        key: What it is of.
        values: Of each run, for people.
        groups: Of each run a number, and runs of equal values have equal ones; empty where it says
            nothing that they differ.
    """

    key: str
    values: tuple[str, ...]
    groups: tuple[int, ...] = ()


def differences(runs: Sequence[Mapping[str, Any]], without: Sequence[str] = ()) -> list[Row]:
    """What is not the same in all runs, in the order in which the first one has it.

    Args:
        runs: Values by key; one that a run does not have is a difference, too.
        without: Keys that are left out.
    """
    keys = dict.fromkeys(key for run in runs for key in run)
    found = []
    for key in keys:
        values = tuple(_told(run[key]) if key in run else NOT_MEASURED for run in runs)
        if len(set(values)) > 1 and key not in without:
            numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
            found.append(Row(key, values, tuple(numbers[value] for value in values)))
    return found


def setting_differences(runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The same of settings, but for those that differ in any two runs."""
    return differences(runs, _OF_THE_FOLDER)


def _told(value: Any) -> str:
    """A value as a settings file has it."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, list | tuple):
        return shown(f"[{', '.join(map(_told, value))}]")
    return shown(f"{value:g}" if isinstance(value, float) else str(value))
