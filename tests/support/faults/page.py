"""The page `docs/faults.md`: what the cells that have run ended with."""

from __future__ import annotations

import json
from pathlib import Path

from faults.cell import Outcome
from faults.injection import FAULTS
from faults.matrix import CASES

BEGIN, END = "<!-- written by `make faults` -->\n", "<!-- until here -->\n"
PAGE = Path("docs/faults.md")


def read_outcomes(results: Path) -> list[Outcome]:
    """The newest outcome of each cell."""
    lines = results.read_text().splitlines() if results.exists() else []
    found = {}
    for one in (Outcome(**json.loads(line)) for line in lines):
        found[one.case, one.fault, one.moment] = one
    return [*found.values()]


def write_page(results: Path) -> None:
    """Puts the tables into the page, between its marks."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{tables(read_outcomes(results))}\n{END}{rest.split(END)[1]}")


def tables(outcomes: list[Outcome]) -> str:
    """A table of fault by engine, and below it what was not as promised."""
    ran = {}
    for one in outcomes:
        ran.setdefault((one.fault, one.case), []).append(one)
    lines = ["| | " + " | ".join(CASES) + " |", "|---|" + "---|" * len(CASES)]
    for fault, known in FAULTS.items():
        cells = (_entry(ran.get((fault, case), []), known.meets(CASES[case])) for case in CASES)
        lines.append(f"| {known.label} | " + " | ".join(cells) + " |")
    wrong = [one for one in outcomes if one.failings]
    lines += ["", f"{len(outcomes)} cells have run, {len(wrong)} were not as promised."]
    lines += [
        f"- {one.case}, {one.fault}, {one.moment}: {'; '.join(one.failings)}" for one in wrong
    ]
    return "\n".join(lines) + "\n"


def _entry(outcomes: list[Outcome], meets: bool) -> str:
    if not outcomes:
        return "" if meets else "-"
    return "<br>".join(f"{one.moment}: {_told(one)}" for one in outcomes)


def _told(outcome: Outcome) -> str:
    mark = "**!** " if outcome.failings else ""
    if outcome.end == "finished":
        return f"{mark}finished"
    return f"{mark}{outcome.end} {outcome.seconds:.0f} s"
