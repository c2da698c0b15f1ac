"""The choice of an engine and a number of workers, by side-by-side measurements of strategies."""

from __future__ import annotations
