"""The loss of a cross-encoder, which reads an anchor and a candidate together.

A head over the first token of the pair gives one score. Negatives are the hard ones of an example,
and positives of other examples of its granule, drawn anew in each epoch. The settings are read from
here, so this module imports arrays and frameworks inside functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pipelines.errors import InputError
from pipelines.losses.loss import Loss, TokenLoss
from pipelines.models.rerankers.head import ACTIVATIONS, DENSE, SCORE, head_shapes
from pipelines.settings.objective import ObjectiveSettings

if TYPE_CHECKING:
    import numpy as np

    from pipelines.lanes.files import Granule, Side
    from pipelines.models.spec import EncoderSpec
    from pipelines.pretraining.torch_head import View
    from pipelines.settings import Config
    from pipelines.tokens.vocabulary import SpecialIds


_LEAST_SECOND = 16
"""Tokens of a pair that the anchor leaves to the candidate."""


class RerankingSettings(ObjectiveSettings):
    """How candidates are compared, and how many of them come from the granule."""

    comparison: Literal["listwise", "pointwise"] = Field(
        default="listwise",
        description=(
            "`listwise`: cross entropy of the positive among an example's candidates; "
            "`pointwise`: binary cross entropy of each."
        ),
    )
    granule_negatives: int = Field(
        default=4,
        ge=0,
        description=(
            "Positives of other examples of the granule as negatives beside the hard ones. Each "
            "costs a forward pass of a pair."
        ),
    )


def check_spec(spec: EncoderSpec) -> None:
    """Refuse encoders whose cross-encoders `transformers` builds in another way."""
    if spec.kind not in ACTIVATIONS:
        raise InputError(
            "objective.name",
            f"`reranking` cannot train architecture {spec.kind}",
            f"Choose a start of {', '.join(ACTIVATIONS)}",
        )
    if spec.dense:
        raise InputError(
            "encoder.start",
            "it has dense layers after the pooling, which a cross-encoder lacks",
            "Name a start without them",
        )
    if any(text for _, text in spec.prompts.texts):
        raise InputError(
            "encoder.start",
            "it has prompts, which a cross-encoder does not read",
            "Set encoder.prompts to {query: '', document: ''}, or name a start without them",
        )


def check(config: Config) -> None:
    """Refuse settings without effect on a cross-encoder, and examples without any negative."""
    settings, evaluation = config.objective, config.evaluation
    assert isinstance(settings, RerankingSettings), "the settings of this loss"
    zero, nothing = "Set it to 0", "Leave it out"
    unfit = {
        "evaluation.every_checkpoints": (evaluation.every_checkpoints > 0, zero),
        "evaluation.similarity": (bool(evaluation.similarity), nothing),
        "evaluation.classification": (bool(evaluation.classification), nothing),
        "evaluation.reranker": (evaluation.reranker is not None, nothing),
        "encoder.lsa.dimensions": (config.encoder.lsa.dimensions > 0, zero),
        "encoder.lora.export": (config.encoder.lora.export == "adapter", "Set it to merged"),
        "encoder.output_width": (config.encoder.output_width is not None, nothing),
        "encoder.keep_layers": (config.encoder.keep_layers == 0, "Keep at least one layer"),
        "encoder.max_length": (config.encoder.max_length == "corpus", "Name a number"),
        "training.start_share": (config.training.start_share != 0, zero),
        "run.keep_start": (config.run.keep_start, "Set it to false"),
    }
    for key, (is_set, remedy) in unfit.items():
        if is_set:
            raise InputError(key, "a cross-encoder has no embeddings", remedy)
    if config.corpus.hard_negatives + settings.granule_negatives == 0:
        raise InputError(
            "objective.granule_negatives",
            "the examples have no negatives",
            "Set it to at least 1, or corpus.pairs to triplets",
        )
    if settings.granule_negatives >= config.lanes.granule:
        raise InputError(
            "objective.granule_negatives",
            f"{settings.granule_negatives} is not below lanes.granule ({config.lanes.granule})",
            f"Set it to at most {config.lanes.granule - 1}",
        )


def tokens(longest: Sequence[int], settings: RerankingSettings) -> int:
    """Return the padded tokens of an example's pairs."""
    anchor, *candidates = longest
    count = len(candidates) + settings.granule_negatives
    return count * (anchor + max(candidates))


def inputs(
    granule: Granule,
    names: Sequence[str],
    ids: SpecialIds,
    settings: RerankingSettings,
    draw: np.random.Generator,
    limit: int,
) -> Mapping[str, np.ndarray]:
    """Return the pairs of a granule, as one text each.

    ``token_ids`` are int32 [examples, candidates, width], ``lengths`` int32 [examples, candidates].
    The positive comes first. ``counts`` (bool) leaves out drawn candidates that may be right: of
    the anchor's group, of an equal anchor, or with the text of the positive or of the anchor.
    ``shares`` are fp32 [examples], of the mean.
    """
    import numpy as np

    anchor, positive, *negatives = (granule.sides[name] for name in names)
    anchor = _cut(anchor, max(limit - _LEAST_SECOND, 2))
    examples = len(anchor.lengths)
    places = np.arange(examples)
    drawn = _others(examples, settings.granule_negatives, draw)
    found = [(positive, places), *((side, places) for side in negatives)]
    found += [(positive, drawn[:, number]) for number in range(drawn.shape[1])]
    pairs = [_joined(anchor, side, rows, limit) for side, rows in found]
    width = max(int(lengths.max()) for _, lengths in pairs)
    token_ids = np.zeros((examples, len(pairs), width), np.int32)
    counts = np.ones((examples, len(pairs)), bool)
    for number, (joined, _) in enumerate(pairs):
        used = min(width, joined.shape[1])
        token_ids[:, number, :used] = joined[:, :used]
    first = len(pairs) - drawn.shape[1]
    for number, rows in enumerate(drawn.T):
        may_be_right = granule.groups[rows] == granule.groups
        for side, other in ((positive, positive), (positive, anchor), (anchor, anchor)):
            may_be_right = may_be_right | _same(side, rows, other)
        counts[:, first + number] = ~may_be_right
    return {
        "token_ids": token_ids,
        "lengths": np.stack([lengths for _, lengths in pairs], axis=1).astype(np.int32),
        "counts": counts,
        "shares": np.full(examples, 1 / examples, np.float32),
    }


def _others(examples: int, count: int, draw: np.random.Generator) -> np.ndarray:
    """Draw other examples for each example, without repetition: int64 [examples, count]."""
    import numpy as np

    count = min(count, examples - 1)
    if count <= 0:
        return np.zeros((examples, 0), np.int64)
    keys = draw.random((examples, examples - 1))
    # Stable: of equal keys the first place wins on every machine.
    steps = 1 + keys.argsort(axis=1, kind="stable")[:, :count]
    found: np.ndarray = (np.arange(examples)[:, None] + steps) % examples
    return found


def _cut(side: Side, most: int) -> Side:
    """Return texts of at most so many tokens; each keeps its last one, a special token."""
    import numpy as np

    if side.lengths.max() <= most:
        return side
    lengths = np.minimum(side.lengths, most)
    token_ids = side.token_ids.copy()
    places = np.arange(len(lengths)), lengths - 1
    token_ids[places] = side.token_ids[np.arange(len(lengths)), side.lengths - 1]
    return replace(side, token_ids=token_ids, lengths=lengths.astype(side.lengths.dtype))


def _joined(
    anchor: Side, side: Side, rows: np.ndarray, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return anchors with the texts of other rows behind them, and their lengths.

    A text begins and ends with a special token, such as [CLS] and [SEP]. The second one loses its
    first, and the end of its words beyond ``limit`` tokens of a pair.
    """
    import numpy as np

    second = side.token_ids[rows][:, 1:]
    lengths = side.lengths[rows] - 1
    kept = np.clip(limit - anchor.lengths, 1, lengths)
    ends = second[np.arange(len(rows)), lengths - 1]
    examples, width = anchor.token_ids.shape
    joined = np.zeros((examples, width + second.shape[1]), np.int32)
    joined[:, :width] = anchor.token_ids
    places = anchor.lengths[:, None] + np.arange(second.shape[1])
    is_token = np.arange(second.shape[1]) < kept[:, None]
    joined[np.nonzero(is_token)[0], places[is_token]] = second[is_token]
    joined[np.arange(examples), anchor.lengths + kept - 1] = ends
    return joined, anchor.lengths + kept


def _same(side: Side, rows: np.ndarray, other: Side) -> np.ndarray:
    """Return whether the texts of some rows of a side are those of another side: bool [rows]."""
    import numpy as np

    width = max(side.token_ids.shape[1], other.token_ids.shape[1])

    def padded(one: Side) -> np.ndarray:
        is_token = np.arange(one.token_ids.shape[1]) < one.lengths[:, None]
        ids = np.where(is_token, one.token_ids, -1)
        return np.pad(ids, ((0, 0), (0, width - ids.shape[1])), constant_values=-1)

    found: np.ndarray = (padded(side)[rows] == padded(other)).all(axis=1)
    return found


def reranking(view: View, arrays: Mapping[str, np.ndarray], settings: RerankingSettings) -> Any:
    """Return the loss of the scores of an example's candidates; the first is the positive.

    Sources: Nogueira and Cho, "Passage Re-ranking with BERT", 2019, arXiv:1901.04085 (pointwise);
    Gao, Dai and Callan, "Rethink Training of BERT Rerankers in Multi-Stage Retrieval Pipeline",
    ECIR 2021, arXiv:2101.08751 (listwise: localised contrastive estimation).
    """
    import torch
    from torch.nn import functional

    from pipelines.models.frameworks.torch_batch import to_device

    device = view.encoder.device
    examples, candidates, width = arrays["token_ids"].shape
    batch = view.batch(
        arrays["token_ids"].reshape(-1, width), arrays["lengths"].reshape(examples * candidates)
    )
    states = view.hidden_states(batch).index_select(0, batch.firsts)
    scores = score(view, states).view(examples, candidates)
    counts, shares = (to_device(arrays[name], device) for name in ("counts", "shares"))
    if settings.comparison == "listwise":
        scores = scores.masked_fill(~counts, -torch.inf)
        return ((torch.logsumexp(scores, 1) - scores[:, 0]) * shares).sum()
    wanted = torch.zeros_like(scores)
    wanted[:, 0] = 1.0
    losses = functional.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
    losses = losses.masked_fill(~counts, 0.0).sum(1) / counts.sum(1)
    return (losses * shares).sum()


def score(view: View, states: Any) -> Any:
    """Return the score of each pair, [pairs], from the first hidden state of each."""
    from torch.nn import functional

    from pipelines.models.frameworks.torch import linear

    head = {name: weight.to(view.dtype) for name, weight in view.own.items()}
    inner = linear(states.to(view.dtype), head[f"{DENSE}weight"], head[f"{DENSE}bias"])
    activation = ACTIVATIONS[view.spec.kind]
    inner = inner.tanh() if activation == "tanh" else getattr(functional, activation)(inner)
    scores = linear(inner, head[f"{SCORE}weight"], head[f"{SCORE}bias"])
    return scores.float()[:, 0]


LOSS = Loss(
    name="reranking",
    summary="Trains a cross-encoder: scores the positive above an example's negatives.",
    needs="pairs",
    sides=("anchor", "positive", "negative"),
    uses_negatives=False,
    settings=RerankingSettings,
    forms={"torch": reranking},
    check=check,
    token_loss=TokenLoss(
        uses="tokens",
        shapes=head_shapes,
        inputs=inputs,
        tokens=tokens,
        masks=False,
        check_spec=check_spec,
        scores_pairs=True,
    ),
)
