"""BERT in TensorFlow: padding changes nothing, and the written gradients are right."""

import dataclasses
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_batches import LENGTHS, SPEC, WEIGHTS, tokens

from pipelines.models.folder import read_encoder

tf = pytest.importorskip("tensorflow")

from pipelines.models.bert import tensorflow as kernels  # noqa: E402
from pipelines.models.frameworks.tensorflow import forward  # noqa: E402


@cache
def graph(spec, **options):
    """The encoder with the weights of all tests; tracing takes far longer than running."""
    call = partial(forward, spec, WEIGHTS, **options)
    return tf.function(call, autograph=False, reduce_retracing=True)


def run(ids, lengths=LENGTHS, spec=SPEC, seed=None, **options):
    noise = {} if seed is None else {"seed": tf.constant(seed, tf.int32)}
    return graph(spec, **options)(tf.constant(ids), tf.constant(lengths), **noise).numpy()


@settings(max_examples=10, deadline=None)
@given(padding=st.integers(0, SPEC.vocabulary - 1), extra=st.sampled_from([0, 8, 16]))
def test_padding_has_no_influence(padding, extra):
    expected = run(tokens())
    found = run(tokens(16 + extra, padding))
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_sentences_have_no_influence_on_each_other():
    ids = tokens()
    alone = [
        run(ids[row : row + 1, :length], LENGTHS[row : row + 1])
        for row, length in enumerate(LENGTHS)
    ]
    np.testing.assert_allclose(run(ids), np.concatenate(alone), atol=2e-6)


def test_cls_pooling_and_length():
    spec = dataclasses.replace(SPEC, pooling="cls", normalise=False)
    embeddings = run(tokens(), spec=spec)
    norms = np.linalg.norm(embeddings, axis=1)
    assert (np.abs(norms - 1) > 1e-3).all()
    unit = run(tokens(), spec=dataclasses.replace(spec, normalise=True))
    np.testing.assert_allclose(unit, embeddings / norms[:, None], atol=1e-6)
    assert np.abs(unit - run(tokens())).max() > 1e-2


def test_bf16_is_close_and_not_the_same():
    full, half = run(tokens()), run(tokens(), precision="bf16")
    assert half.dtype == np.float32
    assert 0 < np.abs(full - half).max() < 0.02
    assert (full * half).sum(axis=1).min() > 0.999


class TestDropout:
    def seeded(self, *seed, **options):
        return run(tokens(), dropout=0.3, seed=seed, **options)

    @pytest.mark.parametrize("precision", ["fp32", "bf16"])
    def test_noise_follows_from_the_seed(self, precision):
        first = self.seeded(5, 6, precision=precision)
        np.testing.assert_array_equal(first, self.seeded(5, 6, precision=precision))
        for other in ((5, 7), (6, 6)):
            assert np.abs(first - self.seeded(*other, precision=precision)).max() > 1e-2

    def test_its_mean_is_the_quiet_result(self):
        spec = dataclasses.replace(SPEC, normalise=False, layers=1)
        quiet = run(tokens(), spec=spec)
        noise = [run(tokens(), spec=spec, dropout=0.02, seed=(1, number)) for number in range(40)]
        cosine = (np.mean(noise, 0) * quiet).sum() / (
            np.linalg.norm(np.mean(noise, 0)) * np.linalg.norm(quiet)
        )
        assert cosine > 0.999

    def test_each_place_has_its_own_noise(self, monkeypatch):
        seeds = []
        dropout = tf.nn.experimental.stateless_dropout

        def noted(values, rate, seed, rng_alg):
            seeds.append(tuple(seed.numpy()))
            return dropout(values, rate, seed=seed, rng_alg=rng_alg)

        monkeypatch.setattr(tf.nn.experimental, "stateless_dropout", noted)
        seed = tf.constant([1, 2], tf.int32)
        forward(SPEC, WEIGHTS, tf.constant(tokens()), tf.constant(LENGTHS), dropout=0.1, seed=seed)
        # One place after the embeddings, and three in a layer.
        assert len(seeds) == len(set(seeds)) == 1 + 3 * SPEC.layers

    def test_it_needs_a_seed(self):
        with pytest.raises(ValueError, match="seed"):
            run(tokens(), dropout=0.1)


def gradients(operation, inputs, upstream):
    variables = [tf.constant(value) for value in inputs]
    with tf.GradientTape() as tape:
        tape.watch(variables)
        values = operation(*variables)
    found = tape.gradient(values, variables, output_gradients=tf.constant(upstream))
    return [values.numpy(), *(gradient.numpy() for gradient in found)]


@pytest.mark.parametrize("width", [24, 7, 64])
@pytest.mark.parametrize("name", ["add_bias", "bias_gelu", "add_and_normalise"])
def test_written_gradients_are_those_that_tensorflow_derives(name, width):
    generator = np.random.default_rng(4)
    rows = [generator.normal(0, 2, (31, width)).astype(np.float32) for _ in range(3)]
    vectors = [generator.normal(1, 1, width).astype(np.float32) for _ in range(2)]

    def layer_norm(residual, branch, scale, shift):
        total = residual + branch
        mean, variance = tf.nn.moments(total, [-1], keepdims=True)
        return (total - mean) / tf.sqrt(variance + 1e-6) * scale + shift

    ours, plain, inputs = {
        "add_bias": (kernels.add_bias, lambda x, b: x + b, [rows[0], vectors[0]]),
        "bias_gelu": (kernels.bias_gelu, lambda x, b: tf.nn.gelu(x + b), [rows[0], vectors[0]]),
        "add_and_normalise": (
            lambda *values: kernels.add_and_normalise(*values, 1e-6),
            layer_norm,
            [*rows[:2], *vectors],
        ),
    }[name]
    found, expected = gradients(ours, inputs, rows[2]), gradients(plain, inputs, rows[2])
    for ours_value, plain_value in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours_value, plain_value, rtol=2e-4, atol=2e-4)


def test_a_version_1_graph_gives_the_same_gradients():
    name = "encoder.layer.0.attention.self.value.weight"
    variables = {key: tf.Variable(value) for key, value in WEIGHTS.items()}
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(
            forward(SPEC, variables, tf.constant(tokens()), tf.constant(LENGTHS))[:, 0]
        )
    expected = tape.gradient(loss, variables[name]).numpy()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        older = {
            key: tf.compat.v1.get_variable(key, initializer=value, use_resource=True)
            for key, value in WEIGHTS.items()
        }
        ids = tf.compat.v1.placeholder(tf.int32, [None, None])
        lengths = tf.compat.v1.placeholder(tf.int32, [None])
        loss = tf.reduce_sum(forward(SPEC, older, ids, lengths)[:, 0])
        (slope,) = tf.compat.v1.gradients(loss, [older[name]])
        session.run(tf.compat.v1.global_variables_initializer())
        found = session.run(slope, {ids: tokens(), lengths: LENGTHS})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_the_folder_of_a_small_encoder_has_no_nan(small_folder):
    spec, weights = read_encoder(small_folder)
    ids = np.full((2, 64), 7, np.int32)
    embed = tf.function(partial(forward, spec, weights), autograph=False)
    assert np.isfinite(embed(tf.constant(ids), tf.constant([1, 64])).numpy()).all()
