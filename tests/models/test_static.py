"""Static token embeddings, in both frameworks."""

from functools import cache, partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from token_batches import LENGTHS, tokens, torch_forward

from pipelines.models.bert.spec import BertSpec
from pipelines.models.spec import EncoderSpec
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import WORDS, check_weights, random_weights, weight_shapes

tf = pytest.importorskip("tensorflow")

from pipelines.models.frameworks import tensorflow as tensorflow_encoder  # noqa: E402

SPEC = StaticSpec(vocabulary=90, hidden=24, normalise=False)
UNIT = StaticSpec(vocabulary=90, hidden=24)
WEIGHTS = random_weights(SPEC, 2)
SHORT = np.array([1, 2, 3, 16], np.int32)


@cache
def tensorflow_graph(spec, **options):
    """Embeddings and gradient; tracing takes far longer than running."""
    words = tf.Variable(WEIGHTS[WORDS])

    @partial(tf.function, autograph=False, reduce_retracing=True)
    def graph(ids, lengths, pull, **noise):
        with tf.GradientTape() as tape:
            weights = {WORDS: words}
            found = tensorflow_encoder.forward(spec, weights, ids, lengths, **noise, **options)
            total = tf.reduce_sum(found * pull)
        return found, tf.convert_to_tensor(tape.gradient(total, words))

    return graph


def run_tensorflow(ids, lengths, spec, pull, seed=None, **options):
    noise = {} if seed is None else {"seed": tf.constant(seed, tf.int32)}
    inputs = map(tf.constant, (ids, lengths, pull))
    return [value.numpy() for value in tensorflow_graph(spec, **options)(*inputs, **noise)]


def run_torch(ids, lengths, spec, pull, **options):
    words = torch.tensor(WEIGHTS[WORDS], requires_grad=True)
    found = torch_forward(spec, {WORDS: words}, ids, lengths, **options)
    (found * torch.from_numpy(pull)).sum().backward()
    return found.detach().numpy(), words.grad.numpy()


RUNS = {"tensorflow": run_tensorflow, "torch": run_torch}


@pytest.fixture(params=RUNS)
def run(request):
    """Embeddings, and the gradient of the words of a number that all of them have a part in."""

    def call(ids, lengths=LENGTHS, spec=SPEC, **options):
        shape = (len(lengths), spec.hidden)
        pull = np.random.default_rng(3).normal(size=shape).astype(np.float32)
        return RUNS[request.param](ids, lengths, spec, pull, **options)

    return call


def means(ids, lengths):
    return np.stack(
        [
            WEIGHTS[WORDS][row[1 : length - 1]].mean(0, dtype=np.float64)
            for row, length in zip(ids, lengths, strict=True)
        ]
    )


def test_it_is_the_mean_of_all_tokens_but_the_ends(run):
    expected = means(tokens(), LENGTHS)
    np.testing.assert_allclose(run(tokens())[0], expected, atol=1e-7)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(run(tokens(), spec=UNIT)[0], expected, atol=1e-6)


@pytest.mark.parametrize("spec", [SPEC, UNIT], ids=["free", "unit"])
@pytest.mark.parametrize("lengths", [LENGTHS, SHORT], ids=["long", "short"])
def test_frameworks_agree(spec, lengths):
    pull = np.random.default_rng(3).normal(size=(len(lengths), spec.hidden)).astype(np.float32)
    ids = tokens(lengths=lengths)
    (expected, slope), (found, torch_slope) = (
        one(ids, lengths, spec, pull) for one in RUNS.values()
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(torch_slope, slope, atol=1e-5 * np.abs(slope).max())


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    padding=st.integers(0, SPEC.vocabulary - 1),
    extra=st.sampled_from([0, 8, 16]),
    spec=st.sampled_from([SPEC, UNIT]),
)
@pytest.mark.parametrize("name", RUNS)
def test_order_and_padding_have_no_influence(name, seed, padding, extra, spec):
    pull = np.ones((len(LENGTHS), spec.hidden), np.float32)
    expected, slope = RUNS[name](tokens(), LENGTHS, spec, pull)
    ids, generator = tokens(16 + extra, padding), np.random.default_rng(seed)
    for row, length in zip(ids, LENGTHS, strict=True):
        row[1 : length - 1] = generator.permutation(row[1 : length - 1])
        row[[0, length - 1]] = generator.integers(0, spec.vocabulary, 2)
    found, other_slope = RUNS[name](ids, LENGTHS, spec, pull)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(other_slope, slope, atol=1e-5 * np.abs(slope).max())


@pytest.mark.parametrize("spec", [SPEC, UNIT], ids=["free", "unit"])
@pytest.mark.parametrize("width", [1, 2, 16])
def test_a_text_without_words_is_zero_and_pulls_at_nothing(run, spec, width):
    lengths = np.array([1, min(width, 2)], np.int32)
    found, slope = run(tokens(width, lengths=lengths), lengths, spec)
    np.testing.assert_array_equal(found, np.zeros((2, spec.hidden)))
    np.testing.assert_array_equal(slope, np.zeros_like(slope))


class TestSpec:
    def test_it_has_one_weight_in_its_canonical_name(self):
        assert weight_shapes(SPEC) == {WORDS: (90, 24)}
        check_weights(SPEC, WEIGHTS)
        assert WEIGHTS[WORDS][1:].std() == pytest.approx(0.02, rel=0.05)

    def test_weights_of_a_transformer_are_refused(self):
        name = "embeddings.LayerNorm.bias"
        with pytest.raises(ValueError, match=name):
            check_weights(SPEC, {**WEIGHTS, name: np.zeros(24, np.float32)})

    def test_it_survives_json(self):
        assert EncoderSpec.from_json(UNIT.to_json()) == UNIT != SPEC

    def test_what_older_runs_wrote_is_a_transformer(self):
        spec = BertSpec(vocabulary=9, layers=1, hidden=8, heads=2, intermediate=8)
        older = {key: value for key, value in spec.to_json().items() if key != "kind"}
        assert EncoderSpec.from_json(older) == spec
