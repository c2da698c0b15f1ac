"""The loss of a cross-encoder: which pairs it reads, and its value and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reconstruction_cases import SPEC, lively, loss_and_gradients, texts
from steppers import IDS

from pipelines.errors import InputError
from pipelines.lanes.files import Granule, Side
from pipelines.models.weights import weight_shapes
from pipelines.pretraining.reranking import LOSS, RerankingSettings, inputs, tokens
from pipelines.pretraining.start import generator
from pipelines.settings.load import parse
from pipelines.settings.objective import objective


def sides(count: int = 3, examples: int = 5) -> list[Side]:
    return [texts(examples, seed=seed) for seed in range(count)]


def made(
    given: list[Side], epoch: int = 0, limit: int = 64, groups=None, **settings
) -> dict[str, np.ndarray]:
    known = RerankingSettings(name="reranking", **settings)
    anchor, positive, *negatives = given
    groups = np.arange(len(anchor.lengths)) if groups is None else np.array(groups)
    granule = Granule(
        number=3, groups=groups, anchor=anchor, positive=positive, negatives=tuple(negatives)
    )
    return dict(inputs(granule, [*granule.sides], IDS, known, generator(1, epoch, 3), limit))


def test_each_pair_is_an_anchor_and_a_candidate_without_its_first_token():
    given = sides()
    arrays = made(given, granule_negatives=2)
    assert arrays["token_ids"].shape[:2] == arrays["lengths"].shape == (5, 4)
    anchor, positive, negative = given
    for example in range(5):
        first = anchor.token_ids[example, : anchor.lengths[example]].tolist()
        for number, candidate in enumerate((positive, negative)):
            second = candidate.token_ids[example, 1 : candidate.lengths[example]].tolist()
            length = arrays["lengths"][example, number]
            assert arrays["token_ids"][example, number, :length].tolist() == first + second
            assert not arrays["token_ids"][example, number, length:].any()
    np.testing.assert_allclose(arrays["shares"], 0.2)


def test_drawn_negatives_are_others_of_the_granule_anew_in_each_epoch():
    given = sides(2)
    positives = {
        tuple(row[1:length]): number
        for number, (row, length) in enumerate(
            zip(given[1].token_ids.tolist(), given[1].lengths, strict=True)
        )
    }
    drawn = []
    for epoch in (0, 1):
        arrays = made(given, epoch, granule_negatives=3)
        of_epoch = []
        for example in range(5):
            first = int(given[0].lengths[example])
            found = [
                positives[tuple(ids[first:length])]
                for ids, length in zip(
                    arrays["token_ids"][example, 1:].tolist(),
                    arrays["lengths"][example, 1:],
                    strict=True,
                )
            ]
            assert example not in found
            assert len({*found}) == 3
            of_epoch.append(found)
        drawn.append(of_epoch)
    assert drawn[0] != drawn[1]
    again = made(given, 0, granule_negatives=3)
    np.testing.assert_array_equal(again["token_ids"], made(given, granule_negatives=3)["token_ids"])
    # More than there are: all others, once.
    assert made(given, granule_negatives=9)["token_ids"].shape[1] == 5


def test_drawn_texts_that_are_the_positive_or_the_anchor_do_not_count():
    anchor, positive = sides(2)
    token_ids, lengths = positive.token_ids.copy(), positive.lengths.copy()
    token_ids[3], lengths[3] = token_ids[0], lengths[0]
    token_ids[2], lengths[2] = 0, anchor.lengths[4]
    token_ids[2, : lengths[2]] = anchor.token_ids[4, : lengths[2]]
    counts = made([anchor, Side(token_ids, lengths)], granule_negatives=4)["counts"]
    assert counts[:, 0].all()
    left_out = {(int(row), int((~counts[row]).sum())) for row in range(5)}
    assert left_out == {(0, 1), (1, 0), (2, 0), (3, 1), (4, 1)}


def test_drawn_texts_of_the_anchors_group_or_of_an_equal_anchor_do_not_count():
    given = sides(2)
    counts = made(given, granule_negatives=4, groups=[1, 2, 1, 3, 4])["counts"]
    assert (~counts).sum(axis=1).tolist() == [1, 0, 1, 0, 0]
    anchor = given[0]
    token_ids, lengths = anchor.token_ids.copy(), anchor.lengths.copy()
    token_ids[4], lengths[4] = token_ids[3], lengths[3]
    counts = made([Side(token_ids, lengths), given[1]], granule_negatives=4)["counts"]
    assert (~counts).sum(axis=1).tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("limit", [18, 22, 28])
def test_a_pair_beyond_the_encoders_positions_loses_the_end_of_its_words(limit):
    given = sides(3)
    whole, short = made(given, granule_negatives=1), made(given, limit=limit, granule_negatives=1)
    assert whole["lengths"].max() > limit
    assert short["lengths"].max() == short["token_ids"].shape[2] <= limit
    for place in np.ndindex(short["lengths"].shape):
        ids, length = short["token_ids"][place], short["lengths"][place]
        # Both texts keep their end.
        assert ids[length - 1] == whole["token_ids"][place][whole["lengths"][place] - 1]
        anchor = min(int(given[0].lengths[place[0]]), max(limit - 16, 2))
        assert ids[anchor - 1] == given[0].token_ids[place[0], given[0].lengths[place[0]] - 1]


@pytest.mark.parametrize("comparison", ["listwise", "pointwise"])
def test_the_loss_is_the_cross_entropy_of_the_scores(comparison, monkeypatch):
    arrays = made(sides(), granule_negatives=1, comparison=comparison)
    arrays["counts"][2, 2] = False
    given = np.linspace(-2, 3, 15, dtype=np.float32)
    scores = torch.tensor(given).view(5, 3)
    monkeypatch.setattr(
        "pipelines.pretraining.reranking.score", lambda view, states: scores.view(-1)
    )
    settings = objective("reranking", comparison=comparison)

    class View:
        class encoder:  # noqa: N801 - an attribute of the view
            device = torch.device("cpu")

        @staticmethod
        def batch(token_ids, lengths):
            assert token_ids.shape[0] == len(lengths) == 15

            class Batch:
                firsts = torch.arange(15)

            return Batch

        @staticmethod
        def hidden_states(batch):
            return torch.zeros(15, 4)

    found = float(LOSS.form("torch")(View, arrays, settings))
    rows = []
    for row, counts in zip(given.reshape(5, 3), arrays["counts"], strict=True):
        known = row[counts]
        if comparison == "listwise":
            rows.append(np.log(np.exp(known).sum()) - row[0])
        else:
            wanted = np.eye(1, len(known))[0]
            rows.append(np.mean(np.logaddexp(0, known) - wanted * known))
    assert found == pytest.approx(np.mean(rows), rel=1e-5)


@pytest.mark.parametrize("comparison", ["listwise", "pointwise"])
def test_parts_of_a_granule_add_up_to_its_loss_and_gradients(comparison):
    weights = lively(weight_shapes(SPEC), 1)
    own = lively(dict(LOSS.token_loss.shapes(SPEC)), 2)
    arrays = made(sides(), limit=SPEC.positions, granule_negatives=1, comparison=comparison)
    whole = loss_and_gradients("reranking", arrays, weights, own)
    parts = [
        loss_and_gradients(
            "reranking", {name: rows[part] for name, rows in arrays.items()}, weights, own
        )
        for part in (slice(0, 2), slice(2, 5))
    ]
    assert sum(value for value, _, _ in parts) == pytest.approx(whole[0], rel=1e-5)
    for place in (1, 2):
        for name, gradient in whole[place].items():
            np.testing.assert_allclose(
                sum(part[place][name] for part in parts), gradient, atol=1e-5, err_msg=name
            )
    assert max(np.abs(value).max() for value in whole[2].values()) > 1e-3


def test_the_tokens_of_an_example_are_those_of_its_pairs():
    settings = RerankingSettings(name="reranking", granule_negatives=2)
    assert tokens([10, 20, 30], settings) == 4 * 40


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"objective": {"name": "reranking", "granule_negatives": 0}}, "have no negatives"),
        (
            {"objective": {"name": "reranking", "granule_negatives": 8}, "lanes": {"granule": 8}},
            "8 is not below lanes.granule (8). Set it to at most 7",
        ),
    ],
)
def test_examples_without_negatives_are_refused(settings, problem):
    with pytest.raises(InputError) as refused:
        parse({**settings, "training": {"framework": "torch"}})
    assert refused.value.key == "objective.granule_negatives"
    assert problem in str(refused.value)
