"""The address of :func:`pipelines.vectors.column.embed_column` in notebooks."""

from pipelines.vectors.column import embed_column

__all__ = ["embed_column"]
