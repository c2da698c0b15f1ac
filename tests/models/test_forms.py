"""What all forms in PyTorch and TensorFlow do with padding, precision, noise and activations."""

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from tiny_checkpoints import FAMILIES, write_plain
from token_batches import LENGTHS, SPEC, WEIGHTS, tokens, torch_forward

from pipelines.models.folder import read_encoder
from pipelines.models.frameworks.torch import embed, prepare
from pipelines.models.spec import EncoderSpec
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import WORDS, Weights, random_weights

STATIC = StaticSpec(vocabulary=90, hidden=24, normalise=False)
STATIC_WEIGHTS = random_weights(STATIC, 2)
OF_TRANSFORMERS = ["modernbert", "qwen3"]
WITH_LAYERS = ["bert", *OF_TRANSFORMERS]
NOISE = {"dropout": 0.3, "seed": (5, 6)}


@cache
def tensorflow_graph(spec, **options):
    """The encoder; tracing takes far longer than running."""
    from pipelines.models.frameworks.tensorflow import forward as tensorflow_forward
    from pipelines.models.frameworks.tensorflow import tf

    weights = STATIC_WEIGHTS if spec.kind == "static" else WEIGHTS
    call = partial(tensorflow_forward, spec, weights, **options)
    return tf.function(call, autograph=False, reduce_retracing=True)


def in_tensorflow(spec, weights, ids, lengths, seed=None, **options):
    tf = pytest.importorskip("tensorflow")
    noise = {} if seed is None else {"seed": tf.constant(seed, tf.int32)}
    return tensorflow_graph(spec, **options)(tf.constant(ids), tf.constant(lengths), **noise)


def in_torch(spec, weights, ids, lengths, **options):
    tensors = {name: torch.tensor(value) for name, value in weights.items()}
    return torch_forward(spec, tensors, ids, lengths, **options)


RUNS = {"torch": in_torch, "tensorflow": in_tensorflow}


@dataclass
class Form:
    """An encoder in a framework."""

    framework: str
    kind: str
    spec: EncoderSpec
    weights: Weights

    def __call__(self, ids=None, lengths=LENGTHS, **options: Any) -> np.ndarray:
        """The embeddings of some texts."""
        spec, ids = options.pop("spec", self.spec), tokens() if ids is None else ids
        ids = ids % spec.vocabulary
        return RUNS[self.framework](spec, self.weights, ids, lengths, **options).numpy()

    def leaves(self) -> dict[str, torch.Tensor]:
        return {name: torch.tensor(one, requires_grad=True) for name, one in self.weights.items()}

    def gradients(self, **options: Any) -> dict[str, np.ndarray]:
        """Those of a number that all of the embeddings have a part in, in PyTorch."""
        leaves, precision = self.leaves(), options.pop("precision", "fp32")
        encoder = prepare(self.spec, leaves, precision)
        embeddings = embed(encoder, tokens() % self.spec.vocabulary, LENGTHS, **options)
        pull = torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(1))
        (embeddings * pull).sum().backward()
        return {name: leaf.grad.to_dense().numpy() for name, leaf in leaves.items()}


@pytest.fixture(scope="module")
def form_of(tmp_path_factory):
    made = {"bert": (SPEC, WEIGHTS), "static": (STATIC, STATIC_WEIGHTS)}

    def form(framework, kind):
        if kind not in made:
            pytest.importorskip("transformers")
            folder = write_plain(tmp_path_factory.mktemp("hf") / kind, FAMILIES[kind])
            made[kind] = read_encoder(folder)
        return Form(framework, kind, *made[kind])

    return form


def of(framework, *kinds):
    return [pytest.param((framework, kind), id=f"{framework}-{kind}") for kind in kinds]


@pytest.fixture(params=[*of("torch", "static", *WITH_LAYERS), *of("tensorflow", "static", "bert")])
def form(request, form_of):
    """Each form in turn."""
    return form_of(*request.param)


def test_neither_padding_nor_other_texts_have_influence(form):
    expected = form()
    for width, padding in ((16, 7), (24, 0), (32, 89)):
        found = form(tokens(width, padding))
        np.testing.assert_allclose(found, expected, atol=0 if form.framework == "torch" else 2e-6)
    alone = [
        form(tokens()[row : row + 1, :length], LENGTHS[row : row + 1])
        for row, length in enumerate(LENGTHS)
    ]
    np.testing.assert_allclose(expected, np.concatenate(alone), rtol=0, atol=2e-6)


def test_bf16_is_close_and_not_the_same(form):
    full, half = form(), form(precision="bf16")
    assert half.dtype == np.float32
    if form.kind == "static":
        np.testing.assert_array_equal(half, full)
        return
    assert 0 < np.abs(full - half).max() < (0.02 if form.kind == "bert" else 0.05)
    assert (full * half).sum(axis=1).min() > 0.999 * np.linalg.norm(full, axis=1).min() ** 2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_noise_follows_from_the_seed_alone(form, precision):
    first = form(**NOISE, precision=precision)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    np.testing.assert_array_equal(first, form(**NOISE, precision=precision))
    assert torch.equal(state, torch.get_rng_state()), "nor does it go into anything else"
    others = [form(dropout=0.3, seed=seed, precision=precision) for seed in ((5, 7), (6, 6))]
    for other in (*others, form(precision=precision)):
        assert np.abs(first - other).max() > 1e-3


def test_noise_needs_a_seed(form):
    with pytest.raises(ValueError, match="seed"):
        form(dropout=0.1)


@pytest.mark.parametrize("framework", RUNS)
@pytest.mark.parametrize(("kind", "share", "least"), [("bert", 0.02, 0.999), ("static", 0.2, 0.98)])
def test_its_mean_is_the_quiet_result(form_of, framework, kind, share, least):
    form = form_of(framework, kind)
    spec = replace(SPEC, normalise=False, layers=1) if kind == "bert" else STATIC
    quiet = form(spec=spec)
    mean = np.mean([form(spec=spec, dropout=share, seed=(1, n)) for n in range(60)], 0)
    assert (mean * quiet).sum() / np.linalg.norm(mean) / np.linalg.norm(quiet) > least
    assert np.linalg.norm(mean) == pytest.approx(np.linalg.norm(quiet), rel=0.05)


@pytest.mark.parametrize("kind", ["static", *WITH_LAYERS])
def test_a_sparse_gradient_of_the_words_is_the_dense_one(form_of, kind):
    form = form_of("torch", kind)
    leaves, ids = form.leaves(), tokens() % form.spec.vocabulary
    leaves[WORDS].grad = kept = torch.zeros_like(leaves[WORDS])
    for _ in range(2):
        encoder = prepare(form.spec, leaves)
        embed(encoder, ids, LENGTHS, sparse_words=True)[:, ::2].sum().backward()
    assert leaves[WORDS].grad is kept
    dense, sparse = form.leaves(), form.leaves()
    (2 * embed(prepare(form.spec, dense), ids, LENGTHS)[:, ::2].sum()).backward()
    torch.testing.assert_close(kept, dense[WORDS].grad, rtol=1e-5, atol=1e-6)
    embed(prepare(form.spec, sparse), ids, LENGTHS, sparse_words=True).sum().backward()
    assert sparse[WORDS].grad.is_sparse


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", WITH_LAYERS)
def test_checkpointed_layers_have_the_same_noise_and_gradients(form_of, kind, precision):
    form = form_of("torch", kind)
    options = NOISE | {"precision": precision}
    expected = form.gradients(**options)
    found = form.gradients(**options, activation_checkpointing=True)
    rtol, atol = (1e-6, 1e-7) if kind == "bert" else (1e-5, 1e-6)
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "share"), [("bert", 0.3), *((kind, 0.5) for kind in OF_TRANSFORMERS)]
)
def test_checkpointed_layers_keep_their_inputs_only(form_of, kind, share):
    form = form_of("torch", kind)

    def kept(checkpointing):
        sizes = []

        def pack(tensor):
            sizes.append(tensor.numel())
            return tensor

        ids = tokens() % form.spec.vocabulary
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            encoder = prepare(form.spec, form.leaves())
            embed(encoder, ids, LENGTHS, activation_checkpointing=checkpointing)
        return sum(sizes)

    assert kept(True) < share * kept(False)
