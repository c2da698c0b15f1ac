"""The page `docs/faults.md`: what the cells that have run ended with."""

from __future__ import annotations

import json
from pathlib import Path

from faults.injection import FAULTS
from faults.matrix import CASES
from faults.outcome import Outcome

BEGIN, END = "<!-- written by `make faults` -->\n", "<!-- until here -->\n"
STAGES_BEGIN = "<!-- written by `make faults-of-stages` -->\n"
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
    _write(BEGIN, tables(read_outcomes(results)))


def write_stages(results: Path) -> None:
    """Puts the table of the stages beside training into the page."""
    from faults.stages.cell import STAGE_FAULTS, stage_cells
    from faults.stages.kinds import STAGES

    outcomes = read_outcomes(results)
    known = {(one.fault, one.case): one for one in outcomes}
    there = {(one.fault, one.stage) for one in stage_cells()}
    lines = ["| | " + " | ".join(STAGES) + " |", "|---|" + "---|" * len(STAGES)]
    for fault, kind in STAGE_FAULTS.items():
        cells = (
            _told(known[fault, stage])
            if (fault, stage) in known
            else ("" if (fault, stage) in there else "-")
            for stage in STAGES
        )
        lines.append(f"| {kind.label} | " + " | ".join(cells) + " |")
    _write(STAGES_BEGIN, "\n".join([*lines, *_wrong(outcomes)]) + "\n")


def _write(begin: str, table: str) -> None:
    before, rest = PAGE.read_text().split(begin)
    after = rest.split(END, 1)[1]
    PAGE.write_text(f"{before}{begin}\n{table}\n{END}{after}")


def tables(outcomes: list[Outcome]) -> str:
    """A table of fault by engine, and below it what was not as promised."""
    ran = {}
    for one in outcomes:
        ran.setdefault((one.fault, one.case), []).append(one)
    lines = ["| | " + " | ".join(CASES) + " |", "|---|" + "---|" * len(CASES)]
    for fault, known in FAULTS.items():
        cells = (_entry(ran.get((fault, case), []), known.meets(CASES[case])) for case in CASES)
        lines.append(f"| {known.label} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, *_wrong(outcomes)]) + "\n"


def _wrong(outcomes: list[Outcome]) -> list[str]:
    """How many cells have run, and what was not as promised."""
    wrong = [one for one in outcomes if one.failings]
    lines = ["", f"{len(outcomes)} cells have run, {len(wrong)} were not as promised."]
    return lines + [
        f"- {one.case}, {one.fault}, {one.moment}: {'; '.join(one.failings)}" for one in wrong
    ]


def _entry(outcomes: list[Outcome], meets: bool) -> str:
    if not outcomes:
        return "" if meets else "-"
    return "<br>".join(f"{one.moment}: {_told(one)}" for one in outcomes)


def _told(outcome: Outcome) -> str:
    mark = "**!** " if outcome.failings else ""
    if outcome.end == "finished":
        return f"{mark}finished"
    return f"{mark}{outcome.end} {outcome.seconds:.0f} s"
