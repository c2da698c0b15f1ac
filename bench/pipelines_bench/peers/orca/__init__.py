"""BigDL's Orca as its documentation uses it: an Estimator of a PyTorch model in Spark tasks."""

from __future__ import annotations
