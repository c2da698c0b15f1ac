"""Causal language modelling against that of `transformers`."""

import numpy as np
import pytest
import torch
from reconstruction_cases import PAD, SPEC, compare, loss_and_gradients, noised
from tiny_checkpoints import FAMILIES, random_model, write_plain
from transformers import AutoModelForCausalLM

from pipelines.catalog import LOSSES
from pipelines.errors import InputError
from pipelines.lanes.files import Side
from pipelines.models.folder import read_encoder
from pipelines.models.hf.torch_library import own_names
from pipelines.pretraining.start import fresh_weights

DECODERS = ("gpt2", "qwen3", "llama")


def texts(examples=5, width=16, seed=8) -> Side:
    """Of several lengths; one is of a single token, which nothing follows."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(3, width + 1, examples).astype(np.int32)
    lengths[0], lengths[1] = width, 1
    ids = generator.integers(5, 48, (examples, width)).astype(np.int32)
    return Side(np.where(np.arange(width) < lengths[:, None], ids, PAD), lengths)


@pytest.mark.parametrize("kind", DECODERS)
def test_value_and_gradients_are_those_of_transformers(kind, tmp_path):
    model = random_model(FAMILIES[kind])
    spec, weights = read_encoder(write_plain(tmp_path / kind, FAMILIES[kind], model))
    side = texts()
    inputs = noised("clm", side)
    found, ours, own = loss_and_gradients("clm", inputs, weights, {}, spec)
    assert own == {}

    config = model.config
    config.tie_word_embeddings = True
    theirs = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    theirs.base_model.load_state_dict(model.state_dict())
    theirs.tie_weights()
    is_token = np.arange(side.token_ids.shape[1]) < side.lengths[:, None]
    expected = theirs(
        input_ids=torch.from_numpy(side.token_ids).long(),
        attention_mask=torch.from_numpy(is_token).long(),
        labels=torch.from_numpy(np.where(is_token, side.token_ids, -100)).long(),
    ).loss
    expected.backward()
    names = own_names(theirs.base_model)
    gradients = dict(theirs.base_model.named_parameters())
    arrays = {name: gradients[own].grad.numpy() for name, own in names.items()}
    compare(f"clm: {kind}", found, expected.item(), ours, arrays)


def test_each_token_but_the_first_of_a_text_counts_as_much():
    side = texts()
    shares = noised("clm", side)["shares"]
    counted = int((side.lengths - 1).sum())
    assert np.allclose(shares[shares > 0], 1 / counted)
    assert (shares > 0).sum(axis=1).tolist() == (side.lengths - 1).tolist()


def test_it_has_no_weights_of_its_own_and_nothing_random():
    own = LOSSES.load("clm").token_loss
    assert fresh_weights(own, SPEC, 3) == {}
    one, other = (noised("clm", texts(), number=number) for number in (3, 4))
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", ["bert", "modernbert", "gemma3_text"])
def test_what_sees_the_tokens_to_come_is_refused(kind, tmp_path):
    spec, _ = read_encoder(write_plain(tmp_path / kind, FAMILIES[kind]))
    with pytest.raises(InputError, match=r"objective.name: `clm` needs a decoder"):
        LOSSES.load("clm").token_loss.check_spec(spec)
