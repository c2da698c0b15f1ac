"""int8 matrix products for a table: their calibration on its texts, and their acceptance.

A sample of the texts is drawn on the driver. One task calibrates the products on half of it, and
embeds the other half in both forms. A table keeps its calibration as long as its vectors.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipelines.arrow_columns import as_text
from pipelines.errors import InputError
from pipelines.files.copies import local_folder
from pipelines.models.folder import read_model
from pipelines.models.inference.backends import INT8, PRECISION, check_int8_here, choose_precision
from pipelines.models.inference.batches import TokenRows, text_column
from pipelines.models.inference.embedder import TextEmbedder, load_embedder
from pipelines.models.lsa.modules import without_terms
from pipelines.spark.tasks import collect_from_tasks
from pipelines.tokens.encoding import PromptedEncoder, open_encoder
from pipelines.vectors.embedding import EmbeddingOptions, shortened
from pipelines.vectors.nearest import nearest, unit_length
from pipelines.vectors.parts import RowRange, read_rows
from pipelines.vectors.table_job import run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

CALIBRATION_FILE = "_calibration.safetensors"
SAMPLE_TEXTS = 1024
SAMPLE_TOKENS = 65536
"""Tokens of a sample, so that long texts and large models take a minute on one core."""
LEAST_TEXTS = 100
"""Texts of half a sample: with fewer, ranges of activations and ten neighbours say little."""
WINDOWS = 64
"""Places of a table that a sample comes from."""
NEAREST = 10
LEAST_KEPT = 0.9
"""Share of each text's nearest texts that must stay, in the mean."""
MOST_LOSS = 0.005
"""Share of a judged set's nDCG@10 that may be lost."""
_INSTEAD = f"Set {PRECISION}=auto"


@dataclass(frozen=True)
class Int8Form:
    """The int8 form of a table's model, beside the form in fp32.

    ``calibration`` is the digest of its file. The figures are of ``texts`` of the table:
    ``neighbours_kept`` of their ten nearest among them, the share ``lists_changed`` of such lists
    with another member, and cosines with the vectors in fp32. ``ndcg`` has nDCG@10 of both forms
    on judged sets, `fp32` and `int8`, by set.
    """

    calibration: str
    texts: int
    neighbours_kept: float
    lists_changed: float
    mean_cosine: float
    least_cosine: float
    ndcg: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __str__(self) -> str:
        text = (
            f"int8 keeps {self.neighbours_kept:.1%} of the {NEAREST} nearest of {self.texts} texts,"
            f" and changes {self.lists_changed:.1%} of the lists; mean cosine"
            f" {self.mean_cosine:.4f}, least {self.least_cosine:.4f}"
        )
        found = (
            f"; nDCG@10 of {name} {known[INT8]:.2f}, in fp32 {known['fp32']:.2f}"
            for name, known in self.ndcg.items()
        )
        return text + "".join(found)


class Calibrated(NamedTuple):
    """The content of a calibration file, and its figures."""

    content: bytes
    form: Int8Form


Judge = Callable[[EmbeddingOptions, bytes], Mapping[str, Mapping[str, float]]]
"""Returns the ``ndcg`` of an :class:`Int8Form`, given options and a calibration."""


def calibrate_table(
    session: SparkSession, parts: Sequence[RowRange], column: str, options: EmbeddingOptions
) -> Calibrated:
    """Calibrate int8 products on the texts of a table, in a task.

    Raises:
        InputError: The table has too few texts, or int8 changes too many neighbours.
        PipelineError: The task failed, for example on a processor without the instructions.
    """
    texts = sample_texts(parts, column)
    if len(texts) < 2 * LEAST_TEXTS:
        problem = f"{len(texts)} different texts are too few to calibrate `int8`"
        raise InputError(PRECISION, problem, f"{_INSTEAD}, or embed at least {2 * LEAST_TEXTS}")
    work = partial(_calibrate_task, options=options)
    act = partial(collect_from_tasks, session, [texts], work)
    found: Calibrated = run_job(session, "embedding: calibrating int8", act)[0]
    check_kept(found.form)
    return found


def check_kept(form: Int8Form) -> None:
    """Refuse a form that changes too many neighbours.

    Raises:
        InputError: It does.
    """
    if form.neighbours_kept < LEAST_KEPT:
        raise InputError(
            PRECISION,
            f"`int8` keeps {form.neighbours_kept:.1%} of the {NEAREST} nearest texts of a sample,"
            f" less than {LEAST_KEPT:.0%}",
            _INSTEAD,
        )


def check_judged(ndcg: Mapping[str, Mapping[str, float]]) -> None:
    """Refuse a form that loses too much on a judged set.

    Raises:
        InputError: It does.
    """
    for name, known in ndcg.items():
        if known[INT8] < known["fp32"] * (1 - MOST_LOSS):
            raise InputError(
                PRECISION,
                f"`int8` lowers nDCG@10 of {name} from {known['fp32']:.2f} to {known[INT8]:.2f},"
                f" more than {MOST_LOSS:.1%}",
                _INSTEAD,
            )


def sample_texts(parts: Sequence[RowRange], column: str) -> list[str]:
    """Return different texts, not blank, from places spread over the parts; the same ones always.

    ``column`` is that of the texts.
    """
    ends = list(accumulate(part.rows for part in parts))
    starts = [ends[-1] * number // WINDOWS for number in range(WINDOWS + 1)]
    texts: dict[str, None] = {}
    for start, behind in pairwise(starts):
        number = int(np.searchsorted(ends, start, side="right"))
        rows = min(SAMPLE_TEXTS // WINDOWS, behind - start)
        if rows == 0 or column in {constant.name for constant in parts[number].constants}:
            continue
        part = parts[number]
        first = part.start + start - (ends[number] - part.rows)
        for batch in read_rows(part.path, first, min(first + rows, part.stop), [column]):
            found = as_text(batch.column(0)).drop_null().to_pylist()
            texts |= dict.fromkeys(text for text in found if text.strip())
    return list(texts)


def _calibrate_task(
    tasks: Iterator[Sequence[str]], *, options: EmbeddingOptions
) -> Iterator[Calibrated]:
    """Calibrate on the texts of the only task. Runs on an executor."""
    for texts in tasks:
        check_int8_here()
        yield calibrated(texts, options)


def calibrated(texts: Sequence[str], options: EmbeddingOptions) -> Calibrated:
    """Calibrate int8 products on every second text, and compare both forms on the others.

    Runs on an executor.
    """
    from pipelines.models.frameworks import openvino_int8

    spec, weights, tokenizer = read_model(local_folder(options.model))
    encoder = PromptedEncoder(
        open_encoder(tokenizer, spec.max_length), spec.prompts.before(options.prompt_name)
    )
    rows, _ = TokenRows.distinct(encoder.encode(text_column(texts)))
    # Not fewer than what is compared at least, however long they are.
    within = int(np.searchsorted(np.cumsum(rows.lengths), SAMPLE_TOKENS))
    texts = texts[: max(within, 2 * LEAST_TEXTS)]
    rows, _ = TokenRows.distinct(encoder.encode(text_column(texts[::2])))
    calibration = openvino_int8.calibrate(
        *without_terms(spec, weights),
        rows,
        precision=choose_precision("auto"),
        threads=options.threads,
    )
    content = openvino_int8.packed(calibration)
    full, int8 = (
        _vectors(embedder, texts[1::2], options)
        for embedder in (_in_fp32(options), _in_int8(options, content))
    )
    return Calibrated(content, compared(full, int8, hashlib.sha256(content).hexdigest()))


def _vectors(embed: TextEmbedder, texts: Sequence[str], options: EmbeddingOptions) -> np.ndarray:
    """Return the vectors as a table would have them, of length 1."""
    found = embed(texts, options.prompt_name)
    return unit_length(shortened(found, options.dimensions, normalise=options.normalise))


def compared(full: np.ndarray, int8: np.ndarray, calibration: str) -> Int8Form:
    """Return the figures of vectors of the same texts, fp32 [texts, width] of length 1."""
    lists = [_nearest_texts(vectors) for vectors in (full, int8)]
    kept = np.array([len(before & after) for before, after in zip(*lists, strict=True)])
    cosines = np.einsum("ij,ij->i", full, int8)
    return Int8Form(
        calibration=calibration,
        texts=len(full),
        neighbours_kept=round(float(kept.mean()) / NEAREST, 4),
        lists_changed=round(float((kept < NEAREST).mean()), 4),
        mean_cosine=round(float(cosines.mean()), 6),
        least_cosine=round(float(cosines.min()), 6),
    )


def _nearest_texts(vectors: np.ndarray) -> list[set[int]]:
    """Return the nearest other texts of each text."""
    # A text is not always the nearest to itself: another may have equal tokens.
    found = nearest(vectors, vectors, np.arange(len(vectors)), NEAREST + 1)
    others = found.where(found.queries != found.documents)
    bounds = np.searchsorted(others.queries, np.arange(len(vectors) + 1))
    return [
        set(others.documents[low : min(low + NEAREST, high)].tolist())
        for low, high in pairwise(bounds)
    ]


def _in_fp32(options: EmbeddingOptions) -> TextEmbedder:
    return load_embedder(options.model, backend=options.backend, threads=options.threads)


def _in_int8(options: EmbeddingOptions, calibration: bytes) -> TextEmbedder:
    return load_embedder(
        options.model, precision=INT8, threads=options.threads, calibration=calibration
    )


def int8_documents(options: EmbeddingOptions, calibration: bytes) -> TextEmbedder:
    """Return an embedder of documents in int8, and of queries in fp32, as `search` has them.

    Runs on an executor.
    """
    embedder = _in_int8(options, calibration)
    embedder.queries = _in_fp32(options).queries  # type: ignore[method-assign]
    return embedder
