"""Models of `transformers` that two workers hold together, against the whole model."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from pipelines.errors import InputError
from pipelines.models.architecture import architecture_of
from pipelines.models.hf.architecture import DIVISION, HfSpec, config_text
from pipelines.models.weights import check_division, part_bounds
from pipelines.settings.load import parse

WIDTH, VOCABULARY = 32, 51
SECONDS = 600
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 4,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "residual_dropout": 0.0,
    "embedding_dropout": 0.0,
}
TYPES = ("gemma3_text", "cohere", "eurobert", "gpt_neox")
"""With and without biases, norms of heads, scaled words, layers side by side, later tokens, and one
matrix for queries, keys and values."""


def spec_of(kind, **more):
    config = config_text({"model_type": kind} | SHAPE | more)
    return HfSpec(config=config, vocabulary=VOCABULARY, hidden=WIDTH, max_length=64)


def _results(spec, weights, *part):
    """The embeddings of some texts, and the gradient of a loss on them, by weight."""
    import torch

    from pipelines.models.frameworks.torch import Batch
    from pipelines.models.hf.torch import HfEncoder

    generator = np.random.default_rng(1)
    ids = generator.integers(1, VOCABULARY, (3, 7), np.int32)
    ids[0, :2] = spec.described_config["pad_token_id"]  # A text may hold it, as any other token.
    batch = Batch.of(ids, np.array([7, 4, 2], np.int32), torch.device("cpu"))
    pull = torch.tensor(generator.standard_normal((3, WIDTH), dtype=np.float32))
    own = {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}
    embeddings = HfEncoder(spec, own, torch.float32, *part)(batch, None, sparse_words=True)
    (embeddings * pull).sum().backward()
    gradients = {name: weight.grad.to_dense().numpy() for name, weight in own.items()}
    return embeddings.detach().numpy(), gradients


def _compare(folder, rank, kinds):
    """One of two members: writes how far it is from the whole, and ends its process."""
    import torch
    import torch.distributed as processes

    from pipelines.models.frameworks.torch_division import Members, Part
    from pipelines.training.collectives.process_group import exit_without_finalization

    torch.set_num_threads(1)
    processes.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    members, apart = Members(processes.group.WORLD), {}
    for kind in kinds:
        spec, generator = spec_of(kind), np.random.default_rng(0)
        weights = {
            name: generator.normal(1.0 if len(shape) == 1 else 0.0, 0.2, shape).astype(np.float32)
            for name, shape in architecture_of(spec).weight_shapes(spec).items()
        }
        axes = DIVISION.axes(spec)

        def cut(name, array, axes=axes):
            if name not in axes:
                return array
            first, last = part_bounds(array.shape[axes[name]], 2, rank)
            return array.take(range(first, last), axes[name])

        expected, whole = _results(spec, weights)
        parts = {name: cut(name, array) for name, array in weights.items()}
        found, own = _results(spec, parts, Part(range(2), members))
        told = {"embeddings": np.abs(found - expected).max() / np.abs(expected).max()}
        for name, gradient in whole.items():
            told[name] = np.abs(own[name] - cut(name, gradient)).max() / np.abs(gradient).max()
        apart[kind] = {name: float(value) for name, value in told.items()}
    (folder / f"{rank}.json").write_text(json.dumps(apart))
    exit_without_finalization()


def main() -> None:
    """Imports the libraries once, and has both members in processes that are forked from this."""
    folder, *kinds = sys.argv[1:]
    import_module("pipelines.models.hf.torch")
    for rank in range(2):
        if not os.fork():
            _compare(Path(folder), rank, kinds)
    for _ in range(2):
        _, status = os.wait()
        assert status == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "kinds", [TYPES, pytest.param("all", marks=pytest.mark.matrix)], ids=["some", "all"]
)
def test_two_members_compute_what_one_does(tmp_path, kinds):
    pytest.importorskip("transformers")
    from pipelines.models.hf.torch_library import DIVIDED_TYPES

    assert {*TYPES} < {*DIVIDED_TYPES}
    kinds = DIVIDED_TYPES if kinds == "all" else kinds
    command = [sys.executable, __file__, str(tmp_path), *kinds]
    with subprocess.Popen(command, start_new_session=True) as members:
        try:
            assert members.wait(SECONDS) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(members.pid, signal.SIGKILL)
    for rank in range(2):
        apart = json.loads((tmp_path / f"{rank}.json").read_text())
        assert {*apart} == {*kinds}
        for kind, values in apart.items():
            # The rest is the order of sums.
            assert {name: value for name, value in values.items() if value > 1e-4} == {}, kind


@pytest.mark.slow
def test_most_of_a_model_is_divided():
    pytest.importorskip("transformers")
    spec = spec_of("qwen3")
    shapes = architecture_of(spec).weight_shapes(spec)
    whole = {name for name in shapes if name not in DIVISION.axes(spec)}
    assert all(len(shapes[name]) == 1 for name in whole)
    assert DIVISION.layers(spec) == 2


def asked(**training):
    training = {"engine": "torch", "framework": "torch", "workers": 4} | training
    return parse({"training": training | {"granules_per_step": 4}})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "training", "message"),
    [
        (spec_of("modernbert"), {}, "no tensor-parallel plan for `model_type: modernbert`"),
        (spec_of("phi3"), {}, "`model_type: phi3` is none of the divisible types: arcee"),
        (
            spec_of("cohere", use_qk_norm=True),
            {},
            "has layers.0.self_attn.k_norm beside its divided matrices",
        ),
        (spec_of("llama"), {"dropout": 0.1}, "transformers draws dropout.*training.dropout to 0"),
        (
            spec_of("llama"),
            {"model_parallel": 4},
            r"4 does not divide the 2 heads of keys and values of the encoder\. Choose one of 1, 2",
        ),
        (
            spec_of("llama"),
            {"model_parallel": 1, "pipeline_parallel": 2},
            r"transformers runs all layers of a model\. Leave it at 1",
        ),
    ],
    ids=lambda value: json.loads(value.config)["model_type"] if isinstance(value, HfSpec) else None,
)
def test_what_cannot_be_divided_is_refused(spec, training, message):
    pytest.importorskip("transformers")
    with pytest.raises(InputError, match=message):
        check_division(DIVISION, spec, asked(**{"model_parallel": 2} | training))
    check_division(DIVISION, spec, asked())


if __name__ == "__main__":
    main()
