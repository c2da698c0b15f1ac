"""The command `compare`: which engine, and how many workers, on the user's own data."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from pipelines.compare.advice import advice, summaries, told_workers
from pipelines.compare.arithmetic import matrix_rate, operations_per_token, products
from pipelines.compare.comparison import Comparison, Record, prepared
from pipelines.compare.prediction import projections
from pipelines.compare.results import Results
from pipelines.compare.strategy import named_strategies, provided, worker_counts
from pipelines.compare.trial import run_trial
from pipelines.errors import InputError, PipelineError
from pipelines.models.inference.processor import computes_in_bf16
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config
from pipelines.spark.session import stopped_at_the_end

logger = logging.getLogger(__name__)

DEFAULT_STEPS, DEFAULT_ROUNDS = 60, 3
DEFAULT_FOLDER = "strategies"
OWN_WORKLOAD = "encoder"
"""The training of the configuration."""
PAGE_MODULE = "pipelines.compare.page"
"""Imported late: it draws."""
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
    """Train by each strategy in turn, for several rounds, and say which to take.

    All train on the same lanes with the same seed and number of steps and examples. Each trains in
    separate processes, with nothing beside them. Readings are kept in a folder, from which an
    interrupted comparison goes on.

    Args:
        data: See :func:`pipelines.compare.comparison.prepared`.
        steps: Of each training; 60 unless given. In all of them, `training.granules_per_step` is
            the least common multiple of the numbers of workers.
        runs: Rounds; 3 unless given.
        cases: Names of strategies, with commas; all of them by default.
        workers: Numbers of workers, with commas; 1 and 2 by default.
        workload: `encoder` (the configuration's training, by default), or one that another
            distribution adds: see :mod:`pipelines.compare.strategy`.
        output: The folder of the readings and the results; `strategies` by default.

    Returns:
        ``strategies``: for each with its number of workers, the medians of its figures; ``advice``;
        ``missing``: why a strategy was left out; and ``page``, the path of the page with plots.

    Raises:
        InputError: There is no such strategy, or the folder holds another comparison.
        PipelineError: No training succeeded.
    """
    rounds, steps = runs or DEFAULT_ROUNDS, steps or DEFAULT_STEPS
    chosen, counts = named_strategies(cases), worker_counts(workers)
    folder = Path(output or DEFAULT_FOLDER).absolute()
    change = named_workload(workload)
    with stopped_at_the_end():
        config = prepared(config, data, lambda config: change(config, folder))
    comparison = Comparison.of(config, chosen, counts, steps)
    record = Record(folder, comparison.compared)
    failed: dict[tuple[str, int], str] = {}
    logger.info("strategies: %d trainings", rounds * len(comparison.trials()))
    try:
        for number in range(rounds):
            _round(comparison, record, number, rounds, folder, failed)
    except KeyboardInterrupt:
        logger.info("strategies: interrupted; what was measured is kept in %s", folder)
        # Where nothing was measured, nothing is told.
        with suppress(PipelineError):
            _told(comparison, record, failed, folder, {})
        raise
    return _told(comparison, record, failed, folder, _rates(comparison))


def named_workload(name: str | None) -> Callable[[Config, Path], Config]:
    """Return the function that turns settings, and a folder for its files, into a workload's.

    An InputError refuses an unknown name.
    """
    known: dict[str, Callable[[Config, Path], Config]] = provided("workloads")
    known = {OWN_WORKLOAD: lambda config, folder: config, **known}
    if name not in {None, *known}:
        raise InputError(
            "--workload",
            f"there is no workload `{name}` here",
            f"take one of {', '.join(known)}; sentence-pipelines-bench brings language models",
        )
    return known[name or OWN_WORKLOAD]


def _round(
    comparison: Comparison,
    record: Record,
    number: int,
    rounds: int,
    folder: Path,
    failed: dict[tuple[str, int], str],
) -> None:
    """Make the trials of a round that are still missing; skip those that failed before."""
    known = {reading.key for reading in record}
    trials = comparison.trials()
    # Another one begins each time, so that none always follows the same one.
    for strategy, workers in trials[number:] + trials[:number]:
        if (strategy.name, workers, number) in known or (strategy.name, workers) in failed:
            continue
        told = f"round {number + 1} of {rounds}, {strategy.name}, {workers} worker(s)"
        logger.info("strategies: %s", told)
        next_part(told)
        is_last = number == rounds - 1 and (strategy.is_alone or workers == max(comparison.counts))
        try:
            with tempfile.TemporaryDirectory(prefix="trial-", dir=folder) as place:
                record.add(
                    run_trial(
                        strategy.configured(comparison.config, workers),
                        strategy.name,
                        number,
                        Path(place),
                        command=strategy.command,
                        step_examples=comparison.step_examples,
                        evaluated=is_last and comparison.has_pairs and not strategy.is_peer,
                    )
                )
        except PipelineError as error:
            # The others are still to be measured.
            logger.warning(
                "strategies: %s with %d worker(s) has failed: %s", strategy.name, workers, error
            )
            failed[strategy.name, workers] = str(error)


def _told(
    comparison: Comparison,
    record: Record,
    failed: Mapping[tuple[str, int], str],
    folder: Path,
    rates: Mapping[str, float],
) -> dict[str, Any]:
    """Print and write the results; raise PipelineError without any."""
    results = _results(comparison, record, failed, rates)
    write = import_module(PAGE_MODULE).write_results
    page = write(results, folder)
    console = Screen()
    # Where output is no terminal, the table would be cut at eighty columns.
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(results.table())
    for sentence in results.advice:
        console.print(sentence, soft_wrap=True, highlight=False)
    console.print(f"page  {page}", soft_wrap=True, highlight=False)
    return {**results.figures(), "missing": dict(results.missing), "page": str(page)}


def _results(
    comparison: Comparison,
    record: Record,
    failed: Mapping[tuple[str, int], str],
    rates: Mapping[str, float],
) -> Results:
    order = {(one.name, workers): at for at, (one, workers) in enumerate(comparison.trials())}
    readings = [one for one in record if (one.strategy, one.workers) in order]
    if not readings:
        raise PipelineError("no training has succeeded; the errors are above")
    # As they are listed: where figures are equal, the advice takes what stands first.
    readings.sort(key=lambda one: (order[one.strategy, one.workers], one.round))
    found = summaries(readings)
    strategies = {one.name: one for one in comparison.strategies}
    own = [one for one in found if not strategies[one.strategy].is_peer]
    return Results(
        readings=readings,
        summaries=found,
        strategies=strategies,
        rates=rates,
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
        missing={
            **comparison.missing,
            **{f"{name} with {told_workers(n)}": f"failed: {w}" for (name, n), w in failed.items()},
        },
    )


def _rates(comparison: Comparison) -> Mapping[str, float]:
    """Measure one core's rate on products of the same shapes, by precision."""
    tokens = max(1, round(comparison.manifest.granule * comparison.text_tokens))
    shapes = products(comparison.spec, tokens)
    used = {str(one.training["precision"]) for one in comparison.strategies}
    if not computes_in_bf16():
        used -= {"bf16"}
    try:
        return {kind: matrix_rate(shapes, kind) for kind in sorted(used) if shapes}
    except PipelineError as error:
        # All else was measured.
        logger.warning("strategies: %s", error)
        return {}
