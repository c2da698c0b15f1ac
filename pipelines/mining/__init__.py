"""Hard negatives: documents that a model finds near an anchor, and that are not its positives.

What leaves a document out is a :class:`~pipelines.mining.filters.Filter`, and how documents are
found a :class:`~pipelines.mining.searches.Search`; each has a line here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.registry import Registry

if TYPE_CHECKING:
    from pipelines.mining.filters import Filter
    from pipelines.mining.searches import Search

FILTERS: Registry[Filter] = Registry(
    "filter",
    "mining",
    {
        "known positive": "pipelines.mining.filters:POSITIVE",
        "same text": "pipelines.mining.filters:TEXT",
        "same group": "pipelines.mining.filters:GROUP",
        "above max_score": "pipelines.mining.filters:SCORE",
        "too near the positive": "pipelines.mining.filters:MARGIN",
    },
)
"""In the order in which a document passes them; the names are the reasons in the figures."""

SEARCHES: Registry[Search] = Registry(
    "search",
    "mining.search",
    {
        "exact": "pipelines.mining.searches:EXACT",
        "index": "pipelines.mining.searches:INDEX",
    },
)
