"""The job `score`: the same rows with a teacher's scores, whoever the teacher is."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from embedding_fixtures import lines, small_model
from sentence_transformers import CrossEncoder
from tiny_rerankers import write_reranker

import pipelines
from pipelines.errors import InputError, PipelineError
from pipelines.files.begun import next_folder
from pipelines.models.inference.embedder import load_embedder
from pipelines.scoring.score import ScoringJob, ScoringSummary
from pipelines.settings import Config
from pipelines.settings.load import parse

__all__ = ["lines", "small_model"]

ROWS = 90


@pytest.fixture(scope="module")
def reranker(tmp_path_factory) -> Path:
    return write_reranker(tmp_path_factory.mktemp("reranker") / "bert", "bert")


@pytest.fixture(scope="module")
def triplets(lines, tmp_path_factory) -> Path:
    """Triplets with two negatives; a text of some is missing, and one has a score already."""
    texts = lines[:ROWS]
    rows = [
        {
            "id": number,
            "anchor": texts[number],
            "positive": texts[(number + 1) % ROWS],
            "negative_0": texts[(number + 7) % ROWS],
            "negative_1": texts[(number + 31) % ROWS] if number % 10 else None,
            "negative_0_score": 17.0,
        }
        for number in range(ROWS)
    ]
    rows[4]["anchor"] = None
    path = tmp_path_factory.mktemp("triplets") / "triplets.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def settings_of(triplets: Path, reranker: Path, output: Path, /, **settings: Any) -> Config:
    known = {
        "inputs": [str(triplets)],
        "output": str(output),
        "model": str(reranker),
        "precision": "fp32",
        "part_rows": 20,
    }
    return parse({"scoring": known | settings, "embedding": {"precision": "fp32"}})


@pytest.fixture
def configured(triplets, reranker, tmp_path) -> Callable[..., Config]:
    """Makes the configuration of a job whose table is the test's own."""
    return partial(settings_of, triplets, reranker, tmp_path / "scored")


@pytest.fixture(scope="module")
def scored(spark, triplets, reranker, tmp_path_factory) -> ScoringSummary:
    """What such a job has made; nobody writes into its folder."""
    output = tmp_path_factory.mktemp("whole") / "scored"
    return pipelines.score(settings_of(triplets, reranker, output))


def rows_of(folder: str | Path) -> list[dict[str, Any]]:
    return pq.read_table(folder).to_pylist()


def bytes_of(folder: str | Path) -> dict[str, int]:
    """The content of files but for the ids in their footers."""
    return {path.name: repr(rows_of(path)) for path in Path(folder).glob("part-*")}


def scores_in(folder: str | Path) -> np.ndarray:
    """Of the positives that have one."""
    return np.array([row["positive_score"] for row in rows_of(folder) if row["anchor"] is not None])


def test_scores_are_those_of_the_cross_encoder(scored, triplets, reranker):
    before, rows = rows_of(triplets), rows_of(scored.folder)
    assert list(rows[0]) == [
        *("id", "anchor", "positive", "negative_0", "negative_1"),
        *("positive_score", "negative_0_score", "negative_1_score"),
    ]
    theirs = CrossEncoder(str(reranker), device="cpu")
    known = 0
    for old, new in zip(before, rows, strict=True):
        assert {name: old[name] for name in list(new)[:5]} == {
            name: new[name] for name in list(new)[:5]
        }
        for name in ("positive", "negative_0", "negative_1"):
            score = new[f"{name}_score"]
            if old["anchor"] is None or old[name] is None:
                assert score is None
                continue
            known += 1
            assert score == pytest.approx(theirs.predict((old["anchor"], old[name])), abs=1e-5)
    assert (scored.rows, scored.scored, scored.pairs) == (ROWS, ROWS, known)
    above = [
        new[f"negative_{number}_score"] > new["positive_score"]
        for new in rows
        for number in (0, 1)
        if None not in (new["positive_score"], new[f"negative_{number}_score"])
    ]
    assert scored.above == pytest.approx(np.mean(above))
    manifest = json.loads(Path(scored.folder, "_manifest.json").read_text())
    assert manifest["score_columns"] == list(rows[0])[5:]
    names = {path.name for path in Path(scored.folder).iterdir()}
    assert {name for name in names if not name.startswith("part-")} == {
        *("_manifest.json", "_scoring.json")
    }


def test_an_encoder_alone_and_with_the_cross_encoder(
    spark, configured, scored, triplets, small_model
):
    texts = [row for row in rows_of(triplets) if row["anchor"] is not None]
    anchors, positives = ([row[name] for row in texts] for name in ("anchor", "positive"))
    embed = load_embedder(small_model, precision="fp32")
    cosines = (embed(anchors) * embed(positives)).sum(axis=1)
    encoder = {"encoder": str(small_model)}
    alone = ScoringJob.of(configured(scorer="bi_encoder", model=None, **encoder)).scorer
    np.testing.assert_allclose(alone.scores(anchors, positives), cosines, atol=1e-4)
    both = pipelines.score(configured(scorer="fusion", weight=0.25, **encoder))
    expected = 0.25 * scores_in(scored.folder) + 0.75 * cosines
    np.testing.assert_allclose(scores_in(both.folder), expected, atol=1e-4)


def test_false_negatives_are_left_out_and_the_next_ones_take_their_places(
    spark, configured, scored
):
    summary = pipelines.score(configured(keep_negatives=1, margin=0.02))
    wanted = []
    for row in rows_of(scored.folder):
        scores = [row[f"negative_{number}_score"] for number in (0, 1)]
        found = [
            (row["id"], row[f"negative_{number}"], score)
            for number, score in enumerate(scores)
            if None not in (score, row["positive_score"]) and score <= row["positive_score"] - 0.02
        ]
        wanted += found[:1]
    rows = rows_of(summary.folder)
    assert [(row["id"], row["negative_0"], row["negative_0_score"]) for row in rows] == wanted
    assert 0 < len(rows) < ROWS
    assert (summary.rows, summary.left_out, summary.above) == (len(rows), ROWS - len(rows), None)
    assert list(rows[0]) == [
        *("id", "anchor", "positive", "negative_0", "positive_score", "negative_0_score"),
    ]
    with pytest.raises(InputError, match=r"^scoring\.keep_negatives: .* has 2 negatives in a row"):
        pipelines.score(configured(keep_negatives=3, overwrite=True))
    with pytest.raises(InputError, match=r"^scoring\.margin: it filters negatives"):
        configured(margin=0.1)


def test_a_killed_job_goes_on_and_ends_with_the_same_rows(
    spark, configured, scored, monkeypatch, caplog
):
    config = configured()

    def dies(*_: object, **__: object) -> None:
        raise PipelineError("the driver is killed here")

    with monkeypatch.context() as patched:
        patched.setattr("pipelines.scoring.score._summary", dies)
        with pytest.raises(PipelineError, match="killed here"):
            pipelines.score(config)
    begun = next_folder(Path(config.scoring.output))
    with pytest.raises(
        InputError, match=r"^scoring\.keep_negatives: the unfinished table in .* another"
    ):
        pipelines.score(configured(keep_negatives=1, margin=0.1))
    lost = sorted(begun.glob("part-*"))[2]
    rows = pq.read_metadata(lost).num_rows
    lost.unlink()
    with caplog.at_level(logging.INFO):
        summary = pipelines.score(config)
    assert "resuming the table in" in caplog.text
    assert summary.scored == rows
    assert bytes_of(summary.folder) == bytes_of(scored.folder)
    again = pipelines.score(config)
    assert (again.scored, str(again)) == (0, f"nothing to score: all {ROWS} rows have scores")


def test_another_table_is_replaced_only_if_asked(spark, configured, scored):
    output = Path(shutil.copytree(scored.folder, configured().scoring.output))
    with pytest.raises(InputError, match=r"^scoring\.logits: .* was made with another value"):
        pipelines.score(configured(logits=True))
    assert bytes_of(output) == bytes_of(scored.folder)
    assert pipelines.score(configured(logits=True, overwrite=True)).scored == ROWS
    probabilities = 1 / (1 + np.exp(-scores_in(output)))
    np.testing.assert_allclose(probabilities, scores_in(scored.folder), atol=1e-5)
    (output / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"^scoring\.output: .* holds other files \(notes\.txt"):
        pipelines.score(configured(overwrite=True))


def test_other_formats_and_the_table_of_mining(spark, configured, scored, triplets, tmp_path):
    path = tmp_path / "triplets.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows_of(triplets)))
    summary = pipelines.score(configured(inputs=[str(path)], format="jsonl"))
    found, wanted = (
        {row["id"]: row["positive_score"] for row in rows_of(made.folder)}
        for made in (summary, scored)
    )
    assert found == pytest.approx(wanted, abs=1e-5)
    mined = tmp_path / "mined"
    mined.mkdir()
    shutil.copy(triplets, mined / "part-0.parquet")
    config = configured(inputs=[], output=str(tmp_path / "of-mining"))
    job = ScoringJob.of(config.changed("mining", output=str(mined)))
    assert job.identity["scoring.inputs"][0] == [str(mined)]


OF_ENCODER = {"scorer": "bi_encoder", "model": None}
FAULTS = [
    ({"model": None}, "scoring.model", "it is empty. Name the folder of a cross-encoder"),
    ({"model": "/nowhere"}, "scoring.model", "there is no folder /nowhere"),
    (OF_ENCODER, "scoring.encoder", "it is empty. Name a sentence-transformers"),
    (OF_ENCODER | {"encoder": "/nowhere"}, "scoring.encoder", "there is no folder"),
    ({"inputs": ["/nowhere.parquet"]}, "scoring.inputs", "/nowhere.parquet"),
    ({"anchor_column": "query"}, "scoring.anchor_column", "has no column `query`"),
    ({"positive_column": "id"}, "scoring.positive_column", "`id` of "),
    ({"negative_columns": ["wrong"]}, "scoring.negative_columns", "has no column `wrong`"),
]


@pytest.mark.parametrize(
    ("changed", "key", "problem"), FAULTS, ids=[problem for _, _, problem in FAULTS]
)
def test_what_cannot_be_scored_is_refused_before_spark(
    configured, changed, key, problem, monkeypatch
):
    monkeypatch.setattr(
        "pipelines.jobs.score.spark_session", lambda *_, **__: pytest.fail("Spark was started")
    )
    with pytest.raises(InputError) as refused:
        pipelines.score(configured(**changed))
    assert refused.value.key == key
    assert problem in str(refused.value)


def test_logits_and_cosines_are_not_added(configured):
    with pytest.raises(InputError, match=r"^scoring\.logits: logits and cosines have no common"):
        configured(scorer="fusion", logits=True)


@pytest.mark.parametrize(
    ("scorer", "key", "value"),
    [
        ("cross_encoder", "encoder", "default"),
        ("bi_encoder", "model", "/models/reranker"),
        ("bi_encoder", "logits", True),
    ],
)
def test_what_a_scorer_does_not_use_is_refused(scorer, key, value):
    with pytest.raises(InputError, match=rf"^scoring\.{key}: `scorer: {scorer}` does not use it"):
        ScoringJob.of(parse({"scoring": {"scorer": scorer, key: value}}))


def test_an_output_around_the_input_is_refused(configured, triplets):
    with pytest.raises(InputError, match=r"^scoring\.output: .* holds the input"):
        pipelines.score(configured(output=str(triplets.parent)))
