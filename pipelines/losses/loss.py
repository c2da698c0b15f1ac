"""The declaration of a loss: its needs, its settings, and its forms in the frameworks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pipelines.catalog import LOSSES
from pipelines.errors import InputError
from pipelines.losses.operations import operations_of
from pipelines.settings.objective import ObjectiveSettings

if TYPE_CHECKING:
    import numpy as np

    from pipelines.lanes.files import Granule, SideName
    from pipelines.settings import Config
    from pipelines.tokens.vocabulary import SpecialIds

Form = Callable[[Any, Any, Any], Any]
"""A loss in a framework, which it imports when it is called.

The forms of TensorFlow and PyTorch take the embeddings of the sides, a list of [examples, width],
of length 1, in the order of the loss's ``sides``; their targets, see
:data:`pipelines.losses.candidates.Targets`; and the loss's settings. They return the mean loss of
the anchors, the texts of the first side, which may be fewer than their candidates.

Those of a loss with a :class:`TokenLoss` take instead a view of the encoder, see
:class:`pipelines.pretraining.torch_head.View`; the arrays of :attr:`TokenLoss.inputs` for some
examples; and the settings. They return a sum over examples, to which parts of them add up.

BigDL's takes the sides as nodes of a graph, [granules, examples, width] each; the examples of a
granule; and the settings. It returns a node, and the criterion of dllib that compares it with the
targets.
"""


Need = Literal["pairs", "triplets", "scores", "candidate_scores", "teacher", "singles"]

NEEDS: Mapping[Need, str] = {
    "pairs": "pairs; hard negatives too, where there are some",
    "triplets": "triplets: `corpus.pairs: triplets`",
    "scores": "scored pairs: `corpus.score_column`",
    "candidate_scores": "triplets with a teacher's scores: `corpus.score_columns`",
    "teacher": "any texts, and a teacher's vectors of them: section `teacher`",
    "singles": "single texts: `corpus.pairs: single`",
}
"""The requirements on a corpus, for people."""
LABELS = "pairs with labels, 0 or 1: `corpus.score_column`"
"""The requirement of scores that are labels."""


@dataclass(frozen=True, kw_only=True)
class TokenLoss:
    """The parts of a loss with weights of its own that reads an encoder's hidden states.

    Attributes:
        uses: Its need among an architecture's
            :attr:`~pipelines.models.architecture.Architecture.token_losses`.
        shapes: Of its weights by name, for the spec of an encoder. They begin as BERT's do; a
            prediction head comes from the start, if it has one.
        inputs: Makes arrays by name, [examples, ...] each, from a granule and the names of its
            sides, the vocabulary's special ids, the settings, a generator, and the most tokens that
            the encoder reads.
        tokens: Padded tokens of an example, given the longest text of each side.
        masks: Whether it needs a mask token.
        check_spec: Refuses an unfit encoder with an `InputError`.
        scores_pairs: Whether the encoder becomes a cross-encoder: its own weights then are part of
            the model.
    """

    uses: str
    shapes: Callable[[Any], Mapping[str, tuple[int, ...]]]
    inputs: Callable[
        [Granule, Sequence[str], SpecialIds, Any, np.random.Generator, int],
        Mapping[str, np.ndarray],
    ]
    tokens: Callable[[Sequence[int], Any], int] = lambda longest, settings: max(longest)
    masks: bool
    check_spec: Callable[[Any], None]
    scores_pairs: bool = False


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The needs of a loss, and its forms.

    Attributes:
        summary: The minimised quantity, in a sentence of the documentation.
        needs: Of the corpus, see :data:`NEEDS`. Scores or a teacher's vectors are then the targets
            of embeddings, and otherwise :class:`~pipelines.losses.candidates.Picks`.
        sides: The texts of an example that it embeds, each under noise of its own; `negative`
            stands for all hard negatives, a side each. Sides missing in the lanes are left out.
        uses_negatives: Whether examples see one another. Its settings may then have a key
            `negatives` with the value `step`, for the examples of a whole step.
        settings: Its keys of the section `objective`.
        labels: Whether scores must be 0 or 1.
        check: Refuses unfit settings with an `InputError`, beyond the checks by ``needs`` and
            ``forms``.
        token_loss: Of a loss with weights of its own.
    """

    name: str
    summary: str = ""
    needs: Need
    sides: tuple[SideName, ...]
    uses_negatives: bool
    settings: type[ObjectiveSettings]
    forms: Mapping[str, Form]
    labels: bool = False
    check: Callable[[Config], None] = lambda config: None
    token_loss: TokenLoss | None = None

    def form(self, framework: str) -> Form:
        """Return the form of a framework; refuse a framework without one."""
        if framework not in self.forms:
            raise InputError(
                "training.framework",
                f"loss {self.name} has no implementation in {framework}",
                f"Choose one of {', '.join(self.forms)}",
            )
        return self.forms[framework]

    def check_with(self, config: Config) -> None:
        """Refuse an unsuitable corpus, framework or settings, before Spark starts."""
        self.check(config)
        corpus = config.corpus
        if self.token_loss and config.objective.dimensions:
            raise InputError(
                "objective.dimensions", f"`{self.name}` compares no embeddings", "Leave it out"
            )
        if self.needs == "scores" and corpus.score_column is None:
            raise InputError("corpus.score_column", f"`{self.name}` needs it", "Name the column")
        if self.needs == "candidate_scores" and not corpus.score_columns:
            raise InputError("corpus.score_columns", f"`{self.name}` needs it", "Name the columns")
        if self.needs == "triplets" and corpus.pairs != "triplets":
            raise InputError(
                "corpus.pairs", f"`{self.name}` cannot use `{corpus.pairs}`", "Set it to triplets"
            )
        if self.needs == "singles" and corpus.pairs != "single":
            raise InputError(
                "corpus.pairs", f"`{self.name}` cannot use `{corpus.pairs}`", "Set it to single"
            )
        if config.objective.uses_teacher and not config.teacher.is_asked:
            raise InputError("teacher.model", f"`{self.name}` needs it", "Name its folder")
        if self.needs not in ("singles", "teacher") and corpus.pairs == "single":
            raise InputError("objective.name", "single texts have no partner", "Set it to simcse")
        # An automatic engine chooses the framework later.
        if not config.training.chooses_framework:
            self.form(config.training.framework)


def scores_pairs(config: Config) -> bool:
    """Return whether a training makes a cross-encoder, and no encoder."""
    loss: Loss = LOSSES.load(config.by_source()[0].objective.name)
    return loss.token_loss is not None and loss.token_loss.scores_pairs


def configured_loss(
    settings: ObjectiveSettings, framework: str
) -> Callable[[Sequence[Any], Any], Any]:
    """Return the configured loss, a function of the sides and the targets.

    With ``dimensions`` it is a weighted sum: each loss takes embeddings truncated to one of them
    and scaled to length 1 again.

    Source: Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022, arXiv:2205.13147.
    """
    form = LOSSES.load(settings.name).form(framework)
    if not settings.dimensions:
        return lambda sides, targets: form(sides, targets, settings)
    cut = operations_of(framework).cut
    weights = settings.dimension_weights or (1.0,) * len(settings.dimensions)

    def nested(sides: Sequence[Any], targets: Any) -> Any:
        return sum(
            weight * form([cut(side, width) for side in sides], targets, settings)
            for width, weight in zip(settings.dimensions, weights, strict=True)
        )

    return nested


def spans_steps(settings: ObjectiveSettings) -> bool:
    """Return whether negatives come from all granules of a step, on any worker."""
    # A loss without the key has negatives of the granule.
    step = getattr(settings, "negatives", "granule") == "step"
    return step and LOSSES.load(settings.name).uses_negatives
