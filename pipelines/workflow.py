"""The jobs as functions: prepare, train, evaluate, all three in a row, promote, embed and mine.

``jobs/``, the console command, notebooks and schedulers call these; each takes the
configuration and returns what it found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines import evaluation_job
from pipelines.engines.automatic import with_engine
from pipelines.engines.base import Engine, engine_of
from pipelines.errors import NothingNew
from pipelines.evaluation.alarms import keep_doubts
from pipelines.evaluation.sets import check_sets, check_tables
from pipelines.files.folders import named_when_full, work_folder, working_in
from pipelines.files.locations import Location, location
from pipelines.files.ownership import RUN, is_ours
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.run_folder import RunFolder
from pipelines.lanes.files import LaneManifest
from pipelines.lanes.reader import check_unchanged
from pipelines.libraries import DRIVER, REPORT, check_installed, left_out
from pipelines.model_card.card import write_card
from pipelines.models.folder import check_start
from pipelines.pretraining.start import check_objective
from pipelines.progress import activity, job
from pipelines.progress.display import SHORT_SECONDS
from pipelines.promotion import stage
from pipelines.promotion.stage import Promotion
from pipelines.runs.attempts import fenced
from pipelines.runs.cleaning import Cleaned, remove_old_runs
from pipelines.runs.job_records import (
    Start,
    begin_job,
    end_job,
    expected_seconds,
    keep_preparation,
    keep_seconds,
)
from pipelines.runs.opening import (
    check_measured,
    check_owned,
    check_run_folder,
    identity_digest,
)
from pipelines.runs.step_metrics import update_run_metrics
from pipelines.settings import Config
from pipelines.spark.errors import executor_failures, file_failures
from pipelines.spark.jobs import await_archives, called_off_when_stalled
from pipelines.spark.session import running_tasks, spark_session
from pipelines.spark.stage_resources import (
    check_stages,
    resource_profile,
    resources_in,
    stage_settings,
)
from pipelines.tracking.run_tracking import RunTracking
from pipelines.training_job import (
    check_settings,
    checked_start,
    checkpoint_snapshots,
    open_run,
    session_for,
    train_steps,
    write_model,
)
from pipelines.training_plan import batch_plan

if TYPE_CHECKING:
    from pipelines.deletion import Deletion
    from pipelines.embedding.table import EmbeddingSummary
    from pipelines.mining.plan import MiningSummary
    from pipelines.search.text_search import Hit

Metrics = dict[str, dict[str, float]]


def _preparing(config: Config) -> tuple[str, ...]:
    """What a user sees of :func:`prepare`, stage by stage; work names the stage that it begins."""
    teacher = ["teacher"] if config.teacher.is_asked else []
    return ("starting", "corpus", "tokens", *teacher, "lanes")


def _check_prepared_folder(config: Config) -> None:
    # Not above, since training by the local engine needs no Spark.
    from pipelines.preparation import check_prepared_folder

    check_prepared_folder(config)


def _check_both_folders(config: Config) -> None:
    _check_prepared_folder(config)
    check_owned(config)


@executor_failures("preparing")
@file_failures("preparing")
@called_off_when_stalled("preparing")
@working_in("prepared.folder", check=_check_prepared_folder)
def prepare(config: Config, *, trains: bool = True) -> LaneManifest:
    """Reads the corpus, tokenises it, and forms the lanes in ``prepared.folder``.

    A stage whose inputs and settings have not changed is kept, unless ``prepared.reuse`` is false.

    Args:
        config: The settings.
        trains: Whether this process may train afterwards. If not, and there is no Spark session
            yet, a smaller one is started.
    """
    from pipelines.preparation import prepare_stages

    with job("preparing", _preparing(config)):
        return prepare_stages(config, trains=trains)


@executor_failures("deleting")
@file_failures("deleting")
@called_off_when_stalled("deleting")
@working_in("prepared.folder", check=_check_prepared_folder)
def delete(config: Config, keys: Sequence[str]) -> Deletion:
    """Removes the rows of keys from ``prepared.folder``, and keeps them out of it for good.

    Args:
        config: That of the preparation; ``corpus.key_column`` says whose a row is.
        keys: Values of that column, as text.

    Raises:
        InputError: There is no such column, or nothing has been prepared.
    """
    from pipelines.deletion import delete_rows

    with job("deleting", _preparing(config)):
        return delete_rows(config, keys)


@file_failures("training")
@working_in("run.folder", reading=("prepared.folder",), check=check_owned)
def train(config: Config, chosen: Engine | None = None) -> Location:
    """Trains on the prepared lanes; returns the folder of the model, ``run.folder/model``.

    Args:
        chosen: The engine; the one that ``training.engine`` names unless given.

    Raises:
        InputError: Settings, lanes and engine do not fit; nothing has been written then.
        NothingNew: The model in service is what would come out, and only a new one was asked for.
        EngineError: The run failed; ``training.resume`` goes on from its last checkpoint.
        PipelineError: A file could not be written, or the lanes were prepared again meanwhile.
    """
    start_of_job = Start()
    config = config if chosen else with_engine(config)
    chosen = chosen or engine_of(config)
    check_settings(chosen, config)
    prepared = PreparedFolder.of(config)
    prepared.check_in_step()
    manifest = LaneManifest.load(prepared.lanes.path)
    plan = batch_plan(config, manifest)
    if config.run.only_new:
        stage.check_new(config, identity_digest(config, plan, manifest, prepared.corpus))
    start = checked_start(config, prepared, manifest)
    session = session_for(chosen, config)
    if session is not None:
        check_stages(session, config, ("train",))
    chosen.check(session, config)
    if session is not None:
        await_archives(
            session, chosen.name, resource_profile(resources_in(session, config, "train"))
        )
    with activity("training", "reading what checkpoints are measured on", running_tasks):
        snapshots = checkpoint_snapshots(config, session)
    run = open_run(config, prepared, plan, manifest, start)
    folder = RunFolder(run.run_folder)
    begin_job(folder.path, "train", start_of_job)
    keep_preparation(folder.path, prepared.path)
    with (
        fenced(folder.path),
        RunTracking(config, folder.path, run.first_step) as tracking,
    ):
        train_steps(chosen, session, run, snapshots, tracking)
        # The model takes its tokenizer from beside the lanes.
        check_unchanged(prepared.lanes.path, manifest)
        with activity("training", "writing the model"):
            write_model(run, prepared)
        end_job(folder.path, start_of_job)
        tracking.keep(folder.environment, folder.step_metrics, folder.restarts, model=folder.model)
    return folder.model


@executor_failures("evaluating")
@file_failures("evaluating")
@called_off_when_stalled("evaluating")
@working_in("run.folder", check=check_measured)
def evaluate(config: Config) -> dict[str, Metrics]:
    """Measures the run's start and its model; writes ``metrics.json``, samples and the report.

    Returns:
        The figures under `before` and `after`, under `interval` where the differences lie, as far
        as that is known, and under `sets` what each set is.

    Raises:
        InputError: There is no model, or what it is to be measured on cannot be read.
        PipelineError: A training has replaced the model meanwhile.
    """
    start_of_job = Start()
    folder = RunFolder.of(config)
    evaluation_job.check_settings(config, folder)
    session = spark_session(config.for_stage("evaluate"), needs_context=False)
    with stage_settings(session, config, "evaluate"):
        digests = evaluation_job.digests(session, config, folder)
        overlap = evaluation_job.overlap(session, config, folder, digests["sets"])
        begin_job(folder.path, "evaluate", start_of_job)
        with RunTracking(config, folder.path) as tracking:
            measured = evaluation_job.measure_models(session, config, folder)
            evaluation_job.check_unchanged(session, config, folder, digests)
            digests["observations"] = evaluation_job.keep_observations(folder, measured)
            known = {"overlap": overlap, "measured": digests}
            update_run_metrics(folder.path, measured.figures | known)
            keep_doubts(folder.path)
            evaluation_job.sample_held_out(session, config, folder, measured)
            evaluation_job.log_figures(folder, measured, tracking)
            # The report says how long it took.
            end_job(folder.path, start_of_job)
            with activity("evaluating", "drawing the report"):
                draw_report(config)
                # That of a model that no run has made is the user's.
                cards = [write_card(folder, config)] if is_ours(folder.path, RUN) else []
            tracking.keep(folder.report, folder.metrics, folder.evaluations, *cards)
    return measured.figures


@file_failures("drawing the report")
def report(config: Config, runs: Sequence[str] = (), output: str | None = None) -> Location:
    """Draws the report of a run, finished or not, or compares several; returns the page's path.

    Args:
        config: Says how stores are reached and, if no run is named, which run.
        runs: Folders of runs.
        output: The file; otherwise ``report.html`` in the folder of a single run, or
            ``comparison.html`` in the working folder.

    Raises:
        InputError: There is no such run, one is named twice, or the page cannot be there.
    """
    from pipelines.report.pages import write_page

    for module in REPORT:
        check_installed("report", module, where=DRIVER)
    return write_page(config, runs, output)


def draw_report(config: Config) -> Location | None:
    """Draws the report of a run at the end of its job; None, and a line, without what draws it."""
    return None if left_out("the report is", REPORT) else report(config)


@file_failures("promoting")
@called_off_when_stalled("promoting")
def promote(config: Config) -> Promotion:
    """Puts the run's model in service if it is no worse than the one that is there.

    Raises:
        InputError: See :func:`pipelines.promotion.stage.promote`.
        PromotionRefused: It is worse; what is in service has not changed.
    """
    target = location(config.promotion.target or "", config.storage).absolute()
    shown = activity("promoting", detail=running_tasks, quiet=SHORT_SECONDS)
    with shown, named_when_full("promotion.target", target):
        return stage.promote(config)


@file_failures("rolling back")
def roll_back(config: Config, to: str | None = None) -> Location:
    """Puts the model that was in service before, or the version ``to``, back in service."""
    with activity("rolling back", quiet=SHORT_SECONDS):
        return stage.roll_back(config, to)


@file_failures("removing runs")
def clean(config: Config) -> Cleaned:
    """Removes old runs beside ``run.folder``; ``run.keep`` says how many stay."""
    with activity("removing runs", quiet=SHORT_SECONDS):
        return remove_old_runs(config, stage.kept_runs(config))


@executor_failures("running")
@file_failures("running")
@working_in("prepared.folder", "run.folder", check=_check_both_folders)
def run(config: Config) -> dict[str, Metrics]:
    """Prepares, trains and evaluates."""
    expected = expected_seconds(config)
    stages = (*_preparing(config), "training", "evaluating")
    with job("run", stages, expected) as seconds:
        figures = _run(config)
    keep_seconds(config, seconds)
    return figures


def _run(config: Config) -> dict[str, Metrics]:
    from pipelines.corpus.readers.spark_reader import input_fingerprint
    from pipelines.models.start import check_tokenizer
    from pipelines.preparation import check_needs

    config = with_engine(config)
    chosen = engine_of(config)
    check_settings(chosen, config)
    # Preparing may take hours.
    check_run_folder(config)
    tokenizer = check_tokenizer(config)
    check_start(config)
    check_objective(config, tokenizer)
    check_needs(config)
    for alone in config.by_source():
        input_fingerprint(alone.corpus, config.storage)
    check_sets(config)
    # All stages share the session, so it is made for the one that asks for most.
    session = session_for(chosen, config, "prepare") or spark_session(
        config.for_stage("prepare"), needs_context=False
    )
    check_stages(session, config, ("prepare", "train", "evaluate"))
    chosen.check_session(session, config)
    check_tables(session, config)
    prepare(config)
    train(config)
    return evaluate(config)


@file_failures("embedding")
@called_off_when_stalled("embedding")
def embed(config: Config) -> EmbeddingSummary:
    """Embeds the table of ``embedding.inputs`` into ``embedding.output``, or what is missing of it.

    Raises:
        InputError: Model and input cannot be used, or the output is of something else.
        NothingNew: The table is there, and only a new one was asked for.
    """
    from pipelines.embedding.plan import is_up_to_date, lock_file, output_folder
    from pipelines.embedding.planning import check_job
    from pipelines.embedding.table import embed_table

    if config.embedding.served:
        served = {"model": str(stage.model_in_service(config))}
        embedding = config.embedding.model_copy(update=served)
        config = config.model_copy(update={"embedding": embedding})
    if config.run.only_new and is_up_to_date(config):
        output = config.embedding.output
        raise NothingNew(f"run.only_new: {output} has been made of the same model and inputs")
    check_job(config)
    folder = output_folder(config.embedding, config.storage)
    with work_folder("embedding.output", folder, "embed", lock_file(folder)):
        session = spark_session(config.for_stage("embed"), needs_context=False)
        with stage_settings(session, config, "embed"):
            return embed_table(session, config)


@file_failures("mining")
@called_off_when_stalled("mining")
def mine(config: Config) -> MiningSummary:
    """Searches hard negatives for the pairs of ``mining.inputs`` into ``mining.output``.

    Raises:
        InputError: Model and inputs cannot be used, the output is of something else, or no pair
            has enough negatives.
    """
    return _mine(config) if config.mining.inputs else _mine_prepared(config)


@working_in(reading=("prepared.folder",))
def _mine_prepared(config: Config) -> MiningSummary:
    return _mine(config)


def _mine(config: Config) -> MiningSummary:
    from pipelines.embedding.plan import lock_file
    from pipelines.mining.job import check_job, mine_negatives
    from pipelines.mining.plan import output_folder

    check_job(config)
    folder = output_folder(config)
    with work_folder("mining.output", folder, "mine", lock_file(folder)):
        session = spark_session(config.for_stage("mine"), needs_context=False)
        with stage_settings(session, config, "mine"):
            return mine_negatives(session, config)


@file_failures("the search")
@called_off_when_stalled("the search")
def search(
    config: Config,
    queries: Sequence[str],
    k: int,
    *,
    indexed: bool = False,
    hybrid: bool = False,
) -> list[Hit]:
    """The k rows of ``embedding.output`` that are nearest to each query, the best first.

    Spark starts only for a table that is too large for this process, or to build an index.

    Args:
        config: The section ``embedding`` names the table, and where its model is now if that is
            not where it was.
        queries: Texts.
        k: Rows of each query.
        indexed: Search an index, which is built where there is none, instead of all rows.
        hybrid: Rank by BM25 too, and fuse both rankings.

    Raises:
        InputError: There is no such table, it was made with another model, nothing is asked, or
            the table has no texts to rank by.
        PipelineError: An executor could not search.
    """
    if indexed:
        check_installed("--index", "usearch")
    with activity("searching", detail=running_tasks, quiet=SHORT_SECONDS):
        return _search(config, queries, k, indexed=indexed, hybrid=hybrid)


def _search(
    config: Config, queries: Sequence[str], k: int, *, indexed: bool, hybrid: bool
) -> list[Hit]:
    from pipelines.embedding.store import open_table
    from pipelines.search.index import has_index
    from pipelines.search.text_search import find_texts, fits_in_process

    table = open_table(config.embedding.output, stores=config.storage)
    here = fits_in_process(table, hybrid=hybrid) and not (indexed and not has_index(table))
    asked = config.for_stage("embed")
    session = None if here else spark_session(asked, needs_context=False)
    return find_texts(
        table,
        queries,
        k,
        session=session,
        indexed=indexed,
        hybrid=hybrid,
        backend=config.embedding.backend,
        model=config.embedding.model,
    )
