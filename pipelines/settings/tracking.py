"""The section `tracking` of the settings."""

from __future__ import annotations

from pydantic import Field

from pipelines.errors import InputError
from pipelines.settings.base import Settings
from pipelines.settings.paths import NameOrPath, StoredPath


class TrackingSettings(Settings):
    """Where a run can be followed, beside its own folder."""

    trackers: tuple[str, ...] = Field(
        default=(), description="Any of `mlflow` and `tensorboard`; see [tracking](tracking.md)."
    )
    mlflow_uri: NameOrPath | None = Field(
        default=None,
        description=(
            "Tracking server or store. Unset: as MLflow finds it, by `MLFLOW_TRACKING_URI` or on "
            "Databricks."
        ),
    )
    mlflow_experiment: str | None = Field(
        default=None,
        description="Experiment, created if there is none. Unset: as MLflow finds it.",
    )
    mlflow_run_name: str | None = Field(
        default=None, description="Name of the run; that of `run.folder` unless set."
    )
    mlflow_registered_model: str | None = Field(
        default=None, description="Register the model as a version of this one."
    )
    tensorboard_folder: StoredPath | None = Field(
        default=None,
        description=(
            "Event files go to a folder in it that is named after `run.folder`; unset: to "
            "`tensorboard` in `run.folder`."
        ),
    )
    wait_seconds: int = Field(
        default=60,
        ge=0,
        description="Longest that a job waits at its end for trackers to take what is left.",
    )

    def check(self) -> None:
        """Refuses trackers that are named twice, and settings of those that are not named."""
        for name in self.trackers:
            if self.trackers.count(name) > 1:
                raise InputError("tracking.trackers", f"{name} is named twice", "name it once")
        for key, value in self:
            tracker = key.partition("_")[0]
            if tracker in ("mlflow", "tensorboard") and value and tracker not in self.trackers:
                raise InputError(
                    f"tracking.{key}",
                    f"{tracker} is not one of tracking.trackers",
                    f"add {tracker} to tracking.trackers",
                )
