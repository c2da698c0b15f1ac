"""`mine` and then `score`: a right answer among the documents is no negative of its question."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import pipelines
from pipelines.settings.load import parse

# A question, its answer, and another answer that nobody has labelled.
ANSWERED = [
    (
        "How do I reset my password?",
        "To reset your password, open the login page and choose `Forgot password`.",
        "You reset a forgotten password by the link on the login page.",
    ),
    (
        "Which payment methods do you accept?",
        "We accept payments by credit card, PayPal and bank transfer.",
        "Accepted payment methods are credit cards, bank transfers and PayPal.",
    ),
    (
        "How long does the delivery of a parcel take?",
        "The delivery of a parcel takes three to five working days.",
        "Most parcels are delivered within three working days.",
    ),
    (
        "Can I return a damaged item?",
        "You can return damaged items within 30 days.",
        "A damaged item can be returned for a month.",
    ),
    (
        "Where do I find my invoice?",
        "You find your invoice in your account, below `Orders`.",
        "Invoices are in the account, beside each order.",
    ),
]
SETTINGS = {
    "mining": {
        "model": "default",
        "negatives": 4,
        # The scorer alone decides.
        "relative_margin": None,
    },
    "scoring": {
        "scorer": "bi_encoder",
        "encoder": "default",
        "keep_negatives": 2,
        "margin": 0.15,
    },
    "embedding": {"precision": "fp32"},
}


def rows_of(folder: str | Path) -> list[dict[str, Any]]:
    return pq.read_table(folder).to_pylist()


def test_a_scorer_drops_the_right_answers_that_mining_found(spark, tmp_path):
    questions, answers, others = (list(column) for column in zip(*ANSWERED, strict=True))
    pairs, documents = tmp_path / "pairs.parquet", tmp_path / "answers.parquet"
    pq.write_table(pa.table({"anchor": questions, "positive": answers}), pairs)
    pq.write_table(pa.table({"text": others}), documents)
    config = parse(SETTINGS)
    config = config.changed(
        "mining", inputs=(str(pairs),), documents=(str(documents),), output=str(tmp_path / "mined")
    ).changed("scoring", output=str(tmp_path / "scored"))
    unlabelled = dict(zip(questions, others, strict=True))
    for row in rows_of(pipelines.mine(config).folder):
        mined = [row[f"negative_{number}"] for number in range(4)]
        assert unlabelled[row["anchor"]] in mined
    rows = rows_of(pipelines.score(config).folder)
    assert {row["anchor"] for row in rows} == {*questions}
    for row in rows:
        kept = [row["negative_0"], row["negative_1"]]
        assert unlabelled[row["anchor"]] not in kept
        assert len({*kept, row["positive"]}) == 3
        assert row["negative_0_score"] <= row["positive_score"] - 0.15


def test_the_recipe_trains_on_the_negatives_that_the_scorer_keeps():
    config = parse(
        {
            "recipe": "questions",
            "questions": {"inputs": ["documents.parquet"], "model": "words"},
            "mining": {"negatives": 8},
            "scoring": {"model": "/models/cross-encoder", "keep_negatives": 2, "margin": 0.1},
        }
    )
    assert config.corpus.triplet_columns == ("anchor", "positive", "negative_0", "negative_1")
    names = ("positive_score", "negative_0_score", "negative_1_score")
    assert config.corpus.score_columns == names
    assert (config.mining.negatives, config.scoring.keep_negatives) == (8, 2)
