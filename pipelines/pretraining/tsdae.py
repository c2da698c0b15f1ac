"""TSDAE: a text with most of its tokens deleted becomes one vector, from which it is written again.

The decoder has the encoder's own layers, in which a token sees those before it alone, with a fresh
attention to the vector in each. There is one vector, so that attention has neither query nor key.
What the decoder gets is the embedding before it is scaled to length 1.

Source: Wang, Reimers and Gurevych, "TSDAE: Using Transformer-based Sequential Denoising
Auto-Encoder for Unsupervised Sentence Embedding Learning", Findings of EMNLP 2021,
arXiv:2104.06979; the DenoisingAutoEncoderLoss of sentence-transformers. Tokens are deleted here,
and words there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pipelines.losses.loss import Loss, Reconstruction
from pipelines.settings.objective import ObjectiveSettings

if TYPE_CHECKING:
    import numpy as np

    from pipelines.lanes.files import Side
    from pipelines.models.architecture import Shapes
    from pipelines.models.bert.spec import BertSpec
    from pipelines.models.spec import EncoderSpec
    from pipelines.pretraining.torch_head import View
    from pipelines.tokens.vocabulary import SpecialIds

_DECODER = 1
"""Tells the decoder's dropout apart from the encoder's."""


class TsdaeSettings(ObjectiveSettings):
    """How much is deleted."""

    deletion_ratio: float = Field(
        default=0.6, gt=0, lt=1, description="Share of a text's tokens that the encoder misses."
    )


def shapes(spec: BertSpec) -> Shapes:
    """Shapes of the prediction head, and of each layer's attention to the vector."""
    from pipelines.pretraining.start import head_shapes

    found = head_shapes(spec)
    for layer in range(spec.layers):
        prefix = _prefix(layer)
        found |= {
            f"{prefix}self.value.weight": (spec.hidden, spec.embedding_width),
            f"{prefix}self.value.bias": (spec.hidden,),
            f"{prefix}output.dense.weight": (spec.hidden, spec.hidden),
            f"{prefix}output.dense.bias": (spec.hidden,),
            f"{prefix}output.LayerNorm.weight": (spec.hidden,),
            f"{prefix}output.LayerNorm.bias": (spec.hidden,),
        }
    return found


def noise(
    side: Side, ids: SpecialIds, settings: TsdaeSettings, draw: np.random.Generator
) -> Mapping[str, np.ndarray]:
    """The texts with gaps, and as they were; at least one token of each is left."""
    from pipelines.pretraining.start import (
        are_words,
        following,
        is_token,
        kept,
        shares,
        some_of,
    )

    words = are_words(side, ids)
    # Chosen is what stays: at least one of the words, however short the text is.
    stays = some_of(words, 1 - settings.deletion_ratio, draw)
    noisy = kept(side, (is_token(side) & ~words) | stays)
    return {
        "token_ids": noisy.token_ids,
        "lengths": noisy.lengths,
        "originals": side.token_ids,
        "original_lengths": side.lengths,
        "targets": following(side.token_ids),
        "shares": shares(following(is_token(side))),
    }


def torch(view: View, inputs: Mapping[str, np.ndarray], settings: TsdaeSettings) -> Any:
    """The cross entropy of each token, given those before it and the vector; a scalar tensor.

    Args:
        view: Of the encoder.
        inputs: Of :func:`noise`.
        settings: Are in the inputs.
    """
    from pipelines.models.bert.torch import CrossAttention, Dense, norm_weights

    def cross(layer: int) -> CrossAttention:
        prefix = _prefix(layer)
        value, output = (
            Dense(view.own[f"{prefix}{name}.weight"], view.own[f"{prefix}{name}.bias"])
            for name in ("self.value", "output.dense")
        )
        return CrossAttention(value, output, norm_weights(view.own, f"{prefix}output."))

    noisy = view.batch(inputs["token_ids"], inputs["lengths"])
    vectors = view.vectors(view.hidden_states(noisy), noisy)
    # The last token of a text is among the inputs, and predicts nothing.
    lengths = inputs["original_lengths"]
    states = view.bert.decode(
        view.batch(inputs["originals"], lengths),
        vectors,
        [cross(layer) for layer in range(view.spec.layers)],
        view.masks(_DECODER),
        activation_checkpointing=view.activation_checkpointing,
    )
    wanted = view.wanted(inputs["targets"], inputs["shares"], lengths)
    return view.prediction_loss(states.index_select(0, wanted.rows), wanted)


def _prefix(layer: int) -> str:
    return f"decoder.layer.{layer}.crossattention."


def check_spec(spec: EncoderSpec) -> None:
    """Every encoder whose architecture has a decoder is trained, dense layers too."""


LOSS = Loss(
    name="tsdae",
    needs="singles",
    sides=("anchor",),
    uses_negatives=False,
    settings=TsdaeSettings,
    forms={"torch": torch},
    reconstruction=Reconstruction(
        uses="decoder", shapes=shapes, noise=noise, masks=False, check_spec=check_spec
    ),
)
