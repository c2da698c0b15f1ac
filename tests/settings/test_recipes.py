"""Recipes: settings under those that are set."""

import pytest
import yaml

from pipelines.catalog import RECIPES
from pipelines.errors import InputError
from pipelines.settings.load import dump, load, parse

DATA_LINE = "corpus: {format: parquet, inputs: [texts.parquet]}\n"
DATA = {"corpus": {"format": "parquet", "inputs": ["texts.parquet"]}}


def leaves(tree, prefix=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_a_recipe_sets_what_it_says(name, framework):
    config = parse({**DATA, "recipe": name, "training": {"framework": framework}})
    found = dict(leaves(config.model_dump(mode="json")))
    for key, value in leaves(RECIPES.load(name).settings):
        assert found[key] == value, key
    assert found["recipe"] == name
    assert parse(yaml.safe_load(dump(config))) == config


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_set_comes_first(name, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(f"recipe: {name}\ntraining: {{dropout: 0.1}}\n{DATA_LINE}")
    config = load(file, ["training.epochs=3"])
    assert (config.training.dropout, config.training.epochs) == (0.1, 3)
    by_hand = load(file, ["recipe=null", "training.epochs=3"])
    assert by_hand.recipe is None
    assert by_hand.objective.name == "in_batch_negatives"


def test_of_another_loss_nothing_of_its_objective_is_taken():
    config = parse(
        {
            "recipe": "pairs",
            "objective": {"name": "simcse"},
            "corpus": {"pairs": "single"},
            "training": {"dropout": 0.1},
        }
    )
    assert config.objective.name == "simcse"
    assert config.training.start_share == 0.5
    same = parse(
        {"recipe": "pairs", "objective": {"name": "in_batch_negatives", "temperature": 0.1}}
    )
    assert (len(same.objective.directions), same.objective.temperature) == (4, 0.1)


def test_no_recipe_sets_a_part_of_a_nested_section():
    # A job that sets another part of it would otherwise lose the recipe's.
    for recipe in map(RECIPES.load, RECIPES):
        nested = [value for keys in recipe.settings.values() for value in keys.values()]
        assert not any(isinstance(value, dict) for value in nested)


def test_lexical_features_are_asked_for_beside_a_recipe():
    config = parse({"recipe": "domain", "encoder": {"lsa": {"dimensions": 128}}})
    assert (config.encoder.lsa.dimensions, config.encoder.max_length) == (128, "corpus")
    assert parse({"recipe": "domain"}).encoder.lsa.dimensions == 0


def test_what_a_run_has_written_down_is_not_completed_by_the_recipes_of_another_release(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(f"recipe: pairs\n{DATA_LINE}")
    config = load(file, recorded=True)
    assert config == load(None, ["corpus.format=parquet", "corpus.inputs=texts.parquet"])


@pytest.mark.parametrize("name", ["pears", 3, ["pairs"]])
def test_a_recipe_that_there_is_not_is_refused(name):
    with pytest.raises(InputError, match=r"^recipe: "):
        parse({"recipe": name})
    if isinstance(name, str):
        with pytest.raises(
            InputError, match=r"there is no recipe `pears`\. Choose one of pairs, d"
        ):
            parse({"recipe": name})


@pytest.mark.parametrize(
    ("teachers", "scorer", "logits"),
    [
        ({"model": "/m"}, "cross_encoder", True),
        ({"encoder": "/e"}, "bi_encoder", False),
        ({"model": "/m", "encoder": "/e"}, "fusion", False),
    ],
)
def test_questions_are_scored_by_all_teachers_that_are_named(teachers, scorer, logits):
    scoring = parse({"recipe": "questions", "scoring": teachers}).scoring
    assert (scoring.scorer, scoring.logits) == (scorer, logits)
