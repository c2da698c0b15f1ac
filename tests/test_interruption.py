"""Jobs that are interrupted end in order, and say how they are taken up again."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from pipelines.interruption import how_to_go_on, terminated_in_order

RESUME = "--set training.resume=true"


@pytest.mark.parametrize(
    ("arguments", "submitted", "told"),
    [
        (
            ["train", "--config", "my job.yaml"],
            False,
            f"interrupted; to go on: sentence-pipelines train --config 'my job.yaml' {RESUME}",
        ),
        (
            ["run", *RESUME.split()],
            False,
            f"interrupted; to go on: sentence-pipelines run {RESUME}",
        ),
        (
            ["train", "--set", "run.overwrite=true", "--set", "training.seed=3"],
            False,
            "interrupted; to go on: sentence-pipelines train --set training.seed=3 " + RESUME,
        ),
        (["prepare"], False, "interrupted; to go on: sentence-pipelines prepare"),
        (["train"], True, f"interrupted; to go on: submit it again with {RESUME}"),
        (["embed"], True, "interrupted; to go on: submit it again"),
        (["engines"], False, "interrupted"),
        ([], False, "interrupted"),
    ],
)
def test_the_command_that_goes_on_is_told(arguments, submitted, told):
    assert how_to_go_on(arguments, submitted=submitted, run_begun=True) == told


@pytest.mark.parametrize("arguments", [["run", "--set", "run.overwrite=true"], ["train"]])
def test_before_the_run_is_begun_the_command_is_the_one_that_was_given(arguments):
    """What is in the run folder is the run of before, which was to be replaced."""
    told = f"interrupted; to go on: sentence-pipelines {' '.join(arguments)}"
    assert how_to_go_on(arguments, submitted=False, run_begun=False) == told
    told = "interrupted; to go on: submit it again"
    assert how_to_go_on(arguments, submitted=True, run_begun=False) == told


# In a process of its own: a signal to that of the tests is a signal to all that they have started.
INTERRUPTED = """
import os, signal, sys, time
import pipelines.jobs.train
from pipelines.cli import main
from pipelines.interruption import run_begun

def train(config):
    if {begun}:
        run_begun()
    try:
        os.kill(os.getpid(), {number})
        time.sleep(60)
    finally:
        print("ended")

# As in a terminal: what a shell starts in the background ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
pipelines.jobs.train.train = train
before = signal.getsignal(signal.SIGTERM)
code = main(["train", "--set", "training.seed=3"])
assert signal.getsignal(signal.SIGTERM) == before
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("number", "code", "begun"),
    [(signal.SIGINT, 130, True), (signal.SIGINT, 130, False), (signal.SIGTERM, 143, True)],
    ids=["Ctrl-C", "Ctrl-C before the run", "SIGTERM"],
)
def test_a_signal_ends_a_command_with_its_code(number, code, begun):
    job = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(number=int(number), begun=begun)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    assert (job.returncode, job.stdout) == (code, "ended\n")
    further = f" {RESUME}" if begun else ""
    told = f"to go on: sentence-pipelines train --set training.seed=3{further}\n"
    assert job.stderr.endswith(told)


def test_another_thread_than_the_main_one_takes_no_signals():
    found = []

    def work():
        with terminated_in_order() as interruption:
            found.append(interruption.number)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(120)
    assert found == [0]


def test_a_spark_job_that_is_terminated_leaves_no_traces_of_java(tmp_path):
    (tmp_path / "pairs.csv").write_text(
        "a,b\n" + "".join(f"what is number {n}?,it is the number {n}\n" for n in range(20_000))
    )
    settings = ["format=csv", "inputs=pairs.csv", "pairs=columns", "pair_columns=a,b"]
    job = subprocess.Popen(
        [sys.executable, "-c", "import sys; from pipelines.cli import main; sys.exit(main())"]
        + ["prepare", *(part for one in settings for part in ("--set", f"corpus.{one}"))],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    said = []
    watchdog = threading.Timer(240, job.kill)
    watchdog.start()
    for line in job.stderr:
        said.append(line)
        if line.startswith("reading 1 files"):
            job.terminate()
    job.wait(60)
    watchdog.cancel()
    assert job.returncode == 143, said
    assert said[-1].startswith("interrupted; to go on: sentence-pipelines prepare --set corpus.")
    known = ("1/4 starting", "2/4 corpus", "reading 1 files", "interrupted", "Java of the package")
    assert [line for line in said if not line.startswith(known)] == []
    assert not (tmp_path / "prepared" / "corpus").exists()
