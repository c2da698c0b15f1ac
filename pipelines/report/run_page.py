"""The page of a run: one self-contained HTML file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from pipelines.catalog import ARCHITECTURES
from pipelines.evaluation.sets import Role
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.run_folder import RunFolder
from pipelines.report.comparison import (
    Comparison,
    Link,
    compare,
    is_number,
    link,
    main_lines,
    read_lines,
    shown,
)
from pipelines.report.page_parts import (
    Bar,
    Chart,
    duration,
    funnel_levels,
    per_cent,
    read_if_there,
    read_record,
    render,
    short_duration,
    whole,
)
from pipelines.report.run_charts import evaluation_charts, time_spent, training_charts
from pipelines.report.svg_charts import BLUE, ORANGE, Distribution, distributions
from pipelines.report.verdict import verdict
from pipelines.runs.job_records import Job, JobsRecord, read_jobs, read_restarts
from pipelines.runs.model_choice import told_choice
from pipelines.runs.run import Restart
from pipelines.settings import Config, ObjectiveSettings
from pipelines.settings import load as configuration
from pipelines.settings.corpus import SourceSettings
from pipelines.settings.redaction import without_secrets
from pipelines.tokens.summary import told_cuts

KEPT = "kept"
"""Stands for the time of a stage of an earlier preparation."""
MODELS = {"before": "Before", "after": "After"}
KINDS = {
    "better": "Better rank than before",
    "worse": "Worse rank than before",
    "random": "Random queries",
}
MAP_SIZE = 400
_MARGIN = 14
_BINS = 32
_MAX_SCORES = 2


def write_report(
    run_folder: Location, prepared_folder: Location, target: Location | None = None
) -> Location:
    """Write the report of a run, and return its path; sections without data are left out.

    Args:
        run_folder: Holds ``config.yaml``, ``environment.json``, ``tokens.json``, ``jobs.json``,
            ``metrics.jsonl``, ``metrics.json``, ``samples.json`` and ``evaluations.jsonl``.
        prepared_folder: Holds ``corpus/funnel.json``.
        target: The file; ``report.html`` of the run folder unless given.
    """
    run, prepared = RunFolder(run_folder), PreparedFolder(prepared_folder)
    target = target or run.report
    config = read_if_there(run.config, partial(configuration.load, recorded=True))
    figures: Mapping[str, Any] = read_record(run.metrics)
    lines = read_if_there(run.step_metrics, read_lines) or []
    funnel = read_record(prepared.corpus.funnel)
    samples = read_record(run.samples)
    tokens = read_record(run.tokens)
    has_finished = "training" in figures and run.has_model
    comparisons = compare(figures)
    jobs = read_jobs(run_folder)
    page = render(
        "page.html",
        {
            "name": run_folder.absolute().name,
            "kind": "training report",
            "sentence": _sentence(config) if config else "Training report",
            "settings": _settings(config) | _texts(tokens) | _model(figures) if config else {},
            "whole_config": configuration.dump(without_secrets(config)) if config else "",
            "verdict": verdict(figures),
            "notice": _notice(has_finished, lines, comparisons),
            "scores": _scores(comparisons),
            "tiles": _tiles(figures.get("training", {})),
            "evaluations": {
                name: list(group)
                for name, group in groupby(comparisons, lambda line: line.evaluation)
            },
            "evaluation_charts": evaluation_charts(
                read_if_there(run.evaluations, read_lines) or []
            ),
            "maps": _maps(samples),
            "map_size": MAP_SIZE,
            "depth": samples.get("depth", 0),
            "similarity_charts": _similarity_charts(samples),
            "neighbours": _queries(samples),
            "changes": _changes(samples),
            "charts": training_charts(lines),
            "time": time_spent(lines),
            "times_known": bool(lines),
            "funnel": funnel_levels(funnel),
            "restarts": [_restart(restart) for restart in read_restarts(run_folder)],
            "wall_bars": _wall_bars(wall_times(jobs)),
            "commands": _commands(jobs),
            "links": _links(run, prepared, target),
            "environment": read_record(run.environment),
        },
    )
    storage.write_text(target, page)
    return target


def _links(run: RunFolder, prepared: PreparedFolder, page: Location) -> list[Link]:
    # Not `run.model`: in a store it is one of several versions, a detail of storage.
    model = [link("model folder", run.path / "model", page)] if run.model.is_dir() else []
    corpus = [link("corpus report", prepared.report, page)] if prepared.report.is_file() else []
    return model + corpus


def _sentence(config: Config) -> str:
    training = config.training
    workers = "1 worker" if training.processes == 1 else f"{training.workers} workers"
    return f"Trained by {training.engine} ({training.mode}, {training.framework}) on {workers}"


def _settings(config: Config) -> dict[str, str]:
    """Return the settings with the most differences between runs; the page ends with all."""
    corpus, encoder, training = config.corpus, config.encoder, config.training
    inputs = "installed packages" if corpus.format == "docstrings" else ", ".join(corpus.inputs)
    packaged = "all-MiniLM-L6-v2, as packaged" if encoder.start == "default" else encoder.start
    shape = ARCHITECTURES.load(encoder.kind).described_settings(encoder)
    examples = training.granules_per_step * config.lanes.granule
    single = {"Corpus": f"{corpus.format} of {inputs}", "Pairs": corpus.pairs}
    sources = {f"Source {source.name}": _source(source, config) for source in corpus.sources}
    return {
        **(sources or single),
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
    inputs = ", ".join(source.inputs) or "installed packages"
    weight = "" if source.weight is None else f"; weight {source.weight:g}"
    objective = _objective(source.objective or config.objective)
    return f"{source.pairs}, {source.format} of {inputs}{weight}; {objective}"


def _objective(objective: ObjectiveSettings) -> str:
    """Describe a loss, with the keys that differ from their defaults."""
    keys = objective.model_dump(mode="json", exclude={"name"}, exclude_defaults=True)
    described = (
        f"{key} {', '.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in keys.items()
    )
    return "; ".join([objective.name, *described])


def _texts(tokens: Mapping[str, Any]) -> dict[str, str]:
    """Describe the truncation of the texts, and their prompts."""
    if "max_length" not in tokens:
        return {}
    if sources := tokens.get("sources", ()):
        by_side = {
            f"{source['name']}, {side}": text
            for source in sources
            for side, text in source["prompts"].items()
        }
    else:
        by_side = tokens["prompts"]
    prompts = [f"`{prompt}` ({side})" for side, prompt in by_side.items()]
    return {"Read": told_cuts(tokens)} | ({"Prompts": ", ".join(prompts)} if prompts else {})


def _model(figures: Mapping[str, Any]) -> dict[str, str]:
    """Describe the state of the model, and an early end of the training."""
    if "model" not in figures:
        return {}
    early = ", after an early end (training.patience)" if figures["model"].get("early_end") else ""
    return {"Model": told_choice(figures["model"]) + early}


def _tiles(training: Mapping[str, float]) -> dict[str, str]:
    """Return the figures at the top of the page."""
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
    """Return a row of the table of lost workers."""
    parts = {
        "engine": restart.engine,
        "rank": restart.rank,
        "host": restart.host,
        "lane": restart.lane,
    }
    who = (f"{name} {value}" for name, value in parts.items() if value is not None)
    return {
        "when": restart.time,
        "who": ", ".join(who),
        # Behind the first line comes a traceback.
        "why": restart.cause.partition("\n")[0],
        "made": whole(restart.made),
        "step": f"step {restart.step:,}",
        "workers": "1 worker" if restart.workers == 1 else f"{restart.workers} workers",
    }


def _scores(comparisons: Sequence[Comparison]) -> list[Comparison]:
    lines = main_lines(comparisons)
    return sorted(lines, key=lambda line: line.role != Role.JUDGED)[:_MAX_SCORES]


def _notice(
    has_finished: bool, lines: Sequence[Mapping[str, Any]], comparisons: Sequence[Comparison]
) -> str:
    """Return a warning for the top of the page: the run is unfinished, or has no figures."""
    if lines and not has_finished:
        return (
            f"This run has not finished: its last logged step is {lines[-1]['step']:,}. "
            "Set training.resume=true to continue from its last checkpoint."
        )
    if lines and not comparisons:
        return "This model has no evaluation yet. Run `evaluate`; see evaluation.retrieval."
    return ""


class WallTime(NamedTuple):
    """The wall-clock time of a stage; none if it ``is_kept`` from an earlier preparation."""

    name: str
    seconds: float
    is_kept: bool = False
    note: str = ""


def wall_times(record: JobsRecord) -> list[WallTime]:
    """Return the time of each stage, those of the preparation first."""
    stages = [
        WallTime(f"prepare: {stage.name}", 0.0 if stage.is_kept else stage.seconds, stage.is_kept)
        for stage in record.preparation
    ]
    names = dict.fromkeys(job.name for job in record.jobs)
    return stages + [_of_jobs([job for job in record.jobs if job.name == name]) for name in names]


def _of_jobs(jobs: Sequence[Job]) -> WallTime:
    """Sum all jobs of one name; a run may have been stopped and resumed."""
    ended = [job.seconds for job in jobs if job.seconds is not None]
    notes = [f"{len(jobs)} times"] if len(jobs) > 1 else []
    if unended := len(jobs) - len(ended):
        several = f"{unended} without an end, not counted"
        notes.append("has not ended" if len(jobs) == 1 else several)
    return WallTime(jobs[0].name, math.fsum(ended), note=", ".join(notes))


def total_seconds(times: Sequence[WallTime]) -> float:
    """Return the seconds of all stages together."""
    return math.fsum(time.seconds for time in times)


def _wall_bars(times: Sequence[WallTime]) -> list[Bar]:
    """Return a bar for each stage, each from the end of the one before, and one for all."""
    total = total_seconds(times)
    bars, begun = [], 0.0
    for time in times:
        name = f"{time.name} ({time.note})" if time.note else time.name
        share = time.seconds / total if total else 0.0
        took, share_text = (KEPT, "") if time.is_kept else (short_duration(time.seconds), None)
        bars.append(Bar(name, took, begun, share, "share", share_text))
        begun += share
    everything = Bar("all", short_duration(total), 0.0, 1.0, "kept")
    return [*bars, everything] if len(bars) > 1 and total else bars


class Command(NamedTuple):
    """A command and its jobs in a run; the command is empty for calls from Python."""

    text: str
    host: str
    commit: str
    jobs: list[str]


def _commands(record: JobsRecord) -> list[Command]:
    """Return the commands in order; jobs of one command stand together."""

    def key(job: Job) -> tuple[str, str, str]:
        return job.command or "", job.host, job.commit or ""

    return [Command(*head, [*map(_job_line, jobs)]) for head, jobs in groupby(record.jobs, key)]


def _job_line(job: Job) -> str:
    took = "has not ended" if job.seconds is None else short_duration(job.seconds)
    return f"{job.name}: {moment(job.began)}, {took}"


def moment(iso: str) -> str:
    """Format a UTC time to the minute."""
    return f"{datetime.fromisoformat(iso):%Y-%m-%d %H:%M} UTC"


class MapPair(NamedTuple):
    """A pair on a map, in the map's units, with texts safe to show.

    ``kind`` is `first`, `near` or `far`, by the rank of its document for its query.
    """

    number: int
    kind: str
    texts: tuple[str, str]
    rank: str
    query: tuple[float, float]
    document: tuple[float, float]


class Map(NamedTuple):
    """The pairs in the view of one model, and the number of each kind."""

    title: str
    pairs: list[MapPair]
    counts: Mapping[str, int]


def _maps(samples: Mapping[str, Any]) -> list[Map]:
    """Return the map of each model, with the same pairs; none without places."""
    pairs, depth = samples.get("pairs", []), samples.get("depth", 0)
    if not any(
        place != [0, 0] for pair in pairs for name in MODELS for place in pair[name]["places"]
    ):
        return []
    maps = []
    for name, title in MODELS.items():
        drawn = [_map_pair(number, pair, name, depth) for number, pair in enumerate(pairs)]
        counts = {
            kind: sum(pair.kind == kind for pair in drawn) for kind in ("first", "near", "far")
        }
        # The rarest kind is drawn last, on top of the others.
        drawn.sort(key=lambda pair: -counts[pair.kind])
        maps.append(Map(title, drawn, counts))
    return maps


def _map_pair(number: int, pair: Mapping[str, Any], name: str, depth: int) -> MapPair:
    rank = pair[name]["rank"]
    query, document = (_place(place) for place in pair[name]["places"])
    left, right = map(shown, pair["texts"])
    kind = "far" if rank is None else "first" if rank == 1 else "near"
    return MapPair(number, kind, (left, right), _in_words(rank, depth), query, document)


def _place(place: Sequence[float | None]) -> tuple[float, float]:
    """Turn a place from -1 to 1, upwards, to map units, downwards; the centre where unknown."""
    reach = MAP_SIZE / 2 - _MARGIN
    across, up = (0.0 if coordinate is None else coordinate for coordinate in place)
    return round(MAP_SIZE / 2 + reach * across, 1), round(MAP_SIZE / 2 - reach * up, 1)


def _in_words(rank: int | None, depth: int) -> str:
    """Return a rank in words; all ranks below the kept ones are the same."""
    return f"below rank {depth}" if rank is None else f"rank {rank}"


class Found(NamedTuple):
    """A model's result for a query: texts with their relevance, and a rank in words."""

    documents: list[tuple[str, bool]]
    rank: str


class Query(NamedTuple):
    """A query, and the result of each model."""

    text: str
    right: str
    before: Found
    after: Found


def _queries(samples: Mapping[str, Any]) -> dict[str, list[Query]]:
    """Return the queries of each kind, by its title."""
    kinds: dict[str, list[Query]] = {}
    for neighbour in samples.get("neighbours", []):
        found = (
            Found(
                [
                    (shown(document["text"]), bool(document["right"]))
                    for document in model["documents"]
                ],
                _in_words(model["rank"], samples.get("depth", 0)),
            )
            for model in map(neighbour.__getitem__, MODELS)
        )
        query = Query(shown(neighbour["text"]), shown(neighbour["right"]), *found)
        kinds.setdefault(KINDS[neighbour["kind"]], []).append(query)
    return kinds


def _changes(samples: Mapping[str, Any]) -> str:
    """Count the queries with a better and a worse rank, in a sentence."""
    counted = samples.get("changes", {})
    if not counted.get("queries"):
        return ""
    same = counted["queries"] - counted["better"] - counted["worse"]
    return (
        f"Of {counted['queries']:,} queries, {counted['better']:,} rank their document better than "
        f"before and {counted['worse']:,} worse. For {same:,} the rank is the same, or still below "
        f"{samples['depth']}."
    )


def _similarity_charts(samples: Mapping[str, Any]) -> list[Chart]:
    """Draw the cosines of a pair's texts, and of texts of different pairs; by model."""
    pairs = samples.get("pairs", [])
    values = {
        (name, key): [pair[name][key] for pair in pairs if pair[name][key] is not None]
        for name in MODELS
        for key in ("cosine", "strange_cosine")
    }
    everything = [cosine for cosines in values.values() for cosine in cosines]
    if not everything:
        return []
    low, high = min(everything), max(everything)
    edges = np.linspace(np.floor(10 * low) / 10, max(1.0, high), _BINS + 1).tolist()
    charts = []
    for name, title in MODELS.items():
        of_pairs, strange = values[name, "cosine"], values[name, "strange_cosine"]
        shapes = [
            Distribution(of_pairs, BLUE, "of a pair"),
            Distribution(strange, ORANGE, "of different pairs", fill=False),
        ]
        svg = distributions(f"Cosines {title.lower()}", shapes, edges, label="cosine of two texts")
        note = (
            f"A text is closer to its partner than to another pair's text in "
            f"{per_cent(_closer(of_pairs, strange))} of all comparisons; chance gives 50 %."
        )
        charts.append(Chart(f"{title}: cosine similarity", svg, note=note))
    return charts


def _closer(of_pairs: Sequence[float], strange: Sequence[float]) -> float:
    """Return the share of comparisons with a higher first value; a tie is half won.

    Source: Mann and Whitney, "On a test of whether one of two random variables is stochastically
    larger than the other", Annals of Mathematical Statistics 18(1), 1947.
    """
    if not of_pairs or not strange:
        return 0.5
    difference = np.subtract.outer(np.asarray(of_pairs, float), np.asarray(strange, float))
    return float((difference > 0).mean() + (difference == 0).mean() / 2)
