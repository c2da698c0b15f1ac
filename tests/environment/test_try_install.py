"""Installs of one extra: what they promise is there, and the README's example runs in one."""

from __future__ import annotations

import ast
import os
import sys
import tomllib
import venv
from pathlib import Path

import packages
import pytest
import try_install
from deadlines import ended
from packaging.utils import canonicalize_name

from pipelines.libraries import EXTRAS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What installs a library that is imported under another name.
DISTRIBUTIONS = {
    "IPython": "ipykernel",
    "bigdl": "bigdl-orca-spark3",
    "elastic_transport": "elasticsearch",
    "fasttext": "fasttext-predict",
    "flask": "elephas",
    "httpx": "qdrant-client",
    "markupsafe": "jinja2",
    "megatron": "megatron-core",
    "opensearchpy": "opensearch-py",
    "py4j": "pyspark",
    "pydantic_core": "pydantic",
    "sklearn": "scikit-learn",
    "werkzeug": "elephas",
    "yaml": "pyyaml",
}
# What makes the example short, and needs no other library.
SHORT = (
    *("training.max_steps=2", "training.workers=1", "tokens.max_length=32"),
    *("encoder.keep_layers=1", "lanes.granule=8"),
    *("evaluation.geometry=false", "evaluation.samples=0"),
    # An executor of its own would start one more Java.
    *("spark.master=local[1]", "spark.sql.shuffle.partitions=2", "spark.ui.enabled=false"),
    # As in conftest.py: compilation costs more than it gives.
    *("spark.sql.codegen.wholeStage=false", "spark.sql.codegen.factoryMode=NO_CODEGEN"),
    f"spark.executor.extraJavaOptions={os.environ.get('SPARK_SUBMIT_OPTS', '')}",
)
# Used where they are there, and nothing is missing where they are not.
BY_CHANCE = {"boto3", "grpc", "grpc_status", "milvus_lite"}


def promised(*extras: str) -> set[str]:
    """The packages that an install of some extras names itself."""
    return {*packages.required(try_install.declared(PROJECT), extras)}


def imported() -> dict[str, str]:
    """The libraries that the package imports anywhere, each with a module that does."""
    found: dict[str, str] = {}
    for path in (ROOT / "pipelines").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                found.setdefault(name.partition(".")[0], str(path.relative_to(ROOT)))
    return found


def test_each_library_that_is_imported_is_promised_by_an_install():
    everything = promised(*PROJECT["optional-dependencies"])
    own = {*sys.stdlib_module_names, "pipelines", *BY_CHANCE}
    missing = {
        name: module
        for name, module in imported().items()
        if name not in own and canonicalize_name(DISTRIBUTIONS.get(name, name)) not in everything
    }
    assert missing == {}


@pytest.mark.parametrize(("module", "extra"), EXTRAS.items())
def test_the_extra_that_is_named_installs_the_library(module, extra):
    assert canonicalize_name(DISTRIBUTIONS.get(module, module)) in promised(extra)


# What the example runs in the driver, on executors and in the process that trains.
OF_THE_EXAMPLE = """
import importlib.util, sys
from pipelines.catalog import BACKENDS, COMMANDS, ENGINES, EVALUATIONS, LOSSES, STEPPERS
from pipelines.spark import session
from pipelines.tokens.start import default_start

for name in ("run", "prepare", "train", "evaluate"):
    COMMANDS.load(name)
for registry in (ENGINES, STEPPERS, BACKENDS):
    registry.load("torch")
LOSSES.load("in_batch_negatives")
EVALUATIONS.load("retrieval")
assert default_start().is_dir()
assert {"torch", "pyspark"} <= sys.modules.keys()
assert importlib.util.find_spec("matplotlib") is None
"""


@pytest.mark.slow
def test_an_install_of_one_extra_has_what_the_example_imports(tmp_path):
    venv.create(tmp_path / "environment", symlinks=True)
    site = next(tmp_path.glob("environment/lib/python*/site-packages"))
    locked = packages.locked_versions(ROOT / "requirements.lock")
    for one in packages.closure(promised(*try_install.INSTALLS["torch"]), locked):
        # Whole packages: their modules are compiled already.
        for name in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not name.endswith(".pth") and not (site / name).exists():
                (site / name).symlink_to(one.locate_file(name))
    (site / "pipelines").symlink_to(ROOT / "pipelines")
    python = tmp_path / "environment" / "bin" / "python"
    done = ended([python, "-c", OF_THE_EXAMPLE], env=try_install.variables(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.matrix
@pytest.mark.slow
def test_the_example_for_own_pairs_runs_in_an_install_of_one_extra(tmp_path):
    python = try_install.make("torch", tmp_path / "environment", linked=True)
    assert not list(tmp_path.glob("environment/lib/*/site-packages/matplotlib"))
    assert try_install.tried("torch", python, tmp_path / "work", *SHORT) is None
    assert not (tmp_path / "work" / "run" / "report.html").exists()


@pytest.mark.slow
def test_an_install_without_an_engine_is_refused_before_anything_is_written(tmp_path):
    python = try_install.make("spark", tmp_path / "environment", linked=True)
    assert try_install.tried("spark", python, tmp_path / "work") is None


@pytest.mark.slow
def test_a_server_finds_and_reads_its_model_without_spark(tmp_path):
    python = try_install.make("lean", tmp_path / "environment", linked=True)
    assert try_install.tried("lean", python, tmp_path / "work") is None
    done = try_install.command(python, tmp_path, "train")
    assert done.stderr == (
        "error: train: pyspark is not installed. Run "
        '`pip install "sentence-pipelines[spark]"` here, or submit the job to a cluster.\n'
    )


def test_what_a_linked_environment_has_is_declared(tmp_path):
    lean, spark = (
        {one.name for one in packages.closure(promised(*extras), {})} for extras in ((), ("spark",))
    )
    assert {"numpy", "tokenizers"} <= lean < spark
    assert not {"pyspark", "pyarrow", "pandas", "scipy"} & lean
    assert {"pyspark", "pyarrow", "pandas", "scipy"} <= spark
    assert not {"torch", "matplotlib", "tensorflow"} & spark
