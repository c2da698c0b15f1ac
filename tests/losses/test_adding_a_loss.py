"""A new loss is one module and one line in the registry; all else follows from it."""

import pickle

import numpy as np
import pytest
from steppers import EACH_FRAMEWORK, FRAMEWORKS, granule, stepper, work

from pipelines.catalog import LOSSES
from pipelines.errors import InputError
from pipelines.runs.opening import fixed_settings
from pipelines.settings import fields
from pipelines.settings.load import dump, load

SCORED = ["objective.name=toy", "corpus.score_column=score", "corpus.pairs=columns"]
SCORED += ["corpus.format=csv", "corpus.inputs=a.csv"]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """The line in the registry."""
    monkeypatch.setitem(LOSSES.entries, "toy", "toy_loss:LOSS")


@pytest.mark.parametrize("framework", EACH_FRAMEWORK)
def test_it_trains(framework, monkeypatch):
    import steppers

    monkeypatch.setitem(steppers.CORPUS, "toy", steppers.CORPUS["cosine_regression"])
    losses = {}
    for power in (1.0, 2.0):
        trained = stepper(framework, {"name": "toy", "power": power})
        losses[power] = [trained.step(work(step, granule(7)), 1e-2) for step in range(10)]
        assert losses[power][-1] < 0.7 * losses[power][0]
    assert losses[1.0][0] != pytest.approx(losses[2.0][0])


@pytest.mark.slow
def test_both_forms_start_with_the_same_loss(monkeypatch):
    import steppers

    monkeypatch.setitem(steppers.CORPUS, "toy", steppers.CORPUS["cosine_regression"])
    found = [stepper(one, {"name": "toy"}).step(work(0, granule(7)), 1e-2) for one in FRAMEWORKS]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)


def test_its_key_is_a_setting(tmp_path):
    config = load(None, [*SCORED, "objective.power=1.5"])
    assert config.objective.power == 1.5
    (tmp_path / "a.yaml").write_text(dump(config))
    assert load(tmp_path / "a.yaml") == config == pickle.loads(pickle.dumps(config))
    with pytest.raises(InputError, match=r"^objective\.power: `0` does not fit.*more than 0"):
        load(None, [*SCORED, "objective.power=0"])
    with pytest.raises(InputError, match=r"^objective\.powr: .* Did you mean objective\.power\?"):
        load(None, [*SCORED, "objective.powr=2"])


def test_a_run_that_goes_on_keeps_its_key():
    fixed = fixed_settings(load(None, [*SCORED, "objective.power=1.5"]))
    assert {key: fixed[key] for key in fixed if key.startswith("objective.")} == {
        "objective.name": "toy",
        "objective.dimensions": [],
        "objective.dimension_weights": [],
        "objective.power": 1.5,
    }


def test_its_key_is_in_the_reference_of_settings():
    by_key = {field.key: field for field in fields.fields()}
    assert by_key["objective.name"].kind == " | ".join(LOSSES)
    power = by_key["objective.power"]
    assert (power.kind, power.default) == ("number", "1.0")
    assert power.description == "`toy`: Of the difference to the score."


def test_what_it_lacks_is_refused_before_anything_starts():
    with pytest.raises(
        InputError,
        match=r"loss toy has no implementation in bigdl\. Choose one of tensorflow, torch\.$",
    ):
        load(None, [*SCORED, "training.framework=bigdl", "training.engine=bigdl"])
    with pytest.raises(InputError, match=r"^corpus\.score_column: `toy` needs it"):
        load(None, ["objective.name=toy"])
