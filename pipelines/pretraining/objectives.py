"""Reconstruction objectives: they predict tokens of texts, with weights of their own.

Each declares a :class:`pipelines.losses.loss.TokenLoss`: weights, trained beside the encoder's
and left out of the model; noise, numpy arrays that depend only on (seed, epoch, granule); and a
loss of these arrays and of the encoder's hidden states, see
:class:`pipelines.pretraining.torch_head.View`. The settings are read from here, so this module
imports arrays and frameworks inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pipelines.errors import InputError
from pipelines.losses.loss import Loss, TokenLoss
from pipelines.settings.objective import ObjectiveSettings

if TYPE_CHECKING:
    import numpy as np

    from pipelines.lanes.files import Granule, Side
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
    token_loss: TokenLoss,
) -> Loss:
    """Declare an objective over single texts."""
    return Loss(
        name=name,
        summary=summary,
        needs="singles",
        sides=("anchor",),
        uses_negatives=False,
        settings=settings,
        forms={"torch": torch},
        token_loss=token_loss,
    )


def _of_one(noise: Callable[..., Arrays]) -> Callable[..., Arrays]:
    """Return the inputs of an objective over single texts."""

    def inputs(
        granule: Granule,
        names: Sequence[str],
        ids: SpecialIds,
        settings: Any,
        draw: np.random.Generator,
        limit: int,
    ) -> Arrays:
        (name,) = names
        return noise(granule.sides[name], ids, settings, draw)

    return inputs


class MlmSettings(ObjectiveSettings):
    """How many tokens are masked."""

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
    """Return the masked texts and the original tokens."""
    from pipelines.pretraining.start import are_words, masked, shares, some_of

    chosen = some_of(are_words(side, ids), settings.mask_ratio, draw)
    return {
        "token_ids": masked(side, chosen, ids, draw),
        "lengths": side.lengths,
        "targets": side.token_ids,
        "shares": shares(chosen),
    }


def mlm(view: View, inputs: Arrays, settings: MlmSettings) -> Any:
    """Return the cross entropy of masked words, predicted from the words around them.

    Source: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language
    Understanding", NAACL 2019, arXiv:1810.04805, section 3.1.
    """
    states = view.hidden_states(view.batch(inputs["token_ids"], inputs["lengths"]))
    wanted = view.wanted(inputs["targets"], inputs["shares"], inputs["lengths"])
    return view.prediction_loss(states.index_select(0, wanted.rows), wanted)


def check_mlm(spec: EncoderSpec) -> None:
    """Refuse dense layers after the pooling: this objective would not train them."""
    if spec.dense:
        raise InputError(
            "objective.name",
            "`mlm` does not train dense layers after the pooling",
            "Set it to tsdae, or leave them out: encoder.output_width, or those of the start",
        )


MLM = _objective(
    "mlm",
    "Masked language modelling: predicts masked words from the words around them.",
    MlmSettings,
    mlm,
    TokenLoss(
        uses="tokens",
        shapes=head_shapes,
        inputs=_of_one(mlm_noise),
        masks=True,
        check_spec=check_mlm,
    ),
)


class ClmSettings(ObjectiveSettings):
    """No settings of its own."""


def clm_noise(
    side: Side, ids: SpecialIds, settings: ClmSettings, draw: np.random.Generator
) -> Arrays:
    """Return the texts and each token's successor; nothing is drawn."""
    return {"token_ids": side.token_ids, "lengths": side.lengths, **_followers(side)}


def _followers(side: Side) -> Arrays:
    """Return each token's successor, as targets; the last token has none."""
    from pipelines.pretraining.start import following, is_token, shares

    return {
        "targets": following(side.token_ids),
        "shares": shares(following(is_token(side))),
    }


def clm(view: View, inputs: Arrays, settings: ClmSettings) -> Any:
    """Return the cross entropy of each token, predicted by a decoder from earlier tokens.

    Source: Radford et al., "Improving Language Understanding by Generative Pre-Training", 2018,
    section 3.1; the output matrix is the word embedding, as there and in GPT-2.
    """
    states = view.hidden_states(view.batch(inputs["token_ids"], inputs["lengths"]))
    wanted = view.wanted(inputs["targets"], inputs["shares"], inputs["lengths"])
    return view.word_loss(states.index_select(0, wanted.rows), wanted)


def check_clm(spec: EncoderSpec) -> None:
    """Refuse encoders that see the tokens to predict, and dense layers without training."""
    from pipelines.models.hf.architecture import HfSpec

    if not isinstance(spec, HfSpec) or not _is_decoder(spec.config):
        raise InputError(
            "objective.name",
            f"`clm` needs a decoder, and every token of {spec.kind} attends to later ones",
            "Set it to mlm, or name a start such as GPT-2, Qwen3 or Llama",
        )
    if spec.dense:
        raise InputError(
            "objective.name",
            "`clm` does not train dense layers after the pooling",
            "Leave them out: encoder.output_width, or those of the start",
        )


def _is_decoder(config: str) -> bool:
    from pipelines.models.hf.torch_library import is_decoder

    return is_decoder(config)


CLM = _objective(
    "clm",
    "Causal language modelling: predicts each token from the tokens before it.",
    ClmSettings,
    clm,
    TokenLoss(
        uses="tokens",
        shapes=lambda spec: {},
        inputs=_of_one(clm_noise),
        masks=False,
        check_spec=check_clm,
    ),
)

_TSDAE_DECODER = 1
"""Distinguishes the decoder's dropout from the encoder's."""


class TsdaeSettings(ObjectiveSettings):
    """How many tokens are deleted."""

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
    """Return the texts with deletions, but at least one word, and the originals."""
    from pipelines.pretraining.start import are_words, is_token, kept, some_of

    words = are_words(side, ids)
    # `some_of` chooses at least one, so it picks the words that stay and not the deleted ones.
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
    """Return the cross entropy of each token, given earlier tokens and the vector of its text.

    A text with most of its tokens deleted becomes one vector, and the decoder reconstructs the text
    from it. The decoder has the encoder's layers, with causal attention, each with a new attention
    to the vector. A single vector needs neither query nor key. It is the embedding before scaling
    to length 1.

    Source: Wang, Reimers and Gurevych, "TSDAE: Using Transformer-based Sequential Denoising
    Auto-Encoder for Unsupervised Sentence Embedding Learning", Findings of EMNLP 2021,
    arXiv:2104.06979. The DenoisingAutoEncoderLoss of sentence-transformers deletes words and not
    tokens.
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
    "TSDAE: reconstructs a text from one vector of the text with most tokens deleted.",
    TsdaeSettings,
    tsdae,
    TokenLoss(
        uses="decoder",
        shapes=tsdae_shapes,
        inputs=_of_one(tsdae_noise),
        masks=False,
        # Every encoder whose architecture has a decoder is trained, dense layers too.
        check_spec=lambda spec: None,
    ),
)

RETROMAE_DECODER = "decoder."
"""The prefix of the decoder's weights, which are those of one layer of BERT."""
MOST_CHOICES = 128
"""Sets of missing tokens that the tokens of a text draw theirs from, as in the authors' code."""


class RetromaeSettings(ObjectiveSettings):
    """How many tokens the encoder and the decoder miss."""

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
    """Return the shapes of the prediction head and of the decoder's layer."""
    from pipelines.models.bert.spec import layer_shapes

    return head_shapes(spec) | layer_shapes(spec, RETROMAE_DECODER)


def retromae_noise(
    side: Side, ids: SpecialIds, settings: RetromaeSettings, draw: np.random.Generator
) -> Arrays:
    """Return the masked texts, the originals, and the tokens hidden from the decoder.

    ``missing`` is bool [texts, choices, width]; ``choices``, int64 [texts, width], is by token.
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
    """Return the sum of the encoder's and the decoder's cross entropies.

    A masked text becomes one vector, and one weak layer reconstructs the whole text from it. The
    encoder predicts its masked tokens. The decoder sees much less of the text and depends on the
    vector: it predicts each token from its place, the vector, and a sample of other tokens drawn
    for it ("enhanced decoding"). As in the authors' code both share the prediction head, and the
    vector takes the place of [CLS]. It is the embedding before scaling to length 1.

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
    """Refuse encoders with vectors unfit to stand among words."""
    if {spec.embedding_width, spec.word_width} != {spec.hidden}:
        raise InputError(
            "objective.name",
            "`retromae` needs one width for all, and this start has embeddings of "
            f"{spec.embedding_width}, words of {spec.word_width} and layers of {spec.hidden}",
            "Set it to tsdae",
        )


RETROMAE = _objective(
    "retromae",
    "RetroMAE: a weak layer reconstructs a text from one vector of the masked text.",
    RetromaeSettings,
    retromae,
    TokenLoss(
        uses="decoder",
        shapes=retromae_shapes,
        inputs=_of_one(retromae_noise),
        masks=True,
        check_spec=check_retromae,
    ),
)
