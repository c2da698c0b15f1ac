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
from pipelines.runs.checkpoint import (
    checkpoint_path,
    checkpoint_steps,
    newest_checkpoint,
    newest_whole_checkpoint,
)
from pipelines.runs.job_records import last_step_of
from pipelines.runs.model_choice import WHOLE, asked_steps, is_to_end
from pipelines.runs.run import TrainingRun
from pipelines.runs.step_metrics import is_logged, last_logged_step
from pipelines.settings import Config
from pipelines.settings import load as configuration
from pipelines.settings.redaction import without_secrets
from pipelines.settings.resuming import CHOICES, NEW, fixed_settings, recorded_value

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

    A refusal changes nothing. A later look for a checkpoint may find one by a late worker of an
    overwritten run.

    Raises:
        InputError: It holds a run, and the settings neither resume nor overwrite it, or cannot
            resume it.
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


def resumed_step(folder: Location, log_every: int) -> int:
    """Return the step from which a resumed run goes on.

    It is that of the newest whole checkpoint. A driver killed beside a worker that had just written
    this checkpoint may not have written the lines of its last steps. Then it is the checkpoint
    before it, if that has all its lines: the run repeats these steps, and its log is complete.

    Raises:
        InputError: There is no whole checkpoint.
    """
    newest, last_line = newest_checkpoint(folder), last_logged_step(folder)
    if is_logged(newest, last_line, log_every):
        return newest
    # Not further back: a log lost in another way is no reason to repeat a whole training.
    before = newest_whole_checkpoint(folder, latest=newest - 1)
    if before is None or not is_logged(before, last_line, log_every):
        return newest
    logger.warning(
        "the run goes on from step %s, not %s: the earlier job was killed before it wrote the"
        " metrics of the steps between",
        before,
        newest,
    )
    return before


def check_run_folder(config: Config) -> tuple[Location, bool]:
    """Check the run folder before there are lanes; return it, and whether it holds a run.

    Only a run with a completed step needs `resume` or `overwrite`; a run without steps starts
    again. Changes nothing.

    Raises:
        InputError: It holds other files, or a run, and the settings neither resume nor overwrite
            it, or resume it with different settings.
    """
    folder = check_owned(config)
    has_begun, steps = is_run(RunFolder(folder)), checkpoint_steps(folder)
    if steps and not has_begun:
        # A run killed at its start has no checkpoints: somebody put these there.
        raise holds_other_files("run.folder", folder, ["checkpoints"])
    has_run = has_begun and _has_learnt(folder)
    if has_run and not (config.training.resume or config.run.overwrite):
        raise InputError(
            "run.folder",
            f"{folder} holds a run already",
            "Set training.resume or run.overwrite to true, or name another folder",
        )
    if has_run and config.training.resume:
        _check_release(folder)
        # Before the preparation, which may take hours.
        _check_same_run(folder, _asked(config))
    return folder, has_run


def check_measured(config: Config) -> None:
    """Check that an evaluation replaces no file of the user; change nothing.

    Raises:
        InputError: It would replace one.
    """
    check_free("run.folder", RunFolder.of(config).path, MEASURED)


def check_owned(config: Config) -> Location:
    """Return the run folder, if a run would replace no file of the user in it.

    Raises:
        InputError: It would replace such a file, or the start encoder.
    """
    folder = RunFolder.of(config).path
    check_ours("run.folder", folder, RUN, whole=False)
    if config.encoder.start not in ("random", "default"):
        start, real = location(config.encoder.start, config.storage).resolve(), folder.resolve()
        if is_within(start, real) and {*start.parts[len(real.parts) :][:1]} <= RUN.taken:
            problem = f"{folder} holds the input {config.encoder.start}"
            raise InputError("run.folder", problem, "Name a folder beside it")
    return folder


def _has_learnt(folder: Location) -> bool:
    """Return whether a run has left a trace of a completed step."""
    metrics = RunFolder(folder).step_metrics
    return any(checkpoint_steps(folder)) or (metrics.exists() and metrics.stat().st_size > 0)


def _asked(config: Config) -> dict[str, Any]:
    """Return the settings behind the result, except the ones fixed by the lanes."""
    from_lanes = ("training.granules_per_step", "training.seed", "lanes.granule")
    fixed = fixed_settings(config)
    return {key: fixed[key] for key in fixed if key not in from_lanes}


def _identity(config: Config, plan: BatchPlan, manifest: LaneManifest) -> dict[str, Any]:
    """Return, by setting, everything behind the steps of a run and their results."""
    return {
        **_asked(config),
        "training.granules_per_step": plan.granules_per_step,
        "training.seed": plan.seed,
        "lanes.granule": manifest.granule,
        "prepared.folder": f"lanes {manifest.digest}",
    }


def _choices(config: Config) -> dict[str, Any]:
    """Return the settings of the model's choice; a resumed run may change them."""
    usual = Config()
    getters = {key: attrgetter(key) for key in CHOICES}
    # Non-default ones only, so that the digest of an earlier run survives a new setting.
    return {key: get(config) for key, get in getters.items() if get(config) != get(usual)}


def identity_digest(
    config: Config, plan: BatchPlan, manifest: LaneManifest, corpus: CorpusFolder
) -> str:
    """Digest the origins of a whole run's model: lanes, settings and steps."""
    last_step = asked_steps(config.training, plan.steps_per_epoch, corpus)
    identity = {**_identity(config, plan, manifest), **_choices(config), "format": FORMAT}
    return _digest(identity, last_step)


def trained_identity(folder: Location) -> str | None:
    """Return the :func:`identity_digest` of a folder's run so far; None if it has no record."""
    steps = checkpoint_steps(folder)
    if not steps or not RunFolder(folder).plan.is_file():
        return None
    # After an early end the run is complete, as if it had made all planned steps.
    asked = last_step_of(folder) if is_to_end(folder) else None
    return _digest(_known_identity(RunFolder(folder).plan), asked or max(steps))


def _digest(identity: dict[str, Any], steps: int) -> str:
    # A new setting at its former value leaves the digest of an earlier run as it was.
    told = {key: value for key, value in identity.items() if key not in NEW or value != NEW[key]}
    content = json.dumps([told, steps], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _check_release(folder: Location) -> None:
    """Refuse a run of an earlier release with another format of lanes."""
    if _known_identity(RunFolder(folder).plan).get("format") != FORMAT:
        raise InputError(
            "training.resume",
            f"{folder} was begun by another release, and this release cannot read its lanes",
            "Finish it with that release, or start anew with run.overwrite",
        )


def _check_same_run(folder: Location, identity: dict[str, Any]) -> None:
    """Refuse to resume a run whose steps, or their results, would change."""
    known = _known_identity(RunFolder(folder).plan)
    for key, value in identity.items():
        # The record of an earlier release lacks newer settings.
        before = recorded_value(known, key, value)
        if before != value:
            raise InputError(
                key,
                f"the run was begun with {before}, not {value}",
                "Change it back, or start anew with run.overwrite",
            )


def _known_identity(path: Location) -> dict[str, Any]:
    """Return the identity of the run at its start."""
    try:
        known = storage.read_json(path)
    except (OSError, ValueError) as error:
        problem = f"{path} cannot be read ({error})"
    else:
        if isinstance(known, dict):
            return known
        problem = f"{path} holds no mapping"
    remedy = "Restore the file, or start anew with run.overwrite"
    raise InputError("training.resume", problem, remedy)


def tell_if_finished(run: TrainingRun, share: float) -> None:
    """Log a run without remaining steps; no error, as schedulers may ask for a run twice.

    ``share`` comes from :func:`pipelines.runs.model_choice.start_share`.
    """
    if run.first_step < run.last_step:
        return
    if share == WHOLE:
        logger.info("the run is finished: its model keeps the start weights")
        return
    logger.info(
        "the run has made its %d steps already. Raise training.max_steps or training.epochs "
        "for more",
        run.first_step,
    )


def _forget_run(folder: Location) -> None:
    """Delete a run's files, except ``plan.json``: the next run replaces it.

    The marks of a run go last, and the checkpoints before them, the newest last. So after a kill
    the folder still holds a run to resume or overwrite, or a barely begun one.
    """
    paths = RunFolder(folder)
    storage.remove_left_aside(folder, (*paths.contents, *paths.marks))
    storage.sweep(paths.checkpoints)
    for path in paths.contents:
        _delete(path)
    for step in checkpoint_steps(folder):
        _delete(checkpoint_path(folder, step))
    # After the checkpoints, which are useless without it.
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
