"""Gradients that travel during the backward pass: what workers make of them, and lost workers.

The workers are forked from ``python test_gradient_exchange.py``, which has imported what they need.
"""

import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from rank_pair import LORA
from steppers import KINDS, SPEC, granule, stepper, work

STEPS, GRANULES, RATE = 3, 6, 3e-3
TRAINING = {"weight_decay": 0.1, "clip_norm": 0.5, "granules_per_step": GRANULES, "dropout": 0.1}
CASES = {
    "granules": ({"negatives": "granule"}, {}, "deep"),
    "step": ({"negatives": "step"}, {}, "deep"),
    "micro-batches": ({"negatives": "granule"}, {"tokens_per_forward": 20}, "deep"),
    "hf": ({"negatives": "granule"}, {}, "hf"),
    "static": ({"negatives": "granule"}, {}, "static"),
    "lora": ({"negatives": "granule"}, {}, "lora"),
    "reconstruction": ({"name": "mlm"}, {}, "deep"),
}
UNLIKE = ("step", "static", "lora")
"""Cases whose gradients differ in number and shape, where only their way is tried."""
EARLY = ("step", "micro-batches", "hf", "reconstruction")
"""Cases whose backward passes differ."""
DEADLINE_SECONDS = 60
VICTIM = 1


@pytest.fixture(scope="module")
def of_workers() -> Iterator[Callable[..., list]]:
    """Runs a scenario: what each worker gives, by rank; None of one that gave nothing."""
    parent = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )

    def run(folder: Path, workers: int, scenario: str, cases: tuple[str, ...] = ()) -> list:
        parent.stdin.write(json.dumps([workers, str(folder), scenario, cases]) + "\n")
        parent.stdin.flush()
        assert select.select([parent.stdout], [], [], 600)[0], scenario
        assert parent.stdout.readline() == "done\n"
        paths = [folder / str(rank) for rank in range(workers)]
        return [pickle.loads(path.read_bytes()) if path.exists() else None for path in paths]

    with parent:
        yield run
        with suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)


def made(case: str, **more):
    objective, training, kind = CASES[case]
    training = TRAINING | training | more.pop("training", {})
    encoder = LORA if kind == "lora" else {}
    spec = KINDS.get(kind, SPEC)
    return stepper("torch", objective, training, spec=spec, encoder=encoder, **more)


def curve(each, rank: int, workers: int) -> list:
    share = GRANULES // workers
    firsts = [GRANULES * step + share * rank for step in range(STEPS)]
    granules = [[granule(first + number) for number in range(share)] for first in firsts]
    return [each.step(work(i, *of_step), RATE) for i, of_step in enumerate(granules)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "cases"),
    [
        (3, EARLY),
        *(pytest.param(count, tuple(CASES), marks=pytest.mark.matrix) for count in (2, 3)),
    ],
)
def test_what_travels_early_gives_the_same_to_the_bit(of_workers, tmp_path, workers, cases):
    everybody = of_workers(tmp_path, workers, "equal", cases)
    for case in cases:
        overlapped, plain, early = everybody[0][case]
        assert overlapped == plain, case
        # All but the last few buckets are under way before the backward pass ends.
        assert early[0] == 0, case
        assert all(count > 0 for count in early[1:]) or case == "static", case
        assert all(worker[case][0] == overlapped for worker in everybody), case
        losses, arrays = overlapped
        alone = made(case, training={"workers": 1})
        np.testing.assert_allclose(losses, curve(alone, 0, 1), rtol=1e-5, err_msg=case)
        for name, expected in alone.checkpoint(STEPS).weights.items():
            found = np.frombuffer(arrays[name], np.float32).reshape(expected.shape)
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "cases"), [(2, UNLIKE), pytest.param(3, tuple(CASES), marks=pytest.mark.matrix)]
)
def test_workers_of_one_host_make_the_same_in_shared_memory(of_workers, tmp_path, workers, cases):
    everybody = of_workers(tmp_path, workers, "shared", cases)
    gradients = [gradients_of(rank) for rank in range(workers)]
    for number, of_ranks in enumerate(zip(*gradients, strict=True)):
        expected = sum(of_ranks[1:], of_ranks[0]) / np.float32(workers)
        for worker in everybody:
            np.testing.assert_array_equal(worker["means"][number], expected)
    for case in cases:
        (losses, arrays), (others_losses, others) = everybody[0][case]
        assert all(worker[case][0] == (losses, arrays) for worker in everybody), case
        # Of two workers, every order of summation gives the same.
        assert (losses, arrays) == (others_losses, others) or workers > 2, case
        np.testing.assert_allclose(losses, others_losses, rtol=1e-6, err_msg=case)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "cases"), [pytest.param(2, tuple(CASES), marks=pytest.mark.matrix), (3, UNLIKE)]
)
def test_compressed_means_are_rounded_twice(of_workers, tmp_path, workers, cases):
    everybody = of_workers(tmp_path, workers, "bf16", cases)
    gradients = [gradients_of(rank) for rank in range(workers)]
    for number in range(len(gradients[0])):
        found = [np.asarray(worker["means"][number]) for worker in everybody]
        assert all(np.array_equal(other, found[0]) for other in found)
        each = np.stack([of_rank[number] for of_rank in gradients]).astype(np.float64)
        mean = each.mean(axis=0)
        if not each[0].ndim:
            np.testing.assert_allclose(found[0], mean, rtol=1e-6)
            continue
        once = 2.0**-8  # half of it would do for numbers that are not rounded up
        bound = once * np.abs(each).mean(axis=0) + once * np.abs(mean)
        assert (np.abs(found[0] - mean) <= bound).all()
        assert not np.array_equal(found[0], mean.astype(np.float32))
    for case in cases:
        losses = [worker[case] for worker in everybody]
        assert all(other == losses[0] for other in losses)
        exact = curve(made(case, training={"workers": 1}), 0, 1)
        np.testing.assert_allclose(losses[0], exact, rtol=1e-2, err_msg=case)
        assert losses[0] != exact


def gradients_of(rank: int) -> list[np.ndarray]:
    generator = np.random.default_rng(rank)
    shapes = ((7, 5), (), (3,), (11, 200))
    return [np.asarray(generator.normal(size=shape), np.float32) for shape in shapes]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "exchange"),
    [("killed", "apart"), ("killed", "shared"), ("killed", "bf16"), ("fails", "bf16")],
)
def test_a_worker_that_is_lost_in_its_backward_pass_ends_the_others(
    of_workers, tmp_path, end, exchange
):
    everybody = of_workers(tmp_path, 3, f"{end}-{exchange}")
    assert everybody.pop(VICTIM) == (None if end == "killed" else "torn")
    for error, is_lost, seconds in everybody:
        assert is_lost, error
        assert seconds < DEADLINE_SECONDS


def main() -> None:
    """The parent: imports the libraries once, and forks the workers of each scenario."""
    made("hf")
    made("granules")
    for line in sys.stdin:
        workers, folder, scenario, cases = json.loads(line)
        fork_workers(workers, Path(folder), scenario, cases)
        print("done", flush=True)


def fork_workers(workers: int, folder: Path, scenario: str, cases: list[str]) -> None:
    """Runs a scenario, and waits for the end of its workers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(workers)}
    ranks = {}
    for rank in range(workers):
        if not (process := os.fork()):
            run_rank(rank, workers, folder, scenario, cases)
        ranks[process] = rank
    while ranks:
        process, status = os.wait()
        if status and not (ranks[process] == VICTIM and scenario.startswith("killed")):
            raise SystemExit(f"worker {ranks[process]} has ended with {status}")
        del ranks[process]


def run_rank(rank: int, workers: int, folder: Path, scenario: str, cases: list[str]) -> None:
    """One worker; writes what it gives."""
    # The parent's answers go there.
    os.dup2(2, 1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    from pipelines.models.frameworks.torch import configure_threads
    from pipelines.settings.load import parse
    from pipelines.training.collectives import torch_shared_memory
    from pipelines.training.collectives.interfaces import SOCKETS_ONLY
    from pipelines.training.collectives.process_group import (
        ProcessGroupCollectives,
        exit_without_finalization,
        process_group_cleanup,
    )
    from pipelines.training.steppers import torch_exchange

    # So that even a small encoder has several buckets, and an exchange takes several turns.
    torch_exchange.BUCKET_BYTES, torch_shared_memory.AREA_BYTES = 2048, 4096
    configure_threads(1)
    name, _, exchange = scenario.partition("-")
    if exchange == "apart" or name == "equal":
        os.environ[SOCKETS_ONLY] = "1"
    settings = {
        "engine": "torch",
        "framework": "torch",
        "workers": workers,
        "granules_per_step": GRANULES,
        "stall_seconds": DEADLINE_SECONDS,
        "compression": "bf16" if "bf16" in (name, exchange) else "none",
    }
    with process_group_cleanup():
        collectives = ProcessGroupCollectives(parse({"training": settings}).training)
        is_shared = "memfd:gradients" in Path("/proc/self/maps").read_text()
        assert is_shared == ("shared" in (name, exchange))
        makes = {"equal": equal, "bf16": compressed, "shared": in_shared_memory}
        result = makes[name](collectives, cases) if name in makes else lost(collectives, name)
    (folder / str(rank)).write_bytes(pickle.dumps(result))
    exit_without_finalization()


def equal(collectives, cases: list[str]) -> dict:
    """Of each case, what comes of both ways, and how many buckets travel early in each step."""
    return {case: both_ways(collectives, case) for case in cases}


def both_ways(collectives, case: str) -> tuple:
    early: list[int] = []
    overlapped = made(case, training={"workers": collectives.workers}, collectives=collectives)
    plain = made(case, training={"workers": collectives.workers}, collectives=collectives)
    exchange, backward = overlapped._exchange, overlapped._exchange.backward

    def counted(loss, *, last):
        backward(loss, last=last)
        if last:
            early.append(len(exchange._begun))

    exchange.backward = counted
    plain._exchange.backward = lambda loss, last: loss.backward()
    return *(all_of(each, collectives) for each in (overlapped, plain)), early


def all_of(each, collectives) -> tuple:
    losses = curve(each, collectives.rank, collectives.workers)
    last = each.checkpoint(STEPS)
    arrays = last.weights | last.moments
    return losses, {name: array.tobytes() for name, array in arrays.items()}


def in_shared_memory(collectives, cases: list[str]) -> dict:
    """The means of some arrays; of each case, what comes of shared memory, and of Gloo."""
    import torch

    from pipelines.training.collectives.process_group import GroupCollectives

    found = {"means": means_of(collectives)}
    training = {"workers": collectives.workers}
    for case in cases:
        ways = (collectives, GroupCollectives(torch.device("cpu")))
        found[case] = [
            all_of(made(case, training=dict(training), collectives=way), collectives)
            for way in ways
        ]
    return found


def means_of(collectives) -> list[np.ndarray]:
    import torch

    tensors = [torch.from_numpy(array) for array in gradients_of(collectives.rank)]
    return [mean.numpy() for mean in collectives.begin_mean(tensors)()]


def compressed(collectives, cases: list[str]) -> dict:
    """The means of some arrays, and the losses of each case."""
    found = {"means": means_of(collectives)}
    for case in cases:
        each = made(case, training={"workers": collectives.workers}, collectives=collectives)
        found[case] = curve(each, collectives.rank, collectives.workers)
    return found


def lost(collectives, end: str) -> str | tuple:
    """The error, whether it means a lost worker, and after how long; of the victim its own."""
    from pipelines.training.collectives.process_group import means_peer_lost

    each = made("granules", training={"workers": collectives.workers}, collectives=collectives)
    share = GRANULES // collectives.workers
    parts = [granule(share * collectives.rank + number) for number in range(share)]
    each.step(work(0, *parts), RATE)
    if collectives.rank == VICTIM:
        tear(each, end)
    began = time.monotonic()
    try:
        for index in range(1, 100):
            each.step(work(index, *parts), RATE)
    except ValueError as error:
        return str(error)
    except RuntimeError as error:
        return repr(error), means_peer_lost(error), time.monotonic() - began
    return "nothing happened", False, 0.0


def tear(each, end: str) -> None:
    """Ends this worker in the middle of a last backward pass: it has sent some gradients."""

    def ended(_) -> None:
        if not each._exchange._begun:
            return
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("torn")

    for name, weight in each._weights.items():
        if ".layer.1." in name:
            weight.register_post_accumulate_grad_hook(ended)


if __name__ == "__main__":
    main()
