"""Shared by all tests: one Spark cluster of three executors for the whole run."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Generator, Iterator
from fnmatch import fnmatch
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from corpus_factory import small_config, write_docstrings
from failure_logs import FailureLogs
from hypothesis import settings
from local_cluster import have_executors
from object_stores import (
    CREDENTIALS,
    any_bucket,
    azure_server,
    google_server,
    s3_bucket,
    s3_server,
)
from suite_order import EXECUTORS_OF_FILE, CostRecorder, SharedOut, ordered
from suite_progress import SuiteProgress
from warm_python import warm_python, warm_workers

import pipelines
from pipelines.engines.bigdl.jars import class_paths
from pipelines.settings import Config
from pipelines.spark.java import archive_options
from pipelines.spark.session import executor_count, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer

__all__ = ["any_bucket", "azure_server", "google_server", "s3_bucket", "s3_server"]
__all__ += ["warm_python", "warm_workers"]

# A machine that is busy with a cluster is slow now and then, which is no failure.
settings.register_profile("pipelines", deadline=None)
# What decides about a change must not depend on luck: new examples are tried where people work.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("pipelines")

# Tests run most code of Spark a few times only: its compilation costs more than it gives. The
# variable is spark-submit's, by which pyspark starts every driver, those of child processes too.
BRIEF_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ["SPARK_SUBMIT_OPTS"] = " ".join((BRIEF_JVM, *archive_options()))

# Executors import functions of tests by name, as they do those that users name.
TESTS = Path(__file__).parent
SUPPORT = str(TESTS / "support")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (SUPPORT, os.environ.get("PYTHONPATH"))))

# Of the object stores: executors inherit them.
os.environ.update(CREDENTIALS)

# Of every shuffle: more than one, and no more than there can be executors, since rows are few.
PARTITIONS = "3"

# Rows are few and most queries are run once, so that compiling them costs more than they do. The
# jobs that tests start as processes have Spark's defaults.
INTERPRETED = {"sql.codegen.wholeStage": "false", "sql.codegen.factoryMode": "NO_CODEGEN"}

# Folders and files whose tests run tasks and no workers of an engine. They have one executor: each
# further one loads Spark's classes, compiles its queries and imports what Python needs once more.
EXECUTORS = 3
MOST_EXECUTORS = 4
"""Of those tests in the matrix whose workers hold the encoder together in two replicas."""
OF_ONE_EXECUTOR = {
    *("corpus", "dags", "evaluation", "jobs", "lanes", "promotion", "spark", "tokens", "tracking"),
    *("compare", "publishing", "questions", "scoring", "vectors", "test_golden.py", "test_ml.py"),
    *("test_duplicates_benchmark.py", "test_hybrid_benchmark.py", "test_prepare_benchmark.py"),
    *("test_quality_benchmark.py", "test_soak.py", "test_strategy_peers.py", "test_tokenise.py"),
    "test_train_benchmark.py",
}
# Of two workers or of tasks that begin together, and no server beside them: a file, and a test
# whose file has one executor otherwise.
OF_TWO_EXECUTORS = {"test_task_places.py", "test_two_workers_give_the_curve_of_one"}
WANTED = pytest.StashKey[int]()
CLUSTER: pytest.StashKey[SparkSession] = pytest.StashKey()
LOGS = pytest.StashKey[FailureLogs]()

# What tests use that starts a cluster, a server or other processes, as fixtures and as imports; and
# TensorFlow, which takes seconds to import and to begin.
STARTING = {
    *("spark", "ask_airflow", "mlflow_server", "s3_server", "any_bucket", "lockable"),
    *("subprocess", "NotebookClient", "measure_command", "_embedder", "_trainer", "build_package"),
    "tf",
}

# A file of tests that imports one of them, or whose mark is of all its tests, has no quick test.
NO_QUICK_TEST = re.compile(
    r"^(?:import (?:subprocess|tensorflow as tf)$|tf = pytest|from tensorflowonspark import|"
    r"pytestmark = (?:\[\n(?:    .*\n)*?    )?pytest\.mark\.slow|"
    rf"from [\w.]+ import (?:\((?:\n    .*)*?)?.*\b(?:{'|'.join(sorted(STARTING))})\b)",
    re.MULTILINE,
)
SIGNATURE = re.compile(r"^def test_\w+\(([^)]*)\)", re.MULTILINE)

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--matrix", action="store_true", help="every combination of engine, mode, feed and fault"
    )
    parser.addoption(
        "--quick", action="store_true", help="what ends within two minutes, without any cluster"
    )
    parser.addoption(
        "--record-seconds",
        action="store_true",
        help="note what each file took, for the order of the files and for the time that is left",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Has failures show logs, and whoever watches see how far the tests are."""
    config.stash[LOGS] = FailureLogs()
    config.pluginmanager.register(config.stash[LOGS])
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SuiteProgress(config))
        if config.getoption("--record-seconds"):
            config.pluginmanager.register(CostRecorder())


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SharedOut | None:
    """Has one tester run what needs no cluster, beside those that have one."""
    return SharedOut(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out files that are seen to have no quick test: importing them takes seconds."""
    if not config.getoption("--quick") or not fnmatch(collection_path.name, "test_*.py"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    # As `is_quick`: a method of a class is no function to be seen here.
    wants = [set(re.findall(r"\w+", found)) for found in SIGNATURE.findall(text)]
    starts = wants and "\nclass Test" not in text and not any(map(STARTING.isdisjoint, wants))
    return True if starts or NO_QUICK_TEST.search(text) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the slow matrix, unless it is asked for, and what is not quick, if that is."""
    matrix, quick = config.getoption("--matrix"), config.getoption("--quick")
    left_out, wanted = [], []
    for item in items:
        no_matrix = not matrix and item.get_closest_marker("matrix")
        (left_out if no_matrix or (quick and not is_quick(item)) else wanted).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = ordered(wanted, executors_for)


def is_quick(item: pytest.Item) -> bool:
    """Whether a test is not slow, and neither it nor its module uses any of `STARTING`.

    TensorFlow's half of a comparison takes seconds to import and to trace.
    """
    of_tensorflow = re.search(r"\btensorflow\b", item.name)
    if of_tensorflow or item.get_closest_marker("slow"):
        return False
    used = {*getattr(item, "fixturenames", ()), *vars(getattr(item, "module", None) or item)}
    return STARTING.isdisjoint(used)


def executors_for(item: pytest.Item) -> int:
    """How many executors a test needs; 0 if it uses no cluster."""
    if "spark" not in getattr(item, "fixturenames", ()):
        return 0
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    if any(getattr(value, "training", {}).get("workers", 0) > EXECUTORS for value in values):
        return MOST_EXECUTORS
    parts = (*item.path.parts[len(TESTS.parts) :], getattr(item, "originalname", item.name))
    if "engines" in parts and not starts_workers(item):
        return 1
    fewer = {2: OF_TWO_EXECUTORS, 1: OF_ONE_EXECUTOR}
    return next(
        (count for count, places in fewer.items() if not places.isdisjoint(parts)), EXECUTORS
    )


def starts_workers(item: pytest.Item) -> bool:
    """Whether a test of engines starts workers on the cluster, and does not use its data alone."""
    asked = signature(getattr(item, "function", starts_workers)).parameters
    return not {"spark", "check_quality"}.isdisjoint(asked)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Looks for no garbage in what is imported: it stays, and looking at it again takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Has the cluster, where there is one already, the executors that the next test needs."""
    wanted = executors_for(item)
    if not wanted:
        return
    of_file = dict(item.user_properties)[EXECUTORS_OF_FILE]
    item.config.stash[WANTED] = of_file
    session = item.config.stash.get(CLUSTER, None)
    # A test that runs no workers leaves the cluster to the others of its file.
    is_enough = session is None or (wanted == 1 < of_file and executor_count(session) > 0)
    if not is_enough:
        have_executors(session, wanted)


@pytest.fixture(scope="session")
def spark(pytestconfig) -> Iterator:
    """A session on a real local cluster: executors of one core for two workers and a server."""
    brief = Config(
        spark={
            "executor.extraJavaOptions": BRIEF_JVM,
            "sql.shuffle.partitions": PARTITIONS,
            **INTERPRETED,
        }
    )
    with_bigdl = {"conf": class_paths} if find_spec("bigdl") else {}
    most = MOST_EXECUTORS if pytestconfig.getoption("--matrix") else EXECUTORS
    session = spark_session(brief, "tests", executors=most, **with_bigdl)
    # Those that come later would not be ended.
    have_executors(session, most)
    have_executors(session, pytestconfig.stash[WANTED])
    pytestconfig.stash[CLUSTER] = session
    pytestconfig.stash[LOGS].watch_cluster(session)
    yield session
    del pytestconfig.stash[CLUSTER]
    session.stop()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real text beside the checkout; tests that use it skip where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no real text at {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(scope="session")
def prepared(spark, tmp_path_factory) -> Path:
    """A prepared folder of the small corpus: lanes, tokens and a held-out evaluation."""
    folder = tmp_path_factory.mktemp("small") / "prepared"
    write_docstrings(folder.parent / "docstrings.jsonl")
    pipelines.prepare(small_config(folder))
    return folder
