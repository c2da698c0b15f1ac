"""The terms of a prepared corpus. Runs on the driver, which reads a bounded sample.

Source: Deerwester, Dumais, Furnas, Landauer and Harshman, "Indexing by latent semantic analysis",
Journal of the American Society for Information Science 41(6), 1990. As usual there, counts are
weighted first: the logarithm of the count times the inverse document frequency, in documents of
length 1. Of a token's row of V S^(1/2) only the direction is kept. Its length is the inverse
document frequency to the power of 0.75, so that a text is the plain mean of its tokens.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import InputError
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.models.inference.batches import TokenRows
from pipelines.models.spec import EncoderSpec
from pipelines.settings import Config
from pipelines.settings.encoder import LsaSettings
from pipelines.spark.parquet_parts import find_files
from pipelines.tokens.encoding import TextEncoder, open_encoder
from pipelines.tokens.stage import SIDES, sampled_pairs
from pipelines.tokens.vocabulary import load_tokenizer, read_special_ids

KEY = "encoder.lsa.dimensions"
MOST_TEXTS = 50_000
"""Pairs whose words are counted: fewer would do to know which tokens go together."""
POWER = 0.75
"""Of the inverse document frequency. From 0.5 to 1 it makes little difference; see the page on
measurements, the source of all constants here."""
_SEED, _ITERATIONS = 0, 7
"""Of the decomposition: Halko, Martinsson and Tropp, "Finding structure with randomness", SIAM
Review 53(2), 2011."""
_LEAST = 1e-9


def check_terms(config: Config, spec: EncoderSpec) -> None:
    """Refuse terms beside an unfit encoder, and a corpus without texts."""
    dimensions = config.encoder.lsa.dimensions
    if not dimensions:
        return
    if not hasattr(spec, "pooling"):
        raise InputError(
            KEY,
            f"architecture {spec.kind} pools no layers",
            "Set it to 0, or name a transformer in encoder.start",
        )
    if (spec.embedding_width + dimensions) % 2:
        raise InputError(
            KEY,
            f"the embedding's width, {spec.embedding_width} + {dimensions}, is odd",
            f"Set it to {dimensions + 1}, for example",
        )
    pairs = PreparedFolder.of(config).corpus.pairs
    if not find_files(pairs):
        raise InputError(KEY, f"there are no texts in {pairs}", "Prepare the corpus again")


def corpus_terms(prepared: PreparedFolder, spec: EncoderSpec, settings: LsaSettings) -> np.ndarray:
    """Return the vectors of a corpus's terms, its tokens, fp32 [vocabulary, dimensions].

    At most :data:`MOST_TEXTS` pairs are sampled.
    """
    tokenizer = prepared.tokens.tokenizer
    encoder = open_encoder(load_tokenizer(tokenizer), spec.max_length)
    rows = [_ids(encoder, batch) for batch in sampled_pairs(prepared, MOST_TEXTS)]
    lengths = [pc.binary_length(ids).to_numpy(zero_copy_only=False) // 4 for ids in rows]
    flat = b"".join(text for ids in rows for text in ids.to_pylist())
    # A prompt is in every text, so its tokens tell no text from another.
    prompts = pa.array(list(dict(spec.prompts.to_json()["prompts"]).values()), pa.string())
    of_prompts = np.frombuffer(b"".join(encoder.encode(prompts).ids.to_pylist()), "<i4")
    special = read_special_ids(tokenizer).special
    return find_term_vectors(
        TokenRows(np.frombuffer(flat, "<i4"), np.concatenate(lengths).astype(np.int32)),
        spec.vocabulary,
        settings.dimensions,
        settings.weight,
        left_out={*special, *of_prompts.tolist()},
    )


def _ids(encoder: TextEncoder, batch: pa.RecordBatch) -> pa.BinaryArray:
    """Return the token ids of the texts of each pair, one text after the other."""
    sides = [encoder.encode(batch[name]).ids for name in SIDES if name in batch.schema.names]
    return pc.binary_join_element_wise(*sides, b"", null_handling="skip")


def find_term_vectors(
    rows: TokenRows,
    vocabulary: int,
    dimensions: int,
    weight: float,
    left_out: Collection[int] = (),
) -> np.ndarray:
    """Return the vectors of a corpus's tokens, fp32 [vocabulary, dimensions].

    Left-out ids, such as special tokens, and ids without a text have zeros. With fewer texts or
    tokens than dimensions, the last numbers are 0. ``weight`` is the squared length of a text's
    mean vector, on average. Takes seconds for 50,000 texts.
    """
    from scipy import sparse

    ends = np.concatenate([[0], np.cumsum(rows.lengths, dtype=np.int64)])
    ones = np.ones(len(rows.ids), np.float32)
    counts = sparse.csr_matrix(
        (ones, rows.ids.astype(np.int64), ends), shape=(len(rows.lengths), vocabulary)
    )
    # The ones of a repeated id become its count.
    counts.sum_duplicates()
    texts_with = np.bincount(counts.indices, minlength=vocabulary)
    texts_with[list(left_out)] = 0
    used = texts_with > 0
    rareness = np.zeros(vocabulary)
    rareness[used] = np.log1p(counts.shape[0] / texts_with[used])
    vectors = _directions(counts, rareness, dimensions) * rareness[:, None] ** POWER
    means = (counts @ vectors) / rows.lengths[:, None]
    squared = float(np.mean(np.sum(means**2, axis=1)))
    scaled: np.ndarray = vectors * np.sqrt(weight / max(squared, _LEAST))
    return scaled.astype(np.float32)


def _directions(counts: Any, rareness: np.ndarray, dimensions: int) -> np.ndarray:
    """Return unit vectors, fp64 [vocabulary, dimensions], of sparse counts [texts, vocabulary]."""
    from scipy import sparse
    from sklearn.utils.extmath import randomized_svd

    directions = np.zeros((counts.shape[1], dimensions))
    used = np.flatnonzero(rareness)
    weighed = counts[:, used].astype(np.float64)
    weighed.data = 1 + np.log(weighed.data)
    weighed = weighed @ sparse.diags_array(rareness[used])
    lengths = np.sqrt(np.asarray(weighed.multiply(weighed).sum(axis=1)).ravel())
    weighed = sparse.diags_array(1 / np.maximum(lengths, _LEAST)) @ weighed
    rank = min(dimensions, *weighed.shape)
    if not rank:
        return directions
    # SciPy's own decomposition of sparse matrices gives other signs every time.
    _, values, right = randomized_svd(weighed, rank, n_iter=_ITERATIONS, random_state=_SEED)
    found = right.T * np.sqrt(values)
    norms = np.linalg.norm(found, axis=1, keepdims=True)
    directions[used, :rank] = found / np.maximum(norms, _LEAST)
    return directions
