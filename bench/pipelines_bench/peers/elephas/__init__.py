"""Elephas as its readme uses it: a Keras model that each partition of an RDD trains apart."""

from __future__ import annotations
