"""The section `stages` of the settings: what a stage has of the Spark conf that others have not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from pipelines.errors import InputError
from pipelines.settings.base import Settings

if TYPE_CHECKING:
    from pipelines.settings import Config

StageName = Literal["prepare", "train", "evaluate", "embed", "mine"]
_PREFIX = "spark."


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

    def check_with(self, config: Config) -> None:
        """Refuses keys that are none of Spark's."""
        for stage, conf in self:
            for key in conf:
                if not key.startswith(_PREFIX):
                    raise InputError(
                        f"stages.{stage}.{key}",
                        "it is no key of the Spark conf",
                        f"write stages.{stage}.spark.{key}",
                    )


def stage_conf(config: Config, stage: StageName) -> dict[str, str]:
    """The Spark conf that one stage is to have, by whole keys: what is to be submitted with it.

    That is what the settings say: what an engine asks for besides is in
    :func:`pipelines.engines.submission.submit_conf`.
    """
    shared = {f"{_PREFIX}{key}": value for key, value in config.spark.conf.items()}
    return shared | dict(getattr(config.stages, stage))


def for_stage(config: Config, stage: StageName) -> Config:
    """The settings of an application that runs one stage alone: its Spark conf is the stage's."""
    conf = {key.removeprefix(_PREFIX): text for key, text in stage_conf(config, stage).items()}
    return config.model_copy(update={"spark": config.spark.with_conf(conf)})
