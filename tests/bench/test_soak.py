"""The soak: what counts as growth, what is counted of which process, and the command."""

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from engine_cases import WITH_HOROVOD, WITH_MEGATRON, WITH_MESH
from hypothesis import given
from hypothesis import strategies as st

from pipelines.catalog import ENGINES
from pipelines.cli import main
from pipelines.errors import InputError, PipelineError
from pipelines.settings.load import parse
from pipelines_bench import benchmark, check_bounds
from pipelines_bench.soak import command
from pipelines_bench.soak.cases import CASES, case_settings, named_cases
from pipelines_bench.soak.java_heap import live_heap
from pipelines_bench.soak.picture import soak_picture, thinned
from pipelines_bench.soak.record import FEWEST, RUNS, STEPS, Record, fitted_slope, read_record
from pipelines_bench.soak.watching import DRIVER, QUANTITIES, SESSION, Watch

MIB = 2**20


def record_of(quantity, values, *, axis=STEPS, every=100, role=DRIVER):
    record = Record("torch", axis)
    for number, value in enumerate(values, start=1):
        record.add(number * every, float(number), {role: {quantity: value}})
    return record


def held(record):
    return {one.quantity: one.is_held for one in record.growths()}


@given(
    st.lists(st.integers(0, 10_000), min_size=2, max_size=60, unique=True),
    st.integers(-50, 50),
    st.integers(-50, 50),
)
def test_a_line_has_its_slope(x, slope, start):
    assert fitted_slope(x, [start + slope * one for one in x]) == pytest.approx(slope)


@given(st.lists(st.booleans(), min_size=30, max_size=80))
def test_samples_that_were_taken_at_busy_moments_are_no_growth(busy):
    rare = [one and number % 7 == 0 for number, one in enumerate(busy)]
    assert fitted_slope(range(len(busy)), [9 + 3 * one for one in rare]) == 0


def test_one_more_at_each_checkpoint_is_growth_and_one_more_once_is_none():
    leaks = [20 + number // 5 for number in range(100)]
    assert held(record_of("sockets", leaks)) == {"sockets": False}
    assert held(record_of("threads", [20] * 60 + [21] * 40)) == {"threads": True}
    # What libraries start in the first third is theirs.
    assert held(record_of("files", [*range(30), *[30] * 70])) == {"files": True}
    assert held(record_of("files", [*range(100, 0, -1)])) == {"files": True}


@pytest.mark.parametrize("quantity", ["memory", "heap"])
def test_memory_may_grow_within_its_bound(quantity):
    assert held(record_of(quantity, [300 + 0.1 * n for n in range(100)])) == {quantity: True}
    assert held(record_of(quantity, [300 + 0.3 * n for n in range(100)])) == {quantity: False}
    by_run = [300 + 0.2 * n for n in range(100)]
    assert held(record_of(quantity, by_run, axis=RUNS, every=1)) == {quantity: False}


def test_what_is_too_short_is_not_judged():
    short = record_of("sockets", [*range(20)], every=FEWEST[STEPS] // 20 - 1)
    assert held(short) == {"sockets": None}
    few_samples = record_of("sockets", [*range(9)], every=1000)
    assert held(few_samples) == {"sockets": None}


def test_a_role_that_comes_later_has_no_samples_before(tmp_path):
    record = Record("torch", STEPS)
    record.add(1, 1.0, {"a": {"threads": 5}})
    record.add(2, 2.0, {"a": {"threads": 6}, "b": {"memory": 1.234}})
    record.add(3, 3.0, {"b": {"memory": 2.0}})
    assert record.series == {
        "a": {"threads": [5, 6, None]},
        "b": {"memory": [None, 1.23, 2.0]},
    }
    record.write(tmp_path / "record.json")
    assert read_record(tmp_path / "record.json") == record


HOLDING = """
import os, socket, subprocess, sys, threading, time
held = [socket.socket() for _ in range(5)] + [open(os.devnull) for _ in range(7)]
for _ in range(3):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"])
time.sleep(600)
"""


def test_threads_files_and_sockets_of_processes_are_counted():
    with subprocess.Popen([sys.executable, "-c", HOLDING], stdout=subprocess.PIPE) as process:
        watch = Watch(process.pid)
        # The child prints when all is open; it is a child of the first one.
        assert process.stdout.readline() == b"\n"
        found = watch.sample(with_heap=True)
        for one in watch.processes():
            one.kill()
    assert {role: counts["processes"] for role, counts in found.items()} == {
        DRIVER: 1,
        "driver's children": 1,
    }
    assert (found[DRIVER]["sockets"], found[DRIVER]["threads"]) == (5, 4)
    # Three are those that every process has.
    assert found[DRIVER]["files"] == 7 + 3
    assert 1 < found[DRIVER]["memory"] < 100


def test_the_heap_is_what_is_reachable(spark):
    gateway = spark.sparkContext._gateway
    pid = gateway.jvm.java.lang.ProcessHandle.current().pid()
    before = live_heap(pid)
    text = gateway.jvm.java.lang.StringBuilder(100 * MIB)
    with_text = live_heap(pid)
    text.setLength(0)
    text.trimToSize()
    after = live_heap(pid)
    # Spark frees what earlier jobs left, tens of MiB, after any look at the heap.
    assert with_text.used - before.used > 40 * MIB
    assert with_text.used - after.used > 80 * MIB
    assert after.committed >= after.used


def test_a_process_without_a_heap_does_not_tell_one():
    with pytest.raises(OSError, match="No such process"):
        live_heap(2**22 + 1)


def test_every_engine_has_a_case():
    assert {case["engine"] for case in CASES.values()} == {*ENGINES}


@pytest.mark.parametrize("name", CASES)
def test_a_case_has_its_settings(name, tmp_path):
    config = case_settings(parse({}), name, tmp_path, 10_000)
    training = config.training
    assert {key: getattr(training, key) for key in CASES[name]} == CASES[name]
    assert (training.max_steps, training.checkpoint_every, training.log_every) == (10_000, 500, 50)


def test_what_cannot_be_done_is_named(tmp_path):
    assert named_cases(None) == [*CASES]
    with pytest.raises(InputError, match="--cases: there is no `nothing`"):
        named_cases("torch,nothing")
    with pytest.raises(InputError, match="--runs: a run has steps of its own"):
        command.measure(parse({}), None, steps=5, runs=5, output=str(tmp_path))
    with pytest.raises(InputError, match="--runs: benchmark `growth` does not know it"):
        benchmark("growth", runs=5, steps=None)
    check_bounds({"ratio": 1.0})
    with pytest.raises(PipelineError, match="beyond its bound: torch: threads"):
        check_bounds({"broken": ["torch: threads of driver, Java, 1.0 to 9.0"]})


def test_the_picture_has_lines_and_names(tmp_path):
    records = [record_of("threads", [5] * 300), record_of("memory", [7.5] * 300)]
    text = soak_picture(records)
    ElementTree.fromstring(text)
    assert "driver, Python" in text
    assert "torch" in text
    places, values = thinned([*range(300)], [1.0] * 300)
    assert (len(places), values) == (2, [1.0, 1.0])
    assert len(thinned([*range(300)], [float(n) for n in range(300)])[0]) == 60
    assert thinned([], []) == ([], [])


def told_by(capsys, *arguments):
    code = main(["benchmark", "soak", *arguments])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_short_soak_tells_what_each_process_holds(prepared, tmp_path, capsys):
    code, told = told_by(
        capsys,
        *("--data", str(prepared), "--output", str(tmp_path)),
        *("--cases", "local-torch", "--steps", "30"),
    )
    assert (code, told["broken"], [*told["cases"]]) == (0, [], ["local-torch"])
    record = read_record(tmp_path / "steps" / "local-torch.json")
    assert set(QUANTITIES) - {"heap"} <= set(record.series[DRIVER])
    # Nothing is left of the run itself.
    assert {path.name for path in tmp_path.iterdir()} == {
        *("local-torch.log", "local-torch.yaml", "soak-steps.svg", "steps"),
    }


OPTIONAL = {"megatron": WITH_MEGATRON, "mesh": WITH_MESH, "horovod": WITH_HOROVOD}
"""By the engine, where its package may be missing."""


@pytest.mark.matrix
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=OPTIONAL.get(name.partition("-")[0], ())) for name in CASES],
)
def test_every_case_can_be_soaked(name, prepared, tmp_path, capsys):
    code, told = told_by(
        capsys,
        *("--data", str(prepared), "--output", str(tmp_path)),
        *("--cases", name, "--steps", "60"),
    )
    assert (code, [*told["cases"]]) == (0, [name])


@pytest.mark.matrix
def test_runs_in_one_session_are_counted_after_each(prepared, tmp_path, capsys):
    code, told = told_by(
        capsys,
        *("--data", str(prepared), "--output", str(tmp_path)),
        *("--cases", "local-torch,torch", "--runs", "4"),
    )
    assert (code, told["axis"]) == (0, RUNS)
    record = read_record(tmp_path / "runs.json")
    assert record.places == [1, 2, 3, 4]
    assert record.series[SESSION]["persisted RDDs"] == [0, 0, 0, 0]
    assert "heap" in record.series["driver, Java"]
