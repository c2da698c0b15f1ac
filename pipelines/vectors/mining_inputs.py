"""The inputs of mining: pairs and documents as Spark frames, and stamps of their content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

from pipelines.arrow_columns import is_plain, is_text
from pipelines.corpus.readers.formats import Dialect
from pipelines.corpus.readers.inputs import find_files, has_columns, stamp_of
from pipelines.corpus.readers.parquet import same_for_spark
from pipelines.corpus.readers.spark_reader import damage_named
from pipelines.errors import InputError
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.settings import Config, EmbeddingSettings, MiningSettings
from pipelines.spark.frames import holds_text, read_columns_of_any, read_parquet
from pipelines.spark.java import valid_text
from pipelines.spark.parquet_parts import data_files
from pipelines.vectors.inputs import input_stamps, stage_table
from pipelines.vectors.parts import read_inputs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

INPUTS = "mining.inputs"
MORE_DOCUMENTS = "mining.documents"

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


def pairs_source(config: Config) -> Source | None:
    """Return the table of pairs; None for those of the prepared folder."""
    settings = config.mining
    if not settings.inputs:
        return None
    values = {
        "mining.group_column": settings.group_column,
        "mining.key_column": settings.key_column,
    }
    return Source(
        key=INPUTS,
        format_key="mining.format",
        texts={
            "mining.anchor_column": settings.anchor_column,
            "mining.positive_column": settings.positive_column,
        },
        values={key: name for key, name in values.items() if name is not None},
        table=_table(settings, settings.inputs, settings.format, settings.anchor_column),
    )


def documents_source(config: Config) -> Source | None:
    """Return the table of further documents, if there is one."""
    settings = config.mining
    if not settings.documents:
        return None
    text, group = settings.documents_column, settings.documents_group_column
    return Source(
        key=MORE_DOCUMENTS,
        format_key="mining.documents_format",
        texts={"mining.documents_column": text},
        values={} if group is None else {"mining.documents_group_column": group},
        table=_table(settings, settings.documents, settings.documents_format, text),
    )


def _table(
    settings: MiningSettings, inputs: tuple[str, ...], kind: str, text: str
) -> EmbeddingSettings:
    dialect = Dialect.of(settings)
    return EmbeddingSettings(
        inputs=inputs,
        format=kind,
        text_column=text,
        csv_separator=dialect.separator,
        csv_escape=dialect.escape,
        follow_links=settings.follow_links,
    )


def _sources(config: Config) -> list[Source]:
    found = (pairs_source(config), documents_source(config))
    return [source for source in found if source is not None]


def check_sources(config: Config) -> None:
    """Check the inputs as far as possible without Spark.

    Raises:
        InputError: An input or a column is missing, or prepared pairs have deleted keys.
    """
    if not config.mining.inputs:
        _check_prepared(config)
    for source in _sources(config):
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
def damage_told(session: SparkSession, config: Config) -> Iterator[None]:
    """Name the damaged input when Spark fails to read one in the block.

    Raises:
        InputError: With the setting of the input.
    """
    with ExitStack() as stack:
        for source in _sources(config):
            if files := source.files(config):
                stack.enter_context(damage_named(session, source.key, files, source.columns))
        yield


def _check_prepared(config: Config) -> None:
    prepared = PreparedFolder.of(config)
    if not prepared.corpus.pairs.is_dir():
        problem = f"it is empty, and there is no corpus in {prepared.path}"
        raise InputError(
            INPUTS, problem, "Run `sentence-pipelines prepare` first, or name a table of pairs"
        )
    prepared.check_deleted()


def check_columns(source: Source, is_text: IsText) -> None:
    """Refuse a table without the wanted columns.

    Raises:
        InputError: A column is missing or has the wrong type.
    """
    where = ", ".join(source.table.inputs)
    for key, name in {**source.texts, **source.values}.items():
        if name not in is_text:
            lacking = f"{where} has no column `{name}`"
            raise InputError(key, lacking, has_columns(is_text, "mining"))
        if key in source.texts and not is_text[name]:
            raise InputError(key, f"`{name}` of {where} holds no text", "Name a column of strings")
        if is_text[name] is None:
            problem = f"`{name}` of {where} holds no plain values"
            raise InputError(key, problem, "Name a column of strings or numbers")


def stamps(config: Config) -> dict[str, Any]:
    """Return values that change with the inputs, by setting; None for tables without a version.

    Raises:
        InputError: An input does not exist.
    """
    found: dict[str, Any] = {}
    for source in _sources(config):
        try:
            input_stamp = input_stamps(source.table, config.storage)
        except InputError as error:
            # The readers of tables know only the section `embedding`.
            remedy = error.remedy.replace("embedding.", "mining.")
            raise InputError(source.key, error.problem, remedy) from None
        found[source.key] = [list(source.table.inputs), input_stamp]
    if INPUTS not in found:
        _check_prepared(config)
        pairs = PreparedFolder.of(config).corpus.pairs
        found[INPUTS] = [str(pairs), [stamp_of(file) for file in data_files(pairs)]]
    found.setdefault(MORE_DOCUMENTS, None)
    return found


def read_pairs(
    session: SparkSession, config: Config, staged: Location, output: Location
) -> DataFrame:
    """Return the pairs: `anchor`, `positive`, `group_id` (null without a group), `group`, `key`.

    The last two exist if the input has them. ``staged`` is a folder for rows of inputs in other
    formats than Parquet; no table of the inputs may lie in ``output``.

    Raises:
        InputError: A column is missing, or the pairs have scores.
    """
    source = pairs_source(config)
    if source is None:
        return _prepared_pairs(session, config)
    frame = _read_table(session, config, source, staged / "pairs", output)
    settings = config.mining
    columns = [
        _text(settings.anchor_column).alias("anchor"),
        _text(settings.positive_column).alias("positive"),
        _group_id(settings.group_column),
    ]
    for name, column in (("group", settings.group_column), ("key", settings.key_column)):
        columns += [_column(column).alias(name)] if column is not None else []
    return frame.select(*columns)


def _prepared_pairs(session: SparkSession, config: Config) -> DataFrame:
    folder = PreparedFolder.of(config).corpus.pairs
    frame = read_parquet(session, folder)
    if "source" in frame.columns:
        mixed = f"the pairs in {folder} come from several sources"
        raise InputError(INPUTS, mixed, "Name a table of pairs")
    if not frame.where("score is not null").isEmpty():
        problem = f"the pairs in {folder} have scores, so not every text is a positive"
        raise InputError(INPUTS, problem, "Name a table of pairs without scores")
    return frame.select("anchor", "positive", _group_id("group"), "group")


def read_documents(
    session: SparkSession, config: Config, staged: Location, output: Location
) -> DataFrame | None:
    """Return further documents: `text` and `group_id`; None if there are none.

    Arguments and errors are those of :func:`read_pairs`.
    """
    source = documents_source(config)
    if source is None:
        return None
    frame = _read_table(session, config, source, staged / "documents", output)
    settings = config.mining
    text = _text(settings.documents_column).alias("text")
    found = frame.select(text, _group_id(settings.documents_group_column))
    return found.where(has_text("text"))


def _read_table(
    session: SparkSession, config: Config, source: Source, staged: Location, output: Location
) -> DataFrame:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if source.table.format == "parquet":
        return read_columns_of_any(session, source.files(config), source.columns)
    try:
        stage_table(session, source.table, config.storage, staged, output, "mining.output")
    except InputError as error:
        # Its fault is in the place of the output, not in the input.
        if error.key == "mining.output":
            raise
        remedy = error.remedy.replace("embedding.format", source.format_key)
        remedy = remedy.replace("embedding.", "mining.")
        raise InputError(source.key, error.problem, remedy) from None
    frame = read_parquet(session, staged)
    nested = ArrayType | MapType | StructType
    texts = {
        field.name: None if isinstance(field.dataType, nested) else holds_text(field.dataType)
        for field in frame.schema.fields
    }
    check_columns(source, texts)
    return frame


def _group_id(column: str | None) -> Column:
    """Return a 64-bit id of a group; null without one."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    if column is None:
        return F.lit(None).cast("long").alias("group_id")
    value = _column(column).cast("string")
    return F.when(value.isNotNull(), F.xxhash64(value)).alias("group_id")


def _column(name: str) -> Column:
    """Return a column by its name, perhaps with dots and spaces."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`")


def _text(name: str) -> Column:
    """Return a column of texts as strings, whether the file stores strings or bytes."""
    return valid_text(_column(name).cast("string"))


def has_groups(config: Config) -> bool:
    """Return whether documents can belong to an anchor's group."""
    return not config.mining.inputs or config.mining.group_column is not None


def has_text(*columns: str) -> Column:
    """Return whether all columns hold more than white space; null if one is null."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    present = [F.length(F.trim(F.col(name))) > 0 for name in columns]
    return reduce(lambda left, right: left & right, present)
