"""The environment of Megatron-Core has the command, though the package is installed elsewhere."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_the_environment_of_megatron_has_the_command(tmp_path):
    # All of it, whether or not the environment is there.
    dry = ["make", "-n", "-B", "-C", str(ROOT), "megatron"]
    told = subprocess.run(dry, capture_output=True, text=True, timeout=60, check=True).stdout
    lines = [
        line for line in told.splitlines() if re.match(r"(printf|chmod) .*/sentence-pip", line)
    ]
    binaries = tmp_path / ".venv-megatron" / "bin"
    binaries.mkdir(parents=True)
    for line in lines:
        subprocess.run(line, shell=True, cwd=tmp_path, timeout=60, check=True)
    (binaries / "python").write_text('#!/bin/sh\necho "$@"\n')
    (binaries / "python").chmod(0o755)
    given = [binaries / "sentence-pipelines", "train", "--set", "run.folder=a b"]
    done = subprocess.run(given, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "-m pipelines train --set run.folder=a b\n"
