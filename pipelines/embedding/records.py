"""Files of text as rows of a table, by the readers of the corpus. Runs on executors.

So a table has the encodings, compressions and quoting that a corpus has. But a row that cannot be
read ends the job: a table has all rows of its input, in its order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from pipelines.corpus.readers.formats import Wanted
from pipelines.corpus.readers.ranges import FileRange, records_of
from pipelines.corpus.readers.rows import Record
from pipelines.corpus.readers.streams import UnreadableError
from pipelines.files.locations import location


def tasks_as_json(tasks: Iterable[Iterable[FileRange]], *, wanted: Wanted) -> Iterator[str]:
    """The rows of the splits of tasks. Runs on an executor; see :func:`rows_as_json`."""
    return rows_as_json(chain.from_iterable(tasks), wanted=wanted)


def rows_as_json(splits: Iterable[FileRange], *, wanted: Wanted) -> Iterator[str]:
    """The rows of splits in their order, each as a JSON object. Runs on an executor.

    Raises:
        UnreadableError: A file or a row cannot be read.
    """
    for file, start, stop in splits:
        for found in records_of(location(file, wanted.stores), start, stop, wanted):
            if not isinstance(found, Record):
                continue
            if found.quarantined is not None:
                place = f" at byte {found.offset}" if found.offset else ""
                raise UnreadableError(f"{file}{place}: {found.quarantined}")
            (row,) = found.texts
            assert row is not None, "a row of a table is an object"
            yield row
