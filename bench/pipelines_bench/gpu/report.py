"""The results as a page of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def markdown(machine: Mapping[str, str], results: Sequence[Mapping[str, Any]]) -> str:
    """The machine, a row for each check, and a row for each figure.

    Args:
        machine: What names it.
        results: As in the JSON file.
    """
    named = ", ".join(f"{name} {value}" for name, value in machine.items())
    checks = [
        [one["name"], one["status"], f"{one['seconds']:.1f}", _cell(one["told"])] for one in results
    ]
    figures = [
        [one["name"], name, _cell(_shown(value))]
        for one in results
        for name, value in one["figures"].items()
    ]
    parts = [
        f"Machine: {named}.",
        _table(["check", "result", "seconds", "what was found"], checks),
        _table(["measured", "figure", "value"], figures) if figures else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
