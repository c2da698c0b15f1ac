"""Measures BigDL's steps: their time outside arithmetic, and their rate beside torch's.

Both engines train the same encoder with as many workers, each on a core, from the same lanes, in
fp32 and in turn. A step of dllib is a few Spark jobs; forward and backward passes are its
arithmetic, and all else counts as outside: fetching weights, sending and summing gradients, the
update, and Spark's own work for the jobs. A larger step has the same work outside, so two sizes are
measured.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from rich.table import Table

import pipelines
from pipelines.compare.comparison import prepared
from pipelines.engines.base import load_engine
from pipelines.errors import InputError
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.jobs.train import session_for
from pipelines.lanes.files import LaneManifest
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config
from pipelines_bench.rates import training_rate

if TYPE_CHECKING:
    from pipelines.engines.bigdl.progress import StepTimes
    from pipelines.runs.checkpoint import Checkpoint

PAIRS = (128, 512)
"""Of a step, over all workers; the last is what the figures are of."""
STEPS = 8
WARM_UP_STEPS = 2
ROUNDS = 3


def measure(config: Config, data: str | None) -> dict[str, Any]:
    """Runs the comparison.

    Args:
        config: Gives the encoder and the number of workers.
        data: See :func:`pipelines.compare.comparison.prepared`.

    Returns:
        ``bigdl_vs_torch_ratio``: examples per second of `bigdl` over those of `torch`, the median
        of the rounds, at 512 pairs a step; ``outside_arithmetic_share``: the share of a step's time
        that is no forward or backward pass, at 512; and both by the pairs of a step.

    Raises:
        InputError: The lanes cannot give steps of these sizes.
    """
    # With dllib on its class paths, whatever is prepared in it first.
    update = {"engine": "bigdl", "framework": "bigdl", "dropout": 0.0}
    training = config.training.model_copy(update=update)
    config = config.model_copy(update={"training": training})
    session_for(load_engine("bigdl"), config)
    config = prepared(config, data)
    manifest = LaneManifest.load(PreparedFolder.of(config).lanes.path)
    found = {pairs: _measured(_sized(config, manifest, pairs)) for pairs in PAIRS}
    _print(found)
    last = found[PAIRS[-1]]
    return {
        "bigdl_vs_torch_ratio": last["bigdl_vs_torch_ratio"],
        "outside_arithmetic_share": last["outside_arithmetic_share"],
        "by_pairs_of_a_step": found,
    }


def _sized(config: Config, manifest: LaneManifest, pairs: int) -> Config:
    """The configuration with steps of so many pairs.

    Raises:
        InputError: The lanes do not allow it.
    """
    granules, rest = divmod(pairs, manifest.granule)
    if rest or not granules or manifest.lanes % granules or granules % config.training.workers:
        raise InputError(
            "lanes.granule",
            f"{manifest.lanes} lanes of granules of {manifest.granule} give no steps of {pairs}"
            f" for {config.training.workers} workers",
            "Prepare with lanes.granule: 64 and lanes.count: 48",
        )
    update = {"granules_per_step": granules, "precision": "fp32", "dropout": 0.0}
    return config.model_copy(update={"training": config.training.model_copy(update=update)})


def _measured(config: Config) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"bigdl": [], "torch": []}
    times: list[list[StepTimes]] = []
    for number in range(ROUNDS):
        next_part(f"granules of {_granule(config)} pairs, round {number + 1} of {ROUNDS}")
        times.append(_times(config))
        seconds = statistics.median(_durations(times[-1]))
        examples = config.training.granules_per_step * _granule(config)
        rates["bigdl"].append(examples / seconds)
        # Its first metrics line is left out of the rate.
        other = {"engine": "torch", "framework": "torch", "log_every": WARM_UP_STEPS}
        rates["torch"].append(training_rate(config, STEPS, **other))
    ratios = [ours / theirs for ours, theirs in zip(*rates.values(), strict=True)]
    durations = [seconds for run in times for seconds in _durations(run)]
    computing = [one.computing for run in times for one in run[WARM_UP_STEPS:]]
    return {
        "bigdl_vs_torch_ratio": round(statistics.median(ratios), 4),
        "outside_arithmetic_share": round(1 - sum(computing) / sum(durations), 4),
        "step_seconds": round(statistics.median(durations), 4),
        "arithmetic_seconds": round(statistics.median(computing), 4),
        "examples_per_second": {
            name: [round(rate, 1) for rate in values] for name, values in rates.items()
        },
    }


def _granule(config: Config) -> int:
    return LaneManifest.load(PreparedFolder.of(config).lanes.path).granule


def _times(config: Config) -> list[StepTimes]:
    """A run's steps, as dllib tells of them."""
    # Imports BigDL's Python package.
    from pipelines.engines.bigdl.dllib import Trainer

    times: list[StepTimes] = []
    enter = Trainer.enter

    def recording(trainer: Trainer, step: StepTimes) -> Checkpoint | None:
        times.append(step)
        return enter(trainer, step)

    training = {"engine": "bigdl", "framework": "bigdl", "max_steps": STEPS, "epochs": 1000}
    settings = config.training.model_copy(update=training | {"checkpoint_every": 10 * STEPS})
    with tempfile.TemporaryDirectory() as folder:
        run = config.run.model_copy(update={"folder": f"{folder}/run"})
        ready = config.model_copy(update={"training": settings, "run": run})
        with patch.object(Trainer, "enter", recording):
            pipelines.train(ready)
    return times


def _durations(times: Sequence[StepTimes]) -> list[float]:
    """Seconds of each step after those that warm the JVMs up."""
    ends = [one.seconds for one in times[WARM_UP_STEPS - 1 :]]
    return [after - before for before, after in pairwise(ends)]


def _print(found: dict[int, dict[str, Any]]) -> None:
    table = Table("pairs of a step", "step, s", "arithmetic, s", "outside", "bigdl : torch")
    for pairs, figures in found.items():
        table.add_row(
            str(pairs),
            f"{figures['step_seconds']:.3f}",
            f"{figures['arithmetic_seconds']:.3f}",
            f"{100 * figures['outside_arithmetic_share']:.1f} %",
            f"{figures['bigdl_vs_torch_ratio']:.3f}",
        )
    Screen().print(table)
