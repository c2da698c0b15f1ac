"""The weights of the BERT family, under Hugging Face's names for BERT, without prefix or pooler."""

from __future__ import annotations

from pipelines.models.architecture import Shapes
from pipelines.models.bert.spec import BertSpec
from pipelines.models.weights import WORDS

POSITIONS = "embeddings.position_embeddings.weight"
SEGMENTS = "embeddings.token_type_embeddings.weight"
PROJECTION = "embeddings_project"
"""The dense layer from the width of words to that of the layers."""
RELATIVE_BIAS = "encoder.relative_attention_bias.weight"
"""What attention adds to scores by distance, of all layers [buckets, heads]."""


def layer_prefix(number: int) -> str:
    """What the names of a layer's weights begin with."""
    return f"encoder.layer.{number}."


def weight_shapes(spec: BertSpec) -> Shapes:
    """Shape of every weight, in canonical order; matrices are [out, in] as in torch."""
    hidden, width = spec.hidden, spec.word_width
    shapes: Shapes = {WORDS: (spec.vocabulary, width), POSITIONS: (spec.positions, width)}
    if spec.type_vocabulary:
        shapes[SEGMENTS] = (spec.type_vocabulary, width)
    shapes |= {"embeddings.LayerNorm.weight": (width,), "embeddings.LayerNorm.bias": (width,)}
    if spec.projects:
        shapes |= {f"{PROJECTION}.weight": (hidden, width), f"{PROJECTION}.bias": (hidden,)}
    for layer in range(spec.layers):
        shapes |= _layer_shapes(spec, layer_prefix(layer))
    if spec.relative_buckets:
        shapes[RELATIVE_BIAS] = (spec.relative_buckets, spec.heads)
    return shapes


def _layer_shapes(spec: BertSpec, prefix: str) -> Shapes:
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
