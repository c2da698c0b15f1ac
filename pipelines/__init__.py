"""Train sentence encoders inside a Spark cluster, on the engine of your choice.

    import pipelines

    config = pipelines.load("job.yaml", ["training.workers=4", "training.granules_per_step=4"])
    pipelines.prepare(config)
    pipelines.train(config)
    pipelines.evaluate(config)

These names are the public API. Each is imported on first use, so the package itself needs neither
Spark nor a framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.jobs.ask import ask
    from pipelines.jobs.embed import embed
    from pipelines.jobs.evaluate import evaluate
    from pipelines.jobs.export import export
    from pipelines.jobs.mine import mine
    from pipelines.jobs.prepare import prepare
    from pipelines.jobs.promote import promote
    from pipelines.jobs.publish import publish
    from pipelines.jobs.run import run
    from pipelines.jobs.score import score
    from pipelines.jobs.search import search
    from pipelines.jobs.train import train
    from pipelines.settings import Config
    from pipelines.settings.load import load
    from pipelines.vectors.column import embed_column

__version__ = "0.1.0"

__all__ = [
    "Config",
    "ask",
    "embed",
    "embed_column",
    "evaluate",
    "export",
    "load",
    "mine",
    "prepare",
    "promote",
    "publish",
    "run",
    "score",
    "search",
    "train",
]
_WITHOUT_LIBRARIES = {"Config", "load"}
_HOMES = {
    "Config": "pipelines.settings",
    "embed_column": "pipelines.vectors.column",
    "load": "pipelines.settings.load",
}
"""Modules of names that are no jobs; a job is in the module of its name."""


def __getattr__(name: str) -> Any:
    """Import a name of the public API on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _WITHOUT_LIBRARIES:
        from pipelines.catalog import WITHOUT_SPARK
        from pipelines.libraries import check_job

        check_job(name, needs_spark=name not in WITHOUT_SPARK)
    return getattr(import_module(_HOMES.get(name, f"pipelines.jobs.{name}")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
