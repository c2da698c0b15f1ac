"""The state of training on its way between dllib and checkpoints: files in the run folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder
from pipelines.models.frameworks.dllib import Graph, flattened, unflattened
from pipelines.runs.checkpoint import Checkpoint


@dataclass(frozen=True)
class States:
    """A folder that the executors write their slices of the state to.

    Attributes:
        folder: Reachable from all executors.
        workers: How many slices there are.
    """

    folder: Path
    workers: int

    def write_moments(self, graph: Graph, checkpoint: Checkpoint) -> str:
        """Writes what the optimiser begins from; returns the file, or nothing for zeros."""
        if not checkpoint.moments:
            return ""
        path = self.folder / "begin.bin"
        with path.open("wb") as file:
            for kind in ("m", "v"):
                own = {name: checkpoint.moments[f"{kind}/{name}"] for name in checkpoint.weights}
                flattened(graph, own).astype("<f4", copy=False).tofile(file)
        return str(path)

    def take(self, graph: Graph, step: int) -> Checkpoint:
        """The state before a step, which all executors have written; their files are deleted."""
        paths = [self.folder / f"state-{step}-{rank}.bin" for rank in range(self.workers)]
        slices = [np.fromfile(path, "<f4").reshape(3, -1) for path in paths]
        weights, *moments = (unflattened(graph, row) for row in np.concatenate(slices, axis=1))
        for path in paths:
            path.unlink()
        named = {
            f"{kind}/{name}": value
            for kind, arrays in zip(("m", "v"), moments, strict=True)
            for name, value in arrays.items()
        }
        return Checkpoint(step, graph.spec, weights, named)


@contextmanager
def states_in(run_folder: Location, workers: int) -> Iterator[States]:
    """A folder for the states, which is deleted in the end.

    Its name is another one each time: executors of an earlier attempt on the run, whose driver is
    gone, may end the step that they are in, and must not write its state where this one's is looked
    for. What a driver that died has left is swept when the run is gone on with, by any engine.

    Args:
        workers: How many slices of the state there are.
    """
    checkpoints = RunFolder(run_folder).checkpoints
    if not isinstance(checkpoints, Path):
        raise InputError(
            "run.folder",
            f"{run_folder} is in an object store, and BigDL's own layers exchange their states "
            "by files",
            "name a folder that the driver and all executors see, or choose another engine",
        )
    folder = storage.aside_name(checkpoints / "bigdl", ".part")
    folder.mkdir(parents=True)
    try:
        yield States(folder, workers)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
