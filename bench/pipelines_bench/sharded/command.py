"""Starts the workers, and compares what they held with the formula."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipelines.errors import PipelineError
from pipelines.models.hf.architecture import weight_shapes
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.settings.load import parse
from pipelines_bench.sharded.formula import Training
from pipelines_bench.sharded.models import VOCABULARY, encoder_spec, random_start

MODULE = "pipelines_bench.sharded.torch_worker"
STEPPERS = {"fsdp": ("torch", "torch-fsdp"), "deepspeed": ("deepspeed", "deepspeed")}
"""The engine, and the stepper, by what the command calls them."""
DEADLINE_SECONDS = 3600.0
_STALL_SECONDS = 1800
_START_SECONDS = 600


def measure(
    folder: Path,
    *,
    engine: str = "fsdp",
    hidden: int = 2048,
    layers: int = 24,
    vocabulary: int = VOCABULARY,
    workers: int = 2,
    steps: int = 3,
    pairs: int = 4,
    tokens: int = 32,
    offload: str = "none",
    activation_checkpointing: bool = False,
    checkpoint: bool = True,
) -> dict[str, Any]:
    """Trains a random encoder, prints what each worker held, and returns it.

    Args:
        folder: Is filled; a start of an earlier call is taken as it is.
        engine: One of :data:`STEPPERS`.
        hidden: Width of the layers.
        layers: How many.
        vocabulary: Rows of the word embedding.
        workers: Processes.
        steps: Which they make, of a granule each.
        pairs: In a granule.
        tokens: Of each text.
        offload: As ``training.offload``.
        activation_checkpointing: As ``training.activation_checkpointing``.
        checkpoint: Whether they write one at the end.

    Raises:
        PipelineError: A worker has failed.
    """
    name, stepper = STEPPERS[engine]
    training = {
        "engine": name,
        "framework": "torch",
        "sharding": "parameters",
        "precision": "fp32",
        "offload": offload,
        "activation_checkpointing": activation_checkpointing,
        "workers": workers,
        "granules_per_step": workers,
        "stall_seconds": _STALL_SECONDS,
        "start_seconds": _START_SECONDS,
    }
    config = parse({"training": training})
    spec = encoder_spec(hidden, layers, vocabulary)
    formula = Training(
        engine=engine,
        shapes=weight_shapes(spec),
        workers=workers,
        offload=offload,
        tokens=2 * pairs * tokens,
        hidden=hidden,
        layers=layers,
        checkpointed=activation_checkpointing,
    )
    began = time.monotonic()
    run = random_start(folder / f"{hidden}x{layers}x{vocabulary}", config, spec, tokens, steps)
    print(f"{formula.parameters:,} parameters, start there in {time.monotonic() - began:.0f} s")
    found = _workers(run, stepper, workers, pairs, tokens, writes=checkpoint)
    _print(found, formula)
    return {
        "parameters": formula.parameters,
        "workers": found,
        "formula": formula.of_a_worker(),
        "one process": formula.of_one_process(),
    }


def _workers(
    run: TrainingRun, stepper: str, workers: int, pairs: int, tokens: int, *, writes: bool
) -> list[dict[str, Any]]:
    """What each worker tells of itself."""
    # A worker that a library aborts tells where.
    environment = os.environ | {"PYTHONFAULTHANDLER": "1"}
    outs = [Path(str(run.run_folder), f"rank-{rank}.json") for rank in range(workers)]
    tasks = [
        WorkerTask(run=run, rank=rank, workers=workers, monitor=("", 0), token="")
        for rank in range(workers)
    ]
    arguments = [stepper, str(pairs), str(tokens), str(writes), *map(str, outs)]
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, *arguments],
        stdin=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    try:
        process.communicate(pickle.dumps(tasks), DEADLINE_SECONDS)
    except subprocess.TimeoutExpired as error:
        told = f"the workers have not ended after {DEADLINE_SECONDS:.0f} s"
        raise PipelineError(told) from error
    finally:
        # A worker may outlive the one that has failed, and the process that has started both.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        raise PipelineError(f"a worker has failed (exit code {process.returncode})")
    return [json.loads(out.read_text(encoding="utf-8")) for out in outs]


def _print(found: Sequence[dict[str, Any]], formula: Training) -> None:
    expected = formula.of_a_worker()
    for rank, worker in enumerate(found):
        phases = ", ".join(
            f"{worker[phase]['anonymous'] / 1e9:.2f} ({phase})"
            for phase in ("load", "steps", "save")
            if phase in worker
        )
        print(
            f"worker {rank}: peak RSS {worker['peak'] / 1e9:.2f} GB, private {phases} GB;"
            f" steps of {', '.join(f'{one:.0f}' for one in worker['seconds'])} s,"
            f" losses {', '.join(f'{one:.4f}' for one in worker['losses'])}"
        )
    parts = " + ".join(f"{value / 1e9:.2f} {name}" for name, value in expected.items())
    print(
        f"formula, a worker of {formula.workers}: {sum(expected.values()) / 1e9:.2f} GB = {parts}"
    )
    print(f"formula, one process that holds all: {formula.of_one_process() / 1e9:.2f} GB")
