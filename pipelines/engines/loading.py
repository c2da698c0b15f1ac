"""From the name of an engine to the engine."""

from __future__ import annotations

from pipelines.catalog import ENGINES
from pipelines.engines.base import Engine
from pipelines.errors import EngineUnavailable


def load_engine(name: str) -> Engine:
    """The engine of a name; imports its module.

    Raises:
        InputError: There is no such engine.
        EngineUnavailable: Its library is not installed.
    """
    try:
        engine_class: type[Engine] = ENGINES.load(name)
    except ImportError as error:
        raise EngineUnavailable(
            "training.engine",
            f"engine {name} cannot be loaded ({error})",
            f'pip install "sentence-pipelines[{name}]" on the driver and every executor',
        ) from error
    return engine_class()
