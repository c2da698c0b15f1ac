"""Columns that a table has in the names of its folders, as in `lang=en/part-0.parquet`."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import takewhile
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import pyarrow as pa

from pipelines.corpus.readers.inputs import find_files, place_of
from pipelines.embedding.footers import InputFile
from pipelines.files.locations import Location, RemotePath
from pipelines.settings import StorageSettings
from pipelines.settings.spark import DEFAULT_STORES

KEY = "embedding.inputs"
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

_NAMED = re.compile(r"([^=]+)=(.*)")
_CONSTANT_TYPES = frozenset(
    ("string", "large_string", "binary", "bool", "float", "double", "date32[day]")
    + tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
    + ("timestamp[us]", "timestamp[ms]")
)

_INTEGER = re.compile(r"-?\d+")


@dataclass(frozen=True)
class Constant:
    """A column of one value.

    Attributes:
        name: Of the column.
        type: `int32`, `int64`, `date32` or `string`; of one without a value, any of Arrow's plain
            types.
        value: As text; None for null.
    """

    name: str
    type: str
    value: str | None

    def array(self, rows: int) -> pa.Array:
        """The column of so many rows."""
        value = pa.scalar(self.value, pa.string()).cast(pa.type_for_alias(self.type))
        return pa.repeat(value, rows)


Constants = tuple[Constant, ...]


def partition_columns(
    inputs: Sequence[str], stores: StorageSettings = DEFAULT_STORES, *, follow_links: bool = False
) -> dict[Location, Constants]:
    """The columns in the names of folders, for each Parquet file of the inputs.

    Folders count below the one that is named, or below the part of a glob that has no wildcard.
    A file that is in no such folder has nulls.

    Raises:
        InputError: An input is not there.
    """
    found: dict[Location, dict[str, str | None]] = {}
    for given in inputs:
        base = fixed_part(given, stores)
        for file in find_files([given], "parquet", KEY, stores, follow_links=follow_links):
            found.setdefault(file, _values(_way_down(file, base)[:-1]))
    names = dict.fromkeys(name for values in found.values() for name in values)
    types = {name: _type_of(values.get(name) for values in found.values()) for name in names}
    return {
        file: tuple(Constant(name, kind, values.get(name)) for name, kind in types.items())
        for file, values in found.items()
    }


def fixed_part(given: str, stores: StorageSettings = DEFAULT_STORES) -> Location:
    """The folder below which an input's files are, absolute; no link in it is followed."""
    path = place_of(given, stores, KEY)
    if path.exists():
        return path if path.is_dir() else path.parent
    if isinstance(path, RemotePath):
        return RemotePath(path.store, PurePosixPath(*_without_wildcard(path.key.parts)))
    return Path(*_without_wildcard(path.parts))


def _without_wildcard(parts: Sequence[str]) -> Iterable[str]:
    return takewhile(lambda part: not glob.has_magic(part), parts)


def _way_down(file: Location, folder: Location) -> tuple[str, ...]:
    """The parts of a file's path below a folder."""
    return file.parts[len(folder.parts) :]


def with_constants(batch: pa.RecordBatch, constants: Iterable[Constant]) -> pa.RecordBatch:
    """The rows with these columns behind the others.

    A column that is there already stays, but for one without a type, which gets this one.
    """
    columns, fields = [*batch.columns], [*batch.schema]
    for constant in constants:
        place = batch.schema.get_field_index(constant.name)
        if place >= 0 and not pa.types.is_null(fields[place].type):
            continue
        array = constant.array(batch.num_rows)
        field = pa.field(constant.name, array.type)
        if place >= 0:
            columns[place], fields[place] = array, field
        else:
            columns.append(array)
            fields.append(field)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, batch.schema.metadata))


def types_of_nulls(files: Iterable[InputFile], text: str) -> dict[Location, Constants]:
    """Types for columns that have none in a file, since they have no value there.

    Spark takes such a column for one of numbers, and would refuse to read it beside files in which
    it has values.

    Args:
        files: Of the input.
        text: Column of the texts, which are strings in any case.

    Returns:
        Constants without a value, of the type that another file has, by file; none where that type
        is one that cannot be a constant's.
    """
    known: dict[str, str] = {}
    for file in files:
        for name, kind in file.types.items():
            if str(kind) in _CONSTANT_TYPES:
                known.setdefault(name, str(kind))
    known.setdefault(text, "string")
    return {
        file.path: tuple(
            Constant(name, known[name], None)
            for name, kind in file.types.items()
            if pa.types.is_null(kind) and name in known
        )
        for file in files
    }


def constants_from(listed: Iterable[Mapping[str, str | None]]) -> Constants:
    """Constants as they stand in JSON."""
    return tuple(Constant(**one) for one in listed)  # type: ignore[arg-type]


def _values(folders: Sequence[str]) -> dict[str, str | None]:
    """Names and values, in which Spark writes special characters as URLs do."""
    named = (match for folder in folders if (match := _NAMED.fullmatch(folder)))
    values = {unquote(match[1]): unquote(match[2]) for match in named}
    return {name: None if value in ("", NO_VALUE) else value for name, value in values.items()}


def _type_of(values: Iterable[str | None]) -> str:
    """The type of a column, as Spark takes it to be; numbers that are not whole stay strings."""
    known = [value for value in values if value is not None]
    if known and all(_INTEGER.fullmatch(value) for value in known):
        widest = max(int(value) if int(value) >= 0 else -int(value) - 1 for value in known)
        if widest < 2**63:
            return "int32" if widest < 2**31 else "int64"
    return "date32" if known and all(_is_date(value) for value in known) else "string"


def _is_date(value: str) -> bool:
    try:
        return date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False
