"""The map: neighbours stay neighbours, and what cannot be drawn does no harm."""

import numpy as np
import pytest

from pipelines.evaluation.samples import place_on_map, turned_onto


def groups(count: int, size: int) -> np.ndarray:
    """Vectors in groups that are far apart, one group after the other."""
    generator = np.random.default_rng(0)
    middles = 10 * generator.normal(size=(count, 16))
    return np.repeat(middles, size, axis=0) + generator.normal(size=(count * size, 16))


def test_what_is_alike_lies_together_and_the_map_is_the_same_again() -> None:
    vectors = groups(5, 8)
    places = place_on_map(vectors, 3)
    assert places.shape == (40, 2)
    assert np.abs(places).max() == pytest.approx(1.0)
    np.testing.assert_array_equal(places, place_on_map(vectors, 3))
    apart = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    nearest = apart.argmin(axis=1)
    assert (nearest // 8 == np.arange(40) // 8).all()


@pytest.mark.parametrize(
    "vectors",
    [
        np.ones((9, 4)),
        np.zeros((9, 4)),
        np.full((9, 4), np.nan),
        np.arange(6.0).reshape(3, 2),
        np.empty((0, 4)),
    ],
    ids=["one", "zero", "nan", "few", "none"],
)
def test_what_has_no_map_lies_in_the_middle(vectors) -> None:
    np.testing.assert_array_equal(place_on_map(vectors, 1), np.zeros((len(vectors), 2)))


def test_a_turned_map_is_turned_back() -> None:
    places = np.random.default_rng(1).uniform(-1, 1, (30, 2))
    places = (places - (places.max(0) + places.min(0)) / 2) / 1.1
    places /= np.abs(places).max()
    mirrored = places @ np.array([[0.6, 0.8], [0.8, -0.6]])
    back = turned_onto(mirrored, places)
    scale = np.abs(back).max() / np.abs(places).max()
    np.testing.assert_allclose(back, places * scale, atol=0.15)
    assert np.linalg.norm(back - places) < np.linalg.norm(mirrored - places) / 4
