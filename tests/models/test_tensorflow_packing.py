"""Tokens in rows and back, in TensorFlow."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
Packing = pytest.importorskip("pipelines.models.bert.tensorflow").Packing

HEADS, SIZE = 2, 3
BATCHES = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def packed(lengths):
    width = max(lengths)
    is_token = np.arange(width) < np.array(lengths)[:, None]
    return Packing(tf.constant(lengths), tf.constant(len(lengths)), tf.constant(width)), is_token


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
