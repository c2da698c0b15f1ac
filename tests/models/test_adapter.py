"""A LoRA adapter as others load it."""

import json

import numpy as np
import pytest
from tiny_checkpoints import FAMILIES, write_plain

from pipelines.catalog import ARCHITECTURES
from pipelines.errors import InputError
from pipelines.models.adaptation import UP, check_names, effective, split, write_adapter
from pipelines.models.folder import default_start, read_encoder, write_encoder
from pipelines.models.lsa.modules import with_terms
from pipelines.models.weights import load_weights
from pipelines.settings.load import parse

TEXTS = ["a small test", "another sentence, that is longer"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A start, the model and the adapter that came of it, as if it had learnt something."""
    home = tmp_path_factory.mktemp("adapter")
    start = default_start()
    spec, weights = read_encoder(start)
    encoder = parse({"encoder": {"lora": {"rank": 4, "alpha": 8.0, "targets": ["query"]}}}).encoder
    trained, frozen = split(encoder, weights, 1)
    generator = np.random.default_rng(0)
    for name in trained:
        if name.endswith(UP):
            trained[name] = generator.standard_normal(trained[name].shape, np.float32) / 10
    merged = effective(trained, frozen.weights, frozen.scale)
    write_encoder(home / "start", spec, weights, start, "")
    write_encoder(home / "model", spec, merged, start, "A card.")
    write_adapter(home / "adapter", trained, frozen.scale, home / "model", home / "start")
    return home, trained, merged


def test_the_folder_holds_the_factors_and_no_model(folders):
    home, trained, _ = folders
    config = json.loads((home / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], len(config["target_modules"])) == (4, 8.0, 6)
    assert config["base_model_name_or_path"] == str(home / "start")
    stored = load_weights(home / "adapter" / "adapter_model.safetensors")
    assert {f"base_model.model.{name}" for name in trained} == set(stored)
    names = {path.name for path in (home / "adapter").iterdir()}
    assert not names & {"config.json", "model.safetensors"}
    assert {"modules.json", "tokenizer.json", "README.md", "1_Pooling"} <= names


def test_names_that_the_files_do_not_have_are_refused(folders):
    _, trained, _ = folders
    check_names(ARCHITECTURES.load("bert").folder.stored_name, trained)
    with pytest.raises(InputError, match=r"^encoder\.lora\.export: `peft` would find no encoder\."):
        check_names(ARCHITECTURES.load("distilbert").folder.stored_name, trained)


@pytest.mark.parametrize("name", FAMILIES)
def test_names_that_are_told_are_those_of_the_files(tmp_path, name):
    folder = write_plain(tmp_path / "model", FAMILIES[name])
    spec, weights = read_encoder(folder)
    trained, _ = split(parse({"encoder": {"lora": {"rank": 2}}}).encoder, weights, 1)
    write_encoder(tmp_path / "written", spec, weights, folder, "")
    stored = {key for file in tmp_path.glob("written/*.safetensors") for key in load_weights(file)}
    own_name = ARCHITECTURES.load(spec.kind).folder.stored_name
    assert {own_name(key.removesuffix(UP) + ".weight") for key in trained if UP in key} <= stored


@pytest.mark.slow
def test_peft_and_sentence_transformers_load_it(folders):
    peft = pytest.importorskip("peft")
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel

    home, _, merged = folders
    base = AutoModel.from_pretrained(home / "start")
    theirs = peft.PeftModel.from_pretrained(base, home / "adapter").merge_and_unload().state_dict()
    for name, value in merged.items():
        np.testing.assert_allclose(theirs[name], value, atol=1e-6, err_msg=name)
    expected, start, found = (
        SentenceTransformer(str(home / name), device="cpu").encode(TEXTS)
        for name in ("model", "start", "adapter")
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.abs(start - expected).max() > 1e-3


@pytest.mark.slow
def test_an_adapter_beside_words_is_put_on_its_base(folders):
    pytest.importorskip("peft")
    from sentence_transformers import SentenceTransformer

    home, trained, _ = folders
    spec, merged = read_encoder(home / "model")
    terms = np.random.default_rng(1).standard_normal((spec.vocabulary, 4)).astype(np.float32)
    write_encoder(home / "words", *with_terms(spec, merged, terms), default_start(), "")
    write_adapter(home / "words-adapter", trained, 2.0, home / "words", home / "start")
    assert not [*(home / "words-adapter").rglob("0_*")]
    expected, found = (
        SentenceTransformer(str(home / name), device="cpu").encode(TEXTS)
        for name in ("words", "words-adapter")
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
