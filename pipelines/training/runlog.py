"""What a run writes while it goes on: the run folder, metrics lines, and a bar for people."""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

from pipelines import __version__, storage
from pipelines import config as configuration
from pipelines.errors import InputError
from pipelines.lanes.files import LaneManifest
from pipelines.lanes.plan import BatchPlan
from pipelines.progress import WorkProgress
from pipelines.settings import Config
from pipelines.training.checkpoint import checkpoint_path, checkpoint_steps
from pipelines.training.run import TrainingRun

logger = logging.getLogger(__name__)

# What a folder must hold to be taken for a run, and all else that a run writes.
_MARKS = ("environment.json", "config.yaml")
_OF_A_RUN = (*_MARKS, "checkpoints")
# How the names of what :mod:`pipelines.storage` puts aside end.
_TORN = (".part", ".old", ".gone")
_LATER_OF_A_RUN = (
    "metrics.jsonl",
    "metrics.json",
    "evaluations.jsonl",
    "promotion.json",
    "samples.json",
    "report.html",
    "start",
    "model",
    "evaluation",
    "tracking",
    "tensorboard",
)
_LIBRARIES = (
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


def open_run_folder(
    config: Config, plan: BatchPlan, manifest: LaneManifest, last_step: int
) -> Path:
    """Makes the run folder, or opens it to resume; what is refused changes nothing.

    Raises:
        InputError: It holds a run already and the settings do not say what to do with it, or
            a run that cannot be resumed with these settings.
    """
    folder, has_run = check_run_folder(config)
    if has_run and config.training.resume:
        _check_same_run(folder, plan, manifest)
        _tell_if_finished(folder, last_step)
        # What ends in `.old` is a whole checkpoint that may yet take its place again.
        _sweep(folder, "checkpoints/.*.part", "checkpoints/.*.gone")
    else:
        _forget_run(folder)
    storage.write_json(folder / "checkpoints" / "plan.json", _identity(plan, manifest))
    storage.write_text(
        folder / "config.yaml", configuration.dump(configuration.without_secrets(config))
    )
    storage.write_json(folder / "environment.json", environment())
    return folder


def check_run_folder(config: Config) -> tuple[Path, bool]:
    """Looks at what can be known of the run folder before there are lanes; changes nothing.

    Returns:
        The folder, and whether it holds a run, which is then to be resumed or overwritten.

    Raises:
        InputError: It holds other files, or a run, and the settings do not say what to do with it.
    """
    folder = Path(config.run.folder).absolute()
    has_run = all((folder / name).exists() for name in _OF_A_RUN)
    if folder.exists() and not has_run and not _is_barely_begun(folder):
        raise InputError("run.folder", f"{folder} holds other files", "name an empty folder")
    if has_run and not (config.training.resume or config.run.overwrite):
        raise InputError(
            "run.folder",
            f"{folder} holds a run already",
            "set training.resume or run.overwrite to true, or name another folder",
        )
    return folder, has_run


def _is_barely_begun(folder: Path) -> bool:
    """Whether a folder is empty, or holds a run that was killed while its files were written."""
    names = {path.name for path in folder.iterdir() if path.suffix not in _TORN}
    begun = (folder / "checkpoints" / "plan.json").is_file() and names <= set(_OF_A_RUN)
    return (begun and not checkpoint_steps(folder)) or not names


def _identity(plan: BatchPlan, manifest: LaneManifest) -> dict[str, Any]:
    """What the steps of a run follow from, by the setting that decides it."""
    return {
        "training.granules_per_step": plan.granules_per_step,
        "training.seed": plan.seed,
        "lanes.granule": manifest.granule,
        "prepared.folder": [manifest.lanes, manifest.rows, manifest.tokens, manifest.vocabulary],
    }


def _check_same_run(folder: Path, plan: BatchPlan, manifest: LaneManifest) -> None:
    """Refuses to go on with a run whose steps would be others than those already made."""
    known = storage.read_json(folder / "checkpoints" / "plan.json")
    for key, value in _identity(plan, manifest).items():
        if known[key] != value:
            raise InputError(
                key,
                f"the run was begun with {known[key]}, not {value}",
                "put it back, or begin anew with run.overwrite",
            )


def _tell_if_finished(folder: Path, last_step: int) -> None:
    """Says that nothing is left to do, which is no error: a scheduler may ask for a run twice."""
    made = max(checkpoint_steps(folder), default=0)
    if made >= last_step:
        logger.info(
            "the run has made its %d steps already; for more of them, "
            "raise training.max_steps or training.epochs",
            made,
        )


def _forget_run(folder: Path) -> None:
    """Deletes what a run has written, but for ``plan.json``, which the next one replaces.

    Whenever it is killed, there is a run that can be resumed or overwritten, or one that is barely
    begun: what makes a folder a run goes last, and checkpoints before that, the newest last.
    """
    for suffix in _TORN:
        _sweep(folder, *(f".{name}.*{suffix}" for name in (*_LATER_OF_A_RUN, *_MARKS)))
        _sweep(folder, f"checkpoints/.*{suffix}")
    for name in _LATER_OF_A_RUN:
        _delete(folder / name)
    for step in checkpoint_steps(folder):
        _delete(checkpoint_path(folder, step))
    for name in _MARKS:
        _delete(folder / name)


def _sweep(folder: Path, *patterns: str) -> None:
    """Deletes what processes that were killed left half written or half deleted."""
    for path in (path for pattern in patterns for path in folder.glob(pattern)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _delete(path: Path) -> None:
    """Deletes a file, or a folder that nobody ever sees half deleted, if it is there."""
    if path.is_dir() and not path.is_symlink():
        storage.remove_folder(path)
    else:
        path.unlink(missing_ok=True)


def environment() -> dict[str, str]:
    """On what this process runs: versions and machine."""
    found = {
        "sentence-pipelines": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": str(os.cpu_count()),
    }
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _is_before(line: str, step: int) -> bool:
    """Whether a metrics line is whole and of a step that is not made again."""
    try:
        return bool(json.loads(line)["step"] <= step)
    except ValueError:
        return False  # A driver that died while writing left half a line.


def can_resume(folder: Path) -> bool:
    """Whether there is a checkpoint to go on from."""
    return bool(checkpoint_steps(folder))


class RunLog:
    """Writes ``metrics.jsonl`` and shows a progress bar; a context manager on the driver.

    Args:
        run: The run; lines of steps that are made again are dropped from an earlier file.
    """

    def __init__(self, run: TrainingRun) -> None:
        self._path = run.run_folder / "metrics.jsonl"
        self._keep_lines_to(run.first_step)
        self._logged = run.first_step
        self._progress = WorkProgress(
            "training", run.last_step, run.first_step, "step {done}/{total}  {text}"
        )

    def __enter__(self) -> RunLog:
        self._progress.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.__exit__(kind, error, trace)

    def add(self, line: dict[str, Any]) -> None:
        """Takes a metrics line; called while the run goes on.

        A run that lost a worker may go back to a checkpoint: the lines of steps that are made
        again are dropped.
        """
        if line["step"] <= self._logged:
            self._keep_lines_to(line["step"] - 1)
        self._logged = line["step"]
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        rate = f"{line['examples_per_second']:.1f} examples/s"
        self._progress.show(line["step"], f"loss {line['loss']:.4f}  {rate}")

    def _keep_lines_to(self, step: int) -> None:
        if not self._path.exists():
            return
        lines = self._path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if _is_before(line, step)]
        storage.write_text(self._path, "".join(f"{line}\n" for line in kept))
