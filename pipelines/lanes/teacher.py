"""The vectors that a teacher gave the texts of examples, as stages and lanes hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.errors import InputError
from pipelines.files import records, storage
from pipelines.files.prepared_folder import TeacherFolder
from pipelines.lanes.binary import binary_values
from pipelines.settings.preparing import Precision

SCHEMA = pa.schema([("id", pa.int64()), ("teacher", pa.list_(pa.binary()))])
"""Of ``examples.parquet``: of each example the vectors of its texts, in the order of the sides."""
_TYPES: Mapping[Precision, str] = {"fp16": "<f2", "fp32": "<f4"}


@dataclass(frozen=True, kw_only=True)
class TeacherVectors:
    """The vectors that a teacher gave the texts of all sides.

    Attributes:
        width: Values of a vector.
        precision: How they are stored.
        source: Digest of what they follow from: the model, or the tables that they were taken from.
    """

    width: int
    precision: Precision
    source: str

    @property
    def type(self) -> np.dtype[Any]:
        """Of the values, as they are stored."""
        return np.dtype(_TYPES[self.precision])

    @property
    def bytes(self) -> int:
        """Of a vector."""
        return self.width * self.type.itemsize

    def read(self, column: pa.Array) -> np.ndarray:
        """The vectors of a binary column, fp32 [rows, width]."""
        values, _ = binary_values(column, self.type)
        return values.reshape(len(column), self.width).astype(np.float32)

    def along(self, axes: np.ndarray) -> TeacherVectors:
        """The same vectors, which are projected as they are read.

        Args:
            axes: fp32 [width, fewer], orthogonal and of length 1.
        """
        return _Projected(**asdict(self), axes=axes)

    def write(self, vectors: np.ndarray) -> pa.Array:
        """A binary column of vectors, [rows, width]."""
        rows = np.ascontiguousarray(vectors, self.type)
        return pa.array([row.tobytes() for row in rows], pa.binary())

    def save(self, folder: TeacherFolder) -> None:
        """Writes ``manifest.json``."""
        storage.write_json(folder.manifest, asdict(self))

    @classmethod
    def load(cls, folder: TeacherFolder) -> TeacherVectors:
        """Reads ``manifest.json``.

        Raises:
            InputError: There are no vectors.
            DamagedFileError: The file does not say what they are.
        """
        if not folder.manifest.is_file():
            raise InputError(
                "prepared.folder",
                f"there are no vectors of a teacher in {folder.path}",
                "run `sentence-pipelines prepare` with the same settings first",
            )
        known: TeacherVectors = records.read(folder.manifest, TeacherVectors)
        return known


@dataclass(frozen=True, kw_only=True)
class _Projected(TeacherVectors):
    """Vectors that are projected as they are read.

    Attributes:
        axes: fp32 [width, fewer].
    """

    axes: np.ndarray

    def read(self, column: pa.Array) -> np.ndarray:
        """The vectors of a binary column, fp32 [rows, fewer]."""
        projected: np.ndarray = super().read(column) @ self.axes
        return projected
