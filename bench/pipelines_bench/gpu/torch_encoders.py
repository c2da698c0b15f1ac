"""Forward passes and gradients of encoders on a device, against the CPU in fp32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from pipelines.models.frameworks.torch import embed, has_bf16, prepare
from pipelines.models.frameworks.torch_dropout import DropoutMasks, keeps
from pipelines.models.inference.backends import choose_precision
from pipelines.models.spec import DropoutRates, EncoderSpec
from pipelines.models.weights import Weights, fresh_arrays, weight_shapes
from pipelines_bench.gpu.checks import Finding, Place, SkippedError, needing
from pipelines_bench.gpu.torch_samples import (
    SHAPES,
    all_same,
    cosine,
    gradients_of,
    lively,
    on_host,
    same,
    tensors,
    texts,
    tiny,
)

EXACT = 2e-5
"""Of embeddings in fp32, over the largest number: what the forms of frameworks differ by."""
GRADIENTS = 2e-4
"""Of gradients in fp32, over the largest number of an array: they are sums over many tokens."""
BF16_EMBEDDINGS, BF16_GRADIENTS = 0.999, 0.99
"""Least cosines between bf16 and fp32."""
DROPPED = 0.1

LENGTHS: Mapping[str, Sequence[int]] = {
    "padded": (3, 17, 9, 32, 8),
    "equally long": (16, 16, 16, 16),
    "longer than explicit attention": (160, 40, 131),
}

_LIBRARY: Mapping[str, Mapping[str, Any]] = {
    "modernbert": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "global_attn_every_n_layers": 2,
        "local_attention": 16,
        "cls_token_id": 2,
        "sep_token_id": 3,
    },
    "qwen3": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
    },
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4},
}
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
_OF_ALL = {"vocab_size": 500, "max_position_embeddings": 256, **_SPECIAL}


def encoder(place: Place, kind: str) -> Finding:
    """An architecture of this package."""
    if kind not in SHAPES:
        raise SkippedError(f"torch_samples.py has no tiny encoder of architecture {kind}")
    return _compared(place, *tiny(kind))


def library_encoder(place: Place, model_type: str) -> Finding:
    """A model of `transformers`, with fresh weights."""
    with needing("transformers"):
        from transformers import AutoConfig

        from pipelines.models.hf import torch_library
        from pipelines.models.hf.architecture import HfSpec, config_text
    described = AutoConfig.for_model(model_type, **_OF_ALL, **_LIBRARY[model_type]).to_dict()
    spec = HfSpec(
        vocabulary=_OF_ALL["vocab_size"],
        hidden=64,
        config=config_text(described),
        largest_dropout=DROPPED,
    )
    assert torch_library.config_of(spec.config).model_type == model_type
    weights = lively(fresh_arrays(weight_shapes(spec), 3))
    # Norms of the library are called otherwise, and begin with one.
    ones = {name: value + 1 for name, value in weights.items() if "norm" in name and value.ndim < 2}
    return _compared(place, spec, weights | ones)


def pooling(place: Place, kind: str) -> Finding:
    """A way to pool."""
    spec, weights = tiny("roberta", pooling=kind)
    return _compared(place, spec, weights)


def packed(place: Place) -> Finding:
    """What stands in the padding, and what stands beside a text, has no influence."""
    spec, weights = tiny("bert")
    on_device = tensors(weights, place.device)
    apart = []
    for lengths in LENGTHS.values():
        ids, several = texts(lengths)
        other, _ = texts(lengths, padding=33)
        whole = on_host(embed(prepare(spec, on_device), ids, several))
        apart.append(
            same(
                "other padding",
                on_host(embed(prepare(spec, on_device), other, several)),
                whole,
                EXACT,
            )
        )
        for number, length in enumerate(lengths):
            alone = embed(
                prepare(spec, on_device), ids[number : number + 1, :length], several[[number]]
            )
            apart.append(same("a text alone", on_host(alone)[0], whole[number], EXACT))
    return Finding(f"texts alone and in a batch at most {max(apart):.1e} apart")


def dropout(place: Place) -> Finding:
    """Masks follow from the seed, drop as many as they should, and are the same once more."""
    device = torch.device(place.device)
    masks = partial(DropoutMasks, DropoutRates(DROPPED, DROPPED), device=device)
    ones = torch.ones(64, 1000, device=device)
    first, again, other = (on_host(masks(seed).drop(3, ones)) for seed in ((1, 2), (1, 2), (1, 3)))
    if not np.array_equal(first, again):
        raise AssertionError("the same seed gives other masks")
    if np.array_equal(first, other) or np.array_equal(first, on_host(masks((1, 2)).drop(4, ones))):
        raise AssertionError("another seed or place gives the same masks")
    share = float((first == 0).mean())
    if abs(share - DROPPED) > 0.01:
        raise AssertionError(f"{share:.3f} is dropped instead of {DROPPED}")
    if not np.array_equal(first, on_host(masks((1, 2)).drop(3, ones.bfloat16()))):
        raise AssertionError("values of another type are dropped otherwise")
    keys = torch.from_numpy(masks((1, 2)).keys(64))
    hashed = keeps(keys.to(device), [3, 7], 1000, 6554).cpu()
    if not torch.equal(hashed, keeps(keys, [3, 7], 1000, 6554)):
        raise AssertionError("the device hashes otherwise than the CPU")
    spec, weights = tiny("mpnet")
    once, checkpointed = (
        gradients_of(
            _embedding(spec, LENGTHS["padded"], dropout=DROPPED, again=again), weights, place.device
        )
        for again in (False, True)
    )
    same("activations computed once more", checkpointed[0], once[0], EXACT)
    apart = all_same("their gradients", checkpointed[1], once[1], EXACT)
    return Finding(f"{share:.4f} dropped; layers computed once more {apart:.1e} apart")


def automatic_precision(place: Place) -> Finding:
    """``precision: auto`` is bf16 where the device has instructions for it."""
    chosen = choose_precision("auto", place.device)
    has_it = has_bf16(torch.device(place.device))
    if place.on_gpu:
        told = torch.cuda.is_bf16_supported(including_emulation=False)
        if told != has_it:
            raise AssertionError(f"PyTorch says {told} of bf16 without emulation, not {has_it}")
    if (chosen == "bf16") != has_it:
        raise AssertionError(f"{chosen} although bf16 is {has_it}")
    return Finding(f"{chosen} on {place.device}")


def _compared(place: Place, spec: EncoderSpec, weights: Weights) -> Finding:
    """An encoder's embeddings and gradients in fp32 and bf16, and its dropout."""
    apart, at_gradients, cosines, of_gradients = [], [], [], []
    for name, lengths in list(LENGTHS.items())[: 1 if place.short else None]:
        of_texts = _embedding(spec, lengths)
        expected, gradients = gradients_of(of_texts, weights, "cpu")
        found, own = gradients_of(of_texts, weights, place.device)
        apart.append(same(f"embeddings, {name}", found, expected, EXACT))
        at_gradients.append(all_same(f"gradients, {name}", own, gradients, GRADIENTS))
        half = _embedding(spec, lengths, precision="bf16")
        found, own = gradients_of(half, weights, place.device)
        cosines.append(min(map(cosine, found, expected)))
        of_gradients.append(cosine(_joined(own), _joined(gradients)))
    if min(cosines) < BF16_EMBEDDINGS or min(of_gradients) < BF16_GRADIENTS:
        raise AssertionError(
            f"bf16: cosines {min(cosines):.5f}, gradients' {min(of_gradients):.4f}"
        )
    noisy = [
        gradients_of(_embedding(spec, LENGTHS["padded"], dropout=DROPPED), weights, place.device)
        for _ in range(2)
    ]
    same("embeddings under the same dropout", noisy[0][0], noisy[1][0], EXACT)
    return Finding(
        f"fp32 {max(apart):.1e} apart, gradients {max(at_gradients):.1e};"
        f" bf16 cosines {min(cosines):.6f}, gradients' {min(of_gradients):.5f}"
    )


def _embedding(
    spec: EncoderSpec,
    lengths: Sequence[int],
    *,
    precision: str = "fp32",
    dropout: float = 0.0,
    again: bool = False,
) -> Any:
    """A function of the weights that embeds texts of some lengths."""
    ids, several = texts(lengths)

    def embedded(leaves: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return embed(
            prepare(spec, leaves, precision),
            ids,
            several,
            dropout=dropout,
            seed=(4, 5),
            activation_checkpointing=again,
        )

    return embedded


def _joined(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([arrays[name].ravel() for name in sorted(arrays)])
