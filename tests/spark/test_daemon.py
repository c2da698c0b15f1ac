"""Python workers that are forked from a daemon with modules imported already."""

import contextlib
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pyspark
import pytest

from pipelines.catalog import ENGINES
from pipelines.engines.base import load_engine
from pipelines.jobs.prepare import PRELOADS
from pipelines.settings import Config
from pipelines.settings.load import parse
from pipelines.spark.daemon import MODULE
from pipelines.spark.jobs import dedicated_python_workers
from pipelines.spark.session import session_conf

KEY = "spark.python.daemon.module"
# Standard modules that no library imports; the second one prints as it is imported.
PRELOADED = ("tabnanny", "this")
# Not in every installation that runs the tests.
OPTIONAL = ("horovod", "megatron")

COMPUTES_NOTHING = """
import importlib, os, sys, threading
from pipelines.quiet import quiet_import
import torch

def refuse(*arguments):
    raise AssertionError("GPUs are looked for")

# Even a look keeps processes that are forked afterwards from using GPUs.
for name in ("is_available", "device_count", "_lazy_init", "init", "current_device"):
    setattr(torch.cuda, name, refuse)
with quiet_import():
    for module in sys.argv[1:]:
        importlib.import_module(module)
assert threading.active_count() == 1, threading.enumerate()
if "tensorflow" in sys.modules:
    from tensorflow.python.eager import context
    assert not context.context()._initialized
assert not torch.distributed.is_initialized()
assert "DS_ACCELERATOR" not in os.environ, "workers find out which device they have"
"""


ARCHIVES = """
import sys
from pipelines.spark import daemon
daemon._leave_archives()
import pyspark
print(any("zipimporter" in str(type(finder)) for finder in sys.path_importer_cache.values()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_same", [True, False])
def test_workers_import_no_archives_of_their_own_installation(tmp_path, is_same):
    library = Path(pyspark.__file__).parent / "python" / "lib"
    # As in the work folder of a driver's JVM, which links to the installation.
    linked = tmp_path / "lib"
    if is_same:
        linked.symlink_to(library)
    else:
        shutil.copytree(library, linked)
    jars = (library.parents[1] / "jars").glob("spark-core_*.jar")
    path = os.pathsep.join([*map(str, [*linked.glob("*.zip"), *jars]), *sys.path])
    command = [sys.executable, "-c", ARCHIVES]
    found = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, timeout=300, check=True
    )
    assert found.stdout.split() == [b"False" if is_same else b"True"]


def imported(spark, names):
    """Which modules a Python worker has before it imports any; tried on every executor."""

    def find(_):
        import sys

        yield [name for name in names if name in sys.modules]

    found = spark.sparkContext.parallelize(range(3), 3).mapPartitions(find).collect()
    assert all(one == found[0] for one in found)
    return found[0]


def test_workers_of_a_job_have_its_modules_and_those_of_others_do_not(spark):
    with dedicated_python_workers(spark.sparkContext, "a test", PRELOADED):
        assert imported(spark, PRELOADED) == [*PRELOADED]
    assert imported(spark, PRELOADED) == []


def test_a_module_that_cannot_be_imported_fails_where_it_is_used(spark):
    def use(_):
        import no_such_module

        yield no_such_module

    with dedicated_python_workers(spark.sparkContext, "a test", ["tabnanny", "no_such_module"]):
        assert imported(spark, PRELOADED) == []
        with pytest.raises(Exception, match="No module named 'no_such_module'"):
            spark.sparkContext.parallelize(range(1), 1).mapPartitions(use).collect()


def daemons(name):
    """Processes of daemons that have a value in their environment."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            is_daemon = MODULE in process.cmdline() and name in process.environ().values()
            if is_daemon and name_of(process.parent()) == "java":
                found.append(process)
    return found


def name_of(process):
    return process.name() if process is not None else ""


def test_a_daemon_with_modules_ends_when_it_is_idle_and_is_started_again(spark):
    role = "a test that waits"
    with dedicated_python_workers(spark.sparkContext, role, ["tabnanny"]):
        assert imported(spark, ["tabnanny"]) == ["tabnanny"]
        first = daemons(role)
        assert first
        for process in first:
            # Spark would end them after a minute.
            for worker in process.children(recursive=True):
                worker.kill()
        _, left = psutil.wait_procs(first, timeout=120)
        assert not left
        assert imported(spark, ["tabnanny"]) == ["tabnanny"]
    assert daemons(role)


def preloads():
    """What the engines that are installed preload, whatever framework computes."""
    for name in ENGINES:
        engine = load_engine(name)
        for framework in engine.frameworks:
            settings = {"framework": framework, "sharding": engine.shardings[-1]}
            training = Config().training.model_copy(update=settings)
            if name not in OPTIONAL or find_spec(name):
                yield from load_engine(name, framework).preloads(
                    Config().model_copy(update={"training": training})
                )


def test_what_is_preloaded_computes_nothing():
    modules = dict.fromkeys([*PRELOADS, *preloads()])
    assert {"pipelines.engines.barrier_engine", "pipelines.training.steppers.tensorflow"} <= set(
        modules
    )
    subprocess.run([sys.executable, "-c", COMPUTES_NOTHING, *modules], check=True, timeout=300)


def test_only_executors_of_this_machine_are_told_of_the_daemon():
    assert session_conf(parse({}), submitted=False)[KEY] == MODULE
    assert KEY not in session_conf(parse({}), submitted=True)
    assert KEY not in session_conf(
        parse({"spark": {"master": "spark://10.0.0.1:7077"}}), submitted=False
    )


def test_a_daemon_of_the_users_wins():
    config = parse({"spark": {"python.daemon.module": "pyspark.daemon"}})
    assert session_conf(config, submitted=False)[KEY] == "pyspark.daemon"
