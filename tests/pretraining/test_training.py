"""Training with weights of an objective's own: what it must not depend on, and what is kept."""

from types import SimpleNamespace

import numpy as np
import pytest
from steppers import IDS, SPEC, STATIC, assert_close, granule, stepper, work

from pipelines.catalog import LOSSES
from pipelines.errors import InputError
from pipelines.models.adaptation import DOWN, OBJECTIVE, UP, of_objective, without_objective
from pipelines.models.weights import WORDS, check_weights
from pipelines.pretraining.start import fresh_weights, objective_weights
from pipelines.runs.checkpoint import load_checkpoint, save_checkpoint, save_frozen
from pipelines.settings.load import load, parse
from pipelines.training.collectives.base import SingleProcess
from pipelines.training.steppers.base import StepWork
from pipelines.training.steppers.torch import TorchStepper

pytestmark = pytest.mark.slow

WITH_TOKENS = [name for name in LOSSES if LOSSES.load(name).token_loss]
NAMES = [name for name in WITH_TOKENS if name != "clm"]
"""Those that train an encoder; a decoder's has no noise, and no weights of its own."""
OF_SINGLES = [name for name in NAMES if name != "reranking"]
UNCLIPPED = {"clip_norm": 0.0}

each_objective = pytest.mark.parametrize("name", NAMES)
of_singles = pytest.mark.parametrize("name", OF_SINGLES)


def made(name, training=None, **others):
    return stepper("torch", {"name": name}, training, **others)


def curve(each, steps, rate=3e-3):
    return [each.step(work(i, granule(2 * i), granule(2 * i + 1)), rate) for i in steps]


def gradients(each, *granules, epoch=0):
    """At the weights that it has."""
    parts = StepWork(0, epoch, list(granules))
    return each.gradients(parts, each.checkpoint(0).weights)


def test_there_are_some():
    assert WITH_TOKENS == ["reranking", "mlm", "clm", "tsdae", "retromae"]


@each_objective
def test_encoder_and_objective_learn_from_their_gradients(name):
    each = made(name, {"dropout": 0.1, "weight_decay": 0.1})
    before = each.checkpoint(0)
    losses = [each.step(work(i, granule(1), granule(2)), 1e-2) for i in range(10)]
    assert losses[-1] < 0.8 * losses[0]
    after = each.checkpoint(10)
    assert after.weights.keys() == before.weights.keys()
    still = [key for key, one in after.weights.items() if np.array_equal(one, before.weights[key])]
    assert still == []


@each_objective
def test_noise_follows_from_seed_epoch_and_granule(name):
    parts = [granule(number) for number in range(3)]
    training = {"dropout": 0.2} | UNCLIPPED
    loss, expected = gradients(made(name, training), *parts)
    another = made(name, training)
    gradients(another, granule(8))
    again_loss, again = gradients(another, *reversed(parts))
    assert again_loss == pytest.approx(loss, rel=1e-5)
    assert_close(again, expected, rtol=1e-5)
    assert gradients(another, *parts, epoch=1)[0] != pytest.approx(loss, rel=1e-5)
    seeded = made(name, training | {"seed": 18}, checkpoint=another.checkpoint(0))
    assert gradients(seeded, *parts)[0] != pytest.approx(loss, rel=1e-5)


@each_objective
@pytest.mark.parametrize("most", [1, 20])
def test_parts_of_granules_have_their_loss_and_gradients(name, most):
    (loss, expected), (found_loss, found) = (
        gradients(made(name, UNCLIPPED | limit), granule(1), granule(2))
        for limit in ({}, {"tokens_per_forward": most})
    )
    assert found_loss == pytest.approx(loss, rel=1e-6)
    assert_close(found, expected, rtol=1e-5, atol=1e-5)


@each_objective
def test_activation_checkpointing_changes_nothing(name):
    (loss, expected), (found_loss, found) = (
        gradients(made(name, {"dropout": 0.2, "activation_checkpointing": on}), granule(1))
        for on in (False, True)
    )
    assert found_loss == loss
    assert_close(found, expected, rtol=1e-5, atol=1e-7)


@each_objective
def test_the_gradient_is_that_of_the_loss_under_dropout(name):
    """A small step along it lowers the loss by its square."""
    each = made(name, UNCLIPPED | {"dropout": 0.2})
    start, size, parts = each.checkpoint(0).weights, 1e-2, work(0, granule(1), granule(2))
    _, found = each.gradients(parts, start)
    norm = np.sqrt(sum((one.astype(np.float64) ** 2).sum() for one in found.values()))
    ahead, behind = (
        {key: value - sign * size / norm * found[key] for key, value in start.items()}
        for sign in (1, -1)
    )
    slope = (each.gradients(parts, behind)[0] - each.gradients(parts, ahead)[0]) / (2 * size)
    assert slope == pytest.approx(norm, rel=0.02)


@each_objective
@pytest.mark.parametrize(
    "encoder", [{}, {"lora": {"rank": 2}}, {"freeze": {"embeddings": True}}], ids=str
)
def test_a_run_goes_on_from_its_checkpoint(name, encoder, tmp_path):
    begun, straight = (made(name, {"dropout": 0.1}, encoder=encoder) for _ in range(2))
    start = begun.checkpoint(0)
    curve(begun, range(2))
    middle = begun.checkpoint(2)
    assert of_objective(middle.weights).keys() == of_objective(start.weights).keys() != set()
    assert middle.moments.keys() == {f"{kind}/{one}" for kind in "mv" for one in middle.weights}
    save_frozen(tmp_path, made_frozen(name, encoder))
    save_checkpoint(tmp_path, middle, keep=2)
    loaded = load_checkpoint(tmp_path, 2)
    # What is exported, and measured while training goes on.
    check_weights(SPEC, loaded.encoder_weights)
    resumed = made(name, {"dropout": 0.1}, checkpoint=loaded, encoder=encoder)
    np.testing.assert_allclose(
        curve(resumed, range(2, 4)), curve(straight, range(4))[2:], rtol=1e-6
    )
    trained = without_objective(loaded.weights)
    if "lora" in encoder:
        assert all(one.endswith((DOWN, UP)) for one in trained)
    assert (WORDS in trained) == (not encoder)


def made_frozen(name, encoder):
    """What does not change in a run."""
    from pipelines.models.adaptation import split
    from pipelines.models.weights import random_weights

    settings = parse({"encoder": encoder}).encoder
    return split(settings, random_weights(SPEC, 3), 17)[1]


def test_own_weights_follow_from_the_seed_and_are_not_the_encoders():
    own = LOSSES.load("tsdae").token_loss
    first, again, other = (fresh_weights(own, SPEC, seed) for seed in (17, 17, 18))
    assert_close(first, again, rtol=0, atol=0)
    name = f"{OBJECTIVE}head.dense.weight"
    assert not np.array_equal(first[name], other[name])
    assert np.std(first[name]) == pytest.approx(0.02, rel=0.2)
    norms = [value for key, value in first.items() if key.endswith("LayerNorm.weight")]
    assert all((value == 1).all() for value in norms)
    biases = [value for key, value in first.items() if key.endswith("bias")]
    assert not any(value.any() for value in biases)


@of_singles
def test_an_architecture_without_tokens_is_refused(name):
    config = parse({"objective": {"name": name}, "corpus": {"pairs": "single"}, **TORCH})
    told = rf"^objective\.name: `{name}` cannot train architecture static\. Choose another loss, or"
    with pytest.raises(InputError, match=told):
        objective_weights(config, STATIC)


TORCH = {"training": {"framework": "torch", "engine": "torch"}}
SINGLES = ["corpus.pairs=single", "training.framework=torch", "training.engine=torch"]


@of_singles
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            ["training.framework=tensorflow"],
            r"training\.framework: loss \w+ has no implementation in tensorflow\. Choose one of to",
        ),
        (["corpus.pairs=adjacent"], r"corpus\.pairs: `\w+` cannot use `adjacent`\. Set it to si"),
        (["objective.dimensions=[8]"], r"objective\.dimensions: `\w+` compares no embeddings\. L"),
    ],
)
def test_settings_that_it_cannot_use_are_refused(name, given, told):
    with pytest.raises(InputError, match=f"^{told}"):
        load(None, [f"objective.name={name}", *SINGLES, *given])


def test_ratios_are_shares():
    for key in ("encoder_mask_ratio", "decoder_mask_ratio"):
        with pytest.raises(InputError, match=rf"^objective\.{key}: `1`.*less than 1"):
            load(None, ["objective.name=retromae", *SINGLES, f"objective.{key}=1"])


def sources(*objectives):
    """Settings of single texts of several sources, each with its objective."""
    shared = {"format": "csv", "inputs": ["a.csv"], "pairs": "single"}
    each = [
        {"name": f"s{number}", **shared, "objective": one} for number, one in enumerate(objectives)
    ]
    training = {"framework": "torch", "engine": "torch", "dropout": 0.1}
    return {"corpus": {**shared, "sources": each}, "training": training}


def test_several_sources_have_one_objective_if_it_has_weights_of_its_own():
    config = parse(sources({"name": "mlm"}, {"name": "mlm"}))
    assert of_objective(objective_weights(config, SPEC)).keys() >= {"head.dense.weight"}
    told = r"^corpus\.sources\.objective: `mlm` has weights of its own, which every step must train"
    for other in ({"name": "simcse"}, {"name": "mlm", "mask_ratio": 0.3}):
        with pytest.raises(InputError, match=told):
            parse(sources({"name": "mlm"}, other))


def test_a_step_of_any_source_trains_them():
    settings = sources({"name": "tsdae"}, {"name": "tsdae"})
    settings["training"] |= {"precision": "fp32"}
    config, alone = parse(settings), made("tsdae", {"dropout": 0.1})
    each = [
        SimpleNamespace(config=one, sides=("anchor",), special_ids=IDS)
        for one in config.by_source()
    ]
    run = SimpleNamespace(config=config, by_source=each, special_ids=IDS)
    mixed = TorchStepper(SimpleNamespace(run=run), alone.checkpoint(0), SingleProcess())
    for source in range(2):
        work = StepWork(source, 0, [granule(source)], source=source)
        expected = alone.step(StepWork(source, 0, [granule(source)]), 1e-2)
        assert mixed.step(work, 1e-2) == pytest.approx(expected, rel=1e-6)
