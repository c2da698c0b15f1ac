"""The address by which notebooks know :func:`pipelines.vectors.column.embed_column`."""

from pipelines.vectors.column import embed_column

__all__ = ["embed_column"]
