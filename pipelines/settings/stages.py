"""The section `stages` of the settings: what a stage has of the Spark conf that others have not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from pipelines.errors import InputError
from pipelines.settings.base import Settings

StageName = Literal["prepare", "train", "evaluate", "embed", "mine"]
PREFIX = "spark."


def conf_text(value: Any) -> Any:
    """A value of the Spark conf, as Spark reads it; one that is none is left as it is."""
    if value is None or isinstance(value, (list, tuple, Mapping)):
        return value
    # What a file has for a truth value in another spelling; see `yaml_file`.
    value = getattr(value, "truth", value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _texts(conf: Any) -> Any:
    if not isinstance(conf, Mapping):
        return conf
    return {key: conf_text(value) for key, value in conf.items()}


_Conf = Annotated[Mapping[str, str], BeforeValidator(_texts)]


class StageSettings(Settings):
    """Spark conf of one stage, on top of the section `spark`."""

    prepare: _Conf = Field(
        default_factory=dict, description="Spark conf of `prepare`: `stages.prepare.spark.*`."
    )
    train: _Conf = Field(
        default_factory=dict,
        description=(
            "Of `train`, for example `stages.train.spark.task.cpus`; within a session that other "
            "stages use too, see [per-stage resources](clusters.md#resources-of-a-stage)."
        ),
    )
    evaluate: _Conf = Field(default_factory=dict, description="Of `evaluate`.")
    embed: _Conf = Field(default_factory=dict, description="Of `embed`.")
    mine: _Conf = Field(default_factory=dict, description="Of `mine`.")

    def check(self) -> None:
        """Refuses keys that are none of Spark's."""
        for stage, conf in self:
            for key in conf:
                if not key.startswith(PREFIX):
                    raise InputError(
                        f"stages.{stage}.{key}",
                        "it is no key of the Spark conf",
                        f"write stages.{stage}.spark.{key}",
                    )
