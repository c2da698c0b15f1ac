"""Measures startup: console commands, a tiny preparation, and engines to a first step.

Every command is a process of its own, and all that it starts is counted with it. A command that
takes less than a second is run several times, and the least counts: what is more than that is the
machine's.
"""

from __future__ import annotations

import csv
import logging
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from rich.table import Table

from pipelines.catalog import ENGINES
from pipelines.compare.processes import (
    cli_command,
    measure_command,
    own_environment,
    stage_command,
)
from pipelines.engines.base import load_engine
from pipelines.errors import EngineUnavailable, InputError, PipelineError
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config

logger = logging.getLogger(__name__)

COMMANDS: Mapping[str, tuple[Sequence[str], int]] = {
    "--help": (["--help"], 0),
    "engines": (["engines"], 0),
    "a wrong key": (["train", "--set", "training.lr=1"], 2),
}
"""Arguments and exit codes."""
PARTS = ("commands", "prepare", "engines")
"""What can be measured alone."""
IMPORTS = "import typer, rich.console, pydantic"
"""What any command line of this kind loads: with what others cost is compared."""
REPEATS = 5
SIZES = (12, 2700)
"""Rows of the corpora that are prepared; the engines train the lanes of the last one."""
COLUMNS = ("left", "right")
# So that twelve rows fill some, and that a first step is little but its start.
_GRANULE = 4
_MAX_LENGTH = 64
# Of an executor, unless it is set: engine bigdl keeps the default start and its gradients in it.
_EXECUTOR_MEMORY = "2g"
# It is measured how long they take, so nothing but a start that hangs is to be ended.
_START_SECONDS = 600
_COMMAND_SECONDS = 120
_PREPARE_SECONDS = 1800


@dataclass(frozen=True)
class Cost:
    """What something took.

    Attributes:
        cpu_seconds: Of all its processes.
        wall_seconds: From its start to its end.
        driver_megabytes: Of a driver's Python and Java at their highest; None of what has no Java.
    """

    cpu_seconds: float
    wall_seconds: float
    driver_megabytes: float | None = None

    @property
    def figures(self) -> dict[str, float]:
        """For the JSON line."""
        found = {
            "cpu_seconds": self.cpu_seconds,
            "wall_seconds": self.wall_seconds,
            "driver_megabytes": self.driver_megabytes,
        }
        return {name: round(value, 3) for name, value in found.items() if value is not None}


def measure(config: Config, data: str | None, *, cases: str | None = None) -> dict[str, Any]:
    """Measures the commands, the preparations and the engines whose libraries are installed.

    Args:
        config: Of the preparations and the engines, but for the corpus and the size of granules.
        data: A CSV of pairs, read by ``corpus.pair_columns`` or else by its first two columns; by
            default docstrings of the installed packages are taken apart.
        cases: Some of :data:`PARTS`, with commas; all of them by default.

    Returns:
        ``imports``, ``commands`` and ``prepare`` with ``cpu_seconds`` and ``wall_seconds``: of
        Python with the imports that any such command line has, by command, and by rows;
        and ``engines``, the list of
        :func:`pipelines_bench.startup_engines.measure_engines`.

    Raises:
        InputError: The file cannot be read, or holds too few pairs; there is no such part.
        PipelineError: A command failed.
    """
    parts = named_parts(cases)
    next_part("commands")
    imports = least_cost([sys.executable, "-c", IMPORTS], 0)
    commands = {}
    if "commands" in parts:
        commands = {name: command_cost(*command) for name, command in COMMANDS.items()}
    prepared, engines = _spark_costs(config, data, parts)
    Screen().print(startup_table(commands, prepared, engines))
    return {
        "imports": imports.figures,
        "commands": {name: cost.figures for name, cost in commands.items()},
        "prepare": {str(rows): cost.figures for rows, cost in prepared.items()},
        "engines": engines,
    }


def named_parts(names: str | None) -> set[str]:
    """The parts of a list with commas; all of them by default.

    Raises:
        InputError: There is no such part.
    """
    found = set(PARTS) if names is None else {name.strip() for name in names.split(",")}
    if unknown := found - set(PARTS):
        raise InputError(
            "--cases", f"there is no `{min(unknown)}`", f"Choose from {', '.join(PARTS)}"
        )
    return found


def _spark_costs(
    config: Config, data: str | None, parts: Set[str]
) -> tuple[dict[int, Cost], list[dict[str, Any]]]:
    """What preparations cost by rows, and engines on what the last one has prepared."""
    if parts == {"commands"}:
        return {}, []
    pairs = list(islice(_pairs(config, data), max(SIZES)))
    if len(pairs) < max(SIZES):
        raise InputError(
            "--data", f"it holds {len(pairs)} pairs", f"Name a file of at least {max(SIZES)}"
        )
    prepared = {}
    with tempfile.TemporaryDirectory(prefix="sentence-pipelines-startup-") as name:
        for rows in SIZES:
            next_part(f"preparing {rows} pairs")
            job = prepare_config(config, pairs[:rows], Path(name) / f"rows-{rows}")
            prepared[rows] = _prepare_cost(job)
        return prepared, _engine_costs(job) if "engines" in parts else []


def command_cost(arguments: Sequence[str], code: int) -> Cost:
    """What a console command takes that starts no Spark.

    Args:
        code: The exit code that it is to have.

    Raises:
        PipelineError: It ends with another one, or not in time.
    """
    return least_cost(cli_command(*arguments), code)


def least_cost(command: Sequence[str], code: int) -> Cost:
    """The least that a command takes of several times; raises as :func:`command_cost`."""
    return min((_once(command, code) for _ in range(REPEATS)), key=lambda cost: cost.cpu_seconds)


def _once(command: Sequence[str], code: int) -> Cost:
    spent, began = _spent_by_children(), time.perf_counter()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PipelineError(f"startup: {command} did not end in {_COMMAND_SECONDS} s") from None
    cost = Cost(_spent_by_children() - spent, time.perf_counter() - began)
    if done.returncode != code:
        shown = done.stderr.decode(errors="replace").strip()
        raise PipelineError(f"startup: {command} ended with {done.returncode} ({shown})")
    return cost


def _spent_by_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def prepare_config(config: Config, pairs: Sequence[tuple[str, str]], folder: Path) -> Config:
    """The configuration of a preparation of a few pairs, which are written into a folder."""
    folder.mkdir()
    file = folder / "pairs.csv"
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([COLUMNS, *pairs])
    corpus = {
        "inputs": (str(file),),
        "format": "csv",
        "pairs": "columns",
        "pair_columns": COLUMNS,
        "near_duplicates": None,
        "evaluation_share": 0.0,
    }
    prepared = {"folder": str(folder / "prepared"), "reuse": False}
    return config.model_copy(
        update={
            "corpus": config.corpus.model_copy(update=corpus),
            "prepared": config.prepared.model_copy(update=prepared),
            "training": config.training.model_copy(update={"start_seconds": _START_SECONDS}),
            "tokens": config.tokens.model_copy(update={"max_length": _MAX_LENGTH}),
            "lanes": config.lanes.model_copy(update={"granule": _GRANULE}),
        }
    )


def _prepare_cost(config: Config) -> Cost:
    settings = Path(config.prepared.folder).parent / "job.yaml"
    usage = measure_command(
        stage_command("prepare", config, settings),
        environment=own_environment(),
        deadline_seconds=_PREPARE_SECONDS,
    )
    return Cost(usage.cpu_seconds, usage.seconds, usage.driver_bytes / 1e6)


def installed_engines(config: Config) -> list[str]:
    """The engines whose libraries are here; the log says which are left out."""
    found = []
    for name in ENGINES:
        engine = load_engine(name)
        training = config.training.model_copy(update={"framework": engine.frameworks[0]})
        try:
            engine.check_libraries(config.model_copy(update={"training": training}))
        except EngineUnavailable as error:
            logger.info("startup: engine %s is left out: %s", name, error)
        else:
            found.append(name)
    return found


def _engine_costs(config: Config) -> list[dict[str, Any]]:
    """The figures of all engines that can run here; the log says which cannot."""
    # Imported late, with all that trains.
    measure_engines: Callable[[Config, Sequence[str]], list[dict[str, Any]]]
    measure_engines = import_module("pipelines_bench.startup_engines").measure_engines
    spark = config.spark.with_conf({"executor.memory": _EXECUTOR_MEMORY, **config.spark.conf})
    config = config.model_copy(update={"spark": spark})
    figures = []
    for name in installed_engines(config):
        logger.info("startup: engine %s", name)
        next_part(f"engine {name}")
        try:
            figures += measure_engines(config, [name])
        except PipelineError as error:
            # The figures of the others are worth having.
            logger.warning("startup: engine %s is left out: %s", name, error)
    return figures


def _pairs(config: Config, data: str | None) -> Iterator[tuple[str, str]]:
    return _docstring_pairs() if data is None else csv_pairs(Path(data), config.corpus.pair_columns)


def csv_pairs(path: Path, columns: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """The rows of a CSV file that hold both texts.

    Args:
        columns: The columns to take; if there are none of these names, the first two.

    Raises:
        InputError: There is no such file, or it has only one column.
    """
    if not path.is_file():
        raise InputError("--data", f"there is no file {path}", "Name a CSV file of pairs")
    with path.open(encoding="utf-8", newline="") as stream:
        rows = csv.DictReader(stream)
        names = list(rows.fieldnames or ())
        if len(names) < 2:
            raise InputError("--data", f"{path} has no two columns", "Name a CSV file of pairs")
        left, right = columns if set(columns) <= set(names) else names[:2]
        for row in rows:
            if row[left] and row[right]:
                yield row[left], row[right]


def _docstring_pairs() -> Iterator[tuple[str, str]]:
    """The first paragraph of a docstring with all that follows it."""
    from pipelines.corpus.readers.docstrings import (
        file_docstrings,
        installed_roots,
        source_files,
    )

    for file in source_files(installed_roots()):
        for docstring in file_docstrings(file)[0]:
            summary, _, rest = docstring.text.partition("\n\n")
            if summary.strip() and rest.strip():
                yield summary, rest


def startup_table(
    commands: Mapping[str, Cost], prepared: Mapping[int, Cost], engines: Sequence[dict[str, Any]]
) -> Table:
    """The figures for people."""
    table = Table("what begins")
    for title in ("CPU s", "wall s"):
        table.add_column(title, justify="right")
    for name, cost in commands.items():
        table.add_row(name, f"{cost.cpu_seconds:.2f}", f"{cost.wall_seconds:.2f}")
    for rows, cost in prepared.items():
        table.add_row(
            f"prepare, {rows:,} rows", f"{cost.cpu_seconds:.1f}", f"{cost.wall_seconds:.1f}"
        )
    for engine in engines:
        for start, title in (("cold", "first run"), ("warm", "second run in a session")):
            table.add_row(
                f"{engine['engine']}, {title}",
                f"{engine[f'cpu_seconds_{start}']:.1f}",
                f"{engine[f'wall_{start}']:.1f}",
            )
    return table
