"""PyTorch's encoder against TensorFlow's, and what it has of its own."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from token_batches import FULL, LENGTHS, SPEC, WEIGHTS, tokens, torch_forward

from pipelines.models.bert import torch as attention
from pipelines.models.folder import default_start, read_encoder
from pipelines.models.frameworks import torch_dropout
from pipelines.models.frameworks.torch import embed, prepare
from pipelines.models.spec import DropoutRates

CPU = torch.device("cpu")


def leaves(weights=WEIGHTS):
    return {name: torch.tensor(value, requires_grad=True) for name, value in weights.items()}


def run(ids, lengths=LENGTHS, spec=SPEC, weights=WEIGHTS, **options):
    return torch_forward(spec, leaves(weights), ids, lengths, **options).detach().numpy()


def slopes(ids, lengths, spec=SPEC, **options):
    """Gradients of a number that all of the embeddings have a part in."""
    weights = leaves()
    embeddings = embed(
        prepare(spec, weights, options.pop("precision", "fp32")), ids, lengths, **options
    )
    pull = np.random.default_rng(3).normal(size=embeddings.shape).astype(np.float32)
    (embeddings * torch.from_numpy(pull)).sum().backward()
    return {name: weight.grad.to_dense().numpy() for name, weight in weights.items()}


def tensorflow_slopes(ids, lengths, spec=SPEC):
    import tensorflow as tf

    from pipelines.models.frameworks.tensorflow import forward as tensorflow_forward

    weights = {name: tf.Variable(value) for name, value in WEIGHTS.items()}

    @partial(tf.function, autograph=False)
    def graph(ids, lengths):
        with tf.GradientTape() as tape:
            embeddings = tensorflow_forward(spec, weights, ids, lengths)
            shape = (len(LENGTHS), spec.hidden)
            pull = np.random.default_rng(3).normal(size=shape).astype(np.float32)
            total = tf.reduce_sum(embeddings * pull)
        return embeddings, tape.gradient(total, weights)

    embeddings, found = graph(tf.constant(ids), tf.constant(lengths))
    return embeddings.numpy(), {
        name: tf.convert_to_tensor(gradient).numpy() for name, gradient in found.items()
    }


def assert_close(found, expected, share=1e-4):
    """Gradients that differ by no more than a share of the largest of each weight."""
    assert found.keys() == expected.keys()
    largest = max(np.abs(gradient).max() for gradient in expected.values())
    for name, gradient in expected.items():
        # Softmax does not see a key's bias, so that its gradient is noise.
        size = largest if name.endswith("key.bias") else np.abs(gradient).max()
        np.testing.assert_allclose(found[name], gradient, rtol=0, atol=share * size, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lengths", "pooling", "normalise"),
    [
        pytest.param(LENGTHS, "mean", True, id="padded"),
        pytest.param(FULL, "cls", False, id="full"),
    ],
)
def test_it_is_tensorflows_encoder(lengths, pooling, normalise):
    spec = dataclasses.replace(SPEC, pooling=pooling, normalise=normalise)
    ids = tokens(lengths=lengths)
    embeddings, expected = tensorflow_slopes(ids, lengths, spec)
    np.testing.assert_allclose(run(ids, lengths, spec), embeddings, rtol=0, atol=1e-5)
    assert_close(slopes(ids, lengths, spec), expected)
    # Softmax does not see what is added to all of its inputs.
    assert not [
        name for name, slope in expected.items() if not slope.any() and "key.bias" not in name
    ]


@pytest.mark.slow
def test_the_packaged_checkpoint_gives_tensorflows_embeddings():
    from pipelines.models.inference.backends import token_embedder

    spec, weights = read_encoder(default_start())
    generator = np.random.default_rng(6)
    ids = generator.integers(1, spec.vocabulary, (5, 24)).astype(np.int32)
    for lengths in (np.array([24, 3, 9, 17, 1], np.int32), np.full(5, 24, np.int32)):
        expected = token_embedder(spec, weights, backend="tensorflow")(ids, lengths)
        np.testing.assert_allclose(run(ids, lengths, spec, weights), expected, rtol=0, atol=1e-5)


def test_gradients_in_bf16_are_close():
    expected, found = (slopes(tokens(), LENGTHS, precision=kind) for kind in ("fp32", "bf16"))
    for name, gradient in expected.items():
        if not name.endswith("key.bias"):
            cosine = (gradient * found[name]).sum() / np.linalg.norm(gradient)
            assert cosine / np.linalg.norm(found[name]) > 0.995, name


@pytest.mark.parametrize("lengths", [LENGTHS, FULL], ids=["padded", "full"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_both_forms_of_attention_are_the_same(monkeypatch, lengths, precision):
    found = []
    called = []
    for name in ("explicit_attention", "fused_attention"):
        monkeypatch.setattr(attention, name, noting(name, called))
    for longest, name in ((0, "fused_attention"), (16, "explicit_attention")):
        monkeypatch.setattr(attention, "LONGEST_EXPLICIT", longest)
        called.clear()
        found.append(slopes(tokens(lengths=lengths), lengths, precision=precision))
        assert set(called) == {name}
    assert_close(*found, share=1e-5 if precision == "fp32" else 0.05)


def noting(name, called):
    """A form of attention that notes its name."""
    form = getattr(attention, name)

    def noted(*given):
        called.append(name)
        return form(*given)

    return noted


def test_noise_is_never_left_to_the_fused_attention_of_a_cpu(monkeypatch):
    called = []
    monkeypatch.setattr(attention, "LONGEST_EXPLICIT", 0)
    for name in ("explicit_attention", "fused_attention"):
        monkeypatch.setattr(attention, name, noting(name, called))
    run(tokens(), dropout=0.1, seed=(1, 2))
    assert set(called) == {"explicit_attention"}


class TestDropout:
    def seeded(self, *seed, **options):
        return run(tokens(), dropout=0.3, seed=seed, **options)

    def test_noise_does_not_follow_from_the_threads(self):
        before, masks, rates = torch.get_num_threads(), [], DropoutRates(0.3, 0.3)
        try:
            for threads in (1, 2):
                torch.set_num_threads(threads)
                masks.append(torch_dropout.DropoutMasks(rates, (1, 2), CPU).mask(0, (300, 400)))
        finally:
            torch.set_num_threads(before)
        assert torch.equal(*masks)

    @pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
    def test_masks_drop_their_share_and_keep_the_mean(self, share):
        rates = DropoutRates(share, share)
        mask = torch_dropout.DropoutMasks(rates, (3, 4), CPU).mask(5, (500, 403))
        assert float((mask == 0).float().mean()) == pytest.approx(share, abs=0.005)
        assert float(mask.mean()) == pytest.approx(1, abs=0.03)
        assert len(mask.unique()) == 2

    def test_each_place_has_its_own_noise(self, monkeypatch):
        places, drawn = [], torch_dropout.DropoutMasks._drawn

        def noted(noise, place, *how):
            places.append(place)
            return drawn(noise, place, *how)

        monkeypatch.setattr(torch_dropout.DropoutMasks, "_drawn", noted)
        self.seeded(1, 2)
        # One place after the embeddings, and three in a layer.
        assert sorted(places) == list(range(1 + 3 * SPEC.layers))

    def test_gradients_are_those_that_pytorch_derives(self, monkeypatch):
        def plain(qkv, batch, heads, mask, bias):
            split = batch.rectangle(qkv).view(batch.texts, batch.width, 3, heads, -1)
            query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
            probs = (query @ key.transpose(-1, -2) + batch.padding.attention_bias).softmax(
                -1
            ) * mask
            return batch.tokens((probs @ value).transpose(1, 2))

        found = slopes(tokens(), LENGTHS, dropout=0.2, seed=(1, 2))
        monkeypatch.setattr(attention, "explicit_attention", plain)
        assert_close(found, slopes(tokens(), LENGTHS, dropout=0.2, seed=(1, 2)), share=1e-5)
