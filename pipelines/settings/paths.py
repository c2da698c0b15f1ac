"""The types of all settings that name a file or a folder, so that all are checked alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from pipelines.settings.base import refusal

_MOUNT = "mount it and give the path that the driver and every executor see"
# A single letter and a colon would be a drive, and a name without a slash may have a colon.
# `$1` and `a$` are names; `$HOME` and `${HOME}` are meant as what a shell makes of them.
_VARIABLE = re.compile(r"\$(\{|[A-Za-z_])")
_ADDRESS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):/", re.IGNORECASE)
_FILE = re.compile(r"file:(?:(?!//[^/])|//localhost(?=/))/*(?=/)", re.IGNORECASE)
_IN_STORE = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]+)://(?P<authority>[^/]*)(?P<path>.*)", re.IGNORECASE | re.DOTALL
)
STORES = ("s3", "s3a", "s3n", "gs", "gcs", "abfss", "abfs", "hdfs", "viewfs")
"""Schemes of the addresses of stores; fsspec may know others."""
_WITH_BUCKET = STORES[:-2]
_WITH_ACCOUNT = ("abfss", "abfs", "hdfs", "viewfs")
# Databricks shows them as folders, and Spark's way to write them is no address of a store.
_MOUNTED = ("file", "local", "dbfs")
_BY_NAME = ("delta", "iceberg", "table")
"""Formats whose inputs Spark finds by itself: names, and addresses of Delta tables."""


class IsPath:
    """Marks the settings that name files and folders; see :data:`StoredPath`."""


class NotLocalError(ValueError):
    """What was given is not a local path.

    Args:
        problem: What is wrong with it.
        remedy: What would be right.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}, {remedy}")
        self.problem = problem
        self.remedy = remedy


def local_path(given: str) -> str:
    """A path on a file system, from one, from `~/...` or from a `file:` address.

    Raises:
        NotLocalError: It is an address of another kind or another host, or names nothing.
    """
    if not given or "\0" in given:
        raise NotLocalError(f"{given!r} names no file or folder", "give a path")
    _check_variables(given)
    plain = _FILE.sub("", given, count=1)
    address = _ADDRESS.match(plain)
    if address is not None:
        where = "another host" if address["scheme"].lower() == "file" else address["scheme"]
        raise NotLocalError(f"`{given}` is on {where}, not on a file system", _MOUNT)
    try:
        return str(Path(plain).expanduser()) if plain.startswith("~") else plain
    except RuntimeError:
        raise NotLocalError(
            f"`{given}` is the home of a user who is not here", "put ./ before it if it is a name"
        ) from None


def stored_path(given: str) -> str:
    """An address in an object store as it is, or a path on a file system; see :func:`local_path`.

    Raises:
        NotLocalError: It is neither.
    """
    _check_variables(given)
    address = _IN_STORE.fullmatch(given)
    if address is None or address["scheme"].lower() in _MOUNTED:
        return local_path(given)
    scheme = address["scheme"].lower()
    if scheme not in STORES and not _is_known_to_fsspec(scheme):
        raise NotLocalError(
            f"`{given}` is in no kind of store that is known", f"one of {', '.join(STORES)}"
        )
    if not address["authority"] and scheme in _WITH_BUCKET:
        raise NotLocalError(f"`{given}` names no bucket", f"write {scheme}://BUCKET/FOLDER")
    if "@" in address["authority"] and scheme not in _WITH_ACCOUNT:
        raise NotLocalError(
            f"`{given}` holds credentials",
            "leave them to the environment; see docs/storage.md",
        )
    if ".." in address["path"].split("/"):
        raise NotLocalError(f"`{given}` goes up", "write the address without `..`")
    return given


def _check_variables(given: str) -> None:
    """Refuses a variable of the environment, whose value the path would not get.

    Raises:
        NotLocalError: There is one.
    """
    if _VARIABLE.search(given):
        raise NotLocalError(
            f"`{given}` names a variable, and a setting takes none", "write its value"
        )


def _is_known_to_fsspec(scheme: str) -> bool:
    try:
        from fsspec.registry import known_implementations, registry
    except ImportError:
        return False
    return scheme in known_implementations or scheme in registry


def _checked_local(given: str) -> str:
    return _told(local_path, given)


def _checked(given: str) -> str:
    return _told(stored_path, given)


def _told(check: Callable[[str], str], given: str) -> str:
    try:
        return check(given)
    except NotLocalError as error:
        raise refusal(error.problem, error.remedy) from None


def _checked_input(given: str, info: ValidationInfo) -> str:
    # A path of a Delta table; names and addresses are left to Spark.
    return _checked_if_path(given) if info.data.get("format") in _BY_NAME else _checked(given)


def _checked_if_path(given: str) -> str:
    is_path = given.startswith(("~", "$", "/", ".")) and "://" not in given
    if is_path or "${" in given:
        return _checked_local(given)
    return given


LocalPath = Annotated[str, AfterValidator(_checked_local), IsPath()]
"""A file or folder on a file system. Addresses of other kinds would make a folder of that name."""

StoredPath = Annotated[str, AfterValidator(_checked), IsPath()]
"""A file or folder on a file system or in an object store."""


NameOrPath = Annotated[str, AfterValidator(_checked_if_path)]
"""A name or address for a library to look up, or a path on a file system."""

InputPath = Annotated[str, AfterValidator(_checked_input), IsPath()]
"""The same of a section with a `format`, set before it, where inputs may be tables."""
