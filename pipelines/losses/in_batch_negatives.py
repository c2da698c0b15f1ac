"""InfoNCE over cosine similarities: each anchor picks its positive among all of them.

Hard negatives are further candidates: each anchor sees the hard negatives of all examples. The loss
leaves out false negatives, see :mod:`.candidates`; with a margin also candidates nearly as similar
to the anchor as its positive. Directions add comparisons: of a positive with all anchors, and
within a side. The logits of an example are then its rows of several similarity tables, in one
softmax or in one for each.

Sources: van den Oord, Li and Vinyals, "Representation Learning with Contrastive Predictive Coding",
2018, arXiv:1807.03748; the hard negatives as in the MultipleNegativesRankingLoss of
sentence-transformers, after Henderson et al., 2017, arXiv:1705.00652; four directions in one
softmax: Li et al., "Towards General Text Embeddings with Multi-stage Contrastive Learning", 2023,
arXiv:2308.03281; two, each with its own: Günther et al., "Jina Embeddings 2", 2023,
arXiv:2310.19923; hardness: Lan et al., "LLaVE", 2025, arXiv:2503.04812, equation 5; the margin:
Solatorio, "GISTEmbed", 2024, arXiv:2402.16829, with the model, or a teacher, as the guide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pipelines.errors import InputError
from pipelines.losses.loss import Loss
from pipelines.losses.operations import Operations, both_forms
from pipelines.settings.objective import ObjectiveSettings

if TYPE_CHECKING:
    from pipelines.losses.candidates import Picks
    from pipelines.settings import Config

Direction = Literal["query_to_doc", "doc_to_query", "query_to_query", "doc_to_doc"]
FORWARD: Direction = "query_to_doc"
"""The direction that is always used, and the only one in dllib."""
ORDER: Sequence[Direction] = (FORWARD, "doc_to_query", "query_to_query", "doc_to_doc")
_WITH_THE_PAIR = (FORWARD, "doc_to_query")
"""The directions whose tables hold an example's similarity to its positive."""


class InBatchNegativesSettings(ObjectiveSettings):
    """How similarities are compared, and with what."""

    temperature: float = Field(
        default=0.05, gt=0, description="Divides cosine similarities before the softmax."
    )
    negatives: Literal["granule", "step"] = Field(
        default="granule", description="Where negatives come from: the granule, or the whole step."
    )
    directions: tuple[Direction, ...] = Field(
        default=(FORWARD,),
        description=(
            "What is compared: `query_to_doc` (anchors with positives and hard negatives, always "
            "there), `doc_to_query` (positives with anchors), `query_to_query`, `doc_to_doc` (with "
            "the texts of other examples on the same side)."
        ),
    )
    partition_mode: Literal["joint", "per_direction"] = Field(
        default="joint",
        description="One softmax over all `directions`, or the mean of one for each.",
    )
    hardness_strength: float = Field(
        default=0.0,
        ge=0,
        description=(
            "Adds so many times its cosine, without gradient, to the logit of a negative of "
            "`query_to_doc`: hard ones count more. 0: off; 5 to 9 are used."
        ),
    )
    hardness_mode: Literal["in_batch_negatives", "hard_negatives", "all_negatives"] = Field(
        default="in_batch_negatives",
        description=(
            "To which negatives `hardness_strength` applies: texts of other examples, the "
            "example's own hard negatives, or both."
        ),
    )
    false_negative_margin: float | None = Field(
        default=None,
        ge=0,
        description=(
            "A text whose similarity is above that of the pair less this margin is taken for a "
            "false negative and left out; unset: only what the corpus knows to be one is."
        ),
    )
    margin_strategy: Literal["absolute", "relative"] = Field(
        default="absolute",
        description="Whether `false_negative_margin` is a cosine, or a share of the pair's.",
    )

    guide: Literal["model", "teacher"] = Field(
        default="model",
        description=(
            "Whose similarities `false_negative_margin` compares: those of the model that is "
            "trained, or of the vectors of the section `teacher`."
        ),
    )

    @property
    def uses_teacher(self) -> bool:
        """Whether a teacher tells false negatives."""
        return self.guide == "teacher"

    @property
    def compares_anchors(self) -> bool:
        """Whether a direction leads to the anchors: they are candidates too then."""
        return any(direction.endswith("_to_query") for direction in self.directions)

    @property
    def compares_positives(self) -> bool:
        """Whether an example's positive is compared with more than its anchor."""
        if self.false_negative_margin is not None:
            return True
        return any(direction.startswith("doc_to_") for direction in self.directions)

    @property
    def is_plain(self) -> bool:
        """Whether the loss only compares anchors with documents, at one width, without options."""
        has_option = self.hardness_strength > 0 or self.false_negative_margin is not None
        return self.directions == (FORWARD,) and not has_option and not self.dimensions


def check_comparisons(config: Config) -> None:
    """Refuse directions, hardness and margins without a meaning, or without a form."""
    settings = config.objective
    assert isinstance(settings, InBatchNegativesSettings)
    chosen = settings.directions
    if FORWARD not in chosen or len(set(chosen)) < len(chosen):
        raise InputError(
            "objective.directions",
            f"the list is {', '.join(chosen) or 'empty'}",
            "Name query_to_doc, and each of the others at most once",
        )
    without_pair = [direction for direction in chosen if direction not in _WITH_THE_PAIR]
    if settings.partition_mode == "per_direction" and without_pair:
        raise InputError(
            "objective.partition_mode",
            f"{without_pair[0]} has no pair to pick, so it cannot have a softmax of its own",
            "Set it to joint, or leave the direction out",
        )
    if settings.uses_teacher and settings.false_negative_margin is None:
        raise InputError(
            "objective.guide",
            "a teacher needs a margin to tell false negatives",
            "Set objective.false_negative_margin, for example to 0.05",
        )
    _check_effects(settings)
    hard = settings.hardness_mode == "hard_negatives" and settings.hardness_strength > 0
    if hard and config.corpus.pairs != "triplets":
        raise InputError(
            "objective.hardness_mode",
            f"pairs of kind {config.corpus.pairs} have no hard negatives",
            "Set it to in_batch_negatives",
        )


def _check_effects(settings: InBatchNegativesSettings) -> None:
    """Refuse options of features that are off."""
    without = {
        "partition_mode": (len(settings.directions) == 1, "a second entry in objective.directions"),
        "hardness_mode": (not settings.hardness_strength, "objective.hardness_strength"),
        "margin_strategy": (
            settings.false_negative_margin is None,
            "objective.false_negative_margin",
        ),
    }
    for name, (is_off, needed) in without.items():
        if is_off and getattr(settings, name) != type(settings).model_fields[name].default:
            raise InputError(
                f"objective.{name}", f"it has no effect without {needed}", "Set both, or neither"
            )


class _Comparison:
    """The tables of logits of some examples, a row for each.

    They have the anchors of all examples if the loss compares with them, and otherwise their own.
    """

    def __init__(
        self,
        sides: Sequence[Any],
        picks: Picks,
        settings: InBatchNegativesSettings,
        operations: Operations,
    ) -> None:
        self._picks, self._settings, self._operations = picks, settings, operations
        self._documents = len(sides) - 1
        self._examples = operations.count(sides[1])
        self._sources, self._targets = self._ends(sides)
        self._guides = self._ends(picks.guide) if picks.guide else None
        if settings.false_negative_margin is not None:
            sources, _ = self._guides or (self._sources, None)
            cosines = operations.cosines(sources["query"], sources["doc"])
            pair = operations.constant(cosines)[:, None]
            scale = abs(pair) if settings.margin_strategy == "relative" else 1.0
            self._most = pair - scale * settings.false_negative_margin

    def logits(self, direction: Direction) -> Any:
        """Return the table of a direction."""
        settings, operations = self._settings, self._operations
        source, _, target = direction.partition("_to_")
        scaled = self._sources[source] / settings.temperature
        table = operations.products(scaled, self._targets[target])
        # Before hardness changes the table.
        false = None if settings.false_negative_margin is None else self._false(direction, table)
        if direction == FORWARD and settings.hardness_strength:
            table = table + self._hardness(table)
        if false is not None:
            table = operations.without(table, false)
        table = operations.put(table, self._excluded(target), -math.inf)
        if direction not in _WITH_THE_PAIR:
            table = operations.put(table, self._own(target), -math.inf)
        return table

    def _ends(self, sides: Sequence[Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the sources and the targets of comparisons, by the ends of a direction."""
        settings, operations = self._settings, self._operations
        queries, *documents = sides
        # Nothing is joined that is one already: these may be the texts of a whole step.
        texts = operations.joined(documents) if len(documents) > 1 else documents[0]
        # Without a direction to the anchors, the queries are only these examples' own.
        compares = settings.compares_anchors
        sources = {"query": operations.rows(queries, self._picks.own) if compares else queries}
        if settings.compares_positives:
            sources["doc"] = operations.rows(texts, self._picks.own)
        return sources, {"query": queries, "doc": texts}

    def _false(self, direction: Direction, table: Any) -> Any:
        """Return the false negatives in the plain table of a direction, as truth values."""
        operations, (source, _, target) = self._operations, direction.partition("_to_")
        if self._guides is None:
            cosines = operations.constant(table) * self._settings.temperature
        else:
            cosines = operations.products(self._guides[0][source], self._guides[1][target])
        # The pair itself stays.
        unpaired = operations.put(cosines, operations.pairs(self._picks.own), -math.inf)
        return unpaired > self._most

    def _hardness(self, table: Any) -> Any:
        """Return the addend of the plain table of documents: 0 but for some negatives."""
        settings, operations = self._settings, self._operations
        factor = settings.hardness_strength * settings.temperature
        own_texts, pair = self._own("doc"), operations.pairs(self._picks.own)

        def put_to_zero(places: Any) -> Any:
            return operations.put(operations.constant(table) * factor, places, 0.0)

        if settings.hardness_mode == "all_negatives":
            return put_to_zero(pair)
        if settings.hardness_mode == "in_batch_negatives":
            return put_to_zero(own_texts)
        # The two differ only at the example's own hard negatives.
        return put_to_zero(pair) - put_to_zero(own_texts)

    def _own(self, target: str) -> Any:
        """Return the places of the example's own texts, on all sides of ``target``."""
        sides = self._documents if target == "doc" else 1
        places = [
            self._operations.pairs(self._picks.own + side * self._examples) for side in range(sides)
        ]
        return self._operations.joined(places)

    def _excluded(self, target: str) -> Any:
        """Return the excluded pairs, counted within the target."""
        excluded = self._picks.excluded
        if not self._settings.compares_anchors:
            return excluded
        texts = self._documents * self._examples
        if target == "doc":
            return self._operations.between(excluded, 0, texts)
        return self._operations.between(excluded, texts, texts + self._examples)


def loss(
    operations: Operations, sides: Sequence[Any], picks: Picks, settings: InBatchNegativesSettings
) -> Any:
    """Return the mean cross-entropy of picking the positive; a scalar tensor."""
    compared = _Comparison(sides, picks, settings, operations)
    # The first holds the positive, at its own number.
    tables = [compared.logits(direction) for direction in ORDER if direction in settings.directions]
    if settings.partition_mode == "per_direction":
        return sum(operations.cross_entropy(table, picks.own) for table in tables) / len(tables)
    joint = operations.joined(tables, 1) if len(tables) > 1 else tables[0]
    return operations.cross_entropy(joint, picks.own)


def bigdl(
    sides: Sequence[Any], examples: int, settings: InBatchNegativesSettings
) -> tuple[Any, Any]:
    """Return the similarities to pick from, and dllib's mean cross-entropy of picking the positive.

    The sides are nodes of a graph: [granules, examples, width] each, of length 1. The similarities
    are a node [granules x examples, candidates]. The criterion takes it and the number, from 1, of
    each example's own text. In between, the class `GranuleLosses` of
    :mod:`pipelines.engines.bigdl.jvm` excludes hidden candidates.
    """
    from bigdl.dllib.nn import criterion, layer

    anchor, *candidates = sides
    texts = layer.JoinTable(2, 3)(candidates) if len(candidates) > 1 else candidates[0]
    similarity = layer.MM(trans_a=False, trans_b=True)([anchor, texts])
    scaled = layer.MulConstant(1 / settings.temperature)(similarity)
    rows = layer.InferReshape([-1, len(candidates) * examples])(scaled)
    return rows, criterion.CrossEntropyCriterion()


LOSS = Loss(
    name="in_batch_negatives",
    summary="InfoNCE over cosine similarities: an anchor picks its positive among all candidates.",
    needs="pairs",
    sides=("anchor", "positive", "negative"),
    uses_negatives=True,
    settings=InBatchNegativesSettings,
    forms=both_forms(loss) | {"bigdl": bigdl},
    check=check_comparisons,
)


class SimcseSettings(InBatchNegativesSettings):
    """How similarities are compared: as with another text for a partner."""


def check_simcse(config: Config) -> None:
    """Refuse a training without dropout: both sides would have the same embedding."""
    check_comparisons(config)
    if not config.training.dropout:
        raise InputError(
            "training.dropout",
            "`simcse` tells a text's two embeddings apart only by dropout",
            "Set it to 0.1, for example",
        )


SIMCSE = Loss(
    name="simcse",
    summary=(
        "Unsupervised SimCSE: a text picks itself, under another dropout mask, among all texts."
    ),
    needs="singles",
    sides=("anchor", "anchor"),
    uses_negatives=True,
    settings=SimcseSettings,
    # None for BigDL, whose graphs have no dropout.
    forms=both_forms(loss),
    check=check_simcse,
)
"""Unsupervised SimCSE: a text picks itself, under another dropout mask, among all texts.

Source: Gao, Yao and Chen, "SimCSE: Simple Contrastive Learning of Sentence Embeddings", EMNLP 2021,
arXiv:2104.08821, section 3.
"""
