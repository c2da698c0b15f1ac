"""The files of a checkpoint, read with every damage told in one line that names the file.

``state.json`` lists the others with their sizes and checksums.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from pipelines.errors import DamagedFileError, PipelineError
from pipelines.files import records
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location
from pipelines.files.records import DAMAGED
from pipelines.models.arrays import stored_arrays
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import Rows, load_weights

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
