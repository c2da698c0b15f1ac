"""`prepare`: turns text into lanes, in stages; a stage runs again after a change of its inputs.

A stage writes its folder as a whole, and then `stage.json`: its duration, and a fingerprint of its
origin (inputs with size and time of change, settings, the stages before). The next job keeps the
finished stages of a dead job. The same fingerprint gives the same bytes, in the lanes too.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from pipelines import progress
from pipelines.corpus.cleaning.redaction import check_redactor
from pipelines.corpus.cleaning.rules import check_languages
from pipelines.corpus.held_out import PAIR_COLUMNS
from pipelines.corpus.kept_units import settings_of_corpus
from pipelines.corpus.readers.spark_reader import input_fingerprint
from pipelines.corpus.stage import prepare_corpus
from pipelines.corpus.unit_rows import code_versions, deleted_keys
from pipelines.evaluation.overlap import prepare_overlap
from pipelines.files import storage
from pipelines.files.ownership import PREPARED, check_ours
from pipelines.files.prepared_folder import (
    BEFORE,
    PreparedFolder,
    StageRecord,
    read_stage_record,
)
from pipelines.jobs.base import Results, job, say_report
from pipelines.lanes.files import FORMAT, TEACHER_SCHEMA, LaneManifest
from pipelines.lanes.stage import prepare_lanes
from pipelines.libraries import REPORT, left_out
from pipelines.models.start import check_tokenizer, reading_limit
from pipelines.progress import activity
from pipelines.settings import Config
from pipelines.spark.capacity import is_connected
from pipelines.spark.jobs import dedicated_python_workers
from pipelines.spark.session import running_tasks, spark_session
from pipelines.spark.stage_resources import stage_settings
from pipelines.tokens.stage import prepare_tokens
from pipelines.tokens.start import training_prompts
from pipelines.tokens.summary import TokenSummary
from pipelines.tokens.vocabulary import named_tokenizer
from pipelines.vectors.inputs import check_outside
from pipelines.vectors.teacher import check_teacher, prepare_teacher, teacher_digest

logger = logging.getLogger(__name__)

PRELOADS = (
    *("pipelines.corpus.stage", "pipelines.tokens.stage", "pipelines.lanes.stage"),
    # Spark's workers import them for Arrow batches.
    *("pandas", "pyspark.sql.pandas.serializers"),
)
"""The modules of the stages' Python workers."""


def check_prepared_folder(config: Config) -> None:
    """Refuse a `prepared.folder` with foreign files or inputs, before the first write."""
    key, folder = "prepared.folder", PreparedFolder.of(config).path
    check_ours(key, folder, PREPARED, whole=False)
    evaluation = config.evaluation
    for source in config.by_source():
        check_outside(source.corpus.inputs, source.corpus.format, key, folder, config.storage)
    read = (
        *(config.corpus.exclude, config.teacher.vectors, evaluation.retrieval_sets),
        *(evaluation.similarity, evaluation.guards, evaluation.classification),
    )
    for given in read:
        check_outside(given, None, key, folder, config.storage)


@job("preparing", works_in=("prepared.folder",), check=check_prepared_folder, stalls=True)
def prepare(config: Config, *, trains: bool = True) -> LaneManifest:
    """Read the corpus, tokenise it, and form the lanes in `prepared.folder`.

    Stages with unchanged inputs and settings stay, unless `prepared.reuse` is false. Without
    `trains` (this process may train afterwards), a new Spark session is smaller.
    """
    with progress.job("preparing", shown_stages(config)):
        return prepare_stages(config, trains=trains)


def command(config: Config) -> Results:
    """Prepare a corpus, and print the place of its report."""
    manifest = prepare(config, trains=False)
    say_report(PreparedFolder.of(config).report)
    return {"examples": manifest.examples, "tokens": manifest.tokens, "lanes": manifest.digest}


@dataclass(frozen=True)
class Stage:
    """A stage of the preparation; `name` is also that of its folder.

    Attributes:
        run: Writes the folder; returns a summary for the log.
        inputs: The origin of the content besides the stages before, as plain values. None is
            unknown: the stage runs each time.
        choices: The part of the origin with a value only after the run.
        is_asked: Whether the settings ask for it.
    """

    name: str
    run: Callable[[SparkSession, Config], object]
    inputs: Callable[[Config], Any]
    choices: Callable[[Config], Any] = lambda config: None
    is_asked: Callable[[Config], bool] = lambda config: True

    @property
    def after(self) -> tuple[str, ...]:
        """Return the names of the stages before."""
        return BEFORE[self.name]


class _Done(NamedTuple):
    """An up-to-date stage; `fingerprint` is None if the next job cannot compute it."""

    fingerprint: str | None
    record: StageRecord
    kept: bool


def shown_stages(config: Config) -> tuple[str, ...]:
    """Return the visible stages of a preparation."""
    return ("starting", *(stage.name for stage in STAGES if stage.is_asked(config)))


def prepare_stages(config: Config, *, trains: bool = True) -> LaneManifest:
    """Run the outdated stages; write `stages.json` and the corpus report.

    `trains` tells whether this process trains afterwards, in the same session.

    Raises:
        InputError: A stage refuses.
    """
    folder = PreparedFolder.of(config)
    check_needs(config)
    _warn_of_unused_teacher(config)
    folder.name_stages()
    done: dict[str, _Done] = {}
    for stage in STAGES:
        if stage.is_asked(config):
            before = {name: done[name] for name in stage.after if name in done}
            done[stage.name] = _brought_up_to_date(stage, config, before, trains=trains)
    summary = [
        {"stage": name, "seconds": stage_done.record.seconds, "kept": stage_done.kept}
        for name, stage_done in done.items()
    ]
    storage.write_json(folder.stages, summary)
    asked = config.for_stage("prepare")
    with activity("comparing with evaluation sets", detail=running_tasks):
        prepare_overlap(config, lambda: spark_session(asked, trains=trains, needs_context=False))
    if not left_out("the report is", REPORT):
        from pipelines.report.corpus_page import write_corpus_report
        from pipelines.report.page_parts import drawn

        with activity("drawing the report of the corpus"):
            drawn(lambda: write_corpus_report(folder.path))
    return LaneManifest.load(folder.lanes.path)


def _brought_up_to_date(
    stage: Stage, config: Config, before: Mapping[str, _Done], *, trains: bool
) -> _Done:
    """Run a stage, or keep it if its record has the same fingerprint."""
    folder = PreparedFolder.of(config)
    earlier = [stage_done.fingerprint for stage_done in before.values()]
    fingerprint = _fingerprint(earlier, stage.inputs(config))
    known = read_stage_record(folder.stage_record(stage.name))
    is_same = known is not None and fingerprint is not None and known.fingerprint == fingerprint
    kept = known if is_same and config.prepared.reuse else None
    if kept is None:
        seconds, made = _run(stage, config, trains=trains), uuid.uuid4().hex
    else:
        logger.info("%s: not changed, kept", stage.name)
        seconds, made = kept.seconds, kept.made
    after = {name: stage_done.record.made for name, stage_done in before.items()}
    deleted = None if stage.after else folder.deleted_digest
    record = StageRecord(fingerprint, seconds, made, after, deleted)
    if record != known:
        # After a run this is the new folder, still without a record.
        storage.write_json(folder.stage_record(stage.name), asdict(record))
    if fingerprint is not None:
        fingerprint = _fingerprint([fingerprint], [stage.choices(config)])
    return _Done(fingerprint, record, kept is not None)


def _run(stage: Stage, config: Config, *, trains: bool) -> float:
    """Run a stage; return its duration in seconds, without the start of Spark."""
    asked = config.for_stage("prepare")
    session = spark_session(asked, trains=trains, needs_context=False)
    with stage_settings(session, config, "prepare"):
        began = time.monotonic()
        with activity(stage.name, detail=running_tasks), stage_workers(session):
            summary = stage.run(session, config)
        seconds = round(time.monotonic() - began, 2)
    logger.info("%s: %s (%.0f s)", stage.name, summary, seconds)
    return seconds


def stage_workers(session: SparkSession) -> AbstractContextManager[None]:
    """Let Python workers of a local session have the modules of stages from their start.

    Importing them takes a worker most of a second, and Spark replaces idle workers.
    """
    if is_connected():
        return nullcontext()
    return dedicated_python_workers(session.sparkContext, "preparing", PRELOADS)


def check_needs(config: Config) -> None:
    """Refuse unmet needs of later stages, before hours of preparation.

    Raises:
        InputError: A tokenizer, a teacher or a library is missing or unusable.
    """
    for source in config.by_source():
        check_languages(source.corpus.languages)
    check_tokenizer(config)
    check_teacher(config)


def _fingerprint(before: Sequence[str | None], inputs: Any) -> str | None:
    if None in before or inputs is None:
        return None
    content = json.dumps([code_versions(), before, inputs], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _corpus_inputs(config: Config) -> Any:
    by_source = [input_fingerprint(source.corpus, config.storage) for source in config.by_source()]
    files = None if None in by_source else by_source if config.corpus.sources else by_source[0]
    redactor = config.corpus.redact and check_redactor(config.corpus.redact)
    settings = settings_of_corpus(config.corpus)
    deleted = deleted_keys(PreparedFolder.of(config), config.corpus.key_column)
    return None if files is None else [PAIR_COLUMNS, settings, redactor, deleted, files]


def _held_out_choices(config: Config) -> Any:
    """Return a digest of the held-out queries: they depend on the earlier corpus as well."""
    queries = PreparedFolder.of(config).corpus.queries
    return hashlib.sha256(queries.read_bytes()).hexdigest() if queries.is_file() else None


def tokenise(session: SparkSession, config: Config) -> TokenSummary:
    """Make tokens of the corpus; see :func:`pipelines.tokens.stage.prepare_tokens`.

    Raises:
        InputError: As there, or the tokenizer does not fit the start.
    """
    check_tokenizer(config)
    return prepare_tokens(session, config, reading_limit(config))


def _token_inputs(config: Config) -> Any:
    bucket = None if config.tokens.max_length else config.lanes.bucket
    settings = [config.tokens.model_dump(mode="json"), reading_limit(config), bucket]
    prompts = [training_prompts(source) for source in config.by_source()]
    settings.append(prompts if config.corpus.sources else prompts[0])
    if config.tokens.vocabulary == "train":
        return [settings, config.encoder.start == "random"]
    source = named_tokenizer(config)
    files = sorted(source.glob("*token*.json")) + sorted(source.glob("vocab*"))
    return [
        settings,
        [[file.name, hashlib.sha256(file.read_bytes()).hexdigest()] for file in files],
    ]


def _teacher_inputs(config: Config) -> Any:
    inputs = [TEACHER_SCHEMA.names, teacher_digest(config), config.teacher.precision]
    if config.teacher.model is not None:
        # The embedding job then finds its tables of another backend or precision.
        inputs += [config.embedding.backend, config.embedding.precision]
    return inputs


def _has_teacher(config: Config) -> bool:
    return config.teacher.is_asked


def _warn_of_unused_teacher(config: Config) -> None:
    """Warn of unused vectors of a teacher before the stage makes them."""
    if config.teacher.is_asked and not config.objective.uses_teacher:
        logger.warning(
            "teacher.%s is set, but objective.name=%s uses no teacher: `prepare` makes the "
            "vectors, and this training does not read them",
            "model" if config.teacher.model is not None else "vectors",
            config.objective.name,
        )


def _lane_inputs(config: Config) -> Any:
    # The stage arranges lanes for steps of this many granules.
    return [FORMAT, config.lanes.model_dump(mode="json"), config.training.granules_per_step]


STAGES = (
    Stage("corpus", prepare_corpus, _corpus_inputs, choices=_held_out_choices),
    Stage("tokens", tokenise, _token_inputs),
    Stage("teacher", prepare_teacher, _teacher_inputs, is_asked=_has_teacher),
    Stage("lanes", prepare_lanes, _lane_inputs),
)
"""In the order of their runs."""
