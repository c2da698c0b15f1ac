"""What another distribution adds by entry points is chosen by name, on executors too."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from local_cluster import BRIEF

SUPPORT = Path(__file__).parents[1] / "support"
ROOT = SUPPORT.parents[1]
POINTS = """
[sentence_pipelines.engines]
toy = toy_engine:ToyEngine

[sentence_pipelines.losses]
toy = toy_loss:LOSS

[sentence_pipelines.formats]
key_values = key_values:KEY_VALUES
"""
ENGINE = """
from fork_engine import ForkEngine

class ToyEngine(ForkEngine):
    name = "toy"
    frameworks = ("torch",)
"""
JOB = """
import sys
import pipelines
from pipelines.settings.load import load

config = load(sys.argv[1])
pipelines.prepare(config)
pipelines.train(config)
"""


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    """Of a process in which the distribution is installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    for name in ("fork_engine.py", "toy_loss.py", "key_values.py"):
        shutil.copy(SUPPORT / name, folder)
    (folder / "toy_engine.py").write_text(ENGINE)
    information = folder / "toy-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(POINTS)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


@pytest.mark.matrix
def test_an_engine_a_loss_and_a_format_train(environment, tmp_path):
    rows = [f"left=A dog runs {n} times.;right=It runs {n}.;score={n % 2}" for n in range(64)]
    (tmp_path / "pairs.kv").write_text("\n".join(rows) + "\n")
    settings = {
        "corpus": {
            "inputs": [str(tmp_path / "pairs.kv")],
            "format": "key_values",
            "pairs": "columns",
            "pair_columns": ["left", "right"],
            "score_column": "score",
            "min_characters": 1,
            "evaluation_share": 0.0,
        },
        "prepared": {"folder": str(tmp_path / "prepared")},
        "tokens": {"max_length": 32, "vocabulary": "train", "vocabulary_size": 200},
        "lanes": {"count": 2, "granule": 4},
        "encoder": {"start": "random", "layers": 1, "hidden": 16, "heads": 2},
        "objective": {"name": "toy", "power": 2.0},
        "training": {"engine": "toy", "framework": "torch", "workers": 1, "max_steps": 3},
        "run": {"folder": str(tmp_path / "run")},
        "spark": {"master": "local-cluster[1,1,1024]", **BRIEF},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-c", JOB, str(tmp_path / "job.yaml")]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 3
    assert (tmp_path / "run" / "model" / "modules.json").is_file()


# Settings go to executors as bytes, which another process reads.
CHOICES = """
import pickle, sys
from pipelines.catalog import ENGINES, FORMATS, LOSSES
from pipelines.cli import main
from pipelines.engines.base import load_engine
from pipelines.settings.load import parse

if sys.argv[1] == "choose":
    columns = {"pairs": "columns", "score_column": "score"}
    settings = {
        "corpus": {"inputs": ["a.kv"], "format": "key_values", **columns},
        "objective": {"name": "toy", "power": 2.0},
        "training": {"engine": "toy", "framework": "torch"},
    }
    sys.stdout.buffer.write(pickle.dumps(parse(settings)))
else:
    config = pickle.load(sys.stdin.buffer)
    print(config.objective.power, LOSSES.load(config.objective.name).name)
    print(load_engine(config.training.engine).name, FORMATS.load(config.corpus.format).columns)
    print(*LOSSES, *FORMATS)
    main(["engines"])
"""


def test_they_are_among_the_choices(environment):
    def say(doing: str, given: bytes = b"") -> bytes:
        command = [sys.executable, "-c", CHOICES, doing]
        return subprocess.run(
            command, env=environment, input=given, capture_output=True, check=True
        ).stdout

    chosen, loaded, names, *overview = say("show", say("choose")).decode().splitlines()
    assert (chosen, loaded) == ("2.0 toy", "toy True")
    assert {"toy", "key_values", "in_batch_negatives", "csv"} <= {*names.split()}
    assert "torch" in "\n".join(overview).partition("toy ")[2]
