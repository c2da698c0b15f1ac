"""Measures a preparation from raw text to lanes: CPU time, and the share of each stage.

All processes count, the JVMs and the start of the session too: wall clock would praise what merely
keeps more cores busy.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.jobs.prepare import STAGES, stage_workers
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config
from pipelines_bench.cpu import CpuMeter, local_session
from pipelines_bench.growth import growth_config

START = "start"
"""Of the session; the stages have their own names."""


def measure(config: Config, data: str | None) -> dict[str, Any]:
    """Prepares a folder of text, and prints a table.

    Where ``corpus.format`` is left at its default, the corpus is of `documents`, in `adjacent`
    pairs, of which none are held out. ``corpus.inputs`` and ``prepared.folder`` count for nothing.

    Args:
        config: Of the preparation.
        data: A folder of input files.

    Returns:
        ``kb_per_cpu_second``: of unpacked text, by the time of all stages and the start of the
        session; ``cpu_seconds``: of each of these; ``bytes`` and ``pairs``; and ``lanes``, a digest
        of the manifest and so of all bytes of the lanes: two measurements with the same one have
        done the same.

    Raises:
        InputError: There is no folder, or executors run on other machines.
    """
    if data is None:
        problem = "prepare has no text of its own"
        raise InputError("--data", problem, "Name a folder that holds input files")
    with tempfile.TemporaryDirectory(prefix="prepare-") as folder, CpuMeter() as meter:
        config = _for_folder(growth_config(config), data, f"{folder}/prepared")
        spent = _cpu_seconds(config, meter)
        prepared = PreparedFolder.of(config)
        size = int(storage.read_json(prepared.corpus.statistics)["bytes"])
        pairs = int(storage.read_json(prepared.tokens.manifest)["examples"])
        lanes = hashlib.sha256(prepared.lanes.manifest.read_bytes()).hexdigest()[:16]
    rate = size / 1000 / sum(spent.values())
    _print(spent, rate)
    return {
        "kb_per_cpu_second": round(rate, 1),
        "cpu_seconds": {name: round(seconds, 2) for name, seconds in spent.items()},
        "bytes": size,
        "pairs": pairs,
        "lanes": lanes,
    }


def _for_folder(config: Config, data: str, prepared: str) -> Config:
    changes = {
        "corpus": config.corpus.model_copy(update={"inputs": (data,)}),
        "prepared": config.prepared.model_copy(update={"folder": prepared}),
    }
    return config.model_copy(update=changes)


def _cpu_seconds(config: Config, meter: CpuMeter) -> dict[str, float]:
    """The CPU time of the start and of each stage, in their order."""
    before = meter.seconds()
    # One executor has all cores, as in the command `prepare`.
    session = local_session(config, trains=False)
    spent = {START: meter.seconds() - before}
    for stage in STAGES:
        if stage.is_asked(config):
            before = meter.seconds()
            next_part(stage.name)
            with stage_workers(session):
                stage.run(session, config)
            spent[stage.name] = meter.seconds() - before
    return spent


def _print(spent: Mapping[str, float], rate: float) -> None:
    total = sum(spent.values())
    table = Table("stage", "CPU s", "share")
    for name, seconds in spent.items():
        table.add_row(name, f"{seconds:.1f}", f"{seconds / total:.0%}")
    table.add_row("all", f"{total:.1f}", "", style="bold")
    console = Screen()
    console.print(table)
    console.print(f"{rate:.0f} kB of text per CPU second")
