"""Negatives of a large step fit in memory by the formula that is given for them."""

import json
import os
import socket
import subprocess
import sys
from functools import partial

import pytest

pytestmark = pytest.mark.matrix

CANDIDATES, WIDTH, WORKERS = 8192, 384, 2


def test_eight_thousand_candidates_on_two_workers_take_what_the_formula_says():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [sys.executable, __file__, port]
    # What is given back to the allocator is given back to the system: held memory is measured.
    places = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
    workers = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, env=places)
        for rank in range(WORKERS)
    ]
    try:
        found = [json.loads(worker.communicate(timeout=240)[0]) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    from pipelines.training.steppers.objectives import SIMILARITIES

    formula = 4 * (7 * CANDIDATES * WIDTH + 4 * SIMILARITIES)
    for peak in found:
        # It is a bound, and not a loose one.
        assert formula / 2 < peak < formula, (peak, formula)


def main() -> None:
    """One worker: the bytes by which a step lets it grow."""
    port, rank = sys.argv[1:]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(WORKERS)}
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
    import numpy as np
    import torch

    from pipelines.losses.candidates import Candidates
    from pipelines.losses.loss import configured_loss
    from pipelines.models.frameworks.torch import configure_threads
    from pipelines.settings.load import parse
    from pipelines.settings.objective import objective
    from pipelines.training.collectives.process_group import (
        ProcessGroupCollectives,
        exit_without_finalization,
        process_group_cleanup,
    )
    from pipelines.training.steppers.objectives import pulls_on_embeddings
    from pipelines.training.steppers.torch import gradients_of_loss

    configure_threads(1)
    gradients_of = partial(gradients_of_loss, configured_loss(objective(), "torch"))

    def step(candidates: int) -> None:
        own = candidates // WORKERS
        sides = [torch.nn.functional.normalize(torch.randn(own, WIDTH), dim=-1) for _ in range(2)]
        known = Candidates(np.arange(candidates)[:, None].repeat(3, 1))
        pulls_on_embeddings(sides, known, collectives, gradients_of, torch.cat)

    with process_group_cleanup():
        collectives = ProcessGroupCollectives(parse({}).training)
        step(64)
        before = resident("VmRSS")
        step(CANDIDATES)
        print(json.dumps(resident("VmHWM") - before))
    exit_without_finalization()


def resident(name: str) -> int:
    """Bytes of this process in memory, now or at most, as the kernel counts them."""
    with open("/proc/self/status") as status:  # noqa: PTH123 - no file
        (line,) = (line for line in status if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    main()
