"""Whole jobs whose folders lie in an object store: what they make, and that they survive kills."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from corpus_factory import small_config, write_docstrings

from pipelines.files.locations import Location
from pipelines.files.versions import put_file
from pipelines.promotion import current
from pipelines.settings.load import dump

pytestmark = pytest.mark.matrix

STEPS = 40
KILLS = 10
JOB_SECONDS = 300
MAIN = "import sys; from pipelines.cli import main; sys.exit(main())"
# Less than the lanes that the corpus makes, so that blocks have to go.
CACHE_GIGABYTES = 0.0006


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    """A job on local folders, and its file of settings."""
    folder = tmp_path_factory.mktemp("local")
    write_docstrings(folder / "docstrings.jsonl")
    config = small_config(
        folder / "prepared",
        engine="torch",
        framework="torch",
        workers=2,
        max_steps=STEPS,
        checkpoint_every=5,
    )
    config = config.changed("prepared", cache_gigabytes=CACHE_GIGABYTES)
    config = config.changed("run", folder=str(folder / "run")).changed("spark", master="local[2]")
    path = folder / "job.yaml"
    path.write_text(dump(config))
    finished(started("run", path, []))
    return path


@pytest.fixture
def in_store(job, s3_bucket, tmp_path) -> list[str]:
    """The settings that move the job to a bucket."""
    source = job.parent / "docstrings.jsonl"
    put_file(source, s3_bucket.root / "in" / source.name)
    settings = {
        "corpus.inputs": f'["{s3_bucket.address}/in/*.jsonl"]',
        "prepared.folder": f"{s3_bucket.address}/prepared",
        "run.folder": f"{s3_bucket.address}/run",
        "promotion.target": f"{s3_bucket.address}/served",
        "storage.s3_endpoint": s3_bucket.options.s3_endpoint,
        "storage.cache_folder": str(tmp_path / "cache"),
    }
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


def started(command: str, job: Path, settings: list[str]) -> subprocess.Popen[str]:
    """A command, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, command, "--config", str(job), *settings],
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finished(process: subprocess.Popen[str]) -> str:
    """What a command said; it must end well."""
    said, _ = process.communicate(timeout=JOB_SECONDS)
    assert process.returncode == 0, said[-4000:]
    return said


def killed(process: subprocess.Popen[str], seconds: float) -> bool:
    """Kills a command and all that it started, as the loss of its machine does."""
    # What it says fits into no pipe that nobody reads.
    reader = threading.Thread(target=process.stdout.read, daemon=True)
    reader.start()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        family = [psutil.Process(process.pid)]
        family += family[0].children(recursive=True)
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        psutil.wait_procs(family, timeout=120)
        return True
    return False


def losses(run: Location) -> list[tuple[int, float]]:
    """The curve that a run has written."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["loss"]) for line in lines]


def assert_same(run: Location, reference: Path) -> None:
    """Compares curve and figures of two runs."""
    steps, here = zip(*losses(run), strict=True)
    expected_steps, expected = zip(*losses(reference), strict=True)
    assert steps == expected_steps
    np.testing.assert_allclose(here, expected, rtol=1e-5)
    figures, wanted = (
        json.loads((folder / "metrics.json").read_text()) for folder in (run, reference)
    )
    for moment in ("before", "after"):
        assert figures[moment].keys() == wanted[moment].keys()
        for kind, found in figures[moment].items():
            assert found == pytest.approx(wanted[moment][kind], abs=1e-4)


@contextmanager
def largest_size(folder: Path) -> Iterator[list[int]]:
    """Looks at the size of a folder while the block runs; the largest stands in the list."""
    largest, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            size = 0
            for found in folder.rglob("*"):
                with suppress(OSError):
                    size += found.stat().st_size * found.is_file()
            largest[0] = max(largest[0], size)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield largest
    finally:
        ended.set()
        thread.join()


def test_a_job_in_a_store_equals_one_on_disk(job, in_store, s3_bucket, tmp_path):
    lanes = tmp_path / "cache" / "lanes"
    with largest_size(lanes) as largest:
        finished(started("run", job, in_store))
    assert 0 < largest[0] <= CACHE_GIGABYTES * 1e9
    assert_same(s3_bucket.root / "run", job.parent / "run")
    finished(started("promote", job, in_store))
    model = current(f"{s3_bucket.address}/served", s3_bucket.options)
    ours, theirs = (
        (folder / "model.safetensors").read_bytes() for folder in (model, job.parent / "run/model")
    )
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_job_killed_at_any_moment_can_be_gone_on_with(job, in_store, s3_bucket, seed):
    random_ = random.Random(seed)
    # Twice in the same job: in whatever it does first, and in what it goes on with.
    settings = [*in_store, "--set", "training.resume=true"]
    for _ in range(2):
        if not killed(started("run", job, settings), random_.uniform(3, 60)):
            break
    finished(started("run", job, settings))
    assert_same(s3_bucket.root / "run", job.parent / "run")
