"""The section `run` of the settings."""

from __future__ import annotations

from pydantic import Field

from pipelines.settings.base import Settings
from pipelines.settings.paths import StoredPath


class RunSettings(Settings):
    """Where the results of a run go."""

    folder: StoredPath = Field(
        default="runs/default", description="Folder that the driver and every executor can reach."
    )
    overwrite: bool = Field(
        default=False, description="Delete a run that the folder holds, and start over."
    )
