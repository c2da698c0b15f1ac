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


PART_ID = b"sentence_pipelines.part"
"""Key of what the footer of a part calls it: copies have it too, and no other content has."""
LEFT_OUT = b"sentence_pipelines.left_out"
"""Key of the rows that a part has not, of those that it was made of."""


@dataclass(frozen=True)
class PartFooter:
    """What the footer of a part of a table says.

    Attributes:
        rows: How many it has.
        texts: Of those, rows with a text; 0 where that was not asked.
        left_out: Rows of the input that it was made without; see
            :mod:`pipelines.embedding.deleted_rows`.
    """

    rows: int
    texts: int
    left_out: int

    def covers(self, rows: int) -> bool:
        """Whether it was made of so many rows."""
        return self.rows + self.left_out == rows


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
    name = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if name is not None:
        raise InputError(KEY, f"{file} has two columns `{name}`", "rename one of them")
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


def read_part_footer(file: Location, text_column: str | None = None) -> PartFooter:
    """The footer of a part.

    Args:
        file: The part.
        text_column: Whose nulls are counted, if any.

    Raises:
        pyarrow.ArrowInvalid: It has none.
    """
    footer = pq.read_metadata(arrow_source(file))
    left_out = int((footer.metadata or {}).get(LEFT_OUT, b"0"))
    if text_column is None:
        return PartFooter(footer.num_rows, 0, left_out)
    names = [footer.schema.column(number).path for number in range(footer.num_columns)]
    place = names.index(text_column)
    groups = (footer.row_group(number).column(place) for number in range(footer.num_row_groups))
    nulls = sum(int(group.statistics.null_count) for group in groups)
    return PartFooter(footer.num_rows, footer.num_rows - nulls, left_out)
