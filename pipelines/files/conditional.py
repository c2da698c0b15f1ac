"""Conditional writes to object stores; pyarrow.fs has none.

They go through obstore, which sends ``If-None-Match`` and ``If-Match`` to S3, Google Cloud Storage
and Azure. All functions raise an OSError for an unreachable store.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines.files.locations import RemotePath
from pipelines.files.stores import Store, first_line

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# Answers of compatible servers without conditional writes.
_UNABLE = re.compile(r"ETag Header missing|NotImplemented|not implemented|\b501\b")


class NoConditionalWritesError(OSError):
    """The server has no conditional writes."""


@dataclass(frozen=True)
class Found:
    """A file as it was read; ``tag`` and ``version`` are the store's names of its content."""

    path: RemotePath
    content: bytes
    tag: str | None
    version: str | None


def can_condition(store: Store) -> str | None:
    """Return why a store has no conditional writes; None if it has them."""
    if not store.conditions:
        return f"{store.scheme} has no conditional writes"
    if importlib.util.find_spec("obstore") is None:
        return "the package obstore is not installed"
    return None


def create(path: RemotePath, content: bytes) -> bool:
    """Write a file unless it exists, and return whether this call did."""
    return _put(path, content, "create")


def replace(found: Found, content: bytes) -> bool:
    """Write a file unless it has changed since its read, and return whether this call did."""
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
    """Read a file; None if it is absent."""
    from obstore.exceptions import NotFoundError

    try:
        result = _asked(path, lambda store, key: store.get(key))
        content = bytes(result.bytes())
    except (NotFoundError, FileNotFoundError):
        return None
    return Found(path, content, result.meta["e_tag"], result.meta["version"])


def delete(path: RemotePath) -> None:
    """Delete a file, if it is there."""
    from obstore.exceptions import NotFoundError

    try:
        _asked(path, lambda store, key: store.delete(key))
    except (NotFoundError, FileNotFoundError):
        return


def _asked(path: RemotePath, request: Callable[[ObjectStore, str], Any]) -> Any:
    """Make a request by obstore; turn all errors but failed conditions into an OSError."""
    from obstore.exceptions import (
        AlreadyExistsError,
        BaseError,
        NotFoundError,
        NotSupportedError,
        PreconditionError,
    )

    try:
        # A client refuses credentials as soon as it is made.
        client = path.store.conditional()
        if client is None:
            raise NoConditionalWritesError(f"{path.store.scheme} has no conditional writes")
        return request(client, str(path.key))
    except (AlreadyExistsError, NotFoundError, PreconditionError):
        raise
    except BaseError as error:
        problem = f"{path}: {first_line(error)}"
        if isinstance(error, NotSupportedError) or _UNABLE.search(problem):
            raise NoConditionalWritesError(problem) from error
        raise OSError(problem) from error
