"""Measures a step: torch and TensorFlow here, sentence-transformers' trainer, and Horovod.

All make the same kind of step from the same weights on the same pairs: forward, back, AdamW, on as
many pairs as a granule has, on one thread. Each trainer is a process of its own. They make some
steps in turn while the others wait, for several rounds, and each round gives its own ratios, of
which the median counts; so a machine that is slow for a while is slow for all. Time is CPU time of
the process: on one thread that is the time it takes, less what others take of the core.

sentence-transformers' trainer has MultipleNegativesRankingLoss and random batches, and is measured
in two forms. From ids its batches are made of the token ids of the prepared folder, as those of the
others are. From texts it is taken as it comes, and tokenises in its step. In both it keeps the
dropout of the checkpoint; here there is none unless ``training.dropout`` is set.

Horovod's rate per core is compared with that of as many single processes that train side by side,
each for itself: cores share caches and memory whatever runs on them.

Without the instructions for it a CPU takes many times as long in bf16 as in fp32, so there only
fp32 is measured.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.table import Table

from pipelines.compare.comparison import prepared
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.lanes.files import LaneManifest
from pipelines.models.inference.processor import computes_in_bf16
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config
from pipelines.settings import load as configuration
from pipelines_bench.ordered import OrderedProcess, ordered_process
from pipelines_bench.rates import training_rate

ROUNDS = 5
STEPS = 8
WARM_UP_STEPS = 16
"""TensorFlow compiles kernels for each new number of rows, of which there are a few dozen."""
HOROVOD_WORKERS = 2
HOROVOD_ROUNDS = 3
HOROVOD_STEPS = 24
LEARNING_RATE = 2e-5

_THEIRS = "sentence-transformers"


@dataclass(frozen=True)
class Contender:
    """A trainer with its settings.

    Attributes:
        trainer: A name of :data:`pipelines_bench.trainers.TRAINERS`.
        framework: Who computes.
        precision: Of the matrix products.
    """

    trainer: str
    framework: str
    precision: str


CONTENDERS = {
    "torch bf16": Contender("here", "torch", "bf16"),
    "torch fp32": Contender("here", "torch", "fp32"),
    "tensorflow bf16": Contender("here", "tensorflow", "bf16"),
    "tensorflow fp32": Contender("here", "tensorflow", "fp32"),
    "sentence-transformers from ids, bf16": Contender(f"{_THEIRS} from ids", "torch", "bf16"),
    "sentence-transformers from ids, fp32": Contender(f"{_THEIRS} from ids", "torch", "fp32"),
    "sentence-transformers from texts, bf16": Contender(f"{_THEIRS} from texts", "torch", "bf16"),
    "sentence-transformers from texts, fp32": Contender(f"{_THEIRS} from texts", "torch", "fp32"),
}
_OVER_THEIRS = (("bf16", "fp32"), ("bf16", "bf16"), ("fp32", "fp32"))
"""Precisions of torch here and of their trainer, whose rates are compared."""


def measure(config: Config, data: str | None, *, runs: int | None = None) -> dict[str, Any]:
    """Runs the comparison.

    Args:
        config: Its training settings are replaced.
        data: See :func:`pipelines.compare.comparison.prepared`.
        runs: Rounds; 5 unless given, and of Horovod 3 at most.

    Returns:
        ``torch_bf16_vs_st_fp32_ratio``, ``torch_bf16_vs_st_bf16_ratio`` and
        ``torch_fp32_vs_st_fp32_ratio``: pairs per CPU second over those of sentence-transformers'
        trainer, from token ids; the same names with ``_from_texts``: where that trainer takes
        texts; ``tensorflow_vs_torch_time_ratio``: CPU time of the faster TensorFlow step over
        that of the faster torch step; ``horovod_per_core_ratio``: Horovod's rate over that of as
        many processes for themselves; and the rates. A ratio of what cannot be measured here is
        None.
    """
    config = prepared(config, data)
    told = {"dropout": config.training.dropout or 0.0}
    config = config.model_copy(update={"training": config.training.model_copy(update=told)})
    granule = LaneManifest.load(PreparedFolder.of(config).lanes.path).granule
    precisions = ("bf16", "fp32") if computes_in_bf16() else ("fp32",)
    rounds = runs or ROUNDS
    contenders = {n: one for n, one in CONTENDERS.items() if one.precision in precisions}
    rates = _step_rates(config, granule, contenders, rounds)
    per_core = _horovod_per_core(config, granule, min(rounds, HOROVOD_ROUNDS))
    _print(rates)
    torch, tensorflow = (
        max(statistics.median(rates[f"{framework} {precision}"]) for precision in precisions)
        for framework in ("torch", "tensorflow")
    )
    return {
        **_over_theirs(rates, "ids", ""),
        **_over_theirs(rates, "texts", "_from_texts"),
        "tensorflow_vs_torch_time_ratio": round(torch / tensorflow, 4),
        "horovod_per_core_ratio": per_core,
        "pairs_per_cpu_second": {
            name: [round(rate, 2) for rate in values] for name, values in rates.items()
        },
    }


def _step_rates(
    config: Config, granule: int, contenders: Mapping[str, Contender], rounds: int
) -> dict[str, list[float]]:
    """Pairs per CPU second of each contender, round by round."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    with ExitStack() as stack:
        trainers = {
            name: stack.enter_context(_trainer(config, contender))
            for name, contender in contenders.items()
        }
        for name, trainer in trainers.items():
            next_part(f"warming up, {name}")
            trainer.order(WARM_UP_STEPS)
            trainer.answer()
        for round_number in range(rounds):
            # Another order each round, so that none always follows the same one.
            names = [*contenders][round_number:] + [*contenders][:round_number]
            for name in names:
                next_part(f"round {round_number + 1} of {rounds}, {name}")
                trainers[name].order(STEPS)
                rates[name].append(granule * STEPS / trainers[name].answer()["cpu_seconds"])
    return rates


def _horovod_per_core(config: Config, granule: int, rounds: int) -> float | None:
    """Horovod's pairs per second over those of as many processes, each for itself."""
    if find_spec("horovod") is None:
        return None
    next_part("Horovod and single processes")
    contender, ratios = CONTENDERS["torch fp32"], []
    settings: dict[str, Any] = {
        "framework": contender.framework,
        "precision": contender.precision,
        "granules_per_step": HOROVOD_WORKERS,
        "workers": HOROVOD_WORKERS,
        "threads": 1,
    }
    with ExitStack() as stack:
        alone = [stack.enter_context(_trainer(config, contender)) for _ in range(HOROVOD_WORKERS)]
        _together(alone, WARM_UP_STEPS)
        for _ in range(rounds):
            answers = _together(alone, HOROVOD_STEPS)
            single = sum(granule * HOROVOD_STEPS / answer["seconds"] for answer in answers)
            together = training_rate(config, HOROVOD_STEPS, engine="horovod", **settings)
            ratios.append(together / single)
    return round(statistics.median(ratios), 4)


def _together(trainers: Sequence[OrderedProcess], steps: int) -> list[Mapping[str, float]]:
    for trainer in trainers:
        trainer.order(steps)
    return [trainer.answer() for trainer in trainers]


@contextmanager
def _trainer(config: Config, contender: Contender) -> Iterator[OrderedProcess]:
    """A process of :mod:`pipelines_bench.trainers`."""
    training = config.training.model_copy(
        update={
            "framework": contender.framework,
            "precision": contender.precision,
            "threads": 1,
            "learning_rate": LEARNING_RATE,
        }
    )
    name, module = contender.trainer, "pipelines_bench.trainers"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(configuration.dump(config.model_copy(update={"training": training})))
        with ordered_process(f"the trainer {name}", module, [name, str(path)]) as process:
            yield process


def _over_theirs(
    rates: Mapping[str, Sequence[float]], form: str, suffix: str
) -> dict[str, float | None]:
    """The ratios over sentence-transformers' trainer that takes `form`."""
    return {
        f"torch_{ours}_vs_st_{theirs}_ratio{suffix}": _ratio(
            rates, f"torch {ours}", f"{_THEIRS} from {form}, {theirs}"
        )
        for ours, theirs in _OVER_THEIRS
    }


def _ratio(rates: Mapping[str, Sequence[float]], ours: str, theirs: str) -> float | None:
    if ours not in rates or theirs not in rates:
        return None
    pairs = zip(rates[ours], rates[theirs], strict=True)
    return round(statistics.median(our / their for our, their in pairs), 4)


def _print(rates: Mapping[str, Sequence[float]]) -> None:
    table = Table(
        "trainer", "pairs per CPU second (median)", "all rounds", f"over {_THEIRS} from ids, fp32"
    )
    base = f"{_THEIRS} from ids, fp32"
    for name, values in rates.items():
        table.add_row(
            name,
            f"{statistics.median(values):.1f}",
            ", ".join(f"{value:.1f}" for value in values),
            f"{_ratio(rates, name, base):.2f}",
        )
    Screen().print(table)
