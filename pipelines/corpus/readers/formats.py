"""What a format is, and what a reader of files of text is given.

Adding a format takes a file with a :class:`Format` and a line in
:data:`pipelines.catalog.FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from pipelines.corpus.readers.csv_parser import RFC_4180, Dialect
from pipelines.corpus.readers.rows import Found
from pipelines.corpus.readers.streams import Encoding, Item, until
from pipelines.files.locations import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipelines.settings import CorpusSettings, StorageSettings
from pipelines.settings.spark import DEFAULT_STORES

HEAD_BYTES = 64 << 10
"""Of a file, that a :class:`Probe` has at most."""


@dataclass(frozen=True)
class Limits:
    """Sizes in bytes.

    Attributes:
        record: Longer lines and records are passed over.
        piece: Of a document, about.
        document: A file of plain text or Markdown that is longer is several documents: document
            n holds the lines that begin in the n-th so many bytes.
    """

    record: int = 16 << 20
    piece: int = 64 << 10
    document: int = 64 << 20


@dataclass(frozen=True)
class Columns:
    """The names of the columns that are wanted.

    Attributes:
        texts: One, two, or three and more where there are hard negatives.
        title: Of the title, if there is one.
        score: Of the score, if there is one.
        group: Of the group, if there is one.
        key: Of the key that rows are deleted by, if there is one.
        scores: Of the scores of positive and negatives, if there are some.
    """

    texts: tuple[str, ...]
    title: str | None = None
    score: str | None = None
    group: str | None = None
    key: str | None = None
    scores: tuple[str, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every column that a record must have."""
        others = (self.title, self.score, self.group, self.key)
        return self.texts + self.scores + tuple(name for name in others if name is not None)


@dataclass(frozen=True)
class Wanted:
    """What is to be read of every file. It travels to the executors.

    Attributes:
        format: A name in :data:`pipelines.catalog.FORMATS`.
        columns: Of formats that have some.
        limits: Sizes.
        as_rows: Whether rows of a table are wanted: by :attr:`Format.rows`, with all columns. The
            only text of a record is then a JSON object of its columns.
        multiline: Whether a quoted field of a CSV file may hold line ends.
        stores: How object stores are reached.
        dialect: Of CSV files.
    """

    format: str
    columns: Columns
    limits: Limits = field(default_factory=Limits)
    as_rows: bool = False
    multiline: bool = True
    stores: StorageSettings = DEFAULT_STORES
    dialect: Dialect = RFC_4180


@dataclass(frozen=True)
class Probe:
    """What the first bytes of a file say.

    Attributes:
        form: How its records are found.
        encoding: Of the whole file.
        head: Its first bytes, as they are streamed.
        header: The names of the columns, where a first record has them.
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

    Attributes:
        items: The lines from the beginning of the range on, and on after its end.
        probe: Of the file.
        wanted: Of every file.
        start: First byte of the range.
        stop: Byte after its last one; None for the end of the file.
    """

    items: Iterator[Item]
    probe: Probe
    wanted: Wanted
    start: int
    stop: int | None

    @property
    def own(self) -> Iterator[Item]:
        """Without the lines that begin behind the range."""
        return until(self.items, self.stop)


@dataclass(frozen=True)
class Form:
    """How the records of a file of text are found. A format has one, or tells several apart.

    Attributes:
        records: The records that begin in a range. Runs on an executor; what it cannot read is a
            record for the quarantine (:func:`.rows.quarantined_record`), never an error.
        header: The names of the columns in the first bytes, by the dialect of CSV, where a first
            record has them.
        columns: The names that the first bytes of a file show, None where they cannot tell; raises
            :class:`.streams.UnreadableError` where there should be some. None where records have no
            named columns.
        is_flat: Whether the file is cut into documents at fixed places (:attr:`Limits.document`),
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
    """Which files of a folder are of a format.

    Attributes:
        suffixes: In lower case, without that of a compression.
        stem: Whether a name without such a suffix is of the format nevertheless.
        may_be_packed: Whether a compressed file is one, too.
    """

    suffixes: tuple[str, ...]
    stem: Callable[[str], bool] | None = None
    may_be_packed: bool = True


Damaged = Mapping[Location, str]
"""Files that are damaged where only their readers find it, and how."""
ReadFiles = Callable[
    ["SparkSession", "CorpusSettings", Sequence[Location], Sequence[Location], Damaged], "DataFrame"
]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A value of `corpus.format`.

    Attributes:
        files: Names of its files; None where inputs are no files.
        form: Of its files, where tasks of ours read them; None where `read` says all.
        rows: The form in which a record is a row of a table, for `embed`; None where it has none,
            or where Spark reads them.
        splits: Whether several tasks may read a file that is not compressed, by its name and by
            whether quoted fields may hold line ends (:attr:`Wanted.multiline`).
        read: The raw rows (:data:`.rows.ROW_DDL`) of the inputs, on the driver; None for files.
        read_files: The raw rows of some files, on the driver, given all inputs and those that are
            wanted, without those that are damaged; None for files that are read by their form.
        find_damaged: Which files Spark cannot read to their ends, by the columns that are wanted;
            None where our own readers say so of each row.
        load: A table of the session that an input names, for formats whose inputs are tables.
        fingerprint: What changes when the inputs do; None for the sizes and times of the files. It
            gives None where no version can be known.
        pin: An input with the version that its table has now, as `load` takes it, so that a job
            reads one version from its beginning to its end; None where tables have none.
        columns: Whether records have named columns.
        is_documents: Whether rows are pieces of documents, and counted by their bytes.
        pairs: The values of `corpus.pairs` that it can give; None for all.
        unit: What single texts are cut into (:data:`pipelines.corpus.texts.UNITS`).
        large_units: Whether what is held out as a whole (packages) comes in few and very different
            sizes.
    """

    files: FileNames | None = None
    form: FormOf | None = None
    rows: FormOf | None = None
    splits: Callable[[Location, bool], bool] = lambda file, multiline: True
    read: Callable[[SparkSession, CorpusSettings], DataFrame] | None = None
    read_files: ReadFiles | None = None
    find_damaged: Callable[[SparkSession, Sequence[Location], Sequence[str]], Damaged] | None = None
    load: Callable[[SparkSession, str], DataFrame] | None = None
    fingerprint: Callable[[Sequence[str]], dict[str, Any] | None] | None = None
    pin: Callable[[SparkSession, str], str] | None = None
    columns: bool = False
    is_documents: bool = False
    pairs: tuple[str, ...] | None = None
    unit: Literal["rows", "lines", "paragraphs"] = "rows"
    large_units: bool = False
