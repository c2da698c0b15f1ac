"""What only a notebook needs: settings from Databricks' widgets, and messages below the cells."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any


def widget_values(parameters: Mapping[str, str], dbutils: Any = None) -> dict[str, str]:
    """The parameters of a notebook: on Databricks as its widgets say, otherwise as they are.

    A widget that is there already keeps its value, so that what a person or a job has set counts.

    Args:
        parameters: Their values, by name.
        dbutils: The object of this name in a notebook of Databricks.
    """
    if dbutils is None:
        return dict(parameters)
    for name, value in parameters.items():
        dbutils.widgets.text(name, value)
    return {name: dbutils.widgets.get(name) for name in parameters}


def show_messages() -> None:
    """Shows what the stages tell about themselves below the cell that runs them.

    Of other libraries only warnings are shown.
    """
    # Some of them call it too, with INFO, and the first call counts.
    logging.basicConfig(level=logging.WARNING)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    messages = logging.getLogger("pipelines")
    messages.setLevel(logging.INFO)
    # In place of those of an earlier call; the root logger of a cluster would show them twice.
    messages.handlers = [handler]
    messages.propagate = False
