"""The check of a GPU, on a CPU: what it finds, how it goes on, and what it needs."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pipelines.catalog import ARCHITECTURES
from pipelines_bench.gpu import __main__ as command
from pipelines_bench.gpu import carried, running
from pipelines_bench.gpu.checks import CHECKS, Check, Finding, Place, SkippedError

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
WITHOUT_SPARK = """
import runpy, sys
for name in ("pyspark", "py4j"):
    sys.modules[name] = None
sys.argv[0] = "gpu"
runpy.run_module("pipelines_bench.gpu", run_name="__main__")
"""
SECONDS = 600
LONG = ("engine local", "training")


def run_command(out, *arguments):
    """The command in a process that finds no Spark."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, "--device", "cpu", "--out", str(out), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def assert_all_right(done, out, checks):
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads((out / "gpu.json").read_text())
    assert content["machine"].keys() == {"CPU", "torch", "Python"}
    told = {one["name"]: one for one in content["results"]}
    assert [*told] == [check.name for check in checks]
    assert [name for name, one in told.items() if one["status"] == "failed"] == []
    table = (out / "gpu.md").read_text()
    for name, one in told.items():
        assert f"{one['status']:8}{name} (" in done.stdout
        assert f"| {name} | {one['status']} |" in table
    return told


@pytest.mark.slow
def test_a_part_of_it_runs_on_a_cpu_without_spark(tmp_path):
    # The processes of `engine local` and the profiles of `training` are in the matrix.
    names = [check.name for check in CHECKS if check.short and not check.name.startswith(LONG)]
    only = [part for name in names for part in ("--only", name)]
    done = run_command(tmp_path, "--short", *only)
    told = assert_all_right(done, tmp_path, [check for check in CHECKS if check.name in names])
    assert {one["status"] for one in told.values()} == {"ok"}


@pytest.mark.slow
@pytest.mark.matrix
def test_all_of_it_runs_on_a_cpu_without_spark(tmp_path):
    told = assert_all_right(run_command(tmp_path), tmp_path, CHECKS)
    assert told["training: MiniLM"]["figures"]["8 pairs, dropout 0.1: tokens/s"] > 0


def test_every_check_names_a_function():
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for module, _, function in (check.function.partition(":") for check in CHECKS):
        assert callable(getattr(import_module(f"pipelines_bench.gpu.{module}"), function))


def test_every_architecture_has_a_tiny_encoder():
    from pipelines_bench.gpu.torch_samples import SHAPES

    # Those of `transformers` are models of that library.
    assert {*SHAPES} == {*ARCHITECTURES} - {"hf"}


def wrong(place):
    raise AssertionError("2 instead of | 3")


def absent(place):
    raise SkippedError("there is no abacus")


def right(place, number):
    return Finding(f"found {number}", {"beads": number, "share": 0.12345})


@pytest.fixture
def session(tmp_path):
    place = Place(device="cpu", folder=tmp_path, short=True)
    return running.Session(
        place=place, machine={"CPU": "abacus"}, out=tmp_path, began=0.0, seconds=1e12
    )


@pytest.fixture
def fake(monkeypatch):
    """Checks of this module."""

    def load(name):
        assert name == "pipelines_bench.gpu.fake"
        return sys.modules[__name__]

    monkeypatch.setattr("pipelines_bench.gpu.checks.import_module", load)


def test_it_goes_on_after_a_failure(session, fake, capsys, tmp_path):
    checks = [
        Check(name="first", function="fake:wrong"),
        Check(name="second", function="fake:absent"),
        Check(name="third", function="fake:right", arguments=(5,)),
    ]
    results = running.run_checks(session, checks, [])
    assert [one.status for one in results] == ["failed", "skipped", "ok"]
    assert running.has_failed(results)
    first, second, third = (f"{result.seconds:.1f}" for result in results)
    assert capsys.readouterr().out.splitlines() == [
        f"failed  first ({first} s): AssertionError: 2 instead of | 3",
        f"skipped second ({second} s): there is no abacus",
        f"ok      third ({third} s): found 5",
    ]
    assert "in wrong" in results[0].trace
    assert running.earlier_results(tmp_path) == results
    table = (tmp_path / "gpu.md").read_text().splitlines()
    assert table[0] == "Machine: CPU abacus."
    assert f"| first | failed | {first} | AssertionError: 2 instead of \\| 3 |" in table
    assert "| third | share | 0.1235 |" in table


def test_a_figure_that_cannot_be_had_fails_nothing(session, fake):
    results = running.run_checks(
        session, [Check(name="rate", function="fake:wrong", correctness=False)], []
    )
    assert results[0].status == "failed"
    assert not running.has_failed(results)


def test_nothing_is_measured_once_the_time_is_over(session, fake):
    late = SimpleNamespace(**{**vars(session), "seconds": 1.0, "write": lambda results: None})
    checks = [
        Check(name="rate", function="fake:right", arguments=(1,), correctness=False),
        Check(name="result", function="fake:right", arguments=(1,)),
    ]
    results = running.run_checks(late, checks, [])
    assert [(one.status, one.told) for one in results] == [
        ("skipped", "there was no time left"),
        ("ok", "found 1"),
    ]


def test_a_fresh_process_goes_on_where_the_gpu_no_longer_answers(
    session, fake, monkeypatch, capsys
):
    class ReplacedError(Exception):
        pass

    def replace(path, arguments):
        raise ReplacedError(arguments)

    monkeypatch.setattr(running, "is_broken", lambda device: True)
    monkeypatch.setattr(running.os, "execv", replace)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "pipelines_bench.gpu", "--short"])
    folder = session.place.folder / "on the way"
    folder.mkdir()
    place = Place(device="cuda:0", folder=folder, short=True)
    on_gpu = running.Session(**{**vars(session), "place": place})
    checks = [
        Check(name="first", function="fake:wrong"),
        Check(name="second", function="fake:right", arguments=(2,)),
    ]
    with pytest.raises(ReplacedError) as replaced:
        running.run_checks(on_gpu, checks, [])
    assert replaced.value.args[0][1:] == ["-m", "pipelines_bench.gpu", "--short", "--go-on"]
    done = running.earlier_results(on_gpu.out)
    results = running.run_checks(on_gpu, checks, done)
    assert [one.status for one in results] == ["failed", "ok"]
    assert "second (0.0 s)" in capsys.readouterr().out


def test_a_gpu_that_cannot_compute_is_broken(monkeypatch):
    import torch

    assert not running.is_broken("cpu")

    def refuse(*_, **__):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch, "ones", refuse)
    assert running.is_broken("cuda:0")


def test_two_parts_have_all_checks():
    names = [
        [check.name for check in command._chosen(command._parse(arguments))]
        for arguments in ([], ["--part", "results"], ["--part", "figures"])
    ]
    assert names[0] == names[1] + names[2]
    assert "losses" in names[1]
    assert "training: MiniLM" in names[2]


def test_what_is_missing_is_named(monkeypatch, capsys):
    monkeypatch.setattr(command, "add_carried", lambda: None)
    monkeypatch.setattr(command, "missing_packages", lambda: ["pydantic", "tenacity"])
    assert command.main(["--device", "cpu"]) == command.NOT_RUN
    assert capsys.readouterr().out.startswith("missing: pydantic, tenacity; `make gpu-packages`")


def test_a_machine_without_a_gpu_says_so(monkeypatch, capsys):
    monkeypatch.setattr(command, "add_carried", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert command.main([]) == command.NOT_RUN
    assert "PyTorch finds no GPU here" in capsys.readouterr().out


def test_what_was_carried_is_taken_only_where_something_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", ["own"])
    monkeypatch.setenv("PYTHONPATH", "given")
    monkeypatch.setattr(carried, "NEEDED", ("sys",))
    carried.add_carried(tmp_path)
    assert sys.path == ["own"]
    monkeypatch.setattr(carried, "NEEDED", ("no_such_module",))
    carried.add_carried(tmp_path)
    assert sys.path == [str(tmp_path), "own"]
    paths = [str(tmp_path), str(ROOT), str(ROOT / "bench"), "given"]
    assert carried.os.environ["PYTHONPATH"].split(":") == paths


def test_arrays_that_are_apart_are_told():
    from pipelines_bench.gpu.torch_samples import all_same, same

    one = np.array([1.0, 100.0], np.float32)
    assert same("x", one, one, 0.0) == 0
    with pytest.raises(AssertionError, match=r"^x: 0.01 apart, more than 0.001$"):
        same("x", one + 1, one, 1e-3)
    with pytest.raises(AssertionError, match="x: not all numbers are finite"):
        same("x", one * np.nan, one, 1e-3)
    with pytest.raises(AssertionError, match="x, b: "):
        all_same("x", {"a": one, "b": -one}, {"a": one, "b": one}, 1e-3)
    with pytest.raises(AssertionError, match=r"x: \['a'\] instead of \['b'\]"):
        all_same("x", {"a": one}, {"b": one}, 1e-3)


def test_the_work_of_a_forward_pass_is_counted():
    from torch.utils.flop_counter import FlopCounterMode

    from pipelines.models.frameworks.torch import embed, prepare
    from pipelines.models.weights import random_weights
    from pipelines_bench.gpu.torch_figures import flops
    from pipelines_bench.gpu.torch_samples import step_spec, tensors, texts

    spec, lengths = step_spec(), (16, 16, 16)
    weights = tensors(random_weights(spec, 1), "cpu")
    with FlopCounterMode(display=False) as counter:
        # In fp32 products may be oneDNN's, of which the counter knows nothing.
        embed(prepare(spec, weights, "bf16"), *texts(lengths))
    assert flops(spec, np.array(lengths)) == counter.get_total_flops()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("NVIDIA H100 80GB HBM3", 989.0), ("NVIDIA H100 PCIe", 756.0), ("Tesla T4", None)],
)
def test_a_datasheet_is_found_by_the_name_of_a_gpu(name, expected):
    from pipelines_bench.gpu.torch_peak import datasheet_peak

    assert datasheet_peak(name) == expected
