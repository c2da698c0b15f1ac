"""`train`: prepared lanes in, a model out."""

from __future__ import annotations

from pipelines.engines.automatic import with_engine
from pipelines.engines.base import Engine, engine_of
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.run_folder import RunFolder
from pipelines.jobs.base import Results, job, say_model, say_report
from pipelines.jobs.report import draw_report
from pipelines.jobs.training import (
    check_settings,
    checked_start,
    checkpoint_snapshots,
    open_run,
    session_for,
    train_steps,
    write_model,
)
from pipelines.jobs.training_plan import batch_plan
from pipelines.lanes.files import LaneManifest
from pipelines.lanes.reader import check_unchanged
from pipelines.progress import activity
from pipelines.promotion.stage import check_new
from pipelines.runs.attempts import fenced
from pipelines.runs.job_records import Start, begin_job, end_job, keep_preparation
from pipelines.runs.opening import check_owned, identity_digest
from pipelines.settings import Config
from pipelines.spark.jobs import await_archives
from pipelines.spark.session import running_tasks
from pipelines.spark.stage_resources import check_stages, resource_profile, resources_in
from pipelines.tracking.run_tracking import RunTracking


@job("training", works_in=("run.folder",), reads=("prepared.folder",), check=check_owned)
def train(config: Config, chosen: Engine | None = None) -> Location:
    """Train on the prepared lanes, and return the folder of the model, `run.folder/model`.

    Args:
        config: The settings.
        chosen: The engine; the one that `training.engine` names unless given.

    Raises:
        InputError: Settings, lanes and engine do not fit; nothing has been written then.
        NothingNew: The model in service is what would come out, and only a new one was asked for.
        EngineError: The run failed; `training.resume` goes on from its last checkpoint.
        PipelineError: A file could not be written, or the lanes were prepared again meanwhile.
    """
    start_of_job = Start()
    config = config if chosen else with_engine(config)
    engine = chosen or engine_of(config)
    check_settings(engine, config)
    prepared = PreparedFolder.of(config)
    prepared.check_in_step()
    manifest = LaneManifest.load(prepared.lanes.path)
    plan = batch_plan(config, manifest)
    if config.run.only_new:
        check_new(config, identity_digest(config, plan, manifest, prepared.corpus))
    start = checked_start(config, prepared, manifest)
    session = session_for(engine, config)
    if session is not None:
        check_stages(session, config, ("train",))
    engine.check(session, config)
    if session is not None:
        resources = resource_profile(resources_in(session, config, "train"))
        await_archives(session, engine.name, resources)
    with activity("training", "reading what checkpoints are measured on", running_tasks):
        snapshots = checkpoint_snapshots(config, session)
    run = open_run(config, prepared, plan, manifest, start)
    folder = RunFolder(run.run_folder)
    begin_job(folder.path, "train", start_of_job)
    keep_preparation(folder.path, prepared.path)
    with fenced(folder.path), RunTracking(config, folder.path, run.first_step) as tracking:
        train_steps(engine, session, run, snapshots, tracking)
        # The model takes its tokenizer from beside the lanes.
        check_unchanged(prepared.lanes.path, manifest)
        with activity("training", "writing the model"):
            write_model(run, prepared)
        end_job(folder.path, start_of_job)
        tracking.keep(folder.environment, folder.step_metrics, folder.restarts, model=folder.model)
    return folder.model


def command(config: Config) -> Results:
    """Train an encoder, draw its report, and print where both are."""
    model = train(config)
    say_report(draw_report(config))
    say_model(config, model)
    metrics = storage.read_json(RunFolder.of(config).metrics)
    return {"model": str(model), **metrics.get("training", {})}
