"""What is public: names of the package, and the modules that pages, notebooks and scripts name."""

import json
import re
import subprocess
import sys

import pytest
from module_graph import ROOT
from typer.main import get_command

import pipelines
from pipelines import notebook
from pipelines.catalog import COMMANDS
from pipelines.cli import app
from pipelines.errors import InputError
from pipelines.promotion import current
from pipelines.settings import Config

JOBS = {"ask", "embed", "evaluate", "export", "mine", "prepare", "promote", "publish", "run"} | {
    "score",
    "search",
    "train",
}
MODULES = {
    "pipelines.cli",
    "pipelines.embedding.column",
    "pipelines.errors",
    "pipelines.ml",
    "pipelines.notebook",
    "pipelines.promotion",
    "pipelines.tracking.base",
}
"""Modules that others may import, beside the package itself and what is in `pipelines.vectors`."""
IMPORT = re.compile(r"^ *(?:from (pipelines[\w.]*) import|import (pipelines[\w.]+))", re.MULTILINE)
PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
SOURCES = [*(ROOT / "notebooks").glob("*.ipynb"), *(ROOT / "jobs").rglob("*.py"), *PAGES]


def test_the_names_of_the_package():
    assert {*pipelines.__all__} == JOBS | {"Config", "embed_column", "load"}
    assert pipelines.Config is Config
    assert [name for name in pipelines.__all__ if not callable(getattr(pipelines, name))] == []
    assert {*pipelines.__all__} <= {*dir(pipelines)}
    with pytest.raises(AttributeError, match="module 'pipelines' has no attribute 'trian'"):
        _ = pipelines.trian
    with pytest.raises(AttributeError, match=r"module 'pipelines\.notebook' has no attribute"):
        _ = notebook.pyplot


def test_each_name_for_notebooks_is_there():
    assert [name for name in notebook.__all__ if not callable(getattr(notebook, name))] == []
    assert callable(current)


def test_each_command_is_in_the_catalog_and_has_a_script():
    commands = {*get_command(app).commands} - {"benchmark"}
    assert commands == {*COMMANDS}
    scripts = {path.stem for path in (ROOT / "jobs").glob("*.py")}
    assert scripts - {"benchmark"} == commands - {"engines", "report", "rollback", "run"}


def test_the_package_imports_nothing_before_it_is_used():
    code = "import json, sys; import pipelines; print(json.dumps([*sys.modules]))"
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
    loaded = {*json.loads(done.stdout)}
    assert {name for name in loaded if name.startswith("pipelines")} == {"pipelines"}
    assert loaded.isdisjoint({"pyspark", "numpy", "pydantic"})


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_only_what_is_public_is_imported(source):
    text = source.read_text(encoding="utf-8")
    if source.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells)
    named = {first or second for first, second in IMPORT.findall(text)} - {"pipelines"}
    assert {name for name in named if not name.startswith("pipelines.vectors.")} <= MODULES


def test_settings_may_be_a_mapping():
    config = pipelines.load({"training": {"workers": 4}}, ["training.granules_per_step=4"])
    assert (config.training.workers, config.training.granules_per_step) == (4, 4)
    with pytest.raises(InputError, match=r"^training\.worker: there is no such setting"):
        pipelines.load({"training": {"worker": 4}})
