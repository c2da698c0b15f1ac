"""Fixtures that embedding, search and mining share."""

from embedding_fixtures import lines, small_model

__all__ = ["lines", "small_model"]
