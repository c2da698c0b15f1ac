"""Helpers of notebooks: parameters, messages below the cells, figures and tables."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.report.notebook_figures import (
        curves_figure,
        funnel_figure,
        map_figure,
        rows_figure,
    )
    from pipelines.report.svg_charts import histogram
    from pipelines.report.verdict import hits_table, metrics_table
    from pipelines.spark.frames import read_path
    from pipelines.spark.session import spark_session

__all__ = [
    "curves_figure",
    "funnel_figure",
    "histogram",
    "hits_table",
    "map_figure",
    "metrics_table",
    "read_path",
    "rows_figure",
    "show_messages",
    "spark_session",
    "widget_values",
]
_HOMES = {
    "histogram": "pipelines.report.svg_charts",
    "hits_table": "pipelines.report.verdict",
    "metrics_table": "pipelines.report.verdict",
    "read_path": "pipelines.spark.frames",
    "spark_session": "pipelines.spark.session",
}
"""Modules of names other than the figures, which need matplotlib; it may be missing."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "pipelines.report.notebook_figures")), name)


def widget_values(parameters: Mapping[str, str], dbutils: Any = None) -> dict[str, str]:
    """Return the parameters of a notebook: on Databricks, the values of its widgets.

    An existing widget keeps its value, so a person's or a job's values take precedence.
    `parameters` holds the defaults, and the values elsewhere; `dbutils` is the object of this name
    in a notebook on Databricks.
    """
    if dbutils is None:
        return dict(parameters)
    for name, value in parameters.items():
        dbutils.widgets.text(name, value)
    return {name: dbutils.widgets.get(name) for name in parameters}


def show_messages() -> None:
    """Show messages below the running cell; of other libraries, warnings only."""
    # Before other libraries call it with INFO: only the first call has an effect.
    logging.basicConfig(level=logging.WARNING)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    messages = logging.getLogger("pipelines")
    messages.setLevel(logging.INFO)
    # Replaces the handler of an earlier call. The root logger would show messages twice.
    messages.handlers = [handler]
    messages.propagate = False
