"""int8 matrix products in OpenVINO: the kernels, the vectors, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.errors import DamagedFileError, InputError
from pipelines.models.folder import default_start, read_encoder, read_model
from pipelines.models.inference.backends import backend_of_int8, check_int8_here
from pipelines.models.inference.batches import TokenRows, text_column
from pipelines.models.inference.embedder import load_embedder
from pipelines.models.inference.processor import multiplies_in_int8
from pipelines.models.static.architecture import StaticSpec
from pipelines.tokens.encoding import open_encoder

openvino_int8 = pytest.importorskip("pipelines.models.frameworks.openvino_int8")

PRODUCTS_OF_LAYER = 4  # query, key and value together; their output; two of the wide layer

with_instructions = pytest.mark.skipif(
    not multiplies_in_int8(), reason="this processor has no instructions for int8"
)


def rows_of(folder, texts) -> TokenRows:
    spec, _, tokenizer = read_model(folder)
    return TokenRows.distinct(open_encoder(tokenizer, spec.max_length).encode(text_column(texts)))[
        0
    ]


@pytest.fixture(scope="module")
def calibration(sentences) -> bytes:
    """That of the packaged model on a part of the sentences."""
    rows = rows_of(default_start(), sentences[::4])
    found = openvino_int8.calibrate(*read_encoder(default_start()), rows, precision="fp32")
    return openvino_int8.packed(found)


@with_instructions
@pytest.mark.slow
def test_the_library_takes_kernels_for_int8(calibration):
    import openvino as ov

    spec, weights = read_encoder(default_start())
    graph = openvino_int8.int8_graph(spec, weights, openvino_int8.unpacked(calibration))
    compiled = ov.Core().compile_model(graph, "CPU", {"INFERENCE_NUM_THREADS": 1})
    nodes = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    kinds = [node["layerType"].astype(str) for node in nodes]
    precisions = {
        node["runtimePrecision"].astype(str)
        for node, kind in zip(nodes, kinds, strict=True)
        if kind == "FullyConnected"
    }
    assert precisions == {"i8"}
    assert kinds.count("FullyConnected") == PRODUCTS_OF_LAYER * spec.layers
    # Nothing is rounded in a step of its own.
    assert "FakeQuantize" not in kinds


@with_instructions
@pytest.mark.slow
def test_vectors_stay_near_those_in_fp32_in_any_batches(calibration, sentences):
    texts = sentences[1::2]
    full = load_embedder(default_start())(texts)
    embed = load_embedder(default_start(), precision="int8", calibration=calibration)
    found = embed(texts)
    cosines = (full * found).sum(axis=1)
    assert cosines.mean() > 0.995
    assert cosines.min() > 0.98
    np.testing.assert_allclose(embed(texts[::-1])[::-1], found, atol=1e-4)
    apart = load_embedder(
        default_start(), precision="int8", calibration=calibration, batch_tokens=1
    )
    np.testing.assert_allclose(apart(texts[:9]), found[:9], atol=1e-2)


@pytest.mark.slow
def test_the_same_texts_give_the_same_calibration(small_folder, sentences):
    rows = rows_of(small_folder, sentences)
    first, again = (
        openvino_int8.packed(
            openvino_int8.calibrate(*read_encoder(small_folder), rows, precision="fp32")
        )
        for _ in range(2)
    )
    assert again == first
    known = openvino_int8.unpacked(first)
    assert known.precision == "fp32"
    assert openvino_int8.packed(known) == first


def test_a_damaged_calibration_is_refused(small_folder, sentences):
    spec, weights = read_encoder(small_folder)
    rows = rows_of(small_folder, sentences)
    found = openvino_int8.calibrate(spec, weights, rows, precision="bf16")
    content = openvino_int8.packed(found)
    assert openvino_int8.unpacked(content).precision == "bf16"
    for damaged in (b"", content[:-9], openvino_int8.save({"bf16x": np.zeros(1)})):
        with pytest.raises(DamagedFileError):
            openvino_int8.unpacked(damaged)
    fewer = openvino_int8.Calibration("bf16", found.inputs[1:])
    with pytest.raises(DamagedFileError, match="another encoder"):
        openvino_int8.int8_graph(spec, weights, fewer)


def test_other_backends_and_models_without_products_are_refused(small_folder):
    spec, _ = read_encoder(small_folder)
    assert backend_of_int8("auto", spec) == "openvino"
    with pytest.raises(InputError, match=r"^embedding.precision: `int8` is for .*, not `torch`\. "):
        backend_of_int8("torch", spec)
    static = StaticSpec(vocabulary=9, hidden=4)
    with pytest.raises(InputError, match="architecture static has no matrix products"):
        backend_of_int8("auto", static)


def test_other_processors_are_refused(tmp_path, monkeypatch):
    told = tmp_path / "cpuinfo"
    for flags, expected in (("avx512_vnni", True), ("avx_vnni", True), ("amx_int8", True)):
        told.write_text(f"flags : {flags}\n")
        assert multiplies_in_int8(told) is expected
    told.write_text("flags : avx512f avx512bw avx2\n")
    assert not multiplies_in_int8(told)
    monkeypatch.setattr("pipelines.models.inference.backends.multiplies_in_int8", lambda: False)
    with pytest.raises(InputError, match=r"lacks the instructions.*Set embedding.precision=auto"):
        check_int8_here()
