"""The head that predicts words from hidden states, as BERT's, RoBERTa's and ELECTRA's have it.

A dense layer with GELU and a layer norm lead to the width of the word embedding, which is the
output matrix too; a bias of each word follows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pipelines.models.architecture import Shapes
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import WORDS, weight_shapes

HEAD = "head."
"""What the names of its weights begin with."""
STORED: Mapping[str, tuple[str, ...]] = {
    f"{HEAD}dense.weight": (
        "cls.predictions.transform.dense.weight",
        "lm_head.dense.weight",
        "vocab_transform.weight",
    ),
    f"{HEAD}dense.bias": (
        "cls.predictions.transform.dense.bias",
        "lm_head.dense.bias",
        "vocab_transform.bias",
    ),
    f"{HEAD}LayerNorm.weight": (
        "cls.predictions.transform.LayerNorm.weight",
        "cls.predictions.transform.LayerNorm.gamma",
        "lm_head.layer_norm.weight",
        "vocab_layer_norm.weight",
    ),
    f"{HEAD}LayerNorm.bias": (
        "cls.predictions.transform.LayerNorm.bias",
        "cls.predictions.transform.LayerNorm.beta",
        "lm_head.layer_norm.bias",
        "vocab_layer_norm.bias",
    ),
    f"{HEAD}bias": ("cls.predictions.bias", "lm_head.bias", "vocab_projector.bias"),
}
"""What checkpoints of BERT (some with TensorFlow's names), of RoBERTa and MPNet, and of DistilBERT
call them."""


def head_shapes(spec: EncoderSpec) -> Shapes:
    """Shapes of its weights."""
    _, word_width = weight_shapes(spec)[WORDS]
    return {
        f"{HEAD}dense.weight": (word_width, spec.hidden),
        f"{HEAD}dense.bias": (word_width,),
        f"{HEAD}LayerNorm.weight": (word_width,),
        f"{HEAD}LayerNorm.bias": (word_width,),
        f"{HEAD}bias": (spec.vocabulary,),
    }


def stored_head(
    shapes: Shapes, checkpoint: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray] | None:
    """The head that a checkpoint has; None if it is not there whole, in these shapes.

    Args:
        shapes: Of :func:`head_shapes`.
        checkpoint: All its arrays.
    """
    found = {}
    for name, known in STORED.items():
        arrays = (checkpoint[stored] for stored in known if stored in checkpoint)
        array = next((one for one in arrays if one.shape == shapes[name]), None)
        if array is None:
            return None
        found[name] = np.ascontiguousarray(array, dtype=np.float32)
    return found
