"""What mappings and documents OpenSearch and Elasticsearch take, by their published definitions.

The parameters of a field are those of Elasticsearch's own field classes; OpenSearch has the same
for these types. Those of vectors are from the pages of both.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from elasticsearch.dsl import field as published

LONGEST_KEYWORD = 32_766  # bytes
VECTORS = {
    "opensearch": ("knn_vector", {"dimension", "data_type", "method"}),
    "elasticsearch": ("dense_vector", {"dims", "element_type", "index", "similarity"}),
}
SPACES = {
    "opensearch": {"cosinesimil", "innerproduct", "l2"},
    "elasticsearch": {"cosine", "dot_product", "l2_norm", "max_inner_product"},
}
FIELDS = {
    kind.name: {*inspect.signature(kind.__init__).parameters} | {"type"}
    for kind in (published.Keyword, published.Text, published.Date, published.Boolean)
    + (published.Long, published.Double)
}
CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "date": lambda text: isinstance(text, str) and bool(datetime.fromisoformat(text)),
    "keyword": lambda text: isinstance(text, str) and len(text.encode()) <= LONGEST_KEYWORD,
    "text": lambda text: isinstance(text, str),
    "boolean": lambda truth: isinstance(truth, bool),
    "double": lambda number: isinstance(number, float | int) and math.isfinite(number),
    "long": lambda number: isinstance(number, int) and -(2**63) <= number < 2**63,
}


def check_mappings(kind: str, mappings: Mapping[str, Any]) -> None:
    """Refuses unknown types and parameters.

    Raises:
        ValueError: What is unknown.
    """
    only(mappings, {"dynamic", "_meta", "properties"})
    vector, parameters = VECTORS[kind]
    for mapped in mappings["properties"].values():
        if mapped["type"] == vector:
            only(mapped, parameters | {"type"})
            only(mapped.get("method", {}), {"name", "engine", "space_type"})
            only({space(mapped): None}, SPACES[kind])
        else:
            only({mapped["type"]: None}, {*FIELDS})
            only(mapped, FIELDS[mapped["type"]])


def only(found: Mapping[str, Any], known: set[str]) -> None:
    if others := sorted({*found} - known):
        raise ValueError(f"unknown {others}")


def space(vector: Mapping[str, Any]) -> Any:
    return vector.get("similarity", vector.get("method", {}).get("space_type"))


def fits(mapped: Mapping[str, Any], value: Any) -> bool:
    """Whether a field of a mapping takes a value; a list, each of its values."""
    if space(mapped) is not None:
        width, is_cosine = mapped.get("dims", mapped.get("dimension")), "cosine" in space(mapped)
        finite = all(isinstance(one, float | int) and math.isfinite(one) for one in value)
        return len(value) == width and finite and (any(value) or not is_cosine)
    if isinstance(value, list):
        return all(one is None or fits(mapped, one) for one in value)
    return CHECKS[mapped["type"]](value)
