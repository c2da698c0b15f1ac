"""The engines for people: a table of them, and a Spark conf that is ready to paste."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

from rich import box
from rich.table import Table
from rich.text import Text

from pipelines.engines import engine
from pipelines.engines.conf import all_rules


def engines_table(names: Iterable[str]) -> Table:
    """Engines with what each needs, a row for each of their modes.

    Args:
        names: Of the registry.
    """
    table = Table(box=box.HORIZONTALS, show_lines=True)
    for title in ("engine", "mode", "framework"):
        table.add_column(title)
    table.add_column("what it needs", ratio=3)
    table.add_column("what it insists on in Spark's conf", ratio=2, overflow="fold")
    for found in map(engine, names):
        rules = "\n".join(rule.text for rule in all_rules(found)) or "nothing"
        for number, (name, mode) in enumerate(found.modes.items()):
            head = (found.name, name, ", ".join(found.frameworks)) if not number else ("", name, "")
            table.add_row(*head, _plain(mode.needs), "as above" if number else rules)
    return table


def _plain(text: str) -> Text:
    """Markdown of a sentence as a terminal shows it."""
    return Text(re.sub(r"\[(.+?)\]\(.+?\)", r"\1", text).replace("`", ""))


def conf_lines(conf: Mapping[str, str], *, as_file: bool) -> Iterator[str]:
    """A Spark conf, ready to paste.

    Args:
        conf: By whole key.
        as_file: For ``spark-defaults.conf``; otherwise as arguments of spark-submit.
    """
    width = max(map(len, conf), default=0)
    for key, value in conf.items():
        if as_file:
            yield f"{key.ljust(width)}  {value}"
        else:
            yield f"--conf {shlex.quote(f'{key}={value}')} \\"
