"""Measures leaks: long trainings of every engine, or many short ones in one session."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from pipelines.compare.comparison import prepared
from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config
from pipelines.spark.session import stopped_at_the_end
from pipelines_bench.soak.cases import case_settings, named_cases, small_settings
from pipelines_bench.soak.record import (
    COUNT_BOUND,
    MEMORY_BOUND,
    PER,
    Growth,
    Record,
    read_record,
)
from pipelines_bench.soak.steps import soak_runs, soak_steps
from pipelines_bench.soak.watching import QUANTITIES, SESSION

logger = logging.getLogger(__name__)

DEFAULT_STEPS = 10_000
DEFAULT_FOLDER = "soak"
_TABLE_WIDTH = 170


def measure(
    config: Config,
    data: str | None,
    *,
    steps: int | None = None,
    runs: int | None = None,
    cases: str | None = None,
    output: str | None = None,
) -> dict[str, Any]:
    """Trains, prints how what processes hold has grown, and draws it.

    Args:
        config: Encoder, lanes and training are replaced.
        data: A prepared folder; by default the docstrings of Python itself are prepared.
        steps: Of each case; 10,000 unless given.
        runs: Makes so many short trainings in one session instead.
        cases: Names with commas; all of them by default. Those that were measured before in the
            same folder are shown with them.
        output: The folder of records and pictures; `soak` in the working folder by default.

    Returns:
        ``cases``: by case, the greatest growth of each quantity over all roles, by 1,000 steps or
        100 runs; ``broken``: what has grown beyond its bound, in words.

    Raises:
        InputError: There is no such case, or both steps and runs were asked for.
        PipelineError: A training failed.
    """
    names = named_cases(cases)
    if steps is not None and runs is not None:
        raise InputError("--runs", "a run has steps of its own", "Leave out --steps")
    folder = Path(output or DEFAULT_FOLDER).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    small = small_settings(config, folder / "prepared")
    with stopped_at_the_end():
        small = prepared(small, data)
    if runs is None:
        for name in names:
            _soak(small, name, steps or DEFAULT_STEPS, folder)
        records = _steps_records(folder)
    else:
        records = [soak_runs(small, runs, names, folder)]
    return _told(records, folder)


def _soak(config: Config, name: str, steps: int, folder: Path) -> None:
    """Measures a case; its record is kept as soon as it ends."""
    logger.info("soak: %s, %s steps", name, f"{steps:,}")
    next_part(name)
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder) as work:
        record = soak_steps(name, case_settings(config, name, Path(work) / "run", steps), folder)
    record.write(_steps_folder(folder) / f"{name}.json")


def _steps_folder(folder: Path) -> Path:
    return folder / "steps"


def _steps_records(folder: Path) -> list[Record]:
    """Of all cases that were measured in this folder, in their order."""
    paths = (_steps_folder(folder) / f"{name}.json" for name in named_cases(None))
    return [read_record(path) for path in paths if path.is_file()]


def _told(records: Sequence[Record], folder: Path) -> dict[str, Any]:
    from pipelines_bench.soak.picture import soak_picture

    axis = records[0].axis
    picture = folder / f"soak-{axis}s.svg"
    storage.write_text(picture, soak_picture(records))
    growths = {record.case: record.growths() for record in records}
    console = Screen()
    # Where output is no terminal, the table would be cut at eighty columns.
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(_table(growths, axis))
    console.print(f"picture  {picture}", soft_wrap=True, highlight=False)
    return {
        "per": PER[axis],
        "axis": axis,
        "bounds": {"memory": MEMORY_BOUND[axis], "counts": COUNT_BOUND},
        "cases": {case: greatest(found) for case, found in growths.items()},
        "broken": [
            f"{case}: {one.quantity} of {one.role}, {one.start:.1f} to {one.end:.1f}"
            for case, found in growths.items()
            for one in found
            if one.is_held is False
        ],
    }


def greatest(growths: Sequence[Growth]) -> dict[str, float]:
    """The greatest growth of each quantity, whichever role it is of."""
    found: dict[str, float] = {}
    for one in growths:
        found[one.quantity] = max(found.get(one.quantity, one.per), one.per)
    return found


def _table(growths: Mapping[str, Sequence[Growth]], axis: str) -> Table:
    """A row for each role: of each quantity where it began, where it ended, and its growth."""
    table = Table("case", "role", title=f"from a third on; growth by {PER[axis]:,} {axis}s")
    for quantity in QUANTITIES:
        table.add_column(quantity, justify="right")
    for case, found in growths.items():
        for role in dict.fromkeys(one.role for one in found if one.role != SESSION):
            told = {one.quantity: _growth(one) for one in found if one.role == role}
            table.add_row(case, role, *(told.get(quantity, "") for quantity in QUANTITIES))
        # These are no quantities of a process.
        for one in found:
            if one.role == SESSION:
                table.add_row(case, one.quantity, _growth(one))
    return table


def _growth(one: Growth) -> str:
    mark = {True: "", False: " GROWS", None: " ?"}[one.is_held]
    return f"{one.start:,.0f} to {one.end:,.0f} ({one.per:+.2f}){mark}"
