"""What other distributions add to a comparison: peers, and workloads.

A distribution names mappings as entry points of the group :data:`GROUP`: ``peers`` of names to
:class:`~pipelines.compare.strategy.Peer`, ``workloads`` of names to functions that take settings
and a folder and return the settings of the workload.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

GROUP = "sentence_pipelines.compare"


def provided(kind: str) -> dict[str, Any]:
    """What installed distributions add, by name.

    Args:
        kind: `peers` or `workloads`.
    """
    return {
        name: value
        for point in entry_points(group=GROUP, name=kind)
        for name, value in point.load().items()
    }
