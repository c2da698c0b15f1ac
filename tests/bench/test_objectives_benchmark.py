"""The comparison of objectives, on a small collection."""

import json

import pytest
from corpus_factory import small_config

from pipelines.errors import InputError
from pipelines_bench import objectives
from pipelines_bench.objectives import MINED, Recipe


@pytest.fixture
def collection(tmp_path):
    """Two documents on each of some subjects, and a question for each subject."""
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    subjects = [
        "cats",
        "ships",
        "bread",
        "rain",
        "music",
        "chess",
        "roses",
        "glass",
        "salt",
        "wool",
        "bees",
        "snow",
    ]
    documents = [
        {"_id": f"{name}{n}", "title": f"About {name} {n}", "text": f"{text} {name} {n} times."}
        for name in subjects
        for n, text in enumerate(("People who like them buy", "Nobody has ever seen more"))
    ]
    queries = [{"_id": name, "text": f"who knows about {name}"} for name in subjects]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    judged = "".join(f"{name}\t{name}{n}\t1\n" for name in subjects for n in (0, 1))
    (folder / "qrels/test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return folder


@pytest.mark.matrix
@pytest.mark.usefixtures("spark")
def test_recipes_have_the_cpu_time_of_the_first(collection, tmp_path, monkeypatch):
    monkeypatch.setattr(objectives, "SEEDS", (3,))
    monkeypatch.setattr(objectives, "CALIBRATION", (1, 3))
    recipes = (objectives.RECIPES[0], Recipe(name="mined", corpus=MINED))
    monkeypatch.setattr(objectives, "RECIPES", recipes)
    config = small_config(tmp_path, max_steps=4)
    start = {
        "encoder": config.encoder.model_copy(update={"start": "default"}),
        "tokens": config.tokens.model_copy(update={"vocabulary": "start"}),
    }
    found = objectives.measure(config.model_copy(update=start), str(collection))
    first, mined = (found["recipes"][recipe.name] for recipe in recipes)
    assert first["steps"] == 4
    assert mined["steps"] >= 1
    assert first["before"] == mined["before"] > 50
    for recipe in recipes:
        told = found["recipes"][recipe.name]
        gain = told["after"][0] - told["before"]
        assert found["difference_points"][recipe.name] == pytest.approx(gain, abs=0.01)
        assert found["margin_points"][recipe.name] >= 0


@pytest.mark.parametrize(
    ("steps", "data", "key"), [(None, "x", "training.max_steps"), (3, None, "--data")]
)
def test_what_it_needs_is_named(tmp_path, steps, data, key):
    with pytest.raises(InputError) as caught:
        objectives.measure(small_config(tmp_path, max_steps=steps), data)
    assert caught.value.key == key
