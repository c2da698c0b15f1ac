"""Which engine, and how many workers: strategies of training, measured side by side."""

from __future__ import annotations
