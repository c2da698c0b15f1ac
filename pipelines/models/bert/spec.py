"""The shape of an encoder of the BERT family, its config.json, and settings of a random start."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from pipelines.errors import InputError
from pipelines.models.architecture import Division, Lengths, Shapes
from pipelines.models.spec import DropoutRates, EncoderSpec, Pooling
from pipelines.models.weights import INITIAL_DEVIATION, WORDS
from pipelines.settings import EncoderSettings

_FARTHEST = 128
"""Distances from here on share a bucket, in tokens."""


@lru_cache(maxsize=64)
def relative_buckets(buckets: int, width: int) -> np.ndarray:
    """Return the bucket of each query and key, int64 [width, width].

    Half of the buckets are for keys after the query. In each half, the first half hold one distance
    each, and the others grow by a factor.

    Source: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
    Transformer", JMLR 2020, arXiv:1910.10683, section 2.1; rounded as `transformers` does for
    MPNet, in fp32.
    """
    places = np.arange(width)
    ahead = places[None, :] - places[:, None]
    half, distance = buckets // 2, np.abs(ahead)
    exact = half // 2
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / exact)
    grown = exact + (ratio / math.log(_FARTHEST / exact) * (half - exact)).astype(np.int64)
    near = np.where(distance < exact, distance, np.minimum(grown, half - 1))
    found: np.ndarray = near + half * (ahead > 0)
    return found


RANDOM_POSITIONS = 512
"""Rows of the position embedding of a random start."""


@dataclass(frozen=True, kw_only=True)
class BertSpec(EncoderSpec):
    """An encoder of the BERT family, with absolute positions and exact GELU.

    The other members derive from it: BERT without some parts, with one more, or with other names.

    Source: Devlin, Chang, Lee and Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers
    for Language Understanding", NAACL 2019, arXiv:1810.04805.

    Attributes:
        heads: Attention heads, a divisor of ``hidden``.
        intermediate: Width between the two matrices of the feed-forward block.
        positions: Rows of the position embedding: the places that a text can have.
        type_vocabulary: Rows of the segment embedding, 0 without one; only the first is used.
        embedding_size: Width of words and positions; None: that of the layers. A dense layer leads
            from any other width to theirs.
        relative_buckets: Distances with a learnt bias in attention; 0 without one.
        hidden_dropout: The encoder's own dropout of hidden states.
        attention_dropout: The same of attention's probabilities.
        model_type: Its name in config.json.
    """

    kind: ClassVar[str] = "bert"

    layers: int
    heads: int
    intermediate: int
    positions: int = RANDOM_POSITIONS
    pooling: Pooling = "mean"
    type_vocabulary: int = 2
    layer_norm_epsilon: float = 1e-12
    embedding_size: int | None = None
    relative_buckets: int = 0
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    model_type: str = "bert"
    max_length: int = RANDOM_POSITIONS

    @property
    def own_dropout(self) -> DropoutRates | None:
        """The encoder's own dropout in training; None without."""
        rates = DropoutRates(self.hidden_dropout, self.attention_dropout, own=True)
        return rates if rates.hidden or rates.attention else None

    @property
    def placeless_token(self) -> int | None:
        """The token without a position in a text; None if all tokens have one."""
        return None

    @property
    def word_width(self) -> int:
        """Width of the rows of words, positions and segments."""
        return self.embedding_size or self.hidden

    @property
    def projects(self) -> bool:
        """Whether a dense layer leads from words to layers."""
        return self.word_width != self.hidden


def check_settings(encoder: EncoderSettings) -> None:
    """Refuse a width that the heads cannot share."""
    if encoder.hidden % encoder.heads:
        raise InputError(
            "encoder.heads",
            f"{encoder.heads} does not divide encoder.hidden",
            f"Choose a divisor of {encoder.hidden}",
        )


def refuse_random(encoder: EncoderSettings) -> None:
    """Refuse a random start of an architecture that starts from checkpoints only."""
    if encoder.start == "random":
        raise InputError(
            "encoder.kind",
            f"`{encoder.kind}` starts from a checkpoint only",
            "Name its folder in encoder.start, or set encoder.kind to bert",
        )


def shape(encoder: EncoderSettings) -> dict[str, Any]:
    """Return BERT's own fields of a random start's spec."""
    return {
        "layers": encoder.layers,
        "heads": encoder.heads,
        "intermediate": encoder.intermediate or 4 * encoder.hidden,
        "pooling": encoder.pooling,
    }


def random_lengths(training_length: int | None) -> Lengths:
    """Return the training length: nothing would train later positions."""
    return Lengths(training_length or RANDOM_POSITIONS, RANDOM_POSITIONS)


def described(spec: BertSpec) -> str:
    """Return the shape for the model card."""
    return f"with {spec.layers} layers of {spec.hidden}"


def described_settings(encoder: EncoderSettings) -> str:
    """Return the shape for the report of a run."""
    return f"{encoder.layers} layers of {encoder.hidden}, {encoder.heads} heads"


CONFIG_KEYS = {
    "vocabulary": "vocab_size",
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "positions": "max_position_embeddings",
    "type_vocabulary": "type_vocab_size",
    "layer_norm_epsilon": "layer_norm_eps",
    "pad_token_id": "pad_token_id",
}
"""The keys of BERT's config.json, by fields of a spec."""
_USUAL_DROPOUT = 0.1
"""The default of `transformers` for a config.json without the key, in the whole family."""


def model_type(config: Mapping[str, Any]) -> Any:
    """Return the type in config.json; BERT's without one, as in the oldest checkpoints."""
    return config.get("model_type", "bert")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The folders of one member of the family.

    Attributes:
        spec: Its spec, with the defaults for keys missing in config.json.
        classes: Classes of `transformers` by config.json's ``model_type``.
        keys: config.json's keys by fields of the spec; other fields have their defaults.
        accepted: Supported values of config.json; the first is the default, and written.
        dropout: config.json's keys for the dropout of hidden states and of attention.
        names: Parts of canonical names, and their replacements in the file of weights.
        prefix: Of the names in checkpoints with a head.
        skipped_rows: Unused first rows of the position table, by the padding token's id: dropped in
            reading, written as zeros.
        pooler: Whether a model without a head has a pooler, which no embedding depends on.
    """

    spec: type[BertSpec]
    classes: Mapping[str, str]
    keys: Mapping[str, str] = field(default_factory=lambda: CONFIG_KEYS)
    accepted: Mapping[str, tuple[Any, ...]]
    dropout: tuple[str, str] = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    names: tuple[tuple[str, str], ...] = ()
    prefix: str
    skipped_rows: Callable[[int], int] = lambda pad_token_id: 0
    pooler: bool = True

    def stored_name(self, name: str) -> str:
        """Return the name in the file of weights of a canonical name."""
        for canonical, stored in self.names:
            name = name.replace(canonical, stored)
        return name

    def to_config(self, spec: BertSpec) -> dict[str, Any]:
        """Return a spec as config.json."""
        shape = {key: getattr(spec, name) for name, key in self.keys.items()}
        shape[self.keys["positions"]] += self.skipped_rows(spec.pad_token_id)
        return {
            "architectures": [self.classes[spec.model_type]],
            "model_type": spec.model_type,
            **shape,
            **{key: values[0] for key, values in self.accepted.items()},
            **dict(zip(self.dropout, (spec.hidden_dropout, spec.attention_dropout), strict=True)),
            "initializer_range": INITIAL_DEVIATION,
            "torch_dtype": "float32",
        }

    def fields(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a spec from config.json; a KeyError names a missing key."""
        optional = {"type_vocabulary", "layer_norm_epsilon", "pad_token_id", "embedding_size"}
        stated = {
            name: config[key]
            for name, key in self.keys.items()
            if not (name in optional and config.get(key) is None)
        }
        stated["positions"] -= self.skipped_rows(self.pad_token_id(config))
        hidden, attention = (config.get(key, _USUAL_DROPOUT) for key in self.dropout)
        return {
            "model_type": model_type(config),
            "hidden_dropout": hidden,
            "attention_dropout": attention,
            **stated,
        }

    def pad_token_id(self, config: Mapping[str, Any]) -> int:
        """Return the padding token of config.json, or the spec's default."""
        token = config.get("pad_token_id")
        return self.spec.pad_token_id if token is None else int(token)

    def unknown(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of config.json without support in the forward pass."""
        stated = {key: config.get(key, values[0]) for key, values in self.accepted.items()}
        return {key: value for key, value in stated.items() if value not in self.accepted[key]}


POSITIONS = "embeddings.position_embeddings.weight"
SEGMENTS = "embeddings.token_type_embeddings.weight"
PROJECTION = "embeddings_project"
"""The dense layer from the width of words to that of the layers."""
RELATIVE_BIAS = "encoder.relative_attention_bias.weight"
"""Attention's bias of scores by distance, for all layers [buckets, heads]."""


def layer_prefix(number: int) -> str:
    """Return the prefix of a layer's weights."""
    return f"encoder.layer.{number}."


def weight_shapes(spec: BertSpec) -> Shapes:
    """Return the shape of every weight, in canonical order; matrices are [out, in] as in torch."""
    hidden, width = spec.hidden, spec.word_width
    # Fresh weights are drawn in this order, so a change of it changes every random start.
    shapes: Shapes = {WORDS: (spec.vocabulary, width), POSITIONS: (spec.positions, width)}
    if spec.type_vocabulary:
        shapes[SEGMENTS] = (spec.type_vocabulary, width)
    shapes |= {"embeddings.LayerNorm.weight": (width,), "embeddings.LayerNorm.bias": (width,)}
    if spec.projects:
        shapes |= {f"{PROJECTION}.weight": (hidden, width), f"{PROJECTION}.bias": (hidden,)}
    for layer in range(spec.layers):
        shapes |= layer_shapes(spec, layer_prefix(layer))
    if spec.relative_buckets:
        shapes[RELATIVE_BIAS] = (spec.relative_buckets, spec.heads)
    return shapes


def layer_shapes(spec: BertSpec, prefix: str) -> Shapes:
    """Return the shape of every weight of a layer."""
    hidden, intermediate = spec.hidden, spec.intermediate
    matrices = {
        "attention.self.query": (hidden, hidden),
        "attention.self.key": (hidden, hidden),
        "attention.self.value": (hidden, hidden),
        "attention.output.dense": (hidden, hidden),
        "intermediate.dense": (intermediate, hidden),
        "output.dense": (hidden, intermediate),
    }
    shapes: Shapes = {}
    for name, shape in matrices.items():
        shapes[f"{prefix}{name}.weight"] = shape
        shapes[f"{prefix}{name}.bias"] = shape[:1]
        # Post-norm: a layer norm follows each of the two matrices that end in a residual.
        block, _, last = name.rpartition(".")
        if last == "dense" and block.endswith("output"):
            shapes[f"{prefix}{block}.LayerNorm.weight"] = (hidden,)
            shapes[f"{prefix}{block}.LayerNorm.bias"] = (hidden,)
    return shapes


_BY_ROWS = ("attention.self.query", "attention.self.key", "attention.self.value", "intermediate")
_BY_COLUMNS = ("attention.output.dense", "output.dense")
_LAYER = re.compile(r"encoder\.layer\.(\d+)\.")


def _axes(spec: BertSpec) -> Mapping[str, int]:
    axes = {WORDS: 0}
    for layer in range(spec.layers):
        prefix = layer_prefix(layer)
        for name in _BY_ROWS:
            inner = f"{prefix}{name}.dense" if name == "intermediate" else f"{prefix}{name}"
            axes |= {f"{inner}.weight": 0, f"{inner}.bias": 0}
        axes |= {f"{prefix}{name}.weight": 1 for name in _BY_COLUMNS}
    if spec.relative_buckets:
        axes[RELATIVE_BIAS] = 1
    return axes


def _evenly(spec: BertSpec) -> Mapping[str, int]:
    return {"attention heads": spec.heads, "numbers of the wide layer": spec.intermediate}


def _layer_of(name: str) -> int | None:
    found = _LAYER.match(name)
    return int(found[1]) if found else None


def _check_stages(spec: BertSpec) -> str | None:
    if spec.relative_buckets:
        return "all layers share one table of relative positions"
    return None


DIVISION = Division(
    axes=_axes,
    evenly=_evenly,
    layers=lambda spec: spec.layers,
    layer_of=_layer_of,
    check_stages=_check_stages,
)
