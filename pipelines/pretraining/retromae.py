"""RetroMAE: a masked text becomes one vector, from which one weak layer finds all of the text.

The encoder predicts what was masked of its own input. The decoder's one layer gets much less of the
text, so that the vector must tell it: each token is predicted from its place, the vector, and a
choice of the other tokens that is its own ("enhanced decoding"). The two losses are added up.
As in the authors' code both share the prediction head, and the vector stands in the place of [CLS].
The decoder gets the embedding before it is scaled to length 1.

Source: Xiao, Liu, Shao and Cao, "RetroMAE: Pre-Training Retrieval-oriented Language Models Via
Masked Auto-Encoder", EMNLP 2022, arXiv:2205.12035.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pipelines.errors import InputError
from pipelines.losses.loss import Loss, Reconstruction
from pipelines.settings.objective import ObjectiveSettings

if TYPE_CHECKING:
    import numpy as np

    from pipelines.lanes.files import Side
    from pipelines.models.architecture import Shapes
    from pipelines.models.bert.spec import BertSpec
    from pipelines.pretraining.torch_head import View
    from pipelines.tokens.vocabulary import SpecialIds

DECODER = "decoder."
"""What the names of the decoder's weights begin with; they are those of one layer of BERT."""
MOST_CHOICES = 128
"""Choices of a text's tokens that its tokens draw theirs from, as in the authors' code."""


class RetromaeSettings(ObjectiveSettings):
    """How much is hidden from the encoder and from the decoder."""

    encoder_mask_ratio: float = Field(
        default=0.3, gt=0, lt=1, description="Share of a text's tokens that the encoder predicts."
    )
    decoder_mask_ratio: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="Share of a text's tokens that the decoder misses when it predicts one.",
    )


def shapes(spec: BertSpec) -> Shapes:
    """Shapes of the prediction head, and of the decoder's layer."""
    from pipelines.pretraining.start import head_shapes

    hidden, wide = spec.hidden, spec.intermediate
    found = head_shapes(spec)
    matrices = {
        "attention.self.query": (hidden, hidden),
        "attention.self.key": (hidden, hidden),
        "attention.self.value": (hidden, hidden),
        "attention.output.dense": (hidden, hidden),
        "intermediate.dense": (wide, hidden),
        "output.dense": (hidden, wide),
    }
    for name, shape in matrices.items():
        found |= {f"{DECODER}{name}.weight": shape, f"{DECODER}{name}.bias": shape[:1]}
    for name in ("attention.output", "output"):
        for part in ("weight", "bias"):
            found[f"{DECODER}{name}.LayerNorm.{part}"] = (hidden,)
    return found


def noise(
    side: Side, ids: SpecialIds, settings: RetromaeSettings, draw: np.random.Generator
) -> Mapping[str, np.ndarray]:
    """The masked texts, what they were, and what the decoder misses.

    ``missing`` is bool [texts, choices, width], and ``choices`` int64 [texts, width] names the one
    of each token.
    """
    from pipelines.pretraining.start import are_words, masked, repeated, shares, some_of

    words = are_words(side, ids)
    chosen = some_of(words, settings.encoder_mask_ratio, draw)
    texts, width = words.shape
    count = min(width, MOST_CHOICES)
    return {
        "token_ids": masked(side, chosen, ids, draw),
        "lengths": side.lengths,
        "targets": side.token_ids,
        "encoder_shares": shares(chosen),
        "decoder_shares": shares(words),
        "missing": some_of(repeated(words, count), settings.decoder_mask_ratio, draw),
        "choices": draw.integers(0, count, (texts, width)),
    }


def torch(view: View, inputs: Mapping[str, np.ndarray], settings: RetromaeSettings) -> Any:
    """The cross entropies of encoder and decoder, added up; a scalar tensor.

    Args:
        view: Of the encoder.
        inputs: Of :func:`noise`.
        settings: Are in the inputs.
    """
    from pipelines.pretraining.torch_head import loss

    layer = {
        name.removeprefix(DECODER): one
        for name, one in view.own.items()
        if name.startswith(DECODER)
    }
    return loss(view, layer, inputs)


def check_spec(spec: BertSpec) -> None:
    """Refuses encoders whose vector cannot stand among words."""
    if {spec.embedding_width, spec.word_width} != {spec.hidden}:
        raise InputError(
            "objective.name",
            "`retromae` puts an embedding in the place of a word, and this start has them "
            f"{spec.embedding_width} and {spec.word_width} wide, and its layers {spec.hidden}",
            "tsdae",
        )


LOSS = Loss(
    name="retromae",
    needs="singles",
    sides=("anchor",),
    uses_negatives=False,
    settings=RetromaeSettings,
    forms={"torch": torch},
    reconstruction=Reconstruction(
        uses="decoder", shapes=shapes, noise=noise, masks=True, check_spec=check_spec
    ),
)
