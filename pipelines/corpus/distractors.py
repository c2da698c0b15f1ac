"""Documents that held-out queries search besides those of their own pairs.

A query finds its document among a few thousand held-out ones far more often than among all of the
corpus, so figures of these alone would flatter every model. Users search what is trained on as
well, so its documents are searched too; of a large corpus a part is drawn, by hash.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

_SALT = "distractor"
_BUCKETS = 1_000_000
# Pairs may share a document, so more pairs are looked at than documents are wanted. Only a corpus
# whose documents are in more pairs than this, on average, gives fewer.
_PAIRS_FOR_ONE = 8


def draw_distractors(pairs: DataFrame, written: int, most: int) -> DataFrame:
    """The documents of pairs for training, each once: all of them, or so many by their hashes.

    Args:
        pairs: With `positive`, which is null for single texts.
        written: How many pairs there are.
        most: How many documents are wanted at most.

    Returns:
        ``document_id`` (the hash of the text) and ``text``, which depend on the texts alone.
    """
    share = min(1.0, _PAIRS_FOR_ONE * most / max(written, 1))
    place = F.xxhash64(F.lit(_SALT), "text")
    texts = pairs.where("positive is not null").select(F.col("positive").alias("text"))
    some = texts.where(F.pmod(place, F.lit(_BUCKETS)) < F.lit(share * _BUCKETS))
    # Two texts of one number, which is a hash, would be one document.
    each = some.groupBy(F.xxhash64("text").alias("document_id")).agg(F.min("text").alias("text"))
    return each.orderBy(place, "document_id").limit(most)
