"""Commands that show or refuse something import what they need for it, and answer at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

FRAMEWORKS = {
    *("tensorflow", "torch", "keras", "tf_keras", "bigdl", "horovod", "elephas", "deepspeed"),
    *("tensorflowonspark", "pyspark", "py4j", "transformers", "sentence_transformers", "mlflow"),
    *("tensorboardX", "openvino", "onnxruntime", "pandas", "scipy", "sklearn"),
}
ARRAYS = {"numpy", "pyarrow"}
SETTINGS = {"yaml"}
"""Not pydantic, by which the arguments of commands are read as well."""
SECONDS = 300
"""Until a command that hangs is ended."""


COMMANDS = """
import contextlib, io, json, sys
from pipelines.cli import main

for arguments in json.loads(sys.argv[1]):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        code = main(arguments)
    imported = sorted({name.partition(".")[0] for name in sys.modules})
    print(json.dumps([code, shown.getvalue(), imported]))
"""
HELP = {("--help",): "Usage", ("run", "--help"): "Usage", ("--version",): "sentence-pipelines"}
WRONG_KEYS = [
    (job, "--set", "training.lr=1") for job in ("prepare", "train", "run", "evaluate", "embed")
]
WRONG_ENGINE = ("train", "--set", "training.engine=spark")
ENGINES = {
    ("engines",): "best for",
    ("engines", "bigdl"): "spark.speculation",
    ("engines", "torch", "--set", "training.framework=torch"): "spark.speculation",
}


class Done(NamedTuple):
    """What has come of a command.

    Attributes:
        code: Its exit code.
        shown: What it has printed.
        imported: The libraries that the process has imported by then.
    """

    code: int
    shown: str
    imported: set[str]


@pytest.fixture(scope="module")
def wrong_file(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("settings") / "job.yaml"
    file.write_text("training:\n  engin: local\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def done(wrong_file) -> dict[tuple[str, ...], Done]:
    """What has come of console commands, one after the other in one process."""
    with_file = ("run", "--config", str(wrong_file))
    # Those that may import more come later.
    asked = [*HELP, *WRONG_KEYS, with_file, WRONG_ENGINE, *ENGINES]
    process = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(asked)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    found = [json.loads(line) for line in process.stdout.splitlines()]
    return {
        command: Done(code, shown, set(imported))
        for command, (code, shown, imported) in zip(asked, found, strict=True)
    }


@pytest.mark.parametrize("command", HELP, ids=" ".join)
def test_help_needs_neither_settings_nor_arrays(done, command):
    code, shown, imported = done[command]
    assert code == 0
    assert HELP[command] in shown
    assert "typer" in imported
    assert imported & (FRAMEWORKS | ARRAYS | SETTINGS) == set()


@pytest.mark.parametrize("command", WRONG_KEYS, ids=" ".join)
def test_a_wrong_key_is_refused_before_anything_is_imported_for_the_job(done, command):
    code, shown, imported = done[command]
    assert (code, shown) == (2, code_line("training.lr", "training.learning_rate"))
    assert imported & (FRAMEWORKS | ARRAYS) == set()


def code_line(key: str, meant: str) -> str:
    return f"error: {key}: there is no such setting. Did you mean {meant}?\n"


def test_a_wrong_key_of_a_file_is_refused_as_early(done, wrong_file):
    code, shown, imported = done["run", "--config", str(wrong_file)]
    assert (code, shown) == (2, code_line("training.engin", "training.engine"))
    assert imported & (FRAMEWORKS | ARRAYS) == set()


def test_an_engine_that_there_is_not_is_refused_as_early(done):
    code, shown, imported = done[WRONG_ENGINE]
    assert code == 2
    assert "there is no engine `spark`" in shown
    assert imported & (FRAMEWORKS | ARRAYS) == set()


@pytest.mark.parametrize("command", ENGINES, ids=" ".join)
def test_what_engines_need_is_shown_without_their_libraries(done, command):
    code, shown, imported = done[command]
    assert code == 0
    assert ENGINES[command] in shown
    assert imported & FRAMEWORKS == set()


@pytest.mark.parametrize("module", ["pipelines", "pipelines.cli"])
def test_a_module_is_the_command_too(module):
    def asked(*arguments: str) -> subprocess.CompletedProcess[str]:
        whole = [sys.executable, "-m", module, *arguments]
        return subprocess.run(whole, capture_output=True, text=True, timeout=SECONDS, check=False)

    assert asked("--version").stdout.startswith("sentence-pipelines ")
    refused = asked("train", "--set", "nothing.at=all")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: nothing: there is no such setting")
