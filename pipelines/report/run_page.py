"""The page of a run: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pipelines.catalog import ARCHITECTURES
from pipelines.evaluation.sets import Role
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.run_folder import RunFolder
from pipelines.report.comparison import Comparison, compare, main_lines
from pipelines.report.history import commands, wall_bars, wall_times
from pipelines.report.links import Link, link
from pipelines.report.page_parts import duration, funnel_levels, read_if_there, render, whole
from pipelines.report.run_charts import evaluation_charts, time_spent, training_charts
from pipelines.report.samples import MAP_SIZE, changes, maps, queries, similarity_charts
from pipelines.report.series import is_number, read_lines
from pipelines.report.verdict import verdict
from pipelines.runs.choice import told_choice
from pipelines.runs.jobs import read_jobs
from pipelines.runs.restarts import read_restarts
from pipelines.runs.run import Restart
from pipelines.settings import Config, ObjectiveSettings
from pipelines.settings import load as configuration
from pipelines.settings.corpus import SourceSettings
from pipelines.settings.redaction import without_secrets
from pipelines.tokens.summary import told_cuts

TEMPLATE = "page.html"
_MAX_SCORES = 2


def write_report(
    run_folder: Location, prepared_folder: Location, target: Location | None = None
) -> Location:
    """Writes the report of a run; what is not there yet leaves its section out.

    Args:
        run_folder: Holds ``config.yaml``, ``environment.json``, ``tokens.json``, ``jobs.json``,
            ``metrics.jsonl``, ``metrics.json``, ``samples.json`` and ``evaluations.jsonl``.
        prepared_folder: Holds ``corpus/funnel.json``.
        target: The file; ``report.html`` of the run folder unless given.

    Returns:
        The path of the page.
    """
    run, prepared = RunFolder(run_folder), PreparedFolder(prepared_folder)
    target = target or run.report
    config = read_if_there(run.config, partial(configuration.load, recorded=True))
    figures: Mapping[str, Any] = read_if_there(run.metrics, storage.read_json) or {}
    lines = read_if_there(run.step_metrics, read_lines) or []
    funnel = read_if_there(prepared.corpus.funnel, storage.read_json) or []
    samples = read_if_there(run.samples, storage.read_json) or {}
    tokens = read_if_there(run.tokens, storage.read_json) or {}
    has_finished = "training" in figures and run.model.is_dir()
    comparisons = compare(figures)
    jobs = read_jobs(run_folder)
    page = render(
        TEMPLATE,
        {
            "name": run_folder.absolute().name,
            "kind": "training report",
            "sentence": _sentence(config) if config else "Training report",
            "settings": _settings(config) | _texts(tokens) | _model(figures) if config else {},
            "whole_config": _whole(config) if config else "",
            "verdict": verdict(figures),
            "notice": _notice(has_finished, lines, comparisons),
            "scores": _scores(comparisons),
            "tiles": _tiles(figures.get("training", {})),
            "evaluations": _by_evaluation(comparisons),
            "evaluation_charts": evaluation_charts(
                read_if_there(run.evaluations, read_lines) or []
            ),
            "maps": maps(samples),
            "map_size": MAP_SIZE,
            "depth": samples.get("depth", 0),
            "similarity_charts": similarity_charts(samples),
            "neighbours": queries(samples),
            "changes": changes(samples),
            "charts": training_charts(lines),
            "time": time_spent(lines),
            "times_known": bool(lines),
            "funnel": funnel_levels(funnel),
            "restarts": [_restart(one) for one in read_restarts(run_folder)],
            "wall_bars": wall_bars(wall_times(jobs)),
            "commands": commands(jobs),
            "links": _links(run, prepared, target),
            "environment": read_if_there(run.environment, storage.read_json) or {},
        },
    )
    storage.write_text(target, page)
    return target


def _links(run: RunFolder, prepared: PreparedFolder, page: Location) -> list[Link]:
    """To the model and to the report of the corpus, as far as they are there."""
    # A folder of a store is one of its versions, of which people need not know.
    model = [link("model folder", run.path / "model", page)] if run.model.is_dir() else []
    corpus = [link("corpus report", prepared.report, page)] if prepared.report.is_file() else []
    return model + corpus


def _sentence(config: Config) -> str:
    training = config.training
    workers = "1 worker" if training.processes == 1 else f"{training.workers} workers"
    return f"Trained by {training.engine} ({training.mode}, {training.framework}) on {workers}"


def _whole(config: Config) -> str:
    """All settings as YAML, without secrets."""
    return configuration.dump(without_secrets(config))


def _settings(config: Config) -> dict[str, str]:
    """The settings in which runs differ most; all settings are further down the page."""
    corpus, encoder, training = config.corpus, config.encoder, config.training
    inputs = "installed packages" if corpus.format == "docstrings" else ", ".join(corpus.inputs)
    packaged = "all-MiniLM-L6-v2, as packaged" if encoder.start == "default" else encoder.start
    shape = ARCHITECTURES.load(encoder.kind).described_settings(encoder)
    examples = training.granules_per_step * config.lanes.granule
    alone = {"Corpus": f"{corpus.format} of {inputs}", "Pairs": corpus.pairs}
    sources = {f"Source {one.name}": _source(one, config) for one in corpus.sources}
    return {
        **(sources or alone),
        "Start": f"random, {shape}" if encoder.start == "random" else packaged,
        **({} if sources else {"Objective": _objective(config.objective)}),
        "Step": f"{examples} examples ({training.granules_per_step} granules of "
        f"{config.lanes.granule})",
        "Learning rate": f"{training.learning_rate:g}, {training.schedule}, "
        f"{training.warmup:.0%} warm-up",
        "Precision": training.precision,
        "Seed": str(training.seed),
    }


def _source(source: SourceSettings, config: Config) -> str:
    """What a source of several is, and what it is trained for."""
    inputs = ", ".join(source.inputs) or "installed packages"
    weight = "" if source.weight is None else f"; weight {source.weight:g}"
    objective = _objective(source.objective or config.objective)
    return f"{source.pairs}, {source.format} of {inputs}{weight}; {objective}"


def _objective(objective: ObjectiveSettings) -> str:
    """A loss, and its keys that are not at their defaults."""
    keys = objective.model_dump(mode="json", exclude={"name"}, exclude_defaults=True)
    told = (
        f"{key} {', '.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in keys.items()
    )
    return "; ".join([objective.name, *told])


def _texts(tokens: Mapping[str, Any]) -> dict[str, str]:
    """What was read of the texts, and what stood before them."""
    if "max_length" not in tokens:
        return {}
    if sources := tokens.get("sources", ()):
        told = {
            f"{source['name']}, {side}": text
            for source in sources
            for side, text in source["prompts"].items()
        }
    else:
        told = tokens["prompts"]
    prompts = [f"`{prompt}` ({side})" for side, prompt in told.items()]
    return {"Read": told_cuts(tokens)} | ({"Prompts": ", ".join(prompts)} if prompts else {})


def _model(figures: Mapping[str, Any]) -> dict[str, str]:
    """Which state became the model, and whether the training ended early."""
    if "model" not in figures:
        return {}
    early = ", after an early end (training.patience)" if figures["model"].get("early_end") else ""
    return {"Model": told_choice(figures["model"]) + early}


def _tiles(training: Mapping[str, float]) -> dict[str, str]:
    """The figures at the top of the page."""
    forms: dict[str, tuple[str, Callable[[float], str]]] = {
        "steps": ("steps", whole),
        "examples": ("examples", whole),
        "seconds": ("training time", duration),
        "examples_per_second": ("examples/s", whole),
        "final_loss": ("final loss", lambda value: f"{value:.4f}"),
        "staleness_mean": ("mean staleness", lambda value: f"{value:.2f}"),
    }
    return {
        title: form(training[key])
        for key, (title, form) in forms.items()
        if is_number(training.get(key))
    }


def _restart(restart: Restart) -> dict[str, str]:
    """A row of the table of lost workers."""
    who = (
        f"engine {restart.engine}",
        *(
            f"{name} {value}"
            for name, value in (
                ("rank", restart.rank),
                ("host", restart.host),
                ("lane", restart.lane),
            )
            if value is not None
        ),
    )
    return {
        "when": restart.time,
        "who": ", ".join(who),
        # The rest is a traceback.
        "why": restart.cause.partition("\n")[0],
        "made": whole(restart.made),
        "step": f"step {restart.step:,}",
        "workers": "1 worker" if restart.workers == 1 else f"{restart.workers} workers",
    }


def _scores(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The first figures, those that decide before others."""
    lines = main_lines(comparisons)
    return sorted(lines, key=lambda line: line.role != Role.JUDGED)[:_MAX_SCORES]


def _notice(
    has_finished: bool, lines: Sequence[Mapping[str, Any]], comparisons: Sequence[Comparison]
) -> str:
    """What a reader should know first: that the run has not finished, or was not measured."""
    if lines and not has_finished:
        return (
            f"This run has not finished: its last logged step is {lines[-1]['step']:,}. "
            "With training.resume=true it goes on from its last checkpoint."
        )
    if lines and not comparisons:
        return "Nothing has been measured of this model: see `evaluate` and evaluation.retrieval."
    return ""


def _by_evaluation(lines: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    groups: dict[str, list[Comparison]] = {}
    for line in lines:
        groups.setdefault(line.evaluation, []).append(line)
    return groups
