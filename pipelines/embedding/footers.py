"""Footers of many Parquet files, read at once: on a mount each one is a wait, not work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.embedding.schemas import check_timestamps
from pipelines.errors import InputError
from pipelines.files.locations import Location, arrow_source

KEY = "embedding.inputs"
THREADS = 32
"""Files that are opened at a time."""

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True)
class InputFile:
    """What the footer of an input says.

    Attributes:
        path: Of the file.
        rows: How many it has.
        size: Bytes of its columns as they are stored.
        types: Of its columns, by name.
    """

    path: Location
    rows: int
    size: int
    types: dict[str, pa.DataType]


def in_threads(function: Callable[[Item], Value], items: Iterable[Item]) -> list[Value]:
    """Calls a function that waits for files on each item; results and errors in their order."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="footers") as pool:
        return list(pool.map(function, items))


def read_inputs(files: Iterable[Location]) -> list[InputFile]:
    """The footers of inputs.

    Raises:
        InputError: A file is no Parquet file, or holds timestamps that microseconds cannot.
    """
    return in_threads(read_input, files)


def read_input(file: Location) -> InputFile:
    """The footer of an input; see :func:`read_inputs`."""
    try:
        with pq.ParquetFile(arrow_source(file)) as opened:
            footer, schema = opened.metadata, opened.schema_arrow
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            KEY, f"{file} cannot be read ({reason})", "mend it, or name others"
        ) from None
    check_timestamps(footer, file)
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    size = sum(
        group.column(place).total_compressed_size
        for group in groups
        for place in range(group.num_columns)
    )
    return InputFile(
        file, footer.num_rows, size, dict(zip(schema.names, schema.types, strict=True))
    )
