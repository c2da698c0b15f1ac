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
    """Deadline for the cluster to give a training its executors, which it may have to start; the
    other deadlines of a training count from when they are there. Outside of training, the longest
    that all executors may be gone once there were some."""

    stall_seconds: int = Field(default=3600, ge=30)
    """Deadline for Spark to make any progress outside of training: to begin or end a task, to read,
    write or shuffle a row. It passes where an executor hangs at a mount that does not answer."""

    def check(self) -> None:
        """Refuse `~`, which Spark would take for a folder of that name."""
        for key, value in self.conf.items():
            if value.startswith("~/"):
                raise InputError(
                    f"spark.{key}", f"`{value}`: Spark does not replace `~`", "write the whole path"
                )

    @property
    def conf(self) -> Mapping[str, str]:
        """Return the Spark conf, by keys without the prefix `spark.`."""
        return self.__pydantic_extra__ or {}

    def with_conf(self, conf: Mapping[str, str]) -> SparkSettings:
        """Return a copy with another Spark conf, by keys without the prefix `spark.`."""
        own = {name: getattr(self, name) for name in type(self).model_fields}
        return SparkSettings.model_validate({**own, **conf})


StageName = Literal["prepare", "train", "evaluate", "embed", "mine"]
PREFIX = "spark."


def conf_text(value: Any) -> Any:
    """Return a value as text of the Spark conf; null, lists and mappings stay as they are."""
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

    prepare: _Conf = Field(default_factory=dict)
    """Spark conf of `prepare`: `stages.prepare.spark.*`."""
    train: _Conf = Field(default_factory=dict)
    """Of `train`, for example `stages.train.spark.task.cpus`; within a session that other stages
    use too, see [per-stage resources](../concepts/spark.md#resources-of-a-stage)."""
    evaluate: _Conf = Field(default_factory=dict)
    """Of `evaluate`."""
    embed: _Conf = Field(default_factory=dict)
    """Of `embed`."""
    mine: _Conf = Field(default_factory=dict)
    """Of `mine`."""

    def check(self) -> None:
        """Refuse keys that are not Spark's."""
        for stage, conf in self:
            for key in conf:
                if not key.startswith(PREFIX):
                    raise InputError(
                        f"stages.{stage}.{key}",
                        "it is no key of the Spark conf",
                        f"write stages.{stage}.spark.{key}",
                    )


def _checked_endpoint(given: str) -> str:
    if not given.startswith(("http://", "https://")):
        raise PydanticCustomError("endpoint", "it must begin with http:// or https://")
    return given.rstrip("/")


Endpoint = Annotated[str, AfterValidator(_checked_endpoint)]


class StorageSettings(Settings):
    """How object stores are reached. Credentials are no settings: each store's SDK finds them."""

    s3_endpoint: Endpoint | None = None
    """Address of a server that speaks S3, such as `https://minio.example:9000`; `null` leaves it to
    AWS and `AWS_ENDPOINT_URL`."""
    s3_region: str | None = None
    """Region of the buckets; `null` has the AWS SDK find it."""
    gs_endpoint: Endpoint | None = None
    """Address of a server that speaks the JSON API of Google's store."""
    azure_endpoint: Endpoint | None = None
    """Address of a server that speaks Azure's Blob Storage, such as Azurite."""
    anonymous: bool = False
    """Read public buckets without credentials."""
    timeout_seconds: float = Field(default=60.0, gt=0)
    """After which a request that gives nothing is made again."""
    retry_seconds: float = Field(default=300.0, ge=0)
    """How long a store that is away, or asks for patience, is asked again."""
    cache_folder: LocalPath | None = None
    """Folder of each machine for copies of what lies in an object store; `null` is the folder for
    temporary files."""


DEFAULT_STORES = StorageSettings()
"""Stores where each SDK expects them."""
