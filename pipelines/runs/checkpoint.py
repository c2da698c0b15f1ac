"""Checkpoints: folders ``checkpoints/step-00001200``, each whole or not there.

A checkpoint is taken *before* the step that it is named after: step 0 holds the weights that
training starts from, so that starting and resuming are one thing.

Its ``state.json`` names its files with their sizes and checksums, since a rename alone does not
make a folder whole: a machine that loses power, or a mount that loses a write, leaves files short.
What is not trained does not change, and lies beside the checkpoints once, in ``frozen``. Whoever
loads a checkpoint compares the sizes; the driver reads the contents once, before a run goes
on, and takes an older checkpoint where the newest is torn.

The files of a checkpoint, read with every damage told in one line that names the file.

``state.json`` lists the others with their sizes and checksums.
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

WEIGHTS, MOMENTS, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


class TornCheckpoint(PipelineError):  # noqa: N818 - what it is, as users know it
    """A checkpoint that is not as it was written; the message names the file and the damage."""


def local(path: Location) -> Path:
    """A folder of checkpoints, on this machine.

    Raises:
        TornCheckpoint: It cannot be copied from its store.
    """
    try:
        return local_folder(path)
    except OSError as error:
        raise TornCheckpoint(f"{path} cannot be read ({error})") from error


def checked_state(path: Path) -> dict[str, Any]:
    """The content of ``state.json``, if the files have the sizes in it.

    Raises:
        TornCheckpoint: They do not, or it is incomplete.
    """
    state = read_state(path)
    files = state.get("files")
    if not (isinstance(files, dict) and all(map(_is_fingerprint, files.values()))):
        raise TornCheckpoint(f"{path / STATE} does not list files and sizes")
    if not {WEIGHTS} <= files.keys() <= {WEIGHTS, MOMENTS}:
        raise TornCheckpoint(f"{path / STATE} lists other files than those of a checkpoint")
    for name, written in files.items():
        try:
            found = (path / name).stat().st_size
        except OSError as error:
            raise TornCheckpoint(f"{path / name} is missing ({error.strerror})") from None
        if found != written["bytes"]:
            raise TornCheckpoint(f"{path / name} has {found:,} of {written['bytes']:,} bytes")
    return state


def read_state(path: Location) -> dict[str, Any]:
    """The content of ``state.json``.

    Raises:
        TornCheckpoint: There is none.
    """
    try:
        state: dict[str, Any] = records.read(path / STATE, dict[str, Any])
    except FileNotFoundError:
        raise TornCheckpoint(f"{path / STATE} is missing") from None
    except DamagedFileError as error:
        raise TornCheckpoint(f"{path / STATE} cannot be read ({error.problem})") from error
    except OSError as error:
        raise TornCheckpoint(f"{path / STATE} cannot be read ({error})") from error
    return state


def _is_fingerprint(written: object) -> bool:
    """Whether it is what :func:`fingerprint` gives."""
    return isinstance(written, dict) and isinstance(written.get("bytes"), int)


def step_of(path: Location, state: Mapping[str, Any]) -> int:
    """The step of a state.

    Raises:
        TornCheckpoint: It has none.
    """
    step = state.get("step")
    if not isinstance(step, int):
        raise TornCheckpoint(f"{path / STATE} holds no step")
    return step


def scale_of(path: Location, state: Mapping[str, Any]) -> float:
    """By what the products of LoRA are multiplied, of a state that is not trained.

    Raises:
        TornCheckpoint: It does not say.
    """
    try:
        scale = float(state["scale"])
    except DAMAGED:
        scale = math.nan
    if not math.isfinite(scale):
        raise TornCheckpoint(f"{path / STATE} holds no scale")
    return scale


def spec_of(path: Location, state: Mapping[str, Any]) -> EncoderSpec:
    """The shape of the encoder of a state.

    Raises:
        TornCheckpoint: It has none, or one of no known architecture.
    """
    with telling_damage(path / STATE):
        return EncoderSpec.from_json(state["encoder"])


def read_arrays(
    path: Path, rows: Rows | None = None, *, lazily: bool = False
) -> Mapping[str, np.ndarray]:
    """The arrays of a file; see :func:`pipelines.models.weights.load_weights`.

    Args:
        path: The file.
        rows: The rows that are wanted, as there.
        lazily: Whether each is read when it is asked for, from a file that has to stay.

    Raises:
        TornCheckpoint: It cannot be read.
    """
    with telling_damage(path):
        return stored_arrays(path) if lazily else load_weights(path, rows)


@contextmanager
def telling_damage(path: Location) -> Iterator[None]:
    """Has what libraries raise at a file name the file.

    Raises:
        TornCheckpoint: They raise anything.
    """
    try:
        yield
    except (OSError, PipelineError, SafetensorError, *DAMAGED) as error:
        told = " ".join(str(error).split())
        raise TornCheckpoint(f"{path} cannot be read ({told})") from error


def fingerprint(path: Path) -> dict[str, Any]:
    """Size and checksum of a file.

    Raises:
        TornCheckpoint: It cannot be read to its end.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return {"bytes": file.tell(), "sha256": digest}
    except OSError as error:
        raise TornCheckpoint(f"{path} cannot be read ({error})") from error


logger = logging.getLogger(__name__)

AVERAGE = "ema"
"""Stands before the names of moving averages."""


@dataclass(frozen=True)
class Checkpoint:
    """A state of training.

    Attributes:
        step: The next step.
        spec: The encoder's shape.
        weights: What is trained of its weights: all, unless parts are frozen or LoRA is used.
        moments: The optimiser's arrays, ``m/NAME`` and ``v/NAME``, and moving averages of the
            weights, ``ema/NAME``, if there are to be some; empty before step 1.
        frozen: What is not trained. It is not written with the checkpoint; see
            :func:`save_frozen`.

    Arrays may be read from a file, or gathered from all workers, when they are asked for: see
    :class:`pipelines.models.arrays.LazyArrays` and :meth:`gathered`.
    """

    step: int
    spec: EncoderSpec
    weights: Mapping[str, np.ndarray]
    moments: Mapping[str, np.ndarray]
    frozen: Frozen = NOTHING

    @property
    def averages(self) -> Weights:
        """What the model is made of: the moving averages of the weights, or else these."""
        return {
            name: self.moments.get(f"{AVERAGE}/{name}", value)
            for name, value in self.weights.items()
        }

    def gathered(self) -> Checkpoint:
        """The same with all arrays in memory; all workers call it if they share the state."""
        arrays = [{name: of[name] for name in stored_order(of)} for of in self._by_file]
        return replace(self, weights=arrays[0], moments=arrays[1])

    def pass_through(self) -> None:
        """Makes one array after the other, and keeps none, as :func:`write_files` does.

        By it a worker takes part in what rank 0 writes.
        """
        for arrays in self._by_file:
            for name in stored_order(arrays):
                arrays[name]

    @property
    def _by_file(self) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        """The arrays in the order in which they are written."""
        return self.weights, self.moments

    @property
    def encoder_weights(self) -> Weights:
        """All weights of the encoder that this state stands for."""
        return effective(self.averages, self.frozen.weights, self.frozen.scale)


def checkpoint_path(run_folder: Location, step: int) -> Location:
    """Where the checkpoint before a step is that counts, if there is one."""
    path = accepted_checkpoints(run_folder).get(step)
    return _place(run_folder, step, FIRST) if path is None else path


def save_checkpoint(
    run_folder: Location,
    checkpoint: Checkpoint,
    keep: int,
    spared: Collection[int] = (),
    *,
    attempt: int = FIRST,
) -> Location:
    """Writes a checkpoint aside, renames it, and prunes older ones.

    It is on the disk when this returns, where the file system can flush.

    Args:
        keep: See :func:`prune_checkpoints`.
        spared: The same.
        attempt: On the run, see :mod:`pipelines.runs.attempts`.

    Raises:
        FloatingPointError: Weights or moments hold numbers that are none; there is no checkpoint.
        SupersededError: A later attempt has begun.
    """
    path = _place(run_folder, checkpoint.step, attempt)
    with storage.built_folder(path) as folder:
        write_files(folder, checkpoint)
        storage.flush_tree(folder)
    storage.flush(path.parent)
    prune_checkpoints(run_folder, checkpoint.step, keep, spared)
    return path


def write_files(folder: str | Path, checkpoint: Checkpoint) -> None:
    """Writes the files of a checkpoint to a folder of this machine, array by array.

    Raises:
        FloatingPointError: Weights or moments hold numbers that are none; the files are not whole.
    """
    files = {
        WEIGHTS: _finite(checkpoint.step, "the weight", checkpoint.weights),
        MOMENTS: _finite(checkpoint.step, "the optimiser's", checkpoint.moments),
    }
    written = {name: Path(folder, name) for name, arrays in files.items() if arrays}
    for name, path in written.items():
        save_weights(path, files[name])
    state = {
        "step": checkpoint.step,
        "encoder": checkpoint.spec.to_json(),
        "files": {name: fingerprint(path) for name, path in written.items()},
    }
    storage.write_json(Path(folder, STATE), state)


def save_frozen(run_folder: Location, frozen: Frozen) -> None:
    """Writes what is not trained, once and before the first checkpoint; nothing if all is."""
    if not frozen.weights:
        return
    path = RunFolder(run_folder).frozen
    with storage.built_folder(path) as folder:
        save_weights(folder / WEIGHTS, frozen.weights)
        files = {WEIGHTS: fingerprint(folder / WEIGHTS)}
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
    """Copies a checkpoint that :func:`write_files` has written, and prunes older ones."""
    with storage.new_folder(_place(run_folder, step, attempt)) as folder:
        storage.copy_folder(Path(written), folder)
    prune_checkpoints(run_folder, step, keep, spared)


def prune_checkpoints(
    run_folder: Location, step: int, keep: int, spared: Collection[int] = ()
) -> None:
    """Deletes old checkpoints, so that ``keep`` are left up to the one before ``step``.

    Args:
        spared: Steps whose checkpoints are left too.
    """
    # Newer ones, which may be torn, do not count: a whole one would be deleted for their sake.
    known = [known for known in checkpoint_steps(run_folder) if known <= step]
    for old in (old for old in known[:-keep] if old not in spared):
        storage.remove_folder(checkpoint_path(run_folder, old))


def remove_torn_checkpoints(run_folder: Location) -> None:
    """Removes what writers that are gone left unfinished, on whatever host they were.

    Args:
        run_folder: No other process writes to it now.
    """
    storage.sweep(RunFolder(run_folder).checkpoints)


def load_checkpoint(
    run_folder: Location, step: int, rows: Rows | None = None, *, lazily: bool = False
) -> Checkpoint:
    """Reads the checkpoint before a step, whose files have the sizes that they had.

    Args:
        rows: See :func:`pipelines.models.weights.load_weights`; of what is trained alone.
        lazily: See :func:`pipelines.runs.checkpoint.read_arrays`.

    Raises:
        TornCheckpoint: It is not whole.
    """
    return load_state(run_folder, checkpoint_path(run_folder, step), rows, lazily=lazily)


def load_state(
    run_folder: Location, folder: Location, rows: Rows | None = None, *, lazily: bool = False
) -> Checkpoint:
    """Reads the state of a run that lies in a folder of its own; see :func:`load_checkpoint`."""
    path = local(folder)
    state = checked_state(path)
    with_moments = MOMENTS in state["files"]
    return Checkpoint(
        step=step_of(path, state),
        spec=spec_of(path, state),
        weights=read_arrays(path / WEIGHTS, rows, lazily=lazily),
        moments=read_arrays(path / MOMENTS, rows, lazily=lazily) if with_moments else {},
        frozen=_load_frozen(run_folder) if rows is None else NOTHING,
    )


def load_spec(run_folder: Location, step: int) -> EncoderSpec:
    """Reads the shape of the encoder, of the checkpoint before a step, and nothing else.

    Raises:
        TornCheckpoint: It cannot be read.
    """
    path = current(checkpoint_path(run_folder, step))
    return spec_of(path, read_state(path))


def load_shapes(run_folder: Location, step: int) -> Shapes:
    """Reads the shapes of what is trained, of the checkpoint before a step.

    Raises:
        TornCheckpoint: It is not whole.
    """
    path = local(checkpoint_path(run_folder, step))
    checked_state(path)
    with telling_damage(path / WEIGHTS):
        return stored_shapes(path / WEIGHTS)


def check_checkpoint(run_folder: Location, step: int) -> None:
    """Compares all of a checkpoint with what was written, which reads all of it.

    What is not trained is a part of it.

    Raises:
        TornCheckpoint: It is not whole.
    """
    own, frozen = checkpoint_path(run_folder, step), RunFolder(run_folder).frozen
    for folder in (own, *([frozen] if frozen.is_dir() else [])):
        path = local(folder)
        state = checked_state(path)
        if folder is not own:
            scale_of(path, state)
        elif spec_of(path, state) and step_of(path, state) != step:
            raise TornCheckpoint(f"{path / STATE} is of another step")
        for name, written in state["files"].items():
            if fingerprint(path / name) != written:
                raise TornCheckpoint(f"{path / name} does not hold what was written (its checksum)")


def checkpoint_steps(run_folder: Location) -> list[int]:
    """The steps before which there are checkpoints that count, whole or torn, oldest first."""
    return list(accepted_checkpoints(run_folder))


def newest_whole_checkpoint(run_folder: Location, latest: int | None = None) -> int | None:
    """The newest step whose checkpoint is whole, and warns of newer ones that are not.

    Reads all of it, so the driver alone asks for it.

    Args:
        latest: No step after this one, if given.

    Returns:
        The step; None if there is none.
    """
    for step in reversed(checkpoint_steps(run_folder)):
        if latest is not None and step > latest:
            continue
        try:
            check_checkpoint(run_folder, step)
        except TornCheckpoint as torn:
            logger.warning("a checkpoint is torn and is passed over: %s", torn)
        else:
            return step
    return None


def newest_checkpoint(run_folder: Location) -> int:
    """The newest step to go on from; see :func:`newest_whole_checkpoint`.

    Raises:
        InputError: There is none.
    """
    step = newest_whole_checkpoint(run_folder)
    if step is None:
        raise InputError(
            "training.resume",
            f"{run_folder} holds no whole checkpoint",
            "put one back, or begin anew with run.overwrite",
        )
    return step


def _place(run_folder: Location, step: int, attempt: int) -> Location:
    """Where an attempt writes its checkpoint before a step, and no other does."""
    return RunFolder(run_folder).checkpoints / checkpoint_name(step, attempt)


def _load_frozen(run_folder: Location) -> Frozen:
    """What is not trained of the encoder of a run.

    Raises:
        TornCheckpoint: It is not whole.
    """
    folder = RunFolder(run_folder).frozen
    if not folder.is_dir():
        return NOTHING
    path = local(folder)
    state = checked_state(path)
    return Frozen(weights=read_arrays(path / WEIGHTS), scale=scale_of(path, state))


def _finite(step: int, kind: str, arrays: Mapping[str, np.ndarray]) -> LazyArrays:
    """Arrays, of which those are refused when they are made that hold numbers that are not finite.

    The loss of a step is computed before its update, so no loss shows a last update that diverged.

    Args:
        step: Of the checkpoint.
        kind: What the arrays are, for the error, a FloatingPointError that names the array.
        arrays: fp32.
    """

    def checked(name: str) -> np.ndarray:
        array = arrays[name]
        # A sum of all fp32 numbers there are is within fp64, and costs less than looking at each.
        # Infinities of both signs add up to no number.
        with np.errstate(invalid="ignore"):
            total = array.sum(dtype=np.float64)
        if not np.isfinite(total):
            raise FloatingPointError(
                f"after step {step - 1} {kind} {name} holds numbers that are not"
                " finite: lower training.learning_rate"
            )
        return array

    return LazyArrays(shapes_of(arrays), checked)


class CheckpointWriter:
    """Writes the checkpoints of a run, one after the other. Runs on an executor.

    A checkpoint for a store is written to the disk of this machine, which is when the next step may
    begin, and copied by a thread. The copy before it has ended by then, so that the disk holds no
    more than one.

    Args:
        run_folder: Where they go.
        training: Says which stay.
        attempt: On the run, see :mod:`pipelines.runs.attempts`.
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
        """Writes a checkpoint.

        Args:
            checkpoint: The state before a step.
            saved: Called with the step once the checkpoint is whole, perhaps on another thread.

        Raises:
            FloatingPointError: It holds numbers that are none; there is no checkpoint.
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
            # Numbers are looked at while they are written: much of it may be there.
            written.cleanup()
            raise
        self._last = self._copying.submit(self._copy, written, checkpoint.step, saved)

    def wait(self) -> None:
        """Returns when the last checkpoint is whole.

        Raises:
            OSError: It cannot be written.
        """
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def _copy(
        self, written: TemporaryDirectory[str], step: int, saved: Callable[[int], None]
    ) -> None:
        with written:
            kept = self._kept(step)
            upload_checkpoint(written.name, self._run_folder, step, *kept, attempt=self._attempt)
        saved(step)

    def _kept(self, step: int) -> tuple[int, tuple[int, ...]]:
        """How many stay when that before a step is there, and which others."""
        return self._training.kept_checkpoints, self._training.averaged_steps(step)
