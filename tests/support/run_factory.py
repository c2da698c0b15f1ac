"""Runs with models of a few small files, as trained and measured; for what goes on on the disk."""

from __future__ import annotations

from pathlib import Path

from pipelines.files import storage
from pipelines.models.identity import model_digest
from pipelines.settings import Config
from pipelines.settings.load import parse


def write_model(folder: Path, content: str) -> Path:
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "1_Pooling/config.json", "model.safetensors"):
        (folder / name).write_text(content)
    return folder


def write_run(folder: Path, content: str, ndcg: float = 50.0) -> Path:
    """A run whose model has that content, measured on the same texts as all others."""
    model = write_model(folder / "model", content)
    measured = {"model_digest": model_digest(model), "sets": {"retrieval": "the same texts"}}
    metrics = {"after": {"retrieval": {"ndcg@10": ndcg}}, "measured": measured}
    storage.write_json(folder / "metrics.json", metrics)
    return folder


def settings(target: Path, run: Path | None = None, keep: int = 3) -> Config:
    tree: dict = {"promotion": {"target": str(target), "keep": keep}}
    return parse(tree if run is None else tree | {"run": {"folder": str(run)}})


def content_of(version: Path) -> str:
    """What the files of a version hold, which is the same in all of a whole one."""
    paths = [version / name for name in ("config.json", "1_Pooling/config.json")]
    (content,) = {path.read_text() for path in [*paths, version / "model.safetensors"]}
    return content


def names(target: Path) -> list[str]:
    return sorted(path.name for path in target.iterdir())


IN_ORDER = ["current", "history.jsonl", "versions"]
