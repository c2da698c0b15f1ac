"""The section `spark` of the settings: the Spark conf, and what is a setting of ours beside it."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ConfigDict, Field

from pipelines.errors import InputError
from pipelines.settings.base import Settings


class SparkSettings(Settings):
    """Spark conf: `spark.master`, `spark.executor.memory`, any other `spark.*` key."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, str] = Field(init=False)

    wait_seconds: int = Field(
        default=600,
        ge=0,
        description=(
            "Deadline for the cluster to give a training its executors, which it may have to "
            "start; the other deadlines of a training count from when they are there. Outside of "
            "training, the longest that all executors may be gone once there were some."
        ),
    )

    stall_seconds: int = Field(
        default=3600,
        ge=30,
        description=(
            "Deadline for Spark to make any progress outside of training: to begin or end a task, "
            "to read, write or shuffle a row. It passes where an executor hangs at a mount that "
            "does not answer."
        ),
    )

    def check(self) -> None:
        """Refuses a home, which Spark would take for a folder named `~`."""
        for key, value in self.conf.items():
            if value.startswith("~/"):
                raise InputError(
                    f"spark.{key}", f"`{value}`: Spark does not replace `~`", "write the whole path"
                )

    @property
    def conf(self) -> Mapping[str, str]:
        """The Spark conf, by keys without `spark.` before them."""
        return self.__pydantic_extra__ or {}

    def with_conf(self, conf: Mapping[str, str]) -> SparkSettings:
        """The same with another Spark conf, by keys without `spark.` before them."""
        own = {name: getattr(self, name) for name in type(self).model_fields}
        return SparkSettings.model_validate({**own, **conf})
