"""What questions bring to judged queries: halves of a set, cases, and a whole run by an oracle."""

import json

import pyarrow.parquet as pq
import pytest
from measured_sets import write_set

from pipelines.errors import InputError
from pipelines.settings.load import parse
from pipelines_bench import questions
from pipelines_bench.questions import Judged

KINDS = ("cats", "ships", "bread", "rain")
NAMES = [f"{kind} of number {n}" for kind in KINDS for n in range(10)]


@pytest.fixture
def things(tmp_path):
    texts = [f"People who know {name} have never seen more of them." for name in NAMES]
    documents = {f"d{n}": pair for n, pair in enumerate(zip(NAMES, texts, strict=True))}
    queries = {f"q{n}": f"what of {name}" for n, name in enumerate(NAMES)}
    # The first two queries ask for the same documents.
    qrels = [(f"q{n}", f"d{n}", 1) for n in range(1, 40)] + [("q0", "d1", 1)]
    return write_set(tmp_path / "things", documents, queries, qrels)


def test_halves_part_no_group_and_leave_no_query_out(things):
    judged = Judged.read(things)
    first, second = judged.halves()
    assert sorted([*first, *second]) == sorted(f"q{n}" for n in range(40))
    assert min(len(first), len(second)) > 10
    groups = [{judged.group(query) for query in half} for half in (first, second)]
    assert not groups[0] & groups[1]


def test_queries_of_the_same_words_are_in_one_half(things):
    asked = [json.loads(line) for line in (things / "queries.jsonl").open()]
    for number, row in enumerate(asked):
        row["text"] = f"What of {number % 4}" if number % 2 else f"what of {number % 4}"
    (things / "queries.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in asked))
    judged = Judged.read(things)
    texts = [{judged.queries[query].casefold() for query in half} for half in judged.halves()]
    assert not texts[0] & texts[1]


def test_an_oracle_asks_by_one_half_and_the_other_measures(things, tmp_path):
    judged = Judged.read(things)
    home = tmp_path / "home"
    home.mkdir()
    config = parse({"recipe": "questions", "evaluation": {"retrieval_sets": [str(things)]}})
    for fold in questions._folds(config, judged, home):
        asked = pq.read_table(fold.questions).to_pylist()
        measured = [json.loads(line) for line in (fold.measured / "queries.jsonl").open()]
        assert not {row["anchor"] for row in asked} & {row["text"] for row in measured}
        assert len(asked) + len(measured) == 40
        # Titles stand before texts, as in the evaluation.
        assert all(row["positive"].startswith(tuple(NAMES)) for row in asked)
        assert Judged.read(fold.measured).texts == judged.texts


def test_queries_with_the_same_documents_are_one_group(things, tmp_path):
    questions._write_measured(tmp_path / "part", Judged.read(things), ["q0", "q1", "q2"])
    rows = [json.loads(line) for line in (tmp_path / "part/queries.jsonl").open()]
    assert [row["group"] for row in rows] == ["d1", "d1", "d2"]


@pytest.mark.parametrize(
    ("given", "cases", "told"),
    [
        ({"recipe": "pairs"}, None, "recipe: the benchmark is of `questions`"),
        ({}, "pairs,others", "--cases: there is no `others`"),
        ({}, "scores", "--cases: no teacher gives `scores`"),
    ],
)
def test_what_it_cannot_measure_is_refused(things, given, cases, told):
    tree = {"recipe": "questions", "evaluation": {"retrieval_sets": [str(things)]}, **given}
    with pytest.raises(InputError, match=f"^{told}"):
        questions.measure(parse(tree), None, cases=cases)


@pytest.mark.matrix
@pytest.mark.usefixtures("spark")
def test_an_oracle_is_measured_case_by_case(things, capsys):
    config = parse(
        {
            "recipe": "questions",
            "evaluation": {"retrieval_sets": [str(things)]},
            "mining": {"relative_margin": None, "negatives": 2},
            "scoring": {"encoder": "default"},
            "tokens": {"max_length": 32},
            "lanes": {"granule": 5},
            "training": {"engine": "local", "framework": "torch", "workers": 1, "max_steps": 2},
        }
    )
    told = questions.measure(config, None, runs=1, cases="pairs,negatives,scores,reranker")
    found = told["sets"]["things"]
    assert (found["queries"], found["questions"], told["asked"]) == (40, 40, "oracle")
    assert [*found["cases"]] == ["pairs", "negatives", "scores", "reranker"]
    for case, measured in found["cases"].items():
        assert measured["by_seed"] == pytest.approx([measured["gain"]], abs=0.02)
        assert told["mean_gain"][case] == measured["gain"]
    assert "things" in capsys.readouterr().out
