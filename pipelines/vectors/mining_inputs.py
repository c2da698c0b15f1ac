"""The inputs of mining: pairs and documents as Spark frames, and stamps of their content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.corpus.readers.formats import Dialect
from pipelines.corpus.readers.inputs import stamp_of
from pipelines.errors import InputError
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.settings import Config, EmbeddingSettings, MiningSettings
from pipelines.spark.frames import read_parquet
from pipelines.spark.parquet_parts import data_files
from pipelines.vectors.sources import (
    Source,
    check_source,
    column_named,
    has_text,
    read_source,
    source_stamp,
    text_named,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

INPUTS = "mining.inputs"
MORE_DOCUMENTS = "mining.documents"


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


def mining_sources(config: Config) -> list[Source]:
    """Return the tables of the settings: pairs, and further documents."""
    found = (pairs_source(config), documents_source(config))
    return [source for source in found if source is not None]


def check_sources(config: Config) -> None:
    """Check the inputs as far as possible without Spark.

    Raises:
        InputError: An input or a column is missing, or prepared pairs have deleted keys.
    """
    if not config.mining.inputs:
        _check_prepared(config)
    for source in mining_sources(config):
        check_source(source, config)


def _check_prepared(config: Config) -> None:
    prepared = PreparedFolder.of(config)
    if not prepared.corpus.pairs.is_dir():
        problem = f"it is empty, and there is no corpus in {prepared.path}"
        raise InputError(
            INPUTS, problem, "Run `sentence-pipelines prepare` first, or name a table of pairs"
        )
    prepared.check_deleted()


def stamps(config: Config) -> dict[str, Any]:
    """Return values that change with the inputs, by setting; None for tables without a version.

    Raises:
        InputError: An input does not exist.
    """
    found: dict[str, Any] = {}
    for source in mining_sources(config):
        found[source.key] = source_stamp(source, config)
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
    frame = read_source(session, config, source, staged / "pairs", output)
    settings = config.mining
    columns = [
        text_named(settings.anchor_column).alias("anchor"),
        text_named(settings.positive_column).alias("positive"),
        _group_id(settings.group_column),
    ]
    for name, column in (("group", settings.group_column), ("key", settings.key_column)):
        columns += [column_named(column).alias(name)] if column is not None else []
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
    frame = read_source(session, config, source, staged / "documents", output)
    settings = config.mining
    text = text_named(settings.documents_column).alias("text")
    found = frame.select(text, _group_id(settings.documents_group_column))
    return found.where(has_text("text"))


def _group_id(column: str | None) -> Column:
    """Return a 64-bit id of a group; null without one."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    if column is None:
        return F.lit(None).cast("long").alias("group_id")
    value = column_named(column).cast("string")
    return F.when(value.isNotNull(), F.xxhash64(value)).alias("group_id")


def has_groups(config: Config) -> bool:
    """Return whether documents can belong to an anchor's group."""
    return not config.mining.inputs or config.mining.group_column is not None
