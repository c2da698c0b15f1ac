"""The comparison of BM25, vectors and both, on a small set."""

import pytest
from measured_sets import write_set

from pipelines.errors import InputError
from pipelines.settings.load import parse
from pipelines_bench import hybrid

NAMES = ["cats", "ships", "bread", "rain", "music", "chess", "roses", "glass", "salt", "wool"]


def test_it_measures_each_way_to_find(spark, tmp_path, capsys):
    documents = {name: (f"No. 47{n}", f"Of {name}.") for n, name in enumerate(NAMES)}
    queries = {f"q{n}": f"47{n}" for n in range(len(NAMES))}
    qrels = [(f"q{n}", name, 1) for n, name in enumerate(NAMES)]
    folder = write_set(tmp_path / "numbers", documents, queries, qrels)
    told = hybrid.measure(parse({"evaluation": {"retrieval_sets": [str(folder)]}}), None)
    found = told["sets"]["numbers"]
    assert (found["queries"], found["bm25"]) == (10, 100.0)
    assert found["vectors"] < found["hybrid"] <= 100
    assert found["gain"] == pytest.approx(found["hybrid"] - found["vectors"], abs=0.011)
    low, high = found["interval"]
    assert 0 <= low < found["gain"] < high
    assert told["mean"]["hybrid"] == found["hybrid"]
    assert "numbers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "evaluation.retrieval_sets: it is empty"),
        (
            {"evaluation": {"retrieval_sets": ["x"]}, "encoder": {"start": "random"}},
            "encoder.start: random weights find nothing",
        ),
    ],
)
def test_what_it_needs_is_named(settings, told):
    with pytest.raises(InputError, match=f"^{told}"):
        hybrid.measure(parse(settings), None)
