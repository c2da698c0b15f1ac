"""``metrics.json`` of a run: its results, for reports, gates and people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import ConfigDict
from typing_extensions import TypedDict

from pipelines.files import records, storage
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder
from pipelines.runs.metrics_log import read_metrics_lines
from pipelines.runs.restarts import read_restarts
from pipelines.runs.run import TrainingOutcome, TrainingRun


class _Model(TypedDict, total=False):
    step: int


class _Record(TypedDict, total=False):
    """What is read again of ``metrics.json``, which has more."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc] # as pydantic has it

    model: _Model


_OF_AN_EARLIER_MODEL = (
    *("training", "model", "after", "interval", "sets", "measured"),
    *("weight_change", "signs", "overlap", "doubts"),
)


def update_run_metrics(folder: Location, figures: Mapping[str, Any]) -> None:
    """Adds figures to the record, in place of earlier ones of the same names.

    Args:
        folder: Folder of the run.
        figures: By names such as ``training``, ``before`` and ``after``.
    """
    storage.write_json(RunFolder(folder).metrics, _read(folder) | dict(figures))


def model_step(folder: Location) -> int | None:
    """The step of the state that the model of a run was made of; None if that is not known."""
    step: int | None = _read(folder).get("model", {}).get("step")
    return step


def forget_earlier_model(folder: Location) -> None:
    """Takes out what is no longer true once a run that had a model goes on."""
    known = _read(folder)
    if known:
        left = {name: known[name] for name in known if name not in _OF_AN_EARLIER_MODEL}
        storage.write_json(RunFolder(folder).metrics, left)
    RunFolder(folder).samples.unlink(missing_ok=True)
    RunFolder(folder).observations.unlink(missing_ok=True)


def training_figures(
    run: TrainingRun, outcome: TrainingOutcome, seconds_before: float
) -> dict[str, Any]:
    """What the training was, from its first step on, also of a run that was resumed.

    ``metrics.jsonl`` holds it to the last step.

    Args:
        run: Tells which steps had been made before.
        outcome: Of the steps since.
        seconds_before: That those before took; see :func:`seconds_to`.
    """
    lines = list(read_metrics_lines(run.run_folder))
    figures: dict[str, Any] = {
        "steps": run.first_step + outcome.steps,
        "examples": run.first_step * run.examples_per_step + outcome.examples,
        "seconds": round(seconds_before + outcome.seconds, 2),
        "examples_per_second": round(outcome.examples_per_second, 2),
        **_loss_figures(run, lines),
    }
    figures |= _cpu_figures(lines)
    if outcome.precision is not None:
        figures["precision"] = outcome.precision
    if outcome.staleness is not None:
        figures |= {
            "staleness_mean": round(outcome.staleness.mean, 3),
            "staleness_max": outcome.staleness.most,
        }
    if restarts := read_restarts(run.run_folder):
        figures["restarts"] = [asdict(restart) for restart in restarts]
    return figures


def logged_figures(run: TrainingRun) -> dict[str, Any] | None:
    """The figures of a training whose driver died behind its last step, from its log.

    Returns:
        None if they are in the record, or there is no log.
    """
    lines = list(read_metrics_lines(run.run_folder))
    if not lines or "training" in _read(run.run_folder):
        return None
    examples = run.last_step * run.examples_per_step
    seconds = seconds_to(run.run_folder, run.last_step)
    return {
        "steps": run.last_step,
        "examples": examples,
        "seconds": round(seconds, 2),
        "examples_per_second": round(examples / max(seconds, 1e-9), 2),
        **_loss_figures(run, lines),
        **_cpu_figures(lines),
    }


def _cpu_figures(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """CPU time of all workers for all steps; nothing where that of some is not known."""
    if not all("cpu_seconds" in line for line in lines):
        return {}
    return {"cpu_seconds": round(math.fsum(line["cpu_seconds"] for line in lines), 2)}


def _loss_figures(run: TrainingRun, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The last loss that was logged, the largest one, and the objectives that they are of.

    Losses are means over the steps of their lines, as the console has them. The loss of the last
    step alone would be another number, of one batch.
    """
    objectives = dict.fromkeys(one.objective.name for one in run.config.by_source())
    return {
        "final_loss": float(lines[-1]["loss"]),
        "largest_loss": max(float(line["loss"]) for line in lines),
        "objectives": list(objectives),
    }


def seconds_to(folder: Location, step: int) -> float:
    """The seconds that the steps up to one took, of all tries, as ``metrics.jsonl`` has them.

    A try counts its seconds from its own first step.
    """
    total = last = 0.0
    for line in read_metrics_lines(folder):
        if line["step"] > step:
            break
        if line["seconds"] < last:
            total += last
        last = line["seconds"]
    return total + last


def _read(folder: Location) -> dict[str, Any]:
    path = RunFolder(folder).metrics
    known: dict[str, Any] = dict(records.read(path, _Record)) if path.exists() else {}
    return known
