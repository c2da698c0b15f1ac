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
    only_new: bool = Field(
        default=False,
        description=(
            "`train` and `embed` end with exit code 4, before they start Spark, if nothing is new: "
            "the model in service was trained in the same way on the same lanes; the table has "
            "been made of the same model and inputs."
        ),
    )
    keep: int = Field(
        default=5,
        ge=0,
        description=(
            "Other runs beside `run.folder` that `clean` keeps, the newest first; those of models "
            "that are kept in `promotion.target` stay as well."
        ),
    )
