"""Metrics by which the settings may choose a state of a run."""

import pytest

from pipelines.errors import InputError
from pipelines.evaluation.base import figure_named
from pipelines.evaluation.sets import metric_named
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.runs.model_choice import Metric
from pipelines.settings.load import parse

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
    with pytest.raises(InputError, match=r"^evaluation\.query_group: .*is of one query"):
        parse({"evaluation": {"query_group": name}})
