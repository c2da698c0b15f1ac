"""Masked language modelling: words that were hidden are predicted from those around them.

Source: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding", NAACL 2019, arXiv:1810.04805, section 3.1.
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
    from pipelines.models.spec import EncoderSpec
    from pipelines.pretraining.torch_head import View
    from pipelines.tokens.vocabulary import SpecialIds


class MlmSettings(ObjectiveSettings):
    """How much is hidden."""

    mask_ratio: float = Field(
        default=0.15, gt=0, lt=1, description="Share of a text's tokens that are predicted."
    )


def shapes(spec: EncoderSpec) -> Shapes:
    """Shapes of the prediction head."""
    from pipelines.pretraining.start import head_shapes

    return head_shapes(spec)


def noise(
    side: Side, ids: SpecialIds, settings: MlmSettings, draw: np.random.Generator
) -> Mapping[str, np.ndarray]:
    """The masked texts, and what was there."""
    from pipelines.pretraining.start import are_words, masked, shares, some_of

    chosen = some_of(are_words(side, ids), settings.mask_ratio, draw)
    return {
        "token_ids": masked(side, chosen, ids, draw),
        "lengths": side.lengths,
        "targets": side.token_ids,
        "shares": shares(chosen),
    }


def torch(view: View, inputs: Mapping[str, np.ndarray], settings: MlmSettings) -> Any:
    """The cross entropy of the words that were hidden; a scalar tensor.

    Args:
        view: Of the encoder.
        inputs: Of :func:`noise`.
        settings: Are in the inputs.
    """
    states = view.hidden_states(view.batch(inputs["token_ids"], inputs["lengths"]))
    wanted = view.wanted(inputs["targets"], inputs["shares"], inputs["lengths"])
    return view.prediction_loss(states.index_select(0, wanted.rows), wanted)


def check_spec(spec: EncoderSpec) -> None:
    """Refuses dense layers behind the pooling, on which nothing here depends."""
    if spec.dense:
        raise InputError(
            "objective.name",
            "`mlm` does not train the dense layers behind the pooling of the start",
            "tsdae, or a start without them",
        )


LOSS = Loss(
    name="mlm",
    needs="singles",
    sides=("anchor",),
    uses_negatives=False,
    settings=MlmSettings,
    forms={"torch": torch},
    reconstruction=Reconstruction(
        uses="tokens", shapes=shapes, noise=noise, masks=True, check_spec=check_spec
    ),
)
