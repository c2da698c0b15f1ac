"""Formats, and the arguments of a reader of files of text.

Adding a format takes a file with a :class:`Format` and a line in :data:`pipelines.catalog.FORMATS`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pipelines.corpus.readers.rows import Found, Record, quarantined_record
from pipelines.corpus.readers.streams import Encoding, Item, Skipped, until
from pipelines.files.locations import Location
from pipelines.settings.spark import DEFAULT_STORES

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from pipelines.settings import CorpusSettings, StorageSettings

HEAD_BYTES = 64 << 10
"""Most bytes of a file in a :class:`Probe`."""


class NamesDialect(Protocol):
    """A section of the settings with the CSV dialect of its files."""

    @property
    def csv_separator(self) -> str | None:
        """The separator of fields."""

    @property
    def csv_escape(self) -> str | None:
        """The sign before a quote within quotes."""


@dataclass(frozen=True)
class Dialect:
    r"""The CSV dialect: the separator of fields, and the sign before a quote within quotes.

    Spark and MySQL write a quote within quotes as `\"`, and a backslash there as two. RFC 4180
    doubles the quote: `escape` is then None. Lines are rewritten before they are parsed, so there
    is one parser, and its verdict on broken quotes holds for every dialect.
    """

    separator: str = ","
    escape: str | None = None

    @classmethod
    def of(cls, settings: NamesDialect) -> Dialect:
        """Return the dialect of these settings."""
        return cls(settings.csv_separator or ",", settings.csv_escape)

    def reader(self, lines: Iterable[str], *, strict: bool) -> Any:
        """Return Python's reader over lines with their ends; the first begins a record.

        With `strict`, broken quotes are an error.
        """
        return csv.reader(self.rewritten(lines), delimiter=self.separator, strict=strict)

    def rewritten(self, lines: Iterable[str]) -> Iterable[str]:
        """Return the lines with doubled quotes within quotes, one for each."""
        return lines if self.escape is None else _rewritten(lines, self.separator, self.escape)


RFC_4180 = Dialect()


@cache
def _within_quotes(escape: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns of the inside of quotes, up to the closing quote, and of escapes."""
    sign = re.escape(escape)
    inside = re.compile(rf'(?:[^"{sign}]+|""|{sign}["{sign}]|{sign}(?!"))*')
    return inside, re.compile(rf'{sign}(["{sign}])')


def _rewritten(lines: Iterable[str], separator: str, escape: str) -> Iterator[str]:
    inside, escaped = _within_quotes(escape)
    is_open = False
    for line in lines:
        if '"' not in line and (not is_open or escape not in line):
            yield line
            continue
        parts: list[str] = []
        # Outside of quotes, each round begins at the beginning of a field.
        place = 0
        while place < len(line):
            if is_open or line[place] == '"':
                begin = place if is_open else place + 1
                found = inside.match(line, begin)
                assert found is not None, "it matches nothing at least"
                text = escaped.sub(lambda sign: sign[1].replace('"', '""'), found[0])
                parts.append(line[place:begin] + text)
                place = found.end()
                is_open = place == len(line)
                if is_open:
                    break
            stop = line.find(separator, place)
            stop = len(line) if stop < 0 else stop + 1
            parts.append(line[place:stop])
            place = stop
        yield "".join(parts)


@dataclass(frozen=True)
class Columns:
    """The names of the wanted columns.

    `texts` are one, two, or with hard negatives three and more; `scores` belong to the positive and
    the negatives. Rows are deleted by `key`.
    """

    texts: tuple[str, ...]
    title: str | None = None
    score: str | None = None
    group: str | None = None
    key: str | None = None
    scores: tuple[str, ...] = ()

    @property
    def single(self) -> dict[str, str]:
        """The columns with one value in a raw row, beside the texts, by the raw row's column."""
        names = ("title", "score", "group", "key")
        return {name: column for name in names if (column := getattr(self, name)) is not None}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every required column of a record."""
        return (*self.texts, *self.scores, *self.single.values())


@dataclass(frozen=True)
class Wanted:
    """The data to read of every file. It travels to the executors.

    Attributes:
        format: A name in :data:`pipelines.catalog.FORMATS`.
        columns: Of formats with columns.
        record: Bytes; readers skip longer lines and records.
        piece: Bytes of a piece of a document, about.
        document: Bytes; a longer file of plain text or Markdown is several documents: document n
            holds the lines that begin in its n-th range of so many bytes.
        as_rows: Whether to read rows of a table: by :attr:`Format.rows`, with all columns. The only
            text of a record is then a JSON object of its columns.
        multiline: Whether a quoted field of a CSV file may hold line ends.
    """

    format: str
    columns: Columns
    record: int = 16 << 20
    piece: int = 64 << 10
    document: int = 64 << 20
    as_rows: bool = False
    multiline: bool = True
    stores: StorageSettings = DEFAULT_STORES
    dialect: Dialect = RFC_4180


@dataclass(frozen=True)
class Probe:
    """The first bytes of a file, as streamed (`head`), and the properties that they show.

    `header` has the names of the columns, if a first record has them.
    """

    form: Form
    encoding: Encoding
    head: bytes
    header: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the first bytes are all."""
        return len(self.head) < HEAD_BYTES


@dataclass(frozen=True)
class Reading:
    """A range of a file, as a form reads it.

    `items` are the lines from its beginning on, even beyond its end. `stop` is the byte after the
    last of the range; None for the end of the file.
    """

    items: Iterator[Item]
    encoding: Encoding
    header: tuple[str, ...]
    wanted: Wanted
    start: int
    stop: int | None

    @property
    def items_in_range(self) -> Iterator[Item]:
        """The lines that begin in the range."""
        return until(self.items, self.stop)


Line = tuple[int, int, bytes]
"""The first byte of a line in the file, the byte after it, and the line with its end."""


def filled_lines(
    items: Iterable[Item], encoding: Encoding, blank: bytes = b" \t\r\n"
) -> Iterator[Line | Found]:
    """Yield the non-blank lines; of a skipped stretch, a record for the quarantine."""
    for item in items:
        if isinstance(item, Skipped):
            yield quarantined_record(item.offset, item.end, item.data, encoding.codec, item.reason)
            continue
        offset = item.offset
        for line in item.data.splitlines(keepends=True):
            end = offset + encoding.width(line)
            yield (offset, end, line) if line.strip(blank) else end
            offset = end


def text_lines(reading: Reading) -> Iterator[tuple[Line, str] | Found]:
    """Yield the non-blank lines of a range with their texts."""
    for line in filled_lines(reading.items_in_range, reading.encoding):
        if isinstance(line, tuple):
            text = decoded(line, reading.encoding)
            yield (line, text) if isinstance(text, str) else text
        else:
            yield line


def decoded(line: Line, encoding: Encoding) -> str | Record:
    """Return the text of a line, or a record for the quarantine."""
    offset, end, data = line
    try:
        return data.decode(encoding.codec)
    except UnicodeDecodeError as error:
        place = offset + encoding.width(data[: error.start])
        reason = f"not {encoding.label} at byte {place}"
        return quarantined_record(offset, end, data, encoding.codec, reason)


def record_of(offset: int, end: int, values: Mapping[str, str | None], columns: Columns) -> Record:
    """Return a record by the values of its columns."""
    return Record(
        offset,
        end,
        tuple(values[name] for name in columns.texts),
        values[columns.title] if columns.title else None,
        score=values[columns.score] if columns.score else None,
        group=values[columns.group] if columns.group else None,
        key=values[columns.key] if columns.key else None,
        scores=tuple(values[name] for name in columns.scores),
    )


@dataclass(frozen=True)
class Form:
    """How to find the records of a file of text. A format has one, or tells several apart.

    Attributes:
        records: The records that begin in a range. Runs on an executor; an unreadable place is a
            record for the quarantine (:func:`.rows.quarantined_record`), never an error.
        header: The names of the columns in the first bytes, by the dialect of CSV, if a first
            record has them.
        columns: The column names in the first bytes of a file, None if they show none; raises
            :class:`.streams.UnreadableError` if they should. None if records have no named columns.
        is_flat: Whether the file is cut into documents at fixed places (:attr:`Wanted.document`),
            so that ranges begin there too.
    """

    records: Callable[[Reading], Iterator[Found]]
    header: Callable[[str, Dialect], tuple[str, ...]] | None = None
    columns: Callable[[Probe], tuple[str, ...] | None] | None = None
    is_flat: bool = False


FormOf = Callable[[Location, bytes], Form]
"""The form of a file by its name and its first bytes."""


@dataclass(frozen=True)
class FileNames:
    """The names of a format's files: suffixes in lower case, without that of a compression.

    `stem` accepts names of the format without such a suffix; `may_be_packed` says whether
    compressed files belong to it too.
    """

    suffixes: tuple[str, ...]
    stem: Callable[[str], bool] | None = None
    may_be_packed: bool = True


Damaged = Mapping[Location, str]
"""Files found damaged while reading, and how."""
ReadFiles = Callable[
    ["SparkSession", "CorpusSettings", Sequence[Location], Sequence[Location], Damaged], "DataFrame"
]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A value of `corpus.format`.

    Attributes:
        files: Names of its files; None where inputs are no files.
        form: The form of its files, if our tasks read them; None if `read` does it all.
        rows: The form with a row of a table as a record, for `embed`; None if it has none, or if
            Spark reads them.
        splits: Whether several tasks may read an uncompressed file, by its name and by
            :attr:`Wanted.multiline`.
        read: The raw rows (:data:`.rows.ROW_DDL`) of the inputs, on the driver, with the settings
            of stores; None for files.
        read_files: The raw rows of files, on the driver, given all inputs, the wanted and the
            damaged ones; None for files read by their form.
        find_damaged: The files that Spark cannot read to their ends, by the wanted columns; None if
            our own readers say so of each row.
        load: A table by its input, for formats of tables.
        fingerprint: A value that changes with the inputs, itself None for an unknown version; None
            for the sizes and times of the files.
        pin: An input with its table's present version, as `load` takes it, so that a job reads one
            version from its beginning to its end; None if tables have none.
        folder: The folder of a table on a file system by its input, itself None for other tables;
            None if inputs show no folder.
        columns: Whether records have named columns.
        is_documents: Whether rows are pieces of documents, and counted by their bytes.
        pairs: The possible values of `corpus.pairs`; None for all.
        unit: The cut of single texts (:data:`pipelines.corpus.texts.UNITS`).
        large_units: Whether units held out as a whole (packages) are few and of very different
            sizes.
    """

    files: FileNames | None = None
    form: FormOf | None = None
    rows: FormOf | None = None
    splits: Callable[[Location, bool], bool] = lambda file, multiline: True
    read: Callable[[SparkSession, CorpusSettings, StorageSettings], DataFrame] | None = None
    read_files: ReadFiles | None = None
    find_damaged: Callable[[SparkSession, Sequence[Location], Sequence[str]], Damaged] | None = None
    load: Callable[[SparkSession, str, StorageSettings], DataFrame] | None = None
    fingerprint: Callable[[Sequence[str], StorageSettings], dict[str, Any] | None] | None = None
    pin: Callable[[SparkSession, str, StorageSettings], str] | None = None
    folder: Callable[[str], Path | None] | None = None
    columns: bool = False
    is_documents: bool = False
    pairs: tuple[str, ...] | None = None
    unit: Literal["rows", "lines", "paragraphs"] = "rows"
    large_units: bool = False

    def pinned(
        self, session: SparkSession, inputs: Sequence[str], stores: StorageSettings
    ) -> tuple[str, ...]:
        """Return inputs with the present versions of their tables; none if tables have none."""
        if self.pin is None:
            return ()
        return tuple(self.pin(session, given, stores) for given in inputs)
