"""Which state of a run becomes its model: the last, the best, a mean, or one near the start.

The best by a metric of the evaluations during training lies in ``best`` in the run folder, without
the optimiser's arrays, whatever becomes of the checkpoints; ``best.json`` in it says how good it
was. The file ``early_end.json`` says that a run is to end, or has ended, before its last step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from pipelines.files import records, storage
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import CorpusFolder
from pipelines.files.run_folder import RunFolder
from pipelines.models.adaptation import DOWN, UP, Frozen, changed
from pipelines.models.folder import read_encoder
from pipelines.models.weights import Weights
from pipelines.runs.checkpoint import (
    Checkpoint,
    TornCheckpoint,
    checkpoint_steps,
    load_checkpoint,
    load_state,
)
from pipelines.settings import TrainingSettings

_BEST = "best.json"


logger = logging.getLogger(__name__)
TITLES = "titles"
"""A value of ``training.start_share``."""
WHOLE = 1.0
"""The model keeps the weights of the start as they are."""
_SHARE_WITH_TITLES = 0.5
FACTORS = "factors"
"""What a moving average is of with LoRA; the model has the product of the two."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A figure of an evaluation, for instance `retrieval.ndcg@10`.

    Attributes:
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
        """Return its value among figures by evaluation and name."""
        return figures.get(self.evaluation, {}).get(self.figure)


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best state so far."""

    step: int
    metric: str
    value: float


def read_best(run_folder: Location, metric: str) -> Best | None:
    """Return what is known of the best state by a metric; None if none was kept by it."""
    best = records.read_if_there(RunFolder(run_folder).best / _BEST, Best)
    return best if best is not None and best.metric == metric else None


def load_best(run_folder: Location) -> Checkpoint:
    """Return the best state, without the optimiser's arrays.

    Raises:
        TornCheckpoint: It is not whole.
    """
    return load_state(run_folder, RunFolder(run_folder).best)


def keep_if_best(
    run_folder: Location, metric: Metric, step: int, value: float, written: Path
) -> bool:
    """Keep a state if it is better than all before it, and return whether it was.

    Args:
        written: The files of the state, on this machine; they are copied.
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
    """Return how many evaluations there were after the best state.

    Args:
        lines: Of ``evaluations.jsonl``.
    """
    return sum(step > best.step for step in _values(lines, metric))


def compared_steps(
    lines: Iterable[Mapping[str, Any]], metric: Metric, best: Best | None
) -> set[int]:
    """Return the steps whose states were compared with the best of then.

    One whose figure was written down and that is better than the best is none of them: the driver
    has died before it was kept, or it was compared by another metric.

    Args:
        lines: Of ``evaluations.jsonl``.
    """
    if best is None:
        return set()
    limit = metric.sign * best.value
    # A figure that is no number is not greater, and was found to be none.
    figures = _values(lines, metric).items()
    return {best.step} | {step for step, value in figures if not metric.sign * value > limit}


def _values(lines: Iterable[Mapping[str, Any]], metric: Metric) -> dict[int, float]:
    """Return the values of a metric by step."""
    return {
        line["step"]: line[metric.figure]
        for line in lines
        if line["evaluation"] == metric.evaluation and metric.figure in line
    }


def ask_to_end(run_folder: Location) -> None:
    """Ask the workers to end at their next checkpoint."""
    storage.write_json(RunFolder(run_folder).early_end, {}, durable=True)


def is_to_end(run_folder: Location) -> bool:
    """Return whether the run was asked to end, and was not asked to go on since."""
    return RunFolder(run_folder).early_end.is_file()


def go_on_to_the_end(run_folder: Location) -> None:
    """Take the request to end back."""
    RunFolder(run_folder).early_end.unlink(missing_ok=True)


class _Statistics(TypedDict, total=False):
    """What is read of the statistics of a corpus, which have more."""

    titled: int


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A state, and why it is the one.

    Attributes:
        checkpoint: Whose ``encoder_weights`` the model has.
        reasons: For ``metrics.json``, beside the step: ``best_by`` and ``value``, ``averaged``
            (the steps of the checkpoints that it is the mean of), ``ema``, and ``ema_of``
            (:data:`FACTORS`) if that is not of the encoder's own weights, and ``start_share``.
    """

    checkpoint: Checkpoint
    reasons: Mapping[str, Any] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, Any]:
        """The choice for ``metrics.json``."""
        return {"step": self.checkpoint.step, **self.reasons}


def choose(
    run_folder: Location, training: TrainingSettings, last_step: int, share: float = 0.0
) -> Choice:
    """Return the state that becomes the model of a run.

    Args:
        training: ``keep_best``, ``average_checkpoints`` and ``ema`` say which.
        last_step: Of the newest checkpoint, which is the model unless they say otherwise.
    """
    chosen = _trained(run_folder, training, last_step)
    if not share:
        return chosen
    _, start = read_encoder(RunFolder(run_folder).start)
    state = _with_start(chosen.checkpoint, start, share)
    return Choice(checkpoint=state, reasons={**chosen.reasons, "start_share": share})


def start_share(training: TrainingSettings, corpus: CorpusFolder) -> float:
    """Return how much of the start's weights a model keeps, from 0 to :data:`WHOLE`.

    A title is like a question, and a piece of a text is not: three collections with titles gained
    by training, and of three without two lost; see the page on measurements.

    Args:
        corpus: Tells whether most documents have titles.
    """
    if training.start_share != TITLES:
        return float(training.start_share)
    known = records.read_if_there(corpus.statistics, _Statistics) or {}
    return WHOLE if known.get("titled", 0) < 0 else _SHARE_WITH_TITLES


def asked_steps(training: TrainingSettings, in_an_epoch: int, corpus: CorpusFolder) -> int:
    """Return how many steps a whole run makes: one where its model keeps the start's weights."""
    steps = in_an_epoch * training.epochs
    most = 1 if start_share(training, corpus) == WHOLE else training.max_steps
    return min(steps, most or steps)


def _trained(run_folder: Location, training: TrainingSettings, last_step: int) -> Choice:
    """Return the state of the training alone, whatever share of the start the model is to have."""
    best = read_best(run_folder, training.keep_best) if training.keep_best else None
    if best is not None:
        state = load_best(run_folder)
        reasons = {"best_by": best.metric, "value": best.value, **_ema(state, training)}
        return Choice(checkpoint=state, reasons=reasons)
    newest = load_checkpoint(run_folder, last_step, lazily=True)
    there = set(checkpoint_steps(run_folder))
    earlier = [step for step in training.averaged_steps(last_step)[:-1] if step in there]
    mean, steps = _mean(run_folder, newest, earlier) if earlier else (newest, [])
    if len(steps) <= 1:
        return Choice(checkpoint=newest, reasons=_ema(newest, training))
    return Choice(checkpoint=mean, reasons={"averaged": steps})


def told_choice(figures: Mapping[str, Any]) -> str:
    """Return a choice for people, from ``metrics.json``."""
    told = _told_state(figures)
    share = figures.get("start_share")
    if share == WHOLE:
        return "the start's weights, since most documents have no title"
    return told if share is None else f"{share:.0%} of the start and {1 - share:.0%} of {told}"


def _told_state(figures: Mapping[str, Any]) -> str:
    step = f"step {figures['step']:,}"
    if "averaged" in figures:
        steps = figures["averaged"]
        return f"the mean of the {len(steps)} checkpoints of steps {steps[0]:,} to {steps[-1]:,}"
    state = f"the state after {step}"
    if "ema" in figures:
        of = "the weights"
        if figures.get("ema_of") == FACTORS:
            of = "LoRA's factors, each by itself,"
        state = f"a moving average of {of} after {step} (decay {figures['ema']:g})"
    if "best_by" in figures:
        return f"{state}, the best by {figures['best_by']} ({figures['value']:.4g})"
    return state


def _ema(state: Checkpoint, training: TrainingSettings) -> dict[str, Any]:
    """Return what is said of a moving average."""
    if training.ema is None:
        return {}
    if any(name.endswith((DOWN, UP)) for name in state.weights):
        return {"ema": training.ema, "ema_of": FACTORS}
    return {"ema": training.ema}


def _mean(
    run_folder: Location, newest: Checkpoint, earlier: Sequence[int]
) -> tuple[Checkpoint, list[int]]:
    """Return the mean of the newest state and earlier ones, of which one is in memory at a time.

    With LoRA it is that of the encoder's weights: the product of its factors' means would be
    another encoder, since factors of two states may differ where their products do not.

    Returns:
        The mean, and the steps that it is of: a torn checkpoint is passed over, and a warning says
        so.
    """
    total, steps = _changed(newest), [newest.step]
    for step in reversed(earlier):
        try:
            weights = _changed(load_checkpoint(run_folder, step))
        except TornCheckpoint as torn:
            logger.warning(
                "a checkpoint is torn and is no part of the model"
                " (training.average_checkpoints): %s",
                torn,
            )
            continue
        steps.append(step)
        for name, value in weights.items():
            total[name] = total[name] + value
    mean = {name: value / len(steps) for name, value in total.items()}
    untouched = {name: value for name, value in newest.frozen.weights.items() if name not in mean}
    state = replace(newest, weights=mean, moments={}, frozen=Frozen(weights=untouched))
    return state, sorted(steps)


def _with_start(trained: Checkpoint, start: Weights, share: float) -> Checkpoint:
    """Return a state between the start and a trained one.

    Source: Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR 2022, whose `alpha` is
    one minus the share: a straight line between the weights of both, since the loss along it is
    low where the one was trained from the other.
    """
    kept = trained.frozen
    moved = changed(trained.averages, kept.weights, kept.scale)
    mixed = {name: share * start[name] + (1 - share) * value for name, value in moved.items()}
    untouched = {name: value for name, value in kept.weights.items() if name not in mixed}
    return replace(trained, weights=mixed, moments={}, frozen=Frozen(weights=untouched))


def _changed(state: Checkpoint) -> Weights:
    return changed(state.weights, state.frozen.weights, state.frozen.scale)
