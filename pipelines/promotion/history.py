"""Which version was put in service when, by whom and why: a line of JSON for each change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipelines.files import storage
from pipelines.files.locations import Location

HISTORY = "history.jsonl"


def read(target: Location) -> list[dict[str, Any]]:
    """The lines, the oldest first, but for those that a killed process has left torn."""
    return [line for line in map(_parsed, _lines(target)) if line is not None]


def add(target: Location, line: Mapping[str, Any]) -> None:
    """Adds a line, whole or not at all; a torn one at the end gives way to it."""
    lines = _lines(target)
    if lines and _parsed(lines[-1]) is None and _is_torn(lines[-1]):
        lines.pop()
    text = "".join(f"{kept}\n" for kept in [*lines, json.dumps(line)])
    storage.write_text(target / HISTORY, text, durable=True)


def is_foreign(target: Location) -> bool:
    """Whether the file is something else: no line of it is one of ours, whole or torn."""
    lines = [line for line in _lines(target) if line.strip()]
    return bool(lines) and all(_parsed(line) is None and not _is_torn(line) for line in lines)


def _is_torn(line: str) -> bool:
    """Whether it is the beginning of a line, which a whole line of another tool is not."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return line.startswith("{")
    return False


def _lines(target: Location) -> list[str]:
    path = target / HISTORY
    # A process may have been killed between the bytes of one character.
    return path.read_text("utf-8", "replace").splitlines() if path.is_file() else []


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("version"), str):
        return None
    return found if isinstance(found.get("before"), str | None) else None
