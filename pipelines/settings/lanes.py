"""The section `lanes` of the settings."""

from __future__ import annotations

from pydantic import Field

from pipelines.settings.base import Settings


class LaneSettings(Settings):
    """How examples are dealt into granules and lanes, whatever the number of workers."""

    count: int = Field(
        default=48, ge=1, description="Number of lanes; a small corpus gets a divisor of it."
    )
    granule: int = Field(default=64, ge=2, description="Examples in a granule.")
    bucket: int = Field(default=8, ge=1, description="Width of a length bucket, in tokens.")
    bucket_growth: float = Field(
        default=1.05,
        ge=1,
        le=2,
        description=(
            "From 512 tokens on, each bucket ends at so many times the length of the one before; "
            "1: all have one width."
        ),
    )
    seed: int = Field(
        default=17,
        ge=0,
        description="Seed of the order that decides which examples share a granule.",
    )
