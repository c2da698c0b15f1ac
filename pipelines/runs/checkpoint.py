"""Checkpoints: folders ``checkpoints/step-00001200``, each whole or absent.

A checkpoint holds the state *before* the step in its name. Step 0 holds the start weights, so
starting and resuming are the same.

Its ``state.json`` names the files with sizes and checksums. A rename alone does not make a folder
whole: a power cut, or a lost write on a mount, leaves short files. Frozen weights lie beside the
checkpoints once, in ``frozen``. Loading a checkpoint compares the sizes. The driver reads the
contents once before a run goes on. If the newest checkpoint is torn, it falls back to an older one.
The error is one line with the damaged file's name.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors import SafetensorError

from pipelines.errors import DamagedFileError, InputError, PipelineError
from pipelines.files import records, storage
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location, as_local
from pipelines.files.records import DAMAGED
from pipelines.files.run_folder import RunFolder
from pipelines.files.versions import current
from pipelines.models.adaptation import NOTHING, Frozen, effective
from pipelines.models.architecture import Shapes
from pipelines.models.arrays import LazyArrays, shapes_of, stored_arrays, stored_order
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import Rows, Weights, load_weights, save_weights, stored_shapes
from pipelines.runs.attempts import FIRST, accepted_checkpoints, checkpoint_name
from pipelines.settings import TrainingSettings

logger = logging.getLogger(__name__)

WEIGHTS, MOMENTS, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
AVERAGE = "ema"
"""Prefix of the names of moving averages."""


class TornCheckpoint(PipelineError):  # noqa: N818 - what it is, as users know it
    """A damaged checkpoint; the message names the file and the damage."""


@dataclass(frozen=True)
class _State:
    """A ``state.json``; reading a missing part raises a ``TornCheckpoint``."""

    folder: Location
    values: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Location) -> _State:
        path = folder / STATE
        try:
            return cls(folder, records.read_object(path))
        except FileNotFoundError:
            raise TornCheckpoint(f"{path} is missing") from None
        except (DamagedFileError, OSError) as error:
            problem = error.problem if isinstance(error, DamagedFileError) else error
            raise TornCheckpoint(f"{path} cannot be read ({problem})") from error

    @property
    def files(self) -> Mapping[str, dict[str, Any]]:
        """The :func:`_fingerprint` of each file, by name."""
        files = self.values.get("files")
        if not (isinstance(files, dict) and all(map(_is_fingerprint, files.values()))):
            raise TornCheckpoint(f"{self.folder / STATE} does not list files and sizes")
        if not {WEIGHTS} <= files.keys() <= {WEIGHTS, MOMENTS}:
            problem = "lists files that no checkpoint has"
            raise TornCheckpoint(f"{self.folder / STATE} {problem}")
        return files

    @property
    def step(self) -> int:
        step = self.values.get("step")
        if not isinstance(step, int):
            raise TornCheckpoint(f"{self.folder / STATE} holds no step")
        return step

    @property
    def scale(self) -> float:
        """The factor of LoRA's products; only in the state of the frozen weights."""
        try:
            scale = float(self.values["scale"])
        except DAMAGED:
            scale = math.nan
        if not math.isfinite(scale):
            raise TornCheckpoint(f"{self.folder / STATE} holds no scale")
        return scale

    @property
    def spec(self) -> EncoderSpec:
        with _telling_damage(self.folder / STATE):
            return EncoderSpec.from_json(self.values["encoder"])


def _local_state(folder: Location) -> tuple[Path, _State]:
    """Return a local folder and its state; refuse files with sizes unlike the recorded ones."""
    try:
        path = local_folder(folder)
    except OSError as error:
        raise TornCheckpoint(f"{folder} cannot be read ({error})") from error
    state = _State.read(path)
    for name, written in state.files.items():
        try:
            found = (path / name).stat().st_size
        except OSError as error:
            raise TornCheckpoint(f"{path / name} is missing ({error.strerror})") from None
        if found != written["bytes"]:
            raise TornCheckpoint(f"{path / name} has {found:,} of {written['bytes']:,} bytes")
    return path, state


def _read_arrays(
    path: Path, rows: Rows | None = None, *, lazily: bool = False
) -> Mapping[str, np.ndarray]:
    with _telling_damage(path):
        return stored_arrays(path) if lazily else load_weights(path, rows)


@contextmanager
def _telling_damage(path: Location) -> Iterator[None]:
    """Turn libraries' errors at a file into a ``TornCheckpoint`` with its name."""
    try:
        yield
    except (OSError, PipelineError, SafetensorError, *DAMAGED) as error:
        message = " ".join(str(error).split())
        raise TornCheckpoint(f"{path} cannot be read ({message})") from error


def _fingerprint(path: Path) -> dict[str, Any]:
    """Return size and checksum of a file."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return {"bytes": file.tell(), "sha256": digest}
    except OSError as error:
        raise TornCheckpoint(f"{path} cannot be read ({error})") from error


def _is_fingerprint(written: object) -> bool:
    return isinstance(written, dict) and isinstance(written.get("bytes"), int)


@dataclass(frozen=True)
class Checkpoint:
    """A state of training.

    Attributes:
        step: The next step.
        weights: The trained weights: all, unless parts are frozen or LoRA is used.
        moments: The optimiser's arrays, ``m/NAME`` and ``v/NAME``, and moving averages of the
            weights, ``ema/NAME``, if configured; empty before step 1.
        frozen: The other weights, in files of their own; see :func:`save_frozen`.

    Access may read an array from a file, or gather it from all workers: see
    :class:`pipelines.models.arrays.LazyArrays` and :meth:`gathered`.
    """

    step: int
    spec: EncoderSpec
    weights: Mapping[str, np.ndarray]
    moments: Mapping[str, np.ndarray]
    frozen: Frozen = NOTHING

    @property
    def averages(self) -> Weights:
        """The model's weights: the moving averages, or else the trained weights."""
        return {
            name: self.moments.get(f"{AVERAGE}/{name}", value)
            for name, value in self.weights.items()
        }

    def gathered(self) -> Checkpoint:
        """Return the state in memory; all workers call it if they share the state."""
        weights, moments = (
            {name: arrays[name] for name in stored_order(arrays)}
            for arrays in (self.weights, self.moments)
        )
        return replace(self, weights=weights, moments=moments)

    def pass_through(self) -> None:
        """Make one array after the other, in the order of :func:`write_files`, and keep none.

        A worker thereby takes part in rank 0's writing.
        """
        for arrays in (self.weights, self.moments):
            for name in stored_order(arrays):
                arrays[name]

    @property
    def encoder_weights(self) -> Weights:
        """All weights of this state's encoder."""
        return effective(self.averages, self.frozen.weights, self.frozen.scale)


def checkpoint_path(run_folder: Location, step: int) -> Location:
    """Return the path of the checkpoint before a step: the accepted one, if any."""
    path = accepted_checkpoints(run_folder).get(step)
    return _place(run_folder, step, FIRST) if path is None else path


def _place(run_folder: Location, step: int, attempt: int) -> Location:
    """Return the path of an attempt's checkpoint before a step; other attempts have other paths."""
    return RunFolder(run_folder).checkpoints / checkpoint_name(step, attempt)


def save_checkpoint(
    run_folder: Location,
    checkpoint: Checkpoint,
    keep: int,
    spared: Collection[int] = (),
    *,
    attempt: int = FIRST,
) -> Location:
    """Write a whole checkpoint, and prune older ones; see :func:`prune_checkpoints`.

    It is on the disk at the return, if the file system can flush.

    Raises:
        FloatingPointError: Weights or moments are not finite; there is no checkpoint.
        SupersededError: A later attempt has begun.
    """
    path = _place(run_folder, checkpoint.step, attempt)
    with storage.built_folder(path) as folder:
        write_files(folder, checkpoint)
        storage.flush_tree(folder)
    # A rename is durable only after a flush of the folder around it.
    storage.flush(path.parent)
    prune_checkpoints(run_folder, checkpoint.step, keep, spared)
    return path


def write_files(folder: str | Path, checkpoint: Checkpoint) -> None:
    """Write the files of a checkpoint to a local folder, array by array.

    Raises:
        FloatingPointError: Weights or moments are not finite; the files are not whole.
    """
    files = {
        WEIGHTS: _finite(checkpoint.step, "the weight", checkpoint.weights),
        MOMENTS: _finite(checkpoint.step, "the optimiser array", checkpoint.moments),
    }
    written = {name: Path(folder, name) for name, arrays in files.items() if arrays}
    for name, path in written.items():
        save_weights(path, files[name])
    state = {
        "step": checkpoint.step,
        "encoder": checkpoint.spec.to_json(),
        "files": {name: _fingerprint(path) for name, path in written.items()},
    }
    # Last, since it holds the checksums of the other files.
    storage.write_json(Path(folder, STATE), state)


def _finite(step: int, kind: str, arrays: Mapping[str, np.ndarray]) -> LazyArrays:
    """Refuse fp32 arrays with infinity or NaN, each at its first use.

    A step's loss comes before its update, so no loss shows a divergence in the last update.
    ``kind`` describes the arrays in the FloatingPointError, beside the array's name.
    """

    def checked(name: str) -> np.ndarray:
        array = arrays[name]
        # The fp64 sum of any fp32 array is finite, and costs less than a test of each number.
        # Infinities of both signs add up to NaN.
        with np.errstate(invalid="ignore"):
            total = array.sum(dtype=np.float64)
        if not np.isfinite(total):
            raise FloatingPointError(
                f"after step {step - 1} {kind} {name} holds infinity or NaN."
                " Lower training.learning_rate."
            )
        return array

    return LazyArrays(shapes_of(arrays), checked)


def save_frozen(run_folder: Location, frozen: Frozen) -> None:
    """Write the frozen weights, if any, once and before the first checkpoint."""
    if not frozen.weights:
        return
    path = RunFolder(run_folder).frozen
    with storage.built_folder(path) as folder:
        save_weights(folder / WEIGHTS, frozen.weights)
        files = {WEIGHTS: _fingerprint(folder / WEIGHTS)}
        storage.write_json(folder / STATE, {"scale": frozen.scale, "files": files})
        storage.flush_tree(folder)
    storage.flush(path.parent)


def upload_checkpoint(
    written: str,
    run_folder: Location,
    step: int,
    keep: int,
    spared: Collection[int] = (),
    *,
    attempt: int = FIRST,
) -> None:
    """Copy a checkpoint of :func:`write_files` to its place, and prune older ones."""
    with storage.new_folder(_place(run_folder, step, attempt)) as folder:
        storage.copy_folder(Path(written), folder)
    prune_checkpoints(run_folder, step, keep, spared)


def prune_checkpoints(
    run_folder: Location, step: int, keep: int, spared: Collection[int] = ()
) -> None:
    """Delete checkpoints up to ``step``, except the last ``keep`` and the ``spared`` steps."""
    # Newer ones may be torn: if they counted, a whole checkpoint would go in their favour.
    steps = [earlier for earlier in checkpoint_steps(run_folder) if earlier <= step]
    for old in (old for old in steps[:-keep] if old not in spared):
        storage.remove_folder(checkpoint_path(run_folder, old))


def remove_torn_checkpoints(run_folder: Location) -> None:
    """Remove unfinished checkpoints of writers on any host; no other process writes now."""
    storage.sweep(RunFolder(run_folder).checkpoints)


def load_checkpoint(
    run_folder: Location, step: int, rows: Rows | None = None, *, lazily: bool = False
) -> Checkpoint:
    """Read the checkpoint before a step, after a check of its files' sizes.

    Args:
        rows: See :func:`pipelines.models.weights.load_weights`; for trained weights only.
        lazily: Whether to read each array at its first use; the files must stay until then.

    Raises:
        TornCheckpoint: It is not whole.
    """
    return load_state(run_folder, checkpoint_path(run_folder, step), rows, lazily=lazily)


def load_state(
    run_folder: Location, folder: Location, rows: Rows | None = None, *, lazily: bool = False
) -> Checkpoint:
    """Read a state of a run from another folder; see :func:`load_checkpoint`."""
    path, state = _local_state(folder)
    with_moments = MOMENTS in state.files
    # Only parameter servers read rows, and they need no frozen weights.
    return Checkpoint(
        step=state.step,
        spec=state.spec,
        weights=_read_arrays(path / WEIGHTS, rows, lazily=lazily),
        moments=_read_arrays(path / MOMENTS, rows, lazily=lazily) if with_moments else {},
        frozen=_load_frozen(run_folder) if rows is None else NOTHING,
    )


def _load_frozen(run_folder: Location) -> Frozen:
    folder = RunFolder(run_folder).frozen
    if not folder.is_dir():
        return NOTHING
    path, state = _local_state(folder)
    return Frozen(weights=_read_arrays(path / WEIGHTS), scale=state.scale)


def load_spec(run_folder: Location, step: int) -> EncoderSpec:
    """Read only the encoder's shape, from the checkpoint before a step.

    Raises:
        TornCheckpoint: It cannot be read.
    """
    return _State.read(current(checkpoint_path(run_folder, step))).spec


def load_shapes(run_folder: Location, step: int) -> Shapes:
    """Read the shapes of the trained weights, from the checkpoint before a step.

    Raises:
        TornCheckpoint: It is not whole.
    """
    path, _ = _local_state(checkpoint_path(run_folder, step))
    with _telling_damage(path / WEIGHTS):
        return stored_shapes(path / WEIGHTS)


def check_checkpoint(run_folder: Location, step: int) -> None:
    """Read a whole checkpoint and the frozen weights, and compare them with their checksums.

    Raises:
        TornCheckpoint: It is not whole.
    """
    checkpoint, frozen = checkpoint_path(run_folder, step), RunFolder(run_folder).frozen
    for folder in (checkpoint, *([frozen] if frozen.is_dir() else [])):
        path, state = _local_state(folder)
        # Properties raise for a missing part, so their access is the check.
        if folder is not checkpoint:
            _ = state.scale
        elif state.spec and state.step != step:
            raise TornCheckpoint(f"{path / STATE} belongs to another step")
        for name, written in state.files.items():
            if _fingerprint(path / name) != written:
                raise TornCheckpoint(f"{path / name} does not match its checksum")


def checkpoint_steps(run_folder: Location) -> list[int]:
    """Return the steps of the accepted checkpoints, in order, whole or torn."""
    return list(accepted_checkpoints(run_folder))


def newest_whole_checkpoint(run_folder: Location, latest: int | None = None) -> int | None:
    """Return the newest step with a whole checkpoint, up to ``latest``; warn of torn ones.

    Only the driver calls it, since it reads whole files.
    """
    for step in reversed(checkpoint_steps(run_folder)):
        if latest is not None and step > latest:
            continue
        try:
            check_checkpoint(run_folder, step)
        except TornCheckpoint as torn:
            logger.warning("skipping a torn checkpoint: %s", torn)
        else:
            return step
    return None


def newest_checkpoint(run_folder: Location) -> int:
    """Return the newest step to go on from; see :func:`newest_whole_checkpoint`.

    Raises:
        InputError: There is none.
    """
    step = newest_whole_checkpoint(run_folder)
    if step is None:
        raise InputError(
            "training.resume",
            f"{run_folder} holds no whole checkpoint",
            "Restore one, or start anew with run.overwrite",
        )
    return step


class CheckpointWriter:
    """Writes the checkpoints of a run, one after the other. Runs on an executor.

    A checkpoint for a store goes to the local disk first. The next step may then begin, while a
    thread copies the files. The writer waits for the previous copy, so the disk holds one at most.
    """

    def __init__(
        self, run_folder: Location, training: TrainingSettings, attempt: int = FIRST
    ) -> None:
        self._run_folder = run_folder
        self._training = training
        self._attempt = attempt
        self._copying = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._last: Future[None] | None = None

    def save(self, checkpoint: Checkpoint, saved: Callable[[int], None]) -> None:
        """Write a checkpoint, then call ``saved`` with its step, perhaps on another thread.

        Raises:
            FloatingPointError: It holds infinity or NaN; there is no checkpoint.
            OSError: It, or the one before it, cannot be written.
        """
        if as_local(self._run_folder) is not None:
            kept = self._kept(checkpoint.step)
            save_checkpoint(self._run_folder, checkpoint, *kept, attempt=self._attempt)
            saved(checkpoint.step)
            return
        self.wait()
        written = TemporaryDirectory(prefix="sentence-pipelines-")
        try:
            write_files(written.name, checkpoint)
        except BaseException:
            # The check runs while arrays are written, so most files may exist by now.
            written.cleanup()
            raise
        self._last = self._copying.submit(self._upload, written, checkpoint.step, saved)

    def wait(self) -> None:
        """Wait until the last checkpoint is whole.

        Raises:
            OSError: It cannot be written.
        """
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def _upload(
        self, written: TemporaryDirectory[str], step: int, saved: Callable[[int], None]
    ) -> None:
        with written:
            kept = self._kept(step)
            upload_checkpoint(written.name, self._run_folder, step, *kept, attempt=self._attempt)
        saved(step)

    def _kept(self, step: int) -> tuple[int, tuple[int, ...]]:
        """Return the number of checkpoints to keep, and the steps of further kept ones."""
        return self._training.kept_checkpoints, self._training.averaged_steps(step)
