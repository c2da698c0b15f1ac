"""Measures each objective on judged queries, from documents alone, at equal CPU time.

A collection of documents is trained on without its queries and judgements; these measure the start
and what came out. Every recipe has the CPU time that ``training.max_steps`` steps of the first one
take, what it needs beforehand (mined negatives, a teacher's vectors) included, and is trained a few
times, by its seed. So a gain is one that users of such a collection would see, without labels.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Column, Table

import pipelines
from pipelines.errors import InputError
from pipelines.evaluation.intervals import Observations, Observed, mean_intervals
from pipelines.evaluation.sets import evaluate
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config
from pipelines.settings.load import parse
from pipelines.spark.session import spark_session
from pipelines.tokens.start import start_folder
from pipelines_bench.collections import Collection, find_collection
from pipelines_bench.cpu import CpuMeter

logger = logging.getLogger(__name__)

SEEDS = (17, 18, 19)
CALIBRATION = (2, 10)
"""Steps of two short trainings, whose difference tells what a step takes."""
FIGURE = "ndcg@10"
PAIRS, SINGLES, MINED = "pairs", "singles", "mined"
_ENOUGH_EPOCHS = 10_000


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A way to train.

    Attributes:
        name: For people.
        corpus: What is made of the documents: `pairs`, `singles`, or `mined` (pairs with a hard
            negative that the start has found).
        settings: Sections with the keys that differ from those of all recipes.
    """

    name: str
    corpus: str = PAIRS
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def _by(recipe: str, corpus: str = PAIRS, **keys: Any) -> Recipe:
    return Recipe(name=recipe, corpus=corpus, settings={"objective": keys})


def _of_singles(name: str, dropout: float = 0.1) -> Recipe:
    settings: dict[str, dict[str, Any]] = {
        "objective": {"name": name},
        "training": {"dropout": dropout},
    }
    return Recipe(name=name, corpus=SINGLES, settings=settings)


_BOTH = ["query_to_doc", "doc_to_query"]
_ALL = [*_BOTH, "query_to_query", "doc_to_doc"]
RECIPES = (
    _by("in_batch_negatives"),
    _by("negatives of the step", negatives="step"),
    _by("two directions", directions=_BOTH, partition_mode="per_direction"),
    _by("four directions", directions=_ALL),
    _by("hardness 5", hardness_strength=5.0),
    _by("margin 0.05", false_negative_margin=0.05),
    _by("dimensions 384, 192, 96", dimensions=[384, 192, 96]),
    _by("a mined negative", MINED),
    _by("triplet, a mined negative", MINED, name="triplet"),
    *map(_of_singles, ("simcse", "mlm", "tsdae", "retromae")),
)
"""The first one says what CPU time all have."""


def measure(config: Config, data: str | None) -> dict[str, Any]:
    """Trains by each recipe, and measures.

    Args:
        config: Of all recipes; `training.max_steps` steps of the first one are the CPU time of
            all.
        data: A folder in BEIR's layout whose documents have titles, or one that holds captions.

    Returns:
        ``difference_points``: by recipe, the mean over the seeds of the gain in nDCG@10, times 100;
        ``margin_points``: the mean of half the 95 % confidence interval of a gain, by its queries;
        and ``recipes``, with the figures of each.

    Raises:
        InputError: There is no such folder, or `training.max_steps` is missing.
    """
    if config.training.max_steps is None:
        raise InputError("training.max_steps", "it is not set", "Say how long the first recipe is")
    parent = Path(config.prepared.folder).absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="objectives-", dir=parent) as folder,
        CpuMeter() as meter,
    ):
        bench = _Bench(config, find_collection(data, Path(folder)), Path(folder), meter)
        budget = 0.0
        measured = {}
        for recipe in RECIPES:
            next_part(recipe.name)
            found = bench.measured(recipe, budget)
            budget = budget or found["cpu_seconds"]
            measured[recipe.name] = found
    _print(measured)
    return {
        "difference_points": {name: found["difference"] for name, found in measured.items()},
        "margin_points": {name: found["margin"] for name, found in measured.items()},
        "recipes": measured,
    }


@dataclass(frozen=True)
class _Measured:
    """The figures of an encoder by set, and what they are of."""

    figures: Mapping[str, Mapping[str, float]]
    observations: Mapping[str, Observations]

    def figure(self, collection: str) -> float:
        """:data:`FIGURE` of a collection, times 100."""
        return float(self.figures[collection][FIGURE])


class _Bench:
    """A collection, and where everything of its trainings is.

    Args:
        config: Of all recipes.
        collection: What is trained on, and measured on.
        folder: For everything.
        meter: Of the CPU time.
    """

    def __init__(
        self, config: Config, collection: Collection, folder: Path, meter: CpuMeter
    ) -> None:
        self._config = config
        self._collection = collection
        self._folder = folder
        self._meter = meter
        self._mined_seconds: float | None = None
        self._start: _Measured | None = None

    def measured(self, recipe: Recipe, budget: float) -> dict[str, Any]:
        """Trains by a recipe with each seed, and measures.

        Args:
            budget: CPU seconds; 0 for as many as `training.max_steps` steps take.
        """
        config = self._configured(recipe)
        # Reading and tokenising the texts, which every recipe needs, is not counted.
        extra = self._negatives() if recipe.corpus == MINED else 0.0
        pipelines.prepare(config)
        per_step = self._seconds_of_a_step(config)
        most = config.training.max_steps
        assert most is not None
        steps = max(round((budget - extra) / per_step), 1) if budget else most
        logger.info("%s: %d steps of %.2f s", recipe.name, steps, per_step)
        runs = [self._gain(config, steps, seed) for seed in SEEDS]
        return {
            "steps": steps,
            "cpu_seconds": round(steps * per_step + extra, 1),
            "before": runs[0]["before"],
            "after": [run["after"] for run in runs],
            "difference": round(statistics.fmean(run["difference"] for run in runs), 2),
            "margin": round(statistics.fmean(run["margin"] for run in runs), 2),
        }

    def _configured(self, recipe: Recipe) -> Config:
        """The settings of a recipe, with a corpus of its kind."""
        tree = self._config.model_dump(mode="json")
        corpus = self._collection.singles if recipe.corpus == SINGLES else self._collection.pairs
        if recipe.corpus == MINED:
            corpus = {
                "format": "parquet",
                "inputs": [str(self._folder / "negatives")],
                "pairs": "triplets",
                "triplet_columns": ["anchor", "positive", "negative_0"],
                "group_column": "group",
            }
        tree["corpus"] = {**tree["corpus"], "group_column": None, "evaluation_share": 0.0, **corpus}
        training = {"engine": "local", "mode": "sync", "framework": "torch", "workers": 1}
        training |= {"feed": "lanes", "epochs": _ENOUGH_EPOCHS, "resume": False}
        tree["training"] |= training | {"log_every": 1000, "checkpoint_every": 10**6}
        tree["evaluation"] |= {"retrieval": False, "geometry": False, "samples": 0}
        tree["evaluation"] |= {"retrieval_sets": [str(self._collection.judged)]}
        tree["prepared"]["folder"] = str(self._folder / f"prepared-{recipe.corpus}")
        tree["run"] |= {"folder": str(self._folder / "run"), "overwrite": True}
        # The keys of another loss say nothing of this one.
        tree["objective"] = {}
        for section, values in recipe.settings.items():
            tree[section] |= values
        return parse(tree)

    def _negatives(self) -> float:
        """Has the start find the negatives, once; tells what CPU time that took."""
        if self._mined_seconds is None:
            config = self._configured(Recipe(name="pairs"))
            mining = {"model": str(start_folder(config)), "output": str(self._folder / "negatives")}
            began = self._meter.seconds()
            pipelines.mine(_changed(config, "mining", **mining, negatives=1))
            self._mined_seconds = self._meter.seconds() - began
        return self._mined_seconds

    def _seconds_of_a_step(self, config: Config) -> float:
        """CPU seconds, from the difference of two short trainings."""
        seconds = []
        for steps in CALIBRATION:
            began = self._meter.seconds()
            pipelines.train(_changed(config, "training", max_steps=steps))
            seconds.append(self._meter.seconds() - began)
        return (seconds[1] - seconds[0]) / (CALIBRATION[1] - CALIBRATION[0])

    def _gain(self, config: Config, steps: int, seed: int) -> dict[str, float]:
        """Figures of a training, times 100."""
        config = _changed(config, "training", max_steps=steps, seed=seed)
        pipelines.train(config)
        run = RunFolder.of(config)
        # All recipes go on from the same start, of which the figures take as long as a training.
        self._start = self._start or self._measured(config, run.start)
        model = self._measured(config, run.model)
        name = self._collection.judged.name
        intervals = mean_intervals(self._start.observations[name], model.observations[name])
        if FIGURE not in intervals:
            raise InputError(
                "--data", f"{name} has too few queries for an interval", "Name another one"
            )
        before, after = self._start.figure(name), model.figure(name)
        logger.info("seed %d: nDCG@10 %.2f, from %.2f", seed, after, before)
        difference = after - before
        return {
            "before": before,
            "after": after,
            "margin": (intervals[FIGURE].high - intervals[FIGURE].low) / 2,
            "difference": difference,
        }

    def _measured(self, config: Config, model: Location) -> _Measured:
        session = spark_session(config.for_stage("evaluate"))
        observed: dict[str, Observed] = {}
        figures = evaluate(session, config, model, observed.__setitem__)
        return _Measured(figures, {name: found.observations for name, found in observed.items()})


def _changed(config: Config, section: str, **values: Any) -> Config:
    changed = getattr(config, section).model_copy(update=values)
    return config.model_copy(update={section: changed})


def _print(measured: Mapping[str, Mapping[str, Any]]) -> None:
    table = Table(
        Column("recipe", overflow="fold"), "steps", "CPU s", "before", "after, by seed", "gain", "±"
    )
    for name, found in measured.items():
        after: Sequence[float] = found["after"]
        table.add_row(
            name,
            str(found["steps"]),
            f"{found['cpu_seconds']:.0f}",
            f"{found['before']:.2f}",
            ", ".join(f"{figure:.2f}" for figure in after),
            f"{found['difference']:+.2f}",
            f"{found['margin']:.2f}",
        )
    Screen().print(table)
