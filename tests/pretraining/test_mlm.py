"""Masked language modelling against that of `transformers`."""

import numpy as np
import pytest
import torch
from reconstruction_cases import SPEC, compare, loss_and_gradients, noised, texts, weights_of
from transformers import BertConfig, BertForMaskedLM

from pipelines.pretraining.start import STORED
from pipelines.pretraining.torch_head import Wanted


def their_model(weights, own) -> BertForMaskedLM:
    """The library's model with the same arrays."""
    config = BertConfig(
        vocab_size=SPEC.vocabulary,
        num_hidden_layers=SPEC.layers,
        hidden_size=SPEC.hidden,
        num_attention_heads=SPEC.heads,
        intermediate_size=SPEC.intermediate,
        max_position_embeddings=SPEC.positions,
    )
    model = BertForMaskedLM(config).eval()
    state = {f"bert.{name}": value for name, value in weights.items()}
    state |= {STORED[name][0]: value for name, value in own.items()}
    arrays = {name: torch.from_numpy(value) for name, value in state.items()}
    missing, unknown = model.load_state_dict(arrays, strict=False)
    # The output matrix is the word embedding.
    assert set(missing) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert not unknown
    return model


@pytest.mark.parametrize("rows", [3, 10_000])
def test_value_and_gradients_are_those_of_transformers(rows, monkeypatch):
    monkeypatch.setattr("pipelines.pretraining.torch_head.FEWEST", rows)
    monkeypatch.setattr("pipelines.pretraining.torch_head.LOGITS", 1)
    (weights, own), side = weights_of("mlm"), texts()
    inputs = noised("mlm", side, mask_ratio=0.4)
    found, ours, ours_own = loss_and_gradients("mlm", inputs, weights, own)

    model = their_model(weights, own)
    is_wanted = inputs["shares"] > 0
    labels = torch.from_numpy(np.where(is_wanted, side.token_ids, -100)).long()
    attention = np.arange(side.token_ids.shape[1]) < side.lengths[:, None]
    expected = model(
        input_ids=torch.from_numpy(inputs["token_ids"]).long(),
        attention_mask=torch.from_numpy(attention).long(),
        labels=labels,
    ).loss
    expected.backward()
    theirs = {name: one.grad.numpy() for name, one in model.named_parameters()}
    expected_value = expected.item()
    ours = {f"bert.{name}": one for name, one in ours.items()}
    compare("mlm: encoder", found, expected_value, ours, theirs)
    ours = {STORED[name][0]: one for name, one in ours_own.items()}
    compare("mlm: head", found, expected_value, ours, theirs)
    assert is_wanted.sum() > 12


def test_bf16_stays_near_fp32():
    (weights, own), inputs = weights_of("mlm"), noised("mlm", texts(20), mask_ratio=0.4)
    full, _, at_head = loss_and_gradients("mlm", inputs, weights, own)
    half, _, near = loss_and_gradients("mlm", inputs, weights, own, precision="bf16")
    assert half == pytest.approx(full, rel=0.02)
    name = "head.dense.weight"
    off = np.linalg.norm(near[name] - at_head[name])
    assert 0 < off < 0.05 * np.linalg.norm(at_head[name])


def test_texts_without_words_cost_nothing():
    side = texts(3)
    side.lengths[:] = 2
    side.token_ids[:, 1] = 3
    inputs = noised("mlm", side)
    wanted = Wanted.of(inputs["targets"], inputs["shares"], side.lengths, torch.device("cpu"))
    assert len(wanted.rows) == 0
    value, gradients, _ = loss_and_gradients("mlm", inputs, *weights_of("mlm"))
    assert value == 0
    assert not any(one.any() for one in gradients.values())
