"""Arrow columns of texts to columns of vectors: embedded, shortened, quantised, and back.

Shortening keeps the first values of an embedding, and rescales it to length 1 if the model
normalises. It suits models trained for it; source: Kusupati et al., "Matryoshka Representation
Learning", NeurIPS 2022, arXiv:2205.13147.

Int8 quantisation divides each vector by its own scale, its largest absolute value over 127, and
rounds; a second column holds the scales. No value is off by more than half its vector's scale, so
the length of the error is at most sqrt(dimensions) / 254 times the largest absolute value. Source:
the vector-wise absmax quantisation of Dettmers, Lewis, Belkada and Zettlemoyer, "LLM.int8()",
NeurIPS 2022, arXiv:2208.07339.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.arrow_columns import as_text
from pipelines.errors import InputError
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location, arrow_source, location
from pipelines.files.versions import current
from pipelines.models.folder import check_sides, encoder_kinds, read_model
from pipelines.models.identity import digest_of_side, model_digest
from pipelines.models.inference.backends import (
    GPU_BACKEND,
    INT8,
    PRECISION,
    Precision,
    backend_of_int8,
    choose_backend,
)
from pipelines.models.inference.embedder import TEXTS_AT_ONCE, TextEmbedder, load_embedder
from pipelines.settings import StorageSettings
from pipelines.settings.spark import DEFAULT_STORES
from pipelines.tokens.router import side_of
from pipelines.tokens.start import Prompts, default_start, read_prompts

KEY = "embedding.model"
PACKAGED = "default"
"""The packaged all-MiniLM-L6-v2 in place of a folder, as in ``encoder.start``."""
QUANTISATIONS = ("none", "int8")
PRECISIONS: tuple[str, ...] = get_args(Precision)
LEVELS = 127


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of the columns of texts (read) and vectors (written)."""

    text: str
    vector: str

    @property
    def scale(self) -> str:
        """The column of scales of quantised vectors."""
        return f"{self.vector}_scale"

    @property
    def stored(self) -> tuple[str, str]:
        """The columns written for quantised vectors."""
        return self.vector, self.scale


@dataclass(frozen=True, kw_only=True)
class EmbeddingOptions:
    """Plain values that decide a vector and its computation.

    Attributes:
        model: Model folder within reach of every executor; in a store, a version of it.
        model_sha256: Digest of the model's files: a replaced folder is thus loaded anew.
        made_by: Digest of the model behind these vectors: in a Router perhaps that of its model of
            documents, see :func:`~pipelines.models.identity.digest_of_side`.
        kinds: Architectures of the model's encoders: two in a Router.
        hidden: Width of the model's embeddings, before ``dimensions`` cuts them.
        normalise: Whether the model scales embeddings to length 1.
        backend: See :func:`pipelines.models.inference.embedder.load_embedder`, also for
            ``precision`` (of the matrix products: ``auto``, ``fp32``, ``bf16`` or ``int8``) and CPU
            ``threads``.
        calibration: File of int8 matrix products, in the folder of the table that they make.
        batch_tokens: Tokens of one forward pass; None for the device's default.
        prompt_name: The prompt before each text; see :meth:`pipelines.tokens.start.Prompts.before`.
        quantise: ``none`` for float32, or ``int8``; see :mod:`pipelines.vectors.embedding`.
    """

    model: Location
    model_sha256: str
    made_by: str
    kinds: tuple[str, ...]
    hidden: int
    normalise: bool
    backend: str = "auto"
    precision: str = "auto"
    threads: int = 1
    batch_tokens: int | None = None
    prompt_name: str | None = None
    dimensions: int
    quantise: str = "none"
    calibration: Location | None = None

    @property
    def is_quantised(self) -> bool:
        """Whether vectors are stored as int8 with a scale each."""
        return self.quantise != "none"


def model_folder(named: str | Location, stores: StorageSettings = DEFAULT_STORES) -> Location:
    """Return the folder of a model by its setting.

    Raises:
        InputError: It is the packaged model, which is not installed, or the name of a folder, too.
    """
    return _packaged() if named == PACKAGED else current(location(named, stores))


def _packaged() -> Path:
    if Path(PACKAGED).is_dir():
        problem = f"`{PACKAGED}` is the packaged model, and there is a folder of that name"
        raise InputError(KEY, problem, f"Write ./{PACKAGED} to use the folder, or rename it")
    return default_start(KEY)


def prompts_of(model: str | Location) -> Prompts:
    """Return the prompts of a model; see :func:`embedding_options`."""
    try:
        return read_prompts(local_folder(_existing(model)))
    except InputError as error:
        raise InputError(KEY, error.problem, error.remedy) from None


def _existing(model: str | Location) -> Location:
    folder = _packaged() if model == PACKAGED else location(model).expanduser().absolute()
    if not folder.is_dir():
        raise InputError(KEY, f"there is no folder {folder}", "Name a sentence-transformers folder")
    return folder


def embedding_options(
    model: str | Location,
    *,
    backend: str = "auto",
    precision: str = "auto",
    threads: int = 1,
    batch_tokens: int | None = None,
    prompt_name: str | None = None,
    dimensions: int | None = None,
    quantise: str = "none",
) -> EmbeddingOptions:
    """Return options checked against the model; see :class:`EmbeddingOptions` for the arguments.

    ``model`` is a folder for :func:`~pipelines.models.folder.read_model`; of a Router, the encoder
    for this prompt must fit, and both must have one width. ``dimensions`` None keeps all.

    Raises:
        InputError: The model is missing or narrower, or there is no such backend, precision, prompt
            or quantisation.
    """
    folder = _existing(model)
    known = {"quantise": (quantise, QUANTISATIONS), "precision": (precision, PRECISIONS)}
    for name, (asked, names) in known.items():
        if asked not in names:
            remedy = f"Choose one of {', '.join(names)}"
            raise InputError(f"embedding.{name}", f"there is no `{asked}`", remedy)
    if batch_tokens is not None and batch_tokens < 1:
        raise InputError(
            "embedding.batch_tokens", f"{batch_tokens} is too small", "Set it to at least 1"
        )
    try:
        spec, _, _ = read_model(folder, side_of(prompt_name))
        kinds = encoder_kinds(folder)
        # Each job may load one side only, and would compare vectors of several widths unawares.
        check_sides(folder)
    except InputError as error:
        raise InputError(KEY, error.problem, error.remedy) from None
    spec.prompts.before(prompt_name)
    width = spec.embedding_width
    if dimensions is not None and not 1 <= dimensions <= width:
        problem = f"{dimensions} is not within the model's {width}"
        raise InputError("embedding.dimensions", problem, f"Choose a number from 1 to {width}")
    is_int8 = precision == INT8
    if is_int8 and len(kinds) > 1:
        problem = f"{folder} is a Router of two encoders, which `int8` does not know"
        raise InputError(PRECISION, problem, "Name the model of its documents, or choose auto")
    chosen = backend_of_int8(backend, spec) if is_int8 else choose_backend(backend, *kinds)
    local = local_folder(folder)
    return EmbeddingOptions(
        model=folder,
        model_sha256=model_digest(local),
        made_by=digest_of_side(local, side_of(prompt_name)),
        kinds=kinds,
        hidden=width,
        normalise=spec.normalise,
        backend=chosen,
        precision=precision,
        threads=threads,
        batch_tokens=batch_tokens,
        prompt_name=prompt_name,
        dimensions=dimensions or width,
        quantise=quantise,
    )


def refuse_int8(precision: str, user: str) -> None:
    """Refuse int8 matrix products where no table holds their calibration.

    Raises:
        InputError: They are asked for; ``user`` is what cannot compute in them.
    """
    if precision == INT8:
        problem = f"`int8` is calibrated on a table of `embed`, not by {user}"
        raise InputError(PRECISION, problem, "Choose one of auto, fp32, bf16")


@lru_cache(maxsize=1)
def cached_embedder(options: EmbeddingOptions, device: str) -> TextEmbedder:
    """Load the model, and cache it between the tasks of a Python worker. Runs on an executor.

    Each task asks for its ``device``, since Spark may give the next task another GPU.
    """
    return load_embedder(
        options.model,
        backend=options.backend,
        threads=options.threads,
        precision=options.precision,
        device=device,
        batch_tokens=options.batch_tokens,
        calibration=None if options.calibration is None else options.calibration.read_bytes(),
    )


def task_device(backend: str) -> str:
    """Return the GPU that Spark gave this task, or the CPU. Runs on an executor."""
    if backend != GPU_BACKEND:
        return "cpu"
    from pipelines.training.devices import worker_device

    return str(worker_device())


def shortened(embeddings: np.ndarray, dimensions: int, *, normalise: bool) -> np.ndarray:
    """Return the first values of each embedding (fp32 [texts, width]).

    With ``normalise`` they are rescaled to length 1; zeros stay zeros.
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
    """Return vectors (fp32 [texts, dimensions]) as int8 of -127 to 127 and scales (fp32 [texts]).

    A value times its vector's scale restores it; the scale of zeros is 0.
    """
    scales = (np.abs(vectors).max(axis=1, initial=0.0) / LEVELS).astype(np.float32)
    divisors = np.where(scales > 0, scales, np.float32(1))
    values = np.clip(np.rint(vectors / divisors[:, None]), -LEVELS, LEVELS)
    return values.astype(np.int8), scales


def restored(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return fp32 [texts, dimensions], the inverse of :func:`quantised` up to rounding."""
    vectors: np.ndarray = values.astype(np.float32) * scales.astype(np.float32)[:, None]
    return vectors


def vector_array(values: np.ndarray, present: np.ndarray) -> pa.ListArray:
    """Return vectors as an Arrow column of lists, all of one size.

    The type is not a fixed-size list: with nulls, neither Spark's Arrow reader nor pyarrow's
    Parquet writer takes those. ``values`` are float32 or int8 [present texts, dimensions]; rows
    outside ``present`` (bool [rows]) become null.
    """
    offsets = np.concatenate([[0], np.cumsum(present, dtype=np.int32) * values.shape[1]])
    mask = None if present.all() else pa.array(~present)
    flat = pa.array(values.reshape(-1))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat, mask=mask)


def vectors_of(column: pa.Array | pa.ChunkedArray, scales: pa.Array | None = None) -> np.ndarray:
    """Return a column of vectors without nulls as fp32 [rows, dimensions].

    A column of int8 needs its ``scales``.

    Raises:
        ValueError: The lists are of several sizes.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    if len(column) == 0:
        return np.empty((0, 0), np.float32)
    size = len(flat) // len(column)
    if not pa.types.is_fixed_size_list(column.type):
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        if not (lengths == size).all():
            raise ValueError("the vectors differ in length")
    values = flat.reshape(len(column), size)
    if scales is not None:
        return restored(values, scales.to_numpy(zero_copy_only=False))
    return np.ascontiguousarray(values, np.float32)


@dataclass(frozen=True)
class KeptVectors:
    """Vectors kept for rows of a part.

    ``rows`` (int64 [kept]) ascend and count from the part's first row. ``values`` are float32 or
    int8 [kept, dimensions]; int8 values have ``scales`` (fp32 [kept]).
    """

    rows: np.ndarray
    values: np.ndarray
    scales: np.ndarray | None

    @classmethod
    def read(cls, path: Location, options: EmbeddingOptions) -> KeptVectors:
        """Read the kept vectors of a part, from the file written for it. Runs on an executor."""
        table = pq.read_table(arrow_source(path), use_threads=False)
        table = table.filter(table["vector"].is_valid())
        kind = np.int8 if options.is_quantised else np.float32
        values = np.frombuffer(b"".join(table["vector"].to_pylist()), kind)
        scales = table["scale"].to_numpy() if options.is_quantised else None
        return cls(table["row"].to_numpy(), values.reshape(-1, options.dimensions), scales)

    def within(self, start: int, stop: int) -> KeptVectors:
        """Return the vectors of rows from ``start`` to ``stop``, counted from ``start``."""
        low, high = np.searchsorted(self.rows, [start, stop])
        scales = None if self.scales is None else self.scales[low:high]
        return KeptVectors(self.rows[low:high] - start, self.values[low:high], scales)


def embed_arrow(
    texts: pa.Array, options: EmbeddingOptions, kept: KeptVectors | None = None
) -> tuple[pa.Array, pa.Array | None]:
    """Return a column of vectors, and of scales if quantised. Runs on an executor.

    A null text gives a null. Texts with ``kept`` vectors are not embedded again.
    """
    if kept is None:
        kept = KeptVectors(
            np.empty(0, np.int64), np.empty((0, options.dimensions)), np.empty(0, np.float32)
        )
    column = as_text(texts)
    present = column.is_valid().to_numpy(zero_copy_only=False)
    missing = present.copy()
    missing[kept.rows] = False
    present[kept.rows] = True
    new_texts = column.filter(pa.array(missing))
    vectors = np.empty((0, options.hidden), np.float32)
    # Without new texts the model is not even loaded.
    if len(new_texts):
        embed = cached_embedder(options, task_device(options.backend))
        vectors = embed(new_texts, options.prompt_name)
    vectors = shortened(vectors, options.dimensions, normalise=options.normalise)
    if not options.is_quantised:
        all_vectors = _spread(vectors, missing, kept.values, kept.rows)
        return vector_array(all_vectors[present], present), None
    values, scales = quantised(vectors)
    all_values = _spread(values, missing, kept.values, kept.rows)
    all_scales = _spread(scales, missing, kept.scales, kept.rows)
    return vector_array(all_values[present], present), pa.array(all_scales, mask=~present)


def _spread(
    made: np.ndarray, missing: np.ndarray, known: np.ndarray | None, rows: np.ndarray
) -> np.ndarray:
    """Return values of all rows: made where ``missing``, ``known`` at ``rows``, zeros elsewhere."""
    values = np.zeros((len(missing), *made.shape[1:]), made.dtype)
    values[missing] = made
    values[rows] = known
    return values


def embed_batches(
    batches: Iterable[pa.RecordBatch],
    *,
    options: EmbeddingOptions,
    columns: Columns,
    kept: KeptVectors | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield rows with their vectors behind the other columns. Runs on an executor.

    Rows with ``kept`` vectors are not embedded again.
    """
    first = 0
    for block in blocks(batches):
        kept_in_block = None if kept is None else kept.within(first, first + block.num_rows)
        vectors, scales = embed_arrow(block.column(columns.text), options, kept_in_block)
        first += block.num_rows
        added = {columns.vector: vectors}
        if scales is not None:
            added[columns.scale] = scales
        fields = [*block.schema, *(pa.field(name, array.type) for name, array in added.items())]
        yield pa.RecordBatch.from_arrays(
            [*block.columns, *added.values()], schema=pa.schema(fields, block.schema.metadata)
        )


def blocks(
    batches: Iterable[pa.RecordBatch], rows: int = TEXTS_AT_ONCE
) -> Iterator[pa.RecordBatch]:
    """Yield the input in batches of ``rows``; each is later sorted by length as a whole."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        remainder = batch
        while count + remainder.num_rows >= rows:
            yield _joined([*waiting, remainder.slice(0, rows - count)])
            remainder, waiting, count = remainder.slice(rows - count), [], 0
        if remainder.num_rows:
            waiting.append(remainder)
            count += remainder.num_rows
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
