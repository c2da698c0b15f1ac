"""The page `docs/reference/faults.md`: what the cells that have run ended with."""

from __future__ import annotations

import json
from pathlib import Path

from faults.injection import FAULTS
from faults.matrix import CASES
from faults.outcome import Outcome

FOLDER = Path("docs/reference")
PAGE, TRAINING = FOLDER / "faults.md", FOLDER / "faults.jsonl"
STAGES = FOLDER / "faults-of-stages.jsonl"
_PAGE = """<!-- Written by `make faults` and `make faults-of-stages`; edit {module} instead. -->

# Faults

Each cell names the moment of the fault, how the job ended, and how many seconds after the fault.
[Faults](../concepts/faults.md) explains the guarantee, the cluster and the deadlines.

- `finished`: the job finished with the right result.
- `goes on`: the job ran on as if nothing had happened.
- `error`: the job ended with one line that names the cause.
- `killed`: the fault ended the driver itself. A later job resumed the run.
- **!** marks a broken guarantee. The list below the table explains it.
- An empty cell has not run. `-` marks an impossible combination.

## Training

Two workers train on three hosts. `make faults` writes this table.

{training}
## Other stages

`make faults-of-stages` writes this table.

{stages}"""


def read_outcomes(results: Path) -> list[Outcome]:
    """The newest outcome of each cell."""
    lines = results.read_text().splitlines() if results.exists() else []
    found = {}
    for one in (Outcome(**json.loads(line)) for line in lines):
        found[one.case, one.fault, one.moment] = one
    return [*found.values()]


def write_page(training: Path = TRAINING, stages: Path = STAGES) -> None:
    """Writes the page from the results of both commands."""
    PAGE.write_text(page(read_outcomes(training), read_outcomes(stages)))


def page(training: list[Outcome], stages: list[Outcome]) -> str:
    """The whole page, as Markdown."""
    return _PAGE.format(
        module="tests/support/faults/page.py",
        training=tables(training),
        stages=table_of_stages(stages),
    )


def table_of_stages(outcomes: list[Outcome]) -> str:
    """A table of fault by stage, and below it the broken guarantees."""
    from faults.stages.cell import STAGE_FAULTS, stage_cells
    from faults.stages.kinds import STAGES as NAMES

    known = {(one.fault, one.case): one for one in outcomes}
    there = {(one.fault, one.stage) for one in stage_cells()}
    lines = ["| | " + " | ".join(NAMES) + " |", "|---|" + "---|" * len(NAMES)]
    for fault, kind in STAGE_FAULTS.items():
        cells = (
            _told(known[fault, stage])
            if (fault, stage) in known
            else ("" if (fault, stage) in there else "-")
            for stage in NAMES
        )
        lines.append(f"| {kind.label} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, *_wrong(outcomes)]) + "\n"


def tables(outcomes: list[Outcome]) -> str:
    """A table of fault by engine, and below it the broken guarantees."""
    ran = {}
    for one in outcomes:
        ran.setdefault((one.fault, one.case), []).append(one)
    cases = [case for case in CASES if any(one.case == case for one in outcomes)]
    lines = ["| | " + " | ".join(cases) + " |", "|---|" + "---|" * len(cases)]
    for fault, known in FAULTS.items():
        cells = (_entry(ran.get((fault, case), []), known.meets(CASES[case])) for case in cases)
        lines.append(f"| {known.label} | " + " | ".join(cells) + " |")
    if waiting := [f"`{case}`" for case in CASES if case not in cases]:
        lines += ["", f"Not run yet: {', '.join(waiting)}."]
    return "\n".join([*lines, *_wrong(outcomes)]) + "\n"


def _wrong(outcomes: list[Outcome]) -> list[str]:
    """How many cells have run, and the broken guarantees."""
    wrong = [one for one in outcomes if one.failings]
    lines = ["", f"{len(outcomes)} cells have run, and {len(wrong)} broke the guarantee."]
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
