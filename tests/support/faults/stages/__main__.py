"""The command: runs cells of stages, and writes their table into the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from hosts import why_not

from faults.__main__ import WORK, Names
from faults.disk import why_no_disk
from faults.page import STAGES, read_outcomes, write_page
from faults.stages.cell import make_materials, run_stage_cell, stage_cells


def main(
    stage: Names = (),
    fault: Names = (),
    again: Annotated[bool, typer.Option(help="Those too that have run as promised.")] = False,
    results: Annotated[Path, typer.Option(help="A line for each cell.")] = STAGES,
    work: Annotated[Path, typer.Option(help="Failing cells leave here what they wrote.")] = WORK,
) -> None:
    """Runs stages on hosts of namespaces that something is done to; needs root."""
    if reason := why_not() or why_no_disk():
        raise typer.BadParameter(reason)
    known = {(one.case, one.fault) for one in read_outcomes(results) if not one.failings}
    cells = [
        one
        for one in stage_cells()
        if (not stage or one.stage in stage)
        and (not fault or one.fault in fault)
        and (again or (one.stage, one.fault) not in known)
    ]
    print(f"{len(cells)} cells")
    materials, wrong = make_materials(work), 0
    for place, cell in enumerate(cells):
        outcome = run_stage_cell(cell, materials, work / f"stage-{place}")
        wrong += bool(outcome.failings)
        with results.open("a") as file:
            file.write(json.dumps(outcome.to_json()) + "\n")
        told = "; ".join(outcome.failings) or "as promised"
        print(f"{cell.stage} / {cell.fault}: {outcome.end} {outcome.seconds:.1f} s: {told}")
        print(f"    {outcome.message[:240]}", flush=True)
    write_page(stages=results)
    raise typer.Exit(1 if wrong else 0)


if __name__ == "__main__":
    typer.run(main)
