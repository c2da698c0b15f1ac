"""The stage `teacher`: vectors of another model for the texts of the corpus.

The embedding job (:mod:`pipelines.vectors.embed`) embeds each distinct text once, into tables in
the prepared folder. They stay: a killed stage resumes, and a changed corpus embeds only its new
texts.
Existing tables may replace them (`teacher.vectors`). The vectors are then written for each example,
for the lanes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipelines.arrow_columns import as_text
from pipelines.corpus.cleaning.rules import clean
from pipelines.errors import InputError, PipelineError
from pipelines.files import storage, versions
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location, location
from pipelines.files.prepared_folder import AGAIN, PreparedFolder, TeacherFolder
from pipelines.lanes.files import TeacherVectors
from pipelines.models.identity import digest_in_earlier_tables, has_made
from pipelines.progress import next_part
from pipelines.settings import Config, EmbeddingSettings
from pipelines.settings.preparing import START
from pipelines.spark.frames import Scratch, read_columns_of_any, read_parquet, write_parquet
from pipelines.tokens.start import is_router, read_prompts, reads_alike, teacher_folder
from pipelines.vectors.embed import embed_table
from pipelines.vectors.embedding import embedding_options, refuse_int8, vectors_of
from pipelines.vectors.nearest import unit_length
from pipelines.vectors.store import VectorTable, open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


VECTORS = "teacher.vectors"
TEXT, KEY, VECTOR = "text", "key", "vector"
ALL = "all"
"""Folder of texts with one prompt."""
_TEACHER_KEYS = ("model", "dimensions")
_COMPUTED_AS = ("backend", "precision", "batch_tokens")


@dataclass(frozen=True)
class TeacherSummary:
    """The result of the stage: rows (``examples``), distinct texts with a vector, and its width."""

    examples: int
    texts: int
    width: int

    def __str__(self) -> str:
        return f"{self.texts} vectors of {self.width} for the texts of {self.examples} examples"


def check_teacher(config: Config) -> None:
    """Check the teacher before Spark starts; reads the model, as the embedding job does.

    Raises:
        InputError: It cannot be used.
    """
    if config.teacher.model is None:
        _tables(config)
        return
    # Its texts are in tables of their own by side, and each would have another calibration.
    refuse_int8(config.embedding.precision, "a teacher")
    try:
        embedding_options(
            teacher_folder(config), dimensions=config.teacher.dimensions, **_computed_as(config)
        )
    except InputError as error:
        raise _renamed(error) from None
    if is_router(local_folder(teacher_folder(config))):
        raise InputError(
            "teacher.model",
            f"{config.teacher.model} is a Router of two encoders, and a student learns one",
            "Name the model of its documents",
        )


def teacher_digest(config: Config) -> str | None:
    """Return a digest of all sources of a teacher's vectors except the texts; None without one.

    A model's files are hashed, not loaded: the weights of a large one exceed a driver's memory.

    Raises:
        InputError: A table cannot be used.
    """
    settings = config.teacher
    sources: list[object]
    if settings.model is not None:
        # Another digest would make the stage, and the lanes behind it, again.
        model = digest_in_earlier_tables(teacher_folder(config))
        sources = [model, settings.dimensions, reads_alike(config)]
    elif settings.vectors:
        sources = [_table_digest(table) for table in _tables(config)]
    else:
        return None
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()[:16]


def prepare_teacher(session: SparkSession, config: Config) -> TeacherSummary:
    """Write ``<prepared.folder>/teacher`` for ``<prepared.folder>/corpus``; runs on the driver.

    That folder is replaced as a whole or left as it was. In it:

    - `examples.parquet/` has a row per example: `id`, and `teacher`, the vectors of its texts in
      the order of the sides, of length 1, as bytes of `teacher.precision`;
    - `manifest.json` is a :class:`~pipelines.lanes.files.TeacherVectors`.

    Raises:
        InputError: The teacher cannot be used, or a text has no vector in its tables.
        PipelineError: Spark's job failed; embedded texts are kept.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    prepared = PreparedFolder.of(config)
    if not prepared.corpus.pairs.is_dir():
        raise InputError("prepared.folder", f"there is no corpus in {prepared.path}", AGAIN)
    source = teacher_digest(config)
    assert source is not None, "the stage is run only if there is a teacher"
    pairs = read_parquet(session, prepared.corpus.pairs)
    roles = _roles(config)
    texts = _texts(pairs, len(roles))
    if config.teacher.model is not None:
        tables = [
            _embedded(session, texts.where(f"role = {number}"), name, prompt, config)
            for number, (name, prompt) in enumerate(roles.items())
        ]
        found = [_keyed(session, [table], config) for table in tables]
    else:
        tables = _tables(config)
        found = [_keyed(session, tables, config)]
    of_roles = [frame.withColumn("role", F.lit(number)) for number, frame in enumerate(found)]
    stored_form = TeacherVectors(
        width=tables[0].dimensions, precision=config.teacher.precision, source=source
    )
    next_part("the vectors of each example")
    with (
        storage.new_folder(prepared.teacher.path) as folder,
        Scratch(folder / "scratch") as scratch,
    ):
        vectors = scratch.keep_counted(reduce(type(pairs).unionByName, of_roles))
        _check_all_there(texts, vectors.frame, config)
        written = TeacherFolder(folder)
        write_parquet(_by_example(texts, vectors.frame), written.examples)
        stored_form.save(written)
    return TeacherSummary(pairs.count(), vectors.rows, stored_form.width)


def check_lanes_of_teacher(config: Config, held: TeacherVectors | None) -> None:
    """Refuse lanes without the vectors of the configured teacher, if the loss needs them.

    ``held`` is of the lanes' manifest. The teacher itself may be gone: its vectors are in the
    lanes.

    Raises:
        InputError: The lanes hold no vectors, or those of another teacher.
    """
    key = "teacher.model" if config.teacher.model is not None else VECTORS
    if held is None:
        raise InputError(key, "the lanes hold no teacher vectors", AGAIN)
    named = [location(path, config.storage).expanduser() for path in config.teacher.vectors]
    if config.teacher.model is not None:
        named.append(teacher_folder(config))
    if all(path.is_dir() for path in named) and teacher_digest(config) != held.source:
        raise InputError(key, "the lanes hold the vectors of another teacher", AGAIN)


def forget_texts(config: Config) -> None:
    """Remove texts of earlier corpora after a new preparation.

    If the new preparation has no teacher, remove everything of the earlier teacher.
    """
    prepared = PreparedFolder.of(config)
    used = _roles(config) if config.teacher.model is not None else {}
    for home in prepared.teacher_texts.iterdir() if prepared.teacher_texts.is_dir() else ():
        if home.name not in used:
            storage.remove_folder(home)
            continue
        for table in ("texts", "vectors"):
            versions.forget_earlier(home / table)
    teacher = prepared.path / "teacher"
    # As a whole: without its mark, the next job would not take the remains for ours.
    if not config.teacher.is_asked and teacher.is_dir():
        storage.remove_folder(teacher)


def _roles(config: Config) -> dict[str, str | None]:
    """Return the prompts of anchors and of other texts, by folder; one folder if they are equal."""
    if config.teacher.model is None:
        return {ALL: None}
    prompts = read_prompts(local_folder(teacher_folder(config)))
    query, document = (None, None) if reads_alike(config) else prompts.sides
    if prompts.before(query) == prompts.before(document):
        return {ALL: query}
    return {"queries": query, "documents": document}


def _texts(pairs: DataFrame, roles: int) -> DataFrame:
    """Return the texts of all examples: `id`, `place` (of the side), `role`, `key`, `text`."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    none = F.array().cast("array<string>")
    sides = F.concat(F.array("anchor", "positive"), F.coalesce("negatives", none))
    present = F.filter(sides, lambda text: text.isNotNull())
    role = F.least(F.col("place"), F.lit(roles - 1))
    return (
        pairs.select("id", F.posexplode(present).alias("place", TEXT))
        .withColumn("role", role)
        .withColumn(KEY, F.xxhash64(TEXT))
    )


def _embedded(
    session: SparkSession, texts: DataFrame, name: str, prompt: str | None, config: Config
) -> VectorTable:
    """Update the table ``name`` with the vectors of texts (`key`, `text`), and return it."""
    prepared, settings = PreparedFolder.of(config), config.teacher
    home = prepared.teacher_texts / name
    record = prepared.stage_record("corpus")
    known = storage.read_json(record) if record.is_file() else None
    rows = _written(texts, home / "texts", known)
    asked = EmbeddingSettings(
        model=str(teacher_folder(config)) if settings.model == START else settings.model,
        inputs=(str(rows),),
        text_column=TEXT,
        key_column=KEY,
        output=str(home / "vectors"),
        output_column=VECTOR,
        prompt_name=prompt,
        dimensions=settings.dimensions,
        **_computed_as(config),
    )
    try:
        embed_table(session, config.model_copy(update={"embedding": asked}))
    except InputError as error:
        raise _renamed(error) from None
    return open_table(asked.output, stores=config.storage)


def _computed_as(config: Config) -> dict[str, Any]:
    """Return the teacher's way of computing, from `embedding` as for every embedding model."""
    return {key: getattr(config.embedding, key) for key in _COMPUTED_AS}


def _written(texts: DataFrame, folder: Location, corpus: object) -> Location:
    """Write distinct texts (`key`, `text`) as a table, unless it is there for the same corpus.

    A resumed job thus finds its planned files. ``corpus`` identifies the corpus; None if it is
    unknown.
    """
    source = versions.current(folder) / "corpus.json"
    if corpus is None or not source.is_file() or storage.read_json(source) != corpus:
        next_part("the different texts")
        with storage.new_folder(folder) as aside:
            # Two texts with one hash would repeat a key, which the embedding job refuses.
            write_parquet(texts.select(KEY, TEXT).dropDuplicates([KEY]), aside / "rows.parquet")
            storage.write_json(aside / "corpus.json", corpus)
    return versions.current(folder) / "rows.parquet"


def _keyed(session: SparkSession, tables: Sequence[VectorTable], config: Config) -> DataFrame:
    """Return the vectors of tables by the key of their text: `key`, `vector` (bytes)."""
    from pyspark.sql import functions as F  # noqa: N812

    frames = []
    for table in tables:
        of_text = table.key is None or config.teacher.model is None
        name = table.text if of_text else table.key
        assert name is not None, "the tables have been looked at"
        stored_form = TeacherVectors(
            width=table.dimensions, precision=config.teacher.precision, source=""
        )
        columns = [name, *table.vector_columns]
        rows = read_columns_of_any(session, [file.path for file in table.files], columns)
        stored = partial(
            stored_batches, columns=columns, stored_form=stored_form, are_texts=of_text
        )
        kind = "string" if of_text else "long"
        frame = rows.mapInArrow(stored, f"{KEY} {kind}, {VECTOR} binary")
        frames.append(frame.withColumn(KEY, F.xxhash64(KEY)) if of_text else frame)
    # Several tables may have one text, and cleaning may make two texts equal.
    return reduce(type(frames[0]).unionByName, frames).dropDuplicates([KEY])


def stored_batches(
    batches: Iterable[pa.RecordBatch],
    *,
    columns: Sequence[str],
    stored_form: TeacherVectors,
    are_texts: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield vectors of length 1 as stored, skipping rows without one. Runs on an executor.

    ``columns`` are the texts (``are_texts``: cleaned as those of the corpus) or their keys, the
    vectors, and the scales if any.
    """
    for batch in batches:
        with_vector = batch.filter(batch.column(columns[1]).is_valid())
        keys, vectors, *scales = (with_vector.column(name) for name in columns)
        stored = stored_form.write(unit_length(vectors_of(vectors, *scales)))
        yield pa.RecordBatch.from_arrays(
            [clean(as_text(keys)) if are_texts else keys, stored], [KEY, VECTOR]
        )


def _check_all_there(texts: DataFrame, vectors: DataFrame, config: Config) -> None:
    """Refuse texts without a vector; the error blames the named tables, or the embedding here."""
    wanted = texts.select("role", KEY).distinct()
    missing = wanted.join(vectors.select("role", KEY), ["role", KEY], "left_anti").count()
    if missing and config.teacher.model is not None:
        raise PipelineError(f"the teacher left {missing} texts of the corpus without a vector")
    if missing:
        raise InputError(
            VECTORS,
            f"{missing} of {wanted.count()} texts of the corpus have no vector there",
            "Embed these too, or name the model as teacher.model",
        )


def _by_example(texts: DataFrame, vectors: DataFrame) -> DataFrame:
    """Return `id` and `teacher`: the vectors of an example's texts, in the order of its sides."""
    from pyspark.sql import functions as F  # noqa: N812

    joined = texts.select("id", "place", "role", KEY).join(vectors, ["role", KEY])
    in_order = F.array_sort(F.collect_list(F.struct("place", VECTOR)))
    return joined.groupBy("id").agg(in_order.getField(VECTOR).alias("teacher"))


def _tables(config: Config) -> list[VectorTable]:
    """Open the named tables of vectors; refuse those without texts or of another model."""
    tables = []
    for path in config.teacher.vectors:
        try:
            tables.append(open_table(path, stores=config.storage))
        except InputError as error:
            raise InputError(VECTORS, error.problem, error.remedy) from None
    for table in tables:
        if table.text is None:
            raise InputError(
                VECTORS, f"{table.folder} does not name its column of texts", "Make it with `embed`"
            )
        if not _are_of_one_model(tables[0], table):
            raise InputError(
                VECTORS,
                f"{table.folder} and {tables[0].folder} come from different models",
                "Name tables of one model",
            )
    return tables


def _are_of_one_model(first: VectorTable, second: VectorTable) -> bool:
    if first.dimensions != second.dimensions:
        return False
    if first.model_sha256 == second.model_sha256:
        return True
    # The tables may be of two releases, whose digests of one model differ.
    digests = [table.model_sha256 for table in (first, second) if table.model_sha256 is not None]
    folders = (location(table.model, table.stores) for table in (first, second) if table.model)
    return len(digests) == 2 and any(
        folder.is_dir() and all(has_made(digest, folder) for digest in digests)
        for folder in folders
    )


def _table_digest(table: VectorTable) -> list[object]:
    # No name of a part is ever reused for other content.
    files = [[file.path.name, file.rows, file.path.stat().st_size] for file in table.files]
    return [table.model_sha256, table.prompt_name, table.dimensions, files]


def _renamed(error: InputError) -> InputError:
    """Return an error of the embedding job as one of the teacher's setting."""
    section, _, name = error.key.partition(".")
    is_ours = section == "embedding" and name in _TEACHER_KEYS
    return InputError(f"teacher.{name}" if is_ours else error.key, error.problem, error.remedy)
