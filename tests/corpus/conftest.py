"""Fixtures of the readers."""

from lake_tables import lake

__all__ = ["lake"]
