"""The section `storage` of the settings."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from pipelines.settings.base import Settings
from pipelines.settings.paths import LocalPath


def _checked_endpoint(given: str) -> str:
    if not given.startswith(("http://", "https://")):
        raise PydanticCustomError("endpoint", "it must begin with http:// or https://")
    return given.rstrip("/")


Endpoint = Annotated[str, AfterValidator(_checked_endpoint)]


class StorageSettings(Settings):
    """How object stores are reached. Credentials are no settings: each store's SDK finds them."""

    s3_endpoint: Endpoint | None = Field(
        default=None,
        description="Address of a server that speaks S3, such as `https://minio.example:9000`; "
        "`null` leaves it to AWS and `AWS_ENDPOINT_URL`.",
    )
    s3_region: str | None = Field(
        default=None, description="Region of the buckets; `null` has the AWS SDK find it."
    )
    gs_endpoint: Endpoint | None = Field(
        default=None, description="Address of a server that speaks the JSON API of Google's store."
    )
    azure_endpoint: Endpoint | None = Field(
        default=None,
        description="Address of a server that speaks Azure's Blob Storage, such as Azurite.",
    )
    anonymous: bool = Field(default=False, description="Read public buckets without credentials.")
    timeout_seconds: float = Field(
        default=60.0, gt=0, description="After which a request that gives nothing is made again."
    )
    retry_seconds: float = Field(
        default=300.0,
        ge=0,
        description="How long a store that is away, or asks for patience, is asked again.",
    )
    cache_folder: LocalPath | None = Field(
        default=None,
        description="Folder of each machine for copies of what lies in an object store; `null` is "
        "the folder for temporary files.",
    )


DEFAULT_STORES = StorageSettings()
"""Stores where each SDK expects them."""
