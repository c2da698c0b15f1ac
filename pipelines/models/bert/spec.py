"""The shape of an encoder of the BERT family, and what the settings say about a random start."""

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
"""Tokens from which on all distances are one."""


@lru_cache(maxsize=64)
def relative_buckets(buckets: int, width: int) -> np.ndarray:
    """Return the bucket of each query and key, int64 [width, width], of so many buckets.

    Half of the buckets are for keys behind the query. Of either half the first half are for one
    distance each, and the others grow by a factor.

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
"""Rows of the position embedding of an encoder that starts from nothing."""


@dataclass(frozen=True, kw_only=True)
class BertSpec(EncoderSpec):
    """An encoder of the BERT family, with absolute positions and exact GELU.

    The other members of the family derive from it: they are BERT without some of its parts, with
    one more, or under other names.

    Source: Devlin, Chang, Lee and Toutanova, "BERT: Pre-training of Deep Bidirectional
    Transformers for Language Understanding", NAACL 2019, arXiv:1810.04805.

    Attributes:
        layers: Transformer layers.
        heads: Attention heads, a divisor of ``hidden``.
        intermediate: Width between the two matrices of the feed-forward block.
        positions: Rows of the position embedding, which are the places of a text that there can be.
        pooling: How hidden states become an embedding.
        type_vocabulary: Rows of the segment embedding, of which the first is used; 0 without one.
        layer_norm_epsilon: Added to the variance.
        embedding_size: Width of words and positions; None: that of the layers. If it is another, a
            dense layer leads to that.
        relative_buckets: Distances that attention tells apart by a learnt bias; 0 without one.
        hidden_dropout: Share of hidden states that it was made to be trained without.
        attention_dropout: Share of attention's probabilities.
        model_type: What its config.json calls it.
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
        """What it was made to be trained with; None without dropout."""
        rates = DropoutRates(self.hidden_dropout, self.attention_dropout, own=True)
        return rates if rates.hidden or rates.attention else None

    @property
    def placeless_token(self) -> int | None:
        """The token that counts no position where a text holds it; None if all count one."""
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
            f"{encoder.hidden} is to be divided",
        )


def refuse_random(encoder: EncoderSettings) -> None:
    """Refuse a random start, for architectures that are there for their checkpoints."""
    if encoder.start == "random":
        raise InputError(
            "encoder.kind",
            f"`{encoder.kind}` starts from a checkpoint only",
            "name its folder in encoder.start, or encoder.kind: bert",
        )


def shape(encoder: EncoderSettings) -> dict[str, Any]:
    """Return the fields of a random start's spec that not all architectures have."""
    return {
        "layers": encoder.layers,
        "heads": encoder.heads,
        "intermediate": encoder.intermediate or 4 * encoder.hidden,
        "pooling": encoder.pooling,
    }


def random_lengths(training_length: int | None) -> Lengths:
    """Return as many tokens as it is trained on: nothing would train the positions behind that."""
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
"""What BERT's config.json calls the fields of a spec."""
_USUAL_DROPOUT = 0.1
"""What `transformers` takes where config.json says nothing, for each of the family."""


def model_type(config: Mapping[str, Any]) -> Any:
    """Return the type that config.json tells; BERT's where it tells none, as the oldest did not."""
    return config.get("model_type", "bert")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How one member stands in a folder.

    Attributes:
        spec: Its spec, whose defaults count for what config.json does not tell.
        classes: Classes of `transformers` by the values of config.json's ``model_type``.
        keys: What config.json calls the fields of the spec; others have their defaults.
        accepted: What config.json may say of what the forward pass takes for granted, the default
            first, which is also written.
        dropout: config.json's keys for the shares of hidden states and of attention's
            probabilities that are dropped.
        names: Parts of canonical names, and what stands for them in the file of weights.
        prefix: What checkpoints with a head put before the names.
        skipped_rows: Rows at the beginning of the position table that no text uses, by the id of
            the padding token. They are left out when it is read, and written as zeros.
        pooler: Whether a model without head has a layer that no embedding depends on.
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

    def own_name(self, name: str) -> str:
        """Return what the file of weights calls a canonical name."""
        for canonical, own in self.names:
            name = name.replace(canonical, own)
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
        """Return the fields of a spec that config.json tells; a KeyError names what it lacks."""
        optional = {"type_vocabulary", "layer_norm_epsilon", "pad_token_id", "embedding_size"}
        told = {
            name: config[key]
            for name, key in self.keys.items()
            if not (name in optional and config.get(key) is None)
        }
        told["positions"] -= self.skipped_rows(self.pad_token_id(config))
        hidden, attention = (config.get(key, _USUAL_DROPOUT) for key in self.dropout)
        return {
            "model_type": model_type(config),
            "hidden_dropout": hidden,
            "attention_dropout": attention,
            **told,
        }

    def pad_token_id(self, config: Mapping[str, Any]) -> int:
        """Return the padding token that config.json tells."""
        told = config.get("pad_token_id")
        return self.spec.pad_token_id if told is None else int(told)

    def unknown(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return what config.json says that the forward pass does not do."""
        told = {key: config.get(key, values[0]) for key, values in self.accepted.items()}
        return {key: value for key, value in told.items() if value not in self.accepted[key]}


POSITIONS = "embeddings.position_embeddings.weight"
SEGMENTS = "embeddings.token_type_embeddings.weight"
PROJECTION = "embeddings_project"
"""The dense layer from the width of words to that of the layers."""
RELATIVE_BIAS = "encoder.relative_attention_bias.weight"
"""What attention adds to scores by distance, of all layers [buckets, heads]."""


def layer_prefix(number: int) -> str:
    """Return what the names of a layer's weights begin with."""
    return f"encoder.layer.{number}."


def weight_shapes(spec: BertSpec) -> Shapes:
    """Return the shape of every weight, in canonical order; matrices are [out, in] as in torch."""
    hidden, width = spec.hidden, spec.word_width
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
