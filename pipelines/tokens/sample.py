"""Texts of a prepared corpus, for what is found out about all of it from some. Runs on the driver.

Nothing here needs Spark: a bounded number of rows is read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.files.prepared_folder import PreparedFolder
from pipelines.spark.parquet_parts import find_files, read_part
from pipelines.tokens.encoding import open_encoder
from pipelines.tokens.vocabulary import load_tokenizer

SIDES = ("anchor", "positive")
_LENGTH_TEXTS = 5_000
"""Texts whose lengths are looked at."""


def sampled_pairs(prepared: PreparedFolder, most: int) -> Iterator[pa.RecordBatch]:
    """The texts of pairs for training, in columns that :data:`SIDES` names.

    The first rows of each file: there they lie in the order of their hashes.

    Args:
        prepared: Of the corpus.
        most: Pairs of all files together; no more than a few beyond.
    """
    files = find_files(prepared.corpus.pairs)
    total = sum(file.rows for file in files)
    for file in files:
        left = -(-file.rows * min(total, most) // total)
        for batch in read_part(file, SIDES):
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
            if not left:
                break


def corpus_length(prepared: PreparedFolder, own: int, most: int) -> int:
    """Tokens of a text that a model of a corpus should read.

    A model that reads no more than the beginning of most documents is to read more of them. Where
    that is not so, its own length is what it was trained with.

    Args:
        prepared: Of the corpus, whose `positive` texts, or else its only ones, are the documents.
        own: What it reads.
        most: What it can read.

    Returns:
        `most` where more than half of the documents are longer than `own`, or else that.
    """
    encoder = open_encoder(load_tokenizer(prepared.tokens.tokenizer), own)
    cut = [
        encoder.encode(pc.coalesce(*(batch[name] for name in reversed(batch.schema.names)))).cut
        for batch in sampled_pairs(prepared, _LENGTH_TEXTS)
    ]
    return max(own, most) if cut and np.concatenate(cut).mean() > 0.5 else own
