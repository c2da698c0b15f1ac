"""The funnel: the fate of every row, counted level by level. It adds up.

A level counts in one unit. Its lines are the input, the dropped and the unreadable by reason, and
the kept by outcome. A new unit begins a new level: files hold docstrings, paragraphs hold
sentences.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

FILES = "source files"
ROWS = "rows"
LINES = "lines"
PARAGRAPHS = "paragraphs"
SENTENCES = "sentences"
PAIRS = "pairs"

MAX_REASONS = 3


@dataclass(frozen=True)
class FunnelLine:
    """One line of the funnel; a `quarantined` row was not readable.

    `name` is the stage or, for dropped and quarantined rows, the reason.
    """

    level: str
    kind: Literal["in", "dropped", "quarantined", "kept"]
    name: str
    rows: int

    def as_json(self) -> dict[str, str | int]:
        """Return the object of `funnel.json`: `reason` if dropped or quarantined, else `stage`."""
        label = "reason" if self.kind in ("dropped", "quarantined") else "stage"
        return {"level": self.level, "kind": self.kind, label: self.name, "rows": self.rows}


def level_lines(
    level: str,
    entered: tuple[str, int],
    dropped: Mapping[str, int],
    kept: Mapping[str, int],
    quarantined: Mapping[str, int] | None = None,
) -> list[FunnelLine]:
    """Return the lines of one level, the most frequent reason first."""
    return [
        FunnelLine(level, "in", *entered),
        *(FunnelLine(level, "dropped", *line) for line in _by_rows(dropped)),
        *(FunnelLine(level, "quarantined", *line) for line in _by_rows(quarantined or {})),
        *(FunnelLine(level, "kept", name, rows) for name, rows in kept.items()),
    ]


def _by_rows(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    # Ties by name: the same counts give the same file.
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def losses(lines: Iterable[FunnelLine]) -> list[str]:
    """Return a line for people for each level with lost rows: their number and the reasons.

    Reasons beyond the first :data:`MAX_REASONS` are one number.
    """
    messages = []
    by_level: dict[str, list[FunnelLine]] = defaultdict(list)
    for line in lines:
        by_level[line.level].append(line)
    for level, of_level in by_level.items():
        entered = sum(line.rows for line in of_level if line.kind == "in")
        lost = sorted(
            (line for line in of_level if line.kind in ("dropped", "quarantined") and line.rows),
            key=lambda line: -line.rows,
        )
        if lost:
            named = [f"{line.rows} {line.name}" for line in lost[:MAX_REASONS]]
            unnamed = sum(line.rows for line in lost[MAX_REASONS:])
            named += [f"{unnamed} for other reasons"] if unnamed else []
            total = sum(line.rows for line in lost)
            messages.append(f"left out {total} of {entered} {level} ({', '.join(named)})")
    return messages


def check_adds_up(lines: Iterable[FunnelLine]) -> None:
    """Check each level: in = dropped + quarantined + kept.

    The `ValueError` names the level and both sums.
    """
    entered, left = Counter[str](), Counter[str]()
    for line in lines:
        sums = entered if line.kind == "in" else left
        sums[line.level] += line.rows
    for level in {**entered, **left}:
        if entered[level] != left[level]:
            raise ValueError(
                f"the funnel of {level} has {entered[level]} in, but {left[level]} dropped, "
                "quarantined or kept"
            )
