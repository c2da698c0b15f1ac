"""Tables that a job reads as Spark frames: their settings, checks and stamps.

`mine`, `ask` and `score` read Parquet files in place, and other formats through a copy in Parquet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

from pipelines.arrow_columns import is_plain, is_text
from pipelines.corpus.readers.inputs import find_files, has_columns
from pipelines.corpus.readers.parquet import same_for_spark
from pipelines.corpus.readers.spark_reader import damage_named
from pipelines.errors import InputError
from pipelines.files.locations import Location
from pipelines.settings import Config, EmbeddingSettings
from pipelines.spark.frames import holds_text, read_columns_of_any, read_parquet
from pipelines.spark.java import valid_text
from pipelines.vectors.inputs import input_stamps, stage_table
from pipelines.vectors.parts import read_inputs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

IsText: TypeAlias = Mapping[str, bool | None]
"""By column name, whether a column holds strings; None for a column without plain values."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A table to read.

    The settings ``key`` and ``format_key`` name the table and its format. ``texts`` and ``values``
    are columns of texts and of plain values, by their settings. ``table`` is in the form for the
    readers of tables.
    """

    key: str
    format_key: str
    texts: Mapping[str, str]
    values: Mapping[str, str]
    table: EmbeddingSettings

    @property
    def section(self) -> str:
        """The section of the settings that names the table."""
        return self.key.partition(".")[0]

    @property
    def columns(self) -> list[str]:
        """All wanted columns, each once."""
        return list(dict.fromkeys((*self.texts.values(), *self.values.values())))

    def files(self, config: Config) -> list[Location]:
        """Return the table's Parquet files; none for another format."""
        if self.table.format != "parquet":
            return []
        follow = self.table.follow_links
        inputs = self.table.inputs
        return find_files(inputs, "parquet", self.key, config.storage, follow_links=follow)


def check_source(source: Source, config: Config) -> None:
    """Check a table as far as possible without Spark.

    Raises:
        InputError: It or a column of it is missing, or a column has the wrong type.
    """
    try:
        footers = read_inputs(source.files(config))
    except InputError as error:
        raise InputError(source.key, error.problem, error.remedy) from None
    for file in footers:
        for name in source.columns:
            # Spark ignores case, so two columns of a file may be one to it.
            problem = same_for_spark(name, file.types)
            if problem is not None:
                sentence = f"{file.path} has {problem}"
                raise InputError(source.key, sentence, "Rename one of them")
        kinds = file.types.items()
        check_columns(
            source, {name: is_text(kind) if is_plain(kind) else None for name, kind in kinds}
        )


@contextmanager
def damage_told(session: SparkSession, config: Config, sources: Iterable[Source]) -> Iterator[None]:
    """Name the damaged input when Spark fails to read one in the block.

    Raises:
        InputError: With the setting of the input.
    """
    with ExitStack() as stack:
        for source in sources:
            if files := source.files(config):
                stack.enter_context(damage_named(session, source.key, files, source.columns))
        yield


def check_columns(source: Source, is_text: IsText) -> None:
    """Refuse a table without the wanted columns.

    Raises:
        InputError: A column is missing or has the wrong type.
    """
    where = ", ".join(source.table.inputs)
    for key, name in {**source.texts, **source.values}.items():
        if name not in is_text:
            lacking = f"{where} has no column `{name}`"
            raise InputError(key, lacking, has_columns(is_text, source.section))
        if key in source.texts and not is_text[name]:
            raise InputError(key, f"`{name}` of {where} holds no text", "Name a column of strings")
        if is_text[name] is None:
            problem = f"`{name}` of {where} holds no plain values"
            raise InputError(key, problem, "Name a column of strings or numbers")


def source_stamp(source: Source, config: Config) -> list[Any]:
    """Return the table's names and a value that changes with it, None without a version.

    Raises:
        InputError: An input does not exist.
    """
    try:
        stamp = input_stamps(source.table, config.storage)
    except InputError as error:
        # The readers of tables know only the section `embedding`.
        remedy = error.remedy.replace("embedding.", f"{source.section}.")
        raise InputError(source.key, error.problem, remedy) from None
    return [list(source.table.inputs), stamp]


def read_source(
    session: SparkSession, config: Config, source: Source, staged: Location, output: Location
) -> DataFrame:
    """Return the table with its wanted columns, and perhaps others.

    Rows of formats other than Parquet go to the folder ``staged`` first. No table of the inputs may
    lie in ``output``, the folder of the section's `output`.

    Raises:
        InputError: It cannot be read, or a column is missing.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType

    if source.table.format == "parquet":
        return read_columns_of_any(session, source.files(config), source.columns)
    output_key = f"{source.section}.output"
    try:
        stage_table(session, source.table, config.storage, staged, output, output_key)
    except InputError as error:
        # Its fault is in the place of the output, not in the input.
        if error.key == output_key:
            raise
        remedy = error.remedy.replace("embedding.format", source.format_key)
        remedy = remedy.replace("embedding.", f"{source.section}.")
        raise InputError(source.key, error.problem, remedy) from None
    frame = read_parquet(session, staged)
    nested = ArrayType | MapType | StructType
    texts = {
        field.name: None if isinstance(field.dataType, nested) else holds_text(field.dataType)
        for field in frame.schema.fields
    }
    check_columns(source, texts)
    return frame


def column_named(name: str) -> Column:
    """Return a column by its name, perhaps with dots and spaces."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`")


def text_named(name: str) -> Column:
    """Return a column of texts as strings, whether the file stores strings or bytes."""
    return valid_text(column_named(name).cast("string"))


def has_text(*columns: str) -> Column:
    """Return whether all columns hold more than white space; null if one is null."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    present = [F.length(F.trim(F.col(name))) > 0 for name in columns]
    return reduce(lambda left, right: left & right, present)
