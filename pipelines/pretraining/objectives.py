"""Objectives that have an encoder write texts out again, with weights of their own.

Each declares, in a :class:`pipelines.losses.loss.Reconstruction`, its weights, which are trained
beside the encoder's and left out of the model; what it makes of the texts, as numpy arrays that
follow from (seed, epoch, granule) alone; and a loss of these arrays and of the encoder's hidden
states, see :class:`pipelines.pretraining.torch_head.View`.

This module is loaded to read settings, so it imports arrays and frameworks where they are called.
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
    from pipelines.models.spec import EncoderSpec
    from pipelines.pretraining.torch_head import View
    from pipelines.tokens.vocabulary import SpecialIds

    Arrays = Mapping[str, np.ndarray]


def _objective(
    name: str,
    summary: str,
    settings: type[ObjectiveSettings],
    torch: Any,
    reconstruction: Reconstruction,
) -> Loss:
    """Declare an objective; all of them take single texts."""
    return Loss(
        name=name,
        summary=summary,
        needs="singles",
        sides=("anchor",),
        uses_negatives=False,
        settings=settings,
        forms={"torch": torch},
        reconstruction=reconstruction,
    )


class MlmSettings(ObjectiveSettings):
    """How much is hidden."""

    mask_ratio: float = Field(
        default=0.15, gt=0, lt=1, description="Share of a text's tokens that are predicted."
    )


def head_shapes(spec: EncoderSpec) -> Shapes:
    """Return the shapes of the prediction head."""
    from pipelines.pretraining import start

    return start.head_shapes(spec)


def mlm_noise(
    side: Side, ids: SpecialIds, settings: MlmSettings, draw: np.random.Generator
) -> Arrays:
    """Return the masked texts, and what was there."""
    from pipelines.pretraining.start import are_words, masked, shares, some_of

    chosen = some_of(are_words(side, ids), settings.mask_ratio, draw)
    return {
        "token_ids": masked(side, chosen, ids, draw),
        "lengths": side.lengths,
        "targets": side.token_ids,
        "shares": shares(chosen),
    }


def mlm(view: View, inputs: Arrays, settings: MlmSettings) -> Any:
    """Return the cross entropy of words that were hidden, predicted from those around them.

    Source: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language
    Understanding", NAACL 2019, arXiv:1810.04805, section 3.1.
    """
    states = view.hidden_states(view.batch(inputs["token_ids"], inputs["lengths"]))
    wanted = view.wanted(inputs["targets"], inputs["shares"], inputs["lengths"])
    return view.prediction_loss(states.index_select(0, wanted.rows), wanted)


def check_mlm(spec: EncoderSpec) -> None:
    """Refuse dense layers behind the pooling, on which nothing here depends."""
    if spec.dense:
        raise InputError(
            "objective.name",
            "`mlm` does not train the dense layers behind the pooling of the start",
            "tsdae, or a start without them",
        )


MLM = _objective(
    "mlm",
    "Masked language modelling: words that were hidden are predicted from those around them.",
    MlmSettings,
    mlm,
    Reconstruction(
        uses="tokens",
        shapes=head_shapes,
        noise=mlm_noise,
        masks=True,
        check_spec=check_mlm,
    ),
)


class ClmSettings(ObjectiveSettings):
    """It has no keys of its own."""


def clm_noise(
    side: Side, ids: SpecialIds, settings: ClmSettings, draw: np.random.Generator
) -> Arrays:
    """Return the texts, and what follows each of their tokens; nothing is drawn."""
    return {"token_ids": side.token_ids, "lengths": side.lengths, **_followers(side)}


def _followers(side: Side) -> Arrays:
    """Return what follows each token of a text, as targets; the last token is followed by none."""
    from pipelines.pretraining.start import following, is_token, shares

    return {
        "targets": following(side.token_ids),
        "shares": shares(following(is_token(side))),
    }


def clm(view: View, inputs: Arrays, settings: ClmSettings) -> Any:
    """Return the cross entropy of each token, predicted by a decoder from those before it.

    Source: Radford et al., "Improving Language Understanding by Generative Pre-Training", 2018,
    section 3.1; the output matrix is the word embedding, as there and in GPT-2.
    """
    states = view.hidden_states(view.batch(inputs["token_ids"], inputs["lengths"]))
    wanted = view.wanted(inputs["targets"], inputs["shares"], inputs["lengths"])
    return view.word_loss(states.index_select(0, wanted.rows), wanted)


def check_clm(spec: EncoderSpec) -> None:
    """Refuse what sees the tokens that it is to predict, and dense layers that nothing trains."""
    from pipelines.models.hf.architecture import HfSpec

    if not isinstance(spec, HfSpec) or not _is_decoder(spec.config):
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


def _is_decoder(config: str) -> bool:
    from pipelines.models.hf.torch_library import is_decoder

    return is_decoder(config)


CLM = _objective(
    "clm",
    "Causal language modelling: each token is predicted from those before it.",
    ClmSettings,
    clm,
    Reconstruction(
        uses="tokens",
        shapes=lambda spec: {},
        noise=clm_noise,
        masks=False,
        check_spec=check_clm,
    ),
)

_TSDAE_DECODER = 1
"""Tells the decoder's dropout apart from the encoder's."""


class TsdaeSettings(ObjectiveSettings):
    """How much is deleted."""

    deletion_ratio: float = Field(
        default=0.6, gt=0, lt=1, description="Share of a text's tokens that the encoder misses."
    )


def tsdae_shapes(spec: BertSpec) -> Shapes:
    """Return the shapes of the prediction head, and of each layer's attention to the vector."""
    found = head_shapes(spec)
    for layer in range(spec.layers):
        prefix = _cross_prefix(layer)
        found |= {
            f"{prefix}self.value.weight": (spec.hidden, spec.embedding_width),
            f"{prefix}self.value.bias": (spec.hidden,),
            f"{prefix}output.dense.weight": (spec.hidden, spec.hidden),
            f"{prefix}output.dense.bias": (spec.hidden,),
            f"{prefix}output.LayerNorm.weight": (spec.hidden,),
            f"{prefix}output.LayerNorm.bias": (spec.hidden,),
        }
    return found


def _cross_prefix(layer: int) -> str:
    return f"decoder.layer.{layer}.crossattention."


def tsdae_noise(
    side: Side, ids: SpecialIds, settings: TsdaeSettings, draw: np.random.Generator
) -> Arrays:
    """Return the texts with gaps, and as they were; at least one token of each is left."""
    from pipelines.pretraining.start import are_words, is_token, kept, some_of

    words = are_words(side, ids)
    # Chosen is what stays: at least one of the words, however short the text is.
    stays = some_of(words, 1 - settings.deletion_ratio, draw)
    noisy = kept(side, (is_token(side) & ~words) | stays)
    return {
        "token_ids": noisy.token_ids,
        "lengths": noisy.lengths,
        "originals": side.token_ids,
        "original_lengths": side.lengths,
        **_followers(side),
    }


def tsdae(view: View, inputs: Arrays, settings: TsdaeSettings) -> Any:
    """Return the cross entropy of each token, given those before it and the vector of its text.

    A text with most of its tokens deleted becomes one vector, from which it is written again. The
    decoder has the encoder's own layers, in which a token sees those before it alone, with a fresh
    attention to the vector in each. There is one vector, so that attention has neither query nor
    key. What the decoder gets is the embedding before it is scaled to length 1.

    Source: Wang, Reimers and Gurevych, "TSDAE: Using Transformer-based Sequential Denoising
    Auto-Encoder for Unsupervised Sentence Embedding Learning", Findings of EMNLP 2021,
    arXiv:2104.06979; the DenoisingAutoEncoderLoss of sentence-transformers. Tokens are deleted
    here, and words there.
    """
    from pipelines.models.bert.torch import CrossAttention, Dense, norm_weights

    def cross(layer: int) -> CrossAttention:
        prefix = _cross_prefix(layer)
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
        view.masks(_TSDAE_DECODER),
        activation_checkpointing=view.activation_checkpointing,
    )
    wanted = view.wanted(inputs["targets"], inputs["shares"], lengths)
    return view.prediction_loss(states.index_select(0, wanted.rows), wanted)


TSDAE = _objective(
    "tsdae",
    "TSDAE: a text with most of its tokens deleted becomes one vector, from which it is written "
    "again.",
    TsdaeSettings,
    tsdae,
    Reconstruction(
        uses="decoder",
        shapes=tsdae_shapes,
        noise=tsdae_noise,
        masks=False,
        # Every encoder whose architecture has a decoder is trained, dense layers too.
        check_spec=lambda spec: None,
    ),
)

RETROMAE_DECODER = "decoder."
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


def retromae_shapes(spec: BertSpec) -> Shapes:
    """Return the shapes of the prediction head, and of the decoder's layer."""
    from pipelines.models.bert.spec import layer_shapes

    return head_shapes(spec) | layer_shapes(spec, RETROMAE_DECODER)


def retromae_noise(
    side: Side, ids: SpecialIds, settings: RetromaeSettings, draw: np.random.Generator
) -> Arrays:
    """Return the masked texts, what they were, and what the decoder misses.

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


def retromae(view: View, inputs: Arrays, settings: RetromaeSettings) -> Any:
    """Return the cross entropies of encoder and decoder, added up.

    A masked text becomes one vector, from which one weak layer finds all of the text. The encoder
    predicts what was masked of its own input. The decoder's one layer gets much less of the text,
    so that the vector must tell it: each token is predicted from its place, the vector, and a
    choice of the other tokens that is its own ("enhanced decoding"). As in the authors' code both
    share the prediction head, and the vector stands in the place of [CLS]. The decoder gets the
    embedding before it is scaled to length 1.

    Source: Xiao, Liu, Shao and Cao, "RetroMAE: Pre-Training Retrieval-oriented Language Models Via
    Masked Auto-Encoder", EMNLP 2022, arXiv:2205.12035.
    """
    from pipelines.pretraining.torch_head import retromae_loss

    layer = {
        name.removeprefix(RETROMAE_DECODER): weight
        for name, weight in view.own.items()
        if name.startswith(RETROMAE_DECODER)
    }
    return retromae_loss(view, layer, inputs)


def check_retromae(spec: BertSpec) -> None:
    """Refuse encoders whose vector cannot stand among words."""
    if {spec.embedding_width, spec.word_width} != {spec.hidden}:
        raise InputError(
            "objective.name",
            "`retromae` puts an embedding in the place of a word, and this start has them "
            f"{spec.embedding_width} and {spec.word_width} wide, and its layers {spec.hidden}",
            "tsdae",
        )


RETROMAE = _objective(
    "retromae",
    "RetroMAE: a masked text becomes one vector, from which one weak layer finds all of the text.",
    RetromaeSettings,
    retromae,
    Reconstruction(
        uses="decoder",
        shapes=retromae_shapes,
        noise=retromae_noise,
        masks=True,
        check_spec=check_retromae,
    ),
)
