"""The weights of a BERT encoder, under Hugging Face's names, without prefix or pooler."""

from __future__ import annotations

from pipelines.models.architecture import Shapes
from pipelines.models.bert.spec import BertSpec
from pipelines.models.weights import WORDS

POSITIONS = "embeddings.position_embeddings.weight"
SEGMENTS = "embeddings.token_type_embeddings.weight"


def layer_prefix(number: int) -> str:
    """What the names of a layer's weights begin with."""
    return f"encoder.layer.{number}."


def weight_shapes(spec: BertSpec) -> Shapes:
    """Shape of every weight, in canonical order; matrices are [out, in] as in torch."""
    hidden, intermediate = spec.hidden, spec.intermediate
    shapes: Shapes = {
        WORDS: (spec.vocabulary, hidden),
        POSITIONS: (spec.positions, hidden),
        SEGMENTS: (spec.type_vocabulary, hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    matrices = {
        "attention.self.query": (hidden, hidden),
        "attention.self.key": (hidden, hidden),
        "attention.self.value": (hidden, hidden),
        "attention.output.dense": (hidden, hidden),
        "intermediate.dense": (intermediate, hidden),
        "output.dense": (hidden, intermediate),
    }
    for layer in range(spec.layers):
        prefix = layer_prefix(layer)
        for name, shape in matrices.items():
            shapes[f"{prefix}{name}.weight"] = shape
            shapes[f"{prefix}{name}.bias"] = shape[:1]
            # Post-norm: a layer norm follows each of the two matrices that end in a residual.
            block, _, last = name.rpartition(".")
            if last == "dense" and block.endswith("output"):
                shapes[f"{prefix}{block}.LayerNorm.weight"] = (hidden,)
                shapes[f"{prefix}{block}.LayerNorm.bias"] = (hidden,)
    return shapes
