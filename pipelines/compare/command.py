"""The command `compare`: the best engine and number of workers for the user's data."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from pipelines.compare.advice import advice, summaries, workers_in_words
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
"""Imported late, since it imports matplotlib."""
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
    """Train with each strategy in turn, for several rounds, and recommend one.

    All train on the same lanes with the same seed and number of steps and examples. Each trains in
    separate processes, one strategy at a time. A folder keeps the readings, and an interrupted
    comparison continues from them.

    Args:
        data: See :func:`pipelines.compare.comparison.prepared`.
        steps: Of each training; 60 unless given. In all of them, `training.granules_per_step` is
            the least common multiple of the numbers of workers.
        runs: Rounds; 3 unless given.
        cases: Names of strategies, with commas; all of them by default.
        workers: Numbers of workers, with commas; 1 and 2 by default.
        workload: `encoder` (the configuration's training, by default), or one of another
            distribution: see :mod:`pipelines.compare.strategy`.
        output: The folder of the readings and the results; `strategies` by default.

    Returns:
        ``strategies``: the medians of the figures by strategy and number of workers; ``advice``;
        ``missing``: the reasons for missing strategies; and ``page``, the path of the page with
        plots.

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
        logger.info("strategies: interrupted; %s keeps the measurements", folder)
        # Without any measurement there are no results.
        with suppress(PipelineError):
            _shown_results(comparison, record, failed, folder, {})
        raise
    return _shown_results(comparison, record, failed, folder, _rates(comparison))


def named_workload(name: str | None) -> Callable[[Config, Path], Config]:
    """Return the workload's function of settings and a folder for its files.

    Raises:
        InputError: The name is unknown.
    """
    known: dict[str, Callable[[Config, Path], Config]] = provided("workloads")
    known = {OWN_WORKLOAD: lambda config, folder: config, **known}
    if name not in {None, *known}:
        raise InputError(
            "--workload",
            f"there is no workload `{name}` here",
            f"Choose one of {', '.join(known)}; sentence-pipelines-bench adds language models",
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
    """Make the missing trials of a round, without those of failed strategies."""
    known = {reading.key for reading in record}
    trials = comparison.trials()
    # Each round begins with another trial, so that none always follows the same one.
    for strategy, workers in trials[number:] + trials[:number]:
        if (strategy.name, workers, number) in known or (strategy.name, workers) in failed:
            continue
        title = f"round {number + 1} of {rounds}, {strategy.name}, {workers} worker(s)"
        logger.info("strategies: %s", title)
        next_part(title)
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
            # One failure must not end the comparison of the other strategies.
            logger.warning(
                "strategies: %s with %d worker(s) failed: %s", strategy.name, workers, error
            )
            failed[strategy.name, workers] = str(error)


def _shown_results(
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
    # Without a terminal, rich would cut the table at eighty columns.
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
    order = {
        (strategy.name, workers): place
        for place, (strategy, workers) in enumerate(comparison.trials())
    }
    readings = [reading for reading in record if (reading.strategy, reading.workers) in order]
    if not readings:
        raise PipelineError("no training succeeded; the errors are above")
    # In the order of the list: among equal figures, the advice takes the first.
    readings.sort(key=lambda reading: (order[reading.strategy, reading.workers], reading.round))
    found = summaries(readings)
    strategies = {strategy.name: strategy for strategy in comparison.strategies}
    engines = [summary for summary in found if not strategies[summary.strategy].is_peer]
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
        advice=advice(engines, [summary for summary in found if summary not in engines]),
        missing={
            **comparison.missing,
            **{
                f"{name} with {workers_in_words(workers)}": f"failed: {cause}"
                for (name, workers), cause in failed.items()
            },
        },
    )


def _rates(comparison: Comparison) -> Mapping[str, float]:
    """Measure one core's rate on products of the same shapes, by precision."""
    tokens = max(1, round(comparison.manifest.granule * comparison.text_tokens))
    shapes = products(comparison.spec, tokens)
    used = {str(strategy.training["precision"]) for strategy in comparison.strategies}
    if not computes_in_bf16():
        used -= {"bf16"}
    try:
        return {kind: matrix_rate(shapes, kind) for kind in sorted(used) if shapes}
    except PipelineError as error:
        # The other figures are complete.
        logger.warning("strategies: %s", error)
        return {}
