"""What a loss is: what it needs, its settings, and its forms in the frameworks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pipelines.catalog import LOSSES
from pipelines.errors import InputError
from pipelines.losses.operations import CUTS
from pipelines.settings.objective import ObjectiveSettings

if TYPE_CHECKING:
    import numpy as np

    from pipelines.lanes.files import Side, SideName
    from pipelines.settings import Config
    from pipelines.tokens.vocabulary import SpecialIds

Form = Callable[[Any, Any, Any], Any]
"""A loss in a framework, which it imports when it is called.

The forms of TensorFlow and PyTorch take the embeddings of the sides as a list, [examples, width]
each, of length 1, in the order of the loss's ``sides``; what they are compared with, see
:data:`pipelines.losses.targets.Targets`; and the loss's own settings. They return the mean loss of
the texts of the first side, the anchors, which may be fewer than those that they pick from.

Those of a loss with a :class:`Reconstruction` take a view of the encoder instead, see
:class:`pipelines.pretraining.torch_head.View`; the arrays that :attr:`Reconstruction.noise` made of
some texts; and the settings. They return a sum that is that of parts of the texts, added up.

BigDL's takes the same sides as nodes of a graph, [granules, examples, width] each; the examples of
a granule; and the settings. It returns a node, and the criterion of dllib that compares it with
the targets.
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
"""What a corpus must have, for people."""
LABELS = "pairs with labels, 0 or 1: `corpus.score_column`"
"""The same of scores that are labels."""


def _no_further_check(config: Config) -> None:
    """For a loss that needs nothing but what it declares."""


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """What a loss has that acts on an encoder's tokens, with weights of its own.

    Attributes:
        uses: What it needs of an architecture, of its
            :attr:`~pipelines.models.architecture.Architecture.rewrites`.
        shapes: Of its own weights by name, for the spec of an encoder. They begin as BERT's do;
            a prediction head is that of the start, if it has one.
        noise: What it makes of a granule, given its texts, the ids of the vocabulary that are no
            words, the settings, and what draws the noise: arrays by name, [texts, ...] each.
        masks: Whether its noise needs a mask token.
        check_spec: Refuses, with an `InputError`, an encoder that it cannot train.
    """

    uses: str
    shapes: Callable[[Any], Mapping[str, tuple[int, ...]]]
    noise: Callable[[Side, SpecialIds, Any, np.random.Generator], Mapping[str, np.ndarray]]
    masks: bool
    check_spec: Callable[[Any], None]


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What a loss needs, and its forms.

    Attributes:
        name: As in the registry.
        needs: Of the corpus, see :data:`NEEDS`. Scores, or a teacher's vectors, are then what
            embeddings are compared with, and otherwise
            :class:`~pipelines.losses.candidates.Picks`.
        sides: The texts of an example that it embeds, each under noise of its own; `negative`
            stands for all hard negatives, a side each. Those that the lanes do not have are left
            out.
        uses_negatives: Whether examples see one another. Its settings may then have a key
            `negatives`, of which `step` asks for the examples of a whole step.
        settings: Its keys of the section `objective`.
        forms: By framework; see :data:`Form`.
        labels: Whether scores must be 0 or 1.
        check: Refuses, with an `InputError`, settings that the loss cannot work with, beyond those
            that follow from ``needs`` and ``forms``.
        reconstruction: Of a loss that has an encoder write texts out again; None for others.
    """

    name: str
    needs: Need
    sides: tuple[SideName, ...]
    uses_negatives: bool
    settings: type[ObjectiveSettings]
    forms: Mapping[str, Form]
    labels: bool = False
    check: Callable[[Config], None] = _no_further_check
    reconstruction: Reconstruction | None = None

    def form(self, framework: str) -> Form:
        """The form of a framework.

        Raises:
            InputError: It has none.
        """
        if framework not in self.forms:
            raise InputError(
                "training.framework",
                f"loss {self.name} has no form for {framework}",
                f"one of {', '.join(self.forms)}",
            )
        return self.forms[framework]

    def check_with(self, config: Config) -> None:
        """Refuses settings that the loss cannot work with, before Spark starts.

        Raises:
            InputError: Of the corpus, of the framework, or what ``check`` raises.
        """
        self.check(config)
        corpus = config.corpus
        if self.reconstruction and config.objective.dimensions:
            raise InputError(
                "objective.dimensions", f"`{self.name}` compares no embeddings", "leave it out"
            )
        if self.needs == "scores" and corpus.score_column is None:
            raise InputError("corpus.score_column", f"`{self.name}` needs it", "name the column")
        if self.needs == "candidate_scores" and not corpus.score_columns:
            raise InputError("corpus.score_columns", f"`{self.name}` needs it", "name the columns")
        if self.needs == "triplets" and corpus.pairs != "triplets":
            raise InputError(
                "corpus.pairs", f"`{self.name}` cannot use `{corpus.pairs}`", "set it to triplets"
            )
        if self.needs == "singles" and corpus.pairs != "single":
            raise InputError(
                "corpus.pairs", f"`{self.name}` cannot use `{corpus.pairs}`", "set it to single"
            )
        if config.objective.uses_teacher and not config.teacher.is_asked:
            raise InputError("teacher.model", f"`{self.name}` needs it", "name its folder")
        if self.needs not in ("singles", "teacher") and corpus.pairs == "single":
            raise InputError("objective.name", "single texts have no partner", "set it to simcse")
        if not config.training.chooses_framework:
            self.form(config.training.framework)


def configured_loss(
    settings: ObjectiveSettings, framework: str
) -> Callable[[Sequence[Any], Any], Any]:
    """The loss that is configured, of the sides and the targets.

    With ``dimensions`` the weighted sum of the losses of embeddings that are cut to each of them
    and scaled to length 1 again.

    Source: Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022, arXiv:2205.13147.

    Raises:
        InputError: It has no form in the framework.
    """
    form = LOSSES.load(settings.name).form(framework)
    if not settings.dimensions:
        return lambda sides, targets: form(sides, targets, settings)
    cut = CUTS[framework]
    weights = settings.dimension_weights or (1.0,) * len(settings.dimensions)

    def nested(sides: Sequence[Any], targets: Any) -> Any:
        return sum(
            weight * form([cut(side, width) for side in sides], targets, settings)
            for width, weight in zip(settings.dimensions, weights, strict=True)
        )

    return nested


def spans_steps(settings: ObjectiveSettings) -> bool:
    """Whether negatives come from all granules of a step, on whatever worker they are."""
    # Of a loss without the key they are those of the granule.
    step = getattr(settings, "negatives", "granule") == "step"
    return step and LOSSES.load(settings.name).uses_negatives
