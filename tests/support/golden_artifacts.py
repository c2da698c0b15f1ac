"""What the release 0.1.0 wrote, for tests that later code still reads it.

``tests/golden/release-0.1.0.tar.xz`` has what `run`, `embed`, `search --index`, `mine` and
`promote` left in their folders, each with ``--config job.yaml``, in a folder ``/corpora`` that held
``pairs.jsonl`` and ``job.yaml`` of ``tests/golden``. It is never written again: it is what users
have. The texts are docstrings of this package. Reports were left out.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typer.main import get_command

from pipelines.cli import app
from pipelines.settings import Config
from pipelines.settings.fields import fields
from pipelines.settings.load import parse, read_tree
from pipelines_bench.command import app as benchmarks

GOLDEN = Path(__file__).parents[1] / "golden"
MADE_IN = "/corpora"
FOLDERS = {
    "prepared": "prepared.folder",
    "run": "run.folder",
    "vectors": "embedding.output",
    "mined": "mining.output",
    "served": "promotion.target",
}
"""Folders of the archive, and the settings that name them."""
TEXTS = {".json", ".jsonl", ".md", ".yaml"}


def unpack(folder: Path) -> Path:
    """Puts the artifacts into a folder, as if they had been made there; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("pairs.jsonl", "job.yaml"):
        (folder / name).write_bytes((GOLDEN / name).read_bytes())
    with tarfile.open(GOLDEN / "release-0.1.0.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    for path in folder.rglob("*"):
        if path.suffix in TEXTS and MADE_IN in (text := path.read_text()):
            path.write_text(text.replace(f"{MADE_IN}/", f"{folder}/"))
    _restore_times(folder)
    return folder


def _restore_times(folder: Path) -> None:
    """Gives files that negatives were mined from their time of change, of which tar has seconds."""
    _, files = json.loads((folder / "mined" / "_mining.json").read_text())["texts"]["mining.inputs"]
    for path, _, changed in files:
        os.utime(path, ns=(changed, changed))


def golden_config(folder: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """The settings of the artifacts in a folder.

    Args:
        folder: Where they were unpacked.
        overrides: Further settings, by their dotted keys.
    """
    places = {key: str(folder / name) for name, key in FOLDERS.items()}
    inputs = dict.fromkeys(("corpus.inputs", "embedding.inputs"), f"[{folder / 'pairs.jsonl'}]")
    given = {**places, **inputs, **(overrides or {})}
    return parse(
        read_tree(str(folder / "job.yaml"), [f"{key}={value}" for key, value in given.items()])
    )


def surface() -> dict[str, Any]:
    """What users name: commands with their options, and settings with their types and defaults."""
    commands = {name: _options(one) for name, one in get_command(app).commands.items()}
    # `benchmark strategies` is `compare`.
    commands["benchmark"] += _options(get_command(benchmarks)) + commands["compare"]
    return {
        "commands": commands,
        "settings": {field.key: [field.kind, field.default] for field in fields()},
    }


def _options(command: Any) -> list[str]:
    return sorted(option for given in command.params for option in given.opts)
