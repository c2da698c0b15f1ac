"""Settings and figures under flat names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pipelines.settings import Config
from pipelines.settings.redaction import without_secrets

_NOT_PLAIN = re.compile(r"[^\w.-]", re.ASCII)


def parameters(config: Config) -> dict[str, str]:
    """Every setting by its dotted key, as text; Spark's that look like secrets are hidden."""
    tree = without_secrets(config).model_dump(mode="json")
    # Their keys have dots of their own.
    conf = tree.pop("spark")
    flat = {"recipe": _text(tree.pop("recipe"))}
    flat |= {
        f"{section}.{name}": _text(value)
        for section, values in tree.items()
        for name, value in values.items()
    }
    return flat | {f"spark.{key}": _text(value) for key, value in conf.items()}


def training_values(line: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a metrics line, under ``training/``.

    Those of a worker are under its rank, those of a source of several under its name.
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
    """The figures of evaluations as ``PREFIX/EVALUATION/METRIC``, in letters that trackers take."""
    return {
        f"{prefix}/{_plain(evaluation)}/{_plain(metric)}": float(value)
        for evaluation, metrics in figures.items()
        for metric, value in metrics.items()
    }


def _plain(name: str) -> str:
    return _NOT_PLAIN.sub("_", name.replace("@", "_at_"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
