"""The terms of a prepared corpus. Runs on the driver, by which a bounded sample is read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import InputError
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.models.inference.batches import TokenRows
from pipelines.models.lsa.terms import find_term_vectors
from pipelines.models.spec import EncoderSpec
from pipelines.settings import Config
from pipelines.settings.encoder import LsaSettings
from pipelines.spark.parquet_parts import find_files
from pipelines.tokens.encoding import TextEncoder, open_encoder
from pipelines.tokens.stage import SIDES, sampled_pairs
from pipelines.tokens.vocabulary import load_tokenizer, read_special_ids

KEY = "encoder.lsa.dimensions"
MOST_TEXTS = 50_000
"""Pairs whose words are counted. Which tokens go together is known long before."""


def check_terms(config: Config, spec: EncoderSpec) -> None:
    """Makes sure that an encoder can have the terms that are asked for.

    Raises:
        InputError: Its architecture makes no tokens that terms can be added to, its width is odd
            with them, or the corpus is not there.
    """
    dimensions = config.encoder.lsa.dimensions
    if not dimensions:
        return
    if not hasattr(spec, "pooling"):
        raise InputError(KEY, f"architecture {spec.kind} pools no layers", "0, or a transformer")
    if (spec.embedding_width + dimensions) % 2:
        raise InputError(
            KEY,
            f"{spec.embedding_width} numbers and {dimensions} are an odd number of them",
            f"{dimensions + 1}, for example",
        )
    pairs = PreparedFolder.of(config).corpus.pairs
    if not find_files(pairs):
        raise InputError(KEY, f"there are no texts in {pairs}", "prepare the corpus again")


def corpus_terms(prepared: PreparedFolder, spec: EncoderSpec, settings: LsaSettings) -> np.ndarray:
    """The terms of the texts of a prepared corpus.

    Of a larger one :data:`MOST_TEXTS` pairs are taken.

    Args:
        prepared: Its folder.
        spec: Of the encoder that the terms are for, whose tokens they are of.
        settings: How many dimensions, of what weight.

    Returns:
        fp32 [vocabulary, dimensions], the vectors of the terms.
    """
    tokenizer = prepared.tokens.tokenizer
    encoder = open_encoder(load_tokenizer(tokenizer), spec.max_length)
    rows = [_ids(encoder, batch) for batch in sampled_pairs(prepared, MOST_TEXTS)]
    lengths = [pc.binary_length(ids).to_numpy(zero_copy_only=False) // 4 for ids in rows]
    flat = b"".join(text for ids in rows for text in ids.to_pylist())
    # A prompt stands before every text and says nothing of any.
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
    """The token ids of the texts of each pair, one text after the other."""
    sides = [encoder.encode(batch[name]).ids for name in SIDES if name in batch.schema.names]
    return pc.binary_join_element_wise(*sides, b"", null_handling="skip")
