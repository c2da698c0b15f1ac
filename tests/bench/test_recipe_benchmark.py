"""What a recipe brings to judged questions, and what held-out pairs say of it."""

import numpy as np
import pytest
from corpus_factory import small_config
from measured_sets import write_set

from pipelines.errors import InputError
from pipelines.evaluation.intervals import Observations
from pipelines.settings.load import parse
from pipelines_bench import recipe
from pipelines_bench.recipe import Trained, of_set

QUERIES = 40


def observed(*values):
    found = np.resize(np.array(values, float), QUERIES)
    return Observations(np.arange(QUERIES), {"ndcg@10": found})


def test_gains_of_seeds_are_taken_together_query_by_query():
    before = {"set": observed(50.0), "retrieval": observed(60.0, 60.0)}
    runs = [
        Trained(before, {"set": observed(52.0, 56.0), "retrieval": observed(10.0, 20.0)}, 7.0),
        Trained(before, {"set": observed(54.0, 50.0), "retrieval": observed(20.0, 10.0)}, 9.0),
    ]
    told = of_set("set", runs)
    assert (told["before"], told["after"], told["gain"]) == (50.0, [54.0, 52.0], 3.0)
    # Each query gains 3 on average, whatever the seed does to it.
    ends = {name: told["interval"][name] for name in ("low", "high", "detectable")}
    assert ends == pytest.approx({"low": 3.0, "high": 3.0, "detectable": 0.0})
    assert (told["verdict"], told["cpu_seconds"], told["queries"]) == ("better", 8.0, QUERIES)
    assert (told["held_out"]["gain"], told["held_out"]["verdict"]) == (-45.0, "worse")


def test_a_set_without_held_out_pairs_has_no_gain_of_theirs():
    told = of_set("set", [Trained({"set": observed(50.0)}, {"set": observed(50.0)}, None)])
    assert told["held_out"]["gain"] is None
    assert (told["cpu_seconds"], told["verdict"]) == (None, "not significant")


@pytest.mark.matrix
@pytest.mark.usefixtures("spark")
def test_documents_are_trained_on_and_questions_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recipe, "SEEDS", (3, 4))
    names = [
        f"{kind} of number {n}" for kind in ("cats", "ships", "bread", "rain") for n in range(60)
    ]
    texts = (f"People who know {name} have never seen more of them." for name in names)
    documents = {f"d{n}": pair for n, pair in enumerate(zip(names, texts, strict=True))}
    queries = {f"q{n}": f"what of {names[n]}" for n in range(12)}
    qrels = [(f"q{n}", f"d{n}", 1) for n in range(12)]
    folder = write_set(tmp_path / "things", documents, queries, qrels)
    config = small_config(tmp_path, max_steps=2)
    changes = {
        "encoder": config.encoder.model_copy(update={"start": "default"}),
        "tokens": config.tokens.model_copy(update={"vocabulary": "start"}),
        "corpus": config.corpus.model_copy(
            update={
                "pairs": "columns",
                "pair_columns": ("title", "text"),
                "evaluation_share": 0.2,
                "evaluation_pairs": 60,
            }
        ),
        "evaluation": config.evaluation.model_copy(update={"retrieval_sets": (str(folder),)}),
    }
    told = recipe.measure(config.model_copy(update=changes), None)
    found = told["sets"]["things"]
    assert found["queries"] == 12
    assert len(found["after"]) == 2
    assert found["held_out"]["queries"] > 10
    assert told["mean_gain"] == found["gain"]
    assert told["spearman"] is None
    assert "things" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sets", "told"),
    [([], "it is empty"), (["nowhere"], "there is no "), (["a/x", "b/x"], "two have one name")],
)
def test_what_it_needs_is_named(sets, told):
    with pytest.raises(InputError, match=f"^evaluation.retrieval_sets: {told}"):
        recipe.measure(parse({"evaluation": {"retrieval_sets": sets}}), None)
