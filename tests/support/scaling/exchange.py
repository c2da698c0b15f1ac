"""The command: steps of two workers behind slow links, with gradients that travel late or early.

Each worker is a process on a host of its own. They make the same steps in all ways in turn, so that
other load of the machine meets all of them.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from faults.network import limited
from hosts import end, some_hosts, why_not
from steppers import granule, stepper, work

from pipelines.lanes.files import Granule, Side
from pipelines.models.bert.spec import BertSpec

WORKERS, PORT = 2, 29400
BURST = "burst 1mb latency 100ms"
DEADLINE_SECONDS = 1500.0
BEFORE, EARLY, COMPRESSED = "after the backward pass", "during it", "during it, in bf16"
BASE = BertSpec(vocabulary=30522, layers=12, hidden=768, heads=12, intermediate=3072)
BUCKET_BYTES_BEFORE = 25 * 2**20


def main(
    pairs: Annotated[int, typer.Option(help="Of a worker's step, of up to 32 tokens.")] = 16,
    megabits: Annotated[int, typer.Option(help="Of a link, per second and direction.")] = 1000,
    rounds: Annotated[int, typer.Option(help="Steps of each way, beside a first one.")] = 5,
    worker: Annotated[int, typer.Option(hidden=True)] = -1,
) -> None:
    """Compares the ways of an exchange of BERT-base's gradients; needs root."""
    if worker >= 0:
        print(json.dumps(measured(worker, pairs, rounds)), flush=True)
        return
    if reason := why_not():
        raise typer.BadParameter(reason)
    with tempfile.TemporaryDirectory(prefix="exchange-") as name, ExitStack() as running:
        folder = Path(name)
        hosts = running.enter_context(some_hosts(folder, count=WORKERS))
        for host in hosts:
            running.enter_context(limited(host, f"rate {megabits}mbit {BURST}"))
        shared = {
            "MASTER_ADDR": hosts[0].address,
            "MASTER_PORT": str(PORT),
            "WORLD_SIZE": str(WORKERS),
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
        }
        logs = [folder / f"worker{rank}" for rank in range(WORKERS)]
        command = [sys.executable, "-m", "scaling.exchange"]
        command += [f"--pairs={pairs}", f"--rounds={rounds}"]
        processes = [
            host.start([*command, f"--worker={rank}"], log, shared | {"RANK": str(rank)})
            for rank, (host, log) in enumerate(zip(hosts, logs, strict=True))
        ]
        try:
            for process, log in zip(processes, logs, strict=True):
                assert process.wait(DEADLINE_SECONDS) == 0, log.read_text()[-2000:]
        finally:
            for process in processes:
                end(process)
        told(json.loads(logs[0].read_text().splitlines()[-1]), pairs, megabits)


def told(seconds: dict[str, list[float]], pairs: int, megabits: int) -> None:
    """Prints the seconds of a step, and the ratios of the rounds."""
    print(f"BERT-base, {WORKERS} workers of {pairs} pairs, {megabits} Mbit/s")
    for way, each in seconds.items():
        ratios = sorted(before / now for before, now in zip(seconds[BEFORE], each, strict=True))
        print(
            f"{way}: {statistics.median(each):.2f} s a step"
            f" ({min(each):.2f} to {max(each):.2f}), {statistics.median(ratios):.2f} times as fast"
            f" ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def measured(rank: int, pairs: int, rounds: int) -> dict[str, list[float]]:
    """The seconds of a worker's steps, by their way."""
    import torch
    import torch.distributed as processes

    from pipelines.settings.load import parse
    from pipelines.training.collectives.process_group import (
        GroupCollectives,
        ProcessGroupCollectives,
    )
    from pipelines.training.steppers import torch_exchange
    from pipelines.training.steppers.torch_exchange import GradientExchange

    os.environ["LOCAL_RANK"] = "0"
    shared = {"engine": "torch", "framework": "torch", "workers": WORKERS, "precision": "auto"}
    collectives = ProcessGroupCollectives(parse({"training": shared}).training)
    training = {"workers": WORKERS, "granules_per_step": WORKERS, "precision": "auto"}
    trained = stepper("torch", {}, training, collectives=collectives, spec=BASE)
    exact = trained._collectives
    early = trained._exchange
    compressed = GradientExchange(
        trained._weights, GroupCollectives(torch.device("cpu"), compression="bf16")
    )
    torch_exchange.BUCKET_BYTES = BUCKET_BYTES_BEFORE
    before = GradientExchange(trained._weights, exact)
    before.backward = lambda loss, last: loss.backward()  # type: ignore[method-assign]
    ways = {BEFORE: before, EARLY: early, COMPRESSED: compressed}
    found: dict[str, list[float]] = {way: [] for way in ways}
    part = texts(rank, pairs)
    for number in range(1 + rounds):
        for way, exchange in ways.items():
            trained._exchange = exchange
            processes.barrier()
            began = time.perf_counter()
            trained.step(work(number, part), 1e-5)
            # The first step of a way agrees on the order of its buckets.
            if number:
                found[way].append(time.perf_counter() - began)
    return found


def texts(rank: int, pairs: int) -> Granule:
    """Random pairs of up to 32 tokens."""
    import numpy as np

    generator = np.random.default_rng(rank)

    def side() -> Side:
        lengths = generator.integers(8, 33, pairs).astype(np.int32)
        ids = generator.integers(1000, 30000, (pairs, 32)).astype(np.int32)
        return Side(ids * (np.arange(32) < lengths[:, None]), lengths)

    made = granule(rank, examples=pairs)
    return Granule(number=rank, groups=made.groups, anchor=side(), positive=side())


if __name__ == "__main__":
    typer.run(main)
