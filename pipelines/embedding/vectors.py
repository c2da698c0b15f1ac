"""Vectors as columns: shortened, quantised, and back.

Shortening keeps the first values of an embedding and scales it to length 1 again where the model
does. It suits models that were trained for it; source: Kusupati et al., "Matryoshka Representation
Learning", NeurIPS 2022, arXiv:2205.13147.

Quantising to int8 divides each vector by a scale of its own, its largest absolute value over 127,
and rounds; the scale is a column beside it. No value is off by more than half its vector's scale,
so the length of the error is at most sqrt(dimensions) / 254 times the largest absolute value.
Source: the vector-wise absmax quantisation of Dettmers, Lewis, Belkada and Zettlemoyer,
"LLM.int8()", NeurIPS 2022, arXiv:2208.07339.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.files.locations import Location, arrow_source

LEVELS = 127
SCALE_SUFFIX = "_scale"
"""Of the column of scales, behind the name of the column of vectors."""


def shortened(embeddings: np.ndarray, dimensions: int, *, normalise: bool) -> np.ndarray:
    """The first values of each embedding.

    Args:
        embeddings: fp32 [texts, width].
        dimensions: How many are kept.
        normalise: Whether what is left is scaled to length 1; zeros stay zeros.
    """
    if dimensions == embeddings.shape[1]:
        return embeddings
    kept = embeddings[:, :dimensions]
    if not normalise:
        return np.ascontiguousarray(kept)
    lengths = np.linalg.norm(kept, axis=1, keepdims=True)
    scaled: np.ndarray = kept / np.maximum(lengths, np.float32(1e-12))
    return scaled


def quantised(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 values and the scale that each vector's are to be multiplied by.

    Args:
        vectors: fp32 [texts, dimensions].

    Returns:
        int8 [texts, dimensions], of -127 to 127, and fp32 [texts]; the scale of zeros is 0.
    """
    scales = (np.abs(vectors).max(axis=1, initial=0.0) / LEVELS).astype(np.float32)
    divisors = np.where(scales > 0, scales, np.float32(1))
    values = np.clip(np.rint(vectors / divisors[:, None]), -LEVELS, LEVELS)
    return values.astype(np.int8), scales


def restored(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """fp32 [texts, dimensions] of what :func:`quantised` gave, but for its rounding."""
    vectors: np.ndarray = values.astype(np.float32) * scales.astype(np.float32)[:, None]
    return vectors


def vector_array(values: np.ndarray, present: np.ndarray) -> pa.ListArray:
    """Vectors as an Arrow column of lists, all of one size.

    Lists of fixed size as a type would say so, but neither Spark's Arrow reader nor pyarrow's
    Parquet writer takes them with nulls.

    Args:
        values: [texts that are present, dimensions], float32 or int8.
        present: bool [rows]; a row without a vector is null.
    """
    offsets = np.concatenate([[0], np.cumsum(present, dtype=np.int32) * values.shape[1]])
    mask = None if present.all() else pa.array(~present)
    flat = pa.array(values.reshape(-1))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat, mask=mask)


def vectors_of(column: pa.Array | pa.ChunkedArray, scales: pa.Array | None = None) -> np.ndarray:
    """fp32 [rows, dimensions] of a column of vectors without nulls.

    Args:
        column: Lists of one size.
        scales: Of a column of int8.

    Raises:
        ValueError: The lists are of several sizes.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    if len(column) == 0:
        return np.empty((0, 0), np.float32)
    if len(flat) % len(column) or not _of_one_size(column, len(flat) // len(column)):
        raise ValueError("the vectors are of several sizes")
    values = flat.reshape(len(column), -1)
    if scales is not None:
        return restored(values, scales.to_numpy(zero_copy_only=False))
    return np.ascontiguousarray(values, np.float32)


def _of_one_size(column: pa.Array, size: int) -> bool:
    if pa.types.is_fixed_size_list(column.type):
        return True
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    return bool((lengths == size).all())


@dataclass(frozen=True)
class KeptVectors:
    """Vectors that rows of a part keep.

    Attributes:
        rows: int64 [kept], ascending, counted from the part's first.
        values: float32 or int8 [kept, dimensions].
        scales: fp32 [kept] of int8.
    """

    rows: np.ndarray
    values: np.ndarray
    scales: np.ndarray | None

    @classmethod
    def read(cls, path: Location, dimensions: int, *, quantised: bool) -> KeptVectors:
        """Those of a part, from the file that was written for it. Runs on an executor."""
        table = pq.read_table(arrow_source(path), use_threads=False)
        table = table.filter(table["vector"].is_valid())
        kind = np.int8 if quantised else np.float32
        values = np.frombuffer(b"".join(table["vector"].to_pylist()), kind)
        scales = table["scale"].to_numpy() if quantised else None
        return cls(table["row"].to_numpy(), values.reshape(-1, dimensions), scales)

    def within(self, start: int, stop: int) -> KeptVectors:
        """Those of some rows of the part, counted from the first of these."""
        low, high = np.searchsorted(self.rows, [start, stop])
        scales = None if self.scales is None else self.scales[low:high]
        return KeptVectors(self.rows[low:high] - start, self.values[low:high], scales)
