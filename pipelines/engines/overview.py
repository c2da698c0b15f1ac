"""The engines for people: a table of what each one needs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from pipelines.engines.base import Engine
from pipelines.engines.conf import ConfRule
from pipelines.engines.loading import load_engine
from pipelines.settings import Config


def engines_overview(names: Iterable[str]) -> Table:
    """What each engine needs, mode by mode, and what it requires of Spark's conf.

    One column below the other, so that the keys are whole on a narrow screen too.
    """
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for place, engine in enumerate(map(load_engine, names)):
        if place:
            table.add_row("", "")
        table.add_row(Text(engine.name, "bold"), Text(f"with {', '.join(engine.frameworks)}"))
        for name, mode in engine.modes.items():
            table.add_row(f"  {name}", _plain(mode.needs))
        for rule in all_rules(engine):
            table.add_row("  conf", _plain(rule.text))
    return table


def all_rules(engine: Engine) -> tuple[ConfRule, ...]:
    """The conf rules of an engine with any of its frameworks, each once."""
    config = Config()
    rules: list[ConfRule] = []
    for framework in engine.frameworks:
        # Not validated, so that an engine may bring a framework that no setting names yet.
        training = config.training.model_copy(update={"framework": framework})
        rules += engine.conf_rules(config.model_copy(update={"training": training}))
    return tuple(dict.fromkeys(rules))


def _plain(text: str) -> Text:
    """Markdown of a sentence as a terminal shows it."""
    return Text(re.sub(r"\[(.+?)\]\(.+?\)", r"\1", text).replace("`", ""))
