"""What is trained of an encoder and what is not, and that both make the encoder again."""

import numpy as np
import pytest
from steppers import SPEC, STATIC, assert_close, granule, stepper, work

from pipelines.errors import InputError
from pipelines.models.adaptation import DOWN, UP, Frozen, effective, layer_of, split
from pipelines.models.bert.spec import BertSpec
from pipelines.models.weights import WORDS, random_weights
from pipelines.runs.checkpoint import load_checkpoint, save_checkpoint, save_frozen
from pipelines.settings.load import parse

DEEP = BertSpec(vocabulary=50, layers=3, hidden=16, heads=2, intermediate=32, positions=16)
LORA = {"lora": {"rank": 2, "alpha": 8.0}}
QUERY = "encoder.layer.0.attention.self.query"


def parts(encoder, spec=DEEP, seed=17):
    return split(parse({"encoder": encoder}).encoder, random_weights(spec, 3), seed)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("encoder.layer.11.output.dense.weight", 11),
        ("layers.3.attn.Wqkv.weight", 3),
        ("transformer.layer.2.attention.q_lin.weight", 2),
        ("h.7.attn.c_attn.weight", 7),
        ("embeddings.word_embeddings.weight", None),
        ("final_norm.weight", None),
        ("player.4.weight", None),
    ],
)
def test_a_weight_tells_its_layer(name, layer):
    assert layer_of(name) == layer


def test_all_is_trained_unless_told():
    trained, frozen = parts({})
    assert list(trained) == list(random_weights(DEEP, 3))
    assert frozen == Frozen()


def test_embeddings_and_the_first_layers_are_left_as_they_are():
    trained, frozen = parts({"freeze": {"embeddings": True, "layers": 2}})
    assert {name.split(".")[2] for name in trained} == {"2"}
    assert {name.split(".")[0] for name in frozen.weights} == {"embeddings", "encoder"}
    whole = effective(trained, frozen.weights, frozen.scale)
    assert_close(whole, random_weights(DEEP, 3), rtol=0, atol=0)
    some, _ = parts({"freeze": {"layers": 1}})
    assert WORDS in some
    assert not any(".layer.0." in name for name in some)


def test_lora_trains_two_small_matrices_beside_each_matrix_of_the_layers():
    trained, frozen = parts(LORA)
    matrices = [name for name, value in random_weights(DEEP, 3).items() if value.ndim == 2]
    inside = {name.removesuffix(".weight") for name in matrices if ".layer." in name}
    assert set(trained) == {module + end for module in inside for end in (DOWN, UP)}
    assert trained[QUERY + DOWN].shape == (2, 16)
    assert trained[QUERY + UP].shape == (16, 2)
    assert frozen.scale == 4.0
    # It begins as the encoder is, to the bit.
    whole = effective(trained, frozen.weights, frozen.scale)
    assert_close(whole, random_weights(DEEP, 3), rtol=0, atol=0)
    changed = trained | {QUERY + UP: np.ones((16, 2), np.float32)}
    moved = effective(changed, frozen.weights, frozen.scale)[QUERY + ".weight"]
    expected = frozen.weights[QUERY + ".weight"] + 4 * changed[QUERY + UP] @ trained[QUERY + DOWN]
    np.testing.assert_allclose(moved, expected, rtol=1e-6)


def test_the_first_factors_follow_from_the_seed_and_are_bounded():
    again, other = parts(LORA)[0], parts(LORA, seed=18)[0]
    first = parts(LORA)[0][QUERY + DOWN]
    np.testing.assert_array_equal(first, again[QUERY + DOWN])
    assert not np.array_equal(first, other[QUERY + DOWN])
    assert 0.5 / 4 < np.abs(first).max() <= 1 / 4


def test_targets_are_ends_of_names_and_frozen_layers_have_none():
    trained, _ = parts({"lora": {"rank": 1, "targets": ["query", "self.value"]}})
    ends = {name.removesuffix(DOWN).removesuffix(UP).split(".")[-1] for name in trained}
    assert ends == {"query", "value"}
    trained, _ = parts({**LORA, "freeze": {"layers": 2}})
    assert {layer_of(name) for name in trained} == {2}


@pytest.mark.parametrize(
    ("encoder", "spec", "told"),
    [
        ({"freeze": {"layers": 4}}, DEEP, r"encoder\.freeze\.layers: 4 of 3 .*at most 3"),
        (
            {"freeze": {"embeddings": True, "layers": 3}},
            DEEP,
            r"encoder\.freeze: nothing is left to train",
        ),
        ({"freeze": {"embeddings": True}}, STATIC, r"encoder\.freeze: nothing is left"),
        (
            {"lora": {"rank": 2, "targets": ["q_proj"]}},
            DEEP,
            r"encoder\.lora\.targets: .*`q_proj`\. Choose one of query, key, value, dense",
        ),
        ({"lora": {"rank": 2}}, STATIC, r"encoder\.lora\.rank: no layer has"),
        ({"lora": {"rank": 2}, "freeze": {"layers": 3}}, DEEP, r"encoder\.lora\.rank: no layer"),
    ],
)
def test_what_cannot_be_is_refused(encoder, spec, told):
    with pytest.raises(InputError, match=told):
        parts(encoder, spec)


@pytest.mark.parametrize(
    ("training", "told"),
    [
        ({"engine": "bigdl", "framework": "bigdl"}, "`bigdl` trains all weights"),
        (
            {"engine": "torch", "framework": "torch", "sharding": "parameters"},
            "training.sharding `parameters` trains all weights",
        ),
    ],
)
@pytest.mark.parametrize("encoder", [LORA, {"freeze": {"embeddings": True}}])
def test_engines_that_train_all_weights_say_so(training, told, encoder):
    with pytest.raises(InputError, match=told):
        parse({"training": training, "encoder": encoder})


PARTLY = {
    "frozen": {"freeze": {"embeddings": True}},
    "both": {**LORA, "freeze": {"layers": 1}},
}


def curve(each, steps):
    return [each.step(work(i, granule(2 * i), granule(2 * i + 1)), 1e-2) for i in steps]


@pytest.mark.slow
@pytest.mark.parametrize("encoder", PARTLY.values(), ids=PARTLY)
def test_frameworks_train_the_same_part(tmp_path, encoder):
    torch, tensorflow = (
        stepper(name, {"negatives": "step"}, {"clip_norm": 0.5}, spec=DEEP, encoder=encoder)
        for name in ("torch", "tensorflow")
    )
    first = torch.checkpoint(0)
    losses = curve(torch, range(4))
    np.testing.assert_allclose(losses, curve(tensorflow, range(4)), rtol=1e-4)
    made = torch.checkpoint(4)
    # What is kept and averaged between workers is what is trained, and all of it moves.
    assert made.weights.keys() == first.weights.keys() == parts(encoder)[0].keys()
    assert made.moments.keys() == {f"{kind}/{name}" for kind in "mv" for name in made.weights}
    bias = "attention.self.key.bias"  # Attention does not depend on it.
    assert not [
        name
        for name, value in made.weights.items()
        if np.array_equal(value, first.weights[name]) and not name.endswith(bias)
    ]
    # It goes on from its files.
    _, frozen = parts(encoder)
    save_frozen(tmp_path, frozen)
    save_checkpoint(tmp_path, made, keep=2)
    read = load_checkpoint(tmp_path, 4)
    again = stepper("torch", {"negatives": "step"}, {"clip_norm": 0.5}, read, spec=DEEP)
    np.testing.assert_array_equal(curve(again, range(4, 6)), curve(torch, range(4, 6)))


def test_lora_of_full_rank_has_the_gradient_of_the_matrix():
    """The gradient of a sum is that of its parts: of UP it is the matrix's times DOWN."""
    start, parts_of_step = random_weights(SPEC, 3), work(0, granule(1), granule(2))
    plain = stepper("torch", training={"clip_norm": 0.0})
    _, expected = plain.gradients(parts_of_step, start)
    adapted = stepper("torch", training={"clip_norm": 0.0}, encoder=LORA)
    trained = adapted.checkpoint(0).weights
    _, found = adapted.gradients(parts_of_step, trained)
    of_matrix = expected[QUERY + ".weight"]
    np.testing.assert_allclose(
        found[QUERY + UP], 4 * of_matrix @ trained[QUERY + DOWN].T, rtol=1e-4, atol=1e-7
    )
    assert not found[QUERY + DOWN].any(), "UP is zero"
