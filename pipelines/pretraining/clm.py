"""Causal language modelling: each token is predicted from those before it.

Source: Radford et al., "Improving Language Understanding by Generative Pre-Training", 2018,
section 3.1; the output matrix is the word embedding, as there and in GPT-2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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


class ClmSettings(ObjectiveSettings):
    """It has no keys of its own."""


def shapes(spec: EncoderSpec) -> Shapes:
    """There are no weights beside the decoder's."""
    return {}


def noise(
    side: Side, ids: SpecialIds, settings: ClmSettings, draw: np.random.Generator
) -> Mapping[str, np.ndarray]:
    """The texts, and what follows each of their tokens; nothing is drawn."""
    from pipelines.pretraining.start import following, is_token
    from pipelines.pretraining.start import shares as shares_of

    return {
        "token_ids": side.token_ids,
        "lengths": side.lengths,
        "targets": following(side.token_ids),
        # The last token is followed by none.
        "shares": shares_of(following(is_token(side))),
    }


def torch(view: View, inputs: Mapping[str, np.ndarray], settings: ClmSettings) -> Any:
    """The cross entropy of the tokens that follow; a scalar tensor.

    Args:
        view: Of the decoder.
        inputs: Of :func:`noise`.
        settings: None.
    """
    states = view.hidden_states(view.batch(inputs["token_ids"], inputs["lengths"]))
    wanted = view.wanted(inputs["targets"], inputs["shares"], inputs["lengths"])
    return view.word_loss(states.index_select(0, wanted.rows), wanted)


def check_spec(spec: EncoderSpec) -> None:
    """Refuses what sees the tokens that it is to predict, and dense layers that nothing trains."""
    from pipelines.models.hf.spec import HfSpec

    if not isinstance(spec, HfSpec) or not _is_decoder(spec):
        raise InputError(
            "objective.name",
            f"`clm` needs a decoder, and every token of {spec.kind} sees those behind it",
            "mlm, or a start such as GPT-2, Qwen3 or Llama",
        )
    if spec.dense:
        raise InputError(
            "objective.name",
            "`clm` does not train the dense layers behind the pooling of the start",
            "a start without them",
        )


def _is_decoder(spec: Any) -> bool:
    from pipelines.models.hf.torch_library import is_decoder

    return is_decoder(spec.config)


LOSS = Loss(
    name="clm",
    needs="singles",
    sides=("anchor",),
    uses_negatives=False,
    settings=ClmSettings,
    forms={"torch": torch},
    reconstruction=Reconstruction(
        uses="tokens", shapes=shapes, noise=noise, masks=False, check_spec=check_spec
    ),
)
