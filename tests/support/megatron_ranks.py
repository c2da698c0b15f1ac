"""One of several workers: ``python megatron_ranks.py RANK PORT SETTINGS``; see :func:`train_ranks`.

Trains its replica's granules of every step with Megatron, in one way after the other, and writes
what comes of it.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

STEPS, MIDDLE, GRANULES = 6, 3, 4
TRAINING = {"weight_decay": 0.1, "clip_norm": 0.5, "granules_per_step": GRANULES}


def train_ranks(folder: Path, layout: dict, ways: list) -> list[dict]:
    """What workers in a layout make, in each of several ways.

    Args:
        folder: Is filled.
        layout: Settings of training that make it; the number of workers among them.
        ways: Settings of the objective and of training, and a kind of encoder, of each.

    Returns:
        Losses, the last norm of the gradient, the checkpoints of the middle and the end, and the
        losses after the middle, resumed.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    settings = json.dumps([layout, ways, str(folder)])
    command = [sys.executable, __file__]
    ranks = range(layout["workers"])
    workers = [subprocess.Popen([*command, str(rank), port, settings]) for rank in ranks]
    try:
        assert [worker.wait(240) for worker in workers] == [0] * len(workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return pickle.loads((folder / "result").read_bytes())


def spec_of(kind: str):
    """A tiny encoder of two layers, of a vocabulary that two do not divide."""
    from steppers import SPEC

    from pipelines.models.mpnet.architecture import MPNetSpec
    from pipelines.models.spec import Dense

    if kind == "mpnet":
        fields = {"vocabulary": 51, "layers": 2, "hidden": 16, "heads": 2, "intermediate": 32}
        return MPNetSpec(**fields, positions=16)
    spec = replace(SPEC, layers=2, vocabulary=51)
    if kind == "projected":
        dense = (Dense(width=8),)
        return replace(spec, embedding_size=8, type_vocabulary=0, dense=dense)
    return spec


def curve(each, steps, first, last, rate=3e-3):
    """The losses of steps, from granules ``first`` to ``last`` of each."""
    from steppers import granule, work

    return [
        each.step(work(i, *(granule(GRANULES * i + one) for one in range(first, last))), rate)
        for i in steps
    ]


def main() -> None:
    """One worker."""
    rank, port, (layout, ways, folder) = *sys.argv[1:3], json.loads(sys.argv[3])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank}
    os.environ |= {"LOCAL_RANK": rank, "WORLD_SIZE": str(layout["workers"])}
    from pipelines.models.frameworks.torch import configure_threads
    from pipelines.quiet import quiet_import
    from pipelines.settings.load import parse
    from pipelines.training.collectives.process_group import (
        ProcessGroupCollectives,
        process_group_cleanup,
    )
    from pipelines.training.steppers import STEPPERS

    configure_threads(1)
    with quiet_import():
        STEPPERS.load("megatron")
    with process_group_cleanup():
        collectives = ProcessGroupCollectives(parse({}).training)
        results = [train(collectives, Path(folder), layout, *way) for way in ways]
    if rank == "0":
        (Path(folder) / "result").write_bytes(pickle.dumps(results))


def train(collectives, folder, layout, objective, training, kind) -> dict:
    """Trains, and goes on once more from a checkpoint in between."""
    from steppers import stepper

    from pipelines.settings.load import parse

    training = TRAINING | layout | training
    placement = parse({"training": {"framework": "torch"} | training}).training.placement
    replica = placement.place(collectives.rank).replica
    each = GRANULES // placement.replicas
    part = (each * replica, each * replica + each)
    make = {"objective": objective, "training": training, "collectives": collectives}
    make |= {"key": "megatron", "spec": spec_of(kind), "rank": collectives.rank}
    whole = stepper("torch", **make)
    losses = curve(whole, range(MIDDLE), *part)
    middle = whole.checkpoint(MIDDLE)
    path = folder / "middle"
    if collectives.rank == 0:
        path.write_bytes(pickle.dumps(middle))
    losses += curve(whole, range(MIDDLE, STEPS), *part)
    last = whole.checkpoint(STEPS)
    resumed = stepper("torch", checkpoint=pickle.loads(path.read_bytes()), **make)
    again = curve(resumed, range(MIDDLE, STEPS), *part)
    norm = whole.gradient_norm
    return {"losses": losses, "middle": middle, "last": last, "norm": norm, "again": again}


if __name__ == "__main__":
    main()
