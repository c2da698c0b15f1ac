"""What the settings ask for, by which names, and no more."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from embedding_fixtures import small_model

import pipelines
from pipelines.errors import InputError
from pipelines.evaluation.base import figure_named
from pipelines.evaluation.geometry import geometry_figures
from pipelines.evaluation.sets import check_sets, evaluate, metric_named, named_sets
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.models.inference.embedder import load_embedder
from pipelines.runs.model_choice import Metric
from pipelines.settings.load import load, parse
from pipelines.vectors.nearest import unit_length

__all__ = ["small_model"]

ASKED = ["a cat that sleeps", "the market fell down", "rain in London"]
TEXTS = ["A cat sleeps.", "The market fell.", "It rains in London."]


@pytest.fixture
def prepared(tmp_path):
    folder = tmp_path / "prepared" / "corpus" / "evaluation"
    folder.mkdir(parents=True)
    documents = {"document_id": [1, 2, 3, 4], "text": [*TEXTS, "Not asked for."]}
    pq.write_table(pa.table(documents), folder / "documents.parquet")
    queries = {"query_id": [4, 5, 6], "text": ASKED, "document_id": [1, 2, 3]}
    pq.write_table(pa.table(queries), folder / "queries.parquet")
    pairs = {"sentence1": ASKED, "sentence2": TEXTS, "score": [5.0, 4.0, 3.0]}
    pq.write_table(pa.table(pairs), tmp_path / "dev.parquet")
    return tmp_path


def test_measures_what_is_asked_for(spark, prepared, small_model) -> None:
    settings = {
        "prepared": {"folder": str(prepared / "prepared")},
        "evaluation": {"similarity": [str(prepared / "dev.parquet")]},
        # The whole width is no other, and of one number nothing can be told.
        "objective": {"dimensions": [32, 1, 16]},
    }
    figures = evaluate(spark, parse(settings), small_model)
    assert list(figures) == ["retrieval", "retrieval@16", "retrieval@1", "geometry", "dev"]
    assert figures["retrieval@16"] == figures["retrieval"]
    assert figures["retrieval@1"]["ndcg@10"] < 100
    assert list(figures["retrieval"].items()) == [
        ("queries", 3),
        ("documents", 4),
        ("ndcg@10", 100.0),
        ("mrr@10", 100.0),
        ("recall@1", 100.0),
        ("recall@10", 100.0),
    ]
    embed = load_embedder(small_model)
    asked, texts = (unit_length(embed(side)) for side in (ASKED, TEXTS))
    assert figures["geometry"] == pytest.approx(geometry_figures(asked, texts), abs=1e-4)
    cosines = (asked * texts).sum(axis=1)
    expected = {"pairs": 3, "pearson": 100 * np.corrcoef(cosines, [5.0, 4.0, 3.0])[0, 1]}
    assert {name: figures["dev"][name] for name in expected} == pytest.approx(expected, abs=1e-3)


def test_documents_for_training_are_searched_too(spark, prepared, small_model) -> None:
    folder = prepared / "prepared" / "corpus" / "evaluation" / "distractors.parquet"
    folder.mkdir()
    # One is nearer to a query than its own document.
    texts = {"document_id": [7, 8], "text": ["The market fell again!", "Of another matter."]}
    pq.write_table(pa.table(texts), folder / "part.parquet")
    settings = parse({"prepared": {"folder": str(prepared / "prepared")}})
    figures = evaluate(spark, settings, small_model)
    assert figures["retrieval"]["documents"] == 6
    assert figures["retrieval"]["recall@1"] == pytest.approx(100 * 2 / 3)
    assert figures["geometry"]["pairs"] == 3


def test_leaves_out_what_is_not_there(spark, prepared, small_model) -> None:
    elsewhere = {"prepared": {"folder": str(prepared / "elsewhere")}}
    assert evaluate(spark, parse(elsewhere), small_model) == {}
    unwanted = {
        "prepared": {"folder": str(prepared / "prepared")},
        "evaluation": {"retrieval": False, "geometry": False},
    }
    assert evaluate(spark, parse(unwanted), small_model) == {}


def test_every_evaluation_has_a_name_of_its_own() -> None:
    def names(**evaluation) -> list[str]:
        return [one.name for one in named_sets(parse({"evaluation": evaluation}))]

    assert names(
        similarity=["a/dev.csv", "b/test.csv"],
        classification=["a/dev.parquet", "b/paws.jsonl.gz"],
        retrieval_sets=["sets/scifact", "sets/scifact/qrels/train.tsv", "sets/test"],
    ) == [
        "a/dev.csv",
        "b/test.csv",
        "a/dev.parquet",
        "paws",
        "scifact",
        "scifact-train",
        "sets/test",
    ]
    assert names(similarity=["retrieval.csv"], retrieval=False) == ["retrieval.csv"]
    with pytest.raises(InputError, match=r"evaluation: x.csv is named twice"):
        names(similarity=["x.csv"], classification=["x.csv"])


@pytest.fixture
def files(tmp_path):
    """Files with other columns than are asked for, and one with those."""
    (tmp_path / "other.csv").write_text("a,b,score\nx,y,1\n")
    (tmp_path / "other.jsonl").write_text('{"a": "x", "sentence2": "y", "score": 1}\n')
    pq.write_table(pa.table({"sentence1": ["x"], "score": [1.0]}), tmp_path / "other.parquet")
    (tmp_path / "damaged.parquet").write_text("no Parquet")
    (tmp_path / "good.csv").write_text("sentence1,sentence2,score,label\nx,y,1,1\n")
    (tmp_path / "set").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("key", "name", "told"),
    [
        (
            "similarity",
            "other.csv",
            r"_columns: .*other.csv has no column `sentence1`\. Name one of its columns: a, b",
        ),
        ("similarity", "other.jsonl", r"_columns: .*other.jsonl has no column `sentence1`\. Name"),
        ("similarity", "other.parquet", r"_columns: .*parquet has no column `sentence2`\. Name"),
        (
            "classification",
            "other.csv",
            r"_columns: .*other.csv has no column `sentence1`\. Name",
        ),
        ("similarity", "damaged.parquet", r": .*damaged.parquet cannot be read \(not Parquet"),
        ("classification", "nowhere.csv", r": there is no file or folder `.*nowhere.csv`\. Name e"),
        ("retrieval_sets", "nowhere", r": there is no .*nowhere. Name a folder that holds"),
        ("retrieval_sets", "set", r": .*qrels holds no \*.tsv. Name the file of"),
        ("guards", "nowhere.csv", r": there is no file or folder `.*nowhere.csv`\. Name e"),
        ("guards", "nowhere", r": there is no .*nowhere. Name a folder that holds"),
        # Of a retrieval set, and no file of pairs.
        ("guards", "set/qrels/dev.tsv", r": there is no .*dev.tsv. Name a folder that"),
    ],
)
def test_what_cannot_be_measured_on_is_refused_by_every_job(files, key, name, told):
    config = load(
        None,
        [
            f"evaluation.{key}=[{files / name}]",
            f"run.folder={files / 'run'}",
            f"prepared.folder={files / 'prepared'}",
            "encoder.start=random",
            "tokens.vocabulary=train",
            "training.engine=local",
        ],
    )
    (files / "run" / "model").mkdir(parents=True)
    with pytest.raises(InputError, match=rf"^evaluation\.{key}{told}"):
        pipelines.evaluate(config)
    with pytest.raises(InputError, match=rf"^evaluation\.{key}{told}"):
        check_sets(config)


def test_what_can_be_measured_on_passes(files):
    good = files / "good.csv"
    check_sets(
        load(None, [f"evaluation.{key}=[{good}]" for key in ("similarity", "classification")])
    )


NESTED = parse(
    {"objective": {"dimensions": [384, 64]}, "evaluation": {"retrieval_sets": ["/sets/faq"]}}
)


def test_a_metric_is_that_of_a_set_at_a_width():
    for name in ("faq", "faq@64"):
        found = metric_named(NESTED, "training.keep_best", f"{name}.ndcg@10")
        assert found == Metric(
            evaluation=name, figure="ndcg@10", sign=1, asked_as=f"{name}.ndcg@10"
        )


def test_what_checkpoints_are_measured_by_among_fewer_documents_has_their_name(tmp_path):
    config = parse({"objective": {"dimensions": [384, 64]}, "prepared": {"folder": str(tmp_path)}})
    corpus = PreparedFolder.of(config).corpus
    for table in (corpus.queries, corpus.documents):
        table.mkdir(parents=True)
    found = metric_named(config, "training.keep_best", "retrieval@64.ndcg@10")
    assert found.of({"retrieval@64": {"ndcg@10": 1.0}}) is None
    assert found.of({"retrieval@64 among held-out": {"ndcg@10": 2.0}}) == 2.0
    # By which the best is found again.
    assert str(found) == "retrieval@64.ndcg@10"


def test_widths_that_are_not_measured_are_refused_with_those_that_are():
    with pytest.raises(InputError, match=r"faq@128.*one of faq\.ndcg@10.*faq@64"):
        metric_named(NESTED, "training.keep_best", "faq@128.ndcg@10")


def test_widths_are_those_of_the_objectives_of_the_sources():
    pairs = {"inputs": ["a.csv"], "format": "csv", "pairs": "columns"}
    sources = [
        {**pairs, "name": "short", "objective": {"dimensions": [384, 64]}},
        {**pairs, "name": "shorter", "objective": {"dimensions": [384, 64, 32]}},
    ]
    evaluation = {"retrieval_sets": ["/sets/faq"]}
    # No source is trained by the section, whose widths are then those of nothing.
    config = parse(
        {
            "corpus": {"sources": sources},
            "objective": {"dimensions": [128]},
            "evaluation": evaluation,
        }
    )
    for name in ("faq@64", "faq@32"):
        found = metric_named(config, "training.keep_best", f"{name}.ndcg@10")
        assert found.evaluation == name
    with pytest.raises(InputError, match=r"`faq@128\.ndcg@10` is not measured"):
        metric_named(config, "training.keep_best", "faq@128.ndcg@10")
    assert config.common_widths() == (384, 64)
    one_whole = sources + [{**pairs, "name": "whole", "objective": {}}]
    assert parse({"corpus": {"sources": one_whole}}).common_widths() == ()


def test_metrics_at_other_cutoffs_are_named_like_the_usual_ones():
    more = {"retrieval_sets": ["/sets/faq"], "retrieval_metrics": ["map@100", "ndcg@5"]}
    config = parse({"evaluation": more})
    for name in ("map@100", "ndcg@5", "ndcg@10"):
        assert metric_named(config, "training.keep_best", f"faq.{name}").sign == 1
    with pytest.raises(InputError, match=r"`faq\.map@10` is not measured"):
        metric_named(config, "training.keep_best", "faq.map@10")
    assert [figure_named(name).label for name in ("map@100", "ndcg@5")] == ["MAP@100", "nDCG@5"]


@pytest.mark.parametrize("name", ["map", "map@0", "map@1001", "bpref@10", "MAP@10", "ndcg@10 ", ""])
def test_what_is_no_metric_of_rankings_is_refused(name):
    with pytest.raises(InputError, match=r"^evaluation\.retrieval_metrics: .*is no metric"):
        parse({"evaluation": {"retrieval_metrics": [name]}})


@pytest.mark.parametrize("name", ["_id", "text", "Metadata"])
def test_what_each_query_has_is_no_group(name):
    with pytest.raises(InputError, match=r"^evaluation\.query_group: each query has its own"):
        parse({"evaluation": {"query_group": name}})
