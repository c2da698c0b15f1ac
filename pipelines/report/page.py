"""The page of a run: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines import config as configuration
from pipelines import storage
from pipelines.report.figures import Comparison, compare, is_number, read_lines
from pipelines.report.parts import duration, funnel_levels, read_if_there, render, whole
from pipelines.report.pictures import evaluation_charts, time_spent, training_charts
from pipelines.report.samples import MAP_SIZE, changes, maps, queries, similarity_charts
from pipelines.settings import Config

TEMPLATE = "page.html"
_MOST_SCORES = 2


def write_report(run_folder: Path, prepared_folder: Path) -> Path:
    """Writes ``report.html`` of a run; what is not there yet leaves its section out.

    Args:
        run_folder: Holds ``config.yaml``, ``environment.json``, ``metrics.jsonl``,
            ``metrics.json``, ``samples.json`` and ``evaluations.jsonl``.
        prepared_folder: Holds ``corpus/funnel.json``.

    Returns:
        The path of the page.
    """
    config = read_if_there(run_folder / "config.yaml", configuration.load)
    figures: Mapping[str, Any] = read_if_there(run_folder / "metrics.json", storage.read_json) or {}
    lines = read_if_there(run_folder / "metrics.jsonl", read_lines) or []
    funnel = read_if_there(prepared_folder / "corpus" / "funnel.json", storage.read_json) or []
    samples = read_if_there(run_folder / "samples.json", storage.read_json) or {}
    has_finished = "training" in figures and (run_folder / "model").is_dir()
    comparisons = compare(figures.get("before", {}), figures.get("after", {}))
    page = render(
        TEMPLATE,
        {
            "name": run_folder.absolute().name,
            "kind": "training report",
            "sentence": _sentence(config) if config else "Training report",
            "settings": _settings(config) if config else {},
            "whole_config": _whole(config) if config else "",
            "notice": _notice(has_finished, lines, comparisons),
            "scores": _scores(comparisons),
            "tiles": _tiles(figures.get("training", {})),
            "evaluations": _by_evaluation(comparisons),
            "evaluation_charts": evaluation_charts(
                read_if_there(run_folder / "evaluations.jsonl", read_lines) or []
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
            "environment": read_if_there(run_folder / "environment.json", storage.read_json) or {},
        },
    )
    path = run_folder / "report.html"
    storage.write_text(path, page)
    return path


def _sentence(config: Config) -> str:
    training = config.training
    workers = "1 worker" if training.workers == 1 else f"{training.workers} workers"
    return f"Trained by {training.engine} ({training.mode}, {training.framework}) on {workers}"


def _whole(config: Config) -> str:
    """All settings, for whoever the page is shown to."""
    return configuration.dump(configuration.without_secrets(config))


def _settings(config: Config) -> dict[str, str]:
    """The settings that tell runs apart, for people; the whole of them is in the page too."""
    corpus, encoder, training = config.corpus, config.encoder, config.training
    inputs = "installed packages" if corpus.format == "docstrings" else ", ".join(corpus.inputs)
    packaged = "all-MiniLM-L6-v2, as packaged" if encoder.start == "default" else encoder.start
    shape = f"{encoder.layers} layers of {encoder.hidden}, {encoder.heads} heads"
    if encoder.kind == "bag":
        shape = f"a bag of token embeddings of {encoder.hidden}"
    examples = training.granules_per_step * config.lanes.granule
    return {
        "Corpus": f"{corpus.format} of {inputs}",
        "Pairs": corpus.pairs,
        "Start": f"random, {shape}" if encoder.start == "random" else packaged,
        "Objective": f"{config.objective.name}, temperature {config.objective.temperature:g}, "
        f"negatives of the {config.objective.negatives}",
        "Step": f"{examples} examples ({training.granules_per_step} granules of "
        f"{config.lanes.granule})",
        "Learning rate": f"{training.learning_rate:g}, {training.schedule}, "
        f"{training.warmup:.0%} warm-up",
        "Precision": training.precision,
        "Longest text": f"{config.tokens.max_length} tokens",
        "Seed": str(training.seed),
    }


def _tiles(training: Mapping[str, float]) -> dict[str, str]:
    """The figures at the head of the page."""
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


def _scores(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The first figure of the first evaluations, of those that are better the higher they are."""
    first: dict[str, Comparison] = {}
    for line in comparisons:
        if line.after is not None and line.better == "higher":
            first.setdefault(line.evaluation, line)
    return list(first.values())[:_MOST_SCORES]


def _notice(
    has_finished: bool, lines: Sequence[Mapping[str, Any]], comparisons: Sequence[Comparison]
) -> str:
    """What a reader should know before anything else; nothing of a run that is whole."""
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
