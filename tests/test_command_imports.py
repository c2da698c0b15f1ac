"""Commands that show or refuse something import what they need for it, and answer at once."""

from __future__ import annotations

import re
import subprocess
import sys

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


def command(*arguments: str) -> tuple[int, str, set[str]]:
    """Exit code, what a console command prints, and the libraries that it imports."""
    code = "import sys; from pipelines.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    imported = re.findall(r"^import time:[\s\d|]+\|\s*(\w+)", done.stderr, re.MULTILINE)
    printed = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    return done.returncode, done.stdout + "\n".join(printed), set(imported)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--help"], "Usage"), (["run", "--help"], "Usage"), (["--version"], "sentence-pipelines")],
)
def test_help_needs_neither_settings_nor_arrays(arguments, said):
    code, shown, imported = command(*arguments)
    assert code == 0
    assert said in shown
    assert "typer" in imported
    assert imported & (FRAMEWORKS | ARRAYS | SETTINGS) == set()


@pytest.mark.parametrize("job", ["prepare", "train", "run", "evaluate", "embed"])
def test_a_wrong_key_is_refused_before_anything_is_imported_for_the_job(job):
    code, shown, imported = command(job, "--set", "training.lr=1")
    assert (code, shown) == (2, code_line("training.lr", "training.learning_rate"))
    assert imported & (FRAMEWORKS | ARRAYS) == set()


def code_line(key: str, meant: str) -> str:
    return f"error: {key}: there is no such setting, did you mean {meant}?"


def test_a_wrong_key_of_a_file_is_refused_as_early(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("training:\n  engin: local\n", encoding="utf-8")
    code, shown, imported = command("run", "--config", str(file))
    assert (code, shown) == (2, code_line("training.engin", "training.engine"))
    assert imported & (FRAMEWORKS | ARRAYS) == set()


def test_an_engine_that_there_is_not_is_refused_as_early():
    code, shown, imported = command("train", "--set", "training.engine=spark")
    assert code == 2
    assert "there is no engine `spark`" in shown
    assert imported & (FRAMEWORKS | ARRAYS) == set()


@pytest.mark.parametrize(
    "arguments", [[], ["bigdl"], ["torch", "--set", "training.framework=torch"]]
)
def test_what_engines_need_is_shown_without_their_libraries(arguments):
    code, shown, imported = command("engines", *arguments)
    assert code == 0
    assert "spark.speculation" in shown
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
