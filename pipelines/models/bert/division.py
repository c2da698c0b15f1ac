"""How the BERT family is divided between workers; see :mod:`pipelines.models.division`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pipelines.models.architecture import Division
from pipelines.models.bert.spec import BertSpec
from pipelines.models.bert.weights import RELATIVE_BIAS, layer_prefix
from pipelines.models.weights import WORDS

_BY_ROWS = ("attention.self.query", "attention.self.key", "attention.self.value", "intermediate")
_BY_COLUMNS = ("attention.output.dense", "output.dense")
_LAYER = re.compile(r"encoder\.layer\.(\d+)\.")


def _axes(spec: BertSpec) -> Mapping[str, int]:
    axes = {WORDS: 0}
    for layer in range(spec.layers):
        prefix = layer_prefix(layer)
        for name in _BY_ROWS:
            inner = f"{prefix}{name}.dense" if name == "intermediate" else f"{prefix}{name}"
            axes |= {f"{inner}.weight": 0, f"{inner}.bias": 0}
        axes |= {f"{prefix}{name}.weight": 1 for name in _BY_COLUMNS}
    if spec.relative_buckets:
        axes[RELATIVE_BIAS] = 1
    return axes


def _evenly(spec: BertSpec) -> Mapping[str, int]:
    return {"attention heads": spec.heads, "numbers of the wide layer": spec.intermediate}


def _layer_of(name: str) -> int | None:
    found = _LAYER.match(name)
    return int(found[1]) if found else None


def _check_stages(spec: BertSpec) -> str | None:
    if spec.relative_buckets:
        return "all layers share one table of relative positions"
    return None


DIVISION = Division(
    axes=_axes,
    evenly=_evenly,
    layers=lambda spec: spec.layers,
    layer_of=_layer_of,
    check_stages=_check_stages,
)
