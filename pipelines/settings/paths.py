"""The types of all settings that name a file or a folder, so that all are checked alike."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, ValidationInfo
from pydantic_core import PydanticCustomError

NOT_LOCAL: Final = "not_local"
"""Type of the validation error of what is not a local path."""

_MOUNT = "mount it and give the path that the driver and every executor see"
# A single letter and a colon would be a drive, and a name without a slash may have a colon.
_ADDRESS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):/", re.IGNORECASE)
_FILE = re.compile(r"file:(?:(?!//[^/])|//localhost(?=/))/*(?=/)", re.IGNORECASE)
_BY_NAME = ("delta", "iceberg", "table")
"""Formats whose inputs Spark finds by itself: names, and addresses of Delta tables."""


class IsPath:
    """Marks the settings that name files and folders; see :data:`LocalPath`."""


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


def _checked(given: str) -> str:
    try:
        return local_path(given)
    except NotLocalError as error:
        told = {"problem": error.problem, "remedy": error.remedy}
        raise PydanticCustomError(NOT_LOCAL, "{problem}, {remedy}", told) from None


def _checked_input(given: str, info: ValidationInfo) -> str:
    return given if info.data.get("format") in _BY_NAME else _checked(given)


LocalPath = Annotated[str, AfterValidator(_checked), IsPath()]
"""A file or folder on a file system. Addresses of other kinds would make a folder of that name."""

InputPath = Annotated[str, AfterValidator(_checked_input), IsPath()]
"""The same of a section with a `format`, set before it, where inputs may be tables."""
