"""The comparison of what is learnt, on a small corpus."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_factory import small_config

from pipelines.errors import InputError
from pipelines_bench import quality


def replaced(config, section, **values):
    changed = getattr(config, section).model_copy(update=values)
    return config.model_copy(update={section: changed})


def test_both_learn_from_the_same_start(spark, prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(quality, "SEEDS", (3,))
    texts = ["Return the name.", "Write a file.", "Read all lines.", "Close the socket."]
    scored = {"sentence1": texts, "sentence2": texts[1:] + texts[:1], "score": [1.0, 4, 2, 3]}
    pq.write_table(pa.table(scored), tmp_path / "scored.parquet")
    config = small_config(prepared, max_steps=3)
    config = replaced(config, "evaluation", similarity=(str(tmp_path / "scored.parquet"),))
    told = quality.measure(config, None)
    spearman = told["spearman"]["scored"]
    assert {name: len(figures) for name, figures in spearman.items()} == {"here": 1, "theirs": 1}
    difference = spearman["here"][0] - spearman["theirs"][0]
    assert told["difference_points"]["scored"] == pytest.approx(difference, abs=1e-3)


@pytest.mark.parametrize(
    ("section", "values", "key"),
    [
        ("evaluation", {"similarity": ()}, "evaluation.similarity"),
        ("training", {"max_steps": None}, "training.max_steps"),
        ("objective", {"negatives": "step"}, "objective.name"),
    ],
)
def test_what_it_needs_is_named(tmp_path, section, values, key):
    config = small_config(tmp_path, max_steps=3)
    config = replaced(config, "evaluation", similarity=("scored.parquet",))
    with pytest.raises(InputError) as caught:
        quality.measure(replaced(config, section, **values), None)
    assert caught.value.key == key
