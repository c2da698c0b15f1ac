"""The run folder: made, checked, resumed or overwritten."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from importlib import metadata
from operator import attrgetter
from typing import Any

from pipelines import __version__
from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.locations import Location, is_within, location
from pipelines.files.ownership import (
    MEASURED,
    RUN,
    check_free,
    check_ours,
    holds_other_files,
    is_run,
)
from pipelines.files.prepared_folder import CorpusFolder
from pipelines.files.run_folder import RunFolder
from pipelines.lanes.files import FORMAT, LaneManifest
from pipelines.lanes.plan import BatchPlan
from pipelines.runs.checkpoint import checkpoint_path, checkpoint_steps
from pipelines.runs.job_records import last_step_of
from pipelines.runs.model_choice import WHOLE, asked_steps, is_to_end
from pipelines.runs.run import TrainingRun
from pipelines.settings import Config
from pipelines.settings import load as configuration
from pipelines.settings.redaction import without_secrets
from pipelines.settings.resuming import CHOICES, fixed_settings, recorded_value

logger = logging.getLogger(__name__)

LIBRARIES = (
    "pyspark",
    "tensorflow",
    "tensorflowonspark",
    "elephas",
    "horovod",
    "keras",
    "flask",
    "werkzeug",
    "torch",
    "mlflow",
    "tensorboardX",
    "numpy",
    "pyarrow",
)
"""Libraries whose versions :func:`environment` reports."""
MISSING = "not installed"


def open_run_folder(
    config: Config, plan: BatchPlan, manifest: LaneManifest
) -> tuple[Location, bool]:
    """Make or resume the run folder; return it, and whether there is a checkpoint to go on from.

    A refusal changes nothing. A later look for a checkpoint may find that of a worker of an
    overwritten run.

    Raises:
        InputError: It holds a run and the settings do not say what to do with it, or a run that
            cannot be resumed with these settings.
    """
    folder, has_run = check_run_folder(config)
    if has_run and config.training.resume:
        _check_same_run(folder, _identity(config, plan, manifest))
        storage.sweep(RunFolder(folder).checkpoints)
        goes_on = bool(checkpoint_steps(folder))
    else:
        _forget_run(folder)
        goes_on = False
    paths, identity = RunFolder(folder), _identity(config, plan, manifest)
    known = {"format": FORMAT, **identity, **_choices(config)}
    storage.write_json(paths.plan, known, durable=True)
    storage.write_text(paths.config, configuration.dump(without_secrets(config)))
    storage.write_json(paths.environment, environment())
    return folder, goes_on


def check_run_folder(config: Config) -> tuple[Location, bool]:
    """Check the run folder before there are lanes; return it, and whether it holds a run.

    Such a run has made a step, and is to be resumed or overwritten; one that could not start is
    begun anew. Changes nothing.

    Raises:
        InputError: It holds other files, or a run for which the settings say nothing, or a run to
            be resumed that was begun with other settings.
    """
    folder = check_owned(config)
    has_begun, steps = is_run(RunFolder(folder)), checkpoint_steps(folder)
    if steps and not has_begun:
        # A run that was killed while it began has made none: somebody has put them there.
        raise holds_other_files("run.folder", folder, ["checkpoints"])
    has_run = has_begun and _has_learnt(folder)
    if has_run and not (config.training.resume or config.run.overwrite):
        raise InputError(
            "run.folder",
            f"{folder} holds a run already",
            "set training.resume or run.overwrite to true, or name another folder",
        )
    if has_run and config.training.resume:
        _check_release(folder)
        # Before anything is prepared, which may take hours.
        _check_same_run(folder, _asked(config))
    return folder, has_run


def check_measured(config: Config) -> None:
    """Check that an evaluation replaces nothing of the user's; change nothing.

    Raises:
        InputError: It would.
    """
    check_free("run.folder", RunFolder.of(config).path, MEASURED)


def check_owned(config: Config) -> Location:
    """Return the run folder, if a run would replace nothing of the user's in it.

    Raises:
        InputError: It would, or it would replace the training's start encoder.
    """
    folder = RunFolder.of(config).path
    check_ours("run.folder", folder, RUN, whole=False)
    if config.encoder.start not in ("random", "default"):
        start, real = location(config.encoder.start, config.storage).resolve(), folder.resolve()
        if is_within(start, real) and {*start.parts[len(real.parts) :][:1]} <= RUN.taken:
            problem = f"{folder} holds the input {config.encoder.start}"
            raise InputError("run.folder", problem, "name a folder beside it")
    return folder


def _has_learnt(folder: Location) -> bool:
    """Return whether a run has made a step that left anything."""
    metrics = RunFolder(folder).step_metrics
    return any(checkpoint_steps(folder)) or (metrics.exists() and metrics.stat().st_size > 0)


def _asked(config: Config) -> dict[str, Any]:
    """Return the settings that decide the result, except those fixed by the lanes."""
    from_lanes = ("training.granules_per_step", "training.seed", "lanes.granule")
    fixed = fixed_settings(config)
    return {key: fixed[key] for key in fixed if key not in from_lanes}


def _identity(config: Config, plan: BatchPlan, manifest: LaneManifest) -> dict[str, Any]:
    """Return, by setting, all that the steps of a run and their results follow from."""
    return {
        **_asked(config),
        "training.granules_per_step": plan.granules_per_step,
        "training.seed": plan.seed,
        "lanes.granule": manifest.granule,
        "prepared.folder": f"lanes {manifest.digest}",
    }


def _choices(config: Config) -> dict[str, Any]:
    """Return the settings of the model's choice, which a resumed run may change."""
    usual = Config()
    chosen = {key: attrgetter(key) for key in CHOICES}
    return {key: get(config) for key, get in chosen.items() if get(config) != get(usual)}


def identity_digest(
    config: Config, plan: BatchPlan, manifest: LaneManifest, corpus: CorpusFolder
) -> str:
    """Digest what a whole run's model follows from: lanes, settings and steps."""
    last_step = asked_steps(config.training, plan.steps_per_epoch, corpus)
    identity = {**_identity(config, plan, manifest), **_choices(config), "format": FORMAT}
    return _digest(identity, last_step)


def trained_identity(folder: Location) -> str | None:
    """Return the :func:`identity_digest` of a folder's run so far; None if it has no record."""
    steps = checkpoint_steps(folder)
    if not steps or not RunFolder(folder).plan.is_file():
        return None
    # One that has ended early is as far as it was to come.
    asked = last_step_of(folder) if is_to_end(folder) else None
    return _digest(_known_identity(RunFolder(folder).plan), asked or max(steps))


def _digest(identity: dict[str, Any], steps: int) -> str:
    content = json.dumps([identity, steps], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _check_release(folder: Location) -> None:
    """Refuse a run of an earlier release, whose lanes had another format."""
    if _known_identity(RunFolder(folder).plan).get("format") != FORMAT:
        raise InputError(
            "training.resume",
            f"{folder} was begun by another release, whose lanes this one does not read",
            "finish it with that release, or begin anew with run.overwrite",
        )


def _check_same_run(folder: Location, identity: dict[str, Any]) -> None:
    """Refuse to resume a run whose steps, or their results, would change."""
    known = _known_identity(RunFolder(folder).plan)
    for key, value in identity.items():
        # A setting that there was not when the run began was not written down.
        before = recorded_value(known, key, value)
        if before != value:
            raise InputError(
                key,
                f"the run was begun with {before}, not {value}",
                "put it back, or begin anew with run.overwrite",
            )


def _known_identity(path: Location) -> dict[str, Any]:
    """Return the identity that the run was begun with."""
    try:
        known = storage.read_json(path)
    except (OSError, ValueError) as error:
        problem = f"{path} cannot be read ({error})"
    else:
        if isinstance(known, dict):
            return known
        problem = f"{path} holds no mapping"
    raise InputError("training.resume", problem, "put it back, or begin anew with run.overwrite")


def tell_if_finished(run: TrainingRun, share: float) -> None:
    """Log that nothing is left to do; no error, as schedulers may ask for a run twice.

    ``share`` comes from :func:`pipelines.runs.model_choice.start_share`.
    """
    if run.first_step < run.last_step:
        return
    if share == WHOLE:
        logger.info("the run is finished: its model keeps the start's weights")
        return
    logger.info(
        "the run has made its %d steps already; for more of them, "
        "raise training.max_steps or training.epochs",
        run.first_step,
    )


def _forget_run(folder: Location) -> None:
    """Delete a run's files, except ``plan.json``, which the next run replaces.

    If it is killed, a run stays that can be resumed or overwritten, or is barely begun: the marks
    of a run go last, and the checkpoints before them, the newest last.
    """
    paths = RunFolder(folder)
    storage.remove_left_aside(folder, (*paths.contents, *paths.marks))
    storage.sweep(paths.checkpoints)
    for path in paths.contents:
        _delete(path)
    for step in checkpoint_steps(folder):
        _delete(checkpoint_path(folder, step))
    # Behind the checkpoints, which are nothing without it.
    _delete(paths.frozen)
    for path in paths.marks:
        _delete(path)


def _delete(path: Location) -> None:
    if path.is_dir() and not path.is_symlink():
        storage.remove_folder(path)
    else:
        path.unlink(missing_ok=True)


def environment() -> dict[str, str]:
    """Return the versions and the machine of this process."""
    found = {
        "sentence-pipelines": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": str(os.cpu_count()),
    }
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = MISSING
    return found
