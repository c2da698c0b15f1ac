"""``evaluations.jsonl`` of a run: what was measured after how many steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from typing_extensions import TypedDict

from pipelines.files import records, storage
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder


class EvaluationLine(TypedDict):
    """What every line has, beside figures by metric."""

    step: int
    evaluation: str


def add_evaluations(
    run_folder: Location, step: int, figures: Mapping[str, Mapping[str, float]]
) -> None:
    """Adds a line for each evaluation, in place of an earlier one of the same step.

    Args:
        step: Steps that had been made; 0 for the start.
        figures: By evaluation and metric, as :func:`pipelines.evaluation.stage.evaluate` gives
            them.
    """
    new = [{"step": step, "evaluation": name, **metrics} for name, metrics in figures.items()]
    kept = [
        line
        for line in read_evaluations(run_folder)
        if line["step"] != step or line["evaluation"] not in figures
    ]
    _write(run_folder, sorted([*kept, *new], key=lambda line: line["step"]))


def forget_evaluations(run_folder: Location, after: int) -> None:
    """Drops the lines of steps that are made again, those after a step."""
    lines = read_evaluations(run_folder)
    if any(line["step"] > after for line in lines):
        _write(run_folder, [line for line in lines if line["step"] <= after])


def read_evaluations(run_folder: Location) -> list[dict[str, Any]]:
    """The lines: ``step``, ``evaluation`` and the figures by metric; none if there is no file.

    Raises:
        DamagedFileError: A line is none of them.
    """
    return list(records.read_lines(RunFolder(run_folder).evaluations, EvaluationLine))


def _write(run_folder: Location, lines: list[dict[str, Any]]) -> None:
    storage.write_text(
        RunFolder(run_folder).evaluations, "".join(f"{json.dumps(line)}\n" for line in lines)
    )
