"""What a notebook or job of Databricks knows and a child process of it does not."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pipelines.settings import TrackingSettings

EXPERIMENT = ("MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")


def databricks_environment(settings: TrackingSettings) -> Mapping[str, str]:
    """The workspace, its credentials and the notebook's experiment, as environment variables.

    Empty, and MLflow is not imported, where the tracking server is not Databricks.

    Raises:
        Exception: MLflow's, where it finds no credentials.
    """
    uri = settings.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
    in_runtime = "DATABRICKS_RUNTIME_VERSION" in os.environ
    if not uri.startswith("databricks") and (uri or not in_runtime):
        return {}
    from mlflow.tracking.default_experiment.registry import get_experiment_id
    from mlflow.utils.databricks_utils import get_databricks_env_vars

    found = dict(get_databricks_env_vars(uri or "databricks"))
    if settings.mlflow_experiment is None and not any(name in os.environ for name in EXPERIMENT):
        experiment = get_experiment_id() if in_runtime else None
        if experiment is not None:
            found["MLFLOW_EXPERIMENT_ID"] = str(experiment)
    return found
