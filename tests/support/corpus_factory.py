"""A small corpus of real text, and settings that train on it in seconds."""

from __future__ import annotations

import ast
import json
import sysconfig
from pathlib import Path

from pipelines.settings import Config
from pipelines.settings.load import parse

MODULES = (
    "argparse asyncio/streams collections/__init__ configparser csv datetime difflib email/message"
    " fractions ftplib functools http/client inspect logging/__init__ mailbox optparse pathlib"
    " pickle random shutil smtplib socket statistics subprocess tarfile threading turtle"
    " unittest/case urllib/request zipfile"
)


def write_docstrings(path: Path) -> None:
    """Writes the docstrings of a few modules of the standard library as JSON lines."""
    library = Path(sysconfig.get_path("stdlib"))
    with path.open("w") as file:
        for name in MODULES.split():
            source = library / f"{name}.py"
            if not source.is_file():
                source = library / name / "__init__.py"  # Of later releases of Python.
            tree = ast.parse(source.read_text())
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                    text = ast.get_docstring(node)
                    if text:
                        file.write(json.dumps({"text": text}) + "\n")


def small_config(folder: Path, **training) -> Config:
    """A small random encoder on the corpus that is prepared in a folder, from texts beside it."""
    config = parse(
        {
            "corpus": {
                "inputs": [str(folder.parent / "docstrings.jsonl")],
                "format": "jsonl",
                "evaluation_share": 0.1,
            },
            "prepared": {"folder": str(folder)},
            "tokens": {"max_length": 32, "vocabulary": "train", "vocabulary_size": 2000},
            "lanes": {"count": 4, "granule": 8},
            "encoder": {"start": "random", "layers": 1, "hidden": 32, "heads": 2},
            "training": {
                "engine": "tensorflowonspark",
                "granules_per_step": 2,
                "learning_rate": 2e-3,
                # Curves are compared.
                "precision": "fp32",
                "log_every": 1,
                "checkpoint_every": 100,
                "keep_checkpoints": 9,
                # What fails is to be seen.
                "restarts": 0,
                # A machine that is busy is slow, which is no failure.
                "start_seconds": 300,
                "stall_seconds": 300,
            },
        }
    )
    # Not validated again: the test engine's framework is no setting.
    return config.model_copy(update={"training": config.training.model_copy(update=training)})


def only_retrieval(config: Config) -> Config:
    """The settings with what a gate compares measured, and nothing beside it."""
    measured = config.evaluation.model_copy(update={"geometry": False, "samples": 0})
    return config.model_copy(update={"evaluation": measured})
