"""TensorFlowOnSpark as its examples use it: Spark feeds rows to a Keras model on each executor."""

from __future__ import annotations
