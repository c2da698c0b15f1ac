"""What a card says about how the model was made."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.model_card.energy import WATTS_PER_CPU, watt_hours
from pipelines.model_card.facts import CardFacts
from pipelines.model_card.markdown import LONGEST, code, plain, table
from pipelines.report.page_parts import duration
from pipelines.report.text import shown
from pipelines.runs.choice import told_choice
from pipelines.runs.opening import LIBRARIES, MISSING
from pipelines.settings import ObjectiveSettings
from pipelines.settings.corpus import SourceForm, SourceSettings
from pipelines.settings.resuming import FREE, differing_settings
from pipelines.tokens.summary import told_cuts

SECTIONS = (
    "corpus",
    "tokens",
    "teacher",
    "lanes",
    "encoder",
    "objective",
    "training",
    "evaluation",
)
"""Of the settings: those that decide what a model is, and what is known of it."""
SHOWN_ELSEWHERE = ("corpus.sources", "corpus.inputs", "objective.name")
HUB_DATASETS = "https://huggingface.co/datasets"
_MACHINE = ("platform", "cores")
_VERSIONS = ("sentence-pipelines", "python", *LIBRARIES)


def training_sections(facts: CardFacts) -> Iterator[str]:
    """The lines about data, objective, settings, machines and time."""
    yield from ("## Training", "")
    if facts.model:
        early = ", after an early end (`training.patience`)" if "early_end" in facts.model else ""
        yield from (f"The model is {plain(told_choice(facts.model))}{early}.", "")
    yield from _data(facts)
    yield from _objective(facts)
    yield from _settings(facts)
    yield from _time(facts)
    yield from _versions(facts)


def _data(facts: CardFacts) -> Iterator[str]:
    config, card = facts.config, facts.config.card
    yield from ("### Data", "")
    if card.data_description is not None:
        yield from (plain(card.data_description, LONGEST), "")
    if card.datasets:
        links = (f"[{plain(name)}]({HUB_DATASETS}/{name})" for name in card.datasets)
        yield f"- **Datasets:** {', '.join(links)}"
    for source in config.corpus.sources or (config.corpus,):
        yield f"- **{_title(source)}:** {_texts_of(source)}"
    if "examples" in facts.tokens:
        yield f"- **Examples for training:** {facts.tokens['examples']:,}"
    if "max_length" in facts.tokens:
        yield f"- **Read in training:** {told_cuts(facts.tokens)}"
    told = "not stated" if card.data_license is None else plain(card.data_license, LONGEST)
    yield from (f"- **Licence of the texts:** {told}", "")
    if facts.funnel:
        yield from ("What the preparation has kept of them:", "")
        yield from table(("counted", "", "number"), map(_funnel_row, facts.funnel), right=1)
        yield ""


def _title(source: SourceForm) -> str:
    return f"Source {plain(source.name)}" if isinstance(source, SourceSettings) else "Texts"


def _texts_of(source: SourceForm) -> str:
    """Where the texts of a source are from, and what is made of them."""
    inputs = ", ".join(source.inputs) or "the installed Python packages"
    return plain(f"{source.format} of {inputs}; examples by the rule {source.pairs}")


def _funnel_row(line: Mapping[str, Any]) -> tuple[str, str, str]:
    name = line.get("stage", line.get("reason", ""))
    what = name if line["kind"] == "in" else f"{line['kind']}: {name}"
    return plain(line["level"]), plain(what), f"{line['rows']:,}"


def _objective(facts: CardFacts) -> Iterator[str]:
    config = facts.config
    yield from ("### Objective", "")
    for source in config.corpus.sources:
        yield f"- {_title(source)}: {_loss(source.objective or config.objective)}"
    if not config.corpus.sources:
        yield f"- {_loss(config.objective)}"
    yield ""


def _loss(objective: ObjectiveSettings) -> str:
    """A loss with all its keys, since their defaults are its own."""
    keys = objective.model_dump(mode="json", exclude={"name"})
    told = (
        f"{code(key)} {_value(value)}"
        for key, value in keys.items()
        if value is not None and value != []
    )
    return "; ".join((f"**{plain(objective.name)}**", *told))


def _settings(facts: CardFacts) -> Iterator[str]:
    hidden = {*SHOWN_ELSEWHERE, *FREE}
    settings = {
        key: value
        for key, value in differing_settings(facts.config, SECTIONS).items()
        if key not in hidden
    }
    yield from ("### Settings that differ from their defaults", "")
    if not settings:
        yield from ("None.", "")
        return
    yield from table(("key", "value"), ((code(key), _value(settings[key])) for key in settings))
    yield ""


def _value(value: object) -> str:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return plain(", ".join(value)) or "none"
    return plain(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _time(facts: CardFacts) -> Iterator[str]:
    training, figures = facts.config.training, facts.training
    if not figures:
        return
    processes = training.processes
    yield from ("### Hardware and time", "")
    yield (
        f"- **Engine:** {plain(training.engine)} ({plain(training.mode)}, "
        f"{plain(training.framework)}) with {processes} worker{'s' if processes > 1 else ''}"
    )
    if "precision" in figures:
        yield f"- **Precision:** {plain(figures['precision'])}"
    if machine := [facts.environment[key] for key in _MACHINE if key in facts.environment]:
        cores = " and ".join((plain(machine[0]), *(f"{plain(one)} cores" for one in machine[1:])))
        yield f"- **Machine of the driver:** {cores}"
    yield f"- **Steps:** {figures['steps']:,}, of {figures['examples']:,} examples together"
    yield f"- **Training time:** {duration(figures['seconds'])}"
    if "cpu_seconds" in figures:
        yield from _energy(figures["cpu_seconds"])
    yield ""


def _energy(cpu_seconds: float) -> Iterator[str]:
    yield f"- **CPU time of the workers' steps:** {duration(cpu_seconds)}"
    yield (
        f"- **Energy of the CPUs, an estimate:** {watt_hours(cpu_seconds):.3g} Wh = CPU time x "
        f"{WATTS_PER_CPU} W for a busy logical CPU ([Cloud Carbon Footprint]"
        "(https://www.cloudcarbonfootprint.org/docs/methodology)). It leaves out GPUs, where "
        "workers had some, memory, network, cooling, the driver, and preparing and evaluating."
    )


def _versions(facts: CardFacts) -> Iterator[str]:
    told = {name: facts.environment.get(name, MISSING) for name in _VERSIONS}
    known = {name: version for name, version in told.items() if version != MISSING}
    if known:
        yield from ("### Versions", "")
        yield ", ".join(code(shown(f"{name} {version}")) for name, version in known.items())
        yield ""
