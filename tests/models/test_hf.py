"""What encoders of `transformers` have beside those of other architectures."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_checkpoints import FAMILIES, edit, write_plain, write_sentence_folder
from token_batches import torch_forward

from pipelines.errors import InputError
from pipelines.models.folder import check_start, read_encoder, start_encoder
from pipelines.models.frameworks.torch import embed, prepare
from pipelines.models.inference.embedder import load_embedder
from pipelines.models.spec import DropoutRates
from pipelines.models.weights import WORDS
from pipelines.settings.load import parse

pytest.importorskip("transformers")

LENGTHS = np.array([3, 11, 7, 16], np.int32)
IDS = np.random.default_rng(1).integers(4, 48, (4, 16), np.int32)


@pytest.fixture
def copy(plain, tmp_path):
    return shutil.copytree(plain("qwen3"), tmp_path / "copy")


@pytest.mark.parametrize("name", ["modernbert", "qwen3"])
def test_checkpointed_layers_keep_their_weights_though_another_model_runs(plain, name):
    spec, weights = read_encoder(plain(name))
    leaves, plain = (
        {key: torch.tensor(value, requires_grad=True) for key, value in weights.items()}
        for _ in range(2)
    )
    others = {key: torch.tensor(value) * 2 for key, value in weights.items()}
    options = {"activation_checkpointing": True}
    embeddings = embed(prepare(spec, leaves), IDS, LENGTHS, **options)
    embed(prepare(spec, others), IDS, LENGTHS, **options)
    embeddings[:, ::2].sum().backward()
    embed(prepare(spec, plain), IDS, LENGTHS)[:, ::2].sum().backward()
    for key, leaf in plain.items():
        torch.testing.assert_close(leaves[key].grad, leaf.grad, msg=key)


def test_its_own_dropout_counts_where_none_is_told(copy):
    assert read_encoder(copy)[0].own_dropout is None
    edit(copy / "config.json", attention_dropout=0.3)
    assert read_encoder(copy)[0].own_dropout == DropoutRates(0.3, 0.3, own=True)
    spec, weights = read_encoder(copy)
    tensors = {key: torch.tensor(value) for key, value in weights.items()}
    own, told, quiet = (
        torch_forward(spec, tensors, IDS, LENGTHS, dropout=share, seed=(1, 2)).numpy()
        for share in (None, 0.3, 0.0)
    )
    # It drops nothing but attention's probabilities, so that the two are the same here.
    np.testing.assert_array_equal(own, told)
    assert np.abs(own - quiet).max() > 1e-3


def test_equal_models_have_equal_specs(plain, copy):
    edit(copy / "config.json", transformers_version="4.51.0", architectures=["Other"])
    changed, spec = read_encoder(copy)[0], read_encoder(plain("qwen3"))[0]
    assert changed == spec


def test_a_model_with_a_head_is_read_without_it(tmp_path):
    import transformers

    family = FAMILIES["qwen3"]
    config = transformers.AutoConfig.for_model("qwen3", **family.config)
    model = transformers.AutoModelForCausalLM.from_config(config)
    spec, weights = read_encoder(write_plain(tmp_path / "head", family, model))
    assert spec.kind == "hf"
    words = model.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_array_equal(weights[WORDS], words)
    assert len(weights) == len(list(model.model.parameters()))


def test_two_dense_layers_follow_a_decoder(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    folder = write_sentence_folder(tmp_path / "model", FAMILIES["gemma3_text"], dense=True)
    expected = library.SentenceTransformer(str(folder), device="cpu").encode(["one two", "ten"])
    found = load_embedder(folder)(["one two", "ten"])
    assert found.shape == (2, 12)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "other"}, r"unknown to transformers [0-9.]+\. "),
        (
            {"model_type": "other", "auto_map": {"AutoModel": "modeling.Other"}},
            "unknown to transformers .*; sentence-pipelines never runs a folder's code",
        ),
        ({"model_type": "t5"}, "an encoder with a decoder"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        (
            {"num_hidden_layers": 3},
            "has a config.json that transformers refuses: .*num_hidden_layers",
        ),
        (
            {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3},
            "the weight layers.2.* is missing",
        ),
        ({"intermediate_size": 48}, "cannot be read by transformers"),
    ],
)
def test_other_models_are_refused(copy, changes, named):
    # It would leave a trace if it were run.
    (copy / "modeling.py").write_text("raise SystemExit('ran')\n")
    edit(copy / "config.json", **changes)
    with pytest.raises(InputError, match=rf"^encoder\.start: .*{named}") as caught:
        read_encoder(copy)
    assert "\n" not in str(caught.value)


def test_code_of_a_known_type_is_not_run_either(copy):
    (copy / "modeling.py").write_text("raise SystemExit('ran')\n")
    edit(copy / "config.json", auto_map={"AutoModel": "modeling.Other"})
    assert read_encoder(copy)[0].kind == "hf"


def test_pickled_weights_are_read_and_that_is_said(plain, copy, caplog):
    weights = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    torch.save(weights, copy / "pytorch_model.bin")
    _, found = read_encoder(copy)
    assert "has no safetensors, so torch.load(weights_only=True) reads it" in caplog.text
    _, expected = read_encoder(plain("qwen3"))
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


def test_a_pickle_that_asks_for_code_is_refused_without_advice_to_run_it(copy):
    class Asking:
        def __reduce__(self):
            return print, ("ran",)

    (copy / "model.safetensors").unlink()
    torch.save({"embed_tokens.weight": Asking()}, copy / "pytorch_model.bin")
    with pytest.raises(InputError, match="code, which sentence-pipelines never runs") as caught:
        read_encoder(copy)
    assert "weights_only" not in str(caught.value)


def test_bfloat16_is_widened(copy):
    weights = load_file(copy / "model.safetensors")
    halves = {name: value.bfloat16() for name, value in weights.items()}
    save_file(halves, copy / "model.safetensors", metadata={"format": "pt"})
    edit(copy / "config.json", dtype="bfloat16")
    _, found = read_encoder(copy)
    np.testing.assert_array_equal(found[WORDS], halves["embed_tokens.weight"].float().numpy())


@pytest.mark.parametrize("framework", ["tensorflow", "bigdl"])
def test_frameworks_without_a_form_refuse_it(plain, framework):
    config = parse(
        {"encoder": {"start": str(plain("qwen3"))}, "training": {"framework": framework}}
    )
    with pytest.raises(InputError, match=r"^training\.framework: architecture hf has no implem"):
        check_start(config)


def test_the_settings_pool_a_plain_checkpoint_and_never_start_at_random(plain):
    encoder = {"start": str(plain("qwen3")), "pooling": "lasttoken"}
    spec, _ = start_encoder(parse({"encoder": encoder}), 20)
    assert (spec.pooling, spec.max_length) == ("lasttoken", 32)
    with pytest.raises(InputError, match=r"^encoder\.kind: `hf` starts from a checkpoint only"):
        parse({"encoder": {"start": "random", "kind": "hf"}})
