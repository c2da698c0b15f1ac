"""Every loss against sentence-transformers' own: same embeddings in, same value and gradient out.

``pytest tests/losses/test_equality.py -s`` prints the largest differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.losses import (
    AnglELoss,
    ContrastiveLoss,
    CoSENTLoss,
    CosineSimilarityLoss,
    DistillKLDivLoss,
    EmbedDistillLoss,
    GISTEmbedLoss,
    MarginMSELoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
    OnlineContrastiveLoss,
    TripletLoss,
)
from sentence_transformers.sentence_transformer.losses.triplet import TripletDistanceMetric
from torch.nn.functional import normalize

from pipelines.losses.candidates import Picks
from pipelines.losses.loss import configured_loss
from pipelines.settings.objective import objective
from pipelines.training.steppers.torch import on_device

EXAMPLES, WIDTH = 7, 12
MODEL = torch.nn.Identity()
ALL = Picks(np.arange(EXAMPLES), np.empty((0, 2), np.int64))
"""Each anchor sees all candidates."""


class Given(torch.nn.Module):
    """A model whose embeddings are given."""

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sentence_embedding": features["given"]}

    def get_embedding_dimension(self) -> int:
        return WIDTH


Theirs = Callable[[list[torch.Tensor]], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A loss of ours, and one of theirs.

    Attributes:
        label: What is compared.
        name: Of our loss.
        sides: How many it has.
        theirs: Their loss, of unit vectors.
        keys: Of our settings.
        targets: What ours compares with.
    """

    label: str
    name: str
    sides: int
    theirs: Theirs
    keys: dict[str, Any] = field(default_factory=dict)
    targets: Any = ALL


def ranking(label: str, sides: int, keys: dict[str, Any] | None = None, **theirs: Any) -> Case:
    """In-batch negatives; the keys that have one name and one meaning are given once."""
    keys, scale = {**theirs, **(keys or {})}, theirs.pop("scale", 20.0)
    module = MultipleNegativesRankingLoss(MODEL, scale=scale, **theirs)

    def of(embeddings: list[torch.Tensor]) -> torch.Tensor:
        return module.compute_loss_from_embeddings(embeddings, None)

    keys = {"temperature": 1 / scale} | {key: keys[key] for key in keys if key != "scale"}
    return Case(label, "in_batch_negatives", sides, of, keys)


ALL_FOUR = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
BOTH_WAYS = ("query_to_doc", "doc_to_query")


def guided(label: str, sides: int, guide: Sequence[torch.Tensor] | None, **keys: Any) -> Case:
    """In-batch negatives without what a guide, or the model itself, takes for false negatives."""
    # The constructor wants two whole models.
    module = GISTEmbedLoss.__new__(GISTEmbedLoss)
    torch.nn.Module.__init__(module)
    module.model, module.guide = MODEL, torch.nn.Module()
    module.must_retokenize = module.gather_across_devices = False
    module.similarity_fct = torch.nn.CosineSimilarity(dim=-1)
    module.cross_entropy_loss = torch.nn.CrossEntropyLoss()
    module.temperature, module.margin = 0.05, keys["false_negative_margin"]
    module.margin_strategy = keys["margin_strategy"]
    among = sides == 2
    module.contrast_anchors = module.contrast_positives = among
    if among:
        keys["directions"] = ("query_to_doc", "query_to_query", "doc_to_doc")

    def of(embeddings: list[torch.Tensor]) -> torch.Tensor:
        seen = guide or [side.detach() for side in embeddings]
        by_model = {module.model: embeddings, module.guide: seen}
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(
                GISTEmbedLoss.forward.__globals__,
                "embed_columns",
                lambda model, features: by_model[model],
            )
            return module([{} for _ in embeddings], None)

    vectors = tuple(side.numpy() for side in guide or ())
    return Case(label, "in_batch_negatives", sides, of, keys, ALL._replace(guide=vectors))


def nested(case: Case, module: type[torch.nn.Module], **theirs: Any) -> Case:
    """A case at three widths, one of which counts twice.

    Args:
        case: At the whole width.
        module: Their loss.
        theirs: Its arguments.
    """
    keys = {"dimensions": (WIDTH, 7, 4), "dimension_weights": (1.0, 0.5, 2.0)}
    model = Given()
    inner = module(model, **theirs)
    outer = MatryoshkaLoss(model, inner, keys["dimensions"], keys["dimension_weights"])
    labels = None if isinstance(case.targets, Picks) else torch.from_numpy(case.targets)

    def of(embeddings: list[torch.Tensor]) -> torch.Tensor:
        return outer([{"given": side} for side in embeddings], labels)

    return replace(case, label=f"{case.label}, nested", theirs=of, keys={**case.keys, **keys})


def vectors(sides: int, width: int = WIDTH, seed: int = 5) -> list[torch.Tensor]:
    """Of which the positives are near their anchors, and some others too."""
    generator = torch.Generator().manual_seed(seed)
    anchors, *others = torch.randn(sides, EXAMPLES, width, generator=generator)
    if not others:
        return [anchors]
    near = [anchors + 0.7 * others[0], *(0.6 * anchors.roll(1, 0) + other for other in others[1:])]
    return [anchors, *near]


SCORES = np.array([0.1, 0.9, 0.4, 0.4, 0.0, 1.0, 0.7], np.float32)
LABELS = (SCORES > 0.5).astype(np.float32)
TEACHERS = np.random.default_rng(3).normal(0, 3, (EXAMPLES, 4)).astype(np.float32)
"""Scores of a positive and three hard negatives."""


def plain(label: str, name: str, sides: int, module: Any, targets: Any, **keys: Any) -> Case:
    """A loss of theirs that takes embeddings and labels."""
    labels = None if isinstance(targets, Picks) else torch.from_numpy(targets)

    def of(embeddings: list[torch.Tensor]) -> torch.Tensor:
        return module.compute_loss_from_embeddings(embeddings, labels)

    return Case(label, name, sides, of, keys, targets)


def taught(distance: str, negatives: int) -> Case:
    """The vectors of a teacher, of the same width."""
    sides = 2 + negatives
    teacher = [normalize(side, dim=-1) for side in vectors(sides, seed=8)]
    module = EmbedDistillLoss(Given(), distance)

    def of(embeddings: list[torch.Tensor]) -> torch.Tensor:
        return module.compute_loss_from_embeddings(embeddings, teacher)

    keys = {"distance": distance}
    targets = [side.numpy() for side in teacher]
    return Case(f"{distance}, {sides} sides", "embedding_distillation", sides, of, keys, targets)


def divided(temperature: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Inner products of rows, by a temperature."""
    return lambda left, right: (left * right).sum(-1) / temperature


TEACHER = [normalize(side, dim=-1) for side in vectors(3, width=5, seed=9)]

CASES = [
    ranking("pairs", 2),
    ranking("triplets", 3, scale=7.0),
    ranking("both ways", 3, directions=BOTH_WAYS),
    ranking("both ways, a softmax each", 3, directions=BOTH_WAYS, partition_mode="per_direction"),
    ranking("within documents", 3, directions=("query_to_doc", "doc_to_doc")),
    ranking("four directions, pairs", 2, directions=ALL_FOUR),
    ranking("four directions, three hard negatives", 5, directions=ALL_FOUR),
    *(
        ranking(
            f"hardness of {mode}, {len(chosen)} directions",
            4,
            hardness_mode=mode,
            hardness_strength=5.0,
            directions=chosen,
        )
        for mode in ("in_batch_negatives", "hard_negatives", "all_negatives")
        for chosen in (("query_to_doc",), ALL_FOUR)
    ),
    *(
        guided(f"{how} margin {margin}, {who}, {sides} sides", sides, guide, **keys)
        for sides in (2, 3)
        for how, margin in (("absolute", 0.1), ("relative", 0.3))
        for who, guide in (("by itself", None), ("by a teacher", TEACHER[:sides]))
        for keys in [{"false_negative_margin": margin, "margin_strategy": how}]
    ),
    nested(ranking("pairs", 2), MultipleNegativesRankingLoss),
    nested(
        ranking("four directions", 3, directions=ALL_FOUR),
        MultipleNegativesRankingLoss,
        directions=ALL_FOUR,
    ),
    plain(
        "triplets",
        "triplet",
        3,
        TripletLoss(MODEL, TripletDistanceMetric.COSINE, triplet_margin=0.6),
        ALL,
        margin=0.6,
    ),
    plain("scores", "cosine_regression", 2, CosineSimilarityLoss(MODEL), SCORES),
    plain("scores", "cosent", 2, CoSENTLoss(MODEL), SCORES),
    plain("labels", "cosent", 2, CoSENTLoss(MODEL, scale=3.0), LABELS, temperature=1 / 3),
    nested(plain("scores", "cosent", 2, CoSENTLoss(MODEL), SCORES), CoSENTLoss),
    plain("scores", "angle", 2, AnglELoss(MODEL), SCORES),
    # At an odd width too.
    nested(plain("scores", "angle", 2, AnglELoss(MODEL), SCORES), AnglELoss),
    plain("labels", "contrastive", 2, ContrastiveLoss(MODEL, margin=1.2), LABELS, margin=1.2),
    *(
        plain(
            label, "online_contrastive", 2, OnlineContrastiveLoss(MODEL, margin=1.2), of, margin=1.2
        )
        for label, of in (
            ("labels", LABELS),
            ("labels of 1 alone", np.ones_like(LABELS)),
            ("labels of 0 alone", np.zeros_like(LABELS)),
        )
    ),
    *(taught(distance, negatives) for distance in ("cosine", "mse") for negatives in (0, 1)),
    *(
        plain(
            f"{negatives} negatives",
            "margin_mse",
            2 + negatives,
            MarginMSELoss(MODEL, similarity_fct=divided(0.3)),
            TEACHERS[:, : 1 + negatives],
            temperature=0.3,
        )
        for negatives in (1, 3)
    ),
    *(
        plain(
            f"{negatives} negatives",
            "listwise_kl",
            2 + negatives,
            # Their temperature of the model is a factor of the loss too.
            DistillKLDivLoss(MODEL, similarity_fct=divided(0.3), teacher_temperature=2.0),
            TEACHERS[:, : 1 + negatives],
            temperature=0.3,
            teacher_temperature=2.0,
        )
        for negatives in (1, 3)
    ),
]


def ours_in_torch(case: Case, raw: Sequence[np.ndarray]) -> tuple[float, list[np.ndarray]]:
    """Loss and gradients of what is not yet of length 1."""
    loss_of = configured_loss(objective(case.name, **case.keys), "torch")
    leaves = [torch.tensor(side, requires_grad=True) for side in raw]
    units = [normalize(leaf, dim=-1) for leaf in leaves]
    loss = loss_of(units, on_device(case.targets, torch.device("cpu")))
    return loss.item(), [slope.numpy() for slope in torch.autograd.grad(loss, leaves)]


def ours_in_tensorflow(case: Case, raw: Sequence[np.ndarray]) -> tuple[float, list[np.ndarray]]:
    """The same."""
    import tensorflow as tf

    loss_of = configured_loss(objective(case.name, **case.keys), "tensorflow")
    leaves = [tf.constant(side) for side in raw]
    with tf.GradientTape() as tape:
        tape.watch(leaves)
        units = [tf.math.l2_normalize(leaf, axis=-1) for leaf in leaves]
        loss = loss_of(units, case.targets)
    return float(loss), [tf.convert_to_tensor(one).numpy() for one in tape.gradient(loss, leaves)]


OURS = {"torch": ours_in_torch, "tensorflow": ours_in_tensorflow}


@pytest.mark.parametrize("framework", OURS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}: {case.label}")
def test_equality(case: Case, framework: str) -> None:
    raw = vectors(case.sides)
    leaves = [side.clone().requires_grad_() for side in raw]
    expected = case.theirs([normalize(leaf, dim=-1) for leaf in leaves])
    slopes = torch.autograd.grad(expected, leaves)
    value, found = OURS[framework](case, [side.numpy() for side in raw])
    of_value = abs(value - expected.item())
    of_slope = max(
        float(np.abs(one - other.numpy()).max()) for one, other in zip(found, slopes, strict=True)
    )
    told = f"{case.name}: {case.label} | {framework} | {of_value:.1e} | {of_slope:.1e}"
    print(f"\n| {told} |", end="")
    largest = max(float(np.abs(slope).max()) for slope in found)
    assert of_value < 1e-5 * max(1, abs(value)), told
    assert of_slope < 1e-5 * max(1, largest), told
    assert largest > 1e-3, "there is something to compare"
