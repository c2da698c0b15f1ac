"""The choice of a run's model: the last state, the best, a mean, or one near the start.

The best state by a metric of the evaluations during training lies in ``best`` of the run folder,
without the optimiser's arrays and independent of the checkpoints; ``best.json`` holds its value.
The file ``early_end.json`` marks the early end of a run, requested or reached.
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
from pipelines.models.adaptation import DOWN, OBJECTIVE, UP, Frozen, changed
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
KEPT_START = "kept_start"
"""The key of a model's figures with the reason to keep the start (``run.keep_start``)."""
WHOLE = 1.0
"""The share with which the model keeps the start weights unchanged."""
_SHARE_WITH_TITLES = 0.5
FACTORS = "factors"
"""The object of a moving average with LoRA; the model has the product of the two factors."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A figure of an evaluation, for instance `retrieval.ndcg@10`.

    Attributes:
        sign: 1 if more is better, -1 if less is.
        asked_as: Its name in the settings, if different.
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
    """Return the record of the best state by a metric; None if there is none."""
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
    """Copy a state's local files if it is the best so far, and return whether it is."""
    known = read_best(run_folder, str(metric))
    if known is not None and metric.sign * value <= metric.sign * known.value:
        return False
    with storage.built_folder(RunFolder(run_folder).best) as folder:
        storage.copy_folder(written, folder)
        storage.write_json(folder / _BEST, asdict(Best(step=step, metric=str(metric), value=value)))
        storage.flush_tree(folder)
    return True


def measured_since(lines: Iterable[Mapping[str, Any]], metric: Metric, best: Best) -> int:
    """Return the number of evaluations after the best state, by ``evaluations.jsonl``."""
    return sum(step > best.step for step in _values(lines, metric))


def compared_steps(
    lines: Iterable[Mapping[str, Any]], metric: Metric, best: Best | None
) -> set[int]:
    """Return the steps already compared with the best so far, by ``evaluations.jsonl``.

    This excludes a recorded step with a better value: the driver died before it kept that state, or
    the comparison used another metric.
    """
    if best is None:
        return set()
    limit = metric.sign * best.value
    # NaN is not greater than any limit, so its step counts as compared.
    figures = _values(lines, metric).items()
    return {best.step} | {step for step, value in figures if not metric.sign * value > limit}


def _values(lines: Iterable[Mapping[str, Any]], metric: Metric) -> dict[int, float]:
    return {
        line["step"]: line[metric.figure]
        for line in lines
        if line["evaluation"] == metric.evaluation and metric.figure in line
    }


def ask_to_end(run_folder: Location) -> None:
    """Ask the workers to end at their next checkpoint."""
    storage.write_json(RunFolder(run_folder).early_end, {}, durable=True)


def is_to_end(run_folder: Location) -> bool:
    """Return whether a request to end stands."""
    return RunFolder(run_folder).early_end.is_file()


def go_on_to_the_end(run_folder: Location) -> None:
    """Withdraw the request to end."""
    RunFolder(run_folder).early_end.unlink(missing_ok=True)


class _Statistics(TypedDict, total=False):
    """The keys read from a corpus's statistics, which have more."""

    titled: int


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A state, and the reasons for it.

    The model has the ``encoder_weights`` of ``checkpoint``. ``reasons`` go to ``metrics.json``,
    beside the step: ``best_by`` and ``value``; ``averaged``, the steps of a mean; ``ema``, with
    ``ema_of`` (:data:`FACTORS`) for an average of LoRA's factors; ``start_share``.
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
    """Return the state of a run's model, by the settings of the training.

    These are ``keep_best``, ``average_checkpoints`` and ``ema``; the default is the newest
    checkpoint, at ``last_step``.
    """
    chosen = _trained(run_folder, training, last_step)
    if not share:
        return chosen
    _, start = read_encoder(RunFolder(run_folder).start)
    state = _with_start(chosen.checkpoint, start, share)
    return Choice(checkpoint=state, reasons={**chosen.reasons, "start_share": share})


def start_share(training: TrainingSettings, corpus: CorpusFolder) -> float:
    """Return the share of the start weights in a model, from 0 to :data:`WHOLE`.

    With the setting `titles`, the share depends on titles in most documents. A title resembles a
    question, and a piece of a text does not: three collections with titles gained by training, and
    two of three without lost; see the page on measurements.
    """
    if training.start_share != TITLES:
        return float(training.start_share)
    known = records.read_if_there(corpus.statistics, _Statistics) or {}
    # `titled` is the documents with a title minus the ones without.
    return WHOLE if known.get("titled", 0) < 0 else _SHARE_WITH_TITLES


def asked_steps(training: TrainingSettings, in_an_epoch: int, corpus: CorpusFolder) -> int:
    """Return the steps of a whole run: one if its model keeps the start weights."""
    steps = in_an_epoch * training.epochs
    most = 1 if start_share(training, corpus) == WHOLE else training.max_steps
    return min(steps, most or steps)


def _trained(run_folder: Location, training: TrainingSettings, last_step: int) -> Choice:
    """Return the trained state, before the start weights get their share."""
    best = read_best(run_folder, training.keep_best) if training.keep_best else None
    if best is not None:
        state = load_best(run_folder)
        reasons = {"best_by": best.metric, "value": best.value, **_ema(state, training)}
        return Choice(checkpoint=state, reasons=reasons)
    newest = load_checkpoint(run_folder, last_step, lazily=True)
    available = set(checkpoint_steps(run_folder))
    earlier = [step for step in training.averaged_steps(last_step)[:-1] if step in available]
    mean, steps = _mean(run_folder, newest, earlier) if earlier else (newest, [])
    if len(steps) <= 1:
        return Choice(checkpoint=newest, reasons=_ema(newest, training))
    return Choice(checkpoint=mean, reasons={"averaged": steps})


def told_choice(figures: Mapping[str, Any]) -> str:
    """Describe a choice for people, from ``metrics.json``."""
    state = _describe_state(figures)
    share = figures.get("start_share")
    if KEPT_START in figures:
        return "the start weights, since the evaluation of the trained ones shows no gain"
    if share == WHOLE:
        return "the start weights, since most documents have no title"
    return state if share is None else f"{share:.0%} of the start and {1 - share:.0%} of {state}"


def _describe_state(figures: Mapping[str, Any]) -> str:
    step = f"step {figures['step']:,}"
    if "averaged" in figures:
        steps = figures["averaged"]
        return f"the mean of the {len(steps)} checkpoints of steps {steps[0]:,} to {steps[-1]:,}"
    state = f"the state after {step}"
    if "ema" in figures:
        averaged = "each LoRA factor" if figures.get("ema_of") == FACTORS else "the weights"
        state = f"a moving average of {averaged} after {step} (decay {figures['ema']:g})"
    if "best_by" in figures:
        return f"{state}, the best by {figures['best_by']} ({figures['value']:.4g})"
    return state


def _ema(state: Checkpoint, training: TrainingSettings) -> dict[str, Any]:
    """Return the reasons about a moving average."""
    if training.ema is None:
        return {}
    if any(name.endswith((DOWN, UP)) for name in state.weights):
        return {"ema": training.ema, "ema_of": FACTORS}
    return {"ema": training.ema}


def _mean(
    run_folder: Location, newest: Checkpoint, earlier: Sequence[int]
) -> tuple[Checkpoint, list[int]]:
    """Return the mean of the newest state and earlier ones, and its steps; skip torn checkpoints.

    It holds one earlier state in memory at a time. With LoRA it is the mean of the encoder's
    weights. The product of the factors' means would be another encoder: different factors may have
    the same product.
    """
    total, steps = _changed(newest), [newest.step]
    for step in reversed(earlier):
        try:
            weights = _changed(load_checkpoint(run_folder, step))
        except TornCheckpoint as torn:
            logger.warning(
                "leaving a torn checkpoint out of the mean (training.average_checkpoints): %s",
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

    Source: Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR 2022; its `alpha` is one
    minus the share. The straight line between both weights has a low loss, since one was trained
    from the other.
    """
    kept = trained.frozen
    moved = changed(trained.averages, kept.weights, kept.scale)
    mixed = {name: share * start[name] + (1 - share) * value for name, value in moved.items()}
    # Frozen weights still equal the start's, so a mix would not change them.
    untouched = {name: value for name, value in kept.weights.items() if name not in mixed}
    return replace(trained, weights=mixed, moments={}, frozen=Frozen(weights=untouched))


def _changed(state: Checkpoint) -> Weights:
    """Return the changed weights of the encoder, and those of the objective: a head is one."""
    of_encoder = changed(state.weights, state.frozen.weights, state.frozen.scale)
    kept = {name: state.weights[name] for name in state.weights if name.startswith(OBJECTIVE)}
    return of_encoder | kept
