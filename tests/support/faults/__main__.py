"""The command: runs cells of the matrix, and writes the page from all that have ever run."""

from __future__ import annotations

import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer
from hosts import why_not

from faults.cell import end_with_parent, run_in_time
from faults.disk import why_no_disk
from faults.job import make_prepared
from faults.matrix import all_cells, chosen_cells, covering_cells
from faults.outcome import Outcome
from faults.page import TRAINING, read_outcomes, write_page

WORK = Path(tempfile.gettempdir(), "faults")
Names = Annotated[list[str], typer.Option(help="All unless given.")]


def main(
    engine: Names = (),
    fault: Names = (),
    moment: Names = (),
    every: Annotated[bool, typer.Option(help="All cells, and not a covering choice.")] = False,
    again: Annotated[bool, typer.Option(help="Those too that have run before.")] = False,
    failed: Annotated[bool, typer.Option(help="Those alone that were not as promised.")] = False,
    minutes: Annotated[float, typer.Option(help="No cell is begun later.")] = 1e6,
    parallel: Annotated[int, typer.Option(help="Cells at a time.")] = 2,
    results: Annotated[Path, typer.Option(help="A line for each cell.")] = TRAINING,
    work: Annotated[Path, typer.Option(help="Failing cells leave here what they wrote.")] = WORK,
) -> None:
    """Runs a matrix of engine, fault and moment on hosts of namespaces; needs root."""
    if reason := why_not() or why_no_disk():
        raise typer.BadParameter(reason)
    known = {(one.case, one.fault, one.moment): one for one in read_outcomes(results)}
    cells = chosen_cells(all_cells() if every else covering_cells(), engine, fault, moment)
    if failed:
        wrong = {key for key, one in known.items() if one.failings}
        cells = [one for one in cells if (one.case, one.fault, one.moment) in wrong]
    elif not again:
        cells = [one for one in cells if (one.case, one.fault, one.moment) not in known]
    print(f"{len(cells)} cells")
    # Hosts see where the file of the results is not, but for the work folder itself.
    pristine = make_prepared(work / "prepared")
    deadline, wrong_ones = time.monotonic() + 60 * minutes, 0
    spawn = get_context("spawn")
    with ProcessPoolExecutor(parallel, mp_context=spawn, initializer=end_with_parent) as pool:
        waiting = {
            pool.submit(run_in_time, cell, pristine, work / f"cell-{place}", deadline): cell
            for place, cell in enumerate(cells)
        }
        for done in as_completed(waiting):
            outcome = done.result()
            if outcome is None:
                continue
            wrong_ones += bool(outcome.failings)
            with results.open("a") as file:
                file.write(json.dumps(outcome.to_json()) + "\n")
            print(_line(outcome), flush=True)
    write_page(training=results)
    print(f"{wrong_ones} were not as promised")
    raise typer.Exit(1 if wrong_ones else 0)


def _line(outcome: Outcome) -> str:
    name = f"{outcome.case} / {outcome.fault} / {outcome.moment}"
    told = "; ".join(outcome.failings) or "as promised"
    return f"{name}: {outcome.end} {outcome.seconds:.1f} s: {told}\n    {outcome.message[:240]}"


if __name__ == "__main__":
    typer.run(main)
