"""A worker of some: ``python rank_pair.py RANK WORKERS PORT SETTINGS``, by :func:`train_ranks`.

Trains its part of every step, in one way after the other, and writes what comes of it.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import torch

STEPS, MIDDLE, GRANULES = 8, 5, 4
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
        Losses and the last checkpoint, and the losses after the middle, resumed.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    settings = json.dumps([ways, str(folder)])
    command = [sys.executable, __file__]
    workers = [
        subprocess.Popen([*command, str(rank), str(count), port, settings]) for rank in range(count)
    ]
    try:
        assert [worker.wait(600) for worker in workers] == [0] * count
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return pickle.loads((folder / "result").read_bytes())


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
    """One worker."""
    rank, workers, port, (ways, folder) = *sys.argv[1:4], json.loads(sys.argv[4])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {"WORLD_SIZE": workers, "RANK": rank}
    os.environ["LOCAL_RANK"] = rank
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
            train(int(rank), collectives, Path(folder, str(number)), *way)
            for number, way in enumerate(ways)
        ]
    if rank == "0":
        (Path(folder) / "result").write_bytes(pickle.dumps(results))
    exit_without_finalization()


def train(rank, collectives, folder, key, objective, training, encoder="bert") -> dict:
    """Trains, and goes on once more from a checkpoint in between."""
    from steppers import KINDS, SPEC, stepper

    from pipelines.runs.checkpoint import load_checkpoint, save_checkpoint, save_frozen
    from pipelines.settings.load import parse

    training = TRAINING | {"workers": collectives.workers} | training
    placement = parse({"training": {"framework": "torch"} | training}).training.placement
    share, replica = GRANULES // placement.replicas, placement.place(rank).replica
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
    return {"losses": losses, "last": last, "norm": whole.gradient_norm, "again": again}


if __name__ == "__main__":
    main()
