"""Records: the JSON files of this package, read back.

A value has the expected form, or an error names the file: a full disk, a mount's lost write or a
person may have changed it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeVar, overload

from pydantic import TypeAdapter, ValidationError

from pipelines.errors import DamagedFileError
from pipelines.files.locations import Location

T = TypeVar("T")

DAMAGED = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""Errors that values of unexpected types cause."""


def to_text(value: Any) -> str:
    """Return a value as indented JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        # JSON escapes can bring half of a surrogate pair into a text, which UTF-8 cannot encode.
        text = json.dumps(value, indent=2)
    return f"{text}\n"


@overload
def read(path: Location, kind: type[T]) -> T: ...
@overload
def read(path: Location, kind: Any = Any) -> Any: ...
def read(path: Location, kind: Any = Any) -> Any:
    """Read the value in a JSON file, checked and built as ``kind``: dataclasses, lists, dicts.

    Raises:
        DamagedFileError: It is no JSON, or of another type.
        OSError: It cannot be read.
    """
    return _checked(path, _parsed(path, path.read_bytes()), kind)


def read_if_there(path: Location, kind: type[T]) -> T | None:
    """Read a JSON file as :func:`read`; None if it is absent."""
    return read(path, kind) if path.is_file() else None


def read_object(path: Location) -> dict[str, Any]:
    """Read the object in a JSON file; raises as :func:`read`."""
    return read(path, dict[str, Any])


def built(path: Location, build: Callable[[Any], T]) -> T:
    """Build a value without a plain type from a JSON file, by a function.

    Raises:
        DamagedFileError: It is no JSON, or the function cannot use it.
        OSError: It cannot be read.
    """
    value = read(path)
    try:
        return build(value)
    except DamagedFileError:
        raise
    except DAMAGED as error:
        raise DamagedFileError(str(path), f"{type(error).__name__}: {error}") from error


def read_lines(path: Location, kind: Any, *, torn: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file with one in each line; none if it is absent.

    Args:
        kind: The mapping type of each; further keys are given too.
        torn: Whether to skip lines that are no JSON: a killed writer leaves half a line.

    Raises:
        DamagedFileError: A line is no such object.
        OSError: It cannot be read.
    """
    for line in path.read_bytes().splitlines() if path.exists() else ():
        value = read_line(path, line, kind, torn=torn)
        if value is not None:
            yield value


def read_line(
    path: Location, line: bytes, kind: Any, *, torn: bool = False
) -> dict[str, Any] | None:
    """Return the object in a line of a file; None if it is torn. See :func:`read_lines`."""
    try:
        value: dict[str, Any] = _parsed(path, line)
    except DamagedFileError:
        if torn:
            return None
        raise
    _checked(path, value, kind)
    return value


def _parsed(path: Location, content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(str(path), str(error)) from error


def _checked(path: Location, value: Any, kind: Any) -> Any:
    if kind is Any:
        return value
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise DamagedFileError(str(path), f"{place}: {first['msg']}") from None


# Pydantic builds a validator for each adapter; a run reads records of few types many times.
@cache
def _adapter(kind: Any) -> TypeAdapter:
    return TypeAdapter(kind)
