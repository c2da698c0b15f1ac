"""The graph from token ids to the final embedding, in PyTorch, for the exporter to ONNX.

Readers pool the states of a text's tokens, each in its own way: the mean, the first or the last
one. So every place of a text holds its final embedding: any way of pooling returns it, and scaling
it once more changes nothing. Padding may be on either side, with any token.

The layers are those of `transformers`, for each architecture that it has.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import AutoModel
from transformers.utils import logging as library_logging

from pipelines.exports.base import Source
from pipelines.models.architecture import architecture_of
from pipelines.models.lsa.modules import without_terms
from pipelines.models.spec import EncoderSpec, Pooling
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import TERMS, WORDS, Weights, dense_name
from pipelines.tokens.encoding import NO_TOKEN
from pipelines.tokens.vocabulary import special_ends

INPUTS = ("input_ids", "attention_mask")
STATES, EMBEDDING = "last_hidden_state", "sentence_embedding"
OPSET = 18
"""The oldest operators that PyTorch's exporter writes; runtimes since 2023 know them."""
_AXES = {0: "batch_size", 1: "sequence_length"}
"""Names of the free axes, as Optimum's readers expect them."""
_EXAMPLE = (2, 7)
"""Texts and width of the traced batch; neither is a size that a model treats in its own way."""

Layers = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class EmbeddingGraph(torch.nn.Module):  # type: ignore[misc]
    """Embeds padded batches, see :func:`pipelines.models.inference.backends.token_embedder`.

    Building leaves nothing in ``scratch``, a folder with room for the weights.
    """

    def __init__(self, source: Source, scratch: Path) -> None:
        super().__init__()
        spec, weights = source.spec, source.weights
        own_spec, own_weights = without_terms(spec, weights)
        if isinstance(spec, StaticSpec):
            self.encode: torch.nn.Module = _Static(own_weights)
        else:
            self.encode = _Transformer(own_spec, own_weights, source.folder, scratch)
        self.dense = torch.nn.Sequential(*_dense(spec, weights))
        self.terms = _words(weights[TERMS]) if spec.lsa else None
        self.normalise, self.pad = spec.normalise, spec.pad_token_id
        self.max_length, self.closing = spec.max_length, _closing(source.tokenizer)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the embeddings at every place, fp32 [batch, tokens, width], and once each.

        Args:
            input_ids: int64 [batch, tokens].
            attention_mask: int64 [batch, tokens], 1 for tokens, which lie side by side.
        """
        ids, is_token = _on_the_left(input_ids, attention_mask, self.pad)
        ids = self._closed(ids, is_token)
        embeddings = self.dense(self.encode(ids, is_token))
        if self.normalise:
            embeddings = functional.normalize(embeddings, dim=1)
        if self.terms is not None:
            means = _mean(self.terms(ids), is_token)
            embeddings = functional.normalize(torch.cat([embeddings, means], 1), dim=1)
        return embeddings[:, None].expand(-1, input_ids.shape[1], -1), embeddings

    def _closed(self, ids: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
        """Return ids whose longest texts end with the special tokens behind a text.

        Some readers, transformers.js among them, cut these off when they truncate.
        """
        first = self.max_length - len(self.closing)
        is_full = is_token.sum(1, keepdim=True) == self.max_length
        for place, token in enumerate(self.closing, first):
            ids = torch.where(is_full & (_places(ids) == place), token, ids)
        return ids


class _Transformer(torch.nn.Module):  # type: ignore[misc]
    """The library's model, and the pooling of its states."""

    def __init__(self, spec: Any, weights: Weights, tokenizer_folder: Path, scratch: Path) -> None:
        super().__init__()
        with TemporaryDirectory(dir=scratch) as made, without_notes():
            folder = Path(made)
            architecture_of(spec).folder.write(folder, spec, weights, tokenizer_folder)
            self.model = AutoModel.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
            )
        # A text is read once, without a cache of keys and values.
        self.model.config.use_cache = False
        self.pool = _POOLINGS[spec.pooling]

    def forward(self, ids: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
        output = self.model(input_ids=ids, attention_mask=is_token)
        return self.pool(output.last_hidden_state, is_token)


class _Static(torch.nn.Module):  # type: ignore[misc]
    """The mean of the vectors between the first and the last token; zeros without any."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.words = _words(weights[WORDS])

    def forward(self, ids: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
        places, last = _places(ids), is_token.sum(1, keepdim=True) - 1
        is_inner = ((places > 0) & (places < last)).to(is_token.dtype)
        return _mean(self.words(ids), is_inner)


def _closing(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the special tokens behind a text."""
    behind = special_ends(tokenizer).behind
    ids: list[int] = tokenizer.encode("").ids
    return ids[len(ids) - behind :]


def _on_the_left(
    input_ids: torch.Tensor, attention_mask: torch.Tensor, pad: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask with a text's tokens first, and the model's own padding behind them.

    Positions count from the left. A text without tokens becomes one :data:`NO_TOKEN`.
    """
    before = (attention_mask.cumsum(1) == 0).sum(1, keepdim=True)
    places = _places(input_ids)
    # As a tensor: the exporter knows no remainder by a free axis.
    width = torch.ones_like(input_ids).sum(1, keepdim=True)
    moved = (places + before) % width
    is_token, ids = attention_mask.gather(1, moved), input_ids.gather(1, moved)
    ids = torch.where(is_token > 0, ids, pad)
    is_empty = (places == 0) & (is_token.sum(1, keepdim=True) == 0)
    return torch.where(is_empty, NO_TOKEN, ids), torch.where(is_empty, 1, is_token)


def _places(ids: torch.Tensor) -> torch.Tensor:
    """Return the numbers of the columns, int64 [1, tokens]."""
    return torch.arange(ids.shape[1], device=ids.device)[None]


def _mean(states: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the weighted mean of each text's states, [batch, hidden]; zeros without weights."""
    factors = weights.to(states.dtype)
    total = (states * factors[:, :, None]).sum(1)
    return total / factors.sum(1, keepdim=True).clamp(min=1)


def _first(states: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
    return states[:, 0]


def _last(states: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
    last = is_token.sum(1) - 1
    return states.gather(1, last[:, None, None].expand(-1, 1, states.shape[2]))[:, 0]


def _weighted_mean(states: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
    return _mean(states, is_token * (_places(is_token) + 1))


_POOLINGS: Mapping[Pooling, Layers] = {
    "mean": _mean,
    "cls": _first,
    "lasttoken": _last,
    "weightedmean": _weighted_mean,
}


def _dense(spec: EncoderSpec, weights: Weights) -> Iterator[torch.nn.Module]:
    for number, layer in enumerate(spec.dense):
        weight = weights[dense_name(number, "weight")]
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=layer.bias)
        linear.weight = torch.nn.Parameter(torch.from_numpy(weight))
        if layer.bias:
            linear.bias = torch.nn.Parameter(torch.from_numpy(weights[dense_name(number, "bias")]))
        yield linear
        if layer.activation == "tanh":
            yield torch.nn.Tanh()


def _words(vectors: np.ndarray) -> torch.nn.Embedding:
    return torch.nn.Embedding.from_pretrained(torch.from_numpy(vectors))


def exported(graph: EmbeddingGraph) -> Any:
    """Return the graph in ONNX, with free axes, as PyTorch's program."""
    # Two tensors: the exporter takes one that is passed twice for one input.
    example = (torch.ones(_EXAMPLE, dtype=torch.int64), torch.ones(_EXAMPLE, dtype=torch.int64))
    with torch.no_grad(), without_notes():
        return torch.onnx.export(
            graph.eval(),
            example,
            dynamo=True,
            dynamic_shapes=(_AXES, _AXES),
            input_names=INPUTS,
            output_names=(STATES, EMBEDDING),
            opset_version=OPSET,
            verbose=False,
        )


@contextmanager
def without_notes() -> Iterator[None]:
    """Silence the notes of the libraries on how they write a graph, which concern nobody here."""
    bars, level = library_logging.is_progress_bar_enabled(), logging.root.manager.disable
    library_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        if bars:
            library_logging.enable_progress_bar()
