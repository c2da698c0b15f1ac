"""The sections `spark`, `stages` and `storage`: the Spark conf, and object stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from pipelines.errors import InputError
from pipelines.settings.base import LocalPath, Settings


class SparkSettings(Settings):
    """Spark conf: `spark.master`, `spark.executor.memory`, any other `spark.*` key."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, str] = Field(init=False)

    wait_seconds: int = Field(default=600, ge=0)
    """Deadline for the executors of a training; its other deadlines begin afterwards. Outside
    training: longest time without executors, after the first."""

    stall_seconds: int = Field(default=3600, ge=30)
    """Deadline for progress of Spark (tasks, rows) outside training. It ends jobs on hanging
    mounts."""

    def check(self) -> None:
        """Refuse `~`: to Spark it is a folder of that name."""
        for key, value in self.conf.items():
            if value.startswith("~/"):
                raise InputError(
                    f"spark.{key}",
                    f"Spark does not replace `~` in `{value}`",
                    "Write the whole path",
                )

    @property
    def conf(self) -> Mapping[str, str]:
        """Return the Spark conf, by keys without the prefix `spark.`."""
        return self.__pydantic_extra__ or {}

    def with_conf(self, conf: Mapping[str, str]) -> SparkSettings:
        """Return a copy with another Spark conf, by keys without the prefix `spark.`."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return SparkSettings.model_validate({**fields, **conf})


StageName = Literal["prepare", "train", "evaluate", "embed", "ask", "mine", "score"]
PREFIX = "spark."


def conf_text(value: Any) -> Any:
    """Return a value as text of the Spark conf; null, lists and mappings stay as they are."""
    if value is None or isinstance(value, (list, tuple, Mapping)):
        return value
    # `yes` and `Off` of a file are truth values to Spark; see `yaml_file`.
    value = getattr(value, "truth", value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _texts(conf: Any) -> Any:
    if not isinstance(conf, Mapping):
        return conf
    return {key: conf_text(value) for key, value in conf.items()}


_Conf = Annotated[Mapping[str, str], BeforeValidator(_texts)]


class StageSettings(Settings):
    """Spark conf of one stage, on top of the section `spark`."""

    prepare: _Conf = Field(default_factory=dict)
    """Spark conf of `prepare`: `stages.prepare.spark.*`."""
    train: _Conf = Field(default_factory=dict)
    """Spark conf of `train`, such as `stages.train.spark.task.cpus`. In a shared session, see
    [per-stage resources](../concepts/spark.md#resources-of-a-stage)."""
    evaluate: _Conf = Field(default_factory=dict)
    """Spark conf of `evaluate`."""
    embed: _Conf = Field(default_factory=dict)
    """Spark conf of `embed`."""
    ask: _Conf = Field(default_factory=dict)
    """Spark conf of `ask`."""
    mine: _Conf = Field(default_factory=dict)
    """Spark conf of `mine`."""
    score: _Conf = Field(default_factory=dict)
    """Spark conf of `score`."""

    def check(self) -> None:
        """Refuse keys that are not Spark's."""
        for stage, conf in self:
            for key in conf:
                if not key.startswith(PREFIX):
                    raise InputError(
                        f"stages.{stage}.{key}",
                        "it is no key of the Spark conf",
                        f"Write stages.{stage}.spark.{key}",
                    )


def _checked_endpoint(given: str) -> str:
    if not given.startswith(("http://", "https://")):
        raise PydanticCustomError("endpoint", "Begin it with http:// or https://")
    return given.rstrip("/")


Endpoint = Annotated[str, AfterValidator(_checked_endpoint)]


class StorageSettings(Settings):
    """How object stores are reached. Credentials are no settings: each store's SDK finds them."""

    s3_endpoint: Endpoint | None = None
    """Address of an S3 server, such as `https://minio.example:9000`. Null: AWS, or
    `AWS_ENDPOINT_URL`."""
    s3_region: str | None = None
    """Region of the buckets. Null: the AWS SDK finds it."""
    gs_endpoint: Endpoint | None = None
    """Address of a server with Google's JSON API."""
    azure_endpoint: Endpoint | None = None
    """Address of a server with Azure's Blob API, such as Azurite."""
    anonymous: bool = False
    """Read public buckets without credentials."""
    timeout_seconds: float = Field(default=60.0, gt=0)
    """Repeat a request after this time without data."""
    retry_seconds: float = Field(default=300.0, ge=0)
    """Longest retry of an unavailable or throttling store."""
    cache_folder: LocalPath | None = None
    """Folder of each machine for copies from object stores. Null: the folder for temporary
    files."""


DEFAULT_STORES = StorageSettings()
"""Stores where each SDK expects them."""
