"""Several workers: ``python rank_pair.py WORKERS SETTINGS``, started by :func:`train_ranks`.

Each trains its part of every step, in one way after the other, and writes what comes of it.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch

STEPS, MIDDLE, GRANULES = 3, 1, 4
"""The second step behind the middle tells whether the moments were kept too."""
LORA = {"lora": {"rank": 2, "alpha": 8.0}, "freeze": {"embeddings": True}}
TRAINING = {"weight_decay": 0.1, "clip_norm": 0.5, "workers": 2, "granules_per_step": GRANULES}


def train_ranks(folder: Path, ways: list, count: int = 2) -> list[dict]:
    """What several workers make, in each of several ways.

    Args:
        folder: Is filled.
        ways: Key of the stepper, settings of the objective and of training, of each; and a name of
            ``steppers.KINDS`` for another encoder, or "lora" for one with LoRA.
        count: How many workers there are.

    Returns:
        Losses and the last checkpoint, the losses after the middle, resumed, and how many numbers
        the parameters of the first worker hold.
    """
    command = [sys.executable, __file__, str(count), json.dumps([ways, str(folder)])]
    with subprocess.Popen(command, start_new_session=True) as workers:
        try:
            assert workers.wait(600) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(workers.pid, signal.SIGKILL)
    return pickle.loads((folder / "result").read_bytes())


def one_process(objective, training, spec, **more):
    """The stepper of one process that holds all of the state."""
    from steppers import stepper

    return stepper("torch", objective, TRAINING | {"workers": 1} | training, spec=spec, **more)


def check_whole(
    result: dict,
    alone,
    *,
    exact: bool,
    arrays: bool = True,
    rtol: float = 1e-7,
    spared: str = "-",
    granules: int = GRANULES,
) -> None:
    """Compares what workers have made with the updates of one process.

    Args:
        result: Of a way; see :func:`train_ranks`.
        alone: The stepper of one process, which has made no step.
        exact: Whether they compute in fp32.
        arrays: Whether the weights and moments are compared.
        rtol: Of weights.
        spared: End of the names of arrays that are not compared.
        granules: Of a step.
    """
    expected = curve(alone, range(STEPS), 0, granules)
    np.testing.assert_allclose(result["losses"], expected, rtol=1e-5 if exact else 1e-3)
    assert result["norm"] == pytest.approx(alone.gradient_norm, rel=1e-4 if exact else 2e-2)
    # Matrix products may be summed in another order where memory lies otherwise.
    again = result["losses"][MIDDLE:]
    np.testing.assert_allclose(result["again"], again, rtol=1e-6 if exact else 1e-3)
    found, last = result["last"], alone.checkpoint(STEPS)
    atol = 1e-5 if exact else 1e-2
    for some, whole, near in (
        (found.weights, last.weights, rtol),
        (found.moments, last.moments, 1e-3),
    ):
        assert some.keys() == whole.keys()
        for name, array in whole.items():
            if arrays and not name.endswith(spared):
                np.testing.assert_allclose(some[name], array, near, atol, err_msg=name)


def check_resumed(last, way, spec) -> None:
    """One process goes on from a checkpoint of several workers, as from its own."""
    whole, steps = one_process(*way, spec), range(STEPS, STEPS + 2)
    curve(whole, range(STEPS), 0, GRANULES)
    resumed = one_process(*way, spec, checkpoint=last)
    np.testing.assert_allclose(
        curve(resumed, steps, 0, GRANULES), curve(whole, steps, 0, GRANULES), rtol=1e-5
    )


def curve(each, steps, first, last, rate=3e-3):
    """The losses of steps, from granules ``first`` to ``last`` of each."""
    from steppers import granule, work

    return [
        each.step(work(i, *(granule(GRANULES * i + one) for one in range(first, last))), rate)
        for i in steps
    ]


def frozen_of(encoder, spec):
    """What is not trained."""
    from steppers import start_weights

    from pipelines.models.adaptation import split
    from pipelines.settings.load import parse

    return split(parse({"encoder": encoder}).encoder, start_weights(spec), 17)[1]


def main() -> None:
    """Imports the libraries once, and has each worker in a process that is forked from this one."""
    workers, (ways, folder) = sys.argv[1], json.loads(sys.argv[2])
    from steppers import KINDS, SPEC

    from pipelines.catalog import STEPPERS
    from pipelines.models.architecture import form_of

    for key, _, _, *kind in ways:
        STEPPERS.load(key)
        form_of(KINDS.get(kind[0], SPEC) if kind else SPEC, "torch")
    # Now, so that nobody else takes it while libraries are imported.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": workers}
    ranks = {}
    for rank in range(int(workers)):
        if not (process := os.fork()):
            run_rank(rank, ways, folder)
        ranks[process] = rank
    while ranks:
        process, status = os.wait()
        if status:
            raise SystemExit(f"worker {ranks[process]} has ended with {status}")
        del ranks[process]


def run_rank(rank: int, ways: list, folder: str) -> NoReturn:
    """One worker."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    from pipelines.models.frameworks.torch import configure_threads
    from pipelines.settings.load import parse
    from pipelines.training.collectives.process_group import (
        ProcessGroupCollectives,
        exit_without_finalization,
        process_group_cleanup,
    )

    configure_threads(1)
    with process_group_cleanup():
        collectives = ProcessGroupCollectives(parse({}).training)
        results = [
            train(rank, collectives, Path(folder, str(number)), *way)
            for number, way in enumerate(ways)
        ]
    if rank == 0:
        (Path(folder) / "result").write_bytes(pickle.dumps(results))
    exit_without_finalization()


def train(rank, collectives, folder, key, objective, training, encoder="bert") -> dict:
    """Trains, and goes on once more from a checkpoint in between."""
    from steppers import KINDS, SPEC, stepper

    from pipelines.runs.checkpoint import load_checkpoint, save_checkpoint, save_frozen
    from pipelines.settings.load import parse

    training = TRAINING | {"workers": collectives.workers} | training
    placement = parse({"training": {"framework": "torch"} | training}).training.placement
    share = training["granules_per_step"] // placement.replicas
    replica = placement.place(rank).replica
    part = (share * replica, share * replica + share)
    make = {"objective": objective, "training": training, "collectives": collectives, "key": key}
    make["rank"] = rank
    make["spec"] = KINDS.get(encoder, SPEC)
    make["encoder"] = LORA if encoder == "lora" else {}
    whole = stepper("torch", **make)
    losses = curve(whole, range(MIDDLE), *part)
    middle = whole.checkpoint(MIDDLE).gathered()
    if rank == 0:
        save_frozen(folder, frozen_of(make["encoder"], make["spec"]))
        save_checkpoint(folder, middle, keep=1)
    losses += curve(whole, range(MIDDLE, STEPS), *part)
    last = whole.checkpoint(STEPS).gathered()
    collectives.all_reduce_mean([torch.zeros(1)])
    resumed = stepper(
        "torch", checkpoint=load_checkpoint(folder, MIDDLE, lazily=whole.sharded), **make
    )
    again = curve(resumed, range(MIDDLE, STEPS), *part)
    return {
        "losses": losses,
        "last": last,
        "norm": whole.gradient_norm,
        "again": again,
        "held": held(whole),
    }


def held(each) -> int:
    """How many numbers this worker's parameters hold, where a library has sharded them."""
    from torch.distributed.tensor import DTensor

    module = getattr(each, "_encoder", None)
    parameters = module.parameters() if isinstance(module, torch.nn.Module) else ()
    parts = [one.to_local() if isinstance(one, DTensor) else one for one in parameters]
    return sum(part.numel() for part in parts)


if __name__ == "__main__":
    main()
