"""TSDAE against the DenoisingAutoEncoderLoss of sentence-transformers."""

import numpy as np
import pytest
import torch
from reconstruction_cases import compare, loss_and_gradients, noised, texts, weights_of
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from sentence_transformers.sentence_transformer.losses import DenoisingAutoEncoderLoss
from tiny_checkpoints import FAMILIES, write_plain

from pipelines.catalog import LOSSES
from pipelines.lanes.files import Side
from pipelines.models.folder import read_encoder
from pipelines.pretraining.start import HEAD, STORED

CROSS = "decoder.layer."


def their_name(name: str) -> str:
    """What the library's decoder calls one of our own weights."""
    if name.startswith(HEAD):
        return STORED[name][0]
    return name.replace(CROSS, "bert.encoder.layer.")


def features(side: Side) -> dict[str, torch.Tensor]:
    """Texts as their tokenizer would give them."""
    is_token = np.arange(side.token_ids.shape[1]) < side.lengths[:, None]
    ids = np.where(is_token, side.token_ids, FAMILIES["bert"].config["pad_token_id"])
    return {
        "input_ids": torch.from_numpy(ids).long(),
        "attention_mask": torch.from_numpy(is_token).long(),
    }


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_value_and_gradients_are_those_of_sentence_transformers(tmp_path, pooling):
    folder = write_plain(tmp_path / "start", FAMILIES["bert"])
    transformer = modules.Transformer(str(folder))
    pool = modules.Pooling(transformer.get_embedding_dimension(), pooling)
    model = SentenceTransformer(modules=[transformer, pool], device="cpu")
    theirs = DenoisingAutoEncoderLoss(model, tie_encoder_decoder=True).eval()
    own_shapes = LOSSES.load("tsdae").token_loss.shapes
    spec, weights = read_encoder(folder)
    spec = type(spec)(**{**vars(spec), "pooling": pooling, "normalise": False})
    parameters = dict(theirs.decoder.named_parameters())
    with torch.no_grad():
        generator = torch.Generator().manual_seed(4)
        for name in map(their_name, own_shapes(spec)):
            parameters[name].add_(torch.randn(parameters[name].shape, generator=generator) * 0.2)
    own = {name: parameters[their_name(name)].detach().numpy() for name in own_shapes(spec)}

    # Of lengths that differ, and within its vocabulary; none of them is empty.
    side = texts(6, 12)
    side = Side(np.where(side.token_ids >= 46, 7, side.token_ids), np.maximum(side.lengths, 3))
    inputs = noised("tsdae", side)
    noisy = Side(inputs["token_ids"], inputs["lengths"])
    assert (noisy.lengths < side.lengths).any()
    expected = theirs([features(noisy), features(side)], None)
    expected.backward()
    gradients = {name: one.grad.numpy() for name, one in parameters.items() if one.grad is not None}
    found, ours, ours_own = loss_and_gradients("tsdae", inputs, weights, own, spec)
    label = f"tsdae, {pooling}"
    of_encoder = {f"bert.{name}": one for name, one in ours.items()}
    compare(f"{label}: encoder", found, expected.item(), of_encoder, gradients)
    of_own = {their_name(name): one for name, one in ours_own.items()}
    compare(f"{label}: own", found, expected.item(), of_own, gradients)


def test_a_token_sees_none_behind_it():
    (weights, own), side = weights_of("tsdae"), texts()
    inputs = noised("tsdae", side)
    changed = dict(inputs)
    # Another word behind the fourth; only predictions from there on may cost something else.
    changed["originals"] = inputs["originals"].copy()
    changed["originals"][:, 4] = 9
    for part, same in ((slice(0, 4), True), (slice(4, None), False)):
        shares = np.zeros_like(inputs["shares"])
        shares[:, part] = inputs["shares"][:, part]
        values = [
            loss_and_gradients("tsdae", {**one, "shares": shares}, weights, own)[0]
            for one in (inputs, changed)
        ]
        assert (values[0] == pytest.approx(values[1], rel=1e-6)) == same


def test_the_encoder_misses_what_is_deleted():
    side = texts(300)
    inputs = noised("tsdae", side, deletion_ratio=0.6)
    words = side.lengths - 2
    left = inputs["lengths"] - 2
    expected = np.where(words > 0, np.maximum(np.rint((1 - 0.6) * words), 1), 0)
    np.testing.assert_array_equal(left, expected)
    # Every token but the first is to be found.
    assert (inputs["shares"] > 0).sum() == (side.lengths - 1).sum()
    assert inputs["shares"].sum() == pytest.approx(1, rel=1e-4)
