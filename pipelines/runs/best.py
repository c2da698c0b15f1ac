"""The best checkpoint of a run by a metric of the evaluations during training.

It lies in ``best`` in the run folder, without the optimiser's arrays, whatever becomes of the
checkpoints; ``best.json`` in it says how good it was. The file ``early_end.json`` of a run says
that it is to end, or has ended, before its last step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.files import records, storage
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder
from pipelines.runs.checkpoint import Checkpoint, load_state

_BEST = "best.json"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A figure of an evaluation, for instance `retrieval.ndcg@10`.

    Attributes:
        evaluation: Name of the evaluation of checkpoints.
        figure: Name of the figure.
        sign: 1 where more is better, and -1 where less is.
        asked_as: What the settings call it, where that is something else.
    """

    evaluation: str
    figure: str
    sign: int = 1
    asked_as: str = ""

    def __str__(self) -> str:
        return self.asked_as or f"{self.evaluation}.{self.figure}"

    def of(self, figures: Mapping[str, Mapping[str, float]]) -> float | None:
        """Its value among figures by evaluation and name."""
        return figures.get(self.evaluation, {}).get(self.figure)


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best state so far.

    Attributes:
        step: Before which it is.
        metric: By which.
        value: How good.
    """

    step: int
    metric: str
    value: float


def read_best(run_folder: Location, metric: str) -> Best | None:
    """What is known of the best state by a metric; None if none was kept by it."""
    path = RunFolder(run_folder).best / _BEST
    best: Best | None = records.read(path, Best) if path.is_file() else None
    return best if best is not None and best.metric == metric else None


def load_best(run_folder: Location) -> Checkpoint:
    """The best state, without the optimiser's arrays.

    Raises:
        TornCheckpoint: It is not whole.
    """
    return load_state(run_folder, RunFolder(run_folder).best)


def keep_if_best(
    run_folder: Location, metric: Metric, step: int, value: float, written: Path
) -> bool:
    """Keeps a state that is better than all before it.

    Args:
        value: Of the metric.
        written: The files of the state, on this machine; they are copied.

    Returns:
        Whether it was better.
    """
    known = read_best(run_folder, str(metric))
    if known is not None and metric.sign * value <= metric.sign * known.value:
        return False
    with storage.built_folder(RunFolder(run_folder).best) as folder:
        storage.copy_folder(written, folder)
        storage.write_json(folder / _BEST, asdict(Best(step=step, metric=str(metric), value=value)))
        storage.flush_tree(folder)
    return True


def measured_since(lines: Iterable[Mapping[str, Any]], metric: Metric, best: Best) -> int:
    """Evaluations after the best state.

    Args:
        lines: Of ``evaluations.jsonl``.
    """
    return len(
        {
            line["step"]
            for line in lines
            if line["evaluation"] == metric.evaluation
            and metric.figure in line
            and line["step"] > best.step
        }
    )


def compared_steps(
    lines: Iterable[Mapping[str, Any]], metric: Metric, best: Best | None
) -> set[int]:
    """Steps whose states were compared with the best of then.

    One whose figure was written down and that is better than the best is none of them: the driver
    has died before it was kept, or it was compared by another metric.

    Args:
        lines: Of ``evaluations.jsonl``.
        metric: By which.
        best: The best state by it.
    """
    if best is None:
        return set()
    figures = {
        line["step"]: metric.sign * line[metric.figure]
        for line in lines
        if line["evaluation"] == metric.evaluation and metric.figure in line
    }
    limit = metric.sign * best.value
    # A figure that is no number is not greater, and was found to be none.
    return {best.step} | {step for step, figure in figures.items() if not figure > limit}


def ask_to_end(run_folder: Location) -> None:
    """Asks the workers to end at their next checkpoint."""
    storage.write_json(RunFolder(run_folder).early_end, {}, durable=True)


def is_to_end(run_folder: Location) -> bool:
    """Whether the run was asked to end, and was not asked to go on since."""
    return RunFolder(run_folder).early_end.is_file()


def go_on_to_the_end(run_folder: Location) -> None:
    """Takes the request to end back."""
    RunFolder(run_folder).early_end.unlink(missing_ok=True)
