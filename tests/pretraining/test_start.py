"""What is known of a start before a training: its prediction head, and its mask token."""

import json
import logging

import numpy as np
import pytest
import torch
from steppers import assert_close
from tiny_checkpoints import (
    FAMILIES,
    random_model,
    write_plain,
    write_sentence_folder,
    write_tokenizer,
)
from transformers import AutoConfig, AutoModelForMaskedLM

from pipelines.catalog import LOSSES
from pipelines.errors import InputError
from pipelines.models.adaptation import of_objective
from pipelines.models.folder import read_encoder
from pipelines.pretraining.start import (
    check_objective,
    fresh_weights,
    objective_weights,
    special_ids,
)
from pipelines.settings.load import load
from pipelines.tokens.vocabulary import read_special_ids, save_wordpieces

GIVEN = ["corpus.pairs=single", "training.framework=torch", "training.engine=torch"]


def config_for(folder, name="mlm"):
    return load(None, [*GIVEN, f"objective.name={name}", f"encoder.start={folder}"])


def language_model(family):
    """One of `transformers` with a prediction head that is not as it begins."""
    torch.manual_seed(5)
    config = AutoConfig.for_model(family.model_type, **family.config)
    model = AutoModelForMaskedLM.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


def predicted_by(model, states):
    """What the head of one of `transformers` makes of hidden states."""
    if hasattr(model, "vocab_projector"):
        inner = model.activation(model.vocab_transform(states))
        return model.vocab_projector(model.vocab_layer_norm(inner))
    return getattr(model, "cls" if hasattr(model, "cls") else "lm_head")(states)


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "distilbert", "mpnet"])
def test_the_head_of_the_start_is_used(kind, tmp_path, caplog):
    family = FAMILIES[kind]
    model = language_model(family)
    folder = write_plain(tmp_path / "start", family, model)
    spec, weights = read_encoder(folder)
    with caplog.at_level(logging.INFO):
        own = of_objective(objective_weights(config_for(folder), spec))
    assert f"the prediction head comes from {folder}" in caplog.messages

    # As the library predicts with it, from the hidden states that it has.
    states = torch.randn(6, spec.hidden)
    inner = torch.nn.functional.gelu(
        states @ torch.from_numpy(own["head.dense.weight"]).T
        + torch.from_numpy(own["head.dense.bias"])
    )
    norm = [torch.from_numpy(own[f"head.LayerNorm.{part}"]) for part in ("weight", "bias")]
    inner = torch.nn.functional.layer_norm(inner, inner.shape[1:], *norm, spec.layer_norm_epsilon)
    words = torch.from_numpy(weights["embeddings.word_embeddings.weight"])
    found = inner @ words.T + torch.from_numpy(own["head.bias"])
    theirs = predicted_by(model, states)
    np.testing.assert_allclose(found, theirs.detach(), rtol=0, atol=1e-5)


def test_a_start_without_a_head_has_a_fresh_one(tmp_path, caplog):
    family = FAMILIES["bert"]
    folder = write_plain(tmp_path / "start", family, random_model(family))
    spec, _ = read_encoder(folder)
    with caplog.at_level(logging.INFO):
        own = objective_weights(config_for(folder, "retromae"), spec)
    assert "the start has no prediction head, so a new one starts at random" in caplog.messages
    seed = config_for(folder).training.seed
    expected = fresh_weights(LOSSES.load("retromae").token_loss, spec, seed)
    assert_close(own, expected, rtol=0, atol=0)


def test_dense_layers_are_not_left_untrained(tmp_path):
    folder = write_sentence_folder(tmp_path / "start", FAMILIES["bert"], dense=True)
    spec, _ = read_encoder(folder)
    told = r"^objective\.name: `mlm` does not train dense layers after the pooling"
    with pytest.raises(InputError, match=told):
        objective_weights(config_for(folder), spec)
    own = of_objective(objective_weights(config_for(folder, "tsdae"), spec))
    value = own["decoder.layer.0.crossattention.self.value.weight"]
    assert value.shape == (spec.hidden, spec.embedding_width)


def tokenizer(folder, **told):
    """A tokenizer without a usual mask token; what it says of one."""
    folder.mkdir(parents=True)
    write_tokenizer(folder, FAMILIES["roberta"])
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | told))
    return folder


def test_what_is_special_is_read_from_the_tokenizer(tmp_path):
    found = read_special_ids(tokenizer(tmp_path / "none"))
    assert found.special == (0, 1, 2, 3)
    assert found.mask is None
    assert found.vocabulary > 4
    named = read_special_ids(tokenizer(tmp_path / "named", mask_token="ten"))
    assert named.mask is not None
    other = read_special_ids(tokenizer(tmp_path / "other", mask_token={"content": "ten"}))
    assert other == named
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    (tmp_path / "usual").mkdir()
    save_wordpieces(tmp_path / "usual", pieces, 32, lowercase=True)
    assert read_special_ids(tmp_path / "usual").mask == 4
    assert read_special_ids(tmp_path / "usual").special == (0, 1, 2, 3, 4)


def test_what_can_be_known_is_refused_before_anything_is_prepared(tmp_path):
    random = load(None, [*GIVEN, "objective.name=mlm", "encoder.start=random"])
    check_objective(random, None)
    static = random.encoder.model_copy(update={"kind": "static"})
    told = r"^objective\.name: `mlm` cannot train architecture static\. Choose another loss, or"
    with pytest.raises(InputError, match=told):
        check_objective(random.model_copy(update={"encoder": static}), None)
    folder = write_plain(tmp_path / "start", FAMILIES["electra"])
    with pytest.raises(InputError, match=r"^objective\.name: `retromae` needs one width for all"):
        check_objective(config_for(folder, "retromae"), folder)
    with pytest.raises(
        InputError, match=r"^tokens\.vocabulary: the tokenizer in .* has no mask tok"
    ):
        check_objective(config_for(folder), folder)
    check_objective(config_for(folder, "tsdae"), folder)
    check_objective(load(None, []), folder)


@pytest.mark.parametrize("name", ["mlm", "retromae"])
def test_a_tokenizer_without_a_mask_token_is_refused(name, tmp_path):
    folder = tokenizer(tmp_path / "tokenizer")
    told = rf"^tokens\.vocabulary: the tokenizer in .* has no mask token, which `{name}` needs\. N"
    with pytest.raises(InputError, match=told):
        special_ids(config_for("random", name), folder)
    assert special_ids(config_for("random", "tsdae"), folder).mask is None
