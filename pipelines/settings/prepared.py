"""The section `prepared` of the settings."""

from __future__ import annotations

from pydantic import Field

from pipelines.settings.base import Settings
from pipelines.settings.paths import StoredPath


class PreparedSettings(Settings):
    """Where the prepared corpus lives."""

    folder: StoredPath = Field(
        default="prepared", description="Folder that the driver and every executor can reach."
    )
    reuse: bool = Field(
        default=True, description="Keep a stage whose inputs and settings have not changed."
    )
    cache_gigabytes: float = Field(
        default=20.0,
        ge=0,
        description="What a machine keeps on its disk of lanes in an object store, for all runs on "
        "it together, in units of 10^9 bytes; 0 fetches granules anew in each epoch. The folder is "
        "`storage.cache_folder`.",
    )
    keep_units: bool = Field(
        default=True,
        description=(
            "Keep the cleaned texts of each input file beside the corpus, so that the next "
            "preparation reads new and changed files alone; about as large as the corpus."
        ),
    )
