"""The notebooks from start to end, each in a kernel and a Spark session of its own."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import nbformat
import pytest
from corpus_factory import only_retrieval, write_docstrings
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
spark.stop()
"""
# On Databricks `spark` and `dbutils` are there before the first cell; widgets keep what a job sets.
AS_ON_DATABRICKS = """
from types import SimpleNamespace

from pipelines.spark.session import spark_session
from pipelines.settings import Config

values = {values!r}
dbutils = SimpleNamespace(
    widgets=SimpleNamespace(text=values.setdefault, get=values.__getitem__)
)
spark = spark_session(Config(spark={brief!r} | {{"master": "local[1]"}}), "own")
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
    already_there = AS_ON_DATABRICKS.format(values=parameters, brief=BRIEF) + REMEMBER_SESSION
    notebook.cells.insert(0, new_code_cell(already_there))
    return notebook


def execute(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Runs all cells; one that fails raises an error with its traceback."""
    notebook.cells.append(new_code_cell(COMPARE_SESSIONS))
    client = NotebookClient(
        notebook, timeout=CELL_SECONDS, startup_timeout=300, kernel_name="python3"
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


def test_notebooks_run_one_after_the_other(tmp_path):
    text = tmp_path / "docstrings.jsonl"
    write_docstrings(text)
    own = {"folder": str(tmp_path)}

    corpus = {"inputs": str(text), "corpus_format": "jsonl", "pairs": "summary"}
    prepared = execute(with_widgets(PREPARE, own | corpus), tmp_path)
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
    engines = {"engines": "local:torch, torch:torch", "workers": "1", "max_steps": "8"}
    trained = execute(with_parameters(TRAIN, own | engines), tmp_path)
    check_pictures(trained, "losses")
    assert "local-cluster[1," in text_of(trained, "session")
    assert "nDCG@10" in text_of(trained, "evaluation")
    for engine in ("local", "torch"):
        assert (tmp_path / "runs" / engine / "model" / "model.safetensors").is_file()

    found = execute(with_widgets(SEARCH, own | {"questions": "copy a tree"}), tmp_path)
    check_pictures(found, "map")
    assert "local[1]" in text_of(found, "session")
    assert "copy a tree" in text_of(found, "column")
    assert "cosine" in text_of(found, "search")
    assert "rows repeat another" in text_of(found, "groups")
