"""What an architecture has to bring, by one that only PyTorch knows."""

import dataclasses
import json

import numpy as np
import pytest
from steppers import granule, stepper, work
from toy_architecture import ToySpec

from pipelines.catalog import ARCHITECTURES, BACKENDS
from pipelines.errors import InputError
from pipelines.models.architecture import architecture_of, check_framework
from pipelines.models.bert.architecture import BERT
from pipelines.models.folder import (
    check_start,
    read_encoder,
    start_card,
    start_encoder,
    write_encoder,
)
from pipelines.models.inference.backends import choose_backend
from pipelines.models.inference.embedder import load_embedder
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import check_weights, random_weights
from pipelines.settings.load import load, parse
from pipelines.tokens.vocabulary import vocabulary_size

RANDOM = {"start": "random", "kind": "toy", "hidden": 16}
NO_FORM = "architecture toy has no implementation in "


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """The one line that a new architecture needs."""
    monkeypatch.setitem(ARCHITECTURES.entries, "toy", "toy_architecture:TOY")


@pytest.fixture
def folder(small_folder, tmp_path):
    spec = ToySpec(vocabulary=vocabulary_size(small_folder), hidden=16, max_length=32)
    weights = random_weights(spec, 5)
    write_encoder(tmp_path / "model", spec, weights, small_folder, start_card(spec))
    return tmp_path / "model", spec, weights


def test_it_starts_from_the_settings():
    config = parse({"encoder": RANDOM, "training": {"framework": "torch"}})
    check_start(config)
    spec, weights = start_encoder(config, 50)
    assert spec == ToySpec(vocabulary=50, hidden=16, max_length=64)
    assert EncoderSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    check_weights(spec, weights)


def test_it_learns():
    spec = ToySpec(vocabulary=50, hidden=16)
    made = stepper("torch", spec=spec, training={"dropout": 0.0})
    losses = [made.step(work(0, granule(1)), 0.05) for _ in range(8)]
    assert losses[-1] < 0.7 * losses[0]
    check_weights(spec, made.checkpoint(8).weights)


def test_its_folder_is_read_back_and_embeds(folder):
    path, spec, weights = folder
    found, again = read_encoder(path)
    assert found == spec
    for name, value in weights.items():
        np.testing.assert_array_equal(again[name], value)
    # The first backend that knows it, although another would come first.
    embeddings = load_embedder(path)(["some text", "", "another"])
    assert embeddings.shape == (3, 16)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, rtol=1e-5)
    assert "one dense layer of 16" in (path / "README.md").read_text()


@pytest.mark.parametrize("framework", ["tensorflow", "bigdl"])
def test_other_frameworks_refuse_it(framework, folder):
    refused = f"^training.framework: {NO_FORM}{framework}. Choose one of torch.$"
    for encoder in (RANDOM, {"start": str(folder[0])}):
        config = parse({"encoder": encoder, "training": {"framework": framework}})
        with pytest.raises(InputError, match=refused):
            check_start(config)
        spec, _ = start_encoder(config, 50)
        with pytest.raises(InputError, match=refused):
            check_framework(architecture_of(spec), config)


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "torch"])
def test_other_backends_refuse_it(backend, folder):
    refused = f"^embedding.backend: {NO_FORM}{backend}. Choose one of torch.$"
    with pytest.raises(InputError, match=refused):
        load_embedder(folder[0], backend=backend)


@pytest.mark.parametrize(("old", "new"), [("transformer", "bert"), ("bag", "static")])
def test_earlier_names_are_read(old, new, caplog):
    config = load(overrides=["encoder.start=random", f"encoder.kind={old}"])
    assert config.encoder.kind == new
    assert f"encoder.kind: `{old}` is called `{new}` now" in caplog.text
    spec, _ = start_encoder(config, 50)
    value = spec.to_json() | {"kind": old}
    # Of a static one, earlier releases wrote zeros where it has nothing.
    zeros = dict.fromkeys(("layers", "heads", "intermediate", "positions"), 0)
    assert EncoderSpec.from_json(zeros | value) == spec


def test_an_unknown_architecture_is_refused_with_those_that_there_are():
    with pytest.raises(InputError, match=r"^encoder\.kind: .*`nothing`\. .* bert, .*static"):
        parse({"encoder": {"kind": "nothing"}})


def test_an_architecture_without_any_backend_is_refused_by_name(monkeypatch):
    forms = {name: BERT.forms[name] for name in ("bigdl", "bigdl_memory")}
    bert = dataclasses.replace(BERT, forms=forms)
    monkeypatch.setattr("pipelines.models.bert.architecture.BERT", bert)
    with pytest.raises(InputError, match=r"^embedding\.backend: architecture bert has no implem"):
        choose_backend("auto", "bert")


def test_a_form_for_bigdl_comes_with_what_memory_it_needs():
    forms = {name: form for name, form in BERT.forms.items() if name != "bigdl_memory"}
    with pytest.raises(ValueError, match="architecture bert: the form bigdl needs bigdl_memory"):
        dataclasses.replace(BERT, forms=forms)
