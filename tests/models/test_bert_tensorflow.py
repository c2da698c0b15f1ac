"""BERT in TensorFlow: the written gradients are right, and tokens move to rows and back."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_batches import LENGTHS, SPEC, WEIGHTS, tokens

from pipelines.models.folder import read_encoder

tf = pytest.importorskip("tensorflow")

from pipelines.models.bert import tensorflow as kernels  # noqa: E402
from pipelines.models.frameworks.tensorflow import forward  # noqa: E402

HEADS, SIZE = 2, 3
BATCHES = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def test_each_place_has_its_own_noise(monkeypatch):
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


def packed(lengths):
    width = max(lengths)
    is_token = np.arange(width) < np.array(lengths)[:, None]
    return kernels.Packing(
        tf.constant(lengths), tf.constant(len(lengths)), tf.constant(width)
    ), is_token


@settings(max_examples=25, deadline=None)
@given(BATCHES)
def test_each_token_has_one_row_and_comes_back_to_its_place(lengths):
    packing, is_token = packed(lengths)
    places = packing.places.numpy()
    tokens = sum(lengths)
    np.testing.assert_array_equal(places[:tokens], np.flatnonzero(is_token))
    assert not is_token.reshape(-1)[places[tokens:]].any()
    np.testing.assert_array_equal(packing.positions.numpy()[:tokens], np.nonzero(is_token)[1])
    rows = np.random.default_rng(0).normal(size=(len(places), 4)).astype(np.float32)
    found = packing.rectangle(tf.constant(rows)).numpy()
    np.testing.assert_array_equal(found[is_token], rows[:tokens])


@settings(max_examples=25, deadline=None)
@given(BATCHES, st.sampled_from([1, 3]))
def test_heads_are_split_as_by_a_transposition_and_joined_again(lengths, parts):
    packing, is_token = packed(lengths)
    texts, width = is_token.shape
    shape = (len(packing.places), parts * HEADS * SIZE)
    rows = tf.constant(np.random.default_rng(0).normal(size=shape).astype(np.float32))
    heads = packing.heads(parts, HEADS)
    split = heads.split(rows)
    plain = tf.reshape(packing.rectangle(rows), [texts, width, parts, HEADS, SIZE])
    expected = tf.transpose(plain, [2, 0, 3, 1, 4])
    np.testing.assert_array_equal(split, expected)
    tokens = sum(lengths)
    np.testing.assert_array_equal(heads.joined(split)[:tokens], rows[:tokens])


@settings(max_examples=25, deadline=None)
@given(BATCHES)
def test_gradients_are_those_of_plain_operations(lengths):
    packing, is_token = packed(lengths)
    generator = np.random.default_rng(0)
    rows = tf.constant(generator.normal(size=(len(packing.places), SIZE)).astype(np.float32))
    # Padding has no part in a loss.
    pull = generator.normal(size=(*is_token.shape, SIZE)) * is_token[..., None]
    with tf.GradientTape() as tape:
        tape.watch(rows)
        total = tf.reduce_sum(packing.rectangle(rows) * pull.astype(np.float32))
    found = tape.gradient(total, rows).numpy()
    tokens = sum(lengths)
    np.testing.assert_array_equal(found[:tokens], pull[is_token].astype(np.float32))
    assert not found[tokens:].any()
