"""The notebooks from start to end, as papermill runs them and as a cluster on Databricks does."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from corpus_factory import only_retrieval, write_docstrings
from jupyter_client import AsyncKernelManager
from jupyter_client.utils import run_sync
from local_cluster import BRIEF
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

from pipelines.settings.load import dump, load

ROOT = Path(__file__).resolve().parents[2]
PREPARE, TRAIN, SEARCH = NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CELL_SECONDS = 420
PNG_HEAD = b"\x89PNG\r\n\x1a\n"
MIN_PICTURE_BYTES = 5000

REMEMBER_SESSION = "session_at_the_start = spark.sparkContext.applicationId"
COMPARE_SESSIONS = """
from pyspark import SparkContext
from pyspark.sql import SparkSession

now = SparkSession.builder.getOrCreate()
assert now.sparkContext is SparkContext._active_spark_context
assert now.sparkContext.applicationId == session_at_the_start == spark.sparkContext.applicationId
"""
# Another notebook has nothing of the one before but the session.
NOTHING = """
get_ipython().reset(new_session=False)
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
"""
STOP_SESSION = "spark.stop()"
# On Databricks `spark` and `dbutils` are there before the first cell; widgets keep what a job sets.
CLUSTER = f"""
from pipelines.spark.session import spark_session
from pipelines.settings import Config

spark = spark_session(Config(spark={BRIEF | {"master": "local[1]"}!r}), "own")
"""
WIDGETS = """
from types import SimpleNamespace

values = {values!r}
dbutils = SimpleNamespace(
    widgets=SimpleNamespace(text=values.setdefault, get=values.__getitem__)
)
"""


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def place_of(notebook, cell_id: str) -> int:
    return next(n for n, cell in enumerate(notebook.cells) if cell.id == cell_id)


def with_parameters(path: Path, parameters: dict[str, str]) -> nbformat.NotebookNode:
    """The notebook as papermill would run it: a cell of values behind the one with defaults."""
    notebook = read(path)
    lines = [f"{name} = {value!r}" for name, value in parameters.items()]
    injected = new_code_cell("\n".join(lines))
    notebook.cells.insert(place_of(notebook, "parameters") + 1, injected)
    remember = new_code_cell(REMEMBER_SESSION)
    notebook.cells.insert(place_of(notebook, "session") + 1, remember)
    return notebook


def with_widgets(path: Path, parameters: dict[str, str]) -> nbformat.NotebookNode:
    """The notebook as a job on Databricks would run it: a session is there, and widgets are set."""
    notebook = read(path)
    already_there = WIDGETS.format(values=parameters) + REMEMBER_SESSION
    notebook.cells.insert(0, new_code_cell(already_there))
    return notebook


@pytest.fixture
def cluster() -> Iterator[AsyncKernelManager]:
    """A kernel for several notebooks, which have one session, as those of a cluster have."""
    manager = AsyncKernelManager(kernel_name="python3")
    yield manager
    if manager.has_kernel:
        run_sync(manager.shutdown_kernel)()


def execute(
    notebook: nbformat.NotebookNode, folder: Path, cluster: AsyncKernelManager | None = None
) -> nbformat.NotebookNode:
    """Runs all cells, in a kernel of their own unless there is one; the first error is raised."""
    notebook.cells.append(new_code_cell(COMPARE_SESSIONS))
    if cluster is None:
        notebook.cells.append(new_code_cell(STOP_SESSION))
    else:
        notebook.cells.insert(0, new_code_cell(NOTHING if cluster.has_kernel else CLUSTER))
    client = NotebookClient(
        notebook, cluster, timeout=CELL_SECONDS, startup_timeout=300, kernel_name="python3"
    )
    return client.execute(cwd=str(folder))


def pictures(notebook, cell_id: str) -> list[bytes]:
    outputs = notebook.cells[place_of(notebook, cell_id)].outputs
    found = [
        output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})
    ]
    return [base64.b64decode(picture) for picture in found]


def check_pictures(notebook, *cell_ids: str) -> None:
    for cell_id in cell_ids:
        (picture,) = pictures(notebook, cell_id)
        assert picture.startswith(PNG_HEAD)
        assert len(picture) > MIN_PICTURE_BYTES, cell_id


def text_of(notebook, cell_id: str) -> str:
    """What a cell shows, as a person reads it."""
    outputs = notebook.cells[place_of(notebook, cell_id)].outputs
    return "".join(
        output.text if output.output_type == "stream" else output.data.get("text/plain", "")
        for output in outputs
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_notebooks_are_valid_and_hold_no_outputs(path):
    notebook = read(path)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    tagged = [cell.id for cell in code if "parameters" in cell.metadata.get("tags", [])]
    assert tagged == ["parameters"]


@pytest.mark.parametrize(
    "engines",
    [
        pytest.param(("torch",), id="torch"),
        pytest.param(("local", "torch"), id="local-torch", marks=pytest.mark.matrix),
    ],
)
def test_notebooks_run_one_after_the_other(engines, tmp_path, cluster):
    text = tmp_path / "docstrings.jsonl"
    write_docstrings(text)
    own = {"folder": str(tmp_path)}

    corpus = {"inputs": str(text), "corpus_format": "jsonl", "pairs": "summary"}
    prepared = execute(with_widgets(PREPARE, own | corpus), tmp_path, cluster)
    check_pictures(prepared, "funnel", "lanes")
    assert "<svg" in prepared.cells[place_of(prepared, "lengths")].outputs[0].data["text/html"]
    assert "training pairs" in text_of(prepared, "prepare")
    # Rows that are drawn again, and no widgets, which clients without a browser stumble over.
    assert "of 4 stages" in text_of(prepared, "prepare")
    assert "widgets" not in prepared.metadata
    config = load(tmp_path / "config.yaml")
    assert config.corpus.format == "jsonl"

    spark = BRIEF | {"executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"]}
    brief = only_retrieval(config).model_copy(update={"spark": spark})
    (tmp_path / "config.yaml").write_text(dump(brief))
    named = ", ".join(f"{engine}:torch" for engine in engines)
    short = {"engines": named, "workers": "1", "max_steps": "8"}
    trained = execute(with_parameters(TRAIN, own | short), tmp_path)
    check_pictures(trained, "losses")
    assert "local-cluster[1," in text_of(trained, "session")
    assert "nDCG@10" in text_of(trained, "evaluation")
    for engine in engines:
        assert (tmp_path / "runs" / engine / "model" / "model.safetensors").is_file()

    questions = {"questions": "copy a tree"}
    found = execute(with_widgets(SEARCH, own | questions), tmp_path, cluster)
    check_pictures(found, "map")
    assert "local[1]" in text_of(found, "session")
    assert "copy a tree" in text_of(found, "column")
    assert "cosine" in text_of(found, "search")
    assert "rows repeat another" in text_of(found, "groups")
