"""Runs as their folders have recorded them, to be shown beside one another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder
from pipelines.report.comparison import Comparison, compare, read_lines, shown
from pipelines.report.page_parts import read_if_there
from pipelines.report.verdict import Verdict, verdict
from pipelines.runs.job_records import JobsRecord, read_jobs
from pipelines.settings.load import read_tree

KEY = "RUN"
MOST_RUNS = 12
"""Of more, the curves in one chart could not be told apart."""
_LONGEST_NAME = 29


@dataclass(frozen=True)
class RecordedRun:
    """What is known of a run.

    Attributes:
        name: Of its folder; see :func:`run_names`.
        folder: Where everything is.
        settings: By dotted keys, as the run has recorded them, without secrets.
        environment: Versions and machine.
        lines: Of ``metrics.jsonl``.
        evaluations: Lines of ``evaluations.jsonl``.
        comparisons: Its figures, before and after training.
        verdict: On its model, against its start; None where that is not known.
        sets: Digests of what was measured on, by the name of the evaluation.
        training: The figures of the training itself; empty where it has not ended.
        jobs: That have worked on it.
    """

    name: str
    folder: RunFolder
    settings: Mapping[str, Any]
    environment: Mapping[str, str]
    lines: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]
    comparisons: Sequence[Comparison]
    verdict: Verdict | None
    sets: Mapping[str, str]
    training: Mapping[str, Any]
    jobs: JobsRecord

    @property
    def has_finished(self) -> bool:
        """Whether it has come to its end, and left a model."""
        return bool(self.training) and self.folder.model.is_dir()


def check_run(folder: Location) -> None:
    """Refuses a folder that holds no run.

    Raises:
        InputError: There is no such folder, or no run in it.
    """
    if not folder.is_dir():
        raise InputError(KEY, f"there is no folder {folder}", "name the folder of a run")
    if not all(mark.is_file() for mark in RunFolder(folder).marks):
        raise InputError(
            KEY,
            f"{folder} holds no run",
            "name a folder that a training has written, with its config.yaml and environment.json",
        )


def check_runs(folders: Sequence[Location]) -> None:
    """Refuses folders that cannot be compared.

    Raises:
        InputError: One holds no run, one is named twice, or they are too many.
    """
    if len(folders) > MOST_RUNS:
        raise InputError(
            KEY,
            f"{len(folders)} runs cannot be told apart in one chart",
            f"name at most {MOST_RUNS}",
        )
    seen = set()
    for folder in folders:
        check_run(folder)
        place = folder.resolve()
        if place in seen:
            raise InputError(KEY, f"{folder} is named twice", "name each run once")
        seen.add(place)


def read_runs(folders: Sequence[Location]) -> list[RecordedRun]:
    """What is known of runs, in the order in which they are named."""
    names = run_names([str(folder.absolute()) for folder in folders])
    return [_read(folder, name) for folder, name in zip(folders, names, strict=True)]


def _read(folder: Location, name: str) -> RecordedRun:
    run = RunFolder(folder)
    figures: Mapping[str, Any] = read_if_there(run.metrics, storage.read_json) or {}
    return RecordedRun(
        name=name,
        folder=run,
        settings=dict(_flat(read_if_there(run.config, partial(read_tree, recorded=True)) or {})),
        environment=read_if_there(run.environment, storage.read_json) or {},
        lines=read_if_there(run.step_metrics, read_lines) or [],
        evaluations=read_if_there(run.evaluations, read_lines) or [],
        comparisons=compare(figures),
        verdict=verdict(figures),
        sets=figures.get("measured", {}).get("sets", {}),
        training=figures.get("training", {}),
        jobs=read_jobs(folder),
    )


def run_names(paths: Sequence[str]) -> list[str]:
    """The last parts of paths, as many as it takes for all to differ; long ones are shortened.

    Args:
        paths: All different.
    """
    parts = [path.rstrip("/").split("/") for path in paths]
    names = list(paths)
    for count in range(1, max(map(len, parts))):
        tails = ["/".join(path[-count:]) for path in parts]
        if len(set(tails)) == len(tails):
            names = tails
            break
    short = [_shortened(shown(name)) for name in names]
    return short if len(set(short)) == len(short) else names


def _shortened(name: str) -> str:
    """A name of which the middle is left out if it is long: people number runs at the end."""
    if len(name) <= _LONGEST_NAME:
        return name
    half = (_LONGEST_NAME - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
