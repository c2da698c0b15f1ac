"""The layer of `encoder.output_width`: fresh, last, always trained, and no part of a start."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.errors import InputError
from pipelines.models.adaptation import UP, changed, effective, factors_of, split, write_adapter
from pipelines.models.folder import (
    check_start,
    read_encoder,
    start_encoder,
    without_output,
    write_encoder,
)
from pipelines.models.inference.embedder import load_embedder
from pipelines.models.spec import Dense
from pipelines.models.weights import check_weights, load_weights, weight_shapes
from pipelines.pretraining.start import check_objective
from pipelines.settings.load import parse
from pipelines.tokens.vocabulary import vocabulary_size

WEIGHT, BIAS = "dense.0.weight", "dense.0.bias"
# The first numbers of the layer with the default seed: the same on every machine.
FIRST = [-0.02642228826880455, -0.0032297575380653143, -0.01046790461987257]
TEXTS = ["return the value of the model", "", "a"]


def settings(start, **encoder):
    encoder = {"start": str(start), "output_width": 48, **encoder}
    return parse({"encoder": encoder, "tokens": {"vocabulary": "start", "max_length": 32}})


def begun(start, **encoder):
    config = settings(start, **encoder)
    return config, *start_encoder(config, vocabulary_size(start))


def test_the_layer_follows_the_pooling_with_weights_of_the_seed(small_folder):
    config, spec, weights = begun(small_folder)
    check_start(config)
    assert spec.dense == (Dense(width=48, bias=True, activation="identity"),)
    assert spec.embedding_width == 48
    check_weights(spec, weights)
    assert [*weights] == [*weight_shapes(spec)]
    _, start = read_encoder(small_folder)
    assert {*weights} - {*start} == {WEIGHT, BIAS}
    assert weights[WEIGHT].shape == (48, 64)
    np.testing.assert_array_equal(weights[WEIGHT][0, :3], np.float32(FIRST))
    assert 0.018 < weights[WEIGHT].std() < 0.022
    assert not weights[BIAS].any()
    again, other = (
        start_encoder(config.changed("training", seed=seed), spec.vocabulary)[1][WEIGHT]
        for seed in (config.training.seed, config.training.seed + 1)
    )
    np.testing.assert_array_equal(again, weights[WEIGHT])
    assert not np.allclose(other, weights[WEIGHT])


def test_layers_of_the_start_come_first(small_folder, tmp_path):
    _, spec, weights = begun(small_folder)
    write_encoder(tmp_path / "start", spec, weights, small_folder, "")
    config, wider, further = begun(tmp_path / "start", output_width=80, keep_layers=1)
    assert [layer.width for layer in wider.dense] == [48, 80]
    np.testing.assert_array_equal(further[WEIGHT], weights[WEIGHT])
    before, kept = without_output(config.encoder, wider, further)
    assert before.dense == spec.dense
    check_weights(before, kept)


def test_a_start_is_written_without_it(small_folder):
    config, spec, weights = begun(small_folder)
    before, kept = without_output(config.encoder, spec, weights)
    start, read = read_encoder(small_folder)
    assert before.dense == start.dense == ()
    assert [*kept] == [*read]
    unset = config.changed("encoder", output_width=None).encoder
    assert without_output(unset, spec, weights) == (spec, weights)


def test_frozen_layers_and_lora_leave_it_to_training(small_folder, tmp_path):
    config, spec, weights = begun(small_folder, freeze={"embeddings": True, "layers": 2})
    trained, frozen = split(config.encoder, weights, 1)
    assert {*trained} == {WEIGHT, BIAS}
    assert {*frozen.weights} | {*trained} == {*weights}

    config, spec, weights = begun(small_folder, lora={"rank": 2, "export": "adapter"})
    check_start(config)
    trained, frozen = split(config.encoder, weights, 1)
    assert {*trained} - {*factors_of(trained)} == {WEIGHT, BIAS}
    assert {*frozen.weights} == {*weights} - {WEIGHT, BIAS}
    trained[WEIGHT] = trained[WEIGHT] + 1
    merged = effective(trained, frozen.weights, frozen.scale)
    assert {*merged} == {*weights}
    np.testing.assert_array_equal(merged[WEIGHT], trained[WEIGHT])
    assert WEIGHT in changed(trained, frozen.weights, frozen.scale)
    # The adapter holds the factors; the layer is in its module beside them.
    write_encoder(tmp_path / "model", spec, merged, small_folder, "")
    write_adapter(tmp_path / "adapter", trained, frozen.scale, tmp_path / "model", small_folder)
    stored = load_weights(tmp_path / "adapter" / "adapter_model.safetensors")
    assert len(stored) == len(factors_of(trained)) == 2 * sum(UP in name for name in trained)
    dense = load_weights(tmp_path / "adapter" / "2_Dense" / "model.safetensors")
    np.testing.assert_array_equal(dense["linear.weight"], merged[WEIGHT])


def test_a_random_start_has_it_too():
    encoder = {"start": "random", "hidden": 16, "heads": 2, "layers": 1, "output_width": 24}
    for kind in ("bert", "static"):
        config = parse({"encoder": encoder | {"kind": kind}, "tokens": {"vocabulary": "train"}})
        spec, weights = start_encoder(config, 90)
        assert (spec.hidden, spec.embedding_width) == (16, 24)
        check_weights(spec, weights)
        assert weights[WEIGHT].any()


@pytest.fixture(scope="module")
def static_student(small_folder, tmp_path_factory):
    """The folder of a static student, with its layer."""
    _, spec, weights = begun(small_folder, keep_layers=0)
    folder = tmp_path_factory.mktemp("student") / "model"
    write_encoder(folder, spec, weights, small_folder, "")
    return folder


def test_a_static_student_is_read_as_it_was_written(static_student):
    spec, weights = read_encoder(static_student)
    assert (spec.kind, spec.hidden, spec.embedding_width) == ("static", 64, 48)
    assert {WEIGHT, BIAS} < {*weights}
    vectors = load_embedder(static_student)(TEXTS)
    assert vectors.shape == (3, 48)


@pytest.mark.slow
def test_the_library_gives_the_vectors_of_a_static_student(static_student):
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(static_student), device="cpu")
    np.testing.assert_allclose(load_embedder(static_student)(TEXTS), model.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize(
    ("sections", "key", "said"),
    [
        ({"training": {"start_share": 0.5}}, "training.start_share", "Set it to 0"),
        ({"recipe": "pairs"}, "training.start_share", "Set it to 0"),
        ({"run": {"keep_start": True}}, "run.keep_start", "Set it to false"),
        (
            {"objective": {"name": "reranking"}, "corpus": {"pairs": "triplets"}},
            "encoder.output_width",
            "a cross-encoder has no embeddings",
        ),
    ],
)
def test_settings_that_need_the_start_as_a_model_are_refused(sections, key, said):
    with pytest.raises(InputError, match=said) as refused:
        parse({"encoder": {"output_width": 48}, **sections})
    assert refused.value.key == key


def test_objectives_that_would_not_train_it_are_refused_before_the_preparation(small_folder):
    config = parse(
        {
            "corpus": {"pairs": "single", "evaluation_share": 0.0},
            "encoder": {"start": str(small_folder), "output_width": 48},
            "objective": {"name": "mlm"},
            "tokens": {"vocabulary": "start"},
            "training": {"framework": "torch", "engine": "torch"},
        }
    )
    with pytest.raises(InputError, match=r"^objective\.name: `mlm` does not train dense layers"):
        check_objective(config, None)
