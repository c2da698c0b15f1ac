"""The interface of trackers, and the plain values sent to their processes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pipelines.files.locations import location
from pipelines.files.run_folder import RunFolder
from pipelines.settings import Config, StorageSettings, TrackingSettings
from pipelines.settings.redaction import without_secrets

_NOT_PLAIN = re.compile(r"[^\w.-]", re.ASCII)


def parameters(config: Config) -> dict[str, str]:
    """Return every setting by its dotted key, as text; likely secrets are hidden."""
    tree = without_secrets(config).model_dump(mode="json")
    # Flattened below: the conf's keys have dots of their own.
    conf = tree.pop("spark")
    flat = {"recipe": _text(tree.pop("recipe"))}
    flat |= {
        f"{section}.{name}": _text(value)
        for section, values in tree.items()
        for name, value in values.items()
    }
    return flat | {f"spark.{key}": _text(value) for key, value in conf.items()}


def training_values(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a metrics line, under ``training/``.

    A worker's are under its rank, and those of several sources under their names.
    """
    no_figures = ("step", "workers", "precision", "sources")
    shared = {name: value for name, value in line.items() if name not in no_figures}
    values = {f"training/{name}": float(value) for name, value in shared.items()}
    for worker in line.get("workers", ()):
        place = f"training/worker_{worker['rank']}"
        values |= {
            f"{place}/{name}": float(value) for name, value in worker.items() if name != "rank"
        }
    for name, source in line.get("sources", {}).items():
        values |= {f"training/source_{name}/{key}": float(source[key]) for key in source}
    return values


def evaluation_values(prefix: str, figures: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return figures as ``PREFIX/EVALUATION/METRIC``, in letters for all trackers."""
    return {
        f"{prefix}/{_plain(evaluation)}/{_plain(metric)}": float(value)
        for evaluation, metrics in figures.items()
        for metric, value in metrics.items()
    }


def _plain(name: str) -> str:
    return _NOT_PLAIN.sub("_", name.replace("@", "_at_"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


Status = Literal["finished", "failed", "killed"]


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """The facts of a run when it begins or resumes.

    Attributes:
        run_folder: Absolute path of the run folder, or its address.
        parameters: The whole configuration as text, by dotted key; ``config`` has it as YAML.
        program: The driver's program.
        first_step: The step that training goes on from; None if nothing is trained.
    """

    run_folder: str
    storage: StorageSettings
    settings: TrackingSettings
    parameters: Mapping[str, str]
    config: str
    program: str
    first_step: int | None

    @property
    def folder(self) -> RunFolder:
        """The run folder."""
        return RunFolder(location(self.run_folder, self.storage))


@dataclass(frozen=True, kw_only=True)
class MetricPoint:
    """The figures of one step, by name, such as ``training/loss``.

    ``step`` counts completed steps, ``time`` seconds since 1970.
    """

    step: int
    time: float
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """The end of a run, or of a part of it.

    ``step`` counts completed steps, ``problem`` is one line. ``files`` (absolute paths) and
    ``model`` (a sentence-transformers folder) are to be kept.
    """

    status: Status = "finished"
    step: int = 0
    problem: str = ""
    files: Sequence[str] = field(default_factory=tuple)
    model: str | None = None


class Tracker(Protocol):
    """A tracker in a process of its own: it may be slow, and raise any error.

    After an error the same call is repeated, perhaps in another process. A tracker keeps its state
    in the run folder.
    """

    def start(self, start: RunStart) -> None:
        """Open the run, or resume it."""
        ...

    def log(self, points: Sequence[MetricPoint]) -> None:
        """Take figures, in the order of their measurement."""
        ...

    def finish(self, end: RunEnd) -> None:
        """Keep files and model, and close the run."""
        ...
