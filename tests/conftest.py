"""Shared by all tests: one Spark cluster of three executors for the whole run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from corpus_factory import small_config, write_docstrings
from hypothesis import settings

from pipelines import workflow
from pipelines.engines.bigdl.jars import class_paths
from pipelines.settings import Config
from pipelines.spark.class_archive import archive_options
from pipelines.spark.session import spark_session

# A machine that is busy with a cluster is slow now and then, which is no failure.
settings.register_profile("pipelines", deadline=None)
settings.load_profile("pipelines")

# Tests run most code of Spark a few times only: its compilation costs more than it gives. The
# variable is spark-submit's, by which pyspark starts every driver, those of child processes too.
BRIEF_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ["SPARK_SUBMIT_OPTS"] = " ".join((BRIEF_JVM, *archive_options()))

# Of every shuffle: one for each executor, since the tests' rows are few.
PARTITIONS = "3"

# What tests use that starts a cluster, a server or other processes, as fixtures and as imports.
STARTING = {
    *("spark", "ask_airflow", "mlflow_server"),
    *("subprocess", "NotebookClient", "measure_command", "_embedder", "_trainer", "build_package"),
}

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--matrix", action="store_true", help="every combination of engine, mode, feed and fault"
    )
    parser.addoption(
        "--quick", action="store_true", help="what ends within two minutes, without any cluster"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the slow matrix, unless it is asked for, and what is not quick, if that is."""
    matrix, quick = config.getoption("--matrix"), config.getoption("--quick")
    left_out = [
        item
        for item in items
        if (not matrix and item.get_closest_marker("matrix")) or (quick and not is_quick(item))
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def is_quick(item: pytest.Item) -> bool:
    """Whether a test is not slow, and neither it nor its module uses what starts processes."""
    if item.get_closest_marker("slow"):
        return False
    used = {*getattr(item, "fixturenames", ()), *vars(getattr(item, "module", None) or item)}
    return STARTING.isdisjoint(used)


@pytest.fixture(scope="session")
def spark() -> Iterator:
    """A session on a real local cluster: executors of one core for two workers and a server."""
    brief = Config(
        spark={"executor.extraJavaOptions": BRIEF_JVM, "sql.shuffle.partitions": PARTITIONS}
    )
    with_bigdl = {"conf": class_paths} if find_spec("bigdl") else {}
    session = spark_session(brief, "tests", executors=3, **with_bigdl)
    yield session
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
    folder = tmp_path_factory.mktemp("prepared")
    write_docstrings(folder / "docstrings.jsonl")
    workflow.prepare(small_config(folder))
    return folder
