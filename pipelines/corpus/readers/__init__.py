"""Readers: the inputs of every format as raw rows.

A format is a :class:`~pipelines.corpus.readers.formats.Format` in a file of its own, and a line
here. Its name is then a value of `corpus.format`. Where it has rows, its name among
:data:`TABLE_FORMATS` makes it a value of `embedding.format`, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.registry import Registry

if TYPE_CHECKING:
    from pipelines.corpus.readers.formats import Format

FORMATS: Registry[Format] = Registry(
    "format",
    "corpus.format",
    {
        "docstrings": "pipelines.corpus.readers.docstrings:DOCSTRINGS",
        "documents": "pipelines.corpus.readers.documents:DOCUMENTS",
        "text": "pipelines.corpus.readers.documents:TEXT",
        "markdown": "pipelines.corpus.readers.documents:MARKDOWN",
        "wikiextractor": "pipelines.corpus.readers.wikiextractor:WIKIEXTRACTOR",
        "jsonl": "pipelines.corpus.readers.json_lines:JSON_LINES",
        "csv": "pipelines.corpus.readers.csv_format:DELIMITED",
        "parquet": "pipelines.corpus.readers.parquet:PARQUET",
        "delta": "pipelines.corpus.readers.tables:DELTA",
        "iceberg": "pipelines.corpus.readers.tables:ICEBERG",
        "table": "pipelines.corpus.readers.tables:TABLE",
    },
)

_TABLES = ("parquet", "csv", "jsonl", "text", "delta", "iceberg", "table")
TABLE_FORMATS: Registry[Format] = Registry(
    "format", "embedding.format", {name: FORMATS.entries[name] for name in _TABLES}
)
"""Those that `embed` reads: files of Parquet, tables by name, and formats that have rows."""
