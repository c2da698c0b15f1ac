"""The benchmark `strategies`: which engine, and how many workers, on the user's own data."""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from pipelines.benchmarks.data import prepared
from pipelines.benchmarks.processes import stage_command
from pipelines.benchmarks.strategies.advice import advice, summaries
from pipelines.benchmarks.strategies.arithmetic import matrix_rate, operations_per_token, products
from pipelines.benchmarks.strategies.peer import peer_command
from pipelines.benchmarks.strategies.projection import projections
from pipelines.benchmarks.strategies.record import Record
from pipelines.benchmarks.strategies.results import Results
from pipelines.benchmarks.strategies.strategy import (
    OF_PAPER,
    Strategy,
    named_strategies,
    worker_counts,
)
from pipelines.benchmarks.strategies.trial import run_trial
from pipelines.benchmarks.strategies.workloads import named_workload
from pipelines.errors import InputError, PipelineError
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.lanes.files import LaneManifest
from pipelines.models.folder import start_encoder
from pipelines.models.inference.processor import computes_in_bf16
from pipelines.models.spec import EncoderSpec
from pipelines.settings import Config
from pipelines.spark.session import stopped_at_the_end

logger = logging.getLogger(__name__)

DEFAULT_STEPS, DEFAULT_ROUNDS = 60, 3
DEFAULT_FOLDER = "strategies"
FEWEST_STEPS = 5
_ENOUGH_EPOCHS = 100_000
_OF_STRATEGIES = {"workers", *OF_PAPER[0].training}
"""Keys of `training` that differ between strategies."""
_TABLE_WIDTH = 120


def measure(
    config: Config,
    data: str | None,
    *,
    steps: int | None = None,
    runs: int | None = None,
    cases: str | None = None,
    workers: str | None = None,
    workload: str | None = None,
    output: str | None = None,
) -> dict[str, Any]:
    """Trains by each strategy in turn, for several rounds, and says which to take.

    All train on the same lanes with the same seed, and make the same number of steps of the same
    number of examples, each in processes of its own that nothing else runs beside. What was
    measured is kept in a folder, and a comparison that was interrupted goes on from there.

    Args:
        config: Of the trainings; what differs between strategies is replaced.
        data: See :func:`pipelines.benchmarks.data.prepared`.
        steps: Of each training; 60 unless given. In all of them, `training.granules_per_step` is
            the least common multiple of the numbers of workers.
        runs: Rounds; 3 unless given.
        cases: Names of strategies, with commas; all of them by default.
        workers: Numbers of workers, with commas; 1 and 2 by default.
        workload: `encoder` (what the configuration trains, by default), `masked`, `causal` or
            `causal-100m`: see :mod:`pipelines.benchmarks.strategies.workloads`.
        output: The folder of the readings and what is made of them; `strategies` by default.

    Returns:
        ``strategies``: for each with its number of workers, the medians of its figures; ``advice``;
        ``missing``: why a strategy was left out; and ``page``, the path of the page with plots.

    Raises:
        InputError: There is no such strategy, or the folder holds another comparison.
        PipelineError: No training succeeded.
    """
    rounds, steps = runs or DEFAULT_ROUNDS, steps or DEFAULT_STEPS
    if steps < FEWEST_STEPS:
        raise InputError("--steps", "there are too few for a rate", f"{FEWEST_STEPS} at least")
    chosen, counts = named_strategies(cases), worker_counts(workers)
    folder = Path(output or DEFAULT_FOLDER).absolute()
    config = named_workload(workload)(config, folder)
    with stopped_at_the_end():
        config = prepared(config, data)
    comparison = _Comparison.of(config, chosen, counts, steps)
    record = Record(folder, comparison.compared)
    failed: dict[str, str] = dict(comparison.missing)
    try:
        for number in range(rounds):
            _round(comparison, record, number, rounds, folder, failed)
    except KeyboardInterrupt:
        logger.info("strategies: interrupted; what was measured is kept in %s", folder)
        if any(True for _ in record):
            _told(comparison, record, failed, folder)
        raise
    return _told(comparison, record, failed, folder)


@dataclass(frozen=True)
class _Comparison:
    """What is compared.

    Attributes:
        config: Of all trainings.
        strategies: Those that can be measured here.
        counts: Numbers of workers.
        missing: Why others cannot, by name.
        spec: Of the encoder.
        manifest: Of the lanes.
        compared: What all readings of a folder have in common.
    """

    config: Config
    strategies: Sequence[Strategy]
    counts: Sequence[int]
    missing: Mapping[str, str]
    spec: EncoderSpec
    manifest: LaneManifest
    compared: Mapping[str, Any]

    @classmethod
    def of(
        cls, config: Config, chosen: Sequence[Strategy], counts: Sequence[int], steps: int
    ) -> _Comparison:
        manifest = LaneManifest.load(PreparedFolder.of(config).lanes.path)
        spec, _ = start_encoder(config, manifest.vocabulary)
        config = _shared_settings(config, counts, steps)
        missing = {one.name: one.missing(config) for one in chosen}
        for name, why in missing.items():
            if why:
                logger.info("strategies: %s is left out: %s", name, why)
        training = config.training.model_dump(mode="json", exclude=_OF_STRATEGIES)
        compared = {
            "lanes": [*manifest.checksums],
            "encoder": repr(spec),
            "objective": config.objective.model_dump(mode="json"),
            **{f"training.{key}": value for key, value in training.items()},
        }
        return cls(
            config,
            [one for one in chosen if not missing[one.name]],
            counts,
            {name: why for name, why in missing.items() if why},
            spec,
            manifest,
            compared,
        )

    @property
    def step_examples(self) -> int:
        """Examples of a step."""
        return self.manifest.granule * self.config.training.granules_per_step

    @property
    def has_pairs(self) -> bool:
        """Whether held-out pairs can be evaluated."""
        return self.manifest.paired and self.config.corpus.evaluation_share > 0

    @property
    def predicted(self) -> float:
        """Share of the tokens for which words are predicted."""
        objective = self.config.objective
        shares = {"clm": 1.0, "mlm": getattr(objective, "mask_ratio", 0.0)}
        return shares.get(objective.name, 0.0)

    @property
    def text_tokens(self) -> float:
        """Tokens of a text, on average."""
        sides = 1 + self.manifest.paired + self.manifest.negatives
        return self.manifest.tokens / self.manifest.placed / sides

    def trials(self) -> list[tuple[Strategy, int]]:
        """Each strategy with each of its numbers of workers."""
        return [
            (one, workers)
            for one in self.strategies
            for workers in ((1,) if one.is_alone else self.counts)
        ]


def _shared_settings(config: Config, counts: Sequence[int], steps: int) -> Config:
    """The settings that all strategies have in common."""
    training = {
        "granules_per_step": math.lcm(*counts),
        "max_steps": steps,
        "epochs": _ENOUGH_EPOCHS,
        "threads": 1,
        "log_every": 1,
        # The last state alone: writing is not what is compared.
        "checkpoint_every": steps,
        "checkpoint_minutes": None,
        "restarts": 0,
        "resume": False,
        "start_seconds": 600,
        "stall_seconds": 600,
    }
    return config.model_copy(update={"training": config.training.model_copy(update=training)})


def _round(
    comparison: _Comparison,
    record: Record,
    number: int,
    rounds: int,
    folder: Path,
    failed: dict[str, str],
) -> None:
    """Makes the trials of a round that were not made before.

    Args:
        failed: Why a strategy has failed, by name; it is not tried again.
    """
    known = {reading.key for reading in record}
    trials = comparison.trials()
    # Another one begins each time, so that none always follows the same one.
    for strategy, workers in trials[number:] + trials[:number]:
        if (strategy.name, workers, number) in known or strategy.name in failed:
            continue
        logger.info(
            "strategies: round %d of %d, %s, %d worker(s)",
            number + 1,
            rounds,
            strategy.name,
            workers,
        )
        command = peer_command if strategy.is_peer else partial(stage_command, "train")
        is_last = number == rounds - 1 and (strategy.is_alone or workers == max(comparison.counts))
        try:
            with tempfile.TemporaryDirectory(prefix="trial-", dir=folder) as place:
                record.add(
                    run_trial(
                        strategy.configured(comparison.config, workers),
                        strategy.name,
                        number,
                        Path(place),
                        command=command,
                        step_examples=comparison.step_examples,
                        evaluated=is_last and comparison.has_pairs and not strategy.is_peer,
                    )
                )
        except PipelineError as error:
            # The others are still to be measured.
            logger.warning("strategies: %s has failed: %s", strategy.name, error)
            failed[strategy.name] = str(error)


def _told(
    comparison: _Comparison, record: Record, failed: Mapping[str, str], folder: Path
) -> dict[str, Any]:
    # It draws.
    from pipelines.benchmarks.strategies.page import write_results

    wanted = {(one.name, workers) for one, workers in comparison.trials()}
    readings = [one for one in record if (one.strategy, one.workers) in wanted]
    if not readings:
        raise PipelineError("no training has succeeded; the errors are above")
    found = summaries(readings)
    strategies = {one.name: one for one in comparison.strategies}
    own = [one for one in found if not strategies[one.strategy].is_peer]
    results = Results(
        readings=readings,
        summaries=found,
        strategies=strategies,
        rates=_rates(comparison),
        operations_per_token=operations_per_token(
            comparison.spec, comparison.text_tokens, comparison.predicted
        ),
        projections=projections(
            readings,
            strategies,
            comparison.step_examples,
            comparison.config.training.round_steps,
        ),
        advice=advice(own, [one for one in found if one not in own]),
        missing=failed,
    )
    page = write_results(results, folder)
    console = Console()
    # Where output is no terminal, the table would be cut at eighty columns.
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(results.table())
    for sentence in results.advice:
        console.print(sentence, soft_wrap=True, highlight=False)
    console.print(f"page  {page}", soft_wrap=True, highlight=False)
    return {**results.figures(), "missing": dict(failed), "page": str(page)}


def _rates(comparison: _Comparison) -> Mapping[str, float]:
    """What one core makes of products of the same shapes, by precision."""
    tokens = max(1, round(comparison.manifest.granule * comparison.text_tokens))
    shapes = products(comparison.spec, tokens)
    used = {str(one.training["precision"]) for one in comparison.strategies}
    if not computes_in_bf16():
        used -= {"bf16"}
    return {kind: matrix_rate(shapes, kind) for kind in sorted(used)}
