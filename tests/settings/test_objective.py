"""The section of the loss: its keys are those of the loss that is named."""

import pytest

from pipelines.errors import InputError
from pipelines.settings import Config
from pipelines.settings.load import dump, load, parse
from pipelines.settings.objective import objective
from pipelines.settings.resuming import recorded_value

SINGLES = ["corpus.pairs=single", "training.dropout=0.1"]
SCORES = ["objective.name=cosine_regression", "corpus.score_column=score"]


def test_the_keys_are_those_of_the_loss():
    assert Config().objective == objective()
    assert list(objective("cosine_regression").model_dump()) == [
        "name",
        "dimensions",
        "dimension_weights",
    ]
    found = load(None, [*SINGLES, "objective.name=simcse", "objective.temperature=0.1"]).objective
    assert found == objective("simcse", temperature=0.1)
    assert parse(load(None, SCORES).model_dump()).objective == objective("cosine_regression")


def test_a_key_of_another_loss_is_refused():
    told = (
        r"^objective\.temperature: loss cosine_regression has no such setting\. "
        r"Leave it out: it belongs to in_batch_negatives, simcse, cosent, "
    )
    with pytest.raises(InputError, match=told):
        load(None, [*SCORES, "objective.temperature=0.1"])


def test_files_with_the_defaults_of_all_losses_are_read(tmp_path, caplog):
    (tmp_path / "a.yaml").write_text(dump(load(None)))
    scores = [*SCORES, "corpus.pairs=columns"]
    assert load(tmp_path / "a.yaml", scores) == load(None, scores)
    others = objective().model_dump(exclude=set(objective("cosine_regression").model_dump()))
    assert caplog.messages == [
        f"objective.{key} is left out: loss cosine_regression has no such setting" for key in others
    ]


def test_an_unknown_loss_is_refused_with_those_that_there_are():
    told = r"^objective\.name: there is no loss `infonce`\. Choose one of in_batch_negatives, s"
    with pytest.raises(InputError, match=told):
        load(None, ["objective.name=infonce"])


def test_an_old_name_is_read(tmp_path, caplog):
    config = load(None, [*SINGLES, "objective.name=twins"])
    assert config.objective == objective("simcse")
    assert caplog.messages == ["objective.name: `twins` is called `simcse` now"]
    assert "twins" not in dump(config)
    recorded = {"objective.name": "twins", "objective.temperature": 0.05}
    assert recorded_value(recorded, "objective.name", "") == "simcse"
    assert recorded_value(recorded, "objective.temperature", 0) == 0.05
    assert recorded_value(recorded, "objective.directions", ()) == ()


def test_a_loss_without_a_form_in_the_framework_is_refused():
    told = r"^training\.framework: loss simcse has no implementation in bigdl\. Choose one of "
    with pytest.raises(InputError, match=told):
        load(None, [*SINGLES, "objective.name=simcse", "training.framework=bigdl"])


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (["directions=[doc_to_query]"], r"directions: the list is doc_to_query\. Name query_to_d"),
        (["directions=[]"], r"directions: the list is empty\. Name query_to_doc, and"),
        (
            ["directions=[query_to_doc,doc_to_doc]", "partition_mode=per_direction"],
            r"partition_mode: doc_to_doc has no pair to pick",
        ),
        (
            ["hardness_mode=hard_negatives", "hardness_strength=5"],
            r"hardness_mode: pairs of kind columns have no hard negatives\. Set it to in_ba",
        ),
        (
            ["partition_mode=per_direction"],
            r"partition_mode: it has no effect without a second entry in objective\.dir",
        ),
        (
            ["hardness_mode=all_negatives"],
            r"hardness_mode: it has no effect without objective\.hardness_strength\. Set both, or",
        ),
        (
            ["margin_strategy=relative"],
            r"margin_strategy: it has no effect without objective\.false_negative_margin\. Set bo",
        ),
    ],
)
def test_comparisons_without_meaning_are_refused(keys, told):
    given = [f"objective.{key}" for key in keys]
    with pytest.raises(InputError, match=rf"^objective\.{told}"):
        load(None, ["corpus.pairs=columns", *given])


def test_what_bigdl_does_not_compare_is_refused():
    given = ["training.framework=bigdl", "training.engine=bigdl"]
    with pytest.raises(InputError, match=r"^training\.framework: bigdl knows query_to_doc only"):
        load(None, [*given, "objective.false_negative_margin=0.1"])


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (["dimensions=[64,64]"], r"objective\.dimensions: it is 64, 64\. Name whole numbers above"),
        (["dimensions=[64,0]"], r"objective\.dimensions: it is 64, 0\. Name whole numbers above 0"),
        (
            ["dimensions=[64,32]", "dimension_weights=[1]"],
            r"objective\.dimension_weights: it has 1 weights for 2 dimensions\. Give one for eac",
        ),
        (
            ["dimensions=[64]", "dimension_weights=[0]"],
            r"objective\.dimension_weights: it is 0\.0\. Give numbers above 0",
        ),
    ],
)
def test_dimensions_without_meaning_are_refused(keys, told):
    with pytest.raises(InputError, match=f"^{told}"):
        load(None, [f"objective.{key}" for key in keys])


def test_dimensions_are_those_of_the_encoder(caplog):
    nested = objective(dimensions=(8, 4))
    nested.check_width(8)
    assert not caplog.messages
    with pytest.raises(InputError, match=r"^objective\.dimensions: 8 is more than the 6 values"):
        nested.check_width(6)
    nested.check_width(12)
    assert caplog.messages == [
        "objective.dimensions leaves out 12, the whole width of an embedding: its last 4 numbers "
        "are not trained"
    ]


def test_bigdl_trains_the_whole_width_only():
    given = ["training.framework=bigdl", "training.engine=bigdl", "objective.dimensions=[64]"]
    with pytest.raises(InputError, match=r"^training\.framework: bigdl trains embeddings of the f"):
        load(None, given)
