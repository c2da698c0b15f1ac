"""Measures a recipe on judged queries, from documents alone.

The documents of each set in ``evaluation.retrieval_sets`` are trained on by the settings, a few
times by their seed, and never its questions and judgements, by which start and models are measured.
Beside them stands what pairs that were held out of the same documents say: whether these tell where
questions gain, and whether they ever say *better* where the questions say *worse*.

Each model ranks by its vectors alone and with BM25; one with lexical features also without them,
which is the model that other servers can compute.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import pipelines
from pipelines.errors import InputError
from pipelines.evaluation.base import ENCODER, Form
from pipelines.evaluation.intervals import NOT_SIGNIFICANT, Interval, Observations, mean_intervals
from pipelines.files import storage
from pipelines.files.locations import RemotePath, location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.run_folder import RunFolder
from pipelines.jobs.evaluate import AFTER, BEFORE, measure_models
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.runs.model_choice import WHOLE, start_share
from pipelines.settings import Config
from pipelines.settings.load import parse
from pipelines.spark.session import spark_session

logger = logging.getLogger(__name__)

SEEDS = (0, 1, 2)
FIGURE = "ndcg@10"
HELD_OUT = "retrieval"
DENSE, HYBRID = Form(), Form(hybrid=True)
PLAIN, PLAIN_HYBRID = Form(ENCODER), Form(ENCODER, hybrid=True)
FORMS = {
    "start": (BEFORE, DENSE),
    "start, hybrid": (BEFORE, HYBRID),
    "plain": (AFTER, PLAIN),
    "plain, hybrid": (AFTER, PLAIN_HYBRID),
    "lexical": (AFTER, DENSE),
    "lexical, hybrid": (AFTER, HYBRID),
}
"""Each way of ranking: of the start or of the model, in a form."""
DIFFERENCES = (
    ("plain", "start"),
    ("plain, hybrid", "start"),
    ("lexical", "start"),
    ("lexical, hybrid", "start"),
    ("lexical", "plain, hybrid"),
    ("lexical, hybrid", "plain, hybrid"),
)
_CORPUS = "corpus.jsonl"


@dataclass(frozen=True)
class Trained:
    """A model of one seed, measured beside its start.

    Attributes:
        before: Of the start, query by query, by set.
        after: Of the model.
        cpu_seconds: Of the steps of the training; None where the engine does not tell.
    """

    before: Mapping[str, Observations]
    after: Mapping[str, Observations]
    cpu_seconds: float | None

    def form(self, name: str, form: str) -> Observations | None:
        """Return the figures of a set in one of :data:`FORMS`; None where it was not measured."""
        model, asked = FORMS[form]
        return (self.before if model == BEFORE else self.after).get(asked.named(name))


def measure(config: Config, data: str | None) -> dict[str, Any]:
    """Trains on the documents of each set, and measures.

    Args:
        config: With the recipe or any settings of a training, and `evaluation.retrieval_sets`.
        data: Not used: the sets are those of the settings.

    Returns:
        ``sets``: by set what :func:`of_set` tells; ``mean_gain``; and ``spearman``, the rank
        correlation, over the sets, of the gain on held-out pairs with that on the questions.

    Raises:
        InputError: There is no set, or one that is no folder.
    """
    folders = judged_folders(config)
    if isinstance(location(config.prepared.folder, config.storage), RemotePath):
        raise InputError("prepared.folder", "it is in a store", "Name a folder of this machine")
    parent = Path(config.prepared.folder).absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="recipe-", dir=parent) as work:
        sets = {one.name: of_set(one.name, _trained(config, one, Path(work))) for one in folders}
    _print(sets)
    measured = [one for one in sets.values() if one["held_out"]["gain"] is not None]
    return {
        "sets": sets,
        "mean_gain": round(statistics.fmean(one["gain"] for one in sets.values()), 2),
        "spearman": _spearman([(one["held_out"]["gain"], one["gain"]) for one in measured]),
    }


def judged_folders(config: Config) -> list[Path]:
    """The folders of `evaluation.retrieval_sets`, whose documents are trained on.

    Raises:
        InputError: There is none, one is no folder in BEIR's layout, or two have one name.
    """
    given = config.evaluation.retrieval_sets
    if not given:
        raise InputError("evaluation.retrieval_sets", "it is empty", "Name sets in BEIR's layout")
    folders = [Path(one).expanduser().absolute() for one in given]
    if len({folder.name for folder in folders}) < len(folders):
        raise InputError("evaluation.retrieval_sets", "two have one name", "Rename a folder")
    for folder in folders:
        if not (folder / _CORPUS).is_file():
            raise InputError(
                "evaluation.retrieval_sets",
                f"there is no {folder / _CORPUS} to train on",
                "Name folders of this machine in BEIR's layout",
            )
    return folders


def of_set(name: str, runs: Sequence[Trained]) -> dict[str, Any]:
    """What came of the trainings on the documents of a set.

    Args:
        name: Of the set.
        runs: One of each seed.

    Returns:
        ``queries``, ``before`` and ``after`` (of each seed; nDCG@10, times 100), the mean ``gain``
        with its ``interval`` (of queries, each with the mean of its gains) and ``verdict``,
        ``cpu_seconds`` (the median) and, under ``held_out``, queries, gain, interval and verdict of
        the held-out pairs; nothing of these where the set has none. ``forms`` has the figures by
        :data:`FORMS`, ``differences`` gain, interval and verdict by ``first - second`` of
        :data:`DIFFERENCES`, both only of the measured forms.
    """
    seconds = [run.cpu_seconds for run in runs if run.cpu_seconds is not None]
    return {
        **_gain(name, runs),
        "before": round(mean_score(runs[0].before[name]), 2),
        "after": [round(mean_score(run.after[name]), 2) for run in runs],
        "cpu_seconds": round(statistics.median(seconds), 1) if seconds else None,
        "held_out": _gain(HELD_OUT, runs),
        "forms": _in_forms(name, runs),
        "differences": _differences(name, runs),
    }


def _in_forms(name: str, runs: Sequence[Trained]) -> dict[str, float]:
    """Return the mean of a set over the runs, by form."""
    found = {form: [run.form(name, form) for run in runs] for form in FORMS}
    return {
        form: round(statistics.fmean(map(mean_score, known)), 2)
        for form, measured in found.items()
        if (known := [observed for observed in measured if observed is not None])
    }


def _differences(name: str, runs: Sequence[Trained]) -> dict[str, dict[str, Any]]:
    found = {}
    for first, second in DIFFERENCES:
        sides = [[run.form(name, form) for run in runs] for form in (second, first)]
        if None not in sides[0] + sides[1]:
            found[f"{first} - {second}"] = difference(*map(mean_over_runs, sides))
    return found


def mean_over_runs(found: Sequence[Observations | None]) -> Observations:
    """Return the means over the runs, query by query."""
    known = [observed for observed in found if observed is not None]
    values = np.mean([observed.values[FIGURE] for observed in known], axis=0)
    return Observations(known[0].items, {FIGURE: values}, known[0].groups)


def difference(before: Observations, after: Observations) -> dict[str, Any]:
    """Return the gain of nDCG@10 in points, its interval and the verdict."""
    interval = mean_intervals(before, after).get(FIGURE)
    return {
        "gain": round(mean_score(after) - mean_score(before), 2),
        "interval": None if interval is None else asdict(interval),
        "verdict": NOT_SIGNIFICANT if interval is None else interval.verdict(),
    }


def _gain(name: str, runs: Sequence[Trained]) -> dict[str, Any]:
    """How much a set gains, and how sure that is."""
    if name not in runs[0].before:
        return {"queries": 0, "gain": None, "interval": None, "verdict": NOT_SIGNIFICANT}
    before = runs[0].before[name]
    after = mean_over_runs([run.after[name] for run in runs])
    return {"queries": len(before.items), **difference(before, after)}


def mean_score(found: Observations) -> float:
    """Return the mean nDCG@10, times 100."""
    return float(found.values[FIGURE].mean())


def _trained(config: Config, folder: Path, work: Path) -> list[Trained]:
    """A training of each seed on the documents of a set."""
    tree = config.model_dump(mode="json")
    tree["corpus"] |= {"format": "jsonl", "inputs": [str(folder / _CORPUS)]}
    # Half of the documents of a collection may be titles without a text.
    tree["corpus"]["max_dropped"] = 1.0
    tree["prepared"]["folder"] = str(work / f"prepared-{folder.name}")
    tree["run"] |= {"folder": str(work / "run"), "overwrite": True}
    tree["evaluation"] |= {"retrieval": True, "geometry": False, "samples": 0}
    tree["evaluation"] |= {"retrieval_sets": [str(folder)], "guards": [], "hybrid": True}
    runs = []
    for seed in SEEDS:
        next_part(f"{folder.name}, seed {seed}")
        tree["training"] |= {"seed": seed, "resume": False}
        one = parse(tree)
        pipelines.prepare(one)
        pipelines.train(one)
        runs.append(_measured(one))
        logger.info("%s, seed %d: %+.2f", folder.name, seed, _gain(folder.name, runs[-1:])["gain"])
        # Without training, every seed gives the same model.
        if start_share(one.training, PreparedFolder.of(one).corpus) == WHOLE:
            break
    return runs


def _measured(config: Config) -> Trained:
    run = RunFolder.of(config)
    session = spark_session(config.for_stage("evaluate"), needs_context=False)
    found = measure_models(session, config, run)
    return Trained(
        found.observations(BEFORE),
        found.observations(AFTER),
        storage.read_json(run.metrics)["training"].get("cpu_seconds"),
    )


def _spearman(gains: Sequence[tuple[float, float]]) -> float | None:
    """Of pairs of numbers; None of fewer than three, or where one side is all alike."""
    from scipy.stats import spearmanr

    first, second = zip(*gains, strict=True) if gains else ((), ())
    if len(gains) < 3 or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return round(float(spearmanr(first, second).statistic), 2)


def _print(sets: Mapping[str, Mapping[str, Any]]) -> None:
    table = Table(
        "set", "queries", "start", "model, by seed", "gain", "CPU s", "held-out pairs", "their gain"
    )
    for name, found in sets.items():
        held = found["held_out"]
        table.add_row(
            name,
            f"{found['queries']:,}",
            f"{found['before']:.2f}",
            ", ".join(f"{figure:.2f}" for figure in found["after"]),
            told(found),
            "" if found["cpu_seconds"] is None else f"{found['cpu_seconds']:.0f}",
            f"{held['queries']:,}",
            told(held),
        )
    Screen().print(table)
    Screen().print(_forms_table(sets))


def _forms_table(sets: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return each set's figures by form, and the difference that decides about the default."""
    forms = [form for form in FORMS if all(form in found["forms"] for found in sets.values())]
    decides = " - ".join(DIFFERENCES[4])
    table = Table("set", *forms, decides)
    for name, found in sets.items():
        decided = found["differences"].get(decides)
        shown = "" if decided is None else told(decided)
        table.add_row(name, *(f"{found['forms'][form]:.2f}" for form in forms), shown)
    means = [statistics.fmean(found["forms"][form] for found in sets.values()) for form in forms]
    table.add_row("mean", *(f"{mean:.2f}" for mean in means), "")
    return table


def told(found: Mapping[str, Any]) -> str:
    """Return a gain with its interval and its verdict, for a table."""
    if found["gain"] is None:
        return ""
    gain = f"{found['gain']:+.2f}"
    if found["interval"] is None:
        return gain
    interval = Interval(**found["interval"])
    return f"{gain} ({interval.low:+.2f} to {interval.high:+.2f}), {found['verdict']}"
