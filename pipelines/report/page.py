"""The page of a run: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines import config as configuration
from pipelines import storage
from pipelines.report.figures import Comparison, compare, read_metrics, smoothed, thinned
from pipelines.report.parts import Chart, duration, funnel_levels, read_if_there, render, whole
from pipelines.settings import Config

TEMPLATE = "page.html"
_SMOOTHED_SHARE = 0.015
_MOST_POINTS = 1000


def write_report(run_folder: Path, prepared_folder: Path) -> Path:
    """Writes ``report.html`` of a run; what is not there yet leaves its section out.

    Args:
        run_folder: Holds ``config.yaml``, ``environment.json``, ``metrics.jsonl`` and
            ``metrics.json``.
        prepared_folder: Holds ``corpus/funnel.json``.

    Returns:
        The path of the page.
    """
    config = read_if_there(run_folder / "config.yaml", configuration.load)
    figures: Mapping[str, Any] = read_if_there(run_folder / "metrics.json", storage.read_json) or {}
    lines = read_if_there(run_folder / "metrics.jsonl", read_metrics) or []
    funnel = read_if_there(prepared_folder / "corpus" / "funnel.json", storage.read_json) or []
    page = render(
        TEMPLATE,
        {
            "name": run_folder.absolute().name,
            "kind": "training report",
            "sentence": _sentence(config) if config else "Training report",
            "settings": _settings(config) if config else {},
            "whole_config": configuration.dump(config) if config else "",
            "tiles": _tiles(figures.get("training", {})),
            "evaluations": _by_evaluation(
                compare(figures.get("before", {}), figures.get("after", {}))
            ),
            "charts": _charts(lines),
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
    return {title: form(training[key]) for key, (title, form) in forms.items() if key in training}


def _by_evaluation(lines: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    groups: dict[str, list[Comparison]] = {}
    for line in lines:
        groups.setdefault(line.evaluation, []).append(line)
    return groups


def _charts(logged: Sequence[Mapping[str, float]]) -> list[Chart]:
    if not logged:
        return []
    from pipelines.report.charts import BLUE, ORANGE, PALE_BLUE, Curve, chart

    lines = thinned(logged, _MOST_POINTS)

    def column(name: str) -> list[float]:
        return [line[name] for line in lines]

    steps, losses = column("step"), column("loss")
    span = max(1.0, _SMOOTHED_SHARE * len(lines))
    loss = chart(
        "Loss",
        steps,
        [Curve(losses, PALE_BLUE, "logged", 1.2), Curve(smoothed(losses, span), BLUE, "smoothed")],
        size=(10, 3),
        from_zero=False,
    )
    shares = [
        Curve(column("padding"), BLUE, "padding, of slots"),
        Curve(column("data_wait"), ORANGE, "wait, of time"),
    ]
    waste = "Padding and data wait"
    single = {
        "Learning rate": "learning_rate",
        "Examples/s": "examples_per_second",
        "Tokens/s": "tokens_per_second",
    }
    if any(line.get("staleness_max") for line in lines):
        single |= {"Staleness, updates (mean)": "staleness_mean"}
    return [
        Chart("Loss", loss, wide=True),
        *(Chart(title, chart(title, steps, [Curve(column(key))])) for title, key in single.items()),
        Chart(waste, chart(waste, steps, shares, shares=True)),
    ]
