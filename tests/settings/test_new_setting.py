"""A new setting is a field with its description; the file, the page and errors follow."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pipelines

SECTION = "class TrainingSettings("
FIELD = '''
    toy_patience: int = Field(default=3, ge=1)
    """Steps that the toy waits."""
'''
USES = """
import sys
sys.path.insert(0, sys.argv[1])
from pipelines.settings.fields import fields
from pipelines.settings.load import load
from pipelines.settings.resuming import FIXED, FREE, RECORDED

(field,) = (one for one in fields() if one.key == "training.toy_patience")
print(field.kind, field.default, field.description, sep=" | ")
print(load(None, ["training.toy_patience=5"]).training.toy_patience)
print(field.key in FIXED + FREE + RECORDED)
load(None, ["training.toy_patience=none"])
"""


@pytest.mark.slow
def test_it_is_read_described_and_checked(tmp_path):
    package = Path(pipelines.__file__).parent
    copy = tmp_path / "pipelines"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    module = copy / "settings" / "training.py"
    text = module.read_text()
    at = text.index("    engine: ", text.index(SECTION))
    module.write_text(text[:at] + FIELD.lstrip("\n") + text[at:])
    done = subprocess.run(
        [sys.executable, "-c", USES, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": ""},
    )
    assert done.stdout, done.stderr
    described, value, classified = done.stdout.splitlines()
    assert described == "whole number | 3 | Steps that the toy waits."
    assert value == "5"
    # `tests/runs/test_run_jobs.py` fails until it is in one of the lists.
    assert classified == "False"
    assert "InputError: training.toy_patience: " in done.stderr
