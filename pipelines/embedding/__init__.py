"""A column of vectors for any table, brought up to date by what has changed in it.

A kind of table that the rows can be merged into is a
:class:`~pipelines.embedding.merge.MergeFormat`, and a line here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.registry import Registry

if TYPE_CHECKING:
    from pipelines.embedding.merge import MergeFormat

MERGE_FORMATS: Registry[MergeFormat] = Registry(
    "table format",
    "embedding.merge_format",
    {
        "delta": "pipelines.embedding.merge:DELTA",
        "iceberg": "pipelines.embedding.merge:ICEBERG",
    },
)
