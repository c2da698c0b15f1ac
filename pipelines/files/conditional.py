"""Writes to object stores that depend on what is there: the part that pyarrow.fs lacks.

By obstore, which has conditional puts (``If-None-Match``, ``If-Match``) for S3, Google Cloud
Storage and Azure. It takes credentials from the environment, and from the machine's role; those of
profiles of the AWS SDK it is given by boto3, where that is installed.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from pipelines.files.locations import RemotePath
from pipelines.files.stores import Store, first_line, s3_endpoint

if TYPE_CHECKING:
    from obstore.store import ObjectStore

logger = logging.getLogger(__name__)


# What servers say that speak a store's language, but for this.
_UNABLE = re.compile(r"ETag Header missing|NotImplemented|not implemented|\b501\b")


class NoConditionalWritesError(OSError):
    """The server cannot make a write depend on what is there."""


@dataclass(frozen=True)
class Found:
    """A file as it was read.

    Attributes:
        path: Its place.
        content: All of it.
        tag: What the store calls this content, for conditions.
        version: Its version, in stores that count them.
    """

    path: RemotePath
    content: bytes
    tag: str | None
    version: str | None


def can_condition(store: Store) -> str | None:
    """Why a store's writes cannot depend on what is there; None where they can."""
    if store.scheme not in _OPENERS:
        return f"{store.scheme} has no conditional writes"
    if importlib.util.find_spec("obstore") is None:
        return "the package obstore is not installed"
    return None


def create(path: RemotePath, content: bytes) -> bool:
    """Writes a file if there is none; whether it did.

    Raises:
        OSError: The store cannot be asked.
    """
    return _put(path, content, "create")


def replace(found: Found, content: bytes) -> bool:
    """Writes a file if it is what was found; whether it did.

    Raises:
        OSError: The store cannot be asked.
    """
    tags = {"e_tag": found.tag, "version": found.version}
    return _put(found.path, content, {name: tag for name, tag in tags.items() if tag is not None})


def _put(path: RemotePath, content: bytes, mode: Any) -> bool:
    from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError

    try:
        _asked(path, lambda store, key: store.put(key, content, mode=mode))
    except (AlreadyExistsError, PreconditionError, NotFoundError):
        return False
    return True


def read(path: RemotePath) -> Found | None:
    """Reads a file; None where there is none.

    Raises:
        OSError: The store cannot be asked.
    """
    from obstore.exceptions import NotFoundError

    try:
        result = _asked(path, lambda store, key: store.get(key))
        content = bytes(result.bytes())
    except (NotFoundError, FileNotFoundError):
        return None
    return Found(path, content, result.meta["e_tag"], result.meta["version"])


def delete(path: RemotePath) -> None:
    """Deletes a file, if it is there.

    Raises:
        OSError: The store cannot be asked.
    """
    from obstore.exceptions import NotFoundError

    try:
        _asked(path, lambda store, key: store.delete(key))
    except (NotFoundError, FileNotFoundError):
        return


def _asked(path: RemotePath, request: Callable[[ObjectStore, str], Any]) -> Any:
    """Makes a request, in the terms of obstore.

    Raises:
        NoConditionalWritesError: The server has none.
        OSError: It failed for a reason that is none of a condition's.
    """
    from obstore.exceptions import (
        AlreadyExistsError,
        BaseError,
        NotFoundError,
        NotSupportedError,
        PreconditionError,
    )

    try:
        return request(_opened(path.store, os.getpid()), str(path.key))
    except (AlreadyExistsError, NotFoundError, PreconditionError):
        raise
    except BaseError as error:
        problem = f"{path}: {first_line(error)}"
        if isinstance(error, NotSupportedError) or _UNABLE.search(problem):
            raise NoConditionalWritesError(problem) from error
        raise OSError(problem) from error


@lru_cache(maxsize=64)
def _opened(store: Store, _process: int) -> ObjectStore:
    return _OPENERS[store.scheme](store)


def _common(store: Store, endpoint: str | None) -> dict[str, Any]:
    return {
        "client_options": {
            "allow_http": bool(endpoint and endpoint.startswith("http://")),
            "timeout": timedelta(seconds=store.options.timeout_seconds),
        },
        "retry_config": {
            "retry_timeout": timedelta(seconds=store.options.timeout_seconds),
            # The time is the bound: the library's ten, whose pauses are drawn, may take a second.
            "max_retries": 1000,
        },
    }


def _s3(store: Store) -> ObjectStore:
    from obstore.store import S3Store

    endpoint = s3_endpoint(store.options)
    regions = (store.options.s3_region, *map(os.environ.get, ("AWS_REGION", "AWS_DEFAULT_REGION")))
    given: dict[str, Any] = {"skip_signature": True} if store.options.anonymous else {}
    if endpoint:
        given["endpoint"] = endpoint
    region = next((region for region in regions if region), None)
    given["region"] = region or ("us-east-1" if endpoint else _region_of(store))
    return S3Store(
        store.authority,
        config=cast(Any, given),
        credential_provider=_aws_profile(store),
        **_common(store, endpoint),
    )


def _region_of(store: Store) -> str:
    from pyarrow.fs import resolve_s3_region

    return str(resolve_s3_region(store.authority))


def _aws_profile(store: Store) -> Any:
    """The credentials of a profile, by boto3, where the environment holds none."""
    if store.options.anonymous or os.environ.get("AWS_ACCESS_KEY_ID"):
        return None
    if importlib.util.find_spec("boto3") is None:
        return None
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = boto3.Session()
    return None if session.get_credentials() is None else Boto3CredentialProvider(session)


def _google(store: Store) -> ObjectStore:
    from obstore.store import GCSStore

    endpoint = store.options.gs_endpoint
    given: dict[str, Any] = {"base_url": endpoint} if endpoint else {}
    if store.options.anonymous:
        # `skip_signature` alone asks for a token all the same.
        account = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        given["service_account_key"] = json.dumps({**account, "disable_oauth": True})
    return GCSStore(store.authority, config=cast(Any, given), **_common(store, endpoint))


def _azure(store: Store) -> ObjectStore:
    from obstore.store import AzureStore

    container, _, host = store.authority.partition("@")
    account = host.split(".")[0] or os.environ.get("AZURE_STORAGE_ACCOUNT", "")
    endpoint = store.options.azure_endpoint
    secrets = {
        "account_key": os.environ.get("AZURE_STORAGE_KEY"),
        "sas_key": os.environ.get("AZURE_STORAGE_SAS_TOKEN"),
    }
    given: dict[str, Any] = {name: value for name, value in secrets.items() if value}
    if endpoint:
        given["endpoint"] = f"{endpoint}/{account}"
    if store.options.anonymous:
        given["skip_signature"] = True
    return AzureStore(
        container, account_name=account, config=cast(Any, given), **_common(store, endpoint)
    )


_OPENERS: Mapping[str, Callable[[Store], ObjectStore]] = {
    **dict.fromkeys(("s3", "s3a", "s3n"), _s3),
    **dict.fromkeys(("gs", "gcs"), _google),
    **dict.fromkeys(("abfs", "abfss"), _azure),
}
"""By the scheme of an address."""
