"""For notebooks only: parameters from Databricks' widgets, and messages below the cells."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any


def widget_values(parameters: Mapping[str, str], dbutils: Any = None) -> dict[str, str]:
    """The parameters of a notebook: on Databricks the values of its widgets, otherwise unchanged.

    An existing widget keeps its value, so values that a person or a job has set take precedence.

    Args:
        parameters: Defaults by name.
        dbutils: The object of this name in a notebook on Databricks.
    """
    if dbutils is None:
        return dict(parameters)
    for name, value in parameters.items():
        dbutils.widgets.text(name, value)
    return {name: dbutils.widgets.get(name) for name in parameters}


def show_messages() -> None:
    """Shows messages below the cell that runs; of other libraries, warnings only."""
    # Some libraries call this with INFO, and only the first call has an effect.
    logging.basicConfig(level=logging.WARNING)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    messages = logging.getLogger("pipelines")
    messages.setLevel(logging.INFO)
    # Replaces the handler of an earlier call. The root logger would show messages twice.
    messages.handlers = [handler]
    messages.propagate = False
