"""Runs all benchmarks with bounds one after the other, and names the broken bounds.

Each is run in a process of its own, as its command would run it, and those behind one that fails
are run all the same. The bounds are in ``bounds.yaml`` beside this file, or in a file of one's own.
"""

from __future__ import annotations

import json
import logging
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from pipelines.compare.processes import cli_command, measure_command, own_environment
from pipelines.errors import PipelineError
from pipelines.files import storage
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.provenance import command_arguments
from pipelines.settings import Config
from pipelines.settings import load as configuration
from pipelines.settings.redaction import without_secret_arguments
from pipelines_bench.bounds.entries import OWN, Run, read_bounds
from pipelines_bench.bounds.judging import Verdict, failed, judged
from pipelines_bench.bounds.yardstick import yardstick

logger = logging.getLogger(__name__)

DEADLINE_SECONDS = 900.0
"""Of each benchmark, all of which take no more together."""
_CASES = "--cases"
_TABLE_WIDTH = 120

Figures = Mapping[str, Any]


def measure(
    config: Config, data: str | None, *, cases: str | None = None, output: str | None = None
) -> dict[str, Any]:
    """Runs the benchmarks, prints a table, and a line for each bound that is broken.

    Args:
        config: Of all of them; the file of bounds sets some keys anew.
        data: A file of bounds; by default that of this package.
        cases: Names of runs in it, with commas; all of them by default.
        output: A folder that keeps what each has printed; by default nothing is kept.

    Returns:
        ``bounds``: by name, the figure and whether the bound is ``held``; ``seconds`` by run;
        ``broken``: names of bounds.

    Raises:
        InputError: The file says something that is wrong.
    """
    bounds = read_bounds(data)
    runs = bounds.chosen(cases)
    with tempfile.TemporaryDirectory(prefix="sentence-pipelines-bounds-") as temporary:
        place = Workplace(Path(output or temporary).absolute(), Path(temporary), bounds.settings)
        place.begin(config)
        verdicts, seconds = hold(runs, place.figures)
    _print(verdicts, seconds)
    return {
        "bounds": {
            one.bound.name: {"figure": one.figure, "held": not one.is_broken} for one in verdicts
        },
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "broken": [one.bound.name for one in verdicts if one.is_broken],
    }


def hold(
    runs: Sequence[Run], figures_of: Callable[[Run], Figures]
) -> tuple[list[Verdict], dict[str, float]]:
    """The verdicts of all bounds, and the seconds that each run took.

    Args:
        figures_of: Runs a benchmark; raises :class:`PipelineError` where it fails.
    """
    verdicts: list[Verdict] = []
    seconds: dict[str, float] = {}
    for number, run in enumerate(runs, 1):
        told = f"{number} of {len(runs)}, {run.name}"
        logger.info("bounds: %s", told)
        next_part(told)
        began = time.monotonic()
        try:
            # Beside the run, since the speed of a core changes.
            before, figures, after = yardstick(), figures_of(run), yardstick()
            verdicts += judged(run, figures, (before + after) / 2)
        except PipelineError as error:
            # The others are still to be held.
            verdicts += failed(run, str(error))
        seconds[run.name] = time.monotonic() - began
    return verdicts, seconds


@dataclass(frozen=True)
class Workplace:
    """Where benchmarks run.

    Attributes:
        logs: A folder for what they print.
        temporary: A folder for what they prepare.
        settings: KEY=VALUE of all of them.
    """

    logs: Path
    temporary: Path
    settings: Sequence[str]

    @property
    def prepared(self) -> Path:
        """The folder of the lanes that they share."""
        return self.temporary / "prepared"

    @property
    def job(self) -> Path:
        """The file of settings that they share."""
        return self.temporary / "job.yaml"

    def begin(self, config: Config) -> None:
        """Makes the folders, and writes the settings."""
        self.logs.mkdir(parents=True, exist_ok=True)
        storage.write_text(self.job, configuration.dump(config))

    def figures(self, run: Run) -> Figures:
        """Runs a benchmark in a process of its own.

        Raises:
            PipelineError: It failed, or did not end in time.
        """
        if run.lanes and not PreparedFolder(self.prepared).lanes.manifest.is_file():
            logger.info("bounds: preparing the lanes")
            self._run("lanes", self._command(["prepare"], ()))
        return printed_figures(self._run(run.name, self.command(run)))

    def command(self, run: Run) -> list[str]:
        """The command of a run."""
        options = [f"--{name}={value}" for name, value in run.options.items()]
        return self._command([*run.command, *options], run.settings)

    def _command(self, arguments: Sequence[str], settings: Sequence[str]) -> list[str]:
        # The last one of a key counts.
        keys = [f"prepared.folder={self.prepared}", *self.settings, *settings]
        told = [*arguments, *(part for one in keys for part in ("--set", one))]
        for place, path in (("{prepared}", self.prepared), ("{folder}", self.temporary)):
            told = [one.replace(place, str(path)) for one in told]
        return cli_command(*told, "--config", str(self.job))

    def _run(self, name: str, command: Sequence[str]) -> str:
        """What a command prints."""
        log = self.logs / f"{name}.log"
        measure_command(
            command,
            # Its figures stand in one piece among what else it says.
            environment=own_environment() | {"PYTHONUNBUFFERED": "1"},
            deadline_seconds=DEADLINE_SECONDS,
            log=log,
        )
        return log.read_text(encoding="utf-8", errors="replace")


def printed_figures(log: str) -> Figures:
    """The last object that a benchmark has printed in a line.

    Raises:
        PipelineError: There is none.
    """
    for line in reversed(log.splitlines()):
        if line.startswith("{"):
            try:
                found, _ = json.JSONDecoder().raw_decode(line)
            except ValueError:
                continue
            return dict(found)
    raise PipelineError("it printed no figures")


def _print(verdicts: Sequence[Verdict], seconds: Mapping[str, float]) -> None:
    table = Table("run", "s", "bound", "figure", "must be", "")
    last = ""
    for one in verdicts:
        is_first, last = one.run.name != last, one.run.name
        table.add_row(
            one.run.name if is_first else "",
            f"{seconds[one.run.name]:.0f}" if is_first else "",
            one.bound.name,
            one.told,
            one.limit,
            "BROKEN" if one.is_broken else "",
        )
    console = Screen()
    # Where output is no terminal, the table would be cut at eighty columns.
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(table)
    for one in verdicts:
        if one.is_broken:
            told = f"{one.bound.name}: {one.problem}; to repeat it: {repeating(one.run)}"
            console.print(told, soft_wrap=True, highlight=False, markup=False)


def repeating(run: Run) -> str:
    """The command that measures a run once more, with all that was given to this one."""
    given = [*(command_arguments() or ("benchmark", OWN))]
    if _CASES in given:
        place = given.index(_CASES)
        del given[place : place + 2]
    # Where it was given in another form, the last one counts.
    told = [*without_secret_arguments(given), _CASES, run.name]
    return shlex.join(["sentence-pipelines", *told])
